"""SIGKILL of real processes on a real file: at every statement, and at random moments under load.

Transactional effects are rows of the same file, counted by plain SQL: none lost, none doubled. External effects are
lines of a file: none lost, and each double is in the ledger as a takeover whose outcome was unknown. Nothing here waits
for time to pass: victims report where they are, handlers report through a pipe that they run.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold.entropy import SeededEntropy, SystemEntropy
from tests.crash import victim

SOAK = os.environ.get("ONEFOLD_SOAK") == "1"
ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0  # a test that waits this long has failed


class Nursery:
    """Starts victims; see `victim.py`."""

    def __init__(self, module: str = "tests.crash.victim") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._words = self._process.stdin, self._process.stdout

    def kill_one(self, **order: Any) -> str | None:
        """Start a victim and kill it where it should die; returns where that was, or None if it never got there."""
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        word, number = self._words.readline().split()
        assert word == "pid"
        where = self._words.readline().rstrip("\n")
        died = where.startswith("at ")
        if died:
            os.kill(int(number), signal.SIGKILL)
        assert died or where.startswith("done "), where
        assert self._words.readline() == "gone\n"
        return where if died else None

    def close(self) -> None:
        """Let the parent of the victims end."""
        self._orders.close()
        assert self._process.wait(PATIENCE_S) == 0
        self._words.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


class Place:
    """One file with its effects, new for each kill."""

    def __init__(self, folder: Path, on_unknown: str) -> None:
        folder.mkdir(parents=True)
        self.path, self.effects = folder / "shop.db", folder / "effects"
        self.on_unknown = on_unknown
        self.shop = victim.Shop(str(self.path), str(self.effects), on_unknown)
        self.shop.app.runtime()
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("CREATE TABLE effect (key TEXT)")

    def shipped(self) -> Counter[str]:
        """Effects outside, by key."""
        return (
            Counter(line.split()[0] for line in self.effects.read_text().splitlines())
            if self.effects.exists()
            else Counter()
        )

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """What a plain connection finds."""
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()

    def completed(self) -> set[str]:
        """Keys whose record is completed."""
        return {key for (key,) in self.query("SELECT key FROM onefold_record WHERE status = 1")}

    def told(self, key: str) -> set[str]:
        """The events that the ledger has for a key."""
        return {event for event, of in self.query("SELECT event, key FROM onefold_ledger") if of == key}

    def recover(self) -> list[str]:
        """Another process notices the death and does what is left, at once; returns the dead owners."""
        runtime = self.shop.app.runtime()
        runtime.engine.appear()
        dead: list[str] = []
        runtime.engine.maintain(dead.append)
        victim.work(self.shop.app, runtime)
        for name in self.shop.app.queues:
            depth = runtime.engine.queues.depth(name)
            assert (depth.visible, depth.in_flight, depth.delayed) == (0, 0, 0), (name, depth)
        return dead


# -- at every statement ------------------------------------------------------------------------------------


def killed_everywhere(
    nursery: Nursery, folder: Path, job: str, on_unknown: str = "rerun"
) -> Iterator[tuple[Place, str, set[str]]]:
    """Kill at every statement; yields the place after recovery, where it was killed, and what was in doubt then."""
    number = 0
    while True:
        place = Place(folder / str(number), on_unknown)
        getattr(place.shop, job).send_many([{"id": f"{job}-1"}, {"id": f"{job}-2"}])
        order = {"path": str(place.path), "effects": str(place.effects), "on_unknown": on_unknown}
        where = nursery.kill_one(**order, point=number)
        if where is not None:
            doubted = set(place.shipped()) - place.completed()
            assert len(place.recover()) == 1, where
            assert place.query("PRAGMA integrity_check") == [("ok",)]
            yield place, where, doubted
        place.shop.app.close()
        if where is None:
            return
        number += 1


@pytest.mark.slow
def test_rows_and_letters_at_every_statement(nursery: Nursery, tmp_path: Path) -> None:
    expected = Counter({"enter-1": 1, "enter-2": 1, "letter of enter-1": 1, "letter of enter-2": 1})
    kills = 0
    for place, where, _ in killed_everywhere(nursery, tmp_path, "enter"):
        kills += 1
        assert Counter(key for (key,) in place.query("SELECT key FROM effect")) == expected, where
        assert place.completed() == set(expected), where
    assert kills > 60


@pytest.mark.slow
def test_an_effect_outside_at_every_statement(nursery: Nursery, tmp_path: Path) -> None:
    kills, windows = 0, []
    for place, where, doubted in killed_everywhere(nursery, tmp_path, "ship"):
        kills += 1
        assert place.completed() == {"ship-1", "ship-2"}, where
        assert place.shipped() == Counter(["ship-1", "ship-2", *doubted]), where
        for key in doubted:
            assert {"takeover", "unknown"} <= place.told(key), where
        if doubted:
            windows.append(where)
    assert kills > 40
    # The window, by the victim's names of points: from the effect to its record's commit, once for each of the two.
    assert [where for where in windows if "effect" in where] == [
        where for where in windows if where.endswith("after the effect")
    ]
    assert sum("COMMIT" in where for where in windows) == sum("after the effect" in where for where in windows) == 2


@pytest.mark.slow
def test_a_held_effect_at_every_statement(nursery: Nursery, tmp_path: Path) -> None:
    kills, parked = 0, 0
    for place, where, doubted in killed_everywhere(nursery, tmp_path, "ship", on_unknown="hold"):
        kills += 1
        assert set(place.shipped().values()) <= {1}, where
        held = {key for (key,) in place.query("SELECT key FROM onefold_record WHERE parked")}
        assert held | place.completed() == {"ship-1", "ship-2"}, where
        assert doubted <= held, where
        assert place.completed() <= set(place.shipped()), where
        assert len(place.shop.app.runtime().engine.queues.peek("parcels-held")) == len(held), where
        parked += bool(held)
    assert kills > parked > 5


def test_who_opens_the_file_waits_for_whoever_recovers_it(tmp_path: Path) -> None:
    """After a kill the next process recovers the file under an exclusive lock; the others must not fail meanwhile."""
    place = Place(tmp_path / "one", "rerun")
    place.shop.app.close()
    opened: list[str] = []
    with closing(sqlite3.connect(place.path, isolation_level=None)) as recovering:
        recovering.execute("PRAGMA locking_mode=EXCLUSIVE")
        recovering.execute("BEGIN IMMEDIATE")
        second = victim.Shop(str(place.path), str(place.effects)).app
        opener = threading.Thread(target=lambda: opened.append(second.runtime().url))
        opener.start()
        opener.join(0.2)
        assert opener.is_alive(), "it did not wait"
        recovering.execute("COMMIT")
    opener.join(PATIENCE_S)
    assert opened == [f"sqlite:///{place.path}"]
    second.close()


# -- at random moments under load --------------------------------------------------------------------------

KILLS, ORDERS, GROUPS = (400, 12_000, 40) if SOAK else (30, 1_000, 8)


class Field:
    """Workers on one file, started as a user starts them, and killed."""

    def __init__(self, folder: Path) -> None:
        self.path, self.effects = folder / "load.db", folder / "effects"
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._environment = {
            **os.environ,
            "ONEFOLD_URL": f"sqlite:///{self.path}",
            "EFFECTS": str(self.effects),
            "PROGRESS": str(self._writing),
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def python(self, code: str) -> None:
        """Run code with the app imported."""
        subprocess.run([sys.executable, "-c", code], **self._options(), check=True, timeout=PATIENCE_S)

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start another worker."""
        code = "from onefold.cli.main import main; main()"
        worker = subprocess.Popen(
            [sys.executable, "-c", code, "worker", "tests.crash.load_app:app", "--no-progress", *options],
            **self._options(),
            stdout=subprocess.DEVNULL,
        )
        self.workers.append(worker)
        return worker

    def _options(self) -> dict[str, Any]:
        return {"cwd": ROOT, "env": self._environment, "pass_fds": [self._writing]}

    def at_work(self, calls: int) -> subprocess.Popen[bytes]:
        """Wait until handlers have reported this many times; returns the last reporting worker that still exists."""
        by_id = {worker.pid: worker for worker in self.workers}
        last: int | None = None
        while calls > 0 or last is None:
            ready, _, _ = select.select([self._reading], [], [], PATIENCE_S)
            assert ready, "nobody works any more"
            said = os.read(self._reading, 4 * max(calls, 1))  # written four bytes at a time, and so never split
            calls -= len(said) // 4
            ids = (int.from_bytes(said[place : place + 4], "big") for place in range(0, len(said), 4))
            last = next((one for one in reversed(list(ids)) if one in by_id), last)
        return by_id[last]

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """SIGKILL; returns when it is gone."""
        assert worker.poll() is None, "a worker ended by itself"
        worker.kill()
        worker.wait(PATIENCE_S)
        self.workers.remove(worker)

    def close(self) -> None:
        """End everything that was started here."""
        for worker in self.workers:
            worker.kill()
            worker.wait(PATIENCE_S)
        os.close(self._reading)
        os.close(self._writing)

    def query(self, query: str) -> list[tuple[Any, ...]]:
        """What a plain connection finds."""
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query).fetchall()


SEND = """
import sqlite3
from tests.crash.load_app import app, count, enter, ship
runtime = app.runtime()
connection = sqlite3.connect(runtime.engine.database.path)
connection.executescript(
    "CREATE TABLE entered (key TEXT); CREATE TABLE posted (key TEXT); CREATE TABLE counted (grp INTEGER, number INTEGER)"
)
for start in range(0, {orders}, 500):
    keys = [{{"id": f"o-{{number}}"}} for number in range(start, min(start + 500, {orders}))]
    ship.send_many(keys)
    enter.send_many(keys)
for start in range(0, {orders}, 500):
    numbers = range(start, min(start + 500, {orders}))
    count.send_many([{{"group": number % {groups}, "number": number}} for number in numbers])
app.close()
"""


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    one = Field(tmp_path)
    yield one
    one.close()


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(0 if SOAK else 300)
def test_random_kills_under_load(field: Field) -> None:
    entropy = SeededEntropy(int(SystemEntropy().token(), 16) if SOAK else 1)
    print(f"seed {entropy.seed}")  # noqa: T201 - pytest -s
    field.python(SEND.format(orders=ORDERS, groups=GROUPS))
    for _ in range(3):
        field.start("--threads", "4", "--group", "5")
    share = ORDERS * 5 // KILLS  # each order gives five reports of work, and some are made twice
    for _ in range(KILLS):
        field.kill(field.at_work(1 + int(entropy.fraction() * 1.4 * share)))
        field.start("--threads", "4", "--group", "5")
    last = field.start("--until-empty")
    assert last.wait(PATIENCE_S * (10 if SOAK else 1)) == 0
    judge(field)


def judge(field: Field) -> None:
    """Assert: 0 lost, 0 double; what happened twice outside was in doubt, and the ledger says so."""
    keys = {f"o-{number}" for number in range(ORDERS)}
    for table in ("entered", "posted"):
        counts = Counter(key for (key,) in field.query(f"SELECT key FROM {table}"))
        assert (set(counts), set(counts.values())) == (keys, {1}), table
    numbers = field.query("SELECT grp, number FROM counted ORDER BY rowid")
    for group in range(GROUPS):
        in_order = [number for of, number in numbers if of == group]
        assert in_order == list(range(group, ORDERS, GROUPS)), f"group {group}"

    lines = [line.split() for line in field.effects.read_text().splitlines()]
    fences: dict[str, list[int]] = {}
    for key, fence, *_ in lines:
        fences.setdefault(key, []).append(int(fence))
    assert set(fences) == keys
    assert all(some == sorted(set(some)) for some in fences.values()), "an older run had its effect after a newer one"
    told: dict[str, int] = {}
    for key, event, detail in field.query("SELECT key, event, detail FROM onefold_ledger WHERE job = 'ship'"):
        if event == "takeover":
            told[key] = max(told.get(key, 0), json.loads(detail)["crashes"])
    doubled = {key: some for key, some in fences.items() if len(some) > 1}
    assert all(len(some) - 1 <= told.get(key, 0) for key, some in doubled.items()), (doubled, told)

    statuses = field.query("SELECT job, status, count(*) FROM onefold_record GROUP BY job, status ORDER BY job")
    assert statuses == [(job, 1, ORDERS) for job in ("count", "enter", "post", "ship")]
    assert field.query("SELECT count(*) FROM onefold_message") == [(0,)]
    assert field.query("PRAGMA integrity_check") == [("ok",)]
    dead = field.query(
        "SELECT count(*), sum(json_extract(detail, '$.messages')) FROM onefold_ledger WHERE event = 'owner-dead'"
    )
    ((deaths, freed),) = dead
    print(f"{deaths} deaths noticed, {freed} messages freed, {len(doubled)} effects doubled in doubt")  # noqa: T201 - pytest -s
    assert deaths > KILLS * 3 // 4  # the last ones killed may hold nothing that anybody waits for
    assert freed > KILLS
