"""Plans the function of one queue: its timeout, the queue's visibility that follows from it, its mapping and role.

    visibility   at least six times the timeout, plus the batch window (Lambda developer guide, "Creating and configuring an
                 SQS event source mapping")
    timeout      as chosen; by default twice that of the longest job. A run starts only while its job's whole timeout is
                 left (`runner/lambda_invocation.py`), so an invocation of several messages needs more time than that,
                 or the later messages would be released again and again

Never here: queues alone, how a writer writes a function.
Invariant: Lambda accepts every planned function, and the function's timeout can cut off none of its jobs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from onefold import duration, errors, limits
from onefold.deploy import iam, names
from onefold.deploy.effects import check_effects
from onefold.deploy.eventbridge import ROLE_ID, schedule_group
from onefold.deploy.stack import Stack
from onefold.local.settings import (
    TIMEOUT_MS_MAX,
    VISIBILITY_FACTOR,
    FunctionSettings,
    MappingSettings,
    check_function,
    check_mapping,
)
from onefold.options import Function, LambdaSettings, Queue, check_whole
from onefold.runner.handlers import Job

ROOM_FACTOR: Final = 2
FINISH_MS: Final = 10 * limits.SECOND_MS  # our value: for the records and the answer of a batch
MARGIN_MS: Final = LambdaSettings().margin_ms  # what `App.lambda_handler` reserves by default
URL_VARIABLE: Final = "ONEFOLD_URL"
NAME_CHARS_MAX: Final = 64  # Lambda API, CreateFunction, FunctionName
RUNTIMES: Final = ("python3.11", "python3.12", "python3.13", "python3.14")  # Lambda developer guide, "Lambda runtimes"
ARCHITECTURES: Final = ("x86_64", "arm64")  # Lambda API, Architectures

LAYERS_MAX: Final = 5  # Lambda quotas: layers of a function
EPHEMERAL_MB: Final = (512, 10_240)  # Lambda API, EphemeralStorage
_ALIAS: Final = re.compile(r"(?!\d{1,128}$)[A-Za-z0-9_-]{1,128}")  # Lambda API, CreateAlias, Name
_FORMS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "policies": (
        re.compile(r"arn:([a-z-]+|\{partition\}):iam::(aws|\d{12}|\{account\}):policy/[\w+=,.@/-]+"),
        "arn:{partition}:iam::{account}:policy/mine",
    ),
    "layers": (
        re.compile(r"arn:[a-z-]+:lambda:[a-z0-9-]+:\d{12}:layer:[A-Za-z0-9_-]+:\d+"),
        "arn:aws:lambda:eu-west-1:901920570463:layer:aws-otel-python-amd64-ver-1-32-0:2",
    ),
    "subnets": (re.compile(r"subnet-[0-9a-f]+"), "subnet-0123456789abcdef0"),
    "security_groups": (re.compile(r"sg-[0-9a-f]+"), "sg-0123456789abcdef0"),
}


class Host(Struct, frozen=True, kw_only=True):
    """What all functions of an app share.

    Args:
        app: its name. target: how it is imported, `module:attribute`.
        stack: the choices of the deployment. url: the URL of the engine, a pattern (see `names.py`).
        queues: names of all declared queues. graves: their dead-letter and held queues.
        reconcilers: names of the jobs that reconcile runs. buses: full names of the event buses.
        unique: queue and name of each job with unique sends, for which the sender claims the record.
    """

    app: str
    target: str
    stack: Stack
    url: str
    queues: tuple[str, ...]
    graves: tuple[str, ...] = ()
    reconcilers: frozenset[str] = frozenset()
    buses: tuple[str, ...] = ()
    unique: tuple[tuple[str, str], ...] = ()


class FunctionPlan(Struct, frozen=True, kw_only=True):
    """A function with its mapping, role and log group.

    Args:
        id: part of its logical ids. settings, mapping: as Lambda gets them.
        runtime, architecture: of Python and the processor.
        queue_id: id of the queue whose messages it handles. fifo, visibility_ms: those of that queue.
        jobs: the jobs that run in it, sorted. owner: the owner of these, if they have one.
        log_group: its name. statements: the statements of its role. policies: ARNs of further managed policies.
        subnets, security_groups: those of its VPC, if any.
        options: as declared, for values that a template takes unchanged.
    """

    id: str
    settings: FunctionSettings
    mapping: MappingSettings
    runtime: str
    architecture: str
    queue_id: str
    fifo: bool
    visibility_ms: int
    jobs: tuple[str, ...]
    owner: str | None
    log_group: str
    statements: tuple[iam.Statement, ...]
    policies: tuple[str, ...]
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    options: Function

    @property
    def name(self) -> str:
        """The function's name."""
        return self.settings.name

    @property
    def role_id(self) -> str:
        """The id of its role, like `iam.RolePlan.id`; never that of a service role, whatever the queue is called."""
        return f"{self.id}Function"


def notes(made: Sequence[FunctionPlan], queues: Sequence[Queue]) -> list[str]:
    """Notes on declared visibility timeouts that are too short for the function and are not used."""
    declared = {names.logical_id(queue.name): queue for queue in queues}
    found = []
    for one in made:
        queue = declared[one.queue_id]
        chosen_ms = queue.settings.visibility_ms
        if chosen_ms not in (limits.VISIBILITY_MS_DEFAULT, one.visibility_ms):
            found.append(
                f"Queue {queue.name} is declared with visibility {duration.to_text(chosen_ms)} and gets"
                f" {duration.to_text(one.visibility_ms)}: {VISIBILITY_FACTOR} times its function's timeout of"
                f" {duration.to_text(one.settings.timeout_ms)}, and the batch window. With less, a message comes back while"
                " the function still has it."
            )
    return found


def planned(host: Host, queue: Queue, options: Function, jobs: Sequence[Job[Any, Any]]) -> FunctionPlan:
    """The function that runs a queue's jobs.

    Args:
        options: as declared. jobs: the jobs of the queue, at least one, sorted.

    Raises:
        UsageError: Lambda would refuse an option, a timeout is over 15 min or below a job's, or a queue is unknown.
    """
    try:
        return _planned(host, queue, options, jobs)
    except errors.UsageError as error:
        raise errors.UsageError(
            f"The function of queue {queue.name}: {error.what}", meaning=error.meaning, todo=error.todo
        ) from None


def owner_of(jobs: Sequence[Job[Any, Any]]) -> str | None:
    """The owners of jobs, as text; None if no job has one."""
    return " + ".join(sorted({job.policy.owner for job in jobs if job.policy.owner is not None})) or None


def _planned(host: Host, queue: Queue, options: Function, jobs: Sequence[Job[Any, Any]]) -> FunctionPlan:
    _check_options(options)
    prefix = host.stack.prefix
    name = f"{prefix}{host.app}-{queue.name.replace('.', '-')}"
    names.check_length(name, NAME_CHARS_MAX, "It")
    timeout_ms = _timeout_ms(options, jobs)
    window_ms = duration.to_ms(options.window, "window")
    visibility_ms = max(queue.settings.visibility_ms, VISIBILITY_FACTOR * timeout_ms + window_ms)
    settings = FunctionSettings(
        name=name,
        handler=options.handler or f"{host.target.partition(':')[0]}.handler",
        code_dir=".",
        timeout_ms=timeout_ms,
        memory_mib=options.memory_mb,
        env={**options.environment, URL_VARIABLE: host.url},
    )
    mapping = MappingSettings(
        uuid=queue.name,
        queue=prefix + queue.name,
        function=name,
        batch_size=options.batch,
        window_ms=window_ms,
        concurrency_max=options.concurrency,
        reports_failures=True,
    )
    check_effects(jobs, host.stack.records)
    check_function(settings)
    check_mapping(mapping, fifo=queue.settings.fifo, visibility_ms=visibility_ms, timeout_ms=timeout_ms)
    sends_to = _sends_to(options.sends_to, host.queues)
    written = {name for job in jobs for name in job.names} | {
        job for target, job in host.unique if target in {queue.name, *sends_to}
    }
    uses = iam.Uses(
        queue=mapping.queue,
        companions=(prefix + queue.dead_letter.name, prefix + queue.held.name),
        sends_to=tuple(prefix + one for one in sends_to),
        jobs=tuple(sorted({*written, *options.guards})) if host.stack.layout == 2 else (),
        log_group=f"/aws/lambda/{name}",
        table=host.stack.table,
        payloads=host.stack.payloads,
        kms_key=host.stack.kms_key,
        network=bool(options.subnets),
        tracing=options.tracing,
        buses=host.buses,
        late_group=schedule_group(host.app, host.stack) if host.stack.later else None,
        late_role=f"{{role_arn.{ROLE_ID}}}",
        graves=()
        if host.reconcilers.isdisjoint(job.name for job in jobs)
        else tuple(prefix + one for one in host.graves),
    )
    return FunctionPlan(
        id=names.logical_id(queue.name),
        settings=settings,
        mapping=mapping,
        runtime=options.runtime,
        architecture=options.architecture,
        queue_id=names.logical_id(queue.name),
        fifo=queue.settings.fifo,
        visibility_ms=visibility_ms,
        jobs=tuple(job.name for job in jobs),
        owner=owner_of(jobs),
        log_group=uses.log_group,
        statements=iam.statements(uses),
        policies=tuple(sorted(options.policies)),
        subnets=tuple(sorted(options.subnets)),
        security_groups=tuple(sorted(options.security_groups)),
        options=options,
    )


def _timeout_ms(options: Function, jobs: Sequence[Job[Any, Any]]) -> int:
    """The timeout as chosen, or else derived; whole seconds, and never below a job's."""
    longest = max(jobs, key=lambda job: job.policy.timeout_ms)
    needed_ms = longest.policy.timeout_ms
    if options.timeout is None:
        room_ms = ROOM_FACTOR * needed_ms if options.batch > 1 else needed_ms
        wanted_ms = max(needed_ms + FINISH_MS, min(room_ms + FINISH_MS, TIMEOUT_MS_MAX))
        found_ms = -(-wanted_ms // limits.SECOND_MS) * limits.SECOND_MS
    else:
        found_ms = duration.to_ms(options.timeout, "timeout")
        if found_ms % limits.SECOND_MS:
            raise errors.UsageError(
                f"a timeout of {duration.to_text(found_ms)}.", todo="Lambda counts whole seconds: choose 1s to 15m."
            )
    if found_ms > TIMEOUT_MS_MAX:
        raise errors.UsageError(
            f"it would need a timeout of {duration.to_text(found_ms)} (job {longest.name}: {duration.to_text(needed_ms)}).",
            meaning="Lambda ends every invocation after 15 minutes at the latest.",
            todo=f"Give the job a timeout of at most {duration.to_text(TIMEOUT_MS_MAX - FINISH_MS)}, or let a worker run the"
            " queue: app.queue(..., function=None).",
        )
    if found_ms < needed_ms + MARGIN_MS:
        raise errors.UsageError(
            f"its timeout is {duration.to_text(found_ms)}, that of its job {longest.name} {duration.to_text(needed_ms)}.",
            meaning="Lambda would end the run midway, and it would not be known whether its effect happened.",
            todo=f"Lower the job's timeout, or raise the function's to {duration.to_text(needed_ms + FINISH_MS)}.",
        )
    return found_ms


def _sends_to(wanted: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    for name in () if wanted is None else wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise errors.UsageError(
                f"it sends to {name!r}, which is not a queue of the app.",
                todo=f"Did you mean {near[0]!r}?" if near else f"The queues are: {', '.join(known)}.",
            )
    return known if wanted is None else wanted


# -- checking options ------------------------------------------------------------------------------------------------


def _check_options(options: Function) -> None:
    """Refuse values of the wrong type, before they are compared or written to a template."""
    for what in ("memory_mb", "batch", "concurrency"):
        if type(getattr(options, what)) is not int:
            raise errors.UsageError(f"{what}={getattr(options, what)!r}.", todo="It is a whole number.")
    for what, known in (("runtime", RUNTIMES), ("architecture", ARCHITECTURES)):
        if getattr(options, what) not in known:
            raise errors.UsageError(f"{what}={getattr(options, what)!r}.", todo=f"It is one of {', '.join(known)}.")
    for what in ("layers", "policies", "subnets", "security_groups", "sends_to"):
        _check_list(what, getattr(options, what))
    _check_more(options)
    if bool(options.subnets) != bool(options.security_groups):
        raise errors.UsageError(
            "subnets and security_groups go together.", todo="Give both, or neither to stay outside a VPC."
        )
    texts = [*options.environment, *options.environment.values()]
    if not all(isinstance(one, str) for one in texts):
        raise errors.UsageError("its environment has a value that is not text.", todo="Write numbers as text too.")
    if URL_VARIABLE in options.environment:
        raise errors.UsageError(
            f"{URL_VARIABLE} is in its environment.",
            meaning="It selects the function's engine, which is created here.",
            todo="Leave it out; choose prefix, table and payloads for the whole app.",
        )


def _check_more(options: Function) -> None:
    """Refuse values of the less common options that Lambda or IAM would refuse."""
    for what in ("tracing", "json_logs"):
        if type(getattr(options, what)) is not bool:
            raise errors.UsageError(f"{what}={getattr(options, what)!r}.", todo="It is True or False.")
    check_whole(options.ephemeral_mb, "ephemeral_mb", *EPHEMERAL_MB)
    check_whole(options.provisioned, "provisioned", 0)
    if options.reserved is not None:
        check_whole(options.reserved, "reserved", 1)
        if options.reserved < options.concurrency:
            raise errors.UsageError(
                f"it reserves {options.reserved} invocations, and its queue's mapping may start {options.concurrency}.",
                meaning="Lambda would refuse the rest, and each refusal uses one receive of its messages.",
                todo=f"Reserve {options.concurrency} or more, or lower concurrency=.",
            )
    if len(options.layers) > LAYERS_MAX:
        raise errors.UsageError(f"{len(options.layers)} layers.", todo=f"Lambda allows at most {LAYERS_MAX}.")
    if options.alias is not None and not _ALIAS.fullmatch(str(options.alias)):
        raise errors.UsageError(f"alias={options.alias!r} cannot be one.", todo="Write for example live.")
    if options.provisioned and options.alias is None:
        raise errors.UsageError(
            "provisioned concurrency without an alias.",
            meaning="Lambda keeps containers of a version, which an alias points to.",
            todo='Add alias="live".',
        )
    for one in options.statements:
        if not {"Effect", "Action", "Resource"} <= set(one):
            raise errors.UsageError(
                f"statements has {one!r:.80}.",
                todo='Write for example {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::mine/*"}.',
            )


def _check_list(what: str, value: object) -> None:
    if value is None and what == "sends_to":
        return
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise errors.UsageError(f"{what}={value!r}.", todo="It is a list of texts.")
    if what not in _FORMS:
        return
    form, example = _FORMS[what]
    wrong = [one for one in value if not form.fullmatch(one)]
    if wrong:
        raise errors.UsageError(f"{what} has {wrong[0]!r}.", todo=f"Write for example {example}.")
