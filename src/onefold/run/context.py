"""What a handler sees of its run, and what it may ask for: identity, time left, the engine's connection, retries, sends.

A `Context` belongs to one run of one handler, in one thread or task. Messages that the handler sends through
`job.send(...)` are noted here and leave if, and only if, the run completes (outbox).
Never here: settling, heartbeats, policies. Invariant: nothing that a handler does with its context is visible to others
before its record is written.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

from onefold import errors
from onefold.clock import Clock
from onefold.contracts.commit import EffectTransaction
from onefold.contracts.queue import Delivery
from onefold.contracts.store import Hold, OutboxItem
from onefold.decide.keys import idempotency_key
from onefold.entropy import Entropy
from onefold.run.retrying import Retrying

if TYPE_CHECKING:
    import sqlite3

P = ParamSpec("P")
T = TypeVar("T")

current: ContextVar[Context | None] = ContextVar("onefold_context", default=None)


class Context:
    """One run of one handler.

    Attributes:
        job, key, scope: the operation.
        fence: grows with every claim of this operation and never restarts; give it to partners that can refuse older ones.
        idempotency_key: the same for every run of this operation, at most 64 characters; give it to partners that honour
            one.
        attempt: which run this is, 1 or more; `attempts_max` is the last one.
        message: the delivery that caused the run; None under `@once`.
    """

    def __init__(
        self,
        hold: Hold,
        *,
        attempt: int,
        attempts_max: int,
        message: Delivery | None,
        clock: Clock,
        entropy: Entropy,
        deadline_ms: int | None,
        effects: EffectTransaction | None = None,
        lost_answers: Literal["transient", "unknown"] = "transient",
    ) -> None:
        self.hold = hold
        self.job = hold.key.job
        self.key = hold.key.key
        self.scope = hold.key.scope
        self.fence = hold.fence
        self.attempt = attempt
        self.attempts_max = attempts_max
        self.message = message
        self.outbox: list[OutboxItem] = []
        self.lease_lost = False
        self._clock = clock
        self._entropy = entropy
        self._deadline_ms = deadline_ms
        self._effects = effects
        self._lost_answers = lost_answers
        self._used_connection = False

    @property
    def idempotency_key(self) -> str:
        """The derived key for partners: the same for every run of this operation."""
        return idempotency_key(self.hold.key)

    @property
    def remaining_ms(self) -> int | None:
        """Milliseconds left of this run's timeout, 0 or more; None when the run has none."""
        if self._deadline_ms is None:
            return None
        return max(self._deadline_ms - self._clock.monotonic_ms(), 0)

    def check(self) -> None:
        """Call it between steps of long work: raises when going on makes no sense.

        Raises:
            LeaseLost: someone else owns this operation now; what this run does will not be recorded.
            OutcomeUnknown: the run has passed its timeout.
        """
        if self.lease_lost:
            raise errors.LeaseLost(
                f"The run of {self.job} {self.key!r} under fence {self.fence} lost its lease.",
                todo="Stop here; the run that took over decides.",
            )
        if self.remaining_ms == 0:
            raise errors.OutcomeUnknown(
                f"The run of {self.job} {self.key!r} has passed its timeout.",
                todo="Stop here; the job's on_unknown policy decides.",
            )

    @property
    def connection(self) -> sqlite3.Connection:
        """The engine's own connection, inside a transaction that commits together with this run's record (level 4).

        Only jobs declared with `effect="transactional"` have one. Do not commit or roll back; tables of onefold itself are
        out of reach. The transaction begins at the first use and may stay open for 1 second.

        Raises:
            UsageError: the job is not transactional, or the backend cannot join transactions.
            TransientError: the transaction was open for too long; all of it was rolled back.
        """
        if self._effects is None:
            raise errors.UsageError(
                f"ctx.connection was used in {self.job}, which is not transactional.",
                todo='Declare the job with effect="transactional", on a SQLite engine.',
            )
        self._used_connection = True
        return self._effects.open()  # type: ignore[return-value]  # the SQLite backend's own connection

    @property
    def used_connection(self) -> bool:
        """Whether the handler asked for the connection in this run."""
        return self._used_connection

    def retry(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function`, and again when it fails for now: 50 ms x 2^n, +-50 %, 3 tries, within the time that is left.

        Works for `async def` functions too: then the answer is a coroutine to be awaited. Where the job's `on_unknown` is
        not `rerun`, a call whose answer was lost is not repeated: it may have had its effect.

        Raises:
            Exception: whatever the last try raised.
        """
        return self.retrying().call(function, *args, **kwargs)

    def retrying(self) -> Retrying:
        """The object behind `retry`, for other numbers of tries or pauses."""
        return Retrying(
            clock=self._clock,
            entropy=self._entropy,
            remaining_ms=lambda: self.remaining_ms,
            sent=self._lost_answers,
        )
