"""The option values of a declaration: retries, dead letters, throttles, a declared queue; and the settings of workers.

The values are plain and frozen. They are checked where they are used (`runner/declaring.py`), because only that code
knows what they must be compatible with. Their names are checked here, and `checked_options` checks those of the
functions that declare. Never here: behaviour. Invariant: equal options mean equal jobs.
Private: may change with any release.
"""

from __future__ import annotations

import functools
import string
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

_APP_CHARS_MAX: Final = 40
_APP_SIGNS: Final = frozenset(string.ascii_letters + string.digits + "_-")


def _refuse_unknown(given: Iterable[str], known: Sequence[str], what: str) -> None:
    for name in given:
        if name not in known:
            import difflib  # only for the hint; a cold start should not wait for it

            near = ["tz"] if "zone" in name and "tz" in known else difflib.get_close_matches(name, known, n=1)
            raise errors.UsageError(
                f"{what} has no option {name!r}.",
                todo=f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(known)}.",
            )


def check_choice(value: object, allowed: Sequence[str], what: str) -> None:
    """Refuse a value that is not among those allowed; the error names the one that was probably meant.

    Raises:
        UsageError: the value is not allowed.
    """
    if value not in allowed:
        from difflib import get_close_matches  # loaded only after a misspelling

        near = get_close_matches(str(value), allowed, n=1)
        raise errors.UsageError(
            f"{what}={value!r} is not known.",
            todo=f"Did you mean {near[0]!r}?" if near else f"It is one of {', '.join(allowed)}.",
        )


def check_whole(value: object, what: str, least: int, most: int | None = None) -> None:
    """Refuse a value that is not a whole number from `least` to `most`, inclusive; None: no upper bound.

    Raises:
        UsageError: the value is out of range, or not a whole number.
    """
    if type(value) is int and least <= value and (most is None or value <= most):
        return
    raise errors.UsageError(
        f"{what}={value!r:.80} is {'out of range' if type(value) is int else 'not a whole number'}.",
        todo=f"It may be {least} or more." if most is None else f"It may be {least} to {most:,}.",
    )


def checked_options(function: Callable[A, R]) -> Callable[A, R]:
    """A function or method whose errors about unknown and missing options say what to write instead.

    Raises (when the function is called):
        UsageError: an option is unknown or missing, or a decorator has no parentheses.
    """
    code: Any = function.__code__  # inspect.signature would add 0.1 ms to every import
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
    """Refuse a name or owner that is not a text, and a `unique` that is neither True nor False."""
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
    """Raise a UsageError if a TypeError came from the arguments of the call itself: one is missing, or one too many.

    Args:
        args, kwargs: those of the call. selfs: how many of `args` the user did not write: 1 for a method, whose first
            is `self`.
    """
    import inspect  # needed only for the text of an error

    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as misfit:
        required = [one.name for one in signature.parameters.values() if one.default is one.empty][selfs:]
        example = ", ".join(f"{one}=..." if one not in ("queue", "source", "target", "of") else one for one in required)
        if len(args) == selfs + 1 and inspect.isroutine(args[selfs]) and not kwargs:
            raise errors.UsageError(
                f"@{name} of {args[selfs].__name__} has no parentheses.",
                meaning="The function itself was passed as the first option.",
                todo=f"Write @{name}({example}) above it.",
            ) from None
        raise errors.UsageError(
            f"{name}() was called incorrectly: {misfit}.", todo=f"Write {name}({example}); everything else is optional."
        ) from error


def warn_of_attempts(owner: str) -> None:
    """Warn that `attempts`, the old name of a count of retries, was used in the line that called the caller."""
    text = f"attempts of {owner} is now called retries, because it counts them; version 1.0 removes the old name."
    warnings.warn(text, DeprecationWarning, stacklevel=3)


class Checked(StructMeta):
    """A metaclass that does for classes of options what `checked_options` does for functions."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - in a metaclass
        """Make an instance, unless it is given an option that the class does not have."""
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
    """Refuse an option that is not of the right class below; the error says what to write instead.

    Args:
        value: what the user passed. kind: the class. what: the option's name.
        field: the field of the class that a bare number or text was probably meant for. example: a value for that
            field.

    Raises:
        UsageError: the value is something else, for example a bare number.
    """
    if isinstance(value, kind):
        return
    meant = value if type(value) is type(example) else example
    raise errors.UsageError(
        f"{what}={value!r:.80} is not {'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}.",
        todo=f"Write {what}=onefold.{_ROOMS.get(kind.__name__, '')}{kind.__name__}({field}={meant!r:.80}).",
    )


class Retry(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """How often and how soon a run that failed temporarily is tried again.

    Args:
        attempts: runs in all, including the first one; 1 means no retry.
        base, factor, cap: the pause before attempt n+1 is base x factor^(n-1), at most cap.
        jitter: `full` (anything from 0 to the pause), `half` (+-50 %), `none`.
        crashes: how many runs may end with their worker process before the operation is quarantined.
    """

    attempts: int = 5
    base: Duration = "1s"
    factor: float = 2.0
    cap: Duration = "15m"
    jitter: Jitter = "full"
    crashes: int = 3


class DeadLetter(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """The queue for messages that could not be handled.

    Args:
        after: the queue's maximum receive count, 1 to 1,000; a last resort, since onefold itself decides earlier.
        retention: how long dead letters stay, at most 14 days; longer than the source queue's.
        name: by default `<queue>-dead`.
    """

    after: int = 10
    retention: Duration = "14d"
    name: str | None = None


class AlarmTargets(Struct, frozen=True, kw_only=True):
    """Where an app's alarms are sent, as `App.alarms` checked it; without secrets (see `observe/alarm_targets.py`).

    Args:
        slack, webhook: URLs, or where they are stored: `env:NAME`, `file:/PATH`. email: addresses.
        slack_channel: id of a channel; `slack` then says where the token of a Slack app is stored.
        command: program and arguments. command_env: variables that it gets in addition to the usual ones.
        owner: of things that have no owner of their own.
    """

    slack: str | None = None
    slack_channel: str | None = None
    webhook: str | None = None
    email: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    command_env: tuple[str, ...] = ()
    owner: str | None = None


class Throttle(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """How much of a job may run, counted over all processes on the engine.

    Args:
        rate: starts per time, for example "100/s" or "30/m".
        concurrency: runs at one time, 1 to 1,500.
        per: key rule that divides the limit, for example "{customer}"; None limits the job as a whole.
    """

    rate: str | None = None
    concurrency: int | None = None
    per: str | KeyFunction | None = None


class ItemRetry(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """Which items of a map run are tried again, by the names of errors; the fields are those of Step Functions' Retry.

    Args:
        errors: class names, with or without module; States.ALL (alone and last), States.TaskFailed, States.Timeout.
        interval: pause before the first retry. backoff: factor for each further pause, 1.0 or more.
        retries: how many at most, 0 for none. max_delay: longest pause.
        jitter: `full` draws each pause from 0 to the computed one, `none` keeps that.
    """

    errors: Sequence[str] = ("States.ALL",)
    interval: Duration = "1s"
    backoff: float = 2.0
    retries: int = 3
    max_delay: Duration | None = None
    jitter: Literal["full", "none"] = "none"

    @property
    def attempts(self) -> int:
        """The old name of `retries`, which version 1.0 removes."""
        warn_of_attempts(type(self).__name__)
        return self.retries


class ItemCatch(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """Where items of a map run that failed for good go; a caught item does not count as failed, as in Step Functions.

    Args:
        queue: the operations queue, as `App.queue` returned it. errors: as in `ItemRetry`.
    """

    queue: Queue
    errors: Sequence[str] = ("States.ALL",)


class Function(Struct, frozen=True, kw_only=True, metaclass=Checked):
    """The Lambda function that runs a queue's jobs on AWS. It has no effect elsewhere; the ranges are Lambda's.

    Args:
        memory_mb: 128 to 10,240; CPU is in proportion (1,769 MB are one vCPU).
        timeout: 1 s to 15 min, whole seconds; by default derived from the timeouts of the queue's jobs.
        batch: most messages of one invocation: 1 to 10,000; on FIFO queues, or without a window, 1 to 10.
        window: how long a batch is collected: 0 s to 5 min, whole seconds; not on FIFO queues.
        concurrency: most invocations at one time, 2 to 1,000: as many as the systems that the jobs call can handle.
        runtime: Lambda's name of the Python version. architecture: the architecture of the processor.
        handler: `module.name` of what `app.lambda_handler()` returned; by default `handler` in the app's module.
        environment: variables for the handler. Everyone who may read the function can read them, so put no secrets
            there.
        tracing: sample traces with X-Ray.
        layers: ARNs of at most five layer versions, for example of an extension that collects telemetry.
        reserved: how many concurrent invocations Lambda reserves for this function, which is also its limit; at least
            `concurrency` plus what the map runs on its queue need.
        alias: name of an alias that points to a new version for each deployment; that version is then invoked.
        provisioned: how many containers are kept warm behind the alias.
        ephemeral_mb: size of /tmp, 512 to 10,240.
        json_logs: Lambda writes its log as JSON.
        statements: further permissions of the jobs, as statements of an IAM policy.
        policies: ARNs of managed policies with permissions of the jobs, for example to read a bucket. In both,
            `{account}`, `{region}` and `{partition}` are replaced by the stack's, so that the Python code names none.
        sends_to: names of the queues that the jobs may send to; by default every queue of the app.
        guards: names of `@once` functions that the jobs call with records in the app's own table; with `layout=2` the
            function's role may write those records too.
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
    """A declared queue, made by `App.queue`.

    Attributes:
        settings: the settings of the queue itself. dead_letter, held: settings of its two companions.
        function: the Lambda function that runs its jobs on AWS; None if workers do.
        internal: only onefold in this app can send to it, so its messages are trusted without a signature.
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
    """The settings of a worker.

    Args:
        threads: for plain functions and groups, 1 or more.
        tasks: most coroutines at one time, 1 or more.
        processes: child processes for all jobs except transactional ones; 0 for none.
        prefetch: how many deliveries of one queue can be in the buffer; None: what is done in 20 ms, as measured.
        group_max: runs in one group, 1 or more.
        lease_ms: how long claims and receives last without a heartbeat, 1,000 or more.
        grace_ms: how long a drain waits for runs in progress; None: the longest timeout of any job.
        weights: how often it is a queue's turn, 1 or more; 1 if absent.
        until_empty: drain as soon as the queues are empty and nothing is in flight here or elsewhere. Messages that no
            job here takes, and those that wait behind them in a FIFO group, do not count.
        wait_for_delayed: with until_empty: a queue with delayed messages does not count as empty.
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
        """Refuse settings that cannot work.

        Args:
            queues: names of the queues to work on.

        Raises:
            UsageError: a value is out of range, there is no queue, or a weight is for another queue.
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
"""What a message that is not done blocks: those behind it in its FIFO group, or everything behind it in the batch."""


class LambdaSettings(Struct, frozen=True, kw_only=True):
    """The settings of a Lambda handler.

    Args:
        concurrency: plain functions at one time, 1 or more; 1: in the invoking thread, one after the other. By default as
            many as a mapping's default batch has: runs claimed together are marked as started, so they must start
            together.
        tasks: most coroutines at one time, 1 or more.
        margin_ms: time of an invocation that is reserved for settling; at most half of the invocation.
        on_failure: what a message that is not done blocks; `batch` works on a standard queue too.
        heartbeat: extend leases and visibilities while handlers run, instead of leases that last for the whole invocation.
        raise_for_batch: raise if not one message of a batch is done.
    """

    concurrency: int = 10
    tasks: int = 100
    margin_ms: int = 1_000
    on_failure: OnFailure = "group"
    heartbeat: bool = False
    raise_for_batch: bool = False

    def check(self) -> None:
        """Refuse settings that cannot work.

        Raises:
            UsageError: a value is out of range.
        """
        for name, least in (("concurrency", 1), ("tasks", 1), ("margin_ms", 0)):
            check_whole(getattr(self, name), name, least)
        if self.on_failure not in ("group", "batch"):
            raise errors.UsageError(f"on_failure={self.on_failure!r} is not known.", todo="It is group or batch.")


def check_app(name: object, url: object) -> None:
    """Check what an app is made with.

    Raises:
        UsageError: a name that is none, or an empty text for a URL, which would mean the default file of that folder.
    """
    if not isinstance(name, str) or not 1 <= len(name) <= _APP_CHARS_MAX or not _APP_SIGNS.issuperset(name):
        raise errors.UsageError(
            f"{name!r:.80} is not a valid name for an app.",
            meaning="None comes from a variable of the environment that is not set." if name is None else "",
            todo="Use 1 to 40 of a-z, 0-9, - and _.",
        )
    if url == "":
        raise errors.UsageError(
            f"App({name!r}, url='') names no engine.",
            meaning="An empty text comes from a setting that is not there. The default file in the present folder would"
            " know nothing about earlier work.",
            todo=f"Give the URL, for example sqlite:////var/lib/{name}.db, or leave url= out for the default.",
        )
