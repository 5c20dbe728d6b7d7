"""The queues of a store for records alone (`redis://`, `postgresql://`, `dynamodb://`): there are none.

What only looks for messages is answered as an empty backend would; whatever needs a queue is refused with what the URL is.
Never here: records. Invariant: nothing is asked of a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from onefold import errors
from onefold.redact import masked


class NoQueues:
    """The verbs of `QueueAdmin` that need no queue; the others raise UsageError.

    Args:
        url: of the store, for the error.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def refuse(self) -> NoReturn:
        """Raise the error for what needs a queue.

        Raises:
            UsageError: always.
        """
        raise errors.UsageError(
            f"{masked(self._url)} is a store for records; it has no queues.",
            meaning="It can be asked with `why`, `held`, `status` and `stuck`.",
            todo="Name the app, or its own URL, for what is about queues and messages.",
        )

    def settings(self) -> list[Any]:
        """None."""
        return []

    def find(self, message_ids: Sequence[str]) -> list[None]:
        """None of them is here."""
        return [None] * len(message_ids)

    def find_key(self, key: str, limit: int = 20) -> list[Any]:  # noqa: ARG002 - the contract's
        """None."""
        return []

    def remove(self, message_ids: Sequence[str]) -> list[bool]:
        """None of them was here."""
        return [False] * len(message_ids)

    def move(self, moves: Sequence[tuple[str, str | None, Mapping[str, Any] | None]]) -> list[None]:
        """None of them was here."""
        return [None] * len(moves)

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        """Any other verb is refused when it is called."""
        if verb.startswith("_"):
            raise AttributeError(verb)
        return lambda *_, **__: self.refuse()
