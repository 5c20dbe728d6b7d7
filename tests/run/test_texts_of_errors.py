"""What exceptions of the app's own code say, wherever one may be raised: bounded, masked, switched off, never a crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

import onefold
from onefold.contracts.entries import Entry
from onefold.testing import inline
from onefold.testing.inline import World

LEAK = "cannot reach redis://:hunter2@h/0 \x1b[2J\x9b31m\u202e"
SECRET = "SECRETBODY"


class WordlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class Checked(pydantic.BaseModel):
    id: str
    text: str

    @pydantic.field_validator("text")
    @classmethod
    def refuse(cls, text: str) -> str:
        if text == "wordless":
            raise WordlessError
        if text == "key":
            raise LookupError(LEAK)
        if text != "fine":
            raise ValueError(f"validator saw {text}")
        return text


@dataclass
class Order:
    id: str
    text: str


class Texts:
    """An app in which everything that may fail fails with what the payload says."""

    def __init__(self) -> None:
        self.app = app = onefold.App("texts")
        self.read: list[str] = []
        again = onefold.Retry(attempts=2, base="0s")

        def prober(order: Order) -> Any:
            if order.text == "wordless":
                raise WordlessError
            if order.text.startswith("why "):
                return onefold.StillUnknown(order.text)
            raise ValueError(f"probe {order.text}")

        async def prober_in_task(order: Order) -> Any:
            return prober(order)

        @app.job(app.queue("probed"), key="{id}", on_unknown=prober, retry=again)
        def probed(order: Order) -> str:
            raise onefold.OutcomeUnknown("the line went dead")

        @app.job(app.queue("tasks"), key="{id}", on_unknown=prober_in_task, retry=again)
        async def probed_in_task(order: Order) -> str:
            raise onefold.OutcomeUnknown("the line went dead")

        @app.job(app.queue("typed"), key="{id}")
        def typed(order: Order) -> int:
            return order.text  # type: ignore[return-value]

        @app.job(app.queue("untyped"), key="{id}")
        def untyped(order: Order) -> Any:
            return {"at": Wordless(order.text)}

        @app.job(app.queue("checked"), key="{id}")
        def checked(order: Checked) -> None:
            self.read.append(order.id)

        self.jobs: dict[str, Any] = {"probed": probed, "tasks": probed_in_task, "typed": typed, "untyped": untyped}

    def shown(self, world: World) -> str:
        """All that is kept of what happened: events, rows, records' failures, reasons of letters."""
        engine = self.app.runtime().engine
        kept: list[object] = [(one.name, one.detail) for one in world.events]
        for name in [*self.app.queues, *(f"{name}-{end}" for name in self.app.queues for end in ("dead", "held"))]:
            kept += [one.reason for one in engine.queues.peek(name, limit=10)]
        for job in self.jobs.values():
            key = job.outgoing(Order("o-1", "")).record
            kept += [record.failure for record in engine.store.read([key], world.clock.now_ms()) if record is not None]
            kept += list(engine.ledger.of_key(key))
        return msgspec.json.encode(kept, enc_hook=repr).decode() + repr(kept)


class Wordless:
    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def run(texts: Texts, queue: str, text: str) -> str:
    with inline(texts.app) as world:
        body = msgspec.json.encode({"id": "o-1", "text": text}).decode()
        texts.app.runtime().engine.queues.open(queue).send([Entry(body=body)])
        world.run_for(3_000)
        return texts.shown(world)


@pytest.mark.parametrize("queue", ["probed", "tasks"])
def test_a_probe_whose_error_cannot_be_put_into_words_has_not_answered(queue: str) -> None:
    assert "The probe failed: WordlessError" in run(Texts(), queue, "wordless")


def test_a_validator_whose_error_cannot_be_put_into_words_makes_a_message_malformed() -> None:
    texts = Texts()
    with inline(texts.app) as world:
        queue = texts.app.runtime().engine.queues.open("checked")
        queue.send([Entry(body='{"id":"o-1","text":"wordless"}'), Entry(body='{"id":"o-2","text":"fine"}')])
        world.run()
        assert texts.read == ["o-2"]
        assert world.depth("checked-dead").visible == 1
        assert "Reading it raised WordlessError" in texts.shown(world)


@pytest.mark.parametrize(
    ("queue", "text"), [("probed", LEAK), ("probed", f"why {LEAK}"), ("tasks", LEAK), ("checked", "key")]
)
def test_what_is_kept_of_them_is_masked_and_printable(queue: str, text: str) -> None:
    shown = run(Texts(), queue, text)
    assert "cannot reach" in shown
    assert "hunter2" not in shown
    assert not any(sign in shown for sign in ("\x1b", "\x9b", "\u202e"))


@pytest.mark.parametrize("queue", ["probed", "tasks", "typed", "untyped", "checked"])
def test_nothing_of_them_is_kept_where_their_text_is_switched_off(queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_ERROR_TEXT", "off")
    shown = run(Texts(), queue, SECRET)
    assert "its text is switched off" in shown
    assert SECRET not in shown
