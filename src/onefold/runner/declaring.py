"""Checks and builds declarations: the code behind `App.queue` and `App.job`, and parts that other rooms share.

Values are passed as the user wrote them; an invalid value raises an error that says what to write instead.
Never here: apps, which options exist and what they mean. Invariant: a result can be used without further checks, and a
refused declaration has declared nothing.
"""

from __future__ import annotations

import functools
import inspect
import typing
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from onefold import duration, errors, limits
from onefold.codec import Compared, payload_type
from onefold.contracts.queue import PAYLOAD_VERSIONS_MAX
from onefold.contracts.settings import QueueSettings, check_settings, check_target
from onefold.options import (
    FUNCTION,
    DeadLetter,
    Function,
    Queue,
    Retry,
    Throttle,
    check_choice,
    check_option,
    check_whole,
)
from onefold.record.aliases import earlier_names
from onefold.record.delivery import AfterFailure, Backoff, Effect, Executor, Policy
from onefold.record.keys import KeyFunction, KeyRule, is_volatile, key_rule, takes
from onefold.record.rate import CONCURRENCY_MAX, Limit, parse_rate
from onefold.runner.context import Context
from onefold.runner.handlers import Job, Rules, positional, positional_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from onefold.duration import Duration
    from onefold.record.rate import Limit
    from onefold.registry import Registry
    from onefold.runner.versions import Upgrade, Versions
    from onefold.runtime.runtime import Runtime


T = TypeVar("T")
R = TypeVar("R")


class Decorator(Protocol):
    """Turns a handler into a job, typed by its payload and by what a call of it returns (a coroutine for `async def`)."""

    @overload
    def __call__(self, handler: Callable[[T, Context], R]) -> Job[T, R]: ...
    @overload
    def __call__(self, handler: Callable[[T], R]) -> Job[T, R]: ...


_CONTEXT_NAMES = ("ctx", "context", "")  # names of a second parameter without annotation; "" stands for _
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
JOB_NAME_CHARS_MAX = 128  # the name is part of every key for partners, and of metrics; ids in SQS are as long
KEEP_DEFAULT = "90d"  # records of completed work answer duplicates for 90 days
_retention_ms = functools.partial(duration.to_ms, least_ms=limits.RETENTION_MS_MIN, most_ms=limits.RETENTION_MS_MAX)
_GRACE_MS = limits.DAY_MS  # time between the last possible redrive and the end of the record


def queue_of(
    name: Any,
    *,
    fifo: bool = False,
    visibility: Duration = "30s",
    retention: Duration = "4d",
    delay: Duration = "0s",
    dead_letter: DeadLetter | None = None,
    max_bytes: int = limits.MESSAGE_BYTES_MAX,
    content_dedup: bool = False,
    dedup_scope: Literal["queue", "messageGroup"] = "queue",
    function: Function | None = FUNCTION,
    internal: bool = False,
) -> Queue:
    """A queue with its dead-letter queue and its held queue. Arguments and errors as for `App.queue`."""
    if not isinstance(name, str):
        raise errors.UsageError(f"{name!r} is not a valid name for a queue.", todo="Use a text of A-Z a-z 0-9 - _.")
    dead_letter = DeadLetter() if dead_letter is None else dead_letter
    check_option(dead_letter, DeadLetter, "dead_letter", "after", 10)
    if function is not None:
        check_option(function, Function, "function", "memory_mb", 512)
    suffix = ".fifo" if fifo else ""  # a name that ends in .fifo does not make a FIFO queue; check_settings refuses it
    stem = name.removesuffix(suffix)
    dead_name = f"{(dead_letter.name or stem + '-dead').removesuffix(suffix)}{suffix}"
    companion = functools.partial(QueueSettings, fifo=fifo, message_bytes_max=max_bytes, content_dedup=content_dedup)
    check_whole(dead_letter.after, "dead_letter.after", 1, limits.RECEIVES_MAX)
    declared = Queue(
        settings=QueueSettings(
            name=stem + suffix,
            fifo=fifo,
            visibility_ms=duration.to_ms(visibility, "visibility", most_ms=limits.VISIBILITY_MS_MAX),
            retention_ms=_retention_ms(retention, "retention"),
            delay_ms=duration.to_ms(delay, "delay", most_ms=limits.DELAY_MS_MAX),
            message_bytes_max=max_bytes,
            dead_letter=dead_name,
            receives_max=dead_letter.after,
            held=f"{stem}-held{suffix}",
            content_dedup=content_dedup,
            dedup_scope=dedup_scope,
        ),
        dead_letter=companion(
            name=dead_name, retention_ms=_retention_ms(dead_letter.retention, "dead_letter.retention")
        ),
        held=companion(name=f"{stem}-held{suffix}", retention_ms=limits.RETENTION_MS_MAX),
        function=function,
        internal=internal,
    )
    for settings in (declared.settings, declared.dead_letter, declared.held):
        check_settings(settings)
    check_target(declared.settings, declared.dead_letter)
    return declared


def declare_job(
    runtime: Runtime,
    queue: Queue,
    *,
    key: str | KeyFunction,
    name: str | None = None,
    aliases: Sequence[str] = (),
    version: int = 1,
    upgrade: Mapping[int, Upgrade] | None = None,
    tenant: str | KeyFunction | None = None,
    group: str | KeyFunction | None = None,
    effect: Effect = "external",
    executor: Executor | None = None,
    on_unknown: Any = "rerun",
    timeout: Duration = "5m",
    retry: Retry | None = None,
    throttle: Throttle | None = None,
    after_failure: AfterFailure = "stop",
    keep: Duration = KEEP_DEFAULT,
    owner: str | None = None,
    unique: bool = False,
    fingerprint: Collection[str] | None = None,
    ignore: Collection[str] = (),
    when_complete: object = None,
    source: str = "json",
    transient: Sequence[type[BaseException] | str] = (),
    permanent: Sequence[type[BaseException] | str] = (),
    unknown: Sequence[type[BaseException] | str] = (),
) -> Any:
    """Declare a job; the implementation of `App.job`, with its arguments and errors.

    Args:
        runtime: sends the job's messages; the job is added to its registry.
    """
    registry = runtime.registry
    registry.check_own(queue)
    classes = lists_of(transient, permanent, unknown)
    _check_source(source)
    policy = policy_of(queue, effect, on_unknown, timeout, retry, after_failure, keep, owner)

    def declare(handler: Callable[..., Any]) -> Job[Any, Any]:
        annotation, returned = types_of(handler)
        job_name = _free_name(name or handler.__name__, registry)
        earlier, versions = _free_aliases(aliases, job_name, registry), _versions_of(job_name, version, upgrade)
        job: Job[Any, Any] = Job(
            handler,
            name=job_name,
            policy=policy(job_name),
            rules=Rules(
                payload=payload_type(annotation, result=returned),
                key=key_rule(key, annotation, what=f"key of {job_name}"),
                tenant=key_rule(tenant, annotation, what=f"tenant of {job_name}") if tenant else None,
                group=group_rule(queue, group, annotation, job_name),
                source=source,
                compared=_compared(fingerprint, ignore, annotation, job_name),
            ),
            runtime=runtime,
            internal=queue.internal,
            probe=on_unknown if callable(on_unknown) else None,
            classes=classes,
            limit=limit_of(throttle, annotation, job_name),
            unique=unique,
        )
        job.aliases, job.versions, job.executor = earlier, versions, _checked_executor(executor, effect)
        if when_complete is not None:
            from onefold.runner.completion import title_of  # 15 ms to import, and few jobs need it

            job.starts_after = title_of(when_complete, annotation, job_name)
        _warn_of_slips(job, queue, annotation)
        functools.update_wrapper(job, handler)
        registry.add_job(job)
        return job

    return declare


def _checked_executor(executor: Executor | None, effect: Effect) -> Executor | None:
    if executor is not None:
        check_choice(executor, typing.get_args(Executor), "executor")
    if executor == "process" and effect == "transactional":
        raise errors.UsageError(
            "executor='process' with effect='transactional'.",
            meaning="Its rows go through the one connection that the worker has to the engine; a child has none.",
            todo="Leave executor= out, or declare another effect.",
        )
    return executor


def _check_source(source: str) -> None:
    if source != "json":
        from onefold.runner.sources import check_source  # only for jobs whose messages have an envelope

        check_source(source, "this job")


def _free_name(name: Any, registry: Registry) -> str:
    """The name of a job to be declared, after checking that it is valid and not taken."""
    if not str(name).isprintable() or len(str(name)) > JOB_NAME_CHARS_MAX:
        raise errors.UsageError(
            f"{name!r:.80} is not a valid name for a job.",
            todo=f"Use at most {JOB_NAME_CHARS_MAX} printable characters.",
        )
    if name in registry.jobs:
        raise errors.ConflictError(f"Job {name} is declared twice.", todo="Give one of them another name=.")
    _check_alias(name, registry, "job")
    return str(name)


def _check_alias(name: str, registry: Registry, what: str) -> None:
    other = registry.aliases.get(name)
    if other is not None:
        raise errors.ConflictError(
            f"The {what} {name!r:.140} is an earlier name of the job {other}.",
            meaning="Its records and messages could be either's.",
            todo="Remove it from aliases= of one of them, or give the other job another name=.",
        )


def _free_aliases(aliases: Any, name: str, registry: Registry) -> tuple[str, ...]:
    """The earlier names of a job to be declared, after checking that they are valid and not taken."""
    found = earlier_names(aliases, name, JOB_NAME_CHARS_MAX, "a job")
    for alias in found:
        if alias in registry.jobs:
            raise errors.ConflictError(
                f"The alias {alias!r:.140} of {name} is the name of another job.",
                meaning="Its records and messages could be either's.",
                todo="Remove the alias, or remove the other job.",
            )
        _check_alias(alias, registry, "alias")
    return found


def _versions_of(name: str, version: Any, upgrade: Any) -> Versions | None:
    """The versions of a job's payload; None if it has only one."""
    check_whole(version, "version", 1, PAYLOAD_VERSIONS_MAX)
    if upgrade is not None and not hasattr(upgrade, "items"):
        raise errors.UsageError(
            f"upgrade={upgrade!r:.80} is not a dict.",
            todo="Write upgrade={1: function}, or @job.upgrade(from_version=1).",
        )
    if version == 1:
        if upgrade:
            raise errors.UsageError(
                f"{name} has upgrades, and its payload is at version 1.", todo=f"Write version={max(upgrade) + 1}."
            )
        return None
    from onefold.runner.versions import Versions  # few jobs have several versions; cold starts are measured

    versions = Versions(name, version)
    for number, function in (upgrade or {}).items():
        versions.add(number, function)
    return versions


def policy_of(
    queue: Queue,
    effect: Effect,
    on_unknown: object,
    timeout: Duration,
    retry: Retry | None,
    after_failure: AfterFailure,
    keep: Duration,
    owner: str | None,
) -> Callable[[str], Policy]:
    """A function that makes the policy of a job from its name. Arguments as for `App.job`.

    Raises:
        UsageError: an invalid option; the error names it and says what to do.
    """
    for value, allowed, what in (
        (effect, typing.get_args(Effect), "effect"),
        (after_failure, typing.get_args(AfterFailure), "after_failure"),
        ("rerun" if callable(on_unknown) else on_unknown, ("rerun", "hold"), "on_unknown"),
    ):
        check_choice(value, allowed, what)
    if callable(on_unknown) and not takes(on_unknown, 2 if positional(on_unknown) >= 2 else 1):
        raise errors.UsageError(
            f"on_unknown={getattr(on_unknown, '__name__', on_unknown)!r:.80} cannot be called with (payload, context).",
            meaning="It would fail when it is needed: after a worker has died in the middle of a run.",
            todo="Give the probe one parameter, the payload, or two: the payload and the Context.",
        )
    retry = Retry() if retry is None else retry
    check_option(retry, Retry, "retry", "attempts", 5)
    check_choice(retry.jitter, ("full", "half", "none"), "retry.jitter")
    if type(retry.factor) not in (int, float):
        raise errors.UsageError(
            f"retry.factor={retry.factor!r:.80} is not a number.", todo="Write for example factor=2."
        )
    after = queue.settings.receives_max or 1
    for what, count in (("attempts", retry.attempts), ("crashes", retry.crashes)):
        check_whole(count, f"retry.{what}", 1)
    if retry.attempts > after:
        raise errors.UsageError(
            f"retry.attempts={retry.attempts} with dead_letter.after={after} on queue {queue.name}.",
            meaning="The queue itself would dead-letter the message before onefold could record why.",
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
        UsageError: shorter than the time for which a message may still be delivered again.
    """
    keep_ms = duration.to_ms(keep, "keep")
    needed_ms = queue.settings.retention_ms + queue.dead_letter.retention_ms + _GRACE_MS
    if keep_ms < needed_ms:
        parts = (queue.settings.retention_ms, queue.dead_letter.retention_ms, _GRACE_MS)
        spelled = " + ".join(duration.to_text(part) for part in parts)
        raise errors.UsageError(
            f"keep={keep!r} is shorter than {duration.to_text(needed_ms)} = {spelled}.",
            meaning="That is the queue's retention + that of its dead letters + grace. A late redrive would run again.",
            todo=f'Keep records for at least "{duration.to_text(needed_ms)}", or shorten the retentions.',
        )
    return keep_ms


def _compared(only: Any, ignored: Any, annotation: Any, job_name: str) -> Compared | None:
    """The fields from which a job's fingerprint is made; None: all of them, without their names.

    Raises:
        UsageError: not a list of names, or a name that the payload's type does not have.
    """
    if only is None and not ignored:
        return None
    known = _fields_of(annotation)
    for what, names in (("fingerprint", only or ()), ("ignore", ignored)):
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise errors.UsageError(
                f"{what}={names!r:.80} of {job_name} is not a list of names.", todo=f'Write {what}=["..."].'
            )
        wrong = [name for name in names if known and name not in known]
        if wrong:
            raise errors.UsageError(
                f"{what}= of {job_name} names {wrong[0]!r}, which is not a field of its payload.",
                todo=f"Its fields are: {', '.join(known)}.",
            )
    return Compared(None if only is None else tuple(only), tuple(ignored))


def _fields_of(annotation: Any) -> dict[str, tuple[str, Any]]:
    """The fields of a class of payloads by their name in JSON: the type as text, and the function for the default."""
    if hasattr(annotation, "__struct_fields__"):
        given: Sequence[Any] = annotation.__struct_defaults__
        padded = (None,) * (len(annotation.__struct_fields__) - len(given)) + tuple(given)
        types = annotation.__annotations__
        return {
            name: (str(types.get(field, "")), getattr(default, "factory", None))
            for field, name, default in zip(
                annotation.__struct_fields__, annotation.__struct_encode_fields__, padded, strict=True
            )
        }
    if hasattr(annotation, "__dataclass_fields__"):
        fields = annotation.__dataclass_fields__.values()
        return {
            one.name: (str(one.type), one.default_factory if callable(one.default_factory) else None) for one in fields
        }
    models = getattr(annotation, "model_fields", None) or {}
    return {
        one.serialization_alias or one.alias or name: (str(one.annotation), one.default_factory)
        for name, one in models.items()
    }


def _warn_of_slips(job: Job[Any, Any], queue: Queue, annotation: Any) -> None:
    """Warn of a key or a field that differs at every send, and of a group on a queue that keeps no order."""
    compared = job.rules.compared or Compared()
    for name, (kind, made) in _fields_of(annotation).items() if not queue.internal else ():
        is_fresh = "datetime" in kind and (is_volatile(name) or not isinstance(made, type | None))
        if is_fresh and name not in compared.ignored and (compared.only is None or name in compared.only):
            warnings.warn(
                f"The field {name} of {job.name}'s payload looks like the time of the send: a message that is sent again has"
                f' another one, which conflicts with the first. Leave it out of the comparison: ignore=["{name}"].',
                stacklevel=3,
            )
    if job.rules.group is not None and not queue.settings.fifo and not queue.internal:
        warnings.warn(
            f"Job {job.name} has a group on {queue.name}, which is a standard queue: messages of a group run side by side"
            " and in any order, and a dead letter stops none. For order, declare the queue with fifo=True.",
            stacklevel=3,
        )
    if job.rules.key.volatile:
        warnings.warn(
            f"The key of {job.name} uses {', '.join(job.rules.key.volatile)}, which seems to differ at every send: then"
            " no two messages are the same operation.",
            stacklevel=3,
        )


def group_rule(queue: Queue, group: str | KeyFunction | None, annotation: Any, job_name: str) -> KeyRule | None:
    """The rule of the message group; None if the job has none.

    Raises:
        UsageError: a FIFO queue without a rule, or an invalid rule.
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
    """The limits of a throttle.

    Raises:
        UsageError: it limits nothing, or a value is out of range.
    """
    if throttle is None:
        return None
    check_option(throttle, Throttle, "throttle", "rate", "100/s")
    if throttle.rate is None and throttle.concurrency is None:
        raise errors.UsageError(f"The throttle of {job_name} limits nothing.", todo="Give it a rate or a concurrency.")
    most = throttle.concurrency
    if most is not None:
        check_whole(most, "concurrency", 1, CONCURRENCY_MAX)
    return Limit(
        rate=parse_rate(throttle.rate) if throttle.rate is not None else None,
        concurrency=throttle.concurrency,
        key=key_rule(throttle.per, annotation, what=f"throttle of {job_name}") if throttle.per else None,
    )


def lists_of(
    transient: Sequence[type[BaseException] | str],
    permanent: Sequence[type[BaseException] | str],
    unknown: Sequence[type[BaseException] | str],
    *,
    what: str = "this job",
) -> dict[str, tuple[type[BaseException] | str, ...]]:
    """The exception classes of a job or guarded function (`what`) by failure kind; a text or class counts as a list of one.

    Raises:
        UsageError: as for `check_lists`.
    """
    lists: dict[str, tuple[type[BaseException] | str, ...]] = {}
    for kind, classes in (("transient", transient), ("permanent", permanent), ("unknown", unknown)):
        if not hasattr(classes, "__iter__") and not isinstance(classes, type):
            raise errors.UsageError(
                f"{kind}={classes!r:.80} is not a list of exception classes.",
                todo=f"Write for example {kind}=[ValueError].",
            )
        lists[kind] = (classes,) if isinstance(classes, str | type) else tuple(classes)
    if any(lists.values()):
        from onefold.record.failures import Lists, check_lists  # only for jobs that add to its tables

        check_lists(Lists(**lists), what)
    return lists


def types_of(handler: Callable[..., Any]) -> tuple[Any, Any]:
    """The annotations of a handler's payload and of its result; Any if there is none.

    Raises:
        UsageError: the function cannot be used as a handler.
    """
    produces = inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler)
    if produces or not callable(handler):
        raise errors.UsageError(
            f"{handler!r} cannot be a handler.",
            meaning="Calling it would run nothing.",
            todo="Decorate a plain function or an async def, without yield.",
        )
    names = positional_names(handler) or list(inspect.signature(handler).parameters)
    if not names:
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
    check_parameters(handler, hints, "payload")
    return hints.get(names[0], Any), hints.get("return", Any)


def check_parameters(function: Callable[..., Any], hints: Mapping[str, Any] | None, first: str) -> None:
    """Refuse parameters to which nothing is passed: a call passes one argument, and the Context as a second one.

    Args:
        function: a handler, or the function of a schedule. hints: its annotations; None if they have not been read yet.
        first: a name for the first argument, for the text of the error.

    Raises:
        UsageError: the function has another parameter without a default, or its second one is not the Context.
    """
    code = function.__code__ if type(function) is FunctionType and not vars(function) else None
    if code is not None and (code.co_argcount, code.co_kwonlyargcount) == (1, 0):
        return  # the usual function: inspect.signature and its annotations take 0.1 ms of every cold start
    if hints is None:
        try:
            hints = typing.get_type_hints(function)
        except (NameError, TypeError):  # a type that only a type checker imports, or a partial
            hints = getattr(function, "__annotations__", {})
    parameters = inspect.signature(function).parameters
    names = positional_names(function) or list(parameters)
    surplus = [
        one.name
        for one in parameters.values()
        if one.default is one.empty
        and (one.kind is one.KEYWORD_ONLY or (one.kind in _POSITIONAL and one.name not in names[:2]))
    ]
    title = getattr(function, "__name__", repr(function)[:80])
    meaning = f"It is called with the {first} and, when it has a second parameter, the Context."
    way = "put the value into the payload" if first == "payload" else "let the function find the value itself"
    if surplus:
        raise errors.UsageError(
            f"{title} needs {', '.join(surplus)}, and nothing passes it.",
            meaning=meaning,
            todo=f"{way[:1].upper()}{way[1:]}, or give the parameter a default.",
        )
    second = parameters.get(names[1]) if len(names) > 1 else None
    if second is None:
        return
    if second.name not in hints and second.default is second.empty and second.name.strip("_") not in _CONTEXT_NAMES:
        raise errors.UsageError(
            f"{title} would be given the Context as its second parameter, {second}, which has no annotation.",
            meaning=meaning,
            todo=f"Call it ctx or write {second.name}: onefold.Context, if that is what it is; otherwise {way}.",
        )
    annotation = hints.get(second.name, Any)
    kinds = typing.get_args(annotation) or (annotation,)
    if second.default not in (second.empty, None) or not any(
        kind in (Any, object, Context) or isinstance(kind, str) for kind in kinds
    ):
        raise errors.UsageError(
            f"{title} would be given the Context as its second parameter, {second}.",
            meaning=meaning,
            todo="Annotate it as onefold.Context, or make it keyword-only with a default.",
        )
