"""The outcome of a map run's item that failed: tried again by the names of errors, caught, or failed for good.

The rules are `maps/rules.py`'s. Each retrier counts its own retries over the item's life, so the errors of earlier runs
are needed: they are in the ledger, which always keeps the outcomes of a run's operations. A redrive begins a new count.
A caught item has succeeded with `{"Error", "Cause"}`; the message to the operations queue leaves with its record (outbox).
Never here: messages, waiting. Invariant: the same errors in the same order have the same fate as in Step Functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct, json
from msgspec.structs import replace

from onefold import limits
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Delivery
from onefold.contracts.store import OutboxItem
from onefold.decide.delivery import Success
from onefold.decide.outcomes import Failed, Outcome
from onefold.maps.rules import MapSpec, catcher, matches, retry_ms

_PERMANENT = "PermanentError"


class ItemFailures(Struct, frozen=True):
    """The rules of one map.

    Args:
        spec: whose.
    """

    spec: MapSpec

    def judge(
        self, failed: Failed, delivery: Delivery, earlier: Callable[[], Sequence[Row]], fraction: float
    ) -> Outcome:
        """What the failure of a run comes to.

        Args:
            failed: what the handler's exception means by itself. delivery: of the item.
            earlier: the history of the operation, in order; read only where it matters.
            fraction: chance from [0, 1).

        Returns:
            The failure, transient with the exact pause or permanent; or a success, where it was caught. A dependency
            that is down is left as it is: no attempt is used, and the job is paused.
        """
        if failed.kind == "dependency-down":
            return failed
        error, before = failed.error, _errors_of(earlier())
        if failed.kind == "permanent" and not self._is_named(error):
            error = _PERMANENT
            before = [_PERMANENT if self._was_permanent(one, failed.error) else one for one in before]
        wait_ms = retry_ms(self.spec.retriers, error, before, fraction)
        if wait_ms is not None:
            wait_ms = min(max(wait_ms, failed.retry_in_ms or 0), limits.VISIBILITY_MS_MAX)
            return replace(failed, kind="transient", retry_in_ms=wait_ms)
        caught = catcher(self.spec.catch, failed.error)
        if caught is None:
            return replace(failed, kind="permanent")
        told = {"Error": failed.error, "Cause": failed.summary}
        where = {"Input": Raw(delivery.body.encode()), "Name": delivery.key or "", "Map": self.spec.name}
        body = json.encode(told | where).decode()
        return Success(result=json.encode(told), outbox=[OutboxItem(queue=caught.queue, body=body, key=delivery.key)])

    def _is_named(self, error: str) -> bool:
        """Whether a retrier names this very error, and not only all of them."""
        names = [name for one in self.spec.retry for name in one.errors if not name.startswith("States.")]
        return matches(names, error)

    def _was_permanent(self, error: str, now: str) -> bool:
        """Whether an error that was tried again was so as a PermanentError: the ledger has the name of its class."""
        return error == now or not any(matches(one.errors, error) for one in self.spec.retriers)


def _errors_of(rows: Sequence[Row]) -> list[str]:
    """The errors of an operation's runs that were tried again, in order, since it was redriven last."""
    found: list[str] = []
    for row in rows:
        if row.event == "redrive":
            found = []
        elif row.event == "retry":
            found.append(str(row.detail.get("error")))
    return found
