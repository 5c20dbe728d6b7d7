"""Engine calls of one turn of the loop share one transaction and one sync of the disk.

While a commit waits for the disk, requests arrive; the next turn of the loop makes the calls of all of them, one commit.
So a lone client waits for one sync a call, and a hundred clients wait for one sync together. In memory there is nothing to
share, and a call is made at once; so it is while there is nobody to share with.
Never here: what is called. Invariant: an answer is given only after what it says is as durable as it asked for.
Used on the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from onefold.contracts.engine import Engine

T = TypeVar("T")


class Turns:
    """The one way from a loop to an engine.

    Args:
        engine: an opened engine, used by this process on this loop's thread only.
        loop: the loop.

    Attributes:
        is_alone: whether nobody but the caller can be about to make a call; False unless somebody who knows says otherwise.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._at_once = not engine.shared
        self.is_alone: Callable[[], bool] = lambda: False
        self._waiting: list[tuple[Callable[[], Any], bool, asyncio.Future[Any]]] = []

    async def run(self, call: Callable[[], T], *, synced: bool = True, undo: Callable[[T], None] | None = None) -> T:
        """Make one call, in this turn's transaction.

        Args:
            call: engine verbs, nothing that waits.
            synced: False for what a power cut may take back without harm (a receive).
            undo: called with the answer when the one who waits for it was cancelled after the call was made.

        Raises:
            StorageBusy, StorageError: nothing of the turn was written.
            Exception: what `call` raised; nothing of it was written.
        """
        if self._at_once or (not self._waiting and self.is_alone()):
            return call()
        future: asyncio.Future[T] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._commit)
        self._waiting.append((call, synced, future))
        try:
            return await future
        except asyncio.CancelledError:
            if undo is not None and future.done() and not future.cancelled() and future.exception() is None:
                undo(future.result())
            raise

    def _commit(self) -> None:
        batch = [each for each in self._waiting if not each[2].cancelled()]
        self._waiting = []
        if not batch:
            return
        try:
            if len(batch) == 1:
                answers: list[object] = [batch[0][0]()]
            else:
                synced = any(each[1] for each in batch)
                answers = self._engine.together([each[0] for each in batch], synced=synced)
        except Exception as error:  # noqa: BLE001 - raised again where the answer is waited for
            answers = [error] * len(batch)
        for (_, _, future), answer in zip(batch, answers, strict=True):
            if future.cancelled():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
