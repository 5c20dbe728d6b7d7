"""What a small disk costs a write, and who may use the last of it. The disk is small by agreement."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.codec import digest, outline
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import Ask, Claimed, RecordKey
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy
from onefold.limits import DAY_MS
from onefold.manual_clock import ManualClock

MIB = 1024 * 1024


class Disk:
    """What `statvfs` says of the folder: so many bytes in all, of which its files take theirs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.size_bytes = 1 << 50

    def statvfs(self, _path: Any) -> Any:
        used = sum(one.stat().st_size for one in self._folder.rglob("*") if one.is_file())
        return SimpleNamespace(f_frsize=1, f_bavail=max(self.size_bytes - used, 0))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk(tmp_path)
    monkeypatch.setattr(os, "statvfs", found.statvfs)
    return found


@pytest.fixture
def engine(disk: Disk, tmp_path: Path) -> Iterator[SqliteEngine]:
    path = str(tmp_path / "space.db")
    opened = SqliteEngine(path, clock=ManualClock(), entropy=SystemEntropy(), owner="me", url=path)
    opened.queues.create(QueueSettings(name="orders"))
    yield opened
    opened.close()


def test_with_little_space_a_write_asks_for_nothing_more(engine: SqliteEngine, disk: Disk) -> None:
    disk.size_bytes = 300 * MIB  # less than 655 MB, as on small cloud disks and in /dev/shm
    queue, database = engine.queues.open("orders"), engine.database
    for _ in range(40):
        queue.send([Entry(body="x")])  # it is known by now, and the messages were counted once
    statements: list[str] = []
    assert database._opened is not None
    database._opened.set_trace_callback(statements.append)
    for _ in range(50):
        queue.send([Entry(body="x")])
        database.together([lambda: None])
    database._opened.set_trace_callback(None)
    assert not [one for one in statements if "checkpoint" in one or "count(*)" in one]
    assert len([one for one in statements if "max_page_count" in one]) <= 2


def fill(engine: SqliteEngine) -> int:
    """Send until it is refused; how many were accepted."""
    queue = engine.queues.open("orders")
    for number in range(100_000):
        try:
            queue.send([Entry(body="x" * 1_000)])
        except errors.StorageBusy:
            return number
    raise AssertionError("it was never refused")


def test_no_send_takes_what_is_kept_for_finishing(engine: SqliteEngine, disk: Disk) -> None:
    """Nor one that comes after what may use it, nor one in a transaction with others."""
    disk.size_bytes = 8 * MIB
    accepted = fill(engine)
    assert accepted > 1_500
    for _ in range(20):
        engine.database.together([lambda: None])
        with pytest.raises(errors.StorageBusy, match=rf"finishing the {accepted + 1:,} messages"):
            engine.queues.open("orders").send([Entry(body="x" * 1_000)])
    for one in engine.queues.open("orders").receive(10):
        assert engine.queues.open("orders").delete([one.receipt]) == [True]
    engine.queues.open("orders").send([Entry(body="x" * 1_000)])  # there is room again


def test_what_runs_leave_is_measured(engine: SqliteEngine, disk: Disk) -> None:
    disk.size_bytes = 8 * MIB
    engine.queues.open("orders").send([Entry(body="x")])  # the disk is known to be small, and there are no records
    engine.database.write(
        lambda connection: connection.executemany(
            "INSERT INTO onefold_record (ident, status, fence, owner, lease_until_ms, parked, doubt, started_fence, "
            "attempts, attempts_total, crashes, crashes_total, budget_closed, created_at_ms, updated_at_ms, fingerprint, "
            "scope, job, key, result) "
            "VALUES (?, 1, 1, 'me', 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 'f', '', 'ship', 'k', zeroblob(20000))",
            [(str(number).encode(),) for number in range(20)],
        )
    )
    assert 50 < fill(engine) < 400  # of 1,000 bytes each, which is as nothing beside their results


def test_a_guarded_call_begins_only_while_there_is_room_for_its_result(engine: SqliteEngine, disk: Disk) -> None:
    disk.size_bytes = 3 * MIB
    effects: list[str] = []
    clock = engine.database.clock.wall
    assert isinstance(clock, ManualClock)

    @onefold.once(key="{key}", name="charge", store=engine.store)
    def charge(key: str) -> str:
        effects.append(key)
        return "y" * 2_000

    now_ms = engine.database.clock.now_ms()
    died = Ask(
        key=RecordKey("", "charge", "died"),
        fingerprint=digest(outline({"key": "died"})),
        owner="another",
        lease_until_ms=now_ms + 1_000,
        start=True,
        expires_at_ms=now_ms + DAY_MS,
    )
    assert isinstance(engine.store.claim([died], now_ms)[0], Claimed)
    done: list[str] = []
    for number in range(10_000):
        try:
            charge(f"o-{number}")
        except errors.StorageBusy:
            break
        done.append(f"o-{number}")
    assert len(done) > 100
    for _ in range(30):  # each is refused before it has its effect
        with pytest.raises(errors.StorageBusy, match="guarded calls"):
            charge("refused")
    clock.advance(2_000)
    with pytest.raises(errors.StorageBusy, match="guarded calls"):
        charge("died")  # its second try could not be recorded either
    assert effects == done
    assert charge(done[0]) == "y" * 2_000, "a duplicate is answered"
    assert effects == done
