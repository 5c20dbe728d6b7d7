"""Records for tests: claims and outcomes with their usual values, and a harness that makes one call at a time.

Used by the contract suites of this package, and by other tests of a Store. All times derive from NOW.
Never here: assertions about a store. Invariant: building the same value twice gives equal values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onefold.contracts.store import (
    Answer,
    Ask,
    Claimed,
    Complete,
    Fail,
    Failure,
    Hold,
    OutboxItem,
    Outcome,
    Record,
    RecordKey,
    Release,
    Unknown,
)

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger, Store

NOW = 1_700_000_000_000
LEASE_MS = 30_000
KEPT_MS = 1_000_000
F1, F2, F3 = "1" * 32, "2" * 32, "3" * 32
KEY = RecordKey("tenant", "job", "key")
NO_KEY = RecordKey("tenant", "job", "nothing has this key")
BROKEN = Failure(kind="transient", error="TimeoutError", summary="the partner did not answer")
UNSURE = Failure(kind="unknown", error="ReadTimeout", summary="sent, not answered")


def ask(
    key: RecordKey | str = KEY,
    owner: str = "A",
    *,
    at_ms: int = NOW,
    start: bool = True,
    probes_now: bool = False,
    fingerprint: str = F1,
    amends: str | None = None,
    message_id: str | None = None,
    sent_at_ms: int | None = None,
) -> Ask:
    """A claim made at `at_ms` with a lease of LEASE_MS, whose record is kept for KEPT_MS."""
    return Ask(
        key=RecordKey("tenant", "job", key) if isinstance(key, str) else key,
        fingerprint=fingerprint,
        owner=owner,
        lease_until_ms=at_ms + LEASE_MS,
        start=start,
        probes_now=probes_now,
        expires_at_ms=at_ms + KEPT_MS,
        amends=amends,
        message_id=message_id,
        sent_at_ms=sent_at_ms,
    )


def complete(result: bytes = b'"done"', outbox: Sequence[OutboxItem] = (), at_ms: int = NOW) -> Complete:
    """The outcome of a run that completed at `at_ms`."""
    return Complete(result=result, expires_at_ms=at_ms + KEPT_MS, outbox=list(outbox))


def fail(*, closes_budget: bool = False) -> Fail:
    """The run failed."""
    return Fail(failure=BROKEN, expires_at_ms=NOW + KEPT_MS, closes_budget=closes_budget)


def unknown(*, parked: bool = False, crashed: bool = False) -> Unknown:
    """The outcome of a run whose end is not known."""
    return Unknown(failure=UNSURE, expires_at_ms=NOW + KEPT_MS, parked=parked, crashed=crashed)


def release(*, refund: bool = False, failure: Failure | None = None) -> Release:
    """The outcome of a run that did not start, or does not count."""
    return Release(expires_at_ms=NOW + KEPT_MS, refund=refund, failure=failure)


OUTCOMES: tuple[Outcome, ...] = (complete(), fail(), unknown(), unknown(parked=True), release())


class StoreHarness:
    """What the tests use of a store: one claim, one write, one record at a time."""

    store: Store
    ledger: Ledger  # of the same backend; needed only for a store with `notes_claims`

    def end_owner(self, owner: str) -> None:
        """Let the store know that this owner has died; defined only by suites of a store with `proves_death`."""
        raise AssertionError(
            f"The store declares proves_death, but {type(self).__name__} cannot end {owner!r}: define end_owner()."
        )

    def ask(self, owner: str = "A", at_ms: int = NOW, **options: Any) -> Answer:
        """The answer to one claim."""
        (answer,) = self.store.claim([ask(owner=owner, at_ms=at_ms, **options)], at_ms)
        return answer

    def claim(self, owner: str = "A", at_ms: int = NOW, **options: Any) -> Claimed:
        """Claim KEY, or another key, which must succeed."""
        answer = self.ask(owner, at_ms, **options)
        assert isinstance(answer, Claimed), answer
        return answer

    def write(self, hold: Hold, outcome: Outcome, at_ms: int = NOW) -> bool:
        """Write one outcome."""
        (written,) = self.store.write([(hold, outcome)], at_ms)
        return written

    def record(self, at_ms: int = NOW) -> Record:
        """KEY's record, which must exist."""
        (record,) = self.store.read([KEY], at_ms)
        assert record is not None
        return record

    def taken_over(self) -> tuple[Hold, Claimed]:
        """The hold of a started run whose lease has ended, and the claim that took it over, in doubt."""
        first = self.claim("A").hold
        return first, self.claim("B", NOW + LEASE_MS)

    def other_holds(self, first: Hold, second: Hold) -> list[Hold]:
        """Four holds that do not match KEY's record, whose hold is `second`."""
        return [
            first,
            Hold(KEY, second.owner, first.fence),
            Hold(KEY, first.owner, second.fence),
            Hold(NO_KEY, "A", 1),
        ]
