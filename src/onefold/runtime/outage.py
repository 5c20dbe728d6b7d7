"""`Outage`: when calls of the engine fail one after another, how long to leave it alone and when to alert a person.

The first failure is reported as `engine-busy`; it is usually short. When calls have failed for a minute and none has
succeeded meanwhile, that is reported as `engine-unreachable`, and again every five minutes: an expired login that
nobody renews, a role that was removed, a server that is gone. The callers continue to try, and never give up.
Never here: waiting, what is called. Invariant: a success ends it, whatever came before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from onefold import errors, limits
from onefold.interrupts import let_through

if TYPE_CHECKING:
    from onefold.outside import Clock

    Report = Callable[[str, dict[str, str | int | bool | None], BaseException], None]
    """Reports an event: its name, its detail, the error."""

PAUSE_MS: Final = 50  # after the first failure; doubles with each further one
PAUSE_MS_MAX: Final = 5 * limits.SECOND_MS  # the longest pause
LASTS_MS: Final = limits.MINUTE_MS  # ours: an outage that ends by itself (a failover, a restart) is over by then
AGAIN_MS: Final = 5 * limits.MINUTE_MS
_TEXT_CHARS_MAX: Final = 500


class Outage:
    """Failures of one user of an engine. Written by one thread, read by any.

    Args:
        report: called for the first failure, and again while failures last.

    Attributes:
        count: failures since the last success. code: the last one's error code; empty if there is none.
    """

    def __init__(self, clock: Clock, report: Report) -> None:
        self._clock = clock
        self._report = report
        self._since_ms: int | None = None
        self._reported_ms: int | None = None
        self.count: int = 0
        self.code: str = ""

    def failed(self, error: errors.OnefoldError) -> int:
        """Note that a call failed; returns for how many milliseconds to leave the engine alone."""
        let_through(error)
        now_ms = self._clock.monotonic_ms()
        detail: dict[str, str | int | bool | None] = {"error": error.code, "summary": str(error)[:_TEXT_CHARS_MAX]}
        pause_ms = min(PAUSE_MS << min(self.count, 10), PAUSE_MS_MAX)
        self.count += 1
        self.code = error.code
        if self._since_ms is None:
            self._since_ms = now_ms
            self._report("engine-busy", detail, error)
        elif now_ms - self._since_ms >= LASTS_MS and (
            self._reported_ms is None or now_ms - self._reported_ms >= AGAIN_MS
        ):
            self._reported_ms = now_ms
            self._report("engine-unreachable", {**detail, "failing_ms": now_ms - self._since_ms}, error)
        return pause_ms

    def answered(self) -> None:
        """Note that a call succeeded."""
        self._since_ms = self._reported_ms = None
        self.count, self.code = 0, ""

    def age_ms(self) -> int:
        """For how many milliseconds calls have failed; 0: they do not fail now."""
        since_ms = self._since_ms
        return 0 if since_ms is None else max(self._clock.monotonic_ms() - since_ms, 0)
