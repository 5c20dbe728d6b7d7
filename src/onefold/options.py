"""The option values of a declaration: retries, dead letters, throttles, a declared queue; and the settings of workers.

Plain and frozen. They are checked where they are used (`runner/declaring.py`), because only there is it known what they must
be compatible with. Their names are checked here, and `checked_options` does the same for the functions that declare.
Never here: behaviour. Invariant: equal options mean equal jobs.
Private: may change with any release.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, ParamSpec, TypeVar

from msgspec import Struct, StructMeta

from onefold import errors
from onefold.contracts.settings import QueueSettings
from onefold.duration import Duration
from onefold.record.delivery import Jitter
from onefold.record.keys import KeyFunction

A = ParamSpec("A")
R = TypeVar("R")


def _refuse_unknown(given: Iterable[str], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            import difflib  # only for the hint: a program that starts cold should not wait for it

            near = ["tz"] if "zone" in name and "tz" in known else difflib.get_close_matches(name, known, n=1)
            raise errors.UsageError(
                f"{what} has no option {name!r}.",
                todo=f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(known)}.",
            )


def check_choice(value: object, allowed: Sequence[str], what: str) -> None:
    """Refuse a value that is none of those allowed, with the one that was probably meant.

    Raises:
        UsageError: it is another one.
    """
    if value not in allowed:
        from difflib import get_close_matches  # only a typing error pays for it

        near = get_close_matches(str(value), allowed, n=1)
        raise errors.UsageError(
            f"{what}={value!r} is not known.",
            todo=f"Did you mean {near[0]!r}?" if near else f"It is one of {', '.join(allowed)}.",
        )


def check_whole(value: object, what: str, least: int, most: int | None = None) -> None:
    """Refuse what is not a whole number of a range, both ends included; without `most` it has no upper end.

    Raises:
        UsageError: it is another number, or none.
    """
    if type(value) is int and least <= value and (most is None or value <= most):
        return
    raise errors.UsageError(
        f"{what}={value!r:.80} is {'out of range' if type(value) is int else 'not a whole number'}.",
        todo=f"It may be {least} or more." if most is None else f"It may be {least} to {most:,}.",
    )


def checked_options(function: Callable[A, R]) -> Callable[A, R]:
    """Answer an option that a function or method does not have, or one that is missing, with what to write instead.

    Raises (when the function is called):
        UsageError: an unknown option, a missing one, or a decorator without parentheses.
    """
    code: Any = function.__code__  # inspect.signature would take 0.1 ms of every import
    selfs = int(code.co_varnames[:1] == ("self",))
    known = code.co_varnames[selfs : code.co_argcount + code.co_kwonlyargcount]
    name = function.__qualname__.removesuffix(".__init__").replace("Declarations.", "app.").replace("App.", "app.")
    name = name if selfs else f"onefold.{name}"

    @functools.wraps(function)
    def checked(*args: A.args, **kwargs: A.kwargs) -> R:
        _refuse_unknown(kwargs, known, f"{name}()")
        _check_plain(kwargs, known)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            _explain_call(function, name, selfs, args, kwargs, error)
            raise

    return checked


def _check_plain(kwargs: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse an optional name or owner that is not a text, and a `unique` that is neither True nor False."""
    for what in ("name", "owner") if known[0] != "name" else ("owner",):
        given = kwargs.get(what)
        if given is not None and not isinstance(given, str):
            raise errors.UsageError(f"{what}={given!r:.80} is not a text.", todo=f"Write {what}={str(given)!r:.80}.")
        if given == "":
            raise errors.UsageError(f'{what}="" is empty.', todo=f"Give {what} a text, or leave it out.")
    if type(kwargs.get("unique", False)) is not bool:
        raise errors.UsageError(f"unique={kwargs['unique']!r:.80} is not a boolean.", todo="It is True or False.")


def _explain_call(
    function: Callable[..., Any],
    name: str,
    selfs: int,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    error: TypeError,
) -> None:
    """Raise a UsageError where a TypeError came from the call's own arguments: one is missing, or one too many.

    Args:
        selfs: how many of `args` come before the first that the user wrote: 1 for a method. The rest: the call's.
    """
    import inspect  # only for the text of an error

    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as misfit:
        required = [one.name for one in signature.parameters.values() if one.default is one.empty][selfs:]
        example = ", ".join(f"{one}=..." if one not in ("queue", "source", "target", "of") else one for one in required)
        if len(args) == selfs + 1 and inspect.isroutine(args[selfs]) and not kwargs:
            raise errors.UsageError(
                f"@{name} of {args[selfs].__name__} has no parentheses.",
                meaning="The function itself was taken for the first option.",
                todo=f"Write @{name}({example}) above it.",
            ) from None
        raise errors.UsageError(
            f"{name}() was called wrongly: {misfit}.", todo=f"Write {name}({example}); everything else is optional."
        ) from error


def warn_of_attempts(owner: str) -> None:
    """Say that a count of retries has been used by its old name, in the line that called the caller."""
    text = f"attempts of {owner} is retries now, which it counts; the old name goes with version 1.0."
    warnings.warn(text, DeprecationWarning, stacklevel=3)


class Checked(StructMeta):
    """The same for a class of options, wherever it lives."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - of a metaclass
        """Make one, unless it is given an option that it does not have."""
        if "attempts" in kwargs and "retries" in cls.__struct_fields__:
            warn_of_attempts(cls.__name__)
            kwargs = {"retries" if name == "attempts" else name: value for name, value in kwargs.items()}
        _refuse_unknown(kwargs, cls.__struct_fields__, f"{cls.__name__}()")
        if args:
            raise errors.UsageError(
                f"{cls.__name__}({args[0]!r:.40}) does not say which option it sets.",
                todo=f"Name it, for example {cls.__name__}({cls.__struct_fields__[0]}={args[0]!r:.40}).",
            )
        return super().__call__(**kwargs)


_ROOMS: Final = {
    "Function": "aws.",
    "ItemBatch": "maps.",
    "ItemCatch": "maps.",
    "ItemRetry": "maps.",
    "ScheduleRetry": "schedules.",
}


def check_option(value: object, kind: type[Struct], what: str, field: str, example: object) -> None:
    """Refuse an option that must be a value of one of the classes below, with what to write instead.

    Args:
        value: what the user passed. kind: the class. what: the option's name.
        field: of the class, that a bare number or text was probably meant for. example: a value for that field.

    Raises:
        UsageError: it is something else, for example the bare number.
    """
    if isinstance(value, kind):
        return
    meant = value if type(value) is type(example) else example
    raise errors.UsageError(
        f"{what}={value!r:.80} is not {'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}.",
        todo=f"Write {what}=onefold.{_ROOMS.get(kind.__name__, '')}{kind.__name__}({field}={meant!r:.80}).",
    )


class Retry(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """How often and how soon a run that failed for now is tried again.

    Args:
        attempts: runs in all, the first one included; 1 means no retry.
        base, factor, cap: the pause before attempt n+1 is base x factor^(n-1), at most cap.
        jitter: `full` (anything from 0 to the pause), `half` (+-50 %), `none`.
        crashes: runs that may end with their worker process before the operation is quarantined.
    """

    attempts: int = 5
    base: Duration = "1s"
    factor: float = 2.0
    cap: Duration = "15m"
    jitter: Jitter = "full"
    crashes: int = 3


class DeadLetter(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """The queue for messages that could not be done.

    Args:
        after: the queue's own maximum receive count, 1 to 1,000; the last net, onefold itself decides earlier.
        retention: how long dead letters stay, at most 14 days; longer than the source's.
        name: `<queue>-dead` unless given.
    """

    after: int = 10
    retention: Duration = "14d"
    name: str | None = None


class AlarmTargets(Struct, frozen=True, kw_only=True):
    """Where an app's alarms are sent, as `App.alarms` checked it. No secret is in it: see `observe/alarm_targets.py`.

    Args:
        slack, webhook: URLs, or where they are: `env:NAME`, `file:/PATH`. email: addresses. command: its words.
        command_env: the variables that it gets beside the usual ones. owner: of what has no owner of its own.
    """

    slack: str | None = None
    webhook: str | None = None
    email: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    command_env: tuple[str, ...] = ()
    owner: str | None = None


class Throttle(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """How much of a job may happen, counted over all processes on the engine.

    Args:
        rate: starts per time, for example "100/s" or "30/m".
        concurrency: runs at one time, 1 to 1,500.
        per: key rule that divides the limit, for example "{customer}"; None limits the job as a whole.
    """

    rate: str | None = None
    concurrency: int | None = None
    per: str | KeyFunction | None = None


class ItemRetry(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """Which items of a map run are tried again, by the names of errors; the fields are Step Functions' Retry's.

    Args:
        errors: class names, with or without module; States.ALL (alone and last), States.TaskFailed, States.Timeout.
        interval: before the first retry. backoff: growth of each pause, 1.0 or more.
        retries: at most so many, 0 for never. max_delay: longest pause.
        jitter: `full` draws from 0 to the pause, `none` keeps it.
    """

    errors: Sequence[str] = ("States.ALL",)
    interval: Duration = "1s"
    backoff: float = 2.0
    retries: int = 3
    max_delay: Duration | None = None
    jitter: Literal["full", "none"] = "none"

    @property
    def attempts(self) -> int:
        """The old name of `retries`; it goes with version 1.0."""
        warn_of_attempts(type(self).__name__)
        return self.retries


class ItemCatch(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """Where a map run's items go that failed for good; a caught item does not count as failed, as in Step Functions.

    Args:
        queue: the operations queue, as `App.queue` returned it. errors: as `ItemRetry`'s.
    """

    queue: Queue
    errors: Sequence[str] = ("States.ALL",)


class Function(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """The Lambda function that runs a queue's jobs on AWS. Nothing of it matters elsewhere; ranges are Lambda's.

    Args:
        memory_mb: 128 to 10,240; CPU comes in proportion (1,769 MB are one vCPU).
        timeout: 1 s to 15 min, whole seconds; unless given, worked out from the timeouts of the queue's jobs.
        batch: most messages of one invocation: 1 to 10,000; on FIFO queues, or without a window, 1 to 10.
        window: how long a batch is collected: 0 s to 5 min, whole seconds; not on FIFO queues.
        concurrency: most invocations at one time, 2 to 1,000: what the systems that the jobs call can bear.
        runtime: Lambda's name of the Python version. architecture: of the processor.
        handler: `module.name` of what `app.lambda_handler()` returned; unless given, `handler` in the app's module.
        environment: variables for the handler. Everyone who may read the function can read them: no secrets.
        tracing: sample traces with X-Ray.
        layers: ARNs of at most five layer versions, for example of an extension that collects telemetry.
        reserved: invocations that Lambda keeps for this function, and at most so many; at least `concurrency`, and what the
            map runs on its queue have beside it.
        alias: name of an alias that points to a version of its own for each deployment, which is what is invoked then.
        provisioned: containers that are kept warm, behind the alias.
        ephemeral_mb: of /tmp, 512 to 10,240.
        json_logs: Lambda writes its log as JSON.
        statements: more of what the jobs may do, as statements of an IAM policy.
        policies: ARNs of managed policies with what the jobs themselves may do, for example read a bucket. In both,
            `{account}`, `{region}` and `{partition}` stand for those of the stack: no stage is named in Python.
        sends_to: names of the queues that the jobs may send to; any queue of the app unless given.
        guards: names of `@once` functions that the jobs call with records in the app's own table: with `layout=2` the
            function's role may write those records, too.
        subnets, security_groups: ids, to run the function in a VPC.
    """

    memory_mb: int = 512
    timeout: Duration | None = None
    batch: int = 10
    window: Duration = "0s"
    concurrency: int = 10
    runtime: str = "python3.13"
    architecture: Literal["x86_64", "arm64"] = "x86_64"
    handler: str | None = None
    environment: Mapping[str, str] = {}
    tracing: bool = False
    layers: Sequence[str] = ()
    reserved: int | None = None
    alias: str | None = None
    provisioned: int = 0
    ephemeral_mb: int = 512
    json_logs: bool = False
    statements: Sequence[Mapping[str, Any]] = ()
    policies: Sequence[str] = ()
    sends_to: Sequence[str] | None = None
    guards: Sequence[str] = ()
    subnets: Sequence[str] = ()
    security_groups: Sequence[str] = ()

    def __hash__(self) -> int:
        return hash((self.memory_mb, self.timeout, self.batch, self.window, self.concurrency, self.handler))


FUNCTION: Final = Function()


class Queue(Struct, frozen=True):
    """A declared queue. Made by `App.queue`.

    Attributes:
        settings: of the queue itself; `dead_letter` and `held` of its two companions.
        function: that runs its jobs on AWS; None where a worker does.
        internal: only onefold of this app can send to it; what its messages claim counts unsigned.
    """

    settings: QueueSettings
    dead_letter: QueueSettings
    held: QueueSettings
    function: Function | None
    internal: bool = False

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.settings.name


class WorkerSettings(Struct, frozen=True, kw_only=True):
    """What a user may choose.

    Args:
        threads: for plain functions and groups, 1 or more.
        tasks: coroutines at one time, 1 or more.
        processes: child processes for all jobs but transactional ones; 0 for none.
        prefetch: how many deliveries of one queue may lie in the buffer; None: what is done in 20 ms, learned as it goes.
        group_max: runs in one group, 1 or more.
        lease_ms: how long claims and receives hold without a heartbeat, 1,000 or more.
        grace_ms: how long a drain waits for what runs; None: the longest timeout of any job.
        weights: how often a queue's turn comes, 1 or more; 1 where absent.
        until_empty: drain as soon as the queues are empty, nothing is in flight here or elsewhere. Messages that no job here
            takes, and what waits behind them in a FIFO group, count as nothing.
        wait_for_delayed: with until_empty: delayed messages count as not empty.
    """

    threads: int = 8
    tasks: int = 100
    processes: int = 0
    prefetch: int | None = None
    group_max: int = 100
    lease_ms: int = 30_000
    grace_ms: int | None = None
    weights: Mapping[str, int] = {}
    until_empty: bool = False
    wait_for_delayed: bool = True

    def check(self, queues: Collection[str]) -> None:
        """Refuse what cannot be worked with.

        Args:
            queues: names of the queues to work on.

        Raises:
            UsageError: a value out of its range, no queue, a weight for another queue.
        """
        least = {"threads": 1, "tasks": 1, "processes": 0, "group_max": 1, "lease_ms": 1_000}
        for name, low in least.items():
            value = getattr(self, name)
            if value < low:
                raise errors.UsageError(f"{name}={value} is out of range.", todo=f"It is {low} or more.")
        for name, value in (("prefetch", self.prefetch), ("grace_ms", self.grace_ms)):
            if value is not None and value < 0:
                raise errors.UsageError(f"{name}={value} is out of range.", todo="It is 0 or more.")
        if not queues:
            raise errors.UsageError("The worker has no queue.", todo="Declare a queue, or name one that is declared.")
        for name, weight in self.weights.items():
            if weight < 1 or name not in queues:
                raise errors.UsageError(
                    f"weights has {name}={weight}.",
                    todo=f"Name queues of this worker ({', '.join(queues)}), each with 1 or more.",
                )


OnFailure = Literal["group", "batch"]
"""What a message that stays holds up: what is behind it in its FIFO group, or everything behind it in the batch."""


class LambdaSettings(Struct, frozen=True, kw_only=True):
    """What a user may choose about a Lambda handler.

    Args:
        concurrency: plain functions at one time, 1 or more; 1: in the invoking thread, one after the other. By default as
            many as a mapping's default batch has: what is claimed together is marked as started, so it must start together.
        tasks: coroutines at one time, 1 or more.
        margin_ms: kept back of an invocation's time for settling; at most half of that time is.
        on_failure: what a message that stays holds up; `batch` counts on a standard queue too.
        heartbeat: extend leases and visibilities while handlers run, instead of leases that last for the whole invocation.
        raise_for_batch: raise when not one message of a batch is done.
    """

    concurrency: int = 10
    tasks: int = 100
    margin_ms: int = 1_000
    on_failure: OnFailure = "group"
    heartbeat: bool = False
    raise_for_batch: bool = False

    def check(self) -> None:
        """Refuse what cannot be worked with.

        Raises:
            UsageError: a value out of its range.
        """
        for name, least in (("concurrency", 1), ("tasks", 1), ("margin_ms", 0)):
            check_whole(getattr(self, name), name, least)
        if self.on_failure not in ("group", "batch"):
            raise errors.UsageError(f"on_failure={self.on_failure!r} is not known.", todo="It is group or batch.")
