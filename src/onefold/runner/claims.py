"""Claims operations, and reports each crash that a claim reveals, before any handler is called.

Where history and records share a transaction, the rows are written with the claims or not at all. Elsewhere they are
appended after the claim and before the start. A claim in doubt does not start its run. So if its owner dies before it
has appended the rows, the next owner finds an unstarted claim in doubt, checks whether the rows exist, and appends the
missing ones. It does the same for a run whose end was recorded as unknown by a process that died before it appended its
row. So no crash is lost, and none is reported twice. The takeover of a run that had not started leaves nothing in doubt,
and the claim may have started the new run: it goes on, its event is emitted, and its row is appended later.
Never here: what an answer means for its delivery (`record/guard.py`). Invariant: a handler is never called under a
claim in doubt whose rows could not be written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.store import Claimed
from onefold.interrupts import let_through
from onefold.record import guard

if TYPE_CHECKING:
    from onefold.contracts.ledger import Row
    from onefold.contracts.store import Answer, Ask, RecordKey
    from onefold.contracts.verbs import Ledger, Store
    from onefold.record.delivery import Note, Policy
    from onefold.runtime.events import Event

    EventOf = Callable[[int, Note], Event]

_ROWS_LOOKED_AT = 100_000  # rows of one operation that are searched for those of an earlier claim
_LATE_ROWS_MAX = 1_000  # more are forgotten, the oldest first: their events were emitted


class Claims:
    """Claims on one store.

    Args:
        ledger: the history; None if the store has none.
        records_with_history: whether a run's end and its rows are written in one transaction.
    """

    def __init__(self, store: Store, ledger: Ledger | None, *, records_with_history: bool) -> None:
        self._store = store
        self._ledger = ledger
        self._records_with_history = records_with_history
        self._late: deque[Row] = deque(maxlen=_LATE_ROWS_MAX)

    def claim(
        self,
        asks: Sequence[Ask],
        now_ms: int,
        policies: Sequence[Policy],
        event_of: EventOf,
        noted_as: Sequence[RecordKey | None] | None = None,
    ) -> tuple[Sequence[Answer], list[Event], dict[int, errors.OnefoldError]]:
        """Claim, and write to the history what the claims reveal about earlier runs.

        Args:
            policies: the policy of each claim's job. event_of: makes an event from the index of a claim and a note.
            noted_as: for claims of records under an earlier name of the job: the operations under which rows are
                written.

        Returns:
            The answers; the events that were noted, for sinks; and the indexes of claims whose rows could not be written,
            with the reason. Those of them that are in doubt must not be performed: their leases are left to end, and
            the next claim writes the missing rows. The rows of the others are kept for `append_late`.

        Raises:
            OnefoldError: the store could not claim; nothing was noted.
        """
        if self._ledger is None:
            answers = self._store.claim(asks, now_ms)
            noticed = [
                event_of(index, note)
                for index, found in enumerate(answers)
                for note in guard.noticed(found, policies[index])
            ]
            return answers, noticed, {}
        events: dict[int, list[Event]] = {}
        refused: dict[int, errors.OnefoldError] = {}
        joint = self._store.capabilities.notes_claims
        if joint:

            def rows_of(index: int, found: Claimed) -> list[Row]:
                events[index] = [event_of(index, note) for note in guard.noticed(found, policies[index])]
                return [event.row() for event in events[index]]

            answers = self._store.claim(asks, now_ms, rows_of)
        else:
            answers = self._store.claim(asks, now_ms)
        for index, found in enumerate(answers):
            if type(found) is not Claimed or found.found == "absent":
                continue
            notes = () if joint else guard.noticed(found, policies[index])
            late: list[Event] = []
            try:
                keys = {found.hold.key: None, (noted_as and noted_as[index]) or found.hold.key: None}
                notes = (*self._unreported(self._ledger, found, policies[index], now_ms, keys, joint=joint), *notes)
                late = [event_of(index, note) for note in notes]
                if late:
                    self._ledger.append([event.row() for event in late])
            except errors.OnefoldError as error:
                let_through(error)
                refused[index] = error
                if found.doubt:
                    continue
                self._late.extend(event.row() for event in late)
            events[index] = [*late, *events.get(index, ())]
        return answers, [event for index in sorted(events) for event in events[index]], refused

    def append_late(self) -> None:
        """Append the rows of takeovers that could not be written with their claims, if there are any and it is possible."""
        rows: list[Row] = []
        while self._late:
            with suppress(IndexError):  # another thread took it
                rows.append(self._late.popleft())
        try:
            if rows and self._ledger is not None:
                self._ledger.append(rows)
        except errors.OnefoldError as error:
            let_through(error)
            self._late.extendleft(reversed(rows))

    def _unreported(
        self, ledger: Ledger, found: Claimed, policy: Policy, now_ms: int, keys: Iterable[RecordKey], *, joint: bool
    ) -> tuple[Note, ...]:
        """The missing rows of the run in doubt: those of its end, or of the claim that noticed its crash."""
        is_ended = found.found == "unknown" and not self._records_with_history
        is_claimed = found.found == "in_progress" and found.doubt and not found.crashed and not joint
        if not is_ended and not is_claimed:
            return ()
        (record,) = self._store.read([found.hold.key], now_ms)
        if record is None:
            return ()
        run = (
            record.started_fence
        )  # the run in doubt; the claim after it has noticed its crash, unless its end was recorded
        for row in (row for key in keys for row in ledger.of_key(key, _ROWS_LOOKED_AT)):
            is_end = "attempt" in row.detail
            if row.event in ("takeover", "unknown") and row.detail.get("fence", run) == (run if is_end else run + 1):
                return ()
        if is_ended:
            return guard.unreported(found, policy)
        hold = replace(found.hold, fence=run + 1)
        return guard.noticed(replace(found, hold=hold, crashed=True, previous_owner=None), policy)
