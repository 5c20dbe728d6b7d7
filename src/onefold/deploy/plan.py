"""What an app needs on AWS, derived from its declarations: one frozen `DeployPlan`, from which both writers write.

The parts are put together here: queues and their redrive targets, the table, the alarms; `functions.py` plans
functions, and the sizes that follow from them. Anything that Lambda or SQS would refuse is refused before anything is
uploaded. Never here: CloudFormation, Terraform, AWS calls, the app itself (its queues and jobs are passed in).
Invariant: the same declarations and the same stack give an equal plan, in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, limits
from onefold.contracts.settings import REDRIVE_SOURCES_MAX, QueueSettings
from onefold.deploy import alarms, chat, eventbridge, functions, names, state_machine
from onefold.deploy.alarms import AlarmPlan, CompositePlan, LogCount, Made
from onefold.deploy.chat import SlackPlan
from onefold.deploy.eventbridge import EventsPlan, Scheduling
from onefold.deploy.functions import FunctionPlan, Host
from onefold.deploy.stack import Stack, engine_url
from onefold.deploy.state_machine import MachinePlan
from onefold.engines.aws import queue_attributes
from onefold.events.bus import Bus
from onefold.events.pipes import Pipe
from onefold.maps.jobs import turns_queue
from onefold.maps.rules import MapSpec
from onefold.observe.alarm_targets import QUEUE as ALARMS_QUEUE
from onefold.observe.emf import EMF_VARIABLE, namespace_of
from onefold.options import Queue
from onefold.runner.handlers import Job
from onefold.schedules.schedule import Schedule

Role = Literal["main", "dead", "held"]

APP_TAG: Final = "onefold:app"
OWNER_TAG: Final = "onefold:owner"
_ALARMS_LEFT_OUT: Final = (
    f"app.alarms(...) is for workers, and this app has functions only: the queue {ALARMS_QUEUE} is left out. CloudWatch "
    "evaluates its alarms: give --alarm-topic or --slack."
)


class QueuePlan(Struct, frozen=True, kw_only=True):
    """A queue.

    Args:
        id: part of its logical ids. role: whether it is a main queue or a companion.
        settings: with full names; `dead_letter`, `redrive_allow` and `redrive_sources` are the redrive targets.
        owner: the owner of the jobs on it, if they have one.
    """

    id: str
    role: Role
    settings: QueueSettings
    owner: str | None


class DeployPlan(Struct, frozen=True, kw_only=True):
    """Everything that a deployment makes, each kind sorted by logical id.

    Args:
        app: its name. target: how it is imported, `module:attribute`. stack: the choices for the whole deployment.
        url: the URL of the engine, a pattern like an ARN (see `names.py`).
        table: name of the record table; None if records are kept elsewhere.
        log_counts, alarms, job_alarms: see `alarms.py`. slack: the channel for alarms; see `chat.py`.
        topic: name of the stack's own SNS topic, which alarms notify; None if there is none.
        scheduling: what the schedules need; None if there are none. machines: the state machines of the map
            runs. events: buses, rules, archives, pipes.
        tags: the tags of every resource that can have tags.
        notes: what is declared and AWS does not do, or does differently, a sentence each.
    """

    app: str
    target: str
    stack: Stack
    url: str
    queues: tuple[QueuePlan, ...]
    functions: tuple[FunctionPlan, ...]
    table: str | None
    log_counts: tuple[LogCount, ...]
    alarms: tuple[AlarmPlan, ...]
    job_alarms: tuple[CompositePlan, ...]
    slack: SlackPlan | None
    topic: str | None
    scheduling: Scheduling | None
    machines: tuple[MachinePlan, ...]
    events: EventsPlan
    tags: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The stack's name."""
        return f"{self.stack.prefix}{self.app}"

    @property
    def counts_mapped(self) -> bool:
        """Whether mappings count what happens to messages, which the alarm mapping-dropped needs."""
        return any(one.alarm == "mapping-dropped" for one in self.alarms)

    def tags_of(self, owner: str | None, held: str | None = None) -> dict[str, str]:
        """The tags of one resource, sorted: the common ones, its owner, and a queue's held queue.

        SQS has no attribute for a held queue; the adapter reads it from the tag.
        """
        own = {OWNER_TAG: names.tag_value(owner or ""), queue_attributes.HELD_TAG: held}
        return dict(sorted({**self.tags, **{name: value for name, value in own.items() if value}}.items()))


class AppDeclarations(Struct, frozen=True, kw_only=True):
    """What an app declares.

    Args:
        queues, jobs, schedules, maps, buses, pipes: in any order.
        reconcilers: names of the jobs that reconcile runs.
        logs: whether its events become log lines, as in an app without sinks.
        metrics: the CloudWatch namespace in which one of its sinks writes metrics; None: no sink does.
    """

    queues: Iterable[Queue]
    jobs: Iterable[Job[Any, Any]]
    schedules: Iterable[Schedule] = ()
    maps: Iterable[MapSpec] = ()
    buses: Iterable[Bus] = ()
    pipes: Iterable[Pipe] = ()
    reconcilers: Collection[str] = ()
    logs: bool = True
    metrics: str | None = None


def plan(app: str, target: str, declared: AppDeclarations, stack: Stack) -> DeployPlan:
    """Work out what an app needs.

    Args:
        app: its name. target: `module:attribute`.
        stack: the choices for the whole deployment.

    Raises:
        UsageError: a function's timeout is above 15 min or below a job's, a FIFO queue has a batch window, a name is
            too long with its prefix or given twice, a queue is not declared, or AWS has no equivalent for a schedule or
            map run; in that case nothing is written.
    """
    names.check_prefix(stack.prefix)
    queues = sorted(declared.queues, key=lambda queue: queue.name)
    left_out = _left_out(app, queues, declared)
    queues = [one for one in queues if one.name not in left_out]
    if not queues:
        raise errors.UsageError(f"App {app} declares no queue.", todo="Declare one: app.queue(...).")
    scheduled, maps = list(declared.schedules), list(declared.maps)
    piped = {pipe.source: pipe for pipe in declared.pipes if pipe.enrich is None}  # a function runs the others
    jobs = [job for job in declared.jobs if job.policy.queue not in left_out]
    by_name = sorted(jobs, key=lambda one: one.name)
    on_queue = {queue.name: [job for job in by_name if job.policy.queue == queue.name] for queue in queues}
    stack = replace(stack, table=None if stack.records else (stack.table or f"{stack.prefix}{app}"))
    late_dead = _late_dead(app, queues, stack)
    url = engine_url(stack, eventbridge.schedule_group(app, stack), late_dead.settings.name if late_dead else None)
    host = Host(
        app=app,
        target=target,
        stack=stack,
        url=url,
        queues=tuple(queue.name for queue in queues),
        graves=tuple(one.name for queue in queues for one in (queue.dead_letter, queue.held)),
        reconcilers=frozenset(declared.reconcilers),
        unique=tuple((job.policy.queue, name) for job in jobs if job.unique for name in job.names),
        buses=tuple(eventbridge.full_name(bus.name, stack.prefix) for bus in declared.buses),
    )
    made = [
        functions.planned(host, queue, queue.function, on_queue[queue.name])
        for queue in queues
        if queue.function is not None and on_queue[queue.name] and queue.name not in piped
    ]
    by_queue = {one.queue_id: one for one in made}
    machines = state_machine.planned(app, maps, stack, by_queue)
    planned = _queues(stack.prefix, queues, on_queue, by_queue) + ([late_dead] if late_dead else [])
    scheduling = eventbridge.planned_schedules(app, scheduled, stack, {queue.name: queue.settings for queue in queues})
    events = eventbridge.planned_events(
        list(declared.buses), [piped[one.name] for one in queues if one.name in piped and one.function], stack
    )
    counts, possible = _alarms(
        planned, on_queue, made, machines, scheduling, scheduled, target, stack.table, declared.reconcilers, events
    )
    possible += _of_metrics(app, declared.metrics, planned, on_queue, by_queue, target)
    counts, found = alarms.wanted(stack.alarms, counts, possible)
    _check_together(made, machines, events)
    return DeployPlan(
        app=app,
        target=target,
        stack=stack,
        url=url,
        queues=names.by_id(planned),
        functions=names.by_id(made),
        table=stack.table,
        log_counts=names.by_id(counts),
        alarms=names.by_id(found),
        job_alarms=names.by_id(
            alarms.composites(f"{stack.prefix}{app}-", found, target) if stack.alarms == "jobs" else ()
        ),
        slack=chat.planned(app, stack),
        topic=chat.topic(app, stack),
        scheduling=scheduling,
        machines=names.by_id(machines),
        events=events,
        tags=dict(sorted({**stack.tags, APP_TAG: app}.items())),
        notes=(
            *functions.notes(made, queues),
            *eventbridge.schedule_notes(scheduled),
            *state_machine.notes(maps, by_queue),
            *_notes(app, stack, declared, counts, left_out),
        ),
    )


def _notes(
    app: str, stack: Stack, declared: AppDeclarations, counts: Sequence[LogCount], left_out: Mapping[str, str]
) -> list[str]:
    """Notes on logs, queues that are left out, and the prefix."""
    return [
        *([] if declared.logs else alarms.notes(counts)),
        *left_out.values(),
        *_shared_prefix(app, stack.prefix, declared.reconcilers),
    ]


def _check_together(made: Sequence[FunctionPlan], machines: Sequence[MachinePlan], events: EventsPlan) -> None:
    """Refuse functions that cannot share one zip, and two things of one kind with the same name."""
    _check_platforms(made)
    names.check_apart("function", (one.name for one in made))
    names.check_apart("state machine", (one.name for one in machines))
    names.check_apart("rule", (one.arn for one in events.rules))
    names.check_apart("archive", (one.name for one in events.archives))


def _check_platforms(made: Sequence[FunctionPlan]) -> None:
    """Refuse functions that cannot share one zip."""
    platforms = sorted({(one.runtime, one.architecture) for one in made})
    if len(platforms) > 1:
        raise errors.UsageError(
            "The app's functions have different platforms: "
            + ", ".join(f"{runtime} on {architecture}" for runtime, architecture in platforms) + ".",
            meaning="They share one package, whose dependencies are built for one.",
            todo="Give all of them the same runtime and architecture.",
        )  # fmt: skip


def _left_out(app: str, queues: Iterable[Queue], declared: AppDeclarations) -> dict[str, str]:
    """The queues that only workers use, with a note on each, if no worker runs any of the app's jobs."""
    turns = turns_queue(app)
    with_jobs = {one.policy.queue for one in declared.jobs} - {ALARMS_QUEUE, turns}
    if any(one.function is None for one in queues if one.name in with_jobs):
        return {}
    found = {ALARMS_QUEUE: _ALARMS_LEFT_OUT}
    if all(state_machine.is_in_s3(one) for one in declared.maps):
        found[turns] = (
            f"Step Functions drives every map run, and this app has functions only: the queue {turns}, by which workers do,"
            " is left out."
        )
    return {one.name: found[one.name] for one in queues if one.name in found}


def _shared_prefix(app: str, prefix: str, reconcilers: Collection[str]) -> list[str]:
    """Notes on reading dead-letter queues, in case other apps use the same prefix."""
    if not reconcilers or app in prefix:
        return []
    which = f"that begins with {prefix}" if prefix else "of the region"
    said = f"Reconciliations look into each dead-letter and held queue {which}, and fail at another app's."
    return [f"{said} If there are such queues, give this app a prefix of its own: --prefix {prefix}{app}-"]


# -- queues ----------------------------------------------------------------------------------------------------------


def _queues(
    prefix: str,
    declared: Sequence[Queue],
    on_queue: Mapping[str, Sequence[Job[Any, Any]]],
    served: Mapping[str, FunctionPlan],
) -> list[QueuePlan]:
    """The declared queues and their companions; a dead-letter queue that several queues share is listed once."""
    planned: dict[str, QueuePlan] = {}
    sources: dict[str, list[str]] = {}
    for queue in declared:
        sources.setdefault(queue.dead_letter.name, []).append(queue.name)
    for queue in declared:
        function = served.get(names.logical_id(queue.name))
        settings = queue.settings
        if function is not None:
            settings = replace(settings, visibility_ms=function.visibility_ms)
        owner = functions.owner_of(on_queue[queue.name])
        sharers = sources[queue.dead_letter.name]
        owners = functions.owner_of([job for name in sharers for job in on_queue[name]])
        dead = replace(queue.dead_letter, redrive_allow="byQueue", redrive_sources=tuple(sharers))
        parts: tuple[tuple[Role, QueueSettings], ...] = (
            ("main", replace(settings, redrive_allow="denyAll")),
            ("dead", dead),
            ("held", replace(queue.held, redrive_allow="denyAll")),
        )
        for role, one in parts:
            made = QueuePlan(
                id=names.logical_id(one.name),
                role=role,
                settings=_prefixed(one, prefix, queue.name),
                owner=owners if role == "dead" else owner,
            )
            if planned.setdefault(one.name, made) != made:
                raise errors.UsageError(
                    f"Queue {one.name} is declared in two ways, the second time with {queue.name}.",
                    meaning="Queues can share a dead-letter queue if they agree on its settings, and no other queue.",
                    todo="Give DeadLetter(...) the same retention everywhere, or another name.",
                )
    return list(planned.values())


def _late_dead(app: str, queues: Iterable[Queue], stack: Stack) -> QueuePlan | None:
    """The queue for late messages of FIFO queues that EventBridge Scheduler could not deliver; None if not needed."""
    if not stack.later or not any(one.settings.fifo for one in queues):
        return None
    name = f"{app}-late-dead"
    settings = QueueSettings(name=name, retention_ms=limits.RETENTION_MS_MAX, redrive_allow="denyAll")
    return QueuePlan(
        id=names.logical_id(name), role="dead", settings=_prefixed(settings, stack.prefix, name), owner=None
    )


def _prefixed(settings: QueueSettings, prefix: str, source: str) -> QueueSettings:
    """The settings with full names; refuses what AWS would refuse."""
    found = replace(
        settings,
        name=prefix + settings.name,
        dead_letter=prefix + settings.dead_letter if settings.dead_letter is not None else None,
        held=prefix + settings.held if settings.held is not None else None,
        redrive_sources=tuple(sorted(prefix + name for name in settings.redrive_sources)),
    )
    names.check_length(found.name, limits.QUEUE_NAME_CHARS_MAX, f"Queue {settings.name}")
    if len(found.redrive_sources) > REDRIVE_SOURCES_MAX:
        raise errors.UsageError(
            f"{len(found.redrive_sources)} queues share the dead-letter queue {settings.name}.",
            meaning=f"SQS lets a dead-letter queue name at most {REDRIVE_SOURCES_MAX} sources.",
            todo=f"Give {source} and others a dead-letter queue of their own.",
        )
    queue_attributes.check(found)
    return found


# -- alarms ----------------------------------------------------------------------------------------------------------


def _alarms(
    queues: Sequence[QueuePlan],
    on_queue: Mapping[str, Sequence[Job[Any, Any]]],
    made: Sequence[FunctionPlan],
    machines: Sequence[MachinePlan],
    scheduling: Scheduling | None,
    schedules: Sequence[Schedule],
    target: str,
    table: str | None,
    reconcilers: Collection[str],
    events: EventsPlan,
) -> tuple[list[LogCount], list[AlarmPlan]]:
    """All possible alarms of an app, from which a deployment takes some."""
    counts: list[LogCount] = []
    found: list[AlarmPlan] = []
    main = {one.settings.name: one for one in queues if one.role == "main"}
    by_id = {names.logical_id(name): (name, jobs) for name, jobs in on_queue.items()}
    jobs_of = {full: tuple(job.name for job in by_id[one.id][1]) for full, one in main.items()}

    def about(part: str, resource: str, subject: str, owner: str | None, jobs: Iterable[str] = ()) -> Made:
        jobs = tuple(sorted(set(jobs)))
        return Made(part=part, resource=resource, subject=subject, target=target, owner=owner, jobs=jobs)

    for queue in queues:
        name = queue.settings.name
        if queue.role == "main":
            own = by_id[queue.id][1]
            found += alarms.of_queue(
                about(queue.id, name, by_id[queue.id][0], queue.owner, jobs_of[name]), queue.settings,
                timeout_ms=max((job.policy.timeout_ms for job in own), default=0),
                grouped=any(job.rules.group is not None for job in own),
            )  # fmt: skip
        elif queue.role == "dead":
            sources = [one for one in main.values() if one.settings.dead_letter == name]
            jobs = [job for one in sources for job in jobs_of[one.settings.name]]
            retention_ms = max((one.settings.retention_ms for one in sources), default=0)
            made_of = about(queue.id, name, name, queue.owner, jobs)
            found += alarms.of_dead(made_of, queue.settings, source_retention_ms=retention_ms)
        else:
            jobs = [job for one in main.values() if one.settings.held == name for job in jobs_of[one.settings.name]]
            found += alarms.of_held(about(queue.id, name, name, queue.owner, jobs), name)
    for function in made:
        subject = about(function.id, function.name, function.name, function.owner, function.jobs)
        found += alarms.of_function(subject, function)
        reconciles = not set(reconcilers).isdisjoint(function.jobs)
        more_counts, more = alarms.of_log(subject, function, reconciles=reconciles)
        counts += more_counts
        found += more
    for machine in machines:
        found += alarms.of_map(about(machine.id, machine.name, machine.name, machine.owner), machine.name)
    buses = {bus.id: bus.name for bus in events.buses}
    for rule in events.rules:
        bus = None if rule.bus_id is None else buses[rule.bus_id]
        full = rule.name if bus is None else f"{bus}-{rule.name}"
        found.append(alarms.of_rule(about(f"{rule.id}Rule", f"{full}-rule", rule.name, None), rule.name, bus))
    if scheduling is not None:
        group = scheduling.group
        timings = [one.timing for one in schedules]
        found += alarms.of_schedules(about("Schedules", group, group, None), group, timings)
    if table is not None:
        found.append(alarms.of_table(about("Records", table, table, None), table))
    return counts, found


def _of_metrics(
    app: str,
    own: str | None,
    queues: Sequence[QueuePlan],
    on_queue: Mapping[str, Sequence[Job[Any, Any]]],
    served: Mapping[str, FunctionPlan],
    target: str,
) -> list[AlarmPlan]:
    """Alarms on onefold's own metrics, for those jobs whose metrics are written.

    Args:
        own: the namespace of the app's own sink, if it has one.
    """
    found: list[AlarmPlan] = []
    ids = {names.logical_id(name): name for name in on_queue}
    for queue in queues:
        function = served.get(queue.id)
        is_on = function is not None and function.settings.env.get(EMF_VARIABLE) == "on"
        namespace = own or (namespace_of(app) if is_on else None)
        if queue.role == "main" and namespace is not None:
            name = ids[queue.id]
            for job in on_queue[name]:
                made = Made(
                    part=queue.id, resource=queue.settings.name, subject=name, target=target, owner=job.policy.owner,
                    jobs=(job.name,),
                )  # fmt: skip
                found.append(alarms.of_receives(made, namespace, job.name, name))
    return found
