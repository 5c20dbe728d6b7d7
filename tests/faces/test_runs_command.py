"""`onefold runs`: pages, one run with what stands in its way, and a run while it goes on; as functions and as commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import held, runs
from onefold.admin.session import AdminSession, SessionJobs, open_session
from onefold.cli import main, render
from onefold.contracts.ledger import Row
from onefold.contracts.store import Ask, RecordKey
from onefold.runner import runs as values
from onefold.runner.runs import RunState
from onefold.testing import World, inline
from tests.run.billing import NOMINAL_MS, RUN, Billing, Tick, customers

ROOT = Path(__file__).parents[2]
APP = """
import onefold
from onefold.runner.dispatcher import as_handler
from tests.run.billing import Billing, customers

billing = Billing("sqlite:///billing.db")
billing.customers = customers(6)
billing.ill["c-00001"] = onefold.PermanentError("no card")
app = billing.app
"""


@pytest.fixture
def billing() -> Billing:
    return Billing()


@pytest.fixture
def world(billing: Billing) -> Iterator[World]:
    with inline(billing.app) as opened:
        yield opened


@pytest.fixture
def session(billing: Billing, world: World) -> AdminSession:
    jobs = SessionJobs(named=billing.app.jobs, of=billing.app.registry.job_of, history="brief")
    return AdminSession(billing.runtime, actor="person:ada", jobs=jobs)


def begin(billing: Billing, count: int, title: str = "billing") -> None:
    """Runs of which nothing is known but that they began, a day apart."""
    for number in range(count):
        at_ms = NOMINAL_MS + number * 86_400_000
        name = f"{title}/2026-06-{number + 1:02}T02:00:00Z"
        state = RunState(name=name, kind="dispatch", title=title, started_at_ms=at_ms, nominal_at_ms=at_ms)
        values.begin(billing.runtime.engine.state, state)


# -- list ------------------------------------------------------------------------------------------------------------


def test_pages_hold_every_run_once_the_latest_first(billing: Billing, session: AdminSession) -> None:
    begin(billing, 7)
    begin(billing, 2, "nightly")
    seen: list[str] = []
    after: str | None = None
    while True:
        page = runs.listed(session, limit=4, after=after)
        seen += [one.run for one in page.runs]
        after = page.after
        if after is None:
            break
    assert len(seen) == len(set(seen)) == 9
    assert seen[0] == "billing/2026-06-07T02:00:00Z"
    assert [name.rpartition("/")[2] for name in seen] == sorted(
        (name.rpartition("/")[2] for name in seen), reverse=True
    )
    assert [one.run[:7] for one in runs.listed(session, "nightly").runs] == ["nightly"] * 2


def test_a_title_is_not_the_beginning_of_another(billing: Billing, session: AdminSession) -> None:
    begin(billing, 1)
    begin(billing, 1, "billing-test")
    assert [one.title for one in runs.listed(session, "billing").runs] == ["billing"]


def test_unfinished_runs_are_those_that_are_open(billing: Billing, world: World, session: AdminSession) -> None:
    begin(billing, 2)
    values.note(billing.runtime.engine.state, RUN, expected=0)
    world.run_for(20_000)
    assert [one.status for one in runs.listed(session).runs] == ["dispatching", "complete"]
    assert [one.run for one in runs.listed(session, unfinished=True).runs] == ["billing/2026-06-02T02:00:00Z"]
    assert runs.listed(session, "nobody", unfinished=True).runs == ()


def test_a_list_of_nothing_says_which_titles_there_are(billing: Billing, session: AdminSession) -> None:
    assert runs.listed(session) == runs.RunPage(runs=(), after=None)
    begin(billing, 1)
    with pytest.raises(errors.NotFoundError, match="Did you mean billing"):
        runs.listed(session, "biling")


def test_a_page_that_cannot_be_is_refused(billing: Billing, session: AdminSession) -> None:
    begin(billing, 1)
    with pytest.raises(errors.UsageError, match="cannot have 0 runs"):
        runs.listed(session, limit=0)
    with pytest.raises(errors.UsageError, match="not on this list"):
        runs.listed(session, after="billing/2020")


# -- show ------------------------------------------------------------------------------------------------------------


def test_what_stands_in_the_way_is_named_those_for_a_person_first(
    billing: Billing, world: World, session: AdminSession
) -> None:
    billing.customers = customers(6)
    billing.ill = {
        "c-00001": onefold.PermanentError("no card"),
        "c-00002": onefold.OutcomeUnknown("silent"),
        "c-00003": onefold.TransientError("later"),
    }
    billing.tick.send(Tick())
    world.run()
    shown = runs.show(session, RUN)
    assert [(one.key, one.status, one.event) for one in shown.open] == [
        ("c-00002", "unknown", "held"),
        ("c-00001", "dead", "dead-letter"),
        ("c-00003", "failed", "retry"),
    ]
    run = shown.run
    assert (run.expected, run.done, run.failed, run.dead, run.unknown, run.missing) == (6, 3, 1, 1, 1, 0)
    assert (run.status, shown.open_count, shown.in_flight, shown.restarts) == ("running", 3, 0, 0)
    assert [one.key for one in runs.show(session, RUN, limit=1, after=1).open] == ["c-00001"]


def test_what_is_being_worked_on_is_told_from_what_waits(
    billing: Billing, world: World, session: AdminSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(billing, 1)
    keys = [RecordKey("", "charge", name) for name in ("a", "b")]
    engine, now_ms = billing.runtime.engine, world.clock.now_ms()
    engine.ledger.append([Row(at_ms=now_ms, event="dispatched", key=key, run=RUN) for key in keys])
    ask = Ask(
        key=keys[1], fingerprint="f", owner="w", lease_until_ms=now_ms + 1_000, start=True, expires_at_ms=now_ms + 9_999
    )
    engine.store.claim([ask], now_ms)
    shown = runs.show(session, RUN)
    assert [(one.key, one.status) for one in shown.open] == [("b", "in flight"), ("a", "waiting")]
    assert shown.in_flight == 1
    world.clock.advance(1_000)
    monkeypatch.setattr(type(engine), "stopped_process", lambda *_: 4_711)  # alive, and it renews nothing
    shown = runs.show(session, RUN)
    assert [(one.key, one.status) for one in shown.open] == [("b", "suspended"), ("a", "waiting")]
    assert shown.in_flight == 0
    monkeypatch.undo()
    assert runs.show(session, RUN).in_flight == 0


def test_a_refused_message_under_the_key_of_a_done_one_is_not_in_the_way(
    billing: Billing, world: World, session: AdminSession
) -> None:
    billing.customers = customers(2)
    billing.tick.send(Tick())
    world.run()
    row = Row(at_ms=world.clock.now_ms() + 1, event="conflict", key=RecordKey("", "charge", "c-00001"), run=RUN)
    billing.runtime.engine.ledger.append([Row(at_ms=row.at_ms - 1, event="completed", key=row.key, run=RUN), row])
    shown = runs.show(session, RUN)
    assert (shown.run.status, shown.run.done, shown.run.dead, shown.open) == ("complete", 2, 0, ())


def test_a_run_too_long_to_look_at_each_has_its_counts(
    billing: Billing, world: World, session: AdminSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_LOOKED_AT", 10)
    billing.customers = customers(20)
    billing.tick.send(Tick())
    world.run()
    shown = runs.show(session, RUN)
    assert (shown.run.done, shown.open, shown.open_count, shown.in_flight) == (20, (), None, None)


def test_what_a_person_settles_counts_for_the_run(billing: Billing, world: World, session: AdminSession) -> None:
    billing.customers = customers(2)
    billing.ill = {"c-00000": onefold.OutcomeUnknown("silent"), "c-00001": onefold.OutcomeUnknown("silent")}
    billing.tick.send(Tick())
    world.run()
    assert runs.one(session, RUN).unknown == 2
    held.settle(session, "c-00000", done=True)
    assert (runs.one(session, RUN).done, runs.one(session, RUN).status) == (1, "ended")
    del billing.ill["c-00001"]
    held.settle(session, "c-00001", done=False)
    assert runs.one(session, RUN).status == "running"  # it was sent back
    world.run()
    assert runs.one(session, RUN).status == "complete"


def test_a_stopped_dispatch_is_told_from_one_that_goes_on(
    billing: Billing, world: World, session: AdminSession
) -> None:
    billing.customers = customers(15)
    billing.before = lambda customer: 1 // (customer != "c-00012")
    billing.tick.send(Tick())
    world.run_for(20_000)
    run = runs.one(session, RUN)
    assert (run.status, run.dispatched) == ("stopped", 10)
    assert run.failure is not None
    assert run.failure.startswith("ZeroDivisionError")


def test_a_name_may_be_cut_where_no_other_begins_like_that(billing: Billing, session: AdminSession) -> None:
    begin(billing, 2)
    assert runs.one(session, "billing/2026-06-01").run == RUN
    with pytest.raises(errors.UsageError, match="2 runs begin with"):
        runs.one(session, "billing/2026")
    with pytest.raises(errors.NotFoundError, match="Did you mean billing/2026-06-01"):
        runs.one(session, "bilding/2026-06-01T02:00:00Z")


# -- watch -----------------------------------------------------------------------------------------------------------


def seen(status: runs.RunStatus, *, dispatched: int = 100, expected: int = 100, done: int = 0) -> runs.RunView:
    return runs.RunView(
        run=RUN, kind="dispatch", title="billing", owner=None, nominal_at_ms=None, status=status, failure=None,
        started_at_ms=0, ended_at_ms=None, dispatched=dispatched, expected=expected, done=done, failed=0, dead=0,
        unknown=0, missing=expected - done,
    )  # fmt: skip


def test_a_rate_is_of_the_last_30_seconds_and_gives_the_time_left() -> None:
    meter = runs.RunMeter()
    first = meter.read(0, seen("running"))
    assert (first.per_second, first.eta_ms) == (None, None)
    second = meter.read(10_000, seen("running", done=20))
    assert (second.per_second, second.eta_ms) == (2.0, 40_000)
    for at_s in range(20, 61, 10):
        last = meter.read(at_s * 1_000, seen("running", done=20 + at_s // 10))
    assert (last.per_second, last.eta_ms) == (0.1, 740_000)
    assert meter.read(70_000, seen("complete", done=100)).eta_ms == 0


def test_a_run_that_stands_still_has_no_time_left_to_tell() -> None:
    meter = runs.RunMeter()
    meter.read(0, seen("running", done=5))
    still = meter.read(10_000, seen("running", done=5))
    assert (still.per_second, still.eta_ms) == (0.0, None)


def test_while_it_is_dispatched_the_rate_is_of_messages() -> None:
    meter = runs.RunMeter()
    meter.read(0, seen("dispatching", dispatched=0, done=0))
    sending = meter.read(1_000, seen("dispatching", dispatched=50, done=3))
    assert (sending.per_second, sending.eta_ms) == (50.0, None)
    assert meter.read(2_000, seen("running", done=5)).per_second is None  # something else is counted from now on


def test_watching_ends_when_nothing_is_left_to_do(billing: Billing, world: World, session: AdminSession) -> None:
    billing.customers = customers(3)
    billing.tick.send(Tick())
    begin(billing, 1)
    waits: list[int] = []

    def wait(pause_ms: int) -> None:
        waits.append(pause_ms)
        world.clock.advance(pause_ms)
        world.run()

    seen_in = [progress.run.status for progress in runs.watched(session, "billing/2026", wait=wait)]
    assert seen_in == ["dispatching", "complete"]
    assert waits == [1_000]


def test_watching_ends_where_a_stopped_dispatch_goes_on_only_when_a_person_says_so(
    billing: Billing, world: World, session: AdminSession
) -> None:
    def look() -> runs.RunProgress:
        return next(runs.watched(session, RUN, wait=lambda _: None))

    billing.customers = customers(15)
    billing.before = lambda customer: 1 // (customer != "c-00012")
    billing.tick.send(Tick())
    world.run()
    assert (look().run.status, look().ended) == ("stopped", False)  # its tick will be tried again
    world.run_for(20_000)
    assert (look().run.status, look().run.done, look().ended) == ("stopped", 10, True)
    assert [one.ended for one in runs.watched(session, RUN, wait=lambda _: None)] == [True]
    session.record("redrive", key=RecordKey("", "billing", RUN))
    assert not look().ended


def test_watching_ends_where_no_queue_took_the_tick(billing: Billing, world: World, session: AdminSession) -> None:
    begin(billing, 1)
    values.note(billing.runtime.engine.state, RUN, failure="Its tick was given up: too large")
    assert not next(runs.watched(session, RUN, wait=lambda _: None)).ended
    session.record("tick-dropped", run=RUN)
    assert next(runs.watched(session, RUN, wait=lambda _: None)).ended


def test_watching_what_is_not_there_fails_at_once(session: AdminSession) -> None:
    with pytest.raises(errors.NotFoundError):
        next(runs.watched(session, "nobody", wait=lambda _: None))


# -- as commands -----------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ONEFOLD_APP", "ONEFOLD_URL", "ONEFOLD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bills_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delitem(sys.modules, "bills_app", raising=False)
    render.console.cache_clear()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    found = main.run(words)
    out, err = capsys.readouterr()
    assert found == code, f"{found}\n{out}{err}"
    return out or err


def test_the_three_commands_from_dispatch_to_the_end(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "There is no file" in run(capsys, "runs", "list", "bills_app:app", code=1)
    tick = json.dumps({"run": RUN, "schedule": "billing", "nominal_at_ms": NOMINAL_MS})
    run(capsys, "send", "bills_app:app", "billing", tick)
    run(capsys, "worker", "bills_app:app", "--until-empty", "--no-progress")
    import bills_app  # type: ignore[import-not-found]

    assert len(bills_app.billing.closed) == 1  # a worker that ends when nothing is left has closed the run first
    listed: Any = json.loads(run(capsys, "runs", "list", "bills_app:app", "--json"))
    (only,) = listed["runs"]
    assert {name: only[name] for name in ("run", "stand", "expected", "done", "dead", "missing")} == {
        "run": RUN, "stand": "ended", "expected": 6, "done": 5, "dead": 1, "missing": 0,
    }  # fmt: skip
    table = run(capsys, "runs", "list", "bills_app:app")
    assert max(map(len, table.splitlines())) <= 80
    assert "ended" in table
    shown = run(capsys, "runs", "show", "billing/2026-06", "bills_app:app")
    assert max(map(len, shown.splitlines())) <= 100
    said = ("dispatcher of billing", "owner money", "over, and 1 operation not done", "onefold dlq list bills_app:app")
    for text in (*said, "c-00001"):
        assert text in shown
    assert json.loads(run(capsys, "runs", "show", RUN, "bills_app:app", "--json"))["open"][0]["key"] == "c-00001"
    watched = run(capsys, "runs", "watch", RUN, "bills_app:app", code=1)
    assert "over, and 1 operation not done" in watched
    answer = json.loads(run(capsys, "runs", "watch", RUN, "bills_app:app", "--json", code=1))
    assert answer["run"]["stand"] == "ended"


def test_columns_with_nothing_in_them_leave_their_room_to_the_names(
    shell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import bills_app

    begin(bills_app.billing, 1, "nightly-mails")
    table = run(capsys, "runs", "list", "bills_app:app")
    assert table.splitlines()[0].split() == ["run", "state", "done", "of", "age"]
    assert "nightly-mails/2026-06-01T02:00:00Z  dispatching" in table
    key = RecordKey("", "charge", "a")
    row = Row(at_ms=NOMINAL_MS, event="dispatched", key=key, run="nightly-mails/2026-06-01T02:00:00Z")
    bills_app.billing.runtime.engine.ledger.append([row])
    assert run(capsys, "runs", "list", "bills_app:app").splitlines()[0].split()[-2:] == ["open", "age"]


def test_a_stopped_dispatch_says_what_to_do_next(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import bills_app

    begin(bills_app.billing, 1)
    values.note(bills_app.billing.runtime.engine.state, RUN, failure="ValueError: no table")
    bills_app.billing.runtime.engine.ledger.append([Row(at_ms=NOMINAL_MS, event="tick-dropped", run=RUN)])
    said = run(capsys, "runs", "watch", RUN, "bills_app:app", code=1)
    assert said.count("stopped after 0 messages: ValueError: no table") == 1
    assert f"onefold dlq redrive --key {RUN} bills_app:app" in said
    assert "planned for 2026-06-01 02:00:00 UTC" in run(capsys, "runs", "show", RUN, "bills_app:app")


def test_no_redrive_is_recommended_for_what_a_redrive_would_not_run(
    shell: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import bills_app

    begin(bills_app.billing, 1)
    key = RecordKey("", "charge", "a")
    rows = [Row(at_ms=NOMINAL_MS, event=event, key=key, run=RUN) for event in ("dispatched", "conflict")]
    bills_app.billing.runtime.engine.ledger.append(rows)
    said = run(capsys, "runs", "show", RUN, "bills_app:app")
    assert "onefold dlq list --all --reason conflict bills_app:app   (key used with another payload" in said
    assert "then redrive" not in said


def test_pages_of_the_command_name_the_next(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import bills_app

    begin(bills_app.billing, 5)
    page = run(capsys, "runs", "list", "bills_app:app", "--limit", "2")
    (step,) = [line.strip() for line in page.splitlines() if line.startswith("  onefold")]
    assert step == "onefold runs list --after billing/2026-06-04T02:00:00Z bills_app:app"
    following = run(capsys, *step.split()[1:], "--limit", "2", "--json")
    assert [one["run"][:18] for one in json.loads(following)["runs"]] == ["billing/2026-06-03", "billing/2026-06-02"]
    said = run(capsys, "runs", "show", "nobody", "bills_app:app", code=1)
    assert said.startswith("error: There is no run 'nobody'.")


def test_the_picture_of_a_run_fits_and_says_what_is_left() -> None:
    from rich.console import Console

    console = Console(width=80, no_color=True)
    meter = runs.RunMeter()
    meter.read(0, seen("running", done=0))
    with console.capture() as capture:
        from onefold.cli.commands.runs import picture

        console.print(picture(meter.read(10_000, seen("running", done=50))))
    name, bar, counts, pace = capture.get().splitlines()
    assert name.strip() == RUN
    assert bar.strip() == "█" * 20 + "░" * 20
    assert counts.strip() == "50 done, 50 without outcome yet"
    assert pace.strip() == "running: 50 of 100 settled, 5.0/s, about 10s left"


@pytest.mark.slow
def test_three_workers_close_a_run_once(shell: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = (shell / "bills_app.py").read_text().replace("customers(6)", "customers(400)")
    (shell / "bills_app.py").write_text(app)
    tick = json.dumps({"run": RUN, "schedule": "billing", "nominal_at_ms": NOMINAL_MS})
    run(capsys, "send", "bills_app:app", "billing", tick)
    command = [sys.executable, "-m", "onefold", "worker", "bills_app:app", "--until-empty", "--no-progress"]
    paths = f"{shell}{os.pathsep}{ROOT}"
    workers = [
        subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(3)
    ]
    for worker in workers:
        said, _ = worker.communicate(timeout=60)
        assert worker.returncode == 0, said
    session = open_session("sqlite:///billing.db", actor="person:ada")
    try:
        one = runs.one(session, RUN)
        assert (one.status, one.expected, one.done, one.dead) == ("ended", 400, 399, 1)
        assert one.ended_at_ms is not None
        key = RecordKey("", "report", RUN)
        (record,) = session.engine.store.read([key], session.now_ms())
        assert record is not None
        assert (record.status, record.attempts_total) == ("completed", 1)
        assert session.engine.ledger.of_key(key) == []  # a clean first run: no second message was ever delivered
        assert session.engine.queues.depth("reports").visible == 0
    finally:
        session.close()
