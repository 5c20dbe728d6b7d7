"""What an app costs on AWS: a bill per queue, path and service, computed from its plan and assumed traffic.

Never here: what a message uses (`observe/cost.py`), prices, tables.
Invariant: the total is the sum of the lines shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path as File
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.contracts.ledger import History
from onefold.deploy.plan import DeployPlan
from onefold.observe import cost
from onefold.observe.cost import Path, Prices, Traffic, Usage, Way
from onefold.observe.wording import counted

REGION_DEFAULT: Final = "us-east-1"
PER: Final = 1_000  # costs are given for this many messages


class PathCost(Struct, frozen=True, kw_only=True):
    """One path that a queue's messages take: its share of them, and what a thousand of them use and cost."""

    path: Path
    part: float
    per_thousand: Usage
    usd_per_thousand: Mapping[str, float]
    usd_per_thousand_total: float


class QueueCost(Struct, frozen=True, kw_only=True):
    """One queue.

    Args:
        works: what runs its jobs. messages: how many a month.
        paths: see `PathCost`.
        usd_per_thousand: the cost of a thousand average messages.
        usd_month: the cost of its messages in a month, by service. usd_polls: the cost of a month without messages.
    """

    queue: str
    works: str
    messages: int
    paths: tuple[PathCost, ...]
    usd_per_thousand: float
    usd_month: Mapping[str, float]
    usd_polls: float


class Bill(Struct, frozen=True, kw_only=True):
    """The whole bill, with its assumptions.

    Args:
        region, prices_as_of, prices_note: what the price table says about itself.
        traffic: what was assumed for every queue; a queue's batches may be smaller than its batch.
        alarms, metrics, usd_watch: how many there are, and what they cost in a month.
        usd_month: all queues, their polls, alarms and metrics.
        not_counted: what no figure includes; what the app itself declares comes first.
    """

    app: str
    region: str
    prices_as_of: str
    prices_note: str
    traffic: Traffic
    queues: tuple[QueueCost, ...]
    alarms: int
    metrics: int
    usd_watch: float
    usd_month: float
    not_counted: tuple[str, ...]


def bill(plan: DeployPlan, keeps_ms: Mapping[str, int], history: History, traffic: Traffic, prices: Prices) -> Bill:
    """Work out what an app costs.

    Args:
        plan: the app's plan. keeps_ms: how long the records of a queue's jobs are kept, by the queue's full name.
        history: the app's history level. traffic: what each queue is assumed to receive. prices: those of one region.

    Raises:
        UsageError: a figure of the traffic is out of its range.
    """
    traffic.check()
    queues = tuple(_queue(way, traffic, prices, batch_max) for way, batch_max in ways(plan, keeps_ms, history))
    metrics = len({(one.namespace, one.metric) for one in plan.log_counts})
    measured = sum(len(one.measures) for one in plan.alarms)  # each metric of an alarm is billed
    watch = cost.watch_dollars(measured, metrics, prices)
    return Bill(
        app=plan.app,
        region=prices.region,
        prices_as_of=prices.as_of,
        prices_note=prices.note,
        traffic=traffic,
        queues=queues,
        alarms=len(plan.alarms),
        metrics=metrics,
        usd_watch=watch,
        usd_month=watch + sum(sum(one.usd_month.values()) + one.usd_polls for one in queues),
        not_counted=(*_not_counted(plan), *cost.NOT_COUNTED),
    )


def _not_counted(plan: DeployPlan) -> list[str]:
    """Services that the app uses but for which the price table has no prices."""
    schedules = plan.scheduling.schedules if plan.scheduling is not None else ()
    events = plan.events
    found = (
        (len(schedules), f"EventBridge Scheduler ({counted(len(schedules), 'schedule')})"),
        (plan.stack.later, "EventBridge Scheduler for messages that are due late"),
        (
            len(plan.machines),
            f"Step Functions and its children's invocations and records ({counted(len(plan.machines), 'map run')})",
        ),
        (
            len(events.rules) + len(events.archives),
            f"EventBridge ({counted(len(events.rules), 'rule')} and {counted(len(events.archives), 'archive')})",
        ),
        (len(events.pipes), f"EventBridge Pipes ({counted(len(events.pipes), 'pipe')})"),
    )
    return [what for used, what in found if used]


def read_prices(file: str | None, region: str) -> Prices:
    """The price table that comes with onefold, or the one in a file of the same form.

    Raises:
        NotFoundError: the file or region does not exist. UsageError: the file has another form.
    """
    if file is None:
        return cost.read_prices(files("onefold.observe").joinpath("prices.json").read_bytes(), region)
    try:
        text = File(file).read_bytes()
    except OSError as error:
        raise errors.NotFoundError(f"{file} cannot be read: {error.strerror}.", todo="Correct --prices.") from error
    return cost.read_prices(text, region)


def ways(plan: DeployPlan, keeps_ms: Mapping[str, int], history: History) -> Sequence[tuple[Way, int]]:
    """How the messages of each queue of a plan are processed, with the largest size of its batches."""
    functions = {one.queue_id: one for one in plan.functions}
    found = []
    for queue in plan.queues:
        if queue.role != "main":
            continue
        function = functions.get(queue.id)
        way = Way(
            queue=queue.settings.name,
            fifo=queue.settings.fifo,
            memory_mb=function.settings.memory_mib if function is not None else None,
            architecture=function.architecture if function is not None else "x86_64",
            table=plan.table is not None,
            history=history,
            keep_ms=keeps_ms.get(queue.settings.name, 0),
        )
        found.append((way, function.mapping.batch_size if function is not None else cost.BATCH_MAX))
    return found


def _queue(way: Way, traffic: Traffic, prices: Prices, batch_max: int) -> QueueCost:
    traffic = replace(traffic, batch=min(traffic.batch, batch_max))
    parts: dict[Path, float] = {
        "first": 1 - traffic.duplicates - traffic.retries,
        "duplicate": traffic.duplicates,
        "retry": traffic.retries,
    }
    paths = []
    for path in cost.PATHS:
        used = cost.usage(path, way, traffic).times(PER)
        usd = cost.dollars(used, way, prices)
        paths.append(
            PathCost(
                path=path,
                part=parts[path],
                per_thousand=used,
                usd_per_thousand=usd,
                usd_per_thousand_total=sum(usd.values()),
            )
        )
    month = cost.dollars(cost.mixed(way, traffic).times(traffic.messages), way, prices)
    return QueueCost(
        queue=way.queue,
        works=f"Lambda, {way.memory_mb} MB, {way.architecture}" if way.memory_mb is not None else "workers",
        messages=traffic.messages,
        paths=tuple(paths),
        usd_per_thousand=sum(month.values()) / traffic.messages * PER,
        usd_month=month,
        usd_polls=cost.polls_dollars(way, prices),
    )
