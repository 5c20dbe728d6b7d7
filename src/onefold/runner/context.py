"""The `Context` of a run, for its handler: identity, time left, writes that commit with its record, retries, sends.

A `Context` belongs to one run of one handler, in one thread or task. Messages that the handler sends through
`job.send(...)` are collected here and sent if, and only if, the run completes (outbox). The same is true of messages
from its tasks and from the threads that it starts; after the handler has ended, their sends are refused.
Never here: settling, heartbeats, policies. Invariant: nothing that a handler does with its context is visible to others
before its record is written.
"""

from __future__ import annotations

import _thread
import functools
import importlib
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final, Literal, ParamSpec, TypeVar

from onefold import errors, runner
from onefold.contracts.queue import Delivery
from onefold.contracts.store import Hold, OutboxItem
from onefold.contracts.verbs import EffectTransaction
from onefold.outside import Clock, Entropy
from onefold.record.keys import idempotency_key
from onefold.runner import handlers
from onefold.runtime.outgoing import Outgoing, Receipt

P = ParamSpec("P")
T = TypeVar("T")


current: ContextVar[Context | None] = ContextVar("onefold_context", default=None)
COUNTERS_MAX: Final = 16  # names in one run: they become columns of metrics
COUNT_MAX: Final = 2**53 - 1  # the largest integer that JSON readers hold exactly
_COUNTER: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_KEEPING = threading.Lock()  # separates a run's end from sends of its threads; held only for an append
_start: Any = None  # the original `Thread.start`, once it is wrapped
_POOLS = "concurrent.futures.thread"
_OTHER_POOLS = "multiprocessing.pool"
_CALLBACKS = ("callback", "error_callback")
_modules = 0  # how many modules were loaded at the last search for pools
_watched: set[tuple[str, str]] = set()  # modules and those of their classes that are wrapped


def _after_fork() -> None:
    global _KEEPING  # noqa: PLW0603 - it may have been held at the moment of the fork
    _KEEPING = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def of_this_thread() -> Context | None:
    """The run whose handler this thread or task is running, or whose handler has started it; None if there is none.

    In a forked child it is None: what the child sends is sent at once, not through a copy of its parent's outbox.
    """
    found = current.get()
    return found if found is None or found.process == os.getpid() else None


def watch_threads() -> None:
    """From now on note to which run each thread of this process belongs; before Python 3.14 they inherit no context.

    Called by code that performs runs. The functions that start threads or submit work to the standard library's pools are
    wrapped once for the life of the process, as tracing libraries do: in Python 3.11 there is no other way to see which
    code started a thread, and a thread's messages would be sent before its run completes, or although it fails. A
    pool's threads work for many runs: each item, and each callback of a future, belongs to the run that submitted it,
    and never to the run that happened to use the pool first. The same is true of work submitted to a loop in another
    thread.
    """
    global _start  # noqa: PLW0603 - one per process, like the class
    watch_pools()
    if _start is not None:
        return
    start = _start = threading.Thread.start
    start_new_thread = _thread.start_new_thread

    @functools.wraps(start)
    def noting(self: threading.Thread) -> None:
        run = of_this_thread()
        if _is_of_a_pool(self):
            watch_pools()  # a pool of multiprocessing starts its threads before it is given work
        elif run is not None and not self.name.startswith("onefold-"):
            self.run = functools.partial(_in_run, run, self.run)  # type: ignore[method-assign]
        start(self)

    @functools.wraps(start_new_thread)
    def starting(function: Callable[..., Any], /, *args: Any) -> int:
        run = of_this_thread()
        if run is not None and not str(getattr(function, "__module__", "")).startswith(("onefold.", "threading")):
            function = functools.partial(_in_run, run, function)
        return start_new_thread(function, *args)

    threading.Thread.start = noting  # type: ignore[method-assign]
    _thread.start_new_thread = starting


def watch_pools(*, load: bool = False) -> None:
    """Like `watch_threads`, for pools and futures whose modules have been loaded; called before each handler.

    Args:
        load: load the modules now. It takes 17 ms, which is acceptable in a worker but not in a cold start.
    """
    global _modules  # noqa: PLW0603 - one per process
    if load:
        importlib.import_module(_POOLS)
    if _modules == len(sys.modules):
        return
    _modules = len(sys.modules)
    for module, pool, names, wrapped in _GIVE_WORK:
        if module in sys.modules and (module, pool) not in _watched and hasattr(sys.modules[module], pool):
            _watched.add((module, pool))
            kind = getattr(sys.modules[module], pool)
            for name in names:
                setattr(kind, name, wrapped(getattr(kind, name)))


def _giving(give: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of a function that submits work to a pool or a callback to a future; it also passes the run on."""

    @functools.wraps(give)
    def giving(self: object, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        run = of_this_thread()
        return give(self, function if run is None else functools.partial(_in_run, run, function), *args, **kwargs)

    return giving


def _calling_back(give: Callable[..., Any]) -> Callable[..., Any]:
    """Like `_giving`, for a pool of multiprocessing, whose callbacks are called in a thread of the pool."""

    @functools.wraps(give)
    def giving(self: object, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        run = of_this_thread()
        if run is not None:
            kwargs |= dict(zip(_CALLBACKS, args[2:], strict=False))
            args = args[:2]
            for name in _CALLBACKS:
                if kwargs.get(name) is not None:
                    kwargs[name] = functools.partial(_in_run, run, kwargs[name])
        return give(self, function, *args, **kwargs)

    return giving


_LAZY_MAPS: Final = ("imap", "imap_unordered")
_GIVE_WORK: Final = (
    (_POOLS, "ThreadPoolExecutor", ("submit",), _giving),
    ("concurrent.futures._base", "Future", ("add_done_callback",), _giving),
    (_OTHER_POOLS, "Pool", ("apply_async", "map_async", "starmap_async"), _calling_back),
    (_OTHER_POOLS, "ThreadPool", ("apply_async", "map", "map_async", "starmap", "starmap_async", *_LAZY_MAPS), _giving),
)  # fmt: skip


def _is_of_a_pool(thread: threading.Thread) -> bool:
    return getattr(getattr(thread, "_target", None), "__module__", None) in (_POOLS, _OTHER_POOLS)


def _in_run(run: Context, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Call a function in another thread on behalf of a run."""
    token = current.set(run)
    try:
        return function(*args, **kwargs)
    finally:
        current.reset(token)


def count_message() -> None:
    """Count a message that the current run's handler, if there is one, has made with `Job.message`."""
    run = current.get()
    if run is not None:
        run.messages_made += 1


def delivered(outgoing: Sequence[Outgoing]) -> Sequence[Outgoing]:
    """The same messages, which the current run's handler, if there is one, sends itself: they are not forgotten."""
    run = current.get()
    if run is not None:
        run.messages_made -= len(outgoing)
    return outgoing


class Context:
    """One run of one handler.

    Attributes:
        job, key, scope: the operation.
        fence: grows with every claim of this operation and never restarts; pass it to partners that can refuse older
            fences.
        idempotency_key: the same for every run of this operation, at most 64 characters; pass it to partners that
            honour idempotency keys.
        attempt: the number of this run, 1 or more; `attempts_max` is the last one.
        message: the delivery that caused the run; None under `@once`, where the number of runs is not limited either.
        raised: what the handler, or the probe, has raised; None before that, and after it was recorded.
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
        sends: bool = True,
    ) -> None:
        self.hold = hold
        self.job: str = hold.key.job
        self.key: str = hold.key.key
        self.scope: str = hold.key.scope
        self.fence: int = hold.fence
        self.attempt = attempt
        self.attempts_max = attempts_max
        self.message = message
        self.outbox: list[OutboxItem] = []
        self.counts: dict[str, int] = {}
        self.process: int = os.getpid()
        self.ended: bool = False
        self.lease_lost = False
        self.messages_made: int = (
            0  # calls of `Job.message`, whose result only a schedule's handler sends, by yielding it
        )
        self.raised: BaseException | None = None
        self.is_called: bool = False  # whether its handler was called; False while the hooks around it begin
        self._clock = clock
        self._entropy = entropy
        self._deadline_ms = deadline_ms
        self._effects = effects
        self._sends = sends
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

    def keep(self, items: Iterable[OutboxItem]) -> None:
        """Add messages to the outbox. From any thread, while the handler runs.

        Raises:
            UsageError: the handler has ended, or this is a forked child; the messages were not sent.
        """
        if not self._sends:
            raise errors.UsageError(
                f"ctx.send was used in {self.job}, which is a call of a guarded function.",
                meaning="A call has no outbox that could be sent with its record. This was not sent.",
                todo="Use job.send(...), which sends at once.",
            )
        if self.process != os.getpid():
            raise errors.UsageError(
                f"A child that the handler of {self.job} {self.key!r} forked sends with its context.",
                meaning="The run continues in the parent process. This was not sent.",
                todo="Send in the handler, or in the child by job.send(...), which sends at once.",
            )
        with _KEEPING:
            if self.ended:
                refused = errors.UsageError(
                    f"A thread or task of the run of {self.job} {self.key!r} sends after its handler has ended.",
                    meaning="The run's outbox is closed. This was not sent.",
                    todo="Wait for them in the handler; to send apart from the run, job.deliver([job.message(payload)]).",
                )
                import logging  # 8 ms, and only a defect in a program leads here

                logging.getLogger("onefold").error("%s", refused)  # an exception in a pool's thread may go unnoticed
                raise refused
            self.outbox.extend(items)

    def end(self) -> None:
        """Note that the handler has ended: nothing is added to its outbox any more."""
        with _KEEPING:
            self.ended = True

    def send(self, job: handlers.Job[Any, Any], payload: Any, **options: Any) -> Receipt:
        """Like `job.send(payload, **options)`, from any thread; the message is sent if, and only if, the run completes.

        For threads that the handler did not start itself, such as those of a process-wide pool.

        Raises:
            as for `Job.send`; UsageError: the handler has ended, and nothing was sent.
        """
        return job.kept([job.outgoing(payload, **options)], self)[0]

    def count(self, name: str, by: int = 1) -> None:
        """Add to a business counter such as `invoices_issued`; it counts if, and only if, this run completes.

        The counters of a run are stored in the history row of its completion, and that row is written with its record: a run
        that failed, was retried, or was a duplicate counts nothing. `onefold counts` adds them up by day and job; sinks
        get them with the event `completed`. From any thread, while the handler runs.

        Args:
            name: lower-case letters, digits and underscores, beginning with a letter, at most 64 characters. Write it as a
                literal: names made from payloads would create an unlimited number of counters.
            by: how many, 0 or more, at most 2^53 - 1 in all.

        Raises:
            UsageError: an invalid name or number, more than 16 names in one run, a call under `@once`, or the handler
                has ended; nothing was counted.
        """
        if not self._sends:
            raise errors.UsageError(
                f"ctx.count was used in {self.job}, which is a call of a guarded function.",
                meaning="A call has no row of history with which its counters could be written.",
                todo="Count in a job's handler.",
            )
        with _KEEPING:
            total = self.counts.get(name, 0) + by if type(by) is int else -1
            if type(name) is not str or _COUNTER.fullmatch(name) is None:
                problem = f"name={name!r:.80} is not the name of a counter"
            elif total < 0 or by < 0 or total > COUNT_MAX:
                problem = f"by={by!r:.40} cannot be added to {name}"
            elif name not in self.counts and len(self.counts) == COUNTERS_MAX:
                problem = f"{name} would be counter number {COUNTERS_MAX + 1} of this run"
            elif self.ended or self.process != os.getpid():
                problem = f"{name} is counted after the handler has ended, or in a child that it forked"
            else:
                self.counts[name] = total
                return
        raise errors.UsageError(
            f"ctx.count in {self.job}: {problem}.",
            meaning="A run has at most 16 counters. A name is letters a to z, digits and underscores, 64 characters at most;"
            " a number is whole, 0 or more.",
            todo='Write for example ctx.count("invoices_issued") in the handler.',
        )

    def check(self) -> None:
        """Raise an error if it is pointless to continue; call this between the steps of long work.

        Raises:
            LeaseLost: another process owns this operation now; what this run does will not be recorded.
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
    def connection(self) -> Any:
        """The database connection, inside a transaction that commits together with this run's record (level 4).

        A `sqlite3.Connection` on the embedded engine, a `psycopg.Connection` with records in PostgreSQL. Only jobs declared
        with `effect="transactional"` have one. Do not commit or roll back, and leave onefold's own tables alone (on
        SQLite they cannot be reached). The transaction begins at the first use and can stay open for 1 second.

        Raises:
            UsageError: the job is not transactional, or the backend cannot join transactions.
            TransientError: the transaction was open for too long; all of it was rolled back.
        """
        if self._effects is None:
            raise errors.UsageError(
                f"ctx.connection was used in {self.job}, which is not transactional.",
                todo='Declare the job with effect="transactional", with records in SQLite or PostgreSQL.',
            )
        self._used_connection = True
        opened = self._effects.open()
        if hasattr(opened, "transact"):  # DynamoDB collects writes instead
            raise errors.UsageError(
                f"ctx.connection was used in {self.job}, whose records are in DynamoDB.",
                todo="Pass the job's own writes to ctx.transact(...).",
            )
        return opened

    def transact(self, *actions: Mapping[str, Any]) -> None:
        """Add writes that commit in one transaction with this run's completion, or not at all (level 4).

        For records in DynamoDB, and jobs declared with `effect="transactional"`. Nothing is written before the handler
        has returned, and nothing at all if it raises. Can be called several times:

            ctx.transact({"Put": {"TableName": "invoices", "Item": {"id": order.id, "total": order.total}}})

        Args:
            actions: in the form of TransactWriteItems: each with one of `Put`, `Update`, `Delete`, `ConditionCheck`. Values
                are plain Python (int and Decimal, not float), or DynamoDB's own form such as {"S": "text"}. At most 80 in
                one run, no two of them on the same item (DynamoDB allows 100; record and history need some).

        Raises:
            UsageError: the job is not transactional, records are not in DynamoDB, or an action is malformed; nothing of
                this call will be written.
        """
        self._used_connection = self._effects is not None
        collector = self._effects.open() if self._effects is not None else None
        if not hasattr(collector, "transact"):
            raise errors.UsageError(
                f"ctx.transact was used in {self.job}, which has no DynamoDB transaction.",
                meaning="It needs records in DynamoDB, and a job whose own writes are part of its transaction.",
                todo='Declare the job with effect="transactional", on records in DynamoDB; elsewhere use ctx.connection.',
            )
        collector.transact(*actions)

    def lends(self, connection: object) -> bool:
        """Whether this is the connection that the handler got from here, whose transaction is this run's own."""
        return self._used_connection and self._effects is not None and self._effects.open() is connection

    @property
    def used_connection(self) -> bool:
        """Whether the handler used the connection, or a transaction, in this run."""
        return self._used_connection

    def retry(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function`, and again after a transient failure: 50 ms x 2^n, +-50 %, 3 tries, within the time that is left.

        For an `async def` function it returns a coroutine to be awaited. If the job's `on_unknown` is not `rerun`, a
        call whose answer was lost is not repeated, because it may have had its effect.

        Raises:
            Exception: whatever the last try raised.
        """
        return self.retrying().call(function, *args, **kwargs)

    def retrying(self) -> runner.Retrying:
        """The object behind `retry`, for other numbers of tries or pauses."""
        from onefold.runner.retrying import Retrying  # imported only by handlers that retry

        return Retrying(
            clock=self._clock,
            entropy=self._entropy,
            remaining_ms=lambda: self.remaining_ms,
            sent=self._lost_answers,
        )
