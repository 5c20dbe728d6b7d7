"""The guard alone, on any function, in any framework: `@onefold.once(key=..., store=...)`, sync and async.

The same claim, lease, fence, fingerprint and unknown-outcome rules as a job's, without queue or worker: the caller is the
delivery. A second call with the same key answers the stored result; one that runs elsewhere is waited for or refused; an
exception releases the key and is raised to the caller. After as many deaths as `crashes` says, a key is held for a person.
Never here: what a call comes to (`guarded.py`), retries between calls. Invariant: a result is returned only after its record
was written.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable
from itertools import starmap
from typing import Literal, ParamSpec, TypeVar

from onefold import duration, errors
from onefold.clock import SteadyClock, SystemClock
from onefold.contracts.store import Claimed, Completed, Running
from onefold.contracts.verbs import Store
from onefold.duration import Duration
from onefold.entropy import SystemEntropy
from onefold.interrupts import is_of_a_signal
from onefold.options import checked_options
from onefold.outside import Clock, Entropy
from onefold.record.keys import KeyFunction
from onefold.runner import once_reports
from onefold.runner.execution import Execution
from onefold.runner.guarded import Begun, GuardedFunction, inside
from onefold.runner.handlers import Found
from onefold.runtime.events import Sink, Sinks, checked_sinks
from onefold.runtime.names import declare

A = ParamSpec("A")
R = TypeVar("R")


@checked_options
def once(
    *,
    key: str | KeyFunction,
    store: Store,
    name: str | None = None,
    tenant: str | KeyFunction | None = None,
    ignore: Collection[str] = (),
    keep: Duration = "90d",
    lease: Duration = "60s",
    on_unknown: Literal["rerun", "hold"] | Callable[..., Found | Awaitable[Found]] = "rerun",
    on_running: Literal["wait", "raise"] = "wait",
    wait: Duration = "10m",
    crashes: int = 3,
    sinks: Iterable[Sink] = (),
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> Callable[[Callable[A, R]], Callable[A, R]]:
    """Let a function take effect once per key; a repeated call is answered with the stored result.

    A parameter that is annotated `onefold.Context` gets the call's: `ctx: onefold.Context | None = None`, the last one, with
    the fence, the idempotency key for a partner, and whether the lease was lost. It is not part of what identifies a call.

    Args:
        key: which operation a call is: a template over the argument names ("{order.id}"), a JMESPath expression
            ("jmespath:..."), or a function of the mapping of arguments.
        store: where the records are, from `onefold.store(url)`.
        name: of the operation, a part of every key: renaming makes every key new. The function's module and name unless
            given; it has to be given in a script that is started itself, and for lambdas and partials.
        tenant: scope of the key, by a rule as `key`.
        ignore: parameters that do not say what is done (a connection, a request): calls that differ only in them are the
            same. A method's `self` or `cls` always is; every other argument needs a JSON form.
        keep: how long a result answers duplicates.
        lease: how long a call holds its key between two renewals.
        on_unknown: when an earlier call may or may not have had its effect: `rerun` it, `hold` it for a person, or ask a
            probe: a function of the same arguments that answers `onefold.Done(result)`, `onefold.NotDone()` or
            `onefold.StillUnknown(why)`.
        on_running: a call whose key runs elsewhere waits for it, or raises TransientError.
        wait: how long such a call waits before it raises TransientError all the same.
        crashes: calls with one key that may end with their process; then it is held, whatever `on_unknown` says.
        sinks: receive the events of calls, as an app's sinks receive those of its jobs.
        clock, entropy: where time and chance come from.

    Raises:
        UsageError: an option that cannot be right, or a generator function, when it decorates.
        ConflictError: another function of this program has the name on the same store, when it decorates.
    Raises (from the decorated function):
        PayloadError: no key, or arguments or result that have no JSON form.
        ConflictError: the key came with other arguments, or `name` is that of an app's job on the same store.
        OutcomeUnknown: held for a person. LeaseLost: taken over while it ran. TransientError: runs elsewhere.
        UsageError: called from within its own call; or it returned an iterator, or what has to be awaited.
        Exception: whatever the function raised; the key is free again.
    """

    def decorate(function: Callable[A, R]) -> Callable[A, R]:
        guard = GuardedFunction(
            function,
            key=key,
            store=store,
            name=once_reports.named(name, function, store),
            tenant=tenant,
            ignore=ignore,
            keep_ms=duration.to_ms(keep, "keep", least_ms=1),
            lease_ms=duration.to_ms(lease, "lease", least_ms=1_000),
            on_unknown=on_unknown,
            on_running=on_running,
            wait_ms=duration.to_ms(wait, "wait", least_ms=0),
            crashes=crashes,
            sinks=Sinks(checked_sinks(sinks)),
            clock=clock or getattr(store, "clock", None) or SteadyClock(SystemClock()),
            entropy=entropy or SystemEntropy(),
        )
        if inspect.iscoroutinefunction(function):
            from onefold.runner import once_async  # 36 ms for asyncio; a program with coroutines has it already

            guarded: Callable[A, R] = once_async.asynchronous(function, guard)
        else:
            guarded = _synchronous(function, guard)
        declare(store, guard.name, function, guarded, is_given=name is not None)
        return guarded

    return decorate


def _synchronous(function: Callable[A, R], guard: GuardedFunction) -> Callable[A, R]:
    @functools.wraps(function)
    def guarded(*args: A.args, **kwargs: A.kwargs) -> R:
        found: Begun | Completed | Running | None = None
        values: list[R] = []
        runs, generation = False, guard.generation
        since_ms: int | None = None
        outside = inside.get()
        try:
            found = guard.claim(args, kwargs)
            while isinstance(found, Running):
                since_ms = guard.wait_from(found, since_ms, args, kwargs)
                guard.clock.wait(guard.never, guard.look_again_ms)
                found = guard.claim(args, kwargs)
            if isinstance(found, Completed):
                answer: R = guard.stored(found)
                return answer
            given = kwargs if guard.context_parameter is None else guard.with_context(found, args, kwargs)
            call = functools.partial(function, **given) if given else function
            inside.set((*outside, found.hold))
            runs = True
            values.extend(starmap(call, (args,)))  # in C: no exception of a signal between the effect and its result
            if guard.generation == generation:  # else the function forked, and both came back: the parent records it
                guard.finished(found, values[0])
        except BaseException as error:
            if guard.generation != generation:
                raise
            # What `finished` raised itself is all that is to be said; anything else came between two steps.
            is_said = bool(values) and isinstance(error, errors.OnefoldError) and not is_of_a_signal(error)
            if isinstance(found, Claimed | Execution) and not is_said:
                guard.ended(found, values, error, runs=runs)
            raise
        finally:
            if runs:
                inside.set(outside)
        return values[0]

    return guarded
