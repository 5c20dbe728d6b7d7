"""Outbox tables in PostgreSQL: sent if, and only if, the transaction commits; passed on once, despite kills."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from onefold import errors
from onefold.cli import main
from onefold.engines.postgres import outbox
from onefold.engines.urls import open_outbox
from tests.emulators import servers
from tests.run.outbox_shop import OutboxShop

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with servers.postgres(fsync="off") as url:
        yield url


@pytest.fixture
def url(server: str) -> str:
    """A new database with the tables and a table of orders."""
    base = server.rpartition("/")[0]
    with psycopg.connect(server, autocommit=True) as link:
        link.execute("DROP DATABASE IF EXISTS books WITH (FORCE)")
        link.execute("CREATE DATABASE books")
    assert main.run(["outbox", "create", f"{base}/books"]) == 0
    with psycopg.connect(f"{base}/books") as link:
        link.execute("CREATE TABLE shop_order (id text PRIMARY KEY)")
    return f"{base}/books"


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[OutboxShop]:
    one = OutboxShop(f"sqlite:///{tmp_path / 'engine.db'}", url)
    yield one
    one.app.close()


def rows(url: str) -> list[int]:
    with psycopg.connect(url) as link:
        return [number for (number,) in link.execute("SELECT id FROM onefold_outbox ORDER BY id")]


def pass_on(shop: OutboxShop) -> int:
    relay = shop.relay()
    try:
        return relay.check()
    finally:
        relay.close()


def test_both_or_neither(shop: OutboxShop, url: str) -> None:
    with psycopg.connect(url) as link:
        link.execute("INSERT INTO shop_order VALUES ('o-1')")
        receipt = shop.ship.send({"id": "o-1"}, connection=link)
        assert (receipt.key, receipt.message_id) == ("o-1", None)
        assert rows(url) == []
        link.commit()
        shop.ship.send({"id": "o-2"}, connection=link)
        link.rollback()
        with link.transaction():
            shop.ship.send({"id": "o-3"}, connection=link)
            with link.transaction(force_rollback=True):
                shop.ship.send({"id": "o-4"}, connection=link)
        link.commit()
    assert pass_on(shop) == 2
    assert shop.waiting() == ["o-1", "o-3"]
    assert rows(url) == []


def test_many_keep_their_order(shop: OutboxShop, url: str) -> None:
    ids = [f"o-{number}" for number in range(1_200)]
    with psycopg.connect(url) as link:
        shop.pack.send_many([{"id": name, "customer": "c"} for name in ids[:1_000]], connection=link)
        link.commit()
        for name in ids[1_000:]:
            shop.pack.send({"id": name, "customer": "c"}, connection=link)
    assert pass_on(shop) == 1_200
    assert shop.waiting("groups.fifo") == ids


def test_on_asynchronous_connections(shop: OutboxShop, url: str) -> None:
    async def sell() -> None:
        async with await psycopg.AsyncConnection.connect(url) as link:
            with pytest.raises(errors.UsageError, match="AsyncConnection") as caught:
                shop.ship.send({"id": "o-0"}, connection=link)
            assert "asend" in caught.value.todo
            async with link.transaction():
                await link.execute("INSERT INTO shop_order VALUES ('o-1')")
                receipt = await shop.ship.asend({"id": "o-1"}, connection=link)
                assert (receipt.key, receipt.message_id) == ("o-1", None)
                await shop.pack.asend_many([{"id": "o-2", "customer": "c"}], connection=link)
            async with link.transaction(force_rollback=True):
                await shop.ship.asend({"id": "o-3"}, connection=link)
            with pytest.raises(errors.PayloadError, match="does not take the message"):
                await shop.ship.asend({"id": "o-4", "text": "x" * 2_000_000}, connection=link)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as link:
            with pytest.raises(
                errors.UsageError, match=r"autocommit mode.*`async with connection\.transaction\(\):`\.$"
            ):
                await shop.ship.asend({"id": "o-5"}, connection=link)
        with pytest.raises(errors.UsageError, match="closed"):
            await shop.ship.asend({"id": "o-6"}, connection=link)
        with (
            psycopg.connect(url, autocommit=True) as alone,
            pytest.raises(
                errors.UsageError, match=r"Send inside `with .*:` \(in Django: `transaction\.atomic\(\)`\)\.$"
            ),
        ):
            shop.ship.send({"id": "o-8"}, connection=alone)
        with psycopg.connect(url) as blocking, pytest.raises(errors.UsageError, match="no asynchronous connection"):
            await shop.ship.asend({"id": "o-7"}, connection=blocking)

    asyncio.run(sell())
    assert pass_on(shop) == 2
    assert (shop.waiting(), shop.waiting("groups.fifo")) == (["o-1"], ["o-2"])


def test_a_relay_that_waits_hears_of_a_commit(shop: OutboxShop, url: str) -> None:
    """Only through the notice: the next regular check is an hour away."""
    passed, ended = threading.Event(), threading.Event()

    class Table:
        def __init__(self, table: Any) -> None:
            self._table = table

        def __getattr__(self, name: str) -> Any:
            return getattr(self._table, name)

        def wait(self, rest: Any, _at_most_ms: int) -> None:
            self._table.wait(rest, 3_600_000)

        def remove(self, ids: Any) -> None:
            self._table.remove(ids)
            passed.set()

    relay = shop.relay(Table)
    thread = threading.Thread(target=relay.run, args=(ended,))
    thread.start()
    try:
        for name in ("o-1", "o-2"):
            with psycopg.connect(url) as link:
                shop.ship.send({"id": name}, connection=link)
            assert passed.wait(30)
            passed.clear()
    finally:
        ended.set()
        with psycopg.connect(url, autocommit=True) as link:
            link.execute("NOTIFY onefold_outbox")
        thread.join(30)
    assert not thread.is_alive()
    assert shop.waiting() == ["o-1", "o-2"]


def test_the_server_restarts_under_a_relay(shop: OutboxShop, url: str) -> None:
    relay = shop.relay()
    assert relay.check() == 0
    with psycopg.connect(url) as link:
        shop.ship.send({"id": "o-1"}, connection=link)
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(errors.TransientError):
        relay.check()
    assert relay.check() == 1
    relay.close()
    assert shop.waiting() == ["o-1"]


# -- what cannot be used -----------------------------------------------------------------------------------------------


def refused(shop: OutboxShop, link: Any, match: str, kind: type[errors.OnefoldError] = errors.UsageError) -> None:
    with pytest.raises(kind, match=match) as caught:
        shop.ship.send({"id": "o-1"}, connection=link)
    assert "Nothing was sent" in caught.value.meaning
    assert caught.value.todo


def test_connections_that_cannot_carry_a_message(shop: OutboxShop, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as link:
        refused(shop, link, "autocommit mode")
        with link.transaction():
            shop.ship.send({"id": "o-0"}, connection=link)
    with psycopg.connect(url) as link:
        with pytest.raises(psycopg.Error):
            link.execute("SELECT 1 / 0")
        refused(shop, link, "has failed and can only be rolled back")
        link.rollback()
        shop.ship.send({"id": "o-2"}, connection=link)
    refused(shop, link, "closed")
    assert len(rows(url)) == 2


def test_a_database_without_the_tables_or_with_others(shop: OutboxShop, url: str, server: str) -> None:
    with psycopg.connect(server) as link:
        link.execute("CREATE TEMP TABLE mine (id int)")
        refused(shop, link, "No table onefold_outbox", errors.StorageError)
        assert link.execute("SELECT count(*) FROM mine").fetchone() == (0,)  # the transaction goes on
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("UPDATE onefold_outbox_version SET version = 2")
    with psycopg.connect(url) as link:
        refused(shop, link, "not have version 1", errors.StorageError)
        link.execute("INSERT INTO shop_order VALUES ('o-1')")
    assert rows(url) == []
    with pytest.raises(errors.StorageError, match="not have version 1"):
        pass_on(shop)


def test_a_database_with_another_outbox_than_the_apps(shop: OutboxShop, url: str, server: str) -> None:
    base = server.rpartition("/")[0]
    with psycopg.connect(server, autocommit=True) as link:
        link.execute("DROP DATABASE IF EXISTS others WITH (FORCE)")
        link.execute("CREATE DATABASE others")
    assert main.run(["outbox", "create", f"{base}/others"]) == 0
    with psycopg.connect(f"{base}/others") as link:
        refused(shop, link, "The connection is to database 'others'; the outbox of the app is .*/books")
        refused(shop, link, "The connection is to database 'others'")  # nothing was remembered
        assert link.execute("SELECT count(*) FROM onefold_outbox").fetchone() == (0,)

    async def sell() -> None:
        async with await psycopg.AsyncConnection.connect(f"{base}/others") as link:
            with pytest.raises(errors.UsageError, match="The connection is to database 'others'"):
                await shop.ship.asend({"id": "o-1"}, connection=link)
        link_of_asyncpg = await asyncpg.connect(f"{base}/others")
        async with link_of_asyncpg.transaction():
            with pytest.raises(errors.UsageError, match="The connection is to database 'others'"):
                await shop.ship.asend({"id": "o-1"}, connection=link_of_asyncpg)
        await link_of_asyncpg.close()

    asyncio.run(sell())
    assert rows(f"{base}/others") == rows(url) == []


def test_an_outbox_under_another_name_or_out_of_reach_is_sent_to(shop: OutboxShop, url: str) -> None:
    """As through a pooler, under whose name the app's URL has the same database."""
    with psycopg.connect(url, autocommit=True) as link:
        (token,) = link.execute("SELECT token FROM onefold_outbox_version").fetchone() or ("",)
    outbox.check_token(url, "pooled", (token,))
    with pytest.raises(errors.UsageError, match="database 'pooled'"):
        outbox.check_token(url, "pooled", ("another",))
    outbox.check_token("postgresql://127.0.0.1:1/shop?connect_timeout=1", "pooled", ("another",))


def test_a_role_without_permission(shop: OutboxShop, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("DROP ROLE IF EXISTS clerk")
        link.execute("CREATE ROLE clerk LOGIN")
    with psycopg.connect(url.replace("postgres@", "clerk@")) as link:
        refused(shop, link, "may not use the outbox tables", errors.StorageError)
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("GRANT SELECT, INSERT ON onefold_outbox, onefold_outbox_version TO clerk")
    with psycopg.connect(url.replace("postgres@", "clerk@")) as link:
        shop.ship.send({"id": "o-1"}, connection=link)
    assert pass_on(shop) == 1


# -- frameworks --------------------------------------------------------------------------------------------------------

DJANGO = """
import sys
import django
from django.conf import settings
from psycopg.conninfo import conninfo_to_dict
to = conninfo_to_dict(sys.argv[1])
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": to["dbname"],
    "HOST": to["host"], "PORT": to["port"], "USER": to["user"]}}, USE_TZ=True)
django.setup()
from django.db import connection, transaction
import onefold

app = onefold.App("shop", url="sqlite:///unused.db", outbox=sys.argv[1])
ship = app.job(app.queue("orders"), key="{id}", name="ship")(lambda order: None)
with transaction.atomic():
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_order VALUES (%s)", ["o-1"])
    ship.send({"id": "o-1"}, connection=connection)
try:
    with transaction.atomic():
        ship.send({"id": "o-2"}, connection=connection)
        raise KeyError
except KeyError:
    pass
try:
    ship.send({"id": "o-3"}, connection=connection)
except onefold.errors.UsageError as error:
    print(error)
"""


def test_django(shop: OutboxShop, url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DJANGO, url], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "transaction.atomic()" in done.stdout
    assert not (tmp_path / "unused.db").exists()
    assert pass_on(shop) == 1
    assert shop.waiting() == ["o-1"]


# -- killed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["psycopg", "sqlalchemy"])
def test_a_program_and_its_relay_killed_anywhere_lose_nothing_and_repeat_nothing(
    url: str, tmp_path: Path, way: str
) -> None:
    """The victim rolls back, sells and relays; it is killed before each call to either database in turn."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.crash.outbox_victim", way, url, str(tmp_path / "engine.db")],
        cwd=ROOT, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    stories = [json.loads(line) for line in told.stdout.splitlines()]
    *killed, last = stories
    assert not last["died"]
    points = {one["at"] for one in killed}
    assert "sell" in {name.partition(" ")[0] for name in points}
    assert way != "psycopg" or any(name.startswith("relay") and "COMMIT" in name for name in points), points
    assert len(killed) > (15 if way == "psycopg" else 8)
    with psycopg.connect(url) as link:
        sold = sorted(
            (str(name) for (name,) in link.execute("SELECT id FROM shop_order")), key=lambda name: int(name[2:])
        )
    assert any(one["name"] not in sold for one in killed)
    assert any(one["name"] in sold for one in killed)
    shop = OutboxShop(f"sqlite:///{tmp_path / 'engine.db'}", url)
    pass_on(shop)
    assert sorted(shop.waiting()) == sorted(sold)
    assert shop.waiting("groups.fifo") == sold
    assert rows(url) == []
    shop.app.close()


def test_two_relays_killed_again_and_again_beside_a_sender(url: str, tmp_path: Path) -> None:
    engine = tmp_path / "engine.db"
    command = [sys.executable, "-m", "tests.crash.outbox_victim", "--relay", url, str(engine)]
    shop = OutboxShop(f"sqlite:///{engine}", url)
    shop.app.runtime()
    ids = [f"o-{number}" for number in range(400)]
    relays: list[subprocess.Popen[str]] = []

    def start() -> None:
        one = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)
        assert one.stdout is not None
        assert one.stdout.readline() == "relaying\n"
        relays.append(one)

    start()
    start()
    with psycopg.connect(url) as link:
        for place, name in enumerate(ids):
            with link.transaction():
                shop.pack.send({"id": name, "customer": "c"}, connection=link)
            if place % 100 == 99:
                victim = relays.pop(0)
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
                assert victim.stdout is not None
                victim.stdout.close()
                start()
    for one in relays:
        one.terminate()
        one.wait(30)
        assert one.stdout is not None
        one.stdout.close()
    pass_on(shop)
    assert shop.waiting("groups.fifo") == ids
    assert rows(url) == []
    shop.app.close()


def test_create_is_harmless_twice_and_keeps_what_waits(shop: OutboxShop, url: str) -> None:
    with psycopg.connect(url) as link:
        shop.ship.send({"id": "o-1"}, connection=link)
    table = open_outbox(url)
    before = table.token
    table.create()
    assert table.token == before
    assert table.backlog("shop").waiting == 1
    table.close()
