"""A fault built in on purpose, so that the demo can show that its judge would notice: `--plant no-fence`.

The guard without its fence. Whoever claims an operation gets it, whether or not a run of it is under way; nobody learns
that an earlier run had started, because that is told by the fence it started under; whoever writes is believed, because
fences are not compared; and the probe looks instead of fencing. What was completed is still known, so that the fault is
the one that many home-made guards have, not a guard that does nothing.
Here: wrappers around the real contracts. Never here: anything that runs without `--plant`.
Invariant: what is not named above, the real store does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

import onefold
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.store import Answer, Ask, Claimed, Hold, Outcome, Record, RecordKey
from onefold.demo.courier import Courier
from onefold.demo.fulfilment import Booked, Invoice
from onefold.limits import DAY_MS
from onefold.run.probe_answers import Found
from onefold.run.settling import Backend

if TYPE_CHECKING:
    from onefold.contracts.verbs import Commit, EffectTransaction, RowsOf, Store

PLANTS = ("no-fence",)


def without_fence(backend: Backend) -> Backend:
    """The same backend, its guard without a fence."""
    store = NoFence(backend.store)
    commit = None if backend.commit is None else NoFenceCommit(backend.commit, store)
    return replace(backend, store=store, commit=commit)


def only_looking(courier: Courier, invoice: Invoice, _ctx: onefold.Context) -> Found:
    """The probe that looks: what is still on its way, it does not see."""
    bookings = courier.look(invoice.number).bookings
    return onefold.Done(Booked(bookings[0])) if bookings else onefold.NotDone()


class NoFence:
    """A store whose claims respect no lease and whose writes compare no fence."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.capabilities = replace(store.capabilities, notes_claims=False)  # its answers are not the store's

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:  # noqa: ARG002 - see above
        """Claim as if every lease were over, and forget that a run had started."""
        answers = self._store.claim(asks, now_ms + DAY_MS)  # a day from now every lease given by now is over
        return [self._forgetful(answer, now_ms) for answer in answers]

    def _forgetful(self, answer: Answer, now_ms: int) -> Answer:
        if not isinstance(answer, Claimed) or answer.started:
            return answer
        self._store.start([answer.hold], now_ms)
        return replace(answer, started=True, doubt=False, crashed=False, attempts=answer.attempts + 1)

    def standing(self, hold: Hold) -> Hold:
        """The hold of whoever has the record now, in place of the asker's."""
        record = self._store.read([hold.key], 0)[0]
        return hold if record is None else Hold(hold.key, record.owner, record.fence)

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        """Start whoever asks."""
        return self._store.start([self.standing(hold) for hold in holds], now_ms)

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        """Renew whoever asks."""
        return self._store.renew([self.standing(hold) for hold in holds], lease_until_ms)

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        """Believe whoever writes."""
        return self._store.write([(self.standing(hold), outcome) for hold, outcome in writes], now_ms)

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        """As the store."""
        return self._store.clear_outbox([self.standing(hold) for hold in holds])

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        """As the store."""
        return self._store.read(keys, now_ms)


class NoFenceCommit:
    """Settlements of whoever asks."""

    def __init__(self, commit: Commit, store: NoFence) -> None:
        self._commit = commit
        self._store = store

    def commit(self, settlements: Sequence[Settlement], now_ms: int) -> list[Verdict]:
        """Commit with the hold that stands in place of the asker's; who comes second still has its message settled."""
        verdicts = self._commit.commit([self._believed(one) for one in settlements], now_ms)
        late = [place for place, verdict in enumerate(verdicts) if not verdict.written]
        settled = self._commit.commit([replace(settlements[place], write=None) for place in late], now_ms)
        for place, verdict in zip(late, settled, strict=True):
            verdicts[place] = verdict
        return verdicts

    def _believed(self, settlement: Settlement) -> Settlement:
        if settlement.write is None:
            return settlement
        hold, outcome = settlement.write
        return replace(settlement, write=(self._store.standing(hold), outcome))

    def effects(self, limit_ms: int) -> EffectTransaction:
        """As the real one; the demo's job is not transactional."""
        return self._commit.effects(limit_ms)
