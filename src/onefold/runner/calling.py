"""Calls a job's handler, or asks its probe, in this thread, and returns the outcome as a value.

A handler that raises has failed, whatever it raised: `sys.exit()` in a handler must not end the worker. The worker's
threads, its event loop (`tasks.py`) and its child processes use the same functions, so a failure means the same
everywhere.
Never here: scripts, storage, deadlines, what a probe's answer decides (`record/decisions.py`). Invariant: whatever a
handler does, short of ending the process, gives exactly one outcome; a probe that fails has not answered, and is never
treated as "not done".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec.structs import replace

from onefold import errors, forks
from onefold.interrupts import ENDING, is_of_a_signal, let_through, may_be_ctrl_c, stems_from_signal
from onefold.record import delivery as outcomes
from onefold.record.decisions import ProbeAnswer
from onefold.record.delivery import Failed, LeaseGone, Unstorable
from onefold.record.error_text import text_of, trace_of
from onefold.runner import context
from onefold.runtime.events import is_kept, kept_text
from onefold.runtime.outgoing import Outgoing

if TYPE_CHECKING:
    from onefold.outside import Clock
    from onefold.record.delivery import Failed, Outcome
    from onefold.runner.context import Context
    from onefold.runner.handlers import Job

_YIELDS = "A schedule's handler sends the messages that it yields: yield job.message(payload)."


def call(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> Outcome:
    """Call the handler in this thread; an `async def` handler gets an event loop of its own."""
    context.watch_pools()
    token, born = context.current.set(ctx), forks.generation()
    try:
        if job.hooks.has_any:
            value = _within_hooks(job, payload, ctx, born)
        else:
            ctx.is_called = True
            value = _invoked(job, payload, ctx, born)
    except BaseException as error:
        if forks.generation() != born:
            leave_child(error)
        if isinstance(error, KeyboardInterrupt) and may_be_ctrl_c():
            raise  # Ctrl-C stops the process, not only this run
        ctx.raised = error
        return raised(job, error, clock, called=ctx.is_called)
    finally:
        context.current.reset(token)
        ctx.end()
    return returned(job, value, ctx)


def _invoked(job: Job[Any, Any], payload: Any, ctx: Context, born: int) -> Any:
    """Call the handler and return its value; a child process that the handler forked ends here."""
    value = job.invoke(payload, ctx)
    if hasattr(type(value), "__await__"):
        value = run_coroutine(value)
    if forks.generation() != born:
        leave_child(None)
    return value


def _within_hooks(job: Job[Any, Any], payload: Any, ctx: Context, born: int) -> Any:
    """Like `_invoked`, within the app's hooks; these are not called with what a forked child returned or raised."""
    if job.is_async:
        return run_coroutine(job.hooks.call_async(ctx, partial(invoked_async, job, payload, ctx, born)))

    def invoke() -> Any:
        try:
            return _invoked(job, payload, ctx, born)
        except BaseException as error:
            if forks.generation() != born:
                leave_child(error)
            raise

    return job.hooks.call(ctx, invoke)


async def invoked_async(job: Job[Any, Any], payload: Any, ctx: Context, born: int) -> Any:
    """Like `job.invoke`, awaited; a child process that the handler forked ends here."""
    try:
        value: Any = await job.invoke(payload, ctx)
    except BaseException as error:
        if forks.generation() != born:
            leave_child(error)
        raise
    if forks.generation() != born:
        leave_child(None)
    return value


def leave_child(error: BaseException | None) -> NoReturn:
    """End a forked child process in which the handler returned or raised: its parent reports the run's outcome."""
    code: object = error.code if isinstance(error, SystemExit) else None if error is None else 1
    if error is not None and not isinstance(error, SystemExit):
        sys.stderr.write(f"{trace_of(error, text_of).text}\n")
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def returned(job: Job[Any, Any], value: object, ctx: Context) -> Outcome:
    """The outcome of a handler that returned `value`."""
    for is_last in (False, True):
        try:
            result = job.rules.payload.encode_result(value)
        except errors.PayloadError as error:
            return _unsent(job, value) or _unstorable("", error)
        except (Exception, *ENDING) as error:  # a result's own methods may raise anything; it took effect
            if not isinstance(error, Exception) and is_of_a_signal(error):
                raise
            if is_last or not is_of_a_signal(error):  # a time limit came too late: the handler has returned
                return _unsent(job, value) or _unstorable(
                    f"The result could not be encoded: {type(error).__name__}: ", error
                )
        else:
            if job.ticks and ctx.messages_made > 0 and not ctx.outbox:
                _warn_of_unsent(job, ctx)
            return outcomes.Success(result=result, outbox=ctx.outbox, counts=ctx.counts)
    raise AssertionError("the last try has answered")


def _warn_of_unsent(job: Job[Any, Any], ctx: Context) -> None:
    """Log that a schedule's handler made messages and sent none here; it has run, and may have meant that."""
    import logging  # 8 ms, and only an unusual handler leads here

    count = ctx.messages_made
    made = f"{count} message{'' if count == 1 else 's'}"
    text = f"{job.name} made {made} with message() in its run {ctx.key} and yielded none: was one to be sent? {_YIELDS}"
    logging.getLogger("onefold").warning("%s", text)


def _unsent(job: Job[Any, Any], value: object) -> Outcome | None:
    """The outcome of a handler that returned messages, or an iterator over something; None for other values."""
    kind = type(value)  # `isinstance` would ask the value itself, which may raise anything
    lazy = issubclass(kind, Iterator)
    some: Any = value if issubclass(kind, list | tuple | set) else (value,)
    if not lazy and not any(issubclass(type(one), Outgoing) for one in some):
        return None
    what = f"{job.name} returned {'a ' + type(value).__qualname__ if lazy else 'messages'}, and no message was sent."
    if job.ticks:
        what += f" {_YIELDS}"
    elif lazy:
        what += " The handler ran; what is left in it never runs. Return the values themselves, for example a list."
        return Unstorable(summary=what)
    else:
        what += " The handler ran. Send with ctx.send(job, payload), and return None or a value that JSON can hold."
        return Unstorable(summary=what)
    return Failed(kind="permanent", error="UsageError", summary=what)


def _unstorable(why: str, error: BaseException) -> Outcome:
    return Unstorable(summary=f"{why}{kept_text(error)}"[:500])


def raised(job: Job[Any, Any], error: BaseException, clock: Clock, *, called: bool = True) -> Outcome:
    """The outcome of a handler that raised `error`; `called` is False if only code around the handler was called."""
    if isinstance(error, errors.LeaseLost):
        return LeaseGone()
    from onefold.record.failures import (
        classify,  # only after a failure: cold starts are measured
    )

    classes = job.classes
    failed = classify(
        error,
        now_ms=clock.now_ms(),
        transient=classes.get("transient", ()),
        permanent=classes.get("permanent", ()),
        unknown=classes.get("unknown", ()),
        with_text=is_kept(),
        interrupted=stems_from_signal(error, (errors.OnefoldError,)),
    )
    return replace(failed, kind="transient") if failed.kind == "unknown" and not called else failed


def overran(timeout_ms: int) -> Failed:
    """The outcome of a handler that was stopped at its deadline: it is not known whether its effect happened."""
    summary = f"The handler was still running after its timeout of {timeout_ms} ms and was stopped."
    return Failed(kind="unknown", error="HandlerTimeout", summary=summary)


def run_coroutine(value: Any) -> Any:
    """Await a coroutine on an event loop of its own."""
    import asyncio  # 36 ms to import; only jobs with coroutines need it

    async def awaited() -> Any:
        return await value

    return asyncio.run(awaited())


def probe(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> ProbeAnswer:
    """Ask the job's probe in this thread; if the probe fails, it has not answered (see `unanswered`)."""
    if job.policy.is_call:
        return _asked(job, payload, ctx, clock)
    context.watch_pools()
    token = context.current.set(ctx)  # what it sends belongs to the run
    try:
        return _asked(job, payload, ctx, clock)
    finally:
        context.current.reset(token)
        ctx.end()


def _asked(job: Job[Any, Any], payload: Any, ctx: Context, clock: Clock) -> ProbeAnswer:
    try:
        found = job.ask(payload, ctx)
        if hasattr(type(found), "__await__"):
            found = run_coroutine(found)
        return answered(job, found, ctx)
    except (Exception, *ENDING) as error:  # see above
        if job.policy.is_call:
            let_through(error)  # the call is made in its caller's thread
        if not isinstance(error, Exception) and (job.policy.is_call or is_of_a_signal(error)):
            raise
        ctx.raised = error
        return unanswered(error, clock.now_ms())


def answered(job: Job[Any, Any], found: object, ctx: Context) -> ProbeAnswer:
    """The answer of a probe that returned `found`. If it completes the run, what it sent and counted goes with it."""
    answer = job.probe_answer(found)
    return replace(answer, outbox=ctx.outbox, counts=ctx.counts) if answer.verdict == "done" else answer


def unanswered(error: BaseException, now_ms: int) -> ProbeAnswer:
    """The answer of a probe that failed: ask again later if the error is known to be transient, otherwise ask a person.

    A probe changes nothing, so it may be repeated when its answer was lost.
    """
    from onefold.record.failures import (
        judge,  # only after a failure: cold starts are measured
    )

    summary = f"The probe failed: {type(error).__name__}: {kept_text(error)}"[:500]
    ruling = judge(error, now_ms=now_ms, sent="transient")
    if ruling.listed and ruling.kind in ("transient", "dependency-down"):
        return ProbeAnswer(verdict="later", summary=summary, retry_in_ms=ruling.retry_in_ms)
    return ProbeAnswer(verdict="unknown", summary=summary)
