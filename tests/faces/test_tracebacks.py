"""An operator sees where a run failed: frames without locals, bounded, wherever the failure is shown (design 12.6)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import onefold
import onefold.testing
from onefold.cli import main
from onefold.contracts.queue import Reason
from onefold.engines.aws import sending
from onefold.engines.aws.messages import Form, Received
from onefold.observe.log_fields import fields_of, hashed, json_line, plain_line
from onefold.record.delivery import Failed
from onefold.record.error_text import TRACE_CHARS_MAX
from onefold.record.failures import classify
from onefold.runtime.events import Event
from tests.faces import traced

RECEIVED = Received(
    message_id="m-1",
    handle="h",
    form=Form(body="{}"),
    receive_count=1,
    sent_at_ms=0,
    first_received_at_ms=0,
    sequence=None,
    moved_from_arn=None,
)
DETAIL = "DETAIL: the book has 3 pages\\x1b[2J"
SECRET = "4111111111111111"


def failed(raising: object) -> Failed:
    try:
        raising()  # type: ignore[operator]
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return classify(error, now_ms=0)
    raise AssertionError("it raises")


def charge() -> None:
    card_number = SECRET
    raise ValueError(f"no order, {len(card_number)} digits")


def test_a_failure_says_where_it_was_raised_and_no_value_of_a_variable() -> None:
    found = failed(charge)
    line = charge.__code__.co_firstlineno + 2
    assert found.at == f"test_tracebacks.py:{line} in charge"
    assert f'File "{__file__}", line {line}, in charge' in found.trace
    assert found.trace.splitlines()[-1] == "ValueError: no order, 16 digits"
    assert SECRET not in found.trace


def test_causes_come_first_and_suppressed_ones_do_not_come() -> None:
    def chained() -> None:
        try:
            charge()
        except ValueError as error:
            raise KeyError("outer") from error

    def handled() -> None:
        try:
            charge()
        except ValueError:
            raise KeyError("outer")  # noqa: B904

    def hidden() -> None:
        try:
            charge()
        except ValueError:
            raise KeyError("outer") from None

    text = failed(chained).trace
    assert text.index("ValueError: no order") < text.index("direct cause") < text.index("KeyError: 'outer'")
    assert "While the exception above was handled" in failed(handled).trace
    assert "ValueError" not in failed(hidden).trace


def deep(left: int) -> None:
    if left:
        deep(left - 1)
    raise ValueError("x" * 100_000)


def test_a_trace_is_bounded_whatever_is_raised() -> None:
    class Endless(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def long_chain() -> None:
        error: BaseException = ValueError("0")
        for number in range(50):
            following = ValueError(f"{number} " + "y" * 5_000)
            following.__cause__ = error
            error = following
        error.__context__ = error
        raise error

    def endless() -> None:
        raise Endless

    found = failed(lambda: deep(500))
    assert len(found.trace) <= TRACE_CHARS_MAX
    assert "frames are left out" in found.trace
    assert found.at.endswith("in deep")
    assert len(failed(long_chain).trace) <= TRACE_CHARS_MAX
    assert failed(endless).trace.endswith("Endless")


def test_text_of_a_trace_is_masked_and_printable() -> None:
    def leaks() -> None:
        raise ValueError("redis://:s3cr3t@h/0 \x1b[2J \u202e")

    found = failed(leaks)
    assert "s3cr3t" not in found.trace
    assert "\x1b" not in found.trace
    assert "\u202e" not in found.trace


def test_the_exceptions_own_text_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_ERROR_TEXT", "off")
    with onefold.testing.inline(traced.app) as world:
        traced.book.send({"order_id": "private"})
        world.run()
    shown = msgspec.json.encode([event.detail for event in world.events]).decode()
    assert "no such order" not in shown
    assert "invalid literal" not in shown
    (dead,) = [event for event in world.events if event.name == "dead-letter"]
    assert dead.detail["error"] == "RuntimeError"
    assert "in charge" in str(dead.detail["trace"])
    assert "in charge" in str(dead.detail["summary"])


def test_sqs_keeps_the_last_frames_beside_a_long_text() -> None:
    def fails() -> None:
        raise ValueError("\n".join(["x" * 300] * 6))

    trace = failed(fails).trace
    sent = sending.dead_letter_copy(
        RECEIVED, Reason(kind="permanent", summary="x", trace=trace), "work", fifo=False
    ).reason
    assert sent is not None
    assert len(sent.trace or "") <= 1_000
    assert "in test_sqs_keeps" in (sent.trace or "")
    assert "ValueError: xxx" in (sent.trace or "")


def test_a_test_world_and_a_sink_have_the_frames() -> None:
    with onefold.testing.inline(traced.app) as world:
        traced.book.send({"order_id": "o-1"})
        world.run()
    (dead,) = [event for event in world.events if event.name == "dead-letter"]
    assert dead.severity == "error"
    where = str(dead.detail["where"])
    assert where.startswith("traced.py:")
    assert where.endswith(" in charge")
    assert "invalid literal" in str(dead.detail["trace"])  # the cause
    assert SECRET not in str(dead.detail)
    assert json.loads(json_line(fields_of(dead)))["where"] == where
    hashed_keys = str(dead.detail["trace"]).replace("'o-1'", hashed("o-1"))
    assert json.loads(json_line(fields_of(dead)))["trace"] == hashed_keys
    assert f"where={where}" in plain_line(fields_of(dead))
    assert f"summary=no such order {hashed('o-1')} | " + DETAIL in plain_line(fields_of(dead))
    assert dead.detail["summary"] == "no such order 'o-1' [+1 line]"
    assert "\n" not in plain_line(fields_of(dead))


def test_frames_reach_the_dead_letter_the_command_and_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    url = f"sqlite:///{tmp_path}/shop.db"
    monkeypatch.setenv("ONEFOLD_URL", url)
    app = "tests.faces.traced:app"
    monkeypatch.setattr(traced.app, "url", url)
    assert main.run(["send", "book", '{"order_id": "o-7"}', app]) == 0
    assert main.run(["worker", app, "--until-empty"]) == 0
    capsys.readouterr()

    assert main.run(["dlq", "show", app, "--key", "o-7"]) == 0
    shown = capsys.readouterr().out
    assert "in charge" in shown
    assert f"RuntimeError: no such order 'o-7'\n      {DETAIL}\n" in shown
    assert SECRET not in shown
    assert main.run(["dlq", "show", app, "--key", "o-7", "--json"]) == 0
    assert "in charge" in json.loads(capsys.readouterr().out)["trace"]
    assert main.run(["why", "o-7", app, "--json"]) == 0
    lines = json.loads(capsys.readouterr().out)["stories"][0]["lines"]
    assert any("in charge" in (line["trace"] or "") and DETAIL in line["trace"] for line in lines)
    assert main.run(["why", "o-7", app]) == 0
    assert "in charge)" in " ".join(capsys.readouterr().out.split())


def test_a_reason_of_the_version_before_is_read() -> None:
    old = b'{"kind":"permanent","summary":"no"}'
    assert msgspec.json.decode(old, type=Reason).trace is None
    assert b"trace" not in msgspec.json.encode(Reason(kind="permanent", summary="no"))


def test_an_event_without_frames_is_as_before() -> None:
    event = Event(at_ms=0, name="released", detail={"why": "drain"})
    assert "trace" not in json.loads(json_line(fields_of(event)))


def test_frames_of_onefold_before_the_handler_are_left_out() -> None:
    with onefold.testing.inline(traced.app) as world:
        traced.book.send({"order_id": "o-2"})
        world.run()
    (dead,) = [event for event in world.events if event.name == "dead-letter"]
    first = next(row for row in str(dead.detail["trace"]).split("Traceback")[-1].splitlines() if "File" in row)
    assert "in book" in first
