"""Retries inside a call: `onefold.retrying(...)` for any function or block, and the object behind `ctx.retry`.

For calls that fail briefly: pauses of 50 ms x 2^n, +-50 %, 3 tries. Only failures that are known to be transient are
tried again: those listed as transient in `record/failures.py`, raised as TransientError, or named in `on`. Everything
else, and the last failure, is raised unchanged; the job's retries between deliveries come after that
(`record/delivery.py`).

A try is not made if the pause before it would go past the deadline or the trusted end of the lease: the exception is
raised at once, while there is time to record it. Where a request whose answer was lost must not be repeated
(`on_unknown` is not `rerun`), `Retrying(sent="unknown")` does not repeat it.

Never here: sleeping (the clock waits), settling. Invariant: at most `tries` calls, and no wait past `remaining_ms`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import wraps
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, cast

from onefold import duration
from onefold.clock import SystemClock
from onefold.duration import Duration
from onefold.entropy import SystemEntropy
from onefold.errors import UsageError
from onefold.interrupts import stems_from_signal
from onefold.outside import Clock, Entropy, Waiter
from onefold.record import delivery as backoff
from onefold.record.delivery import Backoff, Jitter
from onefold.record.failures import Lists, check_lists, judge

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
AsyncWait = Callable[[int], Awaitable[None]]

ASK_MS_MAX = 10_000  # if a dependency asks for a longer pause, the retry between deliveries waits for it


class Retrying:
    """Calls a function, and repeats the call after transient failures. Immutable; safe from any thread.

    Args:
        clock, entropy: for pauses and jitter.
        tries: calls in all, 1 or more.
        pauses: how long to wait between them.
        on: exception classes, or dotted names, after which to try again, in addition to the known transient ones.
        remaining_ms: returns how many milliseconds are left of deadline and lease, None for no limit; called before a
            wait.
        sent: how to treat a failure after the request was sent: `transient` tries again, `unknown` raises.
        stop: set when waiting is pointless (drain, lease lost).
        async_wait: waits in coroutines; without it the clock waits in a thread of the loop's executor.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Entropy,
        tries: int = backoff.IN_CALL_TRIES,
        pauses: Backoff = backoff.IN_CALL,
        on: tuple[type[BaseException] | str, ...] = (),
        remaining_ms: Callable[[], int | None] | None = None,
        sent: Literal["transient", "unknown"] = "transient",
        stop: Waiter | None = None,
        async_wait: AsyncWait | None = None,
    ) -> None:
        if tries < 1:
            raise UsageError(f"tries={tries} is out of range.", todo="It is 1 or more; the first call counts.")
        self._lists = Lists(transient=on)
        check_lists(self._lists, "retrying")
        self._clock = clock
        self._entropy = entropy
        self._tries = tries
        self._pauses = pauses
        self._remaining_ms = remaining_ms
        self._sent = sent
        self._stop = stop
        self._async_wait = async_wait

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function`; for an `async def` function this returns a coroutine, to be awaited.

        Raises:
            Exception: whatever the last try raised, with a note of how many there were.
        """
        if inspect.iscoroutinefunction(function):
            return cast(T, self._call_async(function, args, kwargs))
        for number in range(1, self._tries + 1):
            try:
                return function(*args, **kwargs)
            except Exception as error:
                pause_ms = self.pause_ms(error, number)
                if pause_ms is None or self._wait(pause_ms):
                    raise
        raise AssertionError("the last try returns or raises")

    async def _call_async(
        self,
        function: Callable[..., Coroutine[Any, Any, T]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> T:
        for number in range(1, self._tries + 1):
            try:
                return await function(*args, **kwargs)
            except Exception as error:
                pause_ms = self.pause_ms(error, number)
                if pause_ms is None or await self._wait_async(pause_ms):
                    raise
        raise AssertionError("the last try returns or raises")

    def __call__(self, function: F) -> F:
        """Decorate a plain or `async def` function."""
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def tried_async(*args: Any, **kwargs: Any) -> Any:
                return await self._call_async(function, args, kwargs)

            return cast(F, tried_async)

        @wraps(function)
        def tried(*args: Any, **kwargs: Any) -> Any:
            return self.call(function, *args, **kwargs)

        return cast(F, tried)

    def __iter__(self) -> Iterator[Try]:
        """Loop around a block of plain code: `for one in retrying(): with one: ...`."""
        for number in range(1, self._tries + 1):
            one = Try(self, number)
            yield one
            if one.pause_ms is None:
                return
            if self._wait(one.pause_ms):
                assert one.failed is not None
                raise one.failed

    def pause_ms(self, error: BaseException, number: int) -> int | None:
        """How long to wait after try `number` raised `error`; None: raise it."""
        ruling = judge(error, now_ms=self._clock.now_ms(), lists=self._lists, sent=self._sent)
        if ruling.kind != "transient" or not ruling.listed or stems_from_signal(error):
            return None
        if number >= self._tries:
            if number > 1:
                error.add_note(f"onefold: tried {number} times in this call")
            return None
        asked_ms = ruling.retry_in_ms or 0
        pause_ms = max(backoff.delay_ms(self._pauses, number, self._entropy.fraction()), asked_ms)
        left_ms = self._remaining_ms() if self._remaining_ms is not None else None
        if asked_ms > ASK_MS_MAX or (left_ms is not None and pause_ms >= left_ms):
            error.add_note(f"onefold: not tried again after try {number}: {pause_ms} ms is too long to wait here")
            return None
        return pause_ms

    def _wait(self, pause_ms: int) -> bool:
        return self._clock.wait(self._stop or threading.Event(), pause_ms)

    async def _wait_async(self, pause_ms: int) -> bool:
        if self._async_wait is not None:
            await self._async_wait(pause_ms)
            return False
        import asyncio  # 36 ms to import, and only coroutines need it

        over = threading.Event()
        try:
            return await asyncio.to_thread(self._clock.wait, self._stop or over, pause_ms)
        finally:
            over.set()  # a cancelled task must not leave its thread waiting


class Try:
    """One iteration of a loop over `Retrying`; use it in a `with` statement around the block that may fail.

    Attributes:
        number: 1 or more.
        pause_ms: how long the loop waits before the next iteration; None when there is none.
    """

    __slots__ = ("_retrying", "failed", "number", "pause_ms")

    def __init__(self, retrying: Retrying, number: int) -> None:
        self._retrying = retrying
        self.number: int = number
        self.pause_ms: int | None = None
        self.failed: Exception | None = None

    def __enter__(self) -> Try:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.failed = error
            self.pause_ms = self._retrying.pause_ms(error, self.number)
        return self.pause_ms is not None


def retrying(
    *,
    tries: int = backoff.IN_CALL_TRIES,
    base: Duration = "50ms",
    factor: float = backoff.IN_CALL.factor,
    cap: Duration = "5s",
    jitter: Jitter = "half",
    on: tuple[type[BaseException] | str, ...] = (),
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> Retrying:
    """Retry a call after transient failures: as a decorator, as a loop around a block, or with `.call(function, ...)`.

        @onefold.retrying(tries=4, on=(KeyError,))
        def quote(order): ...

        for one in onefold.retrying():
            with one:
                answer = client.get(url).raise_for_status()

    Inside a handler prefer `ctx.retry`, which knows how much time the run has left.

    Args:
        tries: calls in all, the first one included.
        base, factor, cap: the pause before call n+1 is base x factor^(n-1), at most cap.
        jitter: `half` (+-50 %), `full` or `none`.
        on: exception classes, or dotted names, after which to try again, in addition to the known transient ones.
        clock, entropy: for tests; by default the machine's own.

    Raises:
        UsageError: a number out of its bounds, or `on` has something that is not an exception class.
    """
    pauses = Backoff(
        base_ms=duration.to_ms(base, "base"), factor=factor, cap_ms=duration.to_ms(cap, "cap"), jitter=jitter
    )
    return Retrying(clock=clock or SystemClock(), entropy=entropy or SystemEntropy(), tries=tries, pauses=pauses, on=on)
