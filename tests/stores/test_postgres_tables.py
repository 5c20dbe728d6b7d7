"""The tables, the URL and the checks before work begins: an error says what to run, or there is a warning."""

from __future__ import annotations

import psycopg
import pytest

from onefold import errors
from onefold.contracts.store import Claimed
from onefold.engines.postgres import backend as schema
from onefold.engines.postgres import connection
from onefold.engines.postgres.backend import PostgresBackend
from onefold.engines.postgres.connection import PostgresAddress
from onefold.testing.records import KEY, NOW, ask
from onefold.testing.threads import at_once
from tests.emulators.servers import free_port, postgres_folder, postgres_server, postgres_url
from tests.stores.postgres_books import books, database, sql

pytestmark = pytest.mark.slow


def test_tables_are_made_once_however_many_begin_at_once(url: str) -> None:
    def work(number: int) -> list[str]:
        with books(url) as opened:
            return opened.check()

    answers = at_once(8, work)
    assert [type(answer) for answer in answers] == [list] * 8, answers
    assert sql(url, "SELECT version FROM onefold.version") == [(len(schema.steps()),)]


def test_two_schemas_of_one_database_know_nothing_of_each_other(url: str) -> None:
    with books(f"{url}?schema=shop_a") as first, books(f"{url}?schema=shop_b") as second:
        assert isinstance(first.store.claim([ask()], NOW)[0], Claimed)
        assert isinstance(second.store.claim([ask(owner="B")], NOW)[0], Claimed)
        assert second.records.find("key")[0].owner == "B"
        assert first.check() == second.check()


def warnings(url: str) -> list[str]:
    store = PostgresBackend(url)
    try:
        return store.check()
    finally:
        store.close()


def test_settings_that_lose_what_was_answered_are_warned_of(opened: PostgresBackend, url: str) -> None:
    assert [text.split()[0] for text in opened.check()] == ["fsync"]  # the tests' server has it off
    sql(url, "ALTER TABLE onefold.record SET UNLOGGED")
    said = warnings(f"{url}?options=-csynchronous_commit%3Doff")
    assert [text.split(":")[0] for text in said] == ["fsync is off", "synchronous_commit is off", "Not logged"]


def refused(url: str) -> errors.StorageError:
    with pytest.raises(errors.StorageError) as raised:
        warnings(url)
    assert raised.value.todo
    return raised.value


def test_missing_and_foreign_tables_are_refused_with_what_to_do(url: str) -> None:
    found = refused(url)
    assert found.what.endswith("has no tables of onefold in schema 'onefold'.")
    assert "onefold.store('postgresql://USER:PASSWORD@" in found.todo
    assert "?create=yes')" in found.todo
    store = PostgresBackend(url)
    with pytest.raises(errors.StorageError, match=r"has no tables of onefold.*relation.*\?create=yes'\)"):
        store.store.claim([ask()], NOW)
    apart = PostgresBackend(f"{url}?schema=jobs")
    with pytest.raises(errors.StorageError, match=r"\?schema=jobs&create=yes'\)"):
        apart.store.claim([ask()], NOW)
    apart.close()
    store.close()
    sql(url, "CREATE SCHEMA onefold")
    assert "has no tables of onefold" in refused(url).what
    sql(url, "CREATE TABLE onefold.record (id int)")
    with pytest.raises(errors.StorageError, match="another program"):
        PostgresBackend(url, create=True)
    assert sql(url, "SELECT to_regclass('onefold.version')") == [(None,)]


def test_tables_of_a_newer_onefold_are_refused(opened: PostgresBackend, url: str) -> None:
    sql(url, "UPDATE onefold.version SET version = 99")
    assert "newer" in refused(url).meaning
    with pytest.raises(errors.StorageError, match="newer"):
        PostgresBackend(url, create=True)


def test_a_role_without_rights_is_told_which(opened: PostgresBackend, url: str) -> None:
    sql(url, "CREATE ROLE clerk LOGIN")
    try:
        clerk = url.replace("postgres@", "clerk@")
        assert "clerk" in refused(clerk).what
        sql(url, "GRANT USAGE ON SCHEMA onefold TO clerk; GRANT SELECT ON ALL TABLES IN SCHEMA onefold TO clerk")
        missing = refused(clerk)
        assert "record: INSERT" in missing.what
        assert "GRANT SELECT, INSERT, UPDATE, DELETE" in missing.todo
        with books(clerk) as store, pytest.raises(errors.StorageError, match="GRANT"):
            store.store.claim([ask()], NOW)
        with pytest.raises(errors.StorageError, match="may not create"):
            PostgresBackend(f"{clerk}?schema=mine", create=True)
        sql(url, "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA onefold TO clerk")
        assert [text.split()[0] for text in warnings(clerk)] == ["fsync"]
        with books(clerk) as store:
            assert isinstance(store.store.claim([ask()], NOW)[0], Claimed)
            effects = store.effects(1000)
            assert effects.open().execute("SELECT current_user").fetchone() == ("clerk",)
            effects.rollback()
        sql(url, "ALTER ROLE clerk SET default_transaction_read_only = on")
        assert "is read-only" in refused(clerk).what
    finally:
        sql(url, "DROP OWNED BY clerk; DROP ROLE clerk")


def test_an_old_server_and_a_small_alphabet_are_refused(
    opened: PostgresBackend, url: str, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database(postgres, ENCODING="'LATIN1'", LOCALE="'C'", TEMPLATE="template0") as small:
        assert "UTF8" in refused(small).todo
    monkeypatch.setattr(schema, "VERSION_MIN", 990000)
    assert "Upgrade" in refused(url).todo


def test_a_standby_is_refused() -> None:
    with postgres_folder() as folder:
        port = free_port()
        url = postgres_url(port)
        with postgres_server(folder, port, fsync="off"), books(url):
            pass
        (folder / "standby.signal").touch()
        with postgres_server(folder, port, fsync="off"):
            assert "standby" in refused(url).meaning
            store = PostgresBackend(url)
            with pytest.raises(errors.StorageError, match="primary"):
                store.store.claim([ask()], NOW)
            assert store.store.read([KEY], NOW) == [None]
            store.close()


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql://h/db?schema=a.b", "schema"),
        ("postgresql://h/db?schema=pg_mine", "schema"),
        ("postgresql://h/db?schema=", "schema"),
        ("postgresql://h/db?nonsense=1", "the option 'nonsense', which is not known"),
        ("postgresql://h/db?shema=jobs", "(?s)the option 'shema', which is not known.*Did you mean schema"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused_before_anything_is_opened(url: str, named: str) -> None:
    with pytest.raises(errors.UsageError, match=named):
        PostgresBackend(url).check()


def test_what_the_url_says_reaches_libpq_and_is_shown_without_the_password() -> None:
    address = PostgresAddress(
        "postgresql://ada:p%40ss@db.example:6000/shop?schema=jobs&create=yes&sslmode=require&connect_timeout=1"
        "&options=-c%20work_mem%3D8MB&application_name=a+b"
    )
    told = psycopg.conninfo.conninfo_to_dict(address.conninfo)
    assert (address.schema, address.creates, address.shown) == ("jobs", True, "postgresql://db.example:6000/shop")
    assert (told["password"], told["sslmode"], told["client_encoding"]) == ("p@ss", "require", "UTF8")
    assert (told["connect_timeout"], told["keepalives_count"]) == ("1", "2")
    assert (told["options"], told["application_name"]) == ("-c work_mem=8MB", "a+b")


def test_handlers_queries_are_planned_as_anybodys(opened: PostgresBackend) -> None:
    query = "SELECT name, setting FROM pg_settings WHERE name = ANY(%s)"
    ours = dict(opened._server.run(lambda link: link.execute(query, (list(connection.PLANNED),)).fetchall()))
    assert ours == connection.PLANNED
    effects = opened.effects(1000)
    theirs = dict(effects.open().execute(query, (list(connection.PLANNED),)).fetchall())
    effects.rollback()
    assert all(theirs[name] != value for name, value in connection.PLANNED.items())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://worker@localhost/shop", "postgresql://localhost:7392/shop"),
        ("postgresql://ada@localhost:5433", "postgresql://localhost:5433/books"),
    ],
)
def test_errors_name_the_address_that_libpq_uses(url: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PGPORT", "7392"), ("PGHOST", "db.internal"), ("PGDATABASE", "books")):
        monkeypatch.setenv(name, value)
    assert PostgresAddress(url).shown == shown
