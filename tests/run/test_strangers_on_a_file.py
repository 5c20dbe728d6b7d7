"""What strangers send into a file through `onefold serve`, or hand to Lambda: marked as theirs wherever it goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import onefold
from onefold.contracts.admin import Edit
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from onefold.contracts.state import Change
from onefold.engines.aws.signing import Signer
from onefold.engines.aws.sqs import Sqs
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.testing import inline

NOW_MS = 1_700_000_000_000
SECRET = "s" * 32


@dataclass
class Order:
    order_id: str


def claimed(**claims: str) -> dict[str, Attribute]:
    return {f"onefold.{name}": Attribute(value) for name, value in {"job": "pay", **claims}.items()}


@pytest.mark.parametrize("fifo", [False, True])
def test_the_mark_of_a_stranger_goes_along_with_every_move_and_ends_with_an_edit(fifo: bool) -> None:
    app = onefold.App("bank")
    queue = app.queue("payments", fifo=fifo)
    ran: list[str] = []

    @app.job(queue, key="{order_id}", group="{order_id}" if fifo else None)
    def pay(order: Order) -> None:
        ran.append(order.order_id)

    end = ".fifo" if fifo else ""
    with inline(app) as world:
        queues = app.runtime().engine.queues
        at = {"group": "o-1", "dedup_id": "d"} if fifo else {}
        body = '{"order_id":"o-1"}'
        opened = queues.open(f"payments{end}")
        opened.send([Entry(body=body, attributes=claimed(key="o-9"), trusted=False, **at)])
        for _ in range(2):  # sent back as it is, it comes back for the same reason
            world.run()
            (letter,) = queues.peek(f"payments-dead{end}", limit=10)
            assert letter.reason is not None
            assert (letter.reason.kind, letter.trusted) == ("untrusted", False)
            back = letter.message_id
            for name in app.runtime().engine.state.names("stopped/"):
                app.runtime().engine.state.put([_gone(app, name)])
            queues.move([(back, None, None)])
        assert ran == []
        world.run()
        (letter,) = queues.peek(f"payments-dead{end}", limit=10)
        for name in app.runtime().engine.state.names("stopped/"):
            app.runtime().engine.state.put([_gone(app, name)])
        queues.move([(letter.message_id, None, Edit(body=body, attributes=claimed()))])
        world.run()
        assert ran == ["o-1"]


def _gone(app: onefold.App, name: str) -> Any:
    (found,) = app.runtime().engine.state.get([name])
    assert found is not None
    return Change(name, None, found.version)


def test_what_lambda_received_is_verified_as_what_a_worker_received(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_SECRET", SECRET)
    clock, entropy = ManualClock(NOW_MS), SeededEntropy(1)
    session: Any = None  # SQS is not asked
    queue = Sqs(session, clock=clock, entropy=entropy).queue("payments")
    body, mine = '{"order_id":"o-1"}', claimed(key="k", app="bank")
    signature = Signer(lambda: session, clock=clock, entropy=entropy).sign(mine, body)

    def record(attributes: dict[str, Attribute], signature: str | None) -> dict[str, Any]:
        texts = {name: str(one.value) for name, one in attributes.items()}
        if signature is not None:
            texts["onefold-signature"] = signature
        return {
            "messageId": "m", "receiptHandle": "h", "body": body,
            "attributes": {"SentTimestamp": str(NOW_MS), "ApproximateReceiveCount": "1"},
            "messageAttributes": {
                name: {"dataType": "String", "stringValue": text} for name, text in texts.items()
            },
        }  # fmt: skip

    records = [record(mine, signature), record(mine, None), record({**mine, **claimed(key="other")}, signature)]
    assert [one.trusted for one in queue.adopt(records, 30_000)] == [True, False, False]
