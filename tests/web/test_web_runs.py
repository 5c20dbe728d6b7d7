"""The pages of runs on a dispatched one: counts, what is not done, and what is said when the engine fails."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.admin import runs, schedules
from onefold.admin.session import AdminSession, jobs_of
from onefold.testing import inline
from onefold.web.application import Page
from onefold.web.safety import Access
from tests.faces.office import Office, Open, file_url
from tests.faces.test_held import park
from tests.run.billing import Billing, Tick, customers
from tests.run.ticking import Place, clock_at, places
from tests.web.browsing import TOKEN, Reader, op


def test_a_run_with_what_is_not_done_of_it() -> None:
    billing = Billing()
    billing.customers = customers(6)
    billing.ill["c-00001"] = onefold.PermanentError("no card")
    with inline(billing.app) as world:
        session = AdminSession(billing.runtime, actor="person:ada", jobs=jobs_of(billing.app))
        reader = Reader(Page(session, access=Access(token=TOKEN), app=billing.app))
        billing.tick.send(Tick())
        world.run()
        (one,) = runs.listed(session).runs
        name = one.run.replace("/", "%2F")
        listed = reader.get("/runs")
        assert one.run in listed.words
        assert '<rect class="dead"' in listed.text
        got = reader.get(f"/runs/{name}")
        assert "c-00001" in got.words
        found = reader.get(f"/api/runs/{name}").json()
        wanted = msgspec.json.decode(msgspec.json.encode(runs.show(session, one.run, limit=50)))
        assert {field: found[field] for field in wanted} == wanted
        assert "0 missing messages would be sent again" in reader.get(f"/runs/{name}?repair=1").words


def test_a_run_that_has_sent_nothing_yet_is_not_called_done(tmp_path: Path) -> None:
    with places(Place(tmp_path / "shop.db", clock_at("2026-06-01T01:30:00"), "cron(0 2,14 * * ? *)")) as (one,):
        one.step()
        session = AdminSession(one.app.runtime(), actor="person:ada", jobs=jobs_of(one.app))
        (schedule,) = one.app.schedules.values()
        run = schedules.run_now(session, one.app, schedule.name).run
        reader = Reader(Page(session, access=Access(token=TOKEN), app=one.app))
        got = reader.get(f"/runs/{run.replace('/', '%2F')}").words
        assert "Everything of this run is done" not in got
        assert "Open" in reader.get("/runs").words


def test_a_page_that_outlives_an_upgrade_of_its_file_says_so(tmp_path: Path) -> None:
    """A newer onefold has opened the file and changed its tables; the page runs on with the older one."""
    office = Office()
    with office.opened(file_url(tmp_path)) as there:
        park(there)
        reader = Reader(Page(there.session, access=Access(token=TOKEN), app=there.office.app))
        form = [op(there), ("done", "yes"), ("why", "x")]
        with closing(sqlite3.connect(tmp_path / "office.db")) as newer:
            newer.execute("PRAGMA user_version = 99")
            newer.execute("ALTER TABLE onefold_record RENAME COLUMN updated_at_ms TO changed_at_ms")
            newer.commit()
        for got in (reader.get("/"), reader.get("/held"), reader.get("/api/held"), reader.post("/held/settle", form)):
            assert (got.status, "has schema version 99 now" in got.text) == (503, True), got.words
            assert "Restart this process" in got.text


def test_a_file_that_is_locked_or_damaged_is_said_to_be(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(Page(there.session, access=Access(token=TOKEN)))
    queues = type(there.session.engine.queues)
    for error, status in (
        (errors.StorageBusy("The file is locked.", todo="Try again."), 503),
        (errors.StorageError("A newer onefold has written the file.", todo="Update onefold."), 503),
        (ValueError("what a reader must not see"), 500),
        (SystemExit(0), 500),  # of the app: in a task it would end the loop, and the page with it
    ):

        def broken(_: object, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(queues, "settings", broken)
        got = reader.get("/dead")
        assert got.status == status
        assert "must not see" not in got.text
        assert reader.get("/healthz").status == 200


def test_the_log_of_a_failed_page_masks_the_text_of_the_failure(
    there: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Reader(Page(there.session, access=Access(token=TOKEN)))

    def broken(_: object) -> None:
        raise SystemExit("bye \x1b[31m redis://:hunter2@h/0")

    monkeypatch.setattr(type(there.session.engine.queues), "settings", broken)
    assert reader.get("/dead").status == 500
    assert "SystemExit" in caplog.text
    assert "broken" in caplog.text
    assert "hunter2" not in caplog.text
    assert "\x1b" not in caplog.text


def test_a_file_that_another_program_holds_is_said_to_be_and_nothing_changes(tmp_path: Path) -> None:
    office = Office()
    with office.opened(file_url(tmp_path)) as there:
        park(there)
        reader = Reader(Page(there.session, access=Access(token=TOKEN), app=there.office.app))
        fields = [op(there), ("done", "yes"), ("why", "x")]
        with closing(sqlite3.connect(tmp_path / "office.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert reader.get("/held").status == 200  # reading needs nobody's leave
            got = reader.post("/api/held/settle", fields)
            outcomes = [one["outcome"] for one in got.json().get("outcomes", ())]
            assert (got.status, outcomes) in ((503, []), (200, ["refused"])), got.text
            other.execute("ROLLBACK")
        assert there.session.engine.records.find("p-1")[0].parked
        assert "settled as done" in reader.post("/held/settle", fields).words
