"""A map run is looked at like any other; what is missing of it is read again from its source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold.admin import days, maps, reconcile
from onefold.admin.session import AdminSession, SessionJobs
from onefold.reconcile import findings
from onefold.reconcile.reconciler import Reconciliation
from onefold.testing.inline import World, inline

START_MS = 1_780_279_200_000  # 2026-06-01T02:00:00Z
RUN = "nightly/june"


class Shop:
    """An app with a map over a CSV file, and a look at each of its runs."""

    def __init__(self, folder: Path) -> None:
        self.app = onefold.App("shop")
        self.done: list[str] = []
        self.seen: list[Reconciliation] = []
        self.file = folder / "items.csv"
        self.file.write_text("sku,name\n1,one\n2,two\n3,three\n", encoding="utf-8")
        queue = self.app.queue("items", dead_letter=onefold.DeadLetter(after=10))

        @self.app.map(queue, key="{sku}", items="csv", results=str(folder / "results"), owner="catalogue")
        def enrich(item: dict[str, Any]) -> None:
            self.done.append(item["sku"])

        self.enrich = enrich

        @self.app.reconcile(enrich, after="30m")
        def rows_exist(check: Reconciliation) -> onefold.reconcile.Totals:
            self.seen.append(check)
            return onefold.reconcile.Totals(expected=check.dispatched, found=len(self.done))

    def start(self) -> None:
        maps.start(self.app, "enrich", run=RUN, items=str(self.file), turns=False)

    def session(self) -> AdminSession:
        jobs = SessionJobs(named=self.app.jobs, of=self.app.registry.job_of, history="brief")
        return AdminSession(self.app.runtime(), actor="person:ada", jobs=jobs)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def world(shop: Shop) -> Iterator[World]:
    with inline(shop.app, start_ms=START_MS) as opened:
        yield opened


def send(shop: Shop, world: World) -> None:
    """One step of the run: its children are sent."""
    from onefold.maps.mapper import Mapper

    Mapper(shop.app.runtime(), shop.enrich, RUN).advance()


def test_a_map_run_begins_with_a_look(shop: Shop, world: World) -> None:
    shop.start()
    assert world.depth("onefold-reconcile").delayed == 1
    send(shop, world)
    world.run()
    world.clock.advance(30 * 60_000)
    world.run()
    (seen,) = shop.seen
    assert (seen.run, seen.schedule, seen.local, seen.dispatched, seen.done) == (RUN, "enrich", None, 3, 3)
    assert [key.rpartition("/")[2] for page in seen.pages() for key in page] == ["1", "2", "3"]


def test_what_is_missing_of_a_map_run_is_read_again_from_its_source(shop: Shop, world: World) -> None:
    shop.start()
    send(shop, world)
    session = shop.session()
    (lost,) = [one for one in session.engine.queues.peek("items") if '"2"' in one.body]
    session.engine.queues.remove([lost.message_id])
    world.run()
    (found,) = reconcile.reconcile(session, shop.app, RUN)
    assert (found.name, found.missing, found.done) == ("reconcile-enrich", 1, 2)
    work = reconcile.Repair(session, shop.app, RUN)
    assert [(one.key, one.queue) for one in work.plan.resend] == [(lost.key, "items")]
    assert work.send().whole
    world.run()
    assert sorted(shop.done) == ["1", "2", "3"]
    assert findings.read(session.engine.state, RUN) == found
    (run,) = days.explain(session, shop.app.schedules, "enrich", "2026-06-01").runs
    assert (run.run, run.counts, run.planned) == (RUN, {"done": 3}, None)


def test_a_source_that_has_changed_is_no_source(shop: Shop, world: World) -> None:
    shop.start()
    send(shop, world)
    session = shop.session()
    session.engine.queues.remove([one.message_id for one in session.engine.queues.peek("items")])
    shop.file.write_text("sku,name\n1,one\n2,other\n3,three\n", encoding="utf-8")
    with pytest.raises(onefold.errors.UsageError, match=r"items\.csv"):
        reconcile.Repair(session, shop.app, RUN)
    assert world.depth("items").visible == 0
