"""A SQLite file of another program: refused, or adopted on request, with everything of that program's left as it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.engines.sqlite.file import latest
from onefold.options import WorkerSettings
from onefold.runner import worker_setup
from onefold.runner.context import Context

THEIRS = """
PRAGMA user_version = 7;
PRAGMA application_id = 99;
CREATE TABLE book (id TEXT PRIMARY KEY, sold INTEGER NOT NULL);
CREATE INDEX book_sold ON book (sold);
CREATE TABLE sale (id INTEGER PRIMARY KEY AUTOINCREMENT);
CREATE TRIGGER sold AFTER UPDATE ON book BEGIN INSERT INTO sale VALUES (NULL); END;
INSERT INTO book VALUES ('ulysses', 3);
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "books.db"
    with closing(sqlite3.connect(found)) as theirs:
        theirs.executescript(THEIRS)
    return found


def theirs_in(path: Path) -> tuple[object, ...]:
    """What another program sees of itself."""
    with closing(sqlite3.connect(path)) as link:
        return (
            link.execute("PRAGMA user_version").fetchone(),
            link.execute("PRAGMA application_id").fetchone(),
            link.execute("SELECT type, name, sql FROM sqlite_master WHERE tbl_name NOT LIKE 'onefold%'").fetchall(),
            link.execute("SELECT * FROM book").fetchall(),
        )


@pytest.fixture
def apps() -> Iterator[list[onefold.App]]:
    opened: list[onefold.App] = []
    yield opened
    for app in opened:
        app.close()


def shop(apps: list[onefold.App], url: str) -> tuple[onefold.App, onefold.Job[dict[str, Any], None]]:
    app = onefold.App("shop", url=url)
    apps.append(app)

    @app.job(app.queue("sales"), key="{id}", effect="transactional", retry=onefold.Retry(attempts=1))
    def sell(sale: dict[str, Any], ctx: Context) -> None:
        ctx.connection.execute("UPDATE book SET sold = sold + 1")
        if sale.get("fails"):
            raise onefold.PermanentError("no", todo="none")
        if sale.get("reaches"):
            ctx.connection.execute("SELECT * FROM onefold_adopted")

    return app, sell


def work(app: onefold.App) -> None:
    settings = WorkerSettings(until_empty=True)
    worker = worker_setup.make_worker(
        app.runtime(), app.jobs, app.registry.job_of, settings=settings, history="full", sinks=[]
    )
    assert worker.run().code == 0


def test_without_the_option_it_is_refused_and_the_error_says_how(path: Path, apps: list[onefold.App]) -> None:
    before = path.read_bytes()
    with pytest.raises(errors.StorageError, match="another program") as raised:
        shop(apps, f"sqlite:///{path}")[0].runtime()
    assert "?adopt=yes" in raised.value.todo
    assert ".backup" in raised.value.todo
    assert path.read_bytes() == before


def test_adopted_nothing_of_theirs_is_touched_and_rows_commit_with_the_record(
    path: Path, apps: list[onefold.App]
) -> None:
    before = theirs_in(path)
    app, sell = shop(apps, f"sqlite:///{path}?adopt=yes")
    app.runtime()
    assert theirs_in(path) == before
    for sale in ({"id": "1"}, {"id": "1"}, {"id": "2", "fails": True}, {"id": "3", "reaches": True}):
        sell.send(sale)
    work(app)
    assert [sell.look(key).state for key in "123"] == ["done", "dead", "dead"]
    assert "onefold_adopted.one is prohibited" in str(sell.look("3").why)
    app.close()
    assert theirs_in(path) == (*before[:3], [("ulysses", 4)])


def test_once_adopted_it_opens_without_the_option_and_joins_their_transactions(
    path: Path, apps: list[onefold.App]
) -> None:
    shop(apps, f"sqlite:///{path}?adopt=yes")[0].runtime()
    apps[0].close()
    app, sell = shop(apps, f"sqlite:///{path}")
    app.runtime()
    with closing(sqlite3.connect(path)) as mine:
        mine.execute("UPDATE book SET sold = 10")
        sell.send({"id": "1"}, connection=mine)
        mine.rollback()
        assert sell.look("1").state == "absent"
        mine.execute("UPDATE book SET sold = 10")
        sell.send({"id": "1"}, connection=mine)
        mine.commit()
    work(app)
    assert theirs_in(path)[3] == [("ulysses", 11)]


def test_a_newer_onefold_has_used_it(path: Path, apps: list[onefold.App]) -> None:
    shop(apps, f"sqlite:///{path}?adopt=yes")[0].runtime()
    apps[0].close()
    with closing(sqlite3.connect(path)) as link:
        assert link.execute("SELECT version FROM onefold_adopted").fetchall() == [(latest(),)]
        link.execute("UPDATE onefold_adopted SET version = 99")
        link.commit()
    with pytest.raises(errors.StorageError, match="schema version 99"):
        shop(apps, f"sqlite:///{path}?adopt=yes")[0].runtime()


def test_a_file_without_room_for_our_names_is_left_as_it_was(path: Path, apps: list[onefold.App]) -> None:
    with closing(sqlite3.connect(path)) as link:
        link.execute("CREATE TABLE onefold_state (name TEXT)")
        link.commit()
    before = theirs_in(path)
    with pytest.raises((errors.StorageError, sqlite3.Error), match="onefold_state"):
        shop(apps, f"sqlite:///{path}?adopt=yes")[0].runtime()
    with closing(sqlite3.connect(path)) as link:
        names = link.execute("SELECT name FROM sqlite_master WHERE name LIKE 'onefold%'").fetchall()
    assert (theirs_in(path), names) == (before, [("onefold_state",)])


def test_the_header_of_a_new_file_stays_free_too(tmp_path: Path, apps: list[onefold.App]) -> None:
    shop(apps, f"sqlite:///{tmp_path}/new.db?adopt=yes")[0].runtime()
    with closing(sqlite3.connect(tmp_path / "new.db")) as link:
        assert link.execute("PRAGMA user_version").fetchone() == (0,)
        assert link.execute("SELECT version FROM onefold_adopted").fetchall() == [(latest(),)]
    apps[0].close()
    shop(apps, f"sqlite:///{tmp_path}/new.db")[0].runtime()


@pytest.mark.parametrize("option", ["?adopt=no", "?adopt", "?mode=ro", "?adopt=yes&x=1"])
def test_another_option_is_refused(tmp_path: Path, apps: list[onefold.App], option: str) -> None:
    with pytest.raises(errors.UsageError, match="more than a path"):
        shop(apps, f"sqlite:///{tmp_path}/new.db{option}")[0].runtime()
