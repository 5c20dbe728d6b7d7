"""What exceptions say passes through one place: cut, masked, and not at all where it is switched off."""

from __future__ import annotations

from typing import Any

import msgspec
import pydantic
import pytest

import onefold
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from onefold.contracts.store import RecordKey
from onefold.testing import World, inline

PRIVATE, PW = "SECRETBODY", "hunter2"
RETRY = onefold.Retry(attempts=2, base="1s", jitter="none")


class Bad(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class Checked(pydantic.BaseModel):
    id: str

    @pydantic.field_validator("id")
    @classmethod
    def refuse(cls, value: str) -> str:
        if value.startswith("refused"):
            raise ValueError(f"validator saw {value}")
        return value


def everything(world: World, job: str, queue: str) -> str:
    """All that is kept of the one operation `k`: record, history, dead and held letters, events."""
    engine = world.app.runtime().engine
    letters = [one for end in ("dead", "held") for one in engine.queues.peek(f"{queue}-{end}", limit=10)]
    kept: list[Any] = [
        [one.failure for one in engine.store.read([RecordKey("", job, "k")], world.clock.now_ms()) if one is not None],
        [row.detail for row in engine.ledger.of_key(RecordKey("", job, "k"))],
        [one.reason for one in letters],
        [event.detail for event in world.events],
    ]
    return msgspec.json.encode(kept).decode()


def probed(*raised: BaseException | onefold.StillUnknown) -> tuple[onefold.App, Any]:
    app = onefold.App("shop", history="full")
    found = iter(raised)

    def ask(order: dict[str, str]) -> Any:
        answer = next(found)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @app.job(app.queue("orders"), key="{id}", on_unknown=ask, retry=RETRY)
    def ship(order: dict[str, str]) -> str:
        raise onefold.OutcomeUnknown("the line went dead")

    return app, ship


@pytest.mark.parametrize(
    "answer",
    [Bad(), ConnectionError(f"cannot reach redis://:{PW}@h \x9b31m\u202e"), onefold.StillUnknown(f"redis://:{PW}@h \u202e")],
    ids=["no-text", "password", "still-unknown"],
)  # fmt: skip
def test_what_a_probe_says_neither_ends_the_worker_nor_is_kept_as_it_is(answer: Any) -> None:
    app, ship = probed(answer, onefold.StillUnknown("ask a person"))
    with inline(app) as world:
        ship.send({"id": "k"})
        world.run_for(60_000)
        kept = everything(world, "ship", "orders")
        assert "held" in world.names()
    assert not {PW, "\x9b", "\u202e"} & {PW if PW in kept else "", *kept}


@pytest.mark.parametrize("value", ["text", "field", "object"])
def test_a_result_that_cannot_be_stored_is_not_quoted(value: str) -> None:
    app = onefold.App("shop", history="full")

    class Own:
        def __repr__(self) -> str:
            return PRIVATE

    results: dict[str, Any] = {"text": PRIVATE, "field": {"a": Own()}, "object": Own()}

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> int:
        return results[value]  # type: ignore[no-any-return]

    with inline(app) as world:
        ship.send({"id": "k"})
        world.run()
        assert "held" in world.names()
        assert PRIVATE not in everything(world, "ship", "orders")


@pytest.mark.parametrize("case", ["probe", "result", "validator"])
def test_switched_off_means_everywhere(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_ERROR_TEXT", "off")
    app, ship = probed(ValueError(f"probe {PRIVATE}"))
    job, payload = "ship", {"id": "k"}
    if case == "result":
        app = onefold.App("shop", history="full")

        @app.job(app.queue("orders"), key="{id}")
        def book(order: dict[str, str]) -> Any:
            return {PRIVATE: object()}

        job, ship = "book", book
    if case == "validator":
        app = onefold.App("shop", history="full")

        @app.job(app.queue("orders"), key="k-{id}")
        def check(order: Checked) -> None: ...

        job = "check"
    with inline(app) as world:
        if case == "validator":
            queue = app.runtime().engine.queues.open("orders")
            queue.send([Entry(body=f'{{"id":"refused {PRIVATE}"}}', attributes={"onefold.job": Attribute(job)})])
        else:
            ship.send(payload)
        world.run_for(60_000)
        kept = everything(world, job, "orders")
        assert {"held", "dead-letter", "malformed"} & {*world.names()}
    assert PRIVATE not in kept
    assert "switched off" in kept
