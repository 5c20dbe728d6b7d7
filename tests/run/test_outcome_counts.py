"""Outcome counters of handlers: a run that completes counts once, and no other does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.admin.counts import OutcomeCount, counted
from onefold.admin.days import TimeRange
from onefold.admin.session import AdminSession, SessionJobs
from onefold.cli import main
from onefold.clock import SystemClock
from onefold.contracts.ledger import Row
from onefold.contracts.store import RecordKey
from onefold.options import WorkerSettings
from onefold.runner.context import COUNT_MAX, COUNTERS_MAX
from tests.run.workshop import Workshop

ALWAYS = TimeRange(text="ever", zone="UTC", from_ms=0, to_ms=1 << 60)


class Order(msgspec.Struct):
    id: str


@pytest.fixture(params=["off", "brief", "full"])
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[onefold.App]:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db", history=request.param)
    yield app
    app.close()


def work(app: onefold.App) -> Workshop:
    shop = Workshop(app, WorkerSettings(until_empty=True))
    shop.start()
    shop.end()
    return shop


def totals(app: onefold.App) -> dict[tuple[str, str], tuple[int, int]]:
    return {(one.job, one.name): (one.total, one.runs) for one in counted(session_of(app), ALWAYS)}


def session_of(app: onefold.App) -> AdminSession:
    return AdminSession(
        app.runtime(), actor="person:test", jobs=SessionJobs(named=app.jobs, of=app.registry.job_of, history="off")
    )


def test_a_run_counts_once_however_often_it_is_delivered_or_retried(app: onefold.App) -> None:
    tries: list[str] = []

    @app.job(app.queue("orders"), key="{id}", retry=onefold.Retry(attempts=3, base="0s"))
    def issue(order: Order, ctx: onefold.Context) -> None:
        tries.append(order.id)
        ctx.count("invoices_issued")
        ctx.count("lines", 2)
        ctx.count("lines", 3)
        if order.id == "o-0" and len(tries) == 1:
            raise onefold.TransientError("not now")
        if order.id == "o-1":
            raise onefold.PermanentError("never")

    for number in range(4):
        issue.send(Order(f"o-{number}"))
    issue.send(Order("o-2"))
    work(app)
    assert tries.count("o-0") == 2
    assert totals(app) == {("issue", "invoices_issued"): (3, 3), ("issue", "lines"): (15, 3)}


def test_sinks_get_the_counters_of_a_run_with_its_end(app: onefold.App) -> None:
    @app.job(app.queue("orders"), key="{id}")
    def issue(order: Order, ctx: onefold.Context) -> None:
        ctx.count("invoices_issued", 7)

    issue.send(Order("o-0"))
    (completed,) = work(app).told.of("completed")
    assert completed.detail["count.invoices_issued"] == 7


@pytest.mark.parametrize(
    ("name", "by", "named"),
    [
        ("Invoices", 1, "name='Invoices'"),
        ("9lives", 1, "name='9lives'"),
        ("x" * 65, 1, "is not the name"),
        (7, 1, "name=7"),
        ("lines", -1, "by=-1"),
        ("lines", 1.5, "by=1.5"),
        ("lines", True, "by=True"),
        ("lines", COUNT_MAX + 1, "cannot be added to lines"),
    ],
)
def test_a_counter_that_cannot_be_right_is_refused_and_counts_nothing(
    app: onefold.App, name: Any, by: Any, named: str
) -> None:
    refused: list[errors.UsageError] = []

    @app.job(app.queue("orders"), key="{id}")
    def issue(order: Order, ctx: onefold.Context) -> None:
        with pytest.raises(errors.UsageError) as error:
            ctx.count(name, by)
        refused.append(error.value)

    issue.send(Order("o-0"))
    work(app)
    assert named in refused[0].what
    assert totals(app) == {}


def test_a_run_has_so_many_counters_and_none_after_its_end(app: onefold.App) -> None:
    kept: list[onefold.Context] = []

    @app.job(app.queue("orders"), key="{id}")
    def issue(order: Order, ctx: onefold.Context) -> None:
        kept.append(ctx)
        for number in range(COUNTERS_MAX):
            ctx.count(f"c{number}")
        with pytest.raises(errors.UsageError, match=f"would be counter number {COUNTERS_MAX + 1}"):
            ctx.count("one_more")
        ctx.count("c0")

    issue.send(Order("o-0"))
    work(app)
    with pytest.raises(errors.UsageError, match="after the handler has ended"):
        kept[0].count("c0")
    assert totals(app)["issue", "c0"] == (2, 1)
    assert len(totals(app)) == COUNTERS_MAX


def test_days_are_those_of_the_zone_and_pages_lose_no_row(app: onefold.App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.observe.readings._PAGE", 4)
    at_ms = 1_795_561_200_000  # 2026-11-24T23:00:00Z: the 25th in Berlin
    instants = [at_ms - 1, *[at_ms] * 9, *range(at_ms + 1, at_ms + 7)]
    ledger = app.runtime().engine.ledger
    ledger.append(
        [
            Row(at_ms=at, event="completed", key=RecordKey("", "issue", f"k{number}"), detail={"count.lines": 1})
            for number, at in enumerate(instants)
        ]
    )
    session = session_of(app)
    when = TimeRange(text="", zone="Europe/Berlin", from_ms=at_ms - 10, to_ms=at_ms + 10)
    assert counted(session, when) == [
        OutcomeCount(day="2026-11-24", job="issue", name="lines", total=1, runs=1),
        OutcomeCount(day="2026-11-25", job="issue", name="lines", total=15, runs=15),
    ]
    assert counted(session, when, "other") == []
    assert json.loads(msgspec.json.encode(counted(session, when)))[0]["total"] == 1


def test_the_command_adds_up_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db")

    @app.job(app.queue("orders"), key="{id}")
    def issue(order: Order, ctx: onefold.Context) -> None:
        ctx.count("invoices_issued", 1_234)

    issue.send(Order("o-0"))
    work(app)
    app.close()
    monkeypatch.setenv("COLUMNS", "60")
    at_ms = SystemClock().now_ms()
    year = datetime.fromtimestamp(at_ms / 1000, tz=UTC).year
    years = [str(year - 1), str(year), str(year + 1)]  # the test may run in the last second of a year
    found = []
    for one in years:
        assert main.run(["counts", one, "--url", f"sqlite:///{tmp_path}/shop.db", "--json"]) == 0
        found += json.loads(capsys.readouterr().out)["counts"]
    assert [(one["job"], one["name"], one["total"], one["runs"]) for one in found] == [
        ("issue", "invoices_issued", 1_234, 1)
    ]
    assert main.run(["counts", found[0]["day"], "--url", f"sqlite:///{tmp_path}/shop.db"]) == 0
    shown = capsys.readouterr().out
    assert "invoices_issued" in shown
    assert "1,234" in shown
    assert main.run(["counts", "1999", "--url", f"sqlite:///{tmp_path}/shop.db"]) == 0
    assert "1999: no run completed that counted anything." in capsys.readouterr().out
    assert main.run(["counts", "yesterday", "--url", f"sqlite:///{tmp_path}/shop.db"]) == 1
    assert "'yesterday' is not a valid date" in capsys.readouterr().err
