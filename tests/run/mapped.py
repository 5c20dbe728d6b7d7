"""A mapping played by the test: the embedded queue stands for SQS, receipts and all; the answer is read by Lambda's table.

The handler is the one `App.lambda_handler` makes; only its engine's queues take over receives here as SQS's do on AWS.
Never here: expectations. Invariant: a message is deleted here only when Lambda would delete it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import structs

from onefold import App
from onefold.aws import lambda_function
from onefold.clock import Never
from onefold.contracts.admin import Peeked
from onefold.contracts.queue import Delivery
from onefold.contracts.store import Ask, Record, RecordKey
from onefold.engines.aws.messages import of_lambda
from onefold.entropy import SeededEntropy
from onefold.local.batching import read_answer
from onefold.local.identifiers import QueueAddresses
from onefold.local.mapping import record_of
from onefold.manual_clock import ManualClock
from onefold.outside import Waiter
from onefold.runner.settlement import Backend, backend_of
from tests.run.shop import Shop
from tests.run.workshop import PATIENCE_S, BreakerUpdate

START_MS = 1_700_000_000_000
REGION = "eu-west-1"
VISIBLE_MS = 300_000

ADDRESSES = QueueAddresses("123456789012", REGION, "localhost")


class Adopting:
    """The embedded queue, with the two verbs that SQS's has for messages of a mapping."""

    def __init__(self, queue: Any, disowned: list[str]) -> None:
        self._queue = queue
        self._disowned = disowned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def adopt(self, records: Sequence[Mapping[str, Any]], visible_ms: int) -> list[Delivery]:
        return [self._delivery(record, visible_ms) for record in records]

    def _delivery(self, record: Mapping[str, Any], visible_ms: int) -> Delivery:
        got = of_lambda(record)
        return Delivery(
            queue=self._queue.name,
            message_id=got.message_id,
            receipt=got.handle,
            body=got.form.body,
            attributes=got.form.attributes,
            receive_count=got.receive_count,
            sent_at_ms=got.sent_at_ms,
            first_received_at_ms=got.first_received_at_ms,
            received_at_ms=got.sent_at_ms,
            visible_ms=visible_ms,
            group=got.form.group,
            dedup_id=got.form.dedup_id,
            sequence=got.sequence,
            key=got.form.key,
        )

    def disown(self, receipts: Sequence[str]) -> None:
        self._disowned.extend(receipts)


class Through:
    """A queue seen through; what a test overrides is different."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self.queue, name)

    def adopt(self, records: Sequence[Mapping[str, Any]], visible_ms: int) -> list[Delivery]:
        found: list[Delivery] = self.queue.adopt(records, visible_ms)
        return found

    def disown(self, receipts: Sequence[str]) -> None:
        self.queue.disown(receipts)


def through(kind: Callable[[Any], Through]) -> Callable[[Backend], Backend]:
    """A backend whose queues are seen through this."""

    def wrap(real: Backend) -> Backend:
        return structs.replace(real, open_queue=lambda name: kind(real.open_queue(name)))  # type: ignore[arg-type, return-value]

    return wrap


class Hasty(ManualClock):
    """A clock on which the pauses between two tries of a write pass at once."""

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        if isinstance(waiter, Never):
            self.advance(timeout_ms)
            return False
        return super().wait(waiter, timeout_ms)


class LambdaContext:
    """What Lambda hands to a handler: the time that is left, by the test's clock."""

    def __init__(self, clock: ManualClock, timeout_ms: int) -> None:
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + timeout_ms

    def get_remaining_time_in_millis(self) -> int:
        return max(self._end_ms - self._clock.monotonic_ms(), 0)


class Mapped:
    """An app's Lambda function, and the mapping of its queues.

    Attributes:
        answers: what the handler answered, in order. calls: verbs of the engine, in order.
    """

    def __init__(self, app: App, clock: ManualClock, handler: Callable[..., Any], told: BreakerUpdate) -> None:
        self.app = app
        self.clock = clock
        self.handler = handler
        self.told = told
        self.answers: list[Any] = []
        self.disowned: list[str] = []
        self.reports_failures = True

    def queue(self, name: str = "orders") -> Any:
        return self.app.runtime().engine.queues.open(name)

    def receive(self, name: str = "orders", count: int = 10) -> list[Delivery]:
        return list(self.queue(name).receive(count, VISIBLE_MS))

    def invoke(self, deliveries: Sequence[Delivery], timeout_ms: int = 60_000) -> list[str]:
        """Hand over a batch; the ids of the messages that stay."""
        event = event_of(deliveries)
        context = LambdaContext(self.clock, timeout_ms)
        answer = self.handler(json.loads(json.dumps(event)), context)
        self.answers.append(answer)
        ids = [one.message_id for one in deliveries]
        verdict = read_answer(json.dumps(answer).encode(), ids, reports_failures=self.reports_failures)
        assert verdict.kind != "none", verdict
        for one in deliveries:
            if one.message_id not in verdict.failed:
                self.queue(one.queue).delete([one.receipt])
        return [one for one in ids if one in verdict.failed]

    def poll(self, name: str = "orders", *, count: int = 10, timeout_ms: int = 60_000) -> list[str]:
        """One turn of the mapping: receive, invoke, delete."""
        return self.invoke(self.receive(name, count), timeout_ms)

    def left(self, name: str = "orders") -> int:
        depth = self.queue(name).depth()
        return int(depth.visible + depth.in_flight + depth.delayed)

    def visible(self, name: str = "orders") -> int:
        return int(self.queue(name).depth().visible)

    def peek(self, name: str) -> list[Peeked]:
        return list(self.app.runtime().engine.queues.peek(name))

    def record(self, key: str, job: str = "ship") -> Record | None:
        return self.app.runtime().engine.store.read([RecordKey("", job, key)], self.clock.now_ms())[0]


def event_of(deliveries: Sequence[Delivery]) -> dict[str, Any]:
    """The event of a batch, with the engine's own ids, receipts and sequences."""
    records = []
    for one in deliveries:
        record = record_of(one, ADDRESSES) | {"messageId": one.message_id, "receiptHandle": one.receipt}
        if one.sequence is not None:
            record["attributes"]["SequenceNumber"] = one.sequence
        records.append(record)
    return {"Records": records}


@contextmanager
def mapped(
    app: App,
    *,
    wrap: Callable[[Backend], Backend] | None = None,
    clock: ManualClock | None = None,
    **options: Any,
) -> Iterator[Mapped]:
    """An app's handler on a private engine in memory, with a clock that the test moves.

    Args:
        wrap: what the handler's backend is seen through. clock: unless given, one that stands at START_MS.
        options: of `App.lambda_handler`.
    """
    clock, told = clock or ManualClock(START_MS), BreakerUpdate()
    app.sinks = (*app.sinks, told)
    with app._reopened("sqlite://:memory:", clock, SeededEntropy(1)) as runtime, pytest.MonkeyPatch.context() as monkey:
        made = Mapped(app, clock, app.lambda_handler(**options), told)
        real = backend_of(runtime.engine)
        backend = structs.replace(
            real,
            open_queue=lambda name: Adopting(real.open_queue(name), made.disowned),  # type: ignore[arg-type, return-value]
        )
        monkey.setattr(lambda_function, "backend_of", lambda _: wrap(backend) if wrap is not None else backend)
        yield made


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"o-{number}", "customer": "c-1", **more}


def claim_elsewhere(world: Mapped, shop: Shop, delivery: Delivery, *, lease_ms: int) -> None:
    """Another container has begun this operation."""
    facts, _ = shop.ship.read(delivery)
    assert facts.key is not None
    now_ms = world.clock.now_ms()
    ask = Ask(
        key=facts.key, fingerprint=facts.fingerprint, owner="another", lease_until_ms=now_ms + lease_ms, start=True,
        expires_at_ms=now_ms + 1_000_000,
    )  # fmt: skip
    world.app.runtime().engine.store.claim([ask], now_ms)


def until(true: Callable[[], bool]) -> None:
    """Wait for what another thread does, and nobody tells."""
    waiter = threading.Event()
    for _ in range(int(PATIENCE_S / 0.005)):
        if true():
            return
        waiter.wait(0.005)
    raise AssertionError("it never came true")
