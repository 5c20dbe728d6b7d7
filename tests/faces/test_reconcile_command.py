"""`onefold reconcile` and `onefold why SCHEDULE DATE` as a person and as a program see them, on a file."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from onefold.cli import main, outcomes, render
from onefold.clock import SystemClock
from onefold.reconcile.findings import ReconcileOutcome
from tests.faces.month import DUE_MS, RUN, Month, opened

BILLING = Path(__file__).with_name("billing.py")


class Shell:
    """Runs commands in one folder, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._folder = folder

    def month(self, customers: str) -> AbstractContextManager[Month]:
        return opened(self._folder, customers, module_name="billing", start_ms=SystemClock().now_ms())

    def __call__(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        found = main.run(words)
        out, said = self._capsys.readouterr()
        assert found == code, f"{words}: {found}\n{out}{said}"
        return out if code != 2 and not said else said

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "--json", code=code))

    def run(self, customers: str, *, lose: str = "", work: bool = True) -> None:
        """A tick, its dispatch, messages that are lost, and the work."""
        with self.month(customers) as there:
            there.app.runtime().send([there.module.monthly_billing.outgoing(DUE_MS)])
            there.dispatch_sent()
            there.lose(*lose.split())
            if work:
                there.world.run()

    def work(self) -> None:
        with self.month(Path("customers").read_text(encoding="utf-8")) as there:
            there.world.run()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    for name in ("ONEFOLD_APP", "ONEFOLD_URL", "ONEFOLD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(BILLING, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("TZ", "UTC")
    sys.modules.pop("billing", None)
    render.console.cache_clear()  # its width is that of the first drawing
    yield Shell(tmp_path, capsys)
    render.console.cache_clear()
    sys.modules.pop("billing", None)


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_a_run_that_is_as_it_should_be_ends_with_0(shell: Shell) -> None:
    shell.run("a b c")
    said = flat(shell("reconcile", "billing:app", RUN))
    assert f"{RUN} by reconcile-monthly_billing everything that was dispatched is done, and exists once" in said
    assert "3 dispatched: 3 done your own check: expected 3 keys, found 3" in said
    assert said.rstrip().endswith("Recorded in the run's history, as found by ada.")
    assert "Next:" not in said
    (found,) = shell.json("reconcile", "billing:app", RUN)["outcomes"]
    assert (found["verdict"], found["done"], found["look"], found["own"]["found"]) == ("agrees", 3, 0, 3)


def test_what_is_missing_is_found_planned_sent_again_and_done(shell: Shell) -> None:
    shell.run("a b c", lose="b")
    said = flat(shell("reconcile", "billing:app", "monthly_billing/2026-06", code=1))
    assert "NOT AS IT SHOULD BE 3 dispatched: 2 done, 1 missing" in said
    assert "- 1 missing: dispatched, not done, and no message of it is left." in said
    assert f"onefold reconcile {RUN} --repair billing:app (what would be sent again)" in said

    said = flat(shell("reconcile", "billing:app", RUN, "--repair", code=1))
    assert "2026-06/b charge bills its message is gone, and nothing ever claimed it" in said
    assert "Recorded in the run's history, as found by ada." in said
    assert "1 message would be sent again. Nothing was sent." in said
    assert shell.json("reconcile", "billing:app", RUN, "--repair", code=1)["repair"]["sent"] == 0

    said = flat(shell("reconcile", "billing:app", RUN, "--repair", "--yes", "--reason-text", "purged"))
    assert "1 message sent again, each under its own key." in said
    story = flat(shell("why", "2026-06/b", "billing:app"))
    assert "missing a reconciliation found it missing by ada; its message is gone, and nothing ever claimed it" in story
    assert "resent sent again by a repair, under its own key by ada; reason given: purged" in story
    said = flat(shell("reconcile", "billing:app", RUN, code=1))
    assert "nothing is wrong so far, but it is not all done 3 dispatched: 2 done, 1 waiting" in said
    shell.work()
    assert "exists once" in shell("reconcile", "billing:app", RUN)


def test_a_repair_that_cannot_be_whole_ends_with_1(shell: Shell) -> None:
    shell.run("a b! c", lose="a")
    Path("customers").write_text("b! c", encoding="utf-8")
    said = flat(shell("reconcile", "billing:app", RUN, "--repair", "--yes", code=1))
    assert "charge 2026-06/a is missing and cannot be sent again: its data has changed: its message" in said
    assert "There is nothing to send again." in said
    assert "onefold dlq list billing:app" in said


def test_the_users_own_differences_are_named(shell: Shell) -> None:
    shell.run("a b c")
    with open("statements", "a", encoding="utf-8") as file:
        file.write("2026-06/a\n2026-06/x\n")
    said = flat(shell("reconcile", "billing:app", RUN, code=1))
    assert "Your own check expected 3 keys and found 5: 1 too many, 1 that were never dispatched." in said
    assert "2026-06/a: your own check found 2, expected 1" in said
    assert "2026-06/x: your own check found 1, expected 0" in said


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "RUN is missing. Write: onefold reconcile RUN [APP]"),
        (("billing:app", RUN, "--yes"), 2, "--yes goes with --repair."),
        (("--url", "sqlite:///.onefold/billing.db", RUN, "--repair"), 2, "--repair needs the app"),
        (("billing:app", "monthly_billing/2027"), 1, "There is no run 'monthly_billing/2027'"),
    ],
)
def test_wrong_usage_says_what_was_meant(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    shell.run("a")
    assert said in shell("reconcile", *words, code=code)


def test_an_engine_alone_is_looked_at_without_the_apps_check(shell: Shell) -> None:
    shell.run("a b", lose="b")
    (found,) = shell.json("reconcile", "--url", "sqlite:///.onefold/billing.db", RUN, code=1)["outcomes"]
    assert (found["name"], found["missing"], found["own"]) == ("", 1, None)


# -- why of a day ----------------------------------------------------------------------------------------------------


def test_one_screen_answers_the_runbook(shell: Shell) -> None:
    shell.run("a b! c d", lose="d")
    shell("reconcile", "billing:app", RUN, code=1)
    said = shell("why", "monthly_billing", "2026-06", "billing:app", code=1)
    assert len(said.splitlines()) <= 24
    said = flat(said)
    assert said.startswith("monthly_billing cron(0 3 1 * ? *) Europe/London owner finance")
    assert "planned 2026-06-01 03:00:00 BST" in said
    assert re.search(r"fired 20\d\d-\S+ \S+ (GMT|BST), once, \S+ late", said)
    assert "dispatched 4 operations once 2 took effect once otherwise 1 dead-lettered, 1 missing" in said
    assert "NOT AS IT SHOULD BE; your own check found 2, expected 4 keys" in said
    dead = "dead-lettered: PermanentError: no such card job charge, owner billing, payload in bills-dead"
    assert re.search(rf"{dead} 2026-06/b [0-9a-f-]+ missing: ", said)
    assert "missing: its message is gone, and nothing ever claimed it job charge, owner billing 2026-06/d Next:" in said
    assert f"onefold reconcile {RUN} --repair billing:app" in said
    assert "onefold dlq show" in said


@pytest.mark.parametrize("columns", ["80", "0"])  # 0: as some terminals of CI have it
def test_equal_reasons_are_said_once_and_a_message_id_stands_whole_on_80_columns(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    render.console.cache_clear()
    shell.run("a b! c! d e-customer-with-a-rather-long-name! f", lose="d f")
    (outcome,) = shell.json("reconcile", "billing:app", RUN, code=1)["outcomes"]
    ids = {one["key"]: one["message_id"] for one in outcome["examples"] if one["place"] == "dead"}
    assert len(ids) == 3
    for words in (("why", "monthly_billing", "2026-06", "billing:app"), ("reconcile", "billing:app", RUN)):
        said = shell(*words, code=1)
        assert said.count("no such card") == 1, "three have one reason"
        assert said.count("nothing ever claimed it") == 1
        lines = [one.split() for one in said.splitlines()]
        assert all([key, message_id] in lines for key, message_id in ids.items())
        table = said[: said.index("Next:")].splitlines()
        assert max(map(len, table)) <= 80


def test_an_outcome_that_names_not_all_says_how_many_more(shell: Shell) -> None:
    customers = [f"customer-{number}" for number in range(23)]
    shell.run(" ".join(customers), lose=" ".join(customers))
    said = shell("reconcile", "billing:app", RUN, code=1)
    assert "23 missing" in said
    assert "and 3 more" in said


def test_what_only_the_users_own_check_finds_makes_a_day_wrong(shell: Shell) -> None:
    shell.run("a b")
    assert "all of it took effect once" in shell("why", "monthly_billing", "2026-06", "billing:app")
    Path("statements").write_text("2026-06/a\n", encoding="utf-8")
    shell("reconcile", "billing:app", RUN, code=1)
    said = flat(shell("why", "monthly_billing", "2026-06", "billing:app", code=1))
    assert "your own check found 1, expected 2 keys" in said
    assert f"onefold reconcile {RUN} billing:app (look again)" in said
    Path("statements").write_text("2026-06/a\n2026-06/b\n", encoding="utf-8")
    shell("reconcile", "billing:app", RUN)
    shell("why", "monthly_billing", "2026-06", "billing:app")


def test_the_same_for_a_program(shell: Shell) -> None:
    shell.run("a b")
    found = shell.json("why", "billing:app", "monthly_billing", "2026-06-01")
    assert (found["schedule"], found["range"]["zone"], found["owner"]) == (
        "monthly_billing",
        "Europe/London",
        "finance",
    )
    (run,) = found["runs"]
    assert (run["run"], run["fired"], run["times"], run["counts"]) == (RUN, "fired", 1, {"done": 2})
    assert run["planned_at_ms"] == DUE_MS


def test_several_runs_have_a_line_each_and_trouble_in_full(shell: Shell) -> None:
    shell.run("a b!")
    said = flat(shell("why", "monthly_billing", "2026", "billing:app", code=1))
    assert "2026-05-01 03:00:00 BST no - - it was first taken up by a scheduler at" in said
    assert re.search(r"2026-06-01 03:00:00 BST yes, \S+ late 2 1 1 dead-lettered", said)
    assert f"{RUN} planned 2026-06-01 03:00:00 BST" in said


def test_an_engine_alone_says_what_it_does_not_know(shell: Shell) -> None:
    shell.run("a")
    said = flat(shell("why", "monthly_billing", "2026-06", "--url", "sqlite:///.onefold/billing.db"))
    assert "Not declared by an app that was named" in said
    assert "all of it took effect once" in said
    assert "2026-07: nothing was planned" in shell("why", "monthly_billing", "2026-07")


def test_a_time_that_has_not_come_is_no_trouble(shell: Shell) -> None:
    shell.run("a")
    assert "not yet: its time has not come" in flat(shell("why", "monthly_billing", "2199-06", "billing:app"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("monthly_billing", "junes", "billing:app"), 1, "'junes' is not a valid date."),
        (("2026-06/a", "billing"), 1, "Did you mean billing:app?"),
        (("monthly-billing", "2026", "billing:app"), 1, "Did you mean monthly_billing?"),
        (("monthly_billing", "2026", "billing:app", "--job", "charge"), 2, "--job and --tenant go with a KEY"),
    ],
)
def test_a_question_that_cannot_be_answered_says_why(
    shell: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    shell.run("a")
    assert said in shell("why", *words, code=code)


def test_why_of_one_operation_stays_as_it_is(shell: Shell) -> None:
    shell.run("a")
    said = flat(shell("why", "2026-06/a", "billing:app"))
    assert said.startswith("charge 2026-06/a Done at")
    assert shell.json("why", RUN, "billing:app")["stories"][0]["job"] == "monthly_billing"


def test_an_app_without_a_run_is_told_that_a_run_is_missing(shell: Shell) -> None:
    assert "RUN is missing: billing:app is an app" in shell("reconcile", "billing:app", code=2)


@pytest.mark.parametrize(("is_map", "step"), [(True, "onefold map redrive nightly/1"), (False, "onefold dlq list")])
def test_dead_letters_of_a_map_run_are_redriven_with_the_run(
    is_map: bool, step: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ReconcileOutcome(
        run="nightly/1", name="", look=0, at_ms=0, verdict="disagrees", expected=1, dispatched=1, done=0, running=0,
        waiting=0, stuck=0, dead=1, held=0, missing=0, twice=0, doubtful=0, own=None, findings=(), examples=(),
    )  # fmt: skip
    render.console.cache_clear()
    outcomes.draw(found, "shop:app", is_map=is_map)
    steps = [text for text in capsys.readouterr().out.splitlines() if "onefold " in text]
    assert len(steps) == 1
    assert step in steps[0]
