"""A message about another schedule, run or map than its queue's job is for: it is refused, and takes nobody's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.admin import maps
from onefold.contracts.entries import Entry
from onefold.runner import runs
from onefold.testing import inline

START_MS = 1_767_225_540_000  # 2025-12-31T23:59:00Z
T = "2026-01-01T00:00:00Z"


@dataclass
class Post:
    who: str
    at: str


class Firm:
    """An app with a harmless schedule and one that pays, each on a queue of its own."""

    def __init__(self, *, fifo: bool = False) -> None:
        self.app = app = onefold.App("firm")
        self.paid: list[str] = []
        self.mailed: list[str] = []
        self.looked: list[str] = []
        start = datetime(2026, 1, 1, tzinfo=UTC)

        @app.job(app.queue("mails"), key="{who}/{at}")
        def mail(post: Post) -> None:
            self.mailed.append(post.at)

        @app.job(app.queue("salaries"), key="{who}/{at}")
        def salary(post: Post) -> None:
            self.paid.append(f"{post.who} {post.at}")

        @app.schedule("rate(1 minute)", queue=app.queue("newsletter-ticks", fifo=fifo), start=start)
        def newsletter(tick: onefold.Tick) -> Iterator[Any]:
            yield mail.message(Post("all", tick.local.strftime("%H:%M")))

        @app.schedule("rate(1 minute)", queue=app.queue("payroll-ticks", fifo=fifo), start=start)
        def payroll(tick: onefold.Tick) -> Iterator[Any]:
            for who in ("ada", "bob"):
                yield salary.message(Post(who, tick.local.strftime("%H:%M")))

        @app.reconcile(payroll, after="30s", queue=app.queue("payroll-looks"))
        def wages(check: Any) -> dict[str, int]:
            self.looked.append("wages " + check.run)
            return {}

        @app.reconcile(newsletter, after="30s", queue=app.queue("newsletter-looks"))
        def letters(check: Any) -> dict[str, int]:
            self.looked.append("letters " + check.run)
            return {"all/00:00": 1}

        self.payroll = payroll

    def put(self, queue: str, body: str, **options: Any) -> None:
        self.app.runtime().engine.queues.open(queue).send([Entry(body=body, trusted=False, **options)])

    def dead(self, queue: str) -> list[str]:
        letters = self.app.runtime().engine.queues.peek(queue, limit=10)
        return [one.reason.summary if one.reason is not None else "" for one in letters]


def tick_of(schedule: str, at: str) -> str:
    return f'{{"schedule":"{schedule}","scheduled_at":"{at}"}}'


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("at", [T, "2026-01-01T00:00:00+00:00"])
def test_a_tick_of_another_schedule_does_not_take_its_place(fifo: bool, at: str) -> None:
    firm = Firm(fifo=fifo)
    end, options = (".fifo", {"group": "g", "dedup_id": "d"}) if fifo else ("", {})
    with inline(firm.app, start_ms=START_MS) as world:
        firm.put("newsletter-ticks" + end, tick_of("payroll", at), **options)
        world.run()
        assert runs.read(firm.app.runtime().engine.state, f"payroll/{T}") is None
        (why,) = firm.dead("newsletter-ticks-dead" + end)
        assert "tick of schedule 'payroll'" in why
        assert firm.mailed == []
        world.run_until(datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC))
        assert sorted(firm.paid) == ["ada 00:00", "bob 00:00"]
        assert firm.mailed == ["00:00"]


@pytest.mark.parametrize("at", ["2026-01-01T00:00:00+00:00", "2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00.4Z"])
def test_one_instant_is_one_tick_however_it_is_written(at: str) -> None:
    firm = Firm()
    with inline(firm.app, start_ms=START_MS) as world:
        world.run_until(datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC))
        paid = list(firm.paid)
        firm.put("payroll-ticks", tick_of("payroll", at))
        world.run()
        assert firm.paid == paid
        assert list(runs.names(firm.app.runtime().engine.state, "payroll/")) == [f"payroll/{T}"]


@pytest.mark.parametrize(
    "at", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00", "2026-01-01T00:00:00", "x" * 999]
)
def test_what_is_no_instant_is_malformed_and_no_worker_ends(at: str) -> None:
    firm = Firm()
    with inline(firm.app, start_ms=START_MS) as world:
        firm.put("payroll-ticks", tick_of("payroll", at))
        world.run()
        (why,) = firm.dead("payroll-ticks-dead")
        assert "is not an instant" in why
        assert len(why) < 300


def test_even_with_a_key_of_its_own_a_job_runs_no_tick_of_another_schedule() -> None:
    firm = Firm()
    with inline(firm.app, start_ms=START_MS) as world:
        firm.payroll.job.send(
            firm.app.schedules["payroll"].job.rules.payload.decode(tick_of("newsletter", T)), key="mine"
        )
        world.run()
        assert firm.paid == []
        assert any("tick of schedule 'newsletter'" in why for why in firm.dead("payroll-ticks-dead"))


def test_a_look_at_the_run_of_another_schedule_writes_nothing_down() -> None:
    firm = Firm()
    with inline(firm.app, start_ms=START_MS) as world:
        look = f'{{"run":"payroll/{T}"}}'
        firm.put("newsletter-looks", look)
        world.run()
        world.run_until(datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC))
        firm.put("newsletter-looks", f'{{"run":"payroll/{T}","look":2}}')
        world.run()
        assert world.app.runtime().engine.state.get([runs.RECONCILED_PREFIX + f"payroll/{T}"]) == [None]
        assert len(firm.dead("newsletter-looks-dead")) == 2
        world.run_until(datetime(2026, 1, 1, 0, 0, 40, tzinfo=UTC))
        assert {one for one in firm.looked if T in one} == {f"wages payroll/{T}", f"letters newsletter/{T}"}


def test_a_turn_on_the_queue_of_another_map_does_not_halt_the_run(tmp_path: Path) -> None:
    app = onefold.App("firm")
    seen: list[str] = []
    file = tmp_path / "items.csv"
    file.write_text("who\na\nb\n")

    @app.map(source=str(file), key="{who}", queue=app.queue("payments"))
    def pay(item: dict[str, str]) -> None:
        seen.append(item["who"])

    @app.map(source=str(file), key="{who}-{who}", queue=app.queue("letters"))
    def write(item: dict[str, str]) -> None:
        """Write."""

    with inline(app, start_ms=START_MS) as world:
        maps.start(app, "pay", run="july")
        turns = app.maps["write"].turns
        turns.send(turns.rules.payload.decode('{"run":"july","begun_at_ms":1}'))
        world.run_for(20_000)
        assert maps.progress(app, "july").status == "succeeded"
        assert sorted(seen) == ["a", "b"]
