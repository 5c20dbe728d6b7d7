"""What a declaration is checked for and made of: the parts of `App.job` that need no app.

Every value comes in as the user wrote it and is answered with an error that says what to write instead.
Never here: apps, queues' own settings, what options exist. Invariant: what comes out can be worked with as it is.
"""

from __future__ import annotations

import functools
import inspect
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onefold import duration, errors, limits
from onefold.decide.backoff import Backoff
from onefold.decide.delivery import AfterFailure, Effect, Policy
from onefold.decide.keys import KeyFunction, KeyRule, key_rule
from onefold.duration import Duration
from onefold.options import Queue, Retry, Throttle
from onefold.run.handlers import Job, Limit

_GRACE_MS = limits.DAY_MS  # between the last chance of a redrive and forgetting the record


def policy_of(
    queue: Queue,
    effect: Effect,
    on_unknown: object,
    timeout: Duration,
    retry: Retry,
    after_failure: AfterFailure,
    keep: Duration,
    owner: str | None,
) -> Callable[[str], Policy]:
    """What makes the policy of a job, once its name is known. Arguments as `App.job`.

    Raises:
        UsageError: an option that cannot be right; says which, and what to do.
    """
    for value, allowed, what in (
        (effect, typing.get_args(Effect), "effect"),
        (after_failure, typing.get_args(AfterFailure), "after_failure"),
        (on_unknown if isinstance(on_unknown, str) else "rerun", ("rerun", "hold"), "on_unknown"),
    ):
        if value not in allowed:
            from difflib import get_close_matches  # only a typing error pays for it

            near = get_close_matches(str(value), allowed, n=1)
            raise errors.UsageError(
                f"{what}={value!r} is not known.",
                todo=f"Did you mean {near[0]!r}?" if near else f"It is one of {', '.join(allowed)}.",
            )
    after = queue.settings.receives_max or 1
    for what, count in (("attempts", retry.attempts), ("crashes", retry.crashes)):
        if type(count) is not int or count < 1:
            raise errors.UsageError(f"retry.{what}={count!r} is out of range.", todo="It is a whole number, 1 or more.")
    if retry.attempts > after:
        raise errors.UsageError(
            f"retry.attempts={retry.attempts} with dead_letter.after={after} on queue {queue.name}.",
            meaning="The queue itself would dead-letter the message before onefold could say why.",
            todo=f"Let attempts be 1 to {after}, or raise DeadLetter(after=...).",
        )
    return functools.partial(
        _policy,
        queue=queue.name,
        effect=effect,
        attempts_max=retry.attempts,
        crashes_max=retry.crashes,
        backoff=Backoff(
            base_ms=duration.to_ms(retry.base, "retry.base"),
            factor=retry.factor,
            cap_ms=duration.to_ms(retry.cap, "retry.cap", most_ms=limits.VISIBILITY_MS_MAX),
            jitter=retry.jitter,
        ),
        on_unknown=on_unknown if isinstance(on_unknown, str) else "probe",
        after_failure=after_failure,
        timeout_ms=duration.to_ms(timeout, "timeout", least_ms=1, most_ms=limits.VISIBILITY_MS_MAX),
        keep_ms=keep_ms_of(queue, keep),
        fifo=queue.settings.fifo,
        owner=owner,
    )


def _policy(job: str, **settings: Any) -> Policy:
    return Policy(job=job, **settings)


def keep_ms_of(queue: Queue, keep: Duration) -> int:
    """How long records are kept, in milliseconds.

    Raises:
        UsageError: shorter than a message may still come back.
    """
    keep_ms = duration.to_ms(keep, "keep")
    needed_ms = queue.settings.retention_ms + queue.dead_letter.retention_ms + _GRACE_MS
    if keep_ms < needed_ms:
        parts = (queue.settings.retention_ms, queue.dead_letter.retention_ms, _GRACE_MS)
        spelled = " + ".join(duration.to_text(part) for part in parts)
        raise errors.UsageError(
            f"keep={keep!r} is shorter than {duration.to_text(needed_ms)} = {spelled}.",
            meaning="(retention of the queue + retention of its dead letters + grace.) A late redrive would run again.",
            todo=f'Keep records for at least "{duration.to_text(needed_ms)}", or shorten the retentions.',
        )
    return keep_ms


def warn_of_volatile_key(job: Job[Any, Any]) -> None:
    """Warn of a key made of what differs at every send."""
    if job.rules.key.volatile:
        warnings.warn(
            f"The key of {job.name} uses {', '.join(job.rules.key.volatile)}, which sounds new at every send: then"
            " no two messages are the same operation.",
            stacklevel=4,
        )


def group_rule(queue: Queue, group: str | KeyFunction | None, annotation: Any, job_name: str) -> KeyRule | None:
    """The rule of the message group; None where the job has none.

    Raises:
        UsageError: a FIFO queue without one, or a rule that cannot be.
    """
    if group is None and queue.settings.fifo:
        raise errors.UsageError(
            f"Job {job_name} is on the FIFO queue {queue.name} but has no group.",
            todo='Say what is kept in order, for example group="{customer}".',
        )
    if group is None:
        return None
    return key_rule(group, annotation, what=f"group of {job_name}", chars_max=limits.ID_CHARS_MAX)


def limit_of(throttle: Throttle | None, annotation: Any, job_name: str) -> Limit | None:
    """What a throttle limits.

    Raises:
        UsageError: it limits nothing, or a value is out of range.
    """
    if throttle is None:
        return None
    if throttle.rate is None and throttle.concurrency is None:
        raise errors.UsageError(f"The throttle of {job_name} limits nothing.", todo="Give it a rate or a concurrency.")
    if throttle.concurrency is not None and (type(throttle.concurrency) is not int or throttle.concurrency < 1):
        raise errors.UsageError(
            f"concurrency={throttle.concurrency!r} is out of range.", todo="It is a whole number, 1 or more."
        )
    from onefold.decide.rate import parse_rate  # only who throttles pays for it

    return Limit(
        rate=parse_rate(throttle.rate) if throttle.rate is not None else None,
        concurrency=throttle.concurrency,
        key=key_rule(throttle.per, annotation, what=f"throttle of {job_name}") if throttle.per else None,
    )


def lists_of(
    transient: Sequence[type[BaseException] | str],
    permanent: Sequence[type[BaseException] | str],
    unknown: Sequence[type[BaseException] | str],
) -> dict[str, tuple[type[BaseException] | str, ...]]:
    """A job's own exception classes by what they mean; a text alone is one name.

    Raises:
        UsageError: as `check_lists`.
    """
    lists = {
        kind: (classes,) if isinstance(classes, str) else tuple(classes)
        for kind, classes in (("transient", transient), ("permanent", permanent), ("unknown", unknown))
    }
    if any(lists.values()):
        from onefold.decide.failures import Lists, check_lists  # and its tables: only who adds to them pays

        check_lists(Lists(**lists), "this job")
    return lists


def types_of(handler: Callable[..., Any]) -> tuple[Any, Any]:
    """The payload's and the result's annotation; Any where there is none.

    Raises:
        UsageError: it cannot be a handler.
    """
    produces = inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)
    if produces or not callable(handler):
        raise errors.UsageError(
            f"{handler!r} cannot be a handler.",
            meaning="Calling it would run nothing.",
            todo="Decorate a plain function or an async def, without yield.",
        )
    parameters = list(inspect.signature(handler).parameters.values())
    if not parameters:
        raise errors.UsageError(
            f"{handler.__name__} takes no payload.",
            todo="Its first parameter is the payload; a second one the Context.",
        )
    try:
        hints: Mapping[str, Any] = typing.get_type_hints(handler)
    except NameError as error:
        raise errors.UsageError(
            f"The annotations of {handler.__name__} name something that is not defined: {error}.",
            todo="Define payload types at module level.",
        ) from error
    return hints.get(parameters[0].name, Any), hints.get("return", Any)
