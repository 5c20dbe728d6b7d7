"""`onefold alarms` and `onefold watch`: what is on, what was, silences, tests, one look from a cron."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.faces.conftest import Shell

APP = """
import onefold

app = onefold.App("till")
orders = app.queue("orders")


@app.job(orders, key="{id}")
def book(payload: dict) -> None:
    raise onefold.PermanentError("There is no such customer.")


app.alarms(command=["sh", "-c", "cat >> got.jsonl; echo >> got.jsonl"], owner="billing")
"""


@pytest.fixture
def till(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    (shell.folder / "till.py").write_text(APP)
    monkeypatch.delitem(__import__("sys").modules, "till", raising=False)
    shell("send", "till:app", "book", '{"id": "o-1"}')
    shell("worker", "till:app", "--until-empty", "--no-progress")
    return shell


def got(folder: Path) -> list[dict[str, object]]:
    path = folder / "got.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_one_look_from_a_cron_sends_each_report_once(till: Shell) -> None:
    unwatched = till("alarms", "list", "till:app")
    assert "Whether an alarm is on is not known." in unwatched
    assert "No alarm is on." not in unwatched, "nobody has looked"
    found = till.json("watch", "till:app", "--once")
    assert [(one["alarm"], one["kind"]) for one in found["reports"]] == [("dlq-not-empty", "began")]
    assert till.json("watch", "till:app", "--once")["reports"] == []
    (sent,) = got(till.folder)
    assert (sent["alarm"], sent["subject"], sent["owner"], sent["app"]) == (
        "dlq-not-empty",
        "orders",
        "billing",
        "till",
    )
    shown = till("alarms", "list", "till:app")
    assert "dlq-not-empty of orders   page, on for" in shown
    assert "onefold dlq list till:app" in shown
    now = till.json("alarms", "list", "till:app")
    assert [(one["alarm"], one["phase"], one["first"]) for one in now["alarms"]] == [
        ("dlq-not-empty", "on", "onefold dlq list")
    ]
    (report,) = till.json("alarms", "history", "till:app")["reports"]
    assert report["incident"] == sent["incident"]
    assert "page began  1 dead letter in" in till("alarms", "history", "till:app")


def test_a_silence_is_kept_with_who_and_why(till: Shell) -> None:
    till("alarms", "silence", "dlq-not-empty/orders", "till:app", "--for", "2h", "--reason", "they know")
    till("watch", "till:app", "--once")
    assert got(till.folder) == []
    assert "page began, silenced" in till("alarms", "history", "till:app")
    shown = till("alarms", "list", "till:app")
    assert "dlq-not-empty/orders is silenced for 1h59m by ada: they know" in " ".join(shown.split())
    till("alarms", "silence", "dlq-not-empty/orders", "till:app", "--lift", "--reason", "done")
    till("watch", "till:app", "--once")
    assert [one["kind"] for one in got(till.folder)] == ["began"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["silence", "nonsense", "till:app", "--for", "2h", "--reason", "x"], 1, "There is no alarm 'nonsense'"),
        (["silence", "stalled/oders", "till:app", "--for", "2h", "--reason", "x"], 1, "Did you mean stalled/orders?"),
        (
            ["silence", "stalled/orders-dead", "till:app", "--for", "2h", "--reason", "x"],
            1,
            "There is no queue 'orders-d",
        ),
        (["silence", "lease-lost/bok", "till:app", "--for", "2h", "--reason", "x"], 1, "Did you mean lease-lost/book?"),
        (["silence", "stalled", "till:app", "--lift", "--reason", "x"], 1, "'stalled' is not silenced"),
        (["silence", "stalled", "till:app", "--for", "31d", "--reason", "x"], 1, "31 days is too long"),
        (["silence", "stalled", "till:app", "--for", "1h", "--reason", " "], 1, "needs a reason"),
        (["silence", "stalled", "till:app", "--reason", "x"], 2, "Say for how long"),
        (["silence", "stalled", "till:app", "--lift", "--for", "1h", "--reason", "x"], 2, "Say for how long"),
        (["silence", "stalled", "till:app", "--for", "1h"], 2, "reason"),
        (["test", "nonsense"], 1, "There is no alarm 'nonsense'"),
        (["test", "throttles"], 1, "only by cloudwatch"),
        (["test", "stalled", "shop:app"], 1, "does not say where its alarms go"),
    ],
)
def test_what_cannot_be_done_is_said(till: Shell, words: list[str], code: int, said: str) -> None:
    assert said in till.fails("alarms", *words, code=code)


def test_a_queue_or_job_of_the_app_that_nobody_has_used_can_be_silenced(shell: Shell) -> None:
    (shell.folder / "till.py").write_text(APP)
    sys.modules.pop("till", None)
    for name in ("stalled/orders", "lease-lost/book", "map-failed/later", "*"):
        assert "is silenced until" in shell("alarms", "silence", name, "till:app", "--for", "2h", "--reason", "x")


def test_the_table_of_alarms(shell: Shell) -> None:
    assert "completion-failed" in shell("alarms", "list", "--table")
    assert {one["name"] for one in shell.json("alarms", "list", "--table")["alarms"]} > {"stalled", "throttles"}


def test_a_test_says_when_it_began_and_ended_and_sends_to_the_apps_targets(till: Shell) -> None:
    assert "stalled: began 30m after its condition, ended 1m after" in till("alarms", "test", "stalled")
    found = till.json("alarms", "test", "held-not-empty", "till:app")
    assert found["targets"] == ["command"]
    assert [one["alarm"] for one in found["tests"]] == ["held-not-empty"]
    assert [(one["alarm"], one["kind"], one["drill"]) for one in got(till.folder)] == [
        ("held-not-empty", "began", True),
        ("held-not-empty", "ended", True),
    ]


def test_the_rules_for_prometheus_are_written(till: Shell) -> None:
    written = till("alarms", "rules", "till:app", "--prometheus")
    assert '- alert: "OnefoldCompletionFailed"' in written
    assert "onefold stuck till:app" in written
    found = till.json("alarms", "rules", "till:app", "--prometheus")
    assert found["prometheus"] == written
    assert "--prometheus" in till.fails("alarms", "rules", "till:app", code=2)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "The URL of webhook is to be read from env:TILL_HOOK, and nothing is there."),
        ("not a url", "What webhook names is not an http(s) URL."),
        ("http://127.0.0.1:1/x", "The webhook cannot be reached"),
    ],
)
def test_a_test_fails_if_a_target_did_not_take_a_report(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, value: str | None, said: str
) -> None:
    (shell.folder / "hooked.py").write_text(APP.replace("app.alarms(", 'app.alarms(webhook="env:TILL_HOOK", '))
    monkeypatch.delitem(sys.modules, "hooked", raising=False)
    if value is None:
        monkeypatch.delenv("TILL_HOOK", raising=False)
    else:
        monkeypatch.setenv("TILL_HOOK", value)
    shown = " ".join(shell("alarms", "test", "held-not-empty", "hooked:app", code=1).split())
    assert "sent to command: " in shown
    assert f"webhook did not get every report: {said}" in shown
    (test,) = shell.json("alarms", "test", "held-not-empty", "hooked:app", code=1)["tests"]
    assert list(test["unsent"]) == ["webhook"]
    assert test["sent"] == len(got(shell.folder)) // 2


def test_who_sends_reports_is_warned_of_a_target_whose_place_is_not_set(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shell.folder / "hooked.py").write_text(APP.replace("app.alarms(", 'app.alarms(webhook="env:TILL_HOOK", '))
    warning = "warning: The URL of webhook is to be read from env:TILL_HOOK, and nothing is there. Reports of alarms"
    for words in (("worker", "hooked:app", "--until-empty"), ("watch", "hooked:app", "--once")):
        for is_set in (False, True):
            monkeypatch.delitem(sys.modules, "hooked", raising=False)
            monkeypatch.delenv("TILL_HOOK", raising=False)
            if is_set:
                monkeypatch.setenv("TILL_HOOK", "http://127.0.0.1:1/x")
            shell(*words)
            assert (warning in " ".join(shell.said.split())) is not is_set
