"""The workers that run: each has a document in State that shows what it works on, and through which it is asked to end.

A worker writes its document soon after its start, again once a minute, and removes it at its end. The document of a
process that was killed is removed by the process that notices its death, or a day later. A request to drain is a mark
in the document: an embedded worker sees it within two seconds, a worker with its State on a server within fifteen.
Never here: what a worker is running (its records show that), how it drains (`worker.py`).
Invariant: documents are only for people; no decision about a delivery depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits
from onefold.contracts.documents import change, reader
from onefold.interrupts import ignored

if TYPE_CHECKING:
    from onefold.contracts.verbs import State
    from onefold.outside import Clock

PREFIX: Final = "worker/"
SEEN_MS: Final = limits.MINUTE_MS  # between two writes of one's own document
SILENT_MS: Final = 4 * SEEN_MS  # a worker that has not written for this long counts as gone, unless more is known
LOOK_MS, LOOK_SERVER_MS = (
    2_000,
    15_000,
)  # between two checks whether to drain; on a server each check is a request
_FORGOTTEN_MS: Final = limits.DAY_MS
QUEUES_MAX: Final = 100  # a worker's document names at most this many of its queues


class WorkerEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker, as its document says.

    Args:
        owner: its id, as in its claims. app, host, pid, queues: what it runs, and where.
        started_at_ms, seen_at_ms: its start, and when it last wrote this.
        drain_by, drain_at_ms: who asked it to drain, and when; None: nobody.
    """

    owner: str
    app: str
    host: str
    pid: int
    queues: tuple[str, ...]
    started_at_ms: int
    seen_at_ms: int
    drain_by: str = ""
    drain_at_ms: int | None = None


_entry = reader(WorkerEntry, None)


def entries(state: State) -> list[WorkerEntry]:
    """Every worker that has a document, in order of start; includes killed ones."""
    names = state.names(PREFIX)
    found = (_entry(one.value) for one in state.get(names) if one is not None) if names else ()
    return sorted((one for one in found if one is not None), key=lambda one: (one.started_at_ms, one.owner))


def ask_to_drain(state: State, owner: str, by: str, now_ms: int) -> tuple[WorkerEntry, bool]:
    """Ask a worker to drain; returns its document, and True if it was not asked before.

    Raises:
        NotFoundError: no worker has that id. TransientError: other processes changed its document at every try.
    """

    def decide(found: WorkerEntry | None) -> tuple[WorkerEntry | None, bool]:
        if found is None or found.drain_at_ms is not None:
            return found, False
        return replace(found, drain_by=by, drain_at_ms=now_ms), True

    entry, asked = change(state, PREFIX + owner, _entry, None, decide)
    if asked is None:
        raise errors.TransientError(f"The document of worker {owner:.100} is being changed.", todo="Try again.")
    if entry is None:
        raise errors.NotFoundError(
            f"There is no worker {owner!r:.100}.",
            meaning="It has ended, or its onefold is older and writes no document. Nothing was changed.",
            todo="See onefold workers list.",
        )
    return entry, asked


def forget(state: State, owners: Iterable[str]) -> None:
    """Remove the documents of workers that are gone."""
    for owner in owners:
        change(state, PREFIX + owner, _entry, None, lambda _: (None, None))


class Roster:
    """One worker's own document; for one thread, except `leave`, which is called after that thread has ended.

    Args:
        entry: the document as first written. embedded: reading State costs no request.

    Attributes:
        asked: called when somebody has asked this worker to drain.
    """

    def __init__(self, state: State, entry: WorkerEntry, clock: Clock, *, embedded: bool) -> None:
        self._state = state
        self._entry = entry
        self._clock = clock
        self._check_ms = LOOK_MS if embedded else LOOK_SERVER_MS
        self._due_ms = 0
        self._written_ms: int | None = None
        self.asked: Callable[[], object] = lambda: None

    def check(self) -> None:
        """Write the document when it is due, and check whether this worker is to drain.

        Raises:
            TransientError: State cannot be used now; the next check does it.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return
        self._due_ms = now_ms + self._check_ms
        if self._written_ms is None or now_ms - self._written_ms >= SEEN_MS:
            kept, _ = change(self._state, PREFIX + self._entry.owner, _entry, None, self._seen)
            is_first, self._written_ms = self._written_ms is None, now_ms
            if is_first:
                with ignored(errors.UsageError):  # a role may lack permission to list names
                    self._sweep()
        else:
            stored = self._state.get([PREFIX + self._entry.owner])[0]
            kept = _entry(stored.value) if stored is not None else None
        if kept is not None and kept.drain_at_ms is not None:
            self.asked()

    def _seen(self, found: WorkerEntry | None) -> tuple[WorkerEntry, None]:
        return replace(found or self._entry, seen_at_ms=self._clock.now_ms()), None

    def _sweep(self) -> None:
        """Remove documents of workers that were killed long ago, for engines where no process notices a death."""
        now_ms = self._clock.now_ms()
        forget(self._state, [one.owner for one in entries(self._state) if now_ms - one.seen_at_ms > _FORGOTTEN_MS])

    def leave(self) -> None:
        """Remove the document, if it was written."""
        if self._written_ms is not None:
            with ignored(errors.OnefoldError):  # it is forgotten after a day
                forget(self._state, [self._entry.owner])
