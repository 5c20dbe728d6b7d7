"""An event bus: rules from patterns to queues, archives, and `put`, which applies them all in one transaction.

    bus = app.bus("orders")
    bus.rule("to-billing", {"detail-type": ["Order placed"]}, to=billing)
    bus.put([EventEntry(source="shop", detail_type="Order placed", detail={"order_id": "o-1"})])

A put answers each entry as PutEvents does. When it returns, each accepted event is in the queues of all rules that match and
in the archives, written in one transaction; a crash before that leaves no trace of it. Inside a handler the deliveries are
sent with the run's record (outbox). A message that a queue refuses goes to the rule's dead-letter queue with EventBridge's
attributes; it is not retried first, because every refusal of an embedded queue is final. On AWS a put calls PutEvents;
the rules there were deployed from the same declarations.
Never here: the pattern language (`patterns.py`), templates (`transform.py`), replays (`replay.py`).
Invariant: an accepted event is, for each rule that matches it, in the rule's queue or in its dead-letter queue.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from onefold import duration, errors, forks, limits
from onefold.contracts.archive import EXPIRES_ATTRIBUTE, TIME_ATTRIBUTE, Archive, Archived, archive_queue_name
from onefold.contracts.engine import Engine
from onefold.contracts.entries import Entry, Refused, Sent, bus_queue_name, check_entry
from onefold.contracts.queue import Attribute
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import OutboxItem
from onefold.duration import Duration
from onefold.events import replay
from onefold.events.patterns import matches, view_of
from onefold.events.replay import Replay
from onefold.events.rules import EventArchive, Router, Rule, make_archive, make_rule
from onefold.events.transform import InputTransformer, NowhereError, Rendering, text_at, transformed
from onefold.options import Queue
from onefold.record.envelopes import EntryFault, Envelope, EventEntry, Origin, entry_of, event_id, request_of, sealed
from onefold.runner import context
from onefold.runner.declaring import queue_of
from onefold.runtime.outgoing import transaction, wake_workers
from onefold.runtime.runtime import Runtime

ACCOUNT: Final = "000000000000"  # the account of the local SQS server by default
REGION: Final = "us-east-1"
_ENVELOPE_BYTES: Final = 4_096  # kept free in a message for the attributes of a dead letter
_BUS_NAME: Final = r"[.\-_A-Za-z0-9]{1,60}"  # API reference, CreateEventBus; ours is shorter: queues are named after it
_ANY_QUEUE: Final = QueueSettings(name="any", message_bytes_max=limits.MESSAGE_BYTES_MAX - _ENVELOPE_BYTES)


class PutAnswer(Struct, frozen=True, gc=False):
    """The answer to one entry, as PutEventsResultEntry.

    Args:
        event_id: the id of the event; None if it was not accepted, or if EventBridge names it when a handler's run
            completes.
        error_code, error_message: why it was not accepted; correct the entry, do not retry it.
    """

    event_id: str | None = None
    error_code: str | None = None
    error_message: str | None = None


class Parcel(Struct, frozen=True, gc=False):
    """One event on its way to one target of a rule."""

    rule: Rule
    event: Envelope
    queue: str
    entry: Entry


class Bus:
    """A declared bus. Made by `App.bus`; it can be used from any thread once declared.

    Attributes:
        name: the name of the bus. origin: account and region of its events.
        rules, archives: declared on it, by name.
    """

    def __init__(self, name: str, runtime: Runtime, *, account: str = ACCOUNT, region: str = REGION) -> None:
        if not re.fullmatch(_BUS_NAME, name):
            raise errors.UsageError(
                f"{name!r:.80} is not a valid name for a bus.", todo="Use 1 to 60 of A-Z a-z 0-9 . - and _."
            )
        if not re.fullmatch(r"\d{12}", account):
            raise errors.UsageError(f"account={account!r} is not an AWS account id.", todo="Use 12 digits.")
        self.name = name
        self.origin: Origin = Origin(account, region)
        self.rules: dict[str, Rule] = {}
        self.archives: dict[str, EventArchive] = {}
        self._runtime = runtime
        self._router: Router[Rule] | None = None
        self._lock = threading.Lock()
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """Called in a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<onefold bus {self.name}, {len(self.rules)} rules>"

    # -- declaring ---------------------------------------------------------------------------------------------------

    def rule(
        self,
        name: str,
        pattern: Mapping[str, Any] | str,
        to: Queue | Sequence[Queue],
        *,
        input_path: str | None = None,
        input_transformer: InputTransformer | None = None,
        constant: Any = None,
        group: str | None = None,
        enabled: bool = True,
        dead_letter: Queue | None = None,
    ) -> Rule:
        """Send the events that a pattern matches to one queue, or to up to five.

        Args:
            name: 1 to 64 of A-Z a-z 0-9 . - _.
            pattern: EventBridge's event pattern, or its JSON; at most 4,096 characters.
            input_path: a part of the event instead of the envelope, for example "$.detail".
            input_transformer: a template filled from the event. constant: a value that is the same for every event.
            group: message group for FIFO targets (required there): a text, or a path such as "$.detail.customer".
            enabled: False to declare the rule without using it.
            dead_letter: standard queue for what a target refuses; if None, the bus's `<name>-undelivered`.

        Raises:
            UsageError: an invalid pattern, a template that cannot be filled, a FIFO target without content_dedup or
                group, more than one of input_path, input_transformer and constant.
            ConflictError: the bus has a rule of this name.
        """
        if name in self.rules:
            raise errors.ConflictError(
                f"Rule {name} is declared twice on bus {self.name}.", todo="Give one of them another name."
            )
        made = make_rule(
            name, bus=self.name, arn=self._arn(name), pattern=pattern,
            targets=(to,) if isinstance(to, Queue) else tuple(to), known=self._runtime.registry.queues,
            dead_letter=lambda: dead_letter or self._undelivered_queue(),
            input_path=input_path, input_transformer=input_transformer, constant=constant, group=group, enabled=enabled,
        )  # fmt: skip
        self.rules[name] = made
        self._router = None
        return made

    def archive(
        self, name: str, pattern: Mapping[str, Any] | str | None = None, *, retention: Duration | None = None
    ) -> EventArchive:
        """Keep the events that a pattern matches, to be replayed.

        Args:
            name: 1 to 48 of A-Z a-z 0-9 . - _. pattern: as of a rule; None: every event.
            retention: how long an event is kept, counted from its put; None: forever.

        Raises:
            UsageError: an invalid name or pattern. ConflictError: the bus has an archive of this name.
        """
        if name in self.archives:
            raise errors.ConflictError(
                f"Archive {name} is declared twice on bus {self.name}.", todo="Give one of them another name."
            )
        made = self.archives[name] = make_archive(name, bus=self.name, pattern=pattern, retention=retention)
        return made

    def _undelivered_queue(self) -> Queue:
        return self._runtime.registry.add_queue(queue_of(f"{self.name.replace('.', '-')}-undelivered", retention="14d"))

    def _arn(self, rule: str) -> str:
        path = rule if self.name == "default" else f"{self.name}/{rule}"
        return f"arn:aws:events:{self.origin.region}:{self.origin.account}:rule/{path}"

    # -- putting -----------------------------------------------------------------------------------------------------

    async def aput(self, entries: Iterable[EventEntry | Mapping[str, Any]]) -> list[PutAnswer]:
        """Like `put`, for coroutines: it does not block the event loop."""
        given = list(entries)
        return await self._runtime.in_thread(lambda: self.put(given))

    def put(self, entries: Iterable[EventEntry | Mapping[str, Any]]) -> list[PutAnswer]:
        """Put events: on return, accepted events are in the queues of all rules that match, and in the archives.

        Inside a handler they are sent when the run completes, with its record; the answers are the same.

        Args:
            entries: any number, all in one transaction; a mapping has PutEvents' fields ("Source", "DetailType", ...).

        Returns:
            One answer per entry, in order; a refused entry has a reason and does not stop the others.

        Raises:
            UsageError: an entry is not an `EventEntry` or a mapping, or has an unknown field. Nothing was put.
            StorageBusy: nothing was put. TransientError: EventBridge cannot take some of them now.
        """
        given = [one if isinstance(one, EventEntry) else entry_of(one) for one in entries]
        runtime = self._runtime
        now_ms = runtime.clock.now_ms()
        answers: list[PutAnswer] = []
        taken: list[Envelope] = []
        for entry in given:
            made = self._seal(entry, runtime, now_ms)
            if isinstance(made, EntryFault):
                answers.append(PutAnswer(None, made.code, made.message))
            else:
                answers.append(PutAnswer(made.id))
                taken.append(made)
        inside = context.of_this_thread()
        if runtime.engine.archive is None:
            return self._put_elsewhere(runtime, answers, taken, inside)
        parcels = [parcel for event in taken for parcel in self.parcels(event, now_ms)]
        kept = self._kept(taken, max(now_ms, runtime.steady.now_ms()))  # an archive goes by the steady clock
        if inside is not None:
            inside.keep(self._outbox(parcels, kept))
        elif taken:
            self._store(runtime, parcels, kept)
        return answers

    def _put_elsewhere(
        self,
        runtime: Runtime,
        answers: Sequence[PutAnswer],
        taken: Sequence[Envelope],
        inside: context.Context | None,
    ) -> list[PutAnswer]:
        """Put events on the server's own bus, whose rules were deployed from ours; the server gives them their ids."""
        queue_name = bus_queue_name(self.name)
        entries = [Entry(body=request_of(event), key=event.id) for event in taken]
        if inside is not None:
            inside.keep(OutboxItem(queue=queue_name, body=one.body, key=one.key) for one in entries)
            return [one if one.error_code is not None else PutAnswer() for one in answers]
        sent = iter(runtime.engine.queues.open(queue_name).send(entries) if entries else ())
        return [one if one.error_code is not None else _answer_of(next(sent)) for one in answers]

    def archives_of(self, runtime: Runtime) -> Archive:
        """The engine's archives.

        Raises:
            UsageError: the engine puts its events on EventBridge, which has its own archives.
        """
        archive = runtime.engine.archive
        if archive is None:
            raise errors.UsageError(
                f"The engine {runtime.engine.url} has no event bus of its own.",
                meaning="On AWS events are put on EventBridge; `onefold synth` writes bus, rules and archives.",
                todo="Replay there with EventBridge's own replays, or use an embedded engine (sqlite:///...).",
            )
        return archive

    def replay(
        self, archive: str, start: datetime, end: datetime, *, name: str, rules: Sequence[str] | None = None
    ) -> Replay:
        """Send the events of an archive through the rules again, to the end; after a crash the same call continues.

        Args:
            archive: its name. start, end: aware datetimes; events with start <= time < end.
            name: the name of the replay, 1 to 64 of A-Z a-z 0-9 . - _; each event has it as `replay-name`.
            rules: only these; None: all that are enabled.

        Raises:
            NotFoundError: the archive or a rule does not exist. UsageError: an invalid name or range.
            ConflictError: a replay of this name has ended, or replays something else.
        """
        from_ms, to_ms = duration.instant_ms(start, "start"), duration.instant_ms(end, "end")
        runtime = self._runtime
        replay.begin(self, runtime, archive, from_ms, to_ms, name=name, rules=rules)
        return replay.run(self, runtime, name)

    def _seal(self, entry: EventEntry, runtime: Runtime, now_ms: int) -> Envelope | EntryFault:
        made = sealed(entry, self.origin, event_id(runtime.entropy.token(), runtime.entropy.token()), now_ms)
        if isinstance(made, EntryFault):
            return made
        refused = check_entry(Entry(body=made.text), _ANY_QUEUE)
        return made if refused is None else EntryFault("InvalidArgument", refused.message)

    def _kept(self, events: Sequence[Envelope], now_ms: int) -> dict[EventArchive, list[Archived]]:
        """Which events each archive keeps."""
        kept: dict[EventArchive, list[Archived]] = {}
        for archive in self.archives.values():
            ends_at_ms = None if archive.retention_ms is None else now_ms + archive.retention_ms
            kept[archive] = [
                Archived(0, event.id, event.time_ms, event.text, ends_at_ms)
                for event in events
                if archive.compiled is None or matches(archive.compiled, view_of(event.value))
            ]
        return kept

    def _store(
        self, runtime: Runtime, parcels: Sequence[Parcel], kept: Mapping[EventArchive, Sequence[Archived]]
    ) -> None:
        def store() -> None:
            for archive, events in kept.items():
                if events:
                    self.archives_of(runtime).keep(archive.place, events)
            self.deliver(runtime, parcels)

        transaction(runtime.engine, store)

    # -- delivering --------------------------------------------------------------------------------------------------

    def parcels(self, event: Envelope, now_ms: int, rules: Iterable[str] | None = None) -> list[Parcel]:
        """The messages of an event, for each target of each rule that matches; a dead letter where none can be made.

        Args:
            now_ms: when the bus took it. rules: only these; None: all that are enabled.
        """
        router = self._router
        if router is None:
            with self._lock:
                router = self._router = Router((one.compiled, one) for one in self.rules.values() if one.enabled)
        chosen = None if rules is None else set(rules)
        return [
            self.parcel(rule, queue, event, now_ms)
            for rule in router.matching(event.value)
            if chosen is None or rule.name in chosen
            for queue in rule.targets
        ]

    def parcel(self, rule: Rule, queue: str, event: Envelope, now_ms: int) -> Parcel:
        """The message of an event for one target of a rule, or a dead letter if it cannot be made."""
        settings = self._runtime.registry.queues[queue].settings
        try:
            body = transformed(rule.transformation, event, Rendering(rule.name, rule.arn, now_ms))
        except NowhereError:
            return self._undelivered(
                rule, queue, event, "INVALID_PARAMETER", f"InputPath {rule.input_path} leads to nothing."
            )
        group = rule.group if rule.group_path is None else text_at(rule.group_path, event)
        if settings.fifo and group is None:
            return self._undelivered(
                rule, queue, event, "INVALID_PARAMETER", f"MessageGroupId {rule.group} leads to nothing."
            )
        entry = Entry(body=body, group=group, key=event.id)
        refused = check_entry(entry, settings)
        if refused is not None:
            return self._undelivered(rule, queue, event, "INVALID_PARAMETER", refused.message)
        return Parcel(rule, event, queue, entry)

    def _undelivered(self, rule: Rule, queue: str, event: Envelope, code: str, message: str) -> Parcel:
        """The event as a dead letter: unchanged, with EventBridge's attributes."""
        target = f"arn:aws:sqs:{self.origin.region}:{self.origin.account}:{queue}"
        texts = {
            "RULE_ARN": rule.arn,
            "TARGET_ARN": target,
            "ERROR_CODE": code,
            "ERROR_MESSAGE": message[:1000],
            "RETRY_ATTEMPTS": "0",
        }
        attributes = {name: Attribute(value) for name, value in texts.items()}
        return Parcel(rule, event, rule.dead_letter, Entry(body=event.text, attributes=attributes, key=event.id))

    def deliver(self, runtime: Runtime, parcels: Sequence[Parcel]) -> None:
        """Send parcels, in order for each queue, inside a transaction. What a queue refuses becomes a dead letter.

        Raises:
            NotFoundError, UsageError: a dead-letter queue is gone, or refuses it; nothing was sent.
        """
        by_queue: dict[str, list[Parcel]] = defaultdict(list)
        for parcel in parcels:
            by_queue[parcel.queue].append(parcel)
        dead: dict[str, list[Parcel]] = defaultdict(list)
        for name, several in by_queue.items():
            for parcel, refused in _send(runtime.engine, name, several):
                if parcel.queue == parcel.rule.dead_letter:
                    raise _no_way_out(parcel, refused)
                code = "NO_RESOURCE" if refused.code == "QueueDoesNotExist" else "INVALID_PARAMETER"
                dead[parcel.rule.dead_letter].append(
                    self._undelivered(parcel.rule, name, parcel.event, code, refused.message)
                )
        for name, several in dead.items():
            for parcel, refused in _send(runtime.engine, name, several):
                raise _no_way_out(parcel, refused)
        if parcels:
            wake_workers(runtime.engine)

    def _outbox(
        self, parcels: Sequence[Parcel], kept: Mapping[EventArchive, Sequence[Archived]]
    ) -> Iterable[OutboxItem]:
        """Parcels and archived events as outbox items, which are sent with the record of the run."""
        for archive, events in kept.items():
            for one in events:
                attributes = {TIME_ATTRIBUTE: str(one.time_ms)}
                if one.expires_at_ms is not None:
                    attributes[EXPIRES_ATTRIBUTE] = str(one.expires_at_ms)
                yield OutboxItem(
                    queue=archive_queue_name(archive.place), body=one.text, attributes=attributes, key=one.event_id
                )
        for parcel in parcels:
            entry = parcel.entry
            texts = {name: str(one.value) for name, one in entry.attributes.items()}
            yield OutboxItem(queue=parcel.queue, body=entry.body, attributes=texts, group=entry.group, key=entry.key)


def _send(engine: Engine, name: str, parcels: Sequence[Parcel]) -> list[tuple[Parcel, Refused]]:
    """Send parcels to one queue; returns those it refused. A queue that does not exist refuses all."""
    try:
        answers = engine.queues.open(name).send([parcel.entry for parcel in parcels])
    except errors.NotFoundError as error:
        return [(parcel, Refused("QueueDoesNotExist", error.what)) for parcel in parcels]
    return [(parcel, answer) for parcel, answer in zip(parcels, answers, strict=True) if isinstance(answer, Refused)]


def _answer_of(sent: Sent | Refused) -> PutAnswer:
    return PutAnswer(None, sent.code, sent.message) if isinstance(sent, Refused) else PutAnswer(sent.message_id)


def _no_way_out(parcel: Parcel, refused: Refused) -> errors.UsageError:
    return errors.UsageError(
        f"Event {parcel.event.id} cannot be delivered by rule {parcel.rule.name}, nor put into {parcel.rule.dead_letter}: "
        f"{refused.message}",
        meaning="No part of this put was stored.",
        todo=f"Make the queue again (`onefold queue apply`), or give rule {parcel.rule.name} another dead_letter.",
    )


def declare_bus(runtime: Runtime, name: str, *, account: str | None, region: str | None) -> Bus:
    """What `App.bus` does; arguments and errors as there."""
    buses = runtime.registry.buses
    bus = buses.get(name)
    if bus is None:
        bus = buses[name] = Bus(name, runtime, account=account or ACCOUNT, region=region or REGION)
    elif account not in (None, bus.origin.account) or region not in (None, bus.origin.region):
        raise errors.ConflictError(
            f"Bus {name} is declared with account {bus.origin.account} in {bus.origin.region} already.",
            todo="Give account and region once.",
        )
    return bus
