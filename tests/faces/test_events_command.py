"""`onefold events` as a person and as a program see it."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.admin.session import AdminSession
from onefold.cli import main
from onefold.events import replay

TOWN = """
import onefold

app = onefold.App("town")
billing = app.queue("billing")
log = app.queue("log")
orders = app.bus("orders")
orders.rule("to-billing", {"detail-type": ["Order placed"]}, to=billing, input_path="$.detail")
orders.rule("to-log", {"source": [{"prefix": "sh"}]}, to=log)
orders.archive("all", retention="30d")


@app.job(billing, key="{id}")
def bill(order: dict) -> str:
    return order["id"]
"""
PLACED = {"Source": "shop", "DetailType": "Order placed", "Detail": {"id": "o-1"}, "Time": "2026-06-01T02:00:00Z"}
JUNE = ("--from", "2026-06-01T00:00:00Z", "--to", "2026-07-01T00:00:00Z")


class Shell:
    """Runs commands in one folder, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.said = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = main.run(("events", *words))
        out, self.said = self._capsys.readouterr()
        assert found == code, f"{words}: {found}\n{out}{self.said}"
        assert "Traceback" not in out + self.said
        return out

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    for name in ("ONEFOLD_APP", "ONEFOLD_URL", "ONEFOLD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "town.py").write_text(TOWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    yield Shell(capsys)
    sys.modules.pop("town", None)


def test_put_answers_as_putevents_does(shell: Shell) -> None:
    answer = shell.json("put", json.dumps([PLACED, {**PLACED, "Detail": "x"}]), "town:app", code=1)
    good, bad = answer["Entries"]
    assert answer["FailedEntryCount"] == 1
    assert (len(good["event_id"]), bad["error_code"]) == (36, "MalformedDetail")
    assert shell("put", json.dumps({"Entries": [PLACED]}), "town:app").startswith("put: event ")
    assert "not taken: MalformedDetail" in shell("put", json.dumps({**PLACED, "Detail": "x"}), "town:app", code=1)
    assert shell.json("archives", "town:app")["archives"][0]["events"] == 2


def test_entries_come_from_a_file_or_standard_input(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("entries.json").write_text(json.dumps([PLACED]))
    shell("put", "entries.json", "town:app", "--bus", "orders")
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps([PLACED])))
    shell("put", "-", "town:app")
    assert shell.json("archives", "town:app")["archives"][0]["events"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("put", "none.json", "town:app"), "none.json cannot be read: No such file or directory."),
        (("put", "[1, 2", "town:app"), "The entries are not JSON"),
        (("put", "[1]", "town:app"), "An entry is an object"),
        (("put", '{"source": "x"}', "town:app"), "An entry has no field 'source'"),
        (("put", "{}", "town:app", "--bus", "none"), "no bus 'none'"),
        (("rules", "town:app", "--event", "[]"), "The event is not a JSON object"),
        (("test", "--pattern", '{"a": 1}', "--event", "{}"), "must be an object or an array"),
        (("test", "--pattern", '{"a": [1]}', "--event", "{"), "The event is not JSON"),
        (("archive", "none", "town:app"), "no archive 'none'"),
        (("archive", "all", "town:app", "--from", "June"), "--from 'June' cannot be read"),
        (("replay", "none", "town:app", "--name", "r", *JUNE), "no archive 'none'"),
        (("replay", "all", "town:app", "--name", "a/b", *JUNE), "not a valid name for a replay"),
        (("replay", "all", "town:app", "--name", "r", "--rule", "none", *JUNE), "no rule 'none'"),
        (("cancel", "none", "town:app"), "no replay 'none'"),
    ],
)
def test_what_cannot_be_done_is_said(shell: Shell, words: tuple[str, ...], said: str) -> None:
    assert shell(*words, code=1) == ""
    assert said in shell.said
    assert "to do:" in shell.said


def test_an_empty_list_of_entries_is_wrong_usage(shell: Shell) -> None:
    for empty in ("[]", '{"Entries": []}'):
        assert shell("put", empty, "town:app", code=2) == ""
        assert "There are 0 events in the entries; nothing was put." in shell.said


def test_a_running_replay_is_cancelled_once(shell: Shell) -> None:
    shell("put", json.dumps([PLACED]), "town:app")
    import town  # type: ignore[import-not-found]

    replay.begin(town.orders, town.app.runtime(), "all", 0, 2**40, name="r")
    ended = "Replay r of all: cancelled; 0 events, 0 messages.\n"
    assert shell("cancel", "r", "town:app") == ended
    assert shell("cancel", "r", "town:app") == f"Nothing was cancelled: the replay was already cancelled.\n{ended}"


def test_fields_that_are_spelt_as_in_an_entry_are_told_how_an_event_has_them(shell: Shell) -> None:
    pattern, event = '{"Source": ["shop"]}', '{"Source": "shop", "DetailType": "x", "detail": {}}'
    drawn = shell("test", "--pattern", pattern, "--event", event)
    assert "The pattern has Source" in drawn
    assert "The event has DetailType" in drawn
    assert "it is detail-type." in drawn
    answer = shell.json("test", "--pattern", '{"source": ["shop"]}', "--event", '{"source": "shop"}')
    assert (answer["matches"], answer["hints"]) == (True, [])


def test_rules_are_listed_and_asked_about_an_event(shell: Shell) -> None:
    drawn = shell("rules", "town:app")
    assert "to-billing" in drawn
    assert "$.detail" in drawn
    found = shell.json("rules", "town:app", "--event", '{"source": "shop", "detail-type": "x"}')["rules"]
    assert [(one["rule"], one["matches"]) for one in found] == [("to-billing", False), ("to-log", True)]
    assert "yes" in shell("rules", "town:app", "--event", '{"source": "shop"}')


def test_test_says_why_a_pattern_does_not_match(shell: Shell) -> None:
    Path("pattern.json").write_text('{"detail": {"total": [{"numeric": [">", 5]}]}}')
    Path("event.json").write_text('{"detail": {"total": 7}}')
    assert shell("test", "--pattern", "pattern.json", "--event", "event.json") == "matches\n"
    assert shell("test", "--pattern", "pattern.json", "--event", '{"detail": {"total": "7"}}', code=1) == (
        'does not match\n  $.detail.total should be one of [{"numeric":[">",5]}], but it is "7"\n'
    )
    found = shell.json("test", "--pattern", "pattern.json", "--event", "{}", code=1)
    assert (found["matches"], found["reasons"][0]["field"]) == (False, "$.detail.total")


def test_an_archive_is_shown_and_replayed(shell: Shell) -> None:
    shell("put", json.dumps([PLACED, {**PLACED, "Time": "2026-07-01T00:00:00Z"}]), "town:app")
    (line,) = shell("archive", "all", "town:app", *JUNE).splitlines()
    assert line.startswith("2026-06-01T02:00:00Z  {")
    assert len(shell.json("archive", "all", "town:app")["events"]) == 2
    assert "30d" in shell("archives", "town:app")
    assert shell("replay", "all", "town:app", "--name", "r", "--dry-run", *JUNE) == "1 event would be replayed.\n"
    assert shell("replays", "town:app") == "No replays.\n"
    told = "Replay r of all: completed; 1 event, 2 messages.\n"
    assert shell("replay", "all", "town:app", "--name", "r", *JUNE) == told
    assert shell("replays", "town:app") == told
    assert shell("cancel", "r", "town:app") == f"Nothing was cancelled: the replay was already completed.\n{told}"
    shell("replay", "all", "town:app", "--name", "r", *JUNE, code=1)
    assert "exists: completed" in shell.said


def test_what_a_target_refused_is_listed_and_delivered_again(shell: Shell) -> None:
    town = Path("town.py").read_text()
    Path("town.py").write_text(town.replace('"$.detail")', '"$.detail.order")'))
    shell("put", json.dumps([PLACED, {**PLACED, "Detail": {"id": "o-2"}}]), "town:app")
    first, second = shell.json("undelivered", "town:app")["undelivered"]
    assert (first["rule"], first["target"], first["code"]) == ("to-billing", "billing", "INVALID_PARAMETER")
    assert "InputPath $.detail.order leads to nothing." in shell("undelivered", "town:app", "--rule", "to-billing")
    assert shell("undelivered", "town:app", "--rule", "to-log") == "Everything was delivered.\n"
    assert "refused again: InputPath" in shell("redeliver", "town:app", code=1)
    shell("redeliver", "m-none", "town:app", code=1)
    assert "not an event that a rule could not deliver" in shell.said
    assert len(shell.json("undelivered", "town:app")["undelivered"]) == 2

    Path("town.py").write_text(town)
    sys.modules.pop("town")
    importlib.invalidate_caches()
    assert shell("redeliver", second["message_id"], "town:app") == "1 event delivered.\n"
    assert shell.json("redeliver", "town:app")["sent"] == [first]
    assert shell.json("undelivered", "town:app") == {"undelivered": []}
    app = sys.modules["town"].app
    assert [one.body for one in app.runtime().engine.queues.peek("billing")] == ['{"id":"o-2"}', '{"id":"o-1"}']
    app.close()


def test_what_has_no_row_in_the_history_was_not_delivered_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    town = Path("town.py").read_text()
    Path("town.py").write_text(town.replace('"$.detail")', '"$.detail.order")'))
    shell("put", json.dumps(PLACED), "town:app")
    Path("town.py").write_text(town)
    sys.modules.pop("town")
    importlib.invalidate_caches()

    def full(*_: object, **__: object) -> None:
        raise onefold.errors.StorageBusy("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(AdminSession, "record", full)
        shell("redeliver", "town:app", code=1)
        assert "the disk is full" in shell.said
    assert len(shell.json("undelivered", "town:app")["undelivered"]) == 1
    assert shell("redeliver", "town:app") == "1 event delivered.\n"


def test_an_app_without_a_bus_says_how_to_declare_one(shell: Shell) -> None:
    Path("town.py").write_text("import onefold\napp = onefold.App('town')\n")
    shell("put", "{}", "town:app", code=1)
    assert "0 buses" in shell.said
    assert 'app.bus("orders")' in shell.said
    assert shell("rules", "town:app") == "No rules are declared.\n"
    assert shell("archives", "town:app") == "No archives are declared.\n"
