"""A time limit by a signal that ends while a payload or result is encoded or read: it is no error of the payload.

The signal is raised by the payload's own code, so it always arrives at the same place.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import ClassVar

import pytest

import onefold
from onefold.admin import dead_letters
from onefold.admin.session import AdminSession, jobs_of
from onefold.contracts.entries import Entry
from onefold.contracts.queue import JOB_ATTRIBUTE, Attribute
from onefold.testing import inline
from tests.run.workshop import finished

Limit = type[Exception]
_ARMED: list[str] = []


@dataclass
class Part:
    """A value whose own code runs when it is decoded, and when it is compared with what was sent."""

    name: str

    def __post_init__(self) -> None:
        limit("made")

    def __eq__(self, other: object) -> bool:
        limit("compared")
        return isinstance(other, Part) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]  # it is compared by its fields


def limit(place: str) -> None:
    """End the time limit here, if it is armed for this place."""
    if place in _ARMED:
        _ARMED.remove(place)
        signal.raise_signal(signal.SIGALRM)


@pytest.fixture(params=[ValueError, TypeError, ArithmeticError, RecursionError, TimeoutError])
def error(request: pytest.FixtureRequest) -> Iterator[Limit]:
    """The class that the signal's handler raises."""
    kind: Limit = request.param

    def ends(_number: int, _frame: object) -> None:
        raise kind("time limit")

    before = signal.signal(signal.SIGALRM, ends)
    yield kind
    signal.signal(signal.SIGALRM, before)
    _ARMED.clear()


@pytest.mark.parametrize("place", ["made", "compared"])
def test_a_call_whose_result_is_being_recorded_is_recorded_and_its_caller_hears_the_limit(
    tmp_path: Path, error: Limit, place: str
) -> None:
    calls = []

    @onefold.once(key="{id}", store=onefold.store(f"sqlite:///{tmp_path / 'r.db'}"), on_unknown="hold")
    def report(id: str) -> Part:  # noqa: A002 - the key's field
        part = Part(id)
        calls.append(id)
        _ARMED.append(place)
        return part

    with pytest.raises(error, match="time limit") as caught:
        report("a")
    assert type(caught.value) is error
    assert _ARMED == []
    assert report("a").name == "a"
    assert calls == ["a"]


@pytest.mark.parametrize("place", ["made", "compared"])
def test_a_send_raises_the_limit_and_sends_nothing(tmp_path: Path, error: Limit, place: str) -> None:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'e.db'}")

    @app.job(app.queue("orders"), key="{name}")
    def ship(part: Part) -> None: ...

    part = Part("a")
    _ARMED.append(place)
    with pytest.raises(error, match="time limit") as caught:
        ship.send(part)
    assert type(caught.value) is error
    assert app.runtime().engine.queues.depth("orders").visible == 0
    assert ship.send(part).found == "new"
    app.close()


def test_a_message_that_is_being_read_is_not_malformed(error: Limit) -> None:
    app = onefold.App("shop")

    @app.job(app.queue("orders"), key="{name}")
    def ship(part: Part) -> str:
        return part.name

    with inline(app) as world:
        ship.send(Part("a"))
        _ARMED.append("made")
        with pytest.raises(error, match="time limit"):
            world.run()
        world.run_for(120_000)
        world.run()
        assert ship.look("a").result == "a"


@pytest.mark.parametrize("place", ["made", "compared"])
def test_a_job_whose_result_is_being_encoded_has_completed(error: Limit, place: str) -> None:
    app = onefold.App("shop")

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> Part:
        part = Part(order["id"])
        _ARMED.append(place)
        return part

    with inline(app) as world:
        ship.send({"id": "a"})
        world.run()
        assert ship.look("a").state == "done"
        assert _ARMED == []


def test_a_key_function_that_is_interrupted_has_not_failed(tmp_path: Path, error: Limit) -> None:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'e.db'}")

    def key_of(order: dict[str, str]) -> str:
        limit("key")
        return order["id"]

    @app.job(app.queue("orders"), key=key_of)
    def ship(order: dict[str, str]) -> None: ...

    _ARMED.append("key")
    with pytest.raises(error, match="time limit"):
        ship.send({"id": "a"})
    app.close()


@dataclass
class Order:
    """A payload whose reading ends the program, as a parser of command lines in a validator does."""

    ends: ClassVar[tuple[str, type[BaseException]]]
    id: str

    def __post_init__(self) -> None:
        self.end("type")

    def end(self, place: str) -> None:
        if self.id == "bad" and place == self.ends[0]:
            raise self.ends[1]


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["type", "key"])
def test_a_type_or_key_that_ends_the_program_makes_its_message_malformed(kind: type[BaseException], place: str) -> None:
    app = onefold.App("shop")

    def key_of(order: Order) -> str:
        order.end("key")
        return order.id

    Order.ends = (place, kind)

    @app.job(app.queue("orders"), key=key_of)
    def ship(order: Order) -> str:
        return order.id

    with inline(app) as world:
        attributes = {JOB_ATTRIBUTE: Attribute("ship")}
        queue = app.runtime().engine.queues.open("orders")
        queue.send([Entry(body=f'{{"id":"{name}"}}', attributes=attributes) for name in ("bad", "good")])
        world.run()
        assert ship.look("good").result == "good"
        session = AdminSession(app.runtime(), actor="person:me", jobs=jobs_of(app))
        (letter,) = [dead_letters.letter(session, one) for one in dead_letters.find(session, dead_letters.Select())]
        assert letter.reason == "malformed"
        assert letter.summary == f"Reading it raised {kind.__name__}."


@pytest.mark.parametrize("way", ["Ctrl-C", "a handler's own"])
def test_a_real_ctrl_c_while_a_payload_is_read_is_one(way: str) -> None:
    app = onefold.App("shop")

    def key_of(order: dict[str, str]) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return order["id"]

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    @app.job(app.queue("orders"), key=key_of)
    def ship(order: dict[str, str]) -> str:
        return order["id"]

    before = signal.signal(signal.SIGINT, signal.default_int_handler if way == "Ctrl-C" else interrupt)
    try:
        with inline(app) as world:
            queue = app.runtime().engine.queues.open("orders")
            queue.send([Entry(body='{"id":"a"}', attributes={JOB_ATTRIBUTE: Attribute("ship")})])
            with pytest.raises(KeyboardInterrupt):
                world.run()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("place", ["type", "key"])
def test_a_ctrl_c_that_a_type_or_key_raises_itself_makes_its_message_malformed(tmp_path: Path, place: str) -> None:
    """In a worker's threads, and where SIGINT is handled, nobody's Ctrl-C can be meant."""
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'shop.db'}")

    def key_of(order: Order) -> str:
        order.end("key")
        return order.id

    Order.ends = (place, KeyboardInterrupt)

    @app.job(app.queue("orders"), key=key_of)
    def ship(order: Order) -> str:
        return order.id

    attributes = {JOB_ATTRIBUTE: Attribute("ship")}
    queue = app.runtime().engine.queues.open("orders")
    queue.send([Entry(body=f'{{"id":"{name}"}}', attributes=attributes) for name in ("bad", "good")])
    _, told = finished(app)
    (letter,) = told.of("malformed")
    assert letter.detail["summary"] == "Reading it raised KeyboardInterrupt."
    assert ship.look("good").result == "good"
    app.close()


@pytest.mark.slow
def test_the_command_goes_on_after_a_type_that_raises_a_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "shop_app.py").write_text(CTRL_C)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def run(*code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", *code], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip

    sent = run("import shop_app; shop_app.fill()")
    assert (sent.returncode, sent.stderr) == (0, "")
    worker = run("from onefold.cli.main import main; main()", "worker", "shop_app:app", "--until-empty")
    assert "done 1" in worker.stdout
    assert "dead 1" in worker.stdout
    assert "Reading it raised KeyboardInterrupt." in worker.stderr
    assert "Traceback" not in worker.stderr
    listed = run("from onefold.cli.main import main; main()", "dlq", "list", "shop_app:app")
    assert (listed.returncode, "malformed" in listed.stdout) == (0, True)


CTRL_C = """
import os
from dataclasses import dataclass
import onefold
from onefold.contracts.entries import Entry
from onefold.contracts.queue import JOB_ATTRIBUTE, Attribute

app = onefold.App("shop", url="sqlite:///shop.db")

@dataclass
class Order:
    id: str

    def __post_init__(self) -> None:
        if self.id == "bad":
            raise KeyboardInterrupt

@app.job(app.queue("orders"), key="{id}")
def ship(order: Order) -> str:
    return order.id

def fill() -> None:
    attributes = {JOB_ATTRIBUTE: Attribute("ship")}
    bodies = [f'{{"id":"{name}"}}' for name in ("bad", "good")]
    app.runtime().engine.queues.open("orders").send([Entry(body=body, attributes=attributes) for body in bodies])
    app.close()
"""


class Sour:
    """A result whose own methods end the program while it is encoded."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        raise self.kind


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_result_that_ends_the_program_is_held_for_a_person(kind: type[BaseException], tmp_path: Path) -> None:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'shop.db'}")

    @app.job(app.queue("orders"), key="{id}")
    def ship(order: dict[str, str]) -> object:
        return Sour(kind) if order["id"] == "bad" else order["id"]

    for name in ("bad", "good"):
        ship.send({"id": name})
    _, told = finished(app)
    (held,) = told.of("held")
    assert str(held.detail["summary"]).startswith(f"The result could not be encoded: {kind.__name__}: ")
    assert ship.look("good").result == "good"
    app.close()


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
def test_a_probe_that_ends_the_program_has_not_answered(kind: type[BaseException], tmp_path: Path) -> None:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'shop.db'}")

    def ask(order: dict[str, str]) -> onefold.NotDone:
        raise kind

    @app.job(app.queue("orders"), key="{id}", on_unknown=ask, retry=onefold.Retry(base="0s"))
    def ship(order: dict[str, str]) -> str:
        if order["id"] == "bad":
            raise onefold.OutcomeUnknown("the line went dead")
        return order["id"]

    for name in ("bad", "good"):
        ship.send({"id": name})
    _, told = finished(app)
    asked = [event.detail["summary"] for event in told.of("retry") if event.detail["error"] == "ProbeFailed"]
    assert set(asked) == {f"The probe failed: {kind.__name__}: {kind.__name__}"}
    assert 1 <= len(asked) <= 10  # as often as the queue delivers it
    assert ship.look("good").result == "good"
    app.close()


class Remote:
    """A result of which nothing can be asked: a proxy outside of its context, a stub without its connection."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"not connected: {name}")


@pytest.mark.parametrize("has_hooks", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_of_which_nothing_can_be_asked_is_held_after_one_run(
    is_async: bool, has_hooks: bool, tmp_path: Path
) -> None:
    hooks = [onefold.Hooks()] if has_hooks else []
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'shop.db'}", hooks=hooks)
    charged: list[str] = []

    def charge(order: dict[str, str]) -> object:
        charged.append(order["id"])
        return Remote()

    async def awaited(order: dict[str, str]) -> object:
        return charge(order)

    job = app.job(app.queue("orders"), key="{id}", name="charge")(awaited if is_async else charge)
    job.send({"id": "o-1"})
    _, told = finished(app)
    (held,) = told.of("held")
    assert str(held.detail["summary"]).startswith("The result could not be encoded: RuntimeError: not connected")
    assert charged == ["o-1"]
    app.close()
