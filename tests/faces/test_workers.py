"""Which workers are there, what each runs, and draining one: documents on any engine, processes on a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold import errors, limits
from onefold.admin import activity
from onefold.runner import roster
from onefold.runner.roster import LOOK_MS, SEEN_MS, SILENT_MS, Roster, WorkerEntry
from tests.faces.conftest import SHOP
from tests.faces.office import START_MS, Open
from tests.faces.processes import PATIENCE_S, Commands


def entry(owner: str = "w-1", at_ms: int = START_MS) -> WorkerEntry:
    return WorkerEntry(
        owner=owner, app="office", host="here", pid=7, queues=("orders",), started_at_ms=at_ms, seen_at_ms=at_ms
    )


def there_is(there: Open, owner: str = "w-1") -> Roster:
    made = Roster(there.session.engine.state, entry(owner), there.clock, embedded=True)
    made.check()
    return made


def states(there: Open) -> dict[str, str]:
    return {one.owner: one.state for one in activity.workers(there.session).workers}


def test_a_worker_whose_role_may_not_list_names_keeps_its_document_and_is_asked_to_drain(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maintenance ended with the error, and so the worker."""

    def refused(_: str) -> list[str]:
        raise errors.UsageError("not authorized to perform: dynamodb:Query")

    state = there.session.engine.state
    with monkeypatch.context() as patch:
        patch.setattr(state, "names", refused)
        mine = there_is(there)
    asked: list[str] = []
    mine.asked = lambda: asked.append("drain")
    roster.ask_to_drain(state, "w-1", "person:ada", START_MS)
    there.clock.advance(LOOK_MS)
    mine.check()
    assert asked == ["drain"]


def test_a_worker_without_work_is_listed(there: Open) -> None:
    assert states(there) == {}
    mine = there_is(there)
    (one,) = activity.workers(there.session).workers
    assert (one.state, one.app, one.host, one.pid, one.queues) == ("idle", "office", "here", 7, ("orders",))
    mine.leave()
    assert states(there) == {}


def test_one_that_stands_still_is_told_from_one_that_is_silent(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leases are over in both cases; `why` and `stuck` say the same."""
    there_is(there, "worker-that-dies")
    there.claim("book", "o-1", start=True)
    assert states(there) == {"worker-that-dies": "working"}
    there.clock.advance(2_000)
    assert states(there) == {"worker-that-dies": "silent"}
    monkeypatch.setattr(type(there.session.engine), "stopped_process", lambda *_: 4_711)
    assert states(there) == {"worker-that-dies": "stopped"}


def test_one_that_is_asked_to_drain_is_told_once_it_looks(there: Open) -> None:
    asked: list[str] = []
    mine = there_is(there)
    mine.asked = lambda: asked.append("drain")
    assert activity.drain(there.session, "w-1", reason_text="the host is rebooted")
    assert not activity.drain(there.session, "w-1")
    assert states(there) == {"w-1": "draining"}
    mine.check()
    assert asked == []
    there.clock.advance(LOOK_MS)
    mine.check()
    assert asked == ["drain"]
    (deed,) = activity.audit(there.session).deeds
    assert (deed.event, deed.actor, deed.reason) == ("drain-asked", "person:ada", "the host is rebooted")


def test_a_mark_is_kept_when_the_worker_writes_its_document_again(there: Open) -> None:
    asked: list[str] = []
    mine = there_is(there)
    mine.asked = lambda: asked.append("drain")
    activity.drain(there.session, "w-1")
    there.clock.advance(SEEN_MS)
    mine.check()
    assert asked == ["drain"]
    assert states(there) == {"w-1": "draining"}


def test_one_that_says_nothing_any_more_is_silent_and_forgotten_a_day_later(there: Open) -> None:
    there_is(there)
    there.clock.advance(SILENT_MS + 1)
    assert states(there) == {"w-1": "silent"}
    there.clock.advance(limits.DAY_MS)
    there_is(there, "w-2")
    assert list(states(there)) == ["w-2"]


def test_who_is_not_there_cannot_be_drained(there: Open) -> None:
    with pytest.raises(errors.NotFoundError, match="no worker 'w-9'"):
        activity.drain(there.session, "w-9")


def test_a_document_that_cannot_be_read_hides_no_other(there: Open) -> None:
    from onefold.contracts.state import Change

    there.session.engine.state.put([Change(f"{roster.PREFIX}w-0", b'{"of": "a newer version"}', 0)])
    there_is(there)
    assert list(states(there)) == ["w-1"]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    shutil.copy(SHOP, tmp_path)
    found = Commands(tmp_path)
    yield found
    found.end()


def listed(commands: Commands, wanted: int) -> list[dict[str, object]]:
    """The workers, once there are so many."""
    found: list[dict[str, object]] = []
    for _ in range(100):
        said = json.loads(commands.run("workers", "list", "shop:app", "--json").stdout)
        found = said.get("workers", [])  # an error, while the file is not there yet
        if "workers" in said and len(found) == wanted:
            return found
    raise AssertionError(f"there are {found}")


@pytest.mark.slow
def test_a_worker_process_drains_and_one_that_was_killed_is_not_listed(commands: Commands) -> None:
    first = commands.start("worker", "shop:app", "--no-progress")
    (one,) = listed(commands, 1)
    assert (one["pid"], one["state"]) == (first.pid, "idle")
    second = commands.start("worker", "shop:app", "--no-progress")
    both = listed(commands, 2)
    second.kill()
    second.wait()
    assert [each["pid"] for each in listed(commands, 1)] == [first.pid]
    other = next(str(each["owner"]) for each in both if each["pid"] == second.pid)
    refused = commands.run("workers", "drain", other, "shop:app")
    assert refused.returncode == 1, refused.stdout
    done = commands.run("workers", "drain", str(one["owner"]), "shop:app", "--reason-text", "a new release")
    assert done.stdout == "1 worker asked to drain.\n", done.stderr
    assert first.wait(PATIENCE_S) == 0
    assert listed(commands, 0) == []
    assert commands.run("workers", "list", "shop:app").stdout.startswith("No worker is running.")
