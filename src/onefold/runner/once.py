"""The guard alone, on any function, in any framework: `@onefold.once(key=..., store=...)`, sync and async.

A call is the delivery: the rules for claim, lease, fence, fingerprint and unknown outcome are those of a job. A second
call with the same key returns the stored result; while the first is still running, it waits or is refused. An exception
releases the key and is raised to the caller. After `crashes` calls that died, a key is held for a person.
Never here: the outcome of a call (`guarded.py`), what may be a name (`runtime/names.py`), retries between calls.
Invariant: a result is returned only after its record was written.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from itertools import starmap
from typing import Any, Final, Literal, ParamSpec, TypeVar, overload

from onefold import duration, errors
from onefold.clock import SteadyClock, SystemClock
from onefold.contracts.store import Claimed, Completed, RecordKey, Running
from onefold.contracts.verbs import Store
from onefold.duration import Duration
from onefold.entropy import SystemEntropy
from onefold.interrupts import is_of_a_signal
from onefold.options import checked_options
from onefold.outside import Clock, Entropy
from onefold.record.aliases import earlier_names
from onefold.record.keys import KeyFunction
from onefold.runner.call_arguments import check_function
from onefold.runner.declaring import lists_of
from onefold.runner.execution import Execution
from onefold.runner.guarded import Begun, GuardedFunction, inside
from onefold.runner.handlers import Found
from onefold.runner.hooks import Hooks, checked_hooks
from onefold.runner.lookup import JobView, Known, look_at_call
from onefold.runner.sink_queues import QueuedSinks
from onefold.runtime.events import Sink, checked_sinks
from onefold.runtime.names import OPERATION_NAME_CHARS_MAX, declare, operation_name

A = ParamSpec("A")
R = TypeVar("R")

_GUARD: Final = "__onefold_guard__"  # attribute of a decorated function


@checked_options
def once(
    *,
    key: str | KeyFunction,
    store: Store,
    name: str | None = None,
    aliases: Collection[str] = (),
    tenant: str | KeyFunction | None = None,
    ignore: Collection[str] = (),
    keep: Duration = "90d",
    lease: Duration = "60s",
    on_unknown: Literal["rerun", "hold"] | Callable[..., Found | Awaitable[Found]] = "rerun",
    on_running: Literal["wait", "raise"] = "wait",
    wait: Duration = "10m",
    crashes: int = 3,
    unknown: Sequence[type[BaseException] | str] = (),
    sinks: Iterable[Sink] = (),
    hooks: Iterable[Hooks] = (),
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> Callable[[Callable[A, R]], Callable[A, R]]:
    """Let a function take effect once per key; a repeated call is answered with the stored result.

    If the last parameter is annotated `onefold.Context` (`ctx: onefold.Context | None = None`), it gets the call's context:
    the fence, the idempotency key for a partner, and whether the lease was lost. It is not part of what identifies a call.

    Args:
        key: the rule that says which operation a call is: a template over the argument names ("{order.id}"), a JMESPath
            expression ("jmespath:..."), or a function of the mapping of arguments.
        store: where the records are, from `onefold.store(url)`.
        name: the operation's name; it is part of every key, so a new name without `aliases` makes every key new. By
            default the function's module and name; it must be given in a script that is run directly, and for lambdas
            and partials.
        aliases: earlier names of the operation, at most 10: its records under them count. A record that exists keeps its
            name; new ones get the present name. It costs a read before each claim and one after it.
        tenant: the rule for the key's scope, in the same forms as `key`.
        ignore: parameters that do not identify the work (a connection, a request): calls that differ only in these are the
            same. A method's `self` or `cls` is always ignored; every other argument needs a JSON form.
        keep: how long a result answers duplicates.
        lease: how long a call holds its key between two renewals.
        on_unknown: when an earlier call may or may not have had its effect: `rerun` it, `hold` it for a person, or ask a
            probe: a function of the same arguments that returns `onefold.Done(result)`, `onefold.NotDone()` or
            `onefold.StillUnknown(why)`.
        on_running: whether a call whose key is already running waits for that call, or raises TransientError.
        wait: how long such a call waits before it raises TransientError.
        crashes: how many calls with one key may die with their process; then the key is held, whatever `on_unknown` says.
        unknown: exception classes, or their dotted names, after which the effect may have happened: `on_unknown` decides
            then. Other exceptions mean that it did not happen and release the key, except errors for a lost answer.
        sinks: receive the events of calls, as an app's sinks receive those of its jobs.
        hooks: as for an app; their `around` and `error` are called, but not `start` and `stop`, as onefold does not
            start the process.
        clock, entropy: sources of time and of random numbers.

    Raises:
        UsageError: an invalid option, or a generator function; raised when decorating.
        ConflictError: another function of this program has the name on the same store; raised when decorating.
    Raises (from the decorated function):
        PayloadError: no key, or arguments or result that have no JSON form.
        ConflictError: the key was used with other arguments, or a job of an app on the same store is called `name`.
        OutcomeUnknown: held for a person. LeaseLost: taken over while it ran. TransientError: it is running elsewhere.
        UsageError: called from within its own call; or it returned an iterator or an awaitable.
        Exception: whatever the function raised; the key is free again.
    """

    def decorate(function: Callable[A, R]) -> Callable[A, R]:
        check_function(function, name, store)
        named = operation_name(name, function)
        guard = GuardedFunction(
            function,
            key=key,
            store=store,
            name=named,
            aliases=earlier_names(aliases, named, OPERATION_NAME_CHARS_MAX, "an operation"),
            tenant=tenant,
            ignore=ignore,
            keep_ms=duration.to_ms(keep, "keep", least_ms=1),
            lease_ms=duration.to_ms(lease, "lease", least_ms=1_000),
            on_unknown=on_unknown,
            on_running=on_running,
            wait_ms=duration.to_ms(wait, "wait", least_ms=0),
            crashes=crashes,
            unknown=lists_of((), (), unknown, what=named)["unknown"],
            sinks=QueuedSinks(checked_sinks(sinks), at_exit=True),
            hooks=checked_hooks(hooks),
            clock=clock or getattr(store, "clock", None) or SteadyClock(SystemClock()),
            entropy=entropy or SystemEntropy(),
        )
        if inspect.iscoroutinefunction(function):
            from onefold.runner import once_async  # imports asyncio: 36 ms

            guarded: Callable[A, R] = once_async.asynchronous(function, guard)
        else:
            guarded = _synchronous(function, guard)
        for one in guard.names:
            declare(store, one, function, guarded, is_given=name is not None or one != guard.name)
        vars(guarded)[_GUARD] = guard
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
                guard.clock.wait(guard.never, guard.check_again_ms)
                found = guard.claim(args, kwargs)
            if isinstance(found, Completed):
                answer: R = guard.stored(found)
                return answer
            given = kwargs if guard.context_parameter is None else guard.with_context(found, args, kwargs)
            call = functools.partial(function, **given) if given else function
            if guard.hooks.has_any:
                call = guard.within_hooks(found, call)
            inside.set((*outside, found.hold))
            runs = True
            values.extend(starmap(call, (args,)))  # in C: no signal handler can raise between the effect and its result
            if guard.generation == generation:  # otherwise it forked, and both processes returned: the parent records
                guard.finished(found, values[0])
        except BaseException as error:
            if guard.generation != generation:
                raise
            guard.quote_key(error, found, (args, kwargs))
            # An error of `finished` itself is raised unchanged; anything else was raised by a signal handler between two
            # steps.
            is_said = bool(values) and isinstance(error, errors.OnefoldError) and not is_of_a_signal(error)
            if isinstance(found, Claimed | Execution) and not is_said:
                guard.ended(found, values, error, runs=runs)
            raise
        finally:
            if runs:
                inside.set(outside)
        return values[0]

    return guarded


@overload
def look(function: Callable[..., Coroutine[Any, Any, R]], key: str, *, tenant: str = "") -> Known[R]: ...
@overload
def look(function: Callable[..., R], key: str, *, tenant: str = "") -> Known[R]: ...
def look(function: Callable[..., Any], key: str, *, tenant: str = "") -> Known[Any]:
    """What is known now about a call of a guarded function; like `job.look` for a job's operation.

    Args:
        function: a function guarded by `onefold.once`; a method works too.
        key: the call's key, as its key rule makes it. tenant: its scope, where the function has tenants.

    Raises:
        UsageError: not a guarded function, or a key that is not text.
        PayloadError: the stored result is not of the type that the function returns.
        TransientError: the store cannot be read now.
    """
    guard: GuardedFunction | None = getattr(function, _GUARD, None)
    if guard is None:
        raise errors.UsageError(
            f"look was given {function!r:.120}, which is not guarded by onefold.once.",
            todo="Pass the decorated function; for a job, call job.look(key).",
        )
    payload, earlier = guard.job.rules.payload, guard.names[1:]
    viewed: JobView[Any] = JobView(name=guard.name, aliases=earlier, queue="", payload=payload, tenant=None)
    return look_at_call(guard.store, viewed, RecordKey(tenant, guard.name, key), guard.clock.now_ms())


@overload
async def alook(function: Callable[..., Coroutine[Any, Any, R]], key: str, *, tenant: str = "") -> Known[R]: ...
@overload
async def alook(function: Callable[..., R], key: str, *, tenant: str = "") -> Known[R]: ...
async def alook(function: Callable[..., Any], key: str, *, tenant: str = "") -> Known[Any]:
    """Like `look`, for coroutines: it does not block the loop."""
    from onefold.runner import once_async  # imports asyncio: 36 ms

    return await once_async.in_thread(lambda: look(function, key, tenant=tenant))
