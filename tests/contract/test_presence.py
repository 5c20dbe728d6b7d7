"""Who is alive: locks on files, dead owners buried once, and processes that come and go in every order."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from onefold import errors, limits
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from onefold.contracts.store import Answer, Claimed, Conflict, Running
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.engine import sweep_in
from onefold.engines.sqlite.ledger import SqliteLedger
from onefold.engines.sqlite.processes import Presence, join
from onefold.engines.sqlite.store import SqliteStore
from onefold.manual_clock import ManualClock
from onefold.testing.records import LEASE_MS, NOW, ask, complete
from tests.contract.sqlite_engine import open_engine

CHILD = """
import sys
from onefold.engines.sqlite.processes import Presence, join
if sys.argv[1] == "owner":
    presence = Presence(sys.argv[2], sys.argv[3])
else:
    file = join(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Database]:
    engine = open_engine(tmp_path / "shop.db", ManualClock(NOW))
    yield engine
    engine.close()


def spawn(*arguments: object) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


def kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    with child:
        child.wait()


def die(presence: Presence) -> None:
    """What the operating system does when the process of this presence is killed."""
    assert presence._file is not None
    os.close(presence._file.number)
    presence._file = None


def test_the_living_are_not_found_dead(engine: Database) -> None:
    here, there = Presence(engine.path, "here"), Presence(engine.path, "there")
    assert here.find_dead() == there.find_dead() == []
    assert not here.free_dead_owner(engine, "there", NOW)
    assert (Path(f"{engine.path}.owners") / "here") == here.lock_file
    assert sorted(os.listdir(here.directory)) == ["here", "there"]
    here.close()
    there.close()


def test_who_leaves_in_good_order_leaves_nothing(engine: Database) -> None:
    here, there = Presence(engine.path, "here"), Presence(engine.path, "there")
    there.close()
    there.close()
    assert here.find_dead() == []
    assert os.listdir(here.directory) == ["here"]
    here.close()


def test_a_dead_owners_leases_and_visibilities_end_and_history_says_so(engine: Database) -> None:
    queues, store = SqliteQueues(engine, owner="dead"), SqliteStore(engine)
    queues.create(QueueSettings(name="q"))
    queues.open("q").send([Entry(body="1"), Entry(body="2")])
    here, dead = Presence(engine.path, "here"), Presence(engine.path, "dead")
    assert len(queues.open("q").receive(2)) == 2
    store.claim([ask("of-dead", "dead"), ask("of-here", "here")], NOW)
    die(dead)
    assert here.find_dead() == ["dead"]
    assert here.free_dead_owner(engine, "dead", NOW)
    assert len(SqliteQueues(engine, owner="here").open("q").receive(9)) == 2
    taken, other = store.claim([ask("of-dead", "here"), ask("of-here", "B")], NOW)
    assert isinstance(taken, Claimed)
    assert (taken.doubt, taken.previous_owner) == (True, "dead")
    assert isinstance(other, Running)
    (row,) = SqliteLedger(engine).between(NOW, NOW + 1)
    assert (row.event, row.actor, row.detail) == ("owner-dead", "here", {"owner": "dead", "messages": 2})
    assert os.listdir(here.directory) == ["here"]
    here.close()


def test_an_owner_is_buried_once_however_many_notice(engine: Database) -> None:
    watchers = [Presence(engine.path, f"watcher-{number}") for number in range(4)]
    dead = [Presence(engine.path, f"dead-{number}") for number in range(5)]
    for presence in dead:
        die(presence)
    buried: list[str] = []
    ready = threading.Barrier(len(watchers))

    def watch(presence: Presence) -> None:
        ready.wait()
        buried.extend(owner for owner in presence.find_dead() if presence.free_dead_owner(engine, owner, NOW))

    threads = [threading.Thread(target=watch, args=(presence,)) for presence in watchers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A watcher that met another's lock left that owner to it; what is left over is found by the next look.
    buried.extend(owner for owner in watchers[0].find_dead() if watchers[0].free_dead_owner(engine, owner, NOW))
    assert sorted(buried) == [presence.owner for presence in dead]
    assert len(SqliteLedger(engine).between(NOW, NOW + 1)) == len(dead)
    for presence in watchers:
        presence.close()


def test_a_burial_that_was_cut_off_is_finished_by_the_next_who_looks(engine: Database) -> None:
    here, dead = Presence(engine.path, "here"), Presence(engine.path, "dead")
    die(dead)
    copy = dead.lock_file.read_bytes()
    assert here.free_dead_owner(engine, "dead", NOW)
    dead.lock_file.write_bytes(copy)  # the transaction was made, the file is still there
    assert here.find_dead() == ["dead"]
    assert not here.free_dead_owner(engine, "dead", NOW)
    assert here.find_dead() == []
    assert len(SqliteLedger(engine).between(NOW, NOW + 1)) == 1
    here.close()


def test_nothing_is_buried_when_the_file_cannot_be_written(engine: Database) -> None:
    here, dead = Presence(engine.path, "here"), Presence(engine.path, "dead")
    die(dead)
    engine.close()
    with pytest.raises(errors.UsageError, match="closed"):
        here.free_dead_owner(engine, "dead", NOW)
    assert here.find_dead() == ["dead"]  # tried again by the next who looks
    here.close()


def test_a_process_that_appears_is_never_found_dead(engine: Database) -> None:
    """Its file has no owner's name before it is locked, so that nobody can take it for a grave."""
    here = Presence(engine.path, "here")
    (here.directory / ".new-half").write_bytes(b"")
    assert here.find_dead() == []
    half = Presence(engine.path, "half")
    assert here.find_dead() == []
    half.close()
    here.close()


def test_an_owner_without_a_file_is_left_to_its_lease(engine: Database) -> None:
    here, store = Presence(engine.path, "here"), SqliteStore(engine)
    store.claim([ask(owner="elsewhere")], NOW)
    assert here.find_dead() == []
    assert not here.free_dead_owner(engine, "elsewhere", NOW)
    assert isinstance(store.claim([ask(owner="here")], NOW)[0], Running)
    here.close()


def test_a_folder_that_vanished_proves_nothing(engine: Database) -> None:
    here = Presence(engine.path, "here")
    here.lock_file.unlink()
    here.directory.rmdir()
    assert here.find_dead() == []
    here.close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "shop.db.owners").write_text("not a folder")
    with pytest.raises(errors.StorageError, match=r"shop\.db\.owners"):
        Presence(str(tmp_path / "shop.db"), "here")


# -- who stands still ----------------------------------------------------------------------------------------------------


def over(store: SqliteStore, at_ms: int = NOW + LEASE_MS) -> Answer:
    """What a claim finds of an operation whose lease is over."""
    return store.claim([ask(owner="here", at_ms=at_ms)], at_ms)[0]


def test_a_lease_that_is_over_stays_its_owners_until_that_says_that_it_could_have_renewed_it(engine: Database) -> None:
    there, store = Presence(engine.path, "there"), SqliteStore(engine)
    mark = there.mark(NOW)
    store.claim([ask(owner="there")], NOW)
    found = over(store)
    assert isinstance(found, Running)
    assert (found.stopped, found.owner, found.until_ms) == (os.getpid(), "there", NOW + LEASE_MS)
    mark.renewed(NOW + LEASE_MS - 1)
    assert over(store) == found
    mark.renewed(NOW + LEASE_MS)
    assert isinstance(over(store), Claimed)
    there.close()


@pytest.mark.parametrize(
    "how", ["never says", "says no more", "is dead", "has left", "is of an older version", "is unknown"]
)
def test_a_lease_that_is_over_is_anybodys_where_its_owner(engine: Database, how: str) -> None:
    there, store = Presence(engine.path, "there"), SqliteStore(engine)
    store.claim([ask(owner="there" if how != "is unknown" else "elsewhere")], NOW)
    mark = there.mark(NOW) if how != "never says" else None
    if how == "says no more":
        assert mark is not None
        mark.close()
    elif how == "is dead":
        die(there)
    elif how == "has left":
        there.close()
    elif how == "is of an older version":
        there.lock_file.write_bytes(b"%d\n" % os.getpid())
    assert isinstance(over(store), Claimed)
    there.close()


def test_who_has_no_descriptor_left_does_not_take_a_lease_from_who_stands_still(
    engine: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, store, opened = Presence(engine.path, "there"), SqliteStore(engine), os.open

    def no_more(path: str | Path, *rest: int, **options: int) -> int:
        if str(path) == str(there.lock_file):
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, *rest, **options)

    there.mark(NOW)
    store.claim([ask(owner="there")], NOW)
    monkeypatch.setattr(os, "open", no_more)
    with pytest.raises(errors.StorageBusy, match="Too many open files"):
        over(store)
    monkeypatch.undo()
    assert isinstance(over(store), Running)
    there.close()


def test_who_stands_still_keeps_a_lease_for_twelve_hours_from_the_start(engine: Database) -> None:
    there, store = Presence(engine.path, "there"), SqliteStore(engine)
    there.mark(NOW)
    (claimed,) = store.claim([ask(owner="there", start=False)], NOW)
    assert isinstance(claimed, Claimed)
    assert store.start([claimed.hold], NOW + 5) == [True]
    end_ms = NOW + 5 + limits.VISIBILITY_MS_MAX
    assert isinstance(over(store, end_ms - 1), Running)
    assert isinstance(over(store, end_ms), Claimed)
    there.close()


def test_an_expired_record_of_who_stands_still_is_neither_swept_nor_made_anew(engine: Database) -> None:
    there, store = Presence(engine.path, "there"), SqliteStore(engine)
    there.mark(NOW)
    store.claim([msgspec.structs.replace(ask(owner="there"), expires_at_ms=NOW + 1)], NOW)
    engine.write(lambda connection: sweep_in(connection, NOW + LEASE_MS, limit=10))
    assert isinstance(over(store), Running)
    late_ms = NOW + limits.VISIBILITY_MS_MAX
    assert engine.write(lambda connection: sweep_in(connection, late_ms, limit=10)).removed == 1
    there.close()


def test_of_several_that_renew_the_one_that_is_furthest_behind_counts(engine: Database) -> None:
    there, store = Presence(engine.path, "there"), SqliteStore(engine)
    quick, slow = there.mark(NOW), there.mark(NOW)
    store.claim([ask(owner="there")], NOW)
    quick.renewed(NOW + LEASE_MS)
    assert isinstance(over(store), Running)
    slow.close()
    assert isinstance(over(store), Claimed)
    there.close()


def test_what_is_read_while_it_is_written_says_nothing(engine: Database) -> None:
    there, store = Presence(engine.path, "there"), SqliteStore(engine)
    there.mark(NOW)
    store.claim([ask(owner="there")], NOW)
    there.lock_file.write_bytes(b"%d %020d %020d\n" % (os.getpid(), NOW + LEASE_MS, NOW))
    assert isinstance(over(store), Running)
    there.close()


def test_a_conflict_with_who_stands_still_is_a_conflict(engine: Database) -> None:
    there, store = Presence(engine.path, "there"), SqliteStore(engine)
    there.mark(NOW)
    store.claim([ask(owner="there")], NOW)
    other = msgspec.structs.replace(ask(owner="here", at_ms=NOW + LEASE_MS), fingerprint="0" * 32)
    assert isinstance(store.claim([other], NOW + LEASE_MS)[0], Conflict)
    there.close()


# -- with real processes -------------------------------------------------------------------------------------------------


def test_a_killed_process_is_found_dead(engine: Database) -> None:
    here = Presence(engine.path, "here")
    child = spawn("owner", engine.path, "there")
    assert here.find_dead() == []
    kill(child)
    assert here.find_dead() == ["there"]
    here.close()


def test_an_owner_lives_as_long_as_one_of_its_child_processes(engine: Database) -> None:
    here = Presence(engine.path, "here")
    parent = spawn("owner", engine.path, "there")
    child = spawn("child", here.directory / "there")
    kill(parent)
    assert here.find_dead() == []
    assert not here.free_dead_owner(engine, "there", NOW)
    kill(child)
    assert here.find_dead() == ["there"]
    here.close()


def test_a_forked_child_shares_its_parents_life(engine: Database) -> None:
    here = Presence(engine.path, "here")
    other = Presence(engine.path, "other")
    assert other._file is not None
    inherited = os.dup(other._file.number)  # as fork does it: the same open file
    die(other)
    assert here.find_dead() == []
    os.close(inherited)
    assert here.find_dead() == ["other"]
    here.close()


def test_a_child_of_an_owner_that_was_buried_or_is_being_buried_does_not_start(engine: Database) -> None:
    here, dead = Presence(engine.path, "here"), Presence(engine.path, "dead")
    die(dead)
    grave = os.open(dead.lock_file, os.O_RDWR)
    fcntl.flock(grave, fcntl.LOCK_EX)
    with pytest.raises(errors.LeaseLost, match="dead"):
        join(str(dead.lock_file))
    os.close(grave)
    assert here.free_dead_owner(engine, "dead", NOW)
    with pytest.raises(errors.LeaseLost, match="dead"):
        join(str(dead.lock_file))
    here.close()


def test_a_child_whose_owner_is_buried_while_it_joins_does_not_start(
    engine: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, dead = Presence(engine.path, "here"), Presence(engine.path, "dead")
    die(dead)
    lock = fcntl.flock

    def late(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        assert here.free_dead_owner(engine, "dead", NOW)  # after the child has opened the file
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(errors.LeaseLost, match="dead"):
        join(str(dead.lock_file))
    here.close()


def test_what_the_dead_had_finished_stays_finished(engine: Database) -> None:
    here, dead, store = Presence(engine.path, "here"), Presence(engine.path, "dead"), SqliteStore(engine)
    (claimed,) = store.claim([ask(owner="dead")], NOW)
    assert isinstance(claimed, Claimed)
    store.write([(claimed.hold, complete())], NOW)
    die(dead)
    assert here.free_dead_owner(engine, "dead", NOW)
    (record,) = store.read([claimed.hold.key], NOW)
    assert record is not None
    assert record.status == "completed"
    here.close()
