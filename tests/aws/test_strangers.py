"""What somebody may do who can send to one queue of an app, and read its messages: run that queue's jobs, and no more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import dead_letters, editing
from onefold.admin.dead_letters import Select
from onefold.admin.session import AdminSession, SessionJobs
from onefold.clock import SystemClock
from onefold.contracts.admin import Peeked
from onefold.contracts.state import Change
from onefold.contracts.store import Record, RecordKey
from onefold.engines.aws import signing
from onefold.entropy import SeededEntropy, SystemEntropy
from onefold.local.serving import ServeSettings, Serving
from onefold.manual_clock import ManualClock
from onefold.runner.executors import Grouper
from onefold.runner.setup import make_runner
from onefold.runtime.events import Sinks
from onefold.testing import Endpoint, inline
from onefold.testing.endpoint import _Thread
from tests.crash import victim

Attributes = dict[str, str]


@dataclass
class Order:
    order_id: str
    amount: int = 1


class Bank:
    """An app with a queue that many may send to, one that pays, and schedules; what ran, in order."""

    def __init__(self, url: str, *, internal: bool = False, name: str = "bank") -> None:
        self.ran: list[tuple[str, str, int]] = []
        self.app = onefold.App(name, url=url)
        self.mails = self.app.queue("mails", internal=internal)
        self.payments = self.app.queue("payments")
        self.orders = self.app.queue("orders", fifo=True)

        @self.app.job(self.mails, key="{order_id}")
        def mail(order: Order) -> None:
            self.ran.append(("mail", order.order_id, order.amount))

        @self.app.job(self.payments, key="{order_id}", retry=onefold.Retry(attempts=1))
        def pay(order: Order) -> None:
            self.ran.append(("pay", order.order_id, order.amount))
            if order.amount < 0:
                raise ValueError("less than nothing")

        @self.app.job(self.orders, key="{order_id}", group="{order_id}")
        def ship(order: Order) -> None:
            self.ran.append(("ship", order.order_id, order.amount))

        @self.app.schedule("cron(0 3 * * ? *)", queue=self.mails)
        def nightly(tick: onefold.Tick) -> None:
            self.ran.append(("nightly", tick.run, 0))

        self.mail, self.pay, self.ship = mail, pay, ship
        self.app.runtime()

    def work(self) -> None:
        """Receive and run until nothing comes; what was given back for later stays where it is."""
        runtime = self.app.runtime()
        runner = make_runner(
            runtime, self.app.jobs, self.app.registry.job_of, lease_ms=30_000, sinks=Sinks(), history="full"
        )
        grouper = Grouper(runner)
        queues: list[Any] = [runtime.engine.queues.open(name) for name in ("mails", "payments", "orders.fifo")]
        while received := [one for queue in queues for one in queue.receive_within(10, None, 0)]:
            victim.perform(runner, grouper, runner.begin(received))

    def session(self) -> AdminSession:
        jobs = SessionJobs(named=self.app.jobs, of=self.app.registry.job_of, history="brief")
        return AdminSession(self.app.runtime(), actor="person:ada", jobs=jobs)

    def record(self, job: str, key: str) -> Record | None:
        return self.app.runtime().engine.store.read([RecordKey("", job, key)], self.app.runtime().now_ms())[0]

    def dead(self, queue: str) -> list[Peeked]:
        return self.app.runtime().engine.queues.peek(f"{queue}-dead", limit=100)

    def why_dead(self, queue: str) -> list[str]:
        return sorted(one.reason.kind if one.reason is not None else "?" for one in self.dead(queue))


class Stranger:
    """Somebody with the permissions sqs:SendMessage and sqs:ReceiveMessage, and nothing of onefold."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._client = endpoint.boto3()

    def url(self, queue: str) -> str:
        found: str = self._client.get_queue_url(QueueName=queue)["QueueUrl"]
        return found

    def send(self, queue: str, body: object, attributes: Attributes) -> None:
        self._client.send_message(
            QueueUrl=self.url(queue),
            MessageBody=body if isinstance(body, str) else json.dumps(body, separators=(",", ":")),
            MessageAttributes={
                name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()
            },
        )

    def read(self, queue: str) -> tuple[str, Attributes]:
        """Body and attributes of the one message there is, which stays."""
        (found,) = self._endpoint.peek(queue)
        return found.body, {name: str(one.value) for name, one in found.attributes.items()}


@pytest.fixture
def open_bank(endpoint: Endpoint, tmp_path: Path) -> Iterator[Callable[..., Bank]]:
    made: list[Bank] = []

    def opened(**options: Any) -> Bank:
        made.append(Bank(f"aws://{endpoint.region}?create=yes&records=sqlite:///{tmp_path}/records.db", **options))
        return made[-1]

    yield opened
    for one in made:
        one.app.close()


@pytest.fixture
def bank(open_bank: Callable[..., Bank]) -> Bank:
    return open_bank()


@pytest.fixture
def stranger(endpoint: Endpoint, bank: Bank) -> Stranger:
    return Stranger(endpoint)


# -- what a stranger's word is worth -----------------------------------------------------------------------------------


def test_a_job_runs_from_its_own_queue_and_from_no_other(bank: Bank, stranger: Stranger) -> None:
    stranger.send("mails", {"order_id": "o-1", "amount": 5000}, {"onefold.job": "pay"})
    stranger.send("payments", {"order_id": "o-2"}, {"onefold.job": "pay"})
    stranger.send("mails", {"order_id": "o-3"}, {"onefold.job": "mail"})
    bank.work()
    assert sorted(bank.ran) == [("mail", "o-3", 1), ("pay", "o-2", 1)]
    assert bank.record("pay", "o-1") is None


@pytest.mark.parametrize(
    "claim",
    [{"onefold.key": "o-9"}, {"onefold.run": "nightly/2026-06-01T03:00:00Z"}, {"onefold.amends": "0" * 64}],
    ids=["key", "run", "amends"],
)
def test_what_a_stranger_claims_does_not_count(
    bank: Bank, stranger: Stranger, endpoint: Endpoint, claim: Attributes
) -> None:
    stranger.send("payments", {"order_id": "o-1"}, {"onefold.job": "pay", **claim})
    assert [one.trusted for one in endpoint.peek("payments")] == [False], "for a worker on the server's own file, too"
    bank.work()
    assert bank.ran == []
    assert (bank.record("pay", "o-1"), bank.record("pay", "o-9")) == (None, None)
    (letter,) = bank.dead("payments")
    assert letter.reason is not None
    assert letter.reason.kind == "untrusted"
    assert next(iter(claim)) in letter.reason.summary
    rows = bank.app.runtime().engine.ledger.of_run("nightly/2026-06-01T03:00:00Z")
    assert list(rows) == []


def test_a_stranger_who_names_no_more_than_the_body_says_is_served(bank: Bank, stranger: Stranger) -> None:
    stranger.send("payments", {"order_id": "o-1"}, {"onefold.job": "pay", "onefold.key": "o-1", "onefold.app": "bank"})
    run = "nightly/2026-06-01T03:00:00Z"  # as EventBridge Scheduler sends it, which can sign nothing
    body = {"schedule": "nightly", "scheduled_at": "2026-06-01T03:00:00Z"}
    stranger.send("mails", body, {"onefold.job": "nightly", "onefold.app": "bank", "onefold.run": run})
    bank.work()
    assert sorted(bank.ran) == [("nightly", run, 0), ("pay", "o-1", 1)]
    told = [row.event for row in bank.app.runtime().engine.ledger.of_run(run)]
    assert "completed" in told


def test_nobody_who_knows_an_operation_can_have_it_swallowed(
    endpoint: Endpoint, bank: Bank, stranger: Stranger
) -> None:
    outgoing = bank.ship.outgoing(Order("o-1"))
    assert outgoing.entry.dedup_id is not None
    foretold = [outgoing.entry.dedup_id, f"{outgoing.fingerprint}.ship.o-1"]  # the latter: as it was made once
    for dedup_id in foretold:
        endpoint.boto3().send_message(
            QueueUrl=stranger.url("orders.fifo"), MessageBody="x", MessageGroupId="g", MessageDeduplicationId=dedup_id
        )
    first, second = bank.ship.send(Order("o-1")), bank.ship.send(Order("o-1"))
    assert first.message_id == second.message_id, "its own repetition is one still"
    bodies = [one.body for one in endpoint.peek("orders.fifo")]
    assert bodies == ["x", "x", outgoing.entry.body]
    assert not {one.dedup_id for one in endpoint.peek("orders.fifo")[2:]} & {*foretold, None}


def test_nor_on_the_file_that_the_server_serves(tmp_path: Path) -> None:
    settings = ServeSettings(port=0, data=str(tmp_path / "bank.db"))
    thread = _Thread(Serving(settings, clock=SystemClock(), entropy=SystemEntropy()))
    endpoint = Endpoint(thread.serving, thread.start(), None)
    try:
        bank = Bank(f"sqlite:///{tmp_path}/bank.db")
        client = endpoint.boto3()
        url = client.get_queue_url(QueueName="orders.fifo")["QueueUrl"]
        dedup_id = bank.ship.outgoing(Order("o-1")).entry.dedup_id
        client.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="o-1", MessageDeduplicationId=dedup_id)
        assert bank.ship.send(Order("o-1")).found == "new"
        assert bank.ship.send(Order("o-1")).found == "deduplicated"
        bank.app.close()
    finally:
        thread.stop()


def test_who_may_not_read_the_secret_sends_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []
    clock, allowed = ManualClock(0), False

    def state() -> Any:
        asked.append(clock.now_ms())
        if not allowed:
            raise errors.UsageError("AccessDeniedException")
        return world.app.runtime().engine.state

    with inline(onefold.App("own")) as world:
        signer = signing.Signer(state, clock=clock, entropy=SeededEntropy(1), environment={})
        assert [signer.disguised("a") for _ in range(3)] == ["a", "a", "a"]
        assert asked == [0], "it is not asked again for each message"
        clock.advance(60_000)
        assert signer.disguised("a") == "a"
        (warned,) = [record for record in caplog.records if record.name == "onefold"]
        assert warned.levelname == "WARNING"
        assert "deduplication ids that can be predicted" in warned.getMessage()
        assert "Set ONEFOLD_SECRET" in warned.getMessage()
        assert "AccessDeniedException" in warned.getMessage()
        allowed = True
        clock.advance(60_000)
        assert signer.disguised("a") != "a"
        assert signer.disguised("a") == signer.disguised("a") != signer.disguised("b")
        assert asked == [0, 60_000, 120_000]
        assert len(caplog.records) == 1, "it is said once"


def test_an_amendment_of_a_stranger_does_not_pass_the_conflict_check(bank: Bank, stranger: Stranger) -> None:
    bank.pay.send(Order("o-1", -1))
    bank.work()
    record = bank.record("pay", "o-1")
    assert record is not None
    assert record.status == "failed"
    stranger.send(
        "payments", {"order_id": "o-1", "amount": 9999}, {"onefold.job": "pay", "onefold.amends": record.fingerprint}
    )
    bank.work()
    assert bank.ran == [("pay", "o-1", -1)]
    assert bank.why_dead("payments") == ["attempts", "untrusted"]


def test_a_signature_copied_onto_another_body_job_or_app_does_not_hold(bank: Bank, stranger: Stranger) -> None:
    bank.pay.send(Order("o-1", 10), key="special")
    body, signed = stranger.read("payments")
    assert signed["onefold-signature"]
    bank.work()
    stranger.send("payments", {"order_id": "o-1", "amount": 5000}, signed)  # another body
    stranger.send("payments", body, {**signed, "onefold.key": "another"})
    stranger.send("payments", body, {**signed, "onefold.run": "r"})
    stranger.send("mails", body, {**signed, "onefold.job": "mail"})
    stranger.send("payments", body, signed)  # the same operation once more
    bank.work()
    assert bank.ran == [("pay", "o-1", 10)]
    assert bank.why_dead("payments") == ["untrusted"] * 3
    assert bank.why_dead("mails") == ["untrusted"]


def test_an_attribute_that_names_another_source_does_not_lead_a_redrive_there(bank: Bank, stranger: Stranger) -> None:
    stranger.send(
        "mails-dead",
        {"order_id": "o-1"},
        {"onefold-source": "payments", "onefold-reason": '{"kind":"x","summary":"y"}'},
    )
    (letter,) = bank.dead("mails")
    assert letter.source is None
    stranger.send("mails", "no order", {"onefold.job": "mail", "onefold-source": "payments"})
    bank.work()
    sources = {one.source for one in bank.dead("mails")}
    assert sources == {None, "mails"}


# -- what onefold says itself ------------------------------------------------------------------------------------------


def test_keys_edits_and_redrives_of_the_app_itself_go_on(bank: Bank, endpoint: Endpoint) -> None:
    bank.pay.send(Order("o-1", -5), key="special")
    bank.work()
    assert bank.why_dead("payments") == ["attempts"]
    session = bank.session()
    letter = dead_letters.one_of(session, Select(key="special"))
    edited = editing.edit(session, letter, assignments=["amount=5"])
    assert (edited.key_after, edited.written, edited.forecast.outcome) == ("special", True, "run")
    (waiting,) = bank.dead("payments")
    client = endpoint.boto3()
    arns = [f"arn:aws:sqs:{endpoint.region}:{endpoint.account}:{name}" for name in ("payments-dead", "payments")]
    client.start_message_move_task(SourceArn=arns[0], DestinationArn=arns[1])  # as AWS's console does
    assert waiting.trusted
    while endpoint.peek("payments-dead"):
        endpoint.advance("1s")
    bank.work()
    assert bank.ran == [("pay", "o-1", -5), ("pay", "o-1", 5)]
    record = bank.record("pay", "special")
    assert record is not None
    assert record.status == "completed"


def test_an_operators_edit_drops_what_a_stranger_claimed(bank: Bank, stranger: Stranger) -> None:
    stranger.send("payments", {"order_id": "o-1", "amount": 2}, {"onefold.job": "pay", "onefold.key": "o-9"})
    bank.work()
    session = bank.session()
    editing.edit(session, dead_letters.one_of(session, Select()), assignments=["amount=3"])
    (letter,) = bank.dead("payments")
    assert "onefold.key" not in letter.attributes
    session.engine.queues.move([(letter.message_id, None, None)])
    bank.work()
    assert bank.ran == [("pay", "o-1", 3)]
    assert bank.record("pay", "o-9") is None


def test_an_internal_queue_is_believed_without_a_signature(open_bank: Callable[..., Bank], endpoint: Endpoint) -> None:
    bank = open_bank(internal=True)
    stranger = Stranger(endpoint)
    stranger.send("mails", {"order_id": "o-1"}, {"onefold.job": "mail", "onefold.key": "mine"})
    bank.work()
    assert bank.ran == [("mail", "o-1", 1)]
    assert bank.record("mail", "mine") is not None


# -- secrets -----------------------------------------------------------------------------------------------------------

OLD, NEW = "o" * 32, "n" * 32


def test_a_secret_is_replaced_while_messages_are_in_flight(
    open_bank: Callable[..., Bank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_SECRET", OLD)
    open_bank().pay.send(Order("o-1"), key="k-1")
    monkeypatch.setenv("ONEFOLD_SECRET", f"{NEW},{OLD}")
    both = open_bank()
    both.pay.send(Order("o-2"), key="k-2")
    both.work()
    assert sorted(both.ran) == [("pay", "o-1", 1), ("pay", "o-2", 1)]
    both.pay.send(Order("o-3"), key="k-3")
    monkeypatch.setenv("ONEFOLD_SECRET", OLD)
    old = open_bank()
    old.work()
    assert old.ran == []
    assert old.why_dead("payments") == ["untrusted"]


def test_stored_secrets_that_change_are_read_again(bank: Bank) -> None:
    state = bank.app.runtime().engine.state
    bank.pay.send(Order("o-1"), key="k-1")
    (stored,) = state.get([signing.PLACE])
    assert stored is not None
    (first,) = json.loads(stored.value)
    assert len(first) == 64
    state.put([Change(signing.PLACE, json.dumps([NEW, first]).encode(), stored.version)])
    bank.work()
    assert bank.ran == [("pay", "o-1", 1)]


def test_messages_of_the_version_before_count_until_a_given_instant(
    open_bank: Callable[..., Bank], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsigned = {"onefold.job": "pay", "onefold.key": "k-1"}
    monkeypatch.setenv("ONEFOLD_UNSIGNED_BEFORE", "2000-01-01T00:00:00+00:00")
    late = open_bank()
    Stranger(endpoint).send("payments", {"order_id": "o-1"}, unsigned)
    late.work()
    assert (late.ran, late.why_dead("payments")) == ([], ["untrusted"])
    monkeypatch.setenv("ONEFOLD_UNSIGNED_BEFORE", "2999-01-01T00:00:00+00:00")
    upgrading = open_bank()
    Stranger(endpoint).send("payments", {"order_id": "o-1"}, unsigned)
    Stranger(endpoint).send("payments", {"order_id": "o-2"}, {**unsigned, "onefold-signature": "0" * 64})
    upgrading.work()
    assert upgrading.ran == [("pay", "o-1", 1)]
    assert upgrading.record("pay", "k-1") is not None


def before_now(endpoint: Endpoint, queue: str) -> str:
    """An instant just after the last message of a queue was sent."""
    last = endpoint.peek(queue)[-1].sent_at_ms
    return datetime.fromtimestamp(last // 1_000 + (last % 1_000 + 2) / 1_000, UTC).isoformat()


@pytest.mark.parametrize("by_sqs", [False, True], ids=["redrive", "move task of SQS"])
def test_what_counted_before_counts_when_it_is_sent_back(
    open_bank: Callable[..., Bank], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, by_sqs: bool
) -> None:
    old = open_bank()
    unsigned = {"onefold.job": "pay", "onefold.key": "k-1"}
    Stranger(endpoint).send("payments", {"order_id": "o-1", "amount": -1}, unsigned)
    monkeypatch.setenv("ONEFOLD_UNSIGNED_BEFORE", before_now(endpoint, "payments"))
    new = open_bank()
    new.work()
    assert (new.ran, new.why_dead("payments")) == ([("pay", "o-1", -1)], ["attempts"])
    (letter,) = new.dead("payments")
    assert letter.trusted
    if by_sqs:
        arns = [f"arn:aws:sqs:{endpoint.region}:{endpoint.account}:{name}" for name in ("payments-dead", "payments")]
        endpoint.boto3().start_message_move_task(SourceArn=arns[0], DestinationArn=arns[1])
        while endpoint.peek("payments-dead"):
            endpoint.advance("1s")
    else:
        new.session().engine.queues.move([(letter.message_id, None, None)])
    monkeypatch.delenv("ONEFOLD_UNSIGNED_BEFORE")
    after = open_bank()
    after.work()
    assert (after.ran, after.why_dead("payments")) == ([("pay", "o-1", -1)], ["attempts"])
    assert old.record("pay", "k-1") is not None


def test_dead_letters_of_the_version_before_are_signed_when_they_are_sent_back(
    open_bank: Callable[..., Bank], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_bank()
    stranger = Stranger(endpoint)
    stranger.send("payments-dead", {"order_id": "o-1"}, {"onefold.job": "pay", "onefold.key": "k-1"})
    stranger.send("payments-dead", {"order_id": "o-2"}, {"onefold.job": "pay", "onefold.key": "k-2"})
    monkeypatch.setenv("ONEFOLD_UNSIGNED_BEFORE", before_now(endpoint, "payments-dead"))
    new = open_bank()
    stranger.send("payments-dead", {"order_id": "o-3"}, {"onefold.job": "pay", "onefold.key": "k-3"})
    new.session().engine.queues.move([(one.message_id, "payments", None) for one in new.dead("payments")])
    new.work()
    assert sorted(new.ran) == [("pay", "o-1", 1), ("pay", "o-2", 1)]
    assert new.why_dead("payments") == ["untrusted"], "the one that was sent later, which nobody signed on the way"


def test_a_dead_letter_of_a_replaced_secret_is_signed_with_the_new_one(
    open_bank: Callable[..., Bank], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONEFOLD_SECRET", OLD)
    open_bank().pay.send(Order("o-1", -1), key="k-1")
    monkeypatch.setenv("ONEFOLD_SECRET", f"{NEW},{OLD}")
    open_bank().work()
    monkeypatch.setenv("ONEFOLD_SECRET", NEW)
    new = open_bank()
    (letter,) = new.dead("payments")
    assert letter.trusted


@pytest.mark.parametrize(
    ("variable", "value", "what"),
    [("ONEFOLD_SECRET", "short", "fewer than 32"), ("ONEFOLD_UNSIGNED_BEFORE", "soon", "is not an instant")],
)
def test_a_setting_that_cannot_be_is_said_before_anything_is_sent(
    bank: Bank, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, what: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(errors.UsageError, match=what):
        bank.pay.send(Order("o-1"), key="k-1")
    assert endpoint.peek("payments") == []
