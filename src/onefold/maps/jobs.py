"""A declared map: its `MapSpec`, the job of its items, and the job whose short turns drive its runs.

`App.map` makes these; `maps/mapper.py` performs them on the embedded engine and `onefold synth` reads the spec. An item
is an ordinary message of an ordinary job: its key is `<run>/<key of the item>`, so any worker processes it, once. The
job that drives a run is ordinary too: a turn sends as many items as there is room for, and then the message for the
next turn; if a worker dies during a turn, another one takes the turn over.
Never here: reading files, storage, when a run has failed. Invariant: an item has the same key and payload whichever
process reads it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import duration, errors, limits, payload_errors
from onefold.codec import PayloadCodec, digest, payload_type
from onefold.contracts.entries import check_entry
from onefold.contracts.queue import RUN_ATTRIBUTE, Attribute
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import RecordKey
from onefold.duration import Duration
from onefold.maps.rules import (
    Catcher,
    Format,
    ItemBatch,
    ItemFailures,
    ItemReader,
    MapSpec,
    Retrier,
    Tolerated,
)
from onefold.maps.sources import Item
from onefold.options import DeadLetter, ItemCatch, ItemRetry, Queue, Retry, check_option
from onefold.record.delivery import Effect
from onefold.record.keys import KeyFunction, KeyRule, key_rule
from onefold.runner.context import Context
from onefold.runner.declaring import declare_job, queue_of, types_of
from onefold.runner.handlers import Job
from onefold.runtime.outgoing import Outgoing
from onefold.runtime.runtime import Runtime

CRASHES_MAX: Final = 3  # an item that kills its worker this often is quarantined, as in any job
TURN_RECEIVES: Final = 100  # a turn ends when its worker crashes; the next one continues from the checkpoint
_KEY_SHOWN_CHARS: Final = 100
_ROOM_BYTES: Final = 4_096  # more than a child's attributes need; below this size queues always accept JSON in ASCII


class Still(Struct, frozen=True):
    """Since when a run has made no progress. It is passed from turn to turn, as one turn is too short to see it.

    Args:
        moved_at_ms: when a child last ended or was sent; None if not known.
        empty_at_ms: since when its queue has been empty although children have not ended; None if it is not empty.
    """

    moved_at_ms: int | None = None
    empty_at_ms: int | None = None


class MapTurn(Struct, frozen=True, kw_only=True):
    """The payload of a turn.

    Args:
        run: the run's name. begun_at_ms: when it was started, resumed or redriven. number: the number of the turn since
            then; the first is 1.
        idle: how many turns before this one made no progress. still: since when there has been none.
    """

    run: str
    begun_at_ms: int
    number: int = 1
    idle: int = 0
    still: Still = Still()


class MapJob(Struct, frozen=True, kw_only=True):
    """A declared map. Made by `App.map`; call it with a payload to run its function in a test.

    Attributes:
        spec: the map as the embedded engine and AWS perform it. job: the job of its items. turns: the job that drives
            its runs.
        item: codec of one item. key: rule of one item's key.
        queue: settings of the items' queue. function: the declared function. owner: the team that fixes it.
    """

    spec: MapSpec
    job: Job[Any, Any]
    turns: Job[MapTurn, str]
    item: PayloadCodec[Any]
    key: KeyRule
    queue: QueueSettings
    function: Callable[..., Any]
    owner: str | None

    @property
    def name(self) -> str:
        """The name of the map and its job."""
        return self.spec.name

    def __call__(self, payload: Any, ctx: Context | None = None) -> Any:
        """Call the declared function at once, without guard or queue; for unit tests of it."""
        return self.job(payload, ctx)

    @property
    def shape(self) -> str:
        """A digest of everything that determines the children; if it has changed, a run cannot be resumed."""
        return digest(msgspec.json.encode([self.name, self.spec.reader, self.spec.batch, self.key.text]))

    def payload_of(self, item: Item) -> Any:
        """One item as a value of the declared type; text of a CSV cell becomes a number if the type requires one.

        Raises:
            PayloadError: the item does not fit the type.
        """
        if item.text is not None:
            return self.item.decode(item.text)
        annotation = self.item.annotation
        if annotation is Any:
            return item.value
        try:
            return msgspec.convert(item.value, annotation, strict=False)
        except msgspec.ValidationError as error:
            raise payload_errors.misfit(msgspec.json.encode(item.value), error, self.item.name) from error
        except TypeError:  # a class that msgspec does not know (pydantic) is read from JSON, like a message
            return self.item.decode(msgspec.json.encode(item.value))

    def message(self, run: str, payloads: Sequence[Any], keys: Sequence[str]) -> Outgoing:
        """The message of one child: one item, or a batch of them.

        Args:
            run: the run's name. payloads: the payloads of the child's items. keys: the keys of these items, as the rule
                makes them.

        Raises:
            PayloadError: the payload cannot be written as JSON, the key with the run's name before it is too long, or
                the queue does not accept the message.
        """
        payload = list(payloads) if self.spec.batch is not None else payloads[0]
        outgoing = self.job.outgoing(payload, key=f"{run}/{self.child_key(keys)}")
        attributes = {**outgoing.entry.attributes, RUN_ATTRIBUTE: Attribute(run)}
        found = replace(outgoing, entry=replace(outgoing.entry, attributes=attributes), unique=False)
        body = found.entry.body
        # Only such a message can be refused by a queue.
        if len(body) > self.queue.message_bytes_max - _ROOM_BYTES or not body.isascii():
            refused = check_entry(found.entry, self.queue)
            if refused is not None:
                raise errors.PayloadError(f"Queue {found.queue} does not take it: {refused.message}")
        return found

    def child_key(self, keys: Sequence[str]) -> str:
        """A child's key: that of its item; for a batch, that of the first, how many follow, and a digest."""
        if self.spec.batch is None:
            return keys[0]
        which = digest("\0".join(keys).encode())[:16]
        return f"{keys[0][:_KEY_SHOWN_CHARS]}+{len(keys) - 1}/{which}"

    def record_key(self, run: str, key: str) -> RecordKey:
        """The key of a child's record."""
        return RecordKey("", self.job.name, f"{run}/{key}")


Take = Callable[[Runtime, MapJob, MapTurn, Context], str]
"""A function that drives a run for a while and sends the next turn."""


class Options(Struct, frozen=True, kw_only=True):
    """The options of `App.map` as the user wrote them; see there."""

    key: str | KeyFunction
    name: str | None
    items: Format | ItemReader
    source: str | None
    batch: int | ItemBatch | None
    concurrency: int
    tolerated_count: int | None
    tolerated_percent: float | None
    retry: Sequence[ItemRetry]
    catch: Queue | Sequence[ItemCatch] | None
    effect: Effect
    timeout: Duration
    results: str | None
    owner: str | None


def declare(runtime: Runtime, queue: Queue, given: Options, take: Take) -> Callable[[Callable[..., Any]], MapJob]:
    """Declare a map; see `App.map` for the options and errors.

    Args:
        take: performs a turn (`maps/mapper.py`).
    """
    registry = runtime.registry
    registry.check_own(queue)
    if queue.settings.fifo:
        raise errors.UsageError(
            f"Queue {queue.name} is a FIFO queue.",
            meaning="The items of a map run are independent of one another, and done in any order.",
            todo="Use a standard queue; for work in order, dispatch it (see `App.schedule`).",
        )
    batch = ItemBatch(items_max=given.batch) if type(given.batch) is int else given.batch
    if batch is not None:
        check_option(batch, ItemBatch, "batch", "items_max", 25)
    rules: dict[str, Any] = {
        "reader": given.items if isinstance(given.items, ItemReader) else ItemReader(format=given.items),
        "batch": batch,
        "tolerated": Tolerated(count=given.tolerated_count, percent=given.tolerated_percent),
        "retry": tuple(_retrier(one) for one in _several(given.retry)),
        "catch": _catchers(given.catch),
        "timeout_ms": duration.to_ms(given.timeout, "timeout", least_ms=1, most_ms=limits.VISIBILITY_MS_MAX),
    }

    def declared(function: Callable[..., Any]) -> MapJob:
        name = given.name if given.name is not None else function.__name__
        if name in registry.maps:
            raise errors.ConflictError(f"Map {name} is declared twice.", todo="Give one of them another name=.")
        spec = MapSpec(
            name=name, queue=queue.name, source=given.source, concurrency=given.concurrency, results=given.results,
            **rules,
        )  # fmt: skip
        annotation = _item_type(function, spec)
        rule = key_rule(given.key, annotation, what=f"key of {name}")
        job: Job[Any, Any] = declare_job(
            runtime,
            queue,
            key=_batch_key(rule) if spec.batch is not None else given.key,
            name=name,
            effect=given.effect,
            timeout=given.timeout,
            retry=_runs_of(spec, queue),
            owner=given.owner,
        )(function)
        job.judge_failure = ItemFailures(spec=spec).judge
        turns = registry.add_queue(
            queue_of(turns_queue(registry.name), function=None, dead_letter=DeadLetter(after=TURN_RECEIVES))
        )
        made = registry.maps[name] = MapJob(
            spec=spec,
            job=job,
            turns=_turns(runtime, turns, name, given.owner, take),
            item=payload_type(annotation),
            key=rule,
            queue=queue.settings,
            function=function,
            owner=given.owner,
        )
        return made

    return declared


def turns_queue(app: str) -> str:
    """The name of the queue by which workers drive an app's map runs."""
    return f"{app}-maps"


def _several(given: Any) -> Sequence[Any]:
    """The values of an option that takes several; a single value becomes a list of one."""
    return given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _retrier(one: ItemRetry) -> Retrier:
    check_option(one, ItemRetry, "retry", "retries", 3)
    return Retrier(
        errors=(one.errors,) if isinstance(one.errors, str) else tuple(one.errors),
        interval_ms=duration.to_ms(one.interval, "retry.interval"),
        backoff=one.backoff,
        retries=one.retries,
        max_delay_ms=None if one.max_delay is None else duration.to_ms(one.max_delay, "retry.max_delay"),
        jitter=one.jitter,
    )


def _catchers(given: Queue | Sequence[ItemCatch] | None) -> tuple[Catcher, ...]:
    some = [ItemCatch(queue=given)] if isinstance(given, Queue) else () if given is None else _several(given)
    for one in some:
        if not isinstance(one, ItemCatch) or not isinstance(one.queue, Queue):
            raise errors.UsageError(
                f"catch={one!r:.80} is not a queue.",
                todo="Pass what app.queue(...) returned, or onefold.maps.ItemCatch values.",
            )
    return tuple(
        Catcher(errors=(one.errors,) if isinstance(one.errors, str) else tuple(one.errors), queue=one.queue.name)
        for one in some
    )


def _item_type(function: Callable[..., Any], spec: MapSpec) -> Any:
    """The annotation of one item.

    Raises:
        UsageError: a batch is declared, but the function does not take a list.
    """
    annotation, _ = types_of(function)
    if spec.batch is None:
        return annotation
    if annotation is Any or annotation is list:
        return Any
    if typing.get_origin(annotation) is not list:
        raise errors.UsageError(
            f"Map {spec.name} has a batch, and its function takes {annotation!r:.80}.",
            meaning="It is called with the items of a batch together.",
            todo="Annotate its first parameter as a list, for example list[Row], or leave out batch=.",
        )
    return typing.get_args(annotation)[0]


def _batch_key(rule: KeyRule) -> KeyFunction:
    """The key rule of a batch, used only for messages that no map run sends; a run sets its keys itself."""

    def key_of_batch(items: Any) -> str:
        return digest("\0".join(rule.of(item) for item in items).encode())

    return key_of_batch


def _runs_of(spec: MapSpec, queue: Queue) -> Retry:
    """The bounds of the job's retries: wide enough for all that the spec allows, which itself sets the pauses."""
    after = queue.settings.receives_max or 1
    most = spec.runs_max if spec.runs_max > after else min(spec.runs_max + CRASHES_MAX, after)
    return Retry(attempts=most, base="0s", jitter="none", crashes=CRASHES_MAX)


def _turns(runtime: Runtime, queue: Queue, name: str, owner: str | None, take: Take) -> Job[MapTurn, str]:
    def turn(message: MapTurn, ctx: Context) -> str:
        return take(runtime, runtime.registry.maps[name], message, ctx)

    turn.__annotations__ = {"message": MapTurn, "ctx": Context, "return": str}
    made: Job[MapTurn, str] = declare_job(
        runtime,
        queue,
        key="{run}/{begun_at_ms}/{number}",
        name=f"{name}-run",
        effect="repeatable",
        timeout="15m",  # a turn takes seconds; the last one takes minutes, as it writes a long run's results
        retry=Retry(attempts=TURN_RECEIVES, base="1s", cap="1m", crashes=TURN_RECEIVES),
        owner=owner,
    )(turn)
    return made
