"""Django's tasks on onefold: enqueued in transactions, run by `manage.py onefold_worker`, looked at as Django says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_pages import ROOT
from tests.emulators import servers

ADOPTED: dict[str, Any] = {"OPTIONS": {"adopt": True, "name": "site"}}


def environment(
    folder: Path, tasks: dict[str, Any], database: dict[str, Any] | None = None, **more: str
) -> dict[str, str]:
    given = database or {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(folder / "db.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return kept | {
        "DJANGO_SETTINGS_MODULE": "tests.frames.django_site.settings", "PYTHONPATH": path,
        "SITE_DATABASE": json.dumps(given), "SITE_TASKS": json.dumps({"QUEUES": ["default", "mail"]} | tasks), **more,
    }  # fmt: skip


def story(name: str, environment: dict[str, str], folder: Path, given: object = None) -> dict[str, Any]:
    """Run one of the programs; what it says."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.frames.django_site.story", name],
        cwd=folder, env=environment, input=json.dumps(given), text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def result(status: str, value: object = None, **more: object) -> dict[str, object]:
    over = status in ("SUCCESSFUL", "FAILED")
    return {
        "status": status, "value": value, "args": [], "kwargs": {}, "errors": [], "attempts": int(over), "queue": "default",
        "enqueued": True, "started": over, "finished": over, **more,
    }  # fmt: skip


@pytest.mark.slow
def test_tasks_are_enqueued_in_transactions_and_end_as_the_contract_says(tmp_path: Path) -> None:
    told = story("all_kinds", environment(tmp_path, ADOPTED, SITE_LOG="1"), tmp_path)
    assert told["before the commit"].startswith("TaskResultDoesNotExist")
    assert told["before the worker"] == result("READY", args=["o-1"])
    assert [one.partition(":")[0] for one in told["rolled back"]] == ["KeyError"] + 2 * ["TaskResultDoesNotExist"]
    assert told["same id"] == [True, True]
    assert told["signals"] == 10
    assert "NoneType" not in told["log"], "Django's log of a failed task has the task's own traceback"
    assert told["log"].count("\nTraceback (most recent call last):") >= 2
    booked, failed, later, broken, elsewhere, long_key, shipped = told["after the worker"]
    assert booked == result("SUCCESSFUL", 1, args=["o-1"])
    assert failed == result("FAILED", args=["o-2"], kwargs={"fails": True}, errors=["onefold.errors.PermanentError"])
    assert later == result("SUCCESSFUL", {"a": 1}, args=[{"a": 1}])
    assert broken == result("FAILED", attempts=3, errors=["builtins.ValueError"] * 3)
    assert elsewhere == result("SUCCESSFUL", "o-9:1", args=["o-9"], queue="mail")
    assert long_key["value"] == f"{'x' * 200}:1"
    assert shipped == result("SUCCESSFUL", "o-1:7", args=["o-1"], kwargs={"grams": 7})
    assert told["coming"] == result("READY")
    assert told["context"] == [1, "o-1", "RUNNING", True]
    assert [one.partition(":")[0] for one in told["strangers"]] == ["TaskResultDoesNotExist"] * 2
    assert told["rows"] == [[["o-1", "booked"], ["o-2", "new"]], 1]  # what failed has left nothing of itself
    assert told["of another task"] == "TaskResultMismatch"
    assert told["priority"] in ("InvalidTask", "InvalidTaskError")
    unfit, no_key, no_argument = told["arguments"]
    assert unfit.startswith("TypeError: object cannot be written as JSON")
    assert no_key.startswith("PayloadError")
    assert no_argument.startswith("TypeError: missing a required argument")


@pytest.mark.slow
def test_children_set_django_up_and_what_is_held_is_running_with_an_error(tmp_path: Path) -> None:
    told = story("crashing", environment(tmp_path, ADOPTED), tmp_path)
    assert told["held"]["status"] == "RUNNING"
    assert told["held"]["errors"][-1] == "onefold.errors.OutcomeUnknown"
    assert (told["asked"]["status"], told["asked"]["value"]) == ("SUCCESSFUL", "found o-1")
    assert told["in another process"]


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing": ({}, "E003", "adopt"),
    "misspelt": ({"adopt": True, "quues": {}}, "E001", "Did you mean 'queues'?"),
    "a text": ({"adopt": "yes"}, "E002", "It takes bool"),
    "twice": ({"adopt": True, "url": "sqlite:///x.db"}, "E003", "twice"),
    "another way": ({"adopt": True, "transaction": "perhaps"}, "E002", "join or on_commit or now"),
    "no database": ({"adopt": True, "database": "other"}, "E005", "default"),
    "no app": ({"app": "nowhere:app"}, "E006", "module:attribute"),
    "no such app": ({"app": "json:loads"}, "E006", "Name an onefold.App"),
    "no queue": ({"adopt": True, "queues": {"mail": {}}}, "E006", "Add it to QUEUES"),
    "a queue's option": ({"adopt": True, "queues": {"default": {"retention": "1s"}}}, "E006", "retention"),
    "another outbox": ({"url": "sqlite:///x.db", "outbox": True}, "E006", "sqlite"),
    "no such engine": ({"url": "mysql://shop"}, "E006", "not an engine URL"),
    "no file": ({"url": "sqlite://x.db"}, "E006", "names no file"),
    "no such outbox": ({"url": "sqlite:///x.db", "outbox": "redis://localhost"}, "E006", "no outbox in redis"),
    "an outbox elsewhere": (
        {"url": "sqlite:///x.db", "outbox": "postgresql://localhost/x"},
        "E010",
        "is sqlite, and the app's outbox is in postgresql",
    ),
    "for another app": (
        {"app": "shop:app", "outbox": True, "name": "x"},
        "E003",
        "Give them to the onefold.App itself",
    ),
    "cannot join": ({"url": "sqlite:///x.db", "transaction": "join"}, "E009", "neither the engine nor an outbox"),
    "elsewhere": ({"url": "sqlite:///x.db"}, "W001", "loses them"),
    "on commit": ({"url": "sqlite:///x.db", "transaction": "on_commit"}, "", ""),
    "good": ({"adopt": True}, "", ""),
}


@pytest.mark.slow
def test_settings_that_cannot_work_are_reported_by_check(tmp_path: Path) -> None:
    given = {name: options for name, (options, _, _) in CASES.items()}
    told = story("checking", environment(tmp_path, ADOPTED), tmp_path, given)
    for name, (_, number, says) in CASES.items():
        assert len(told[name]) == bool(number), (name, told[name])
        assert all(one.startswith(number) and says in one for one in told[name]), (name, told[name])


@pytest.mark.slow
def test_settings_outside_of_options_are_checked_too(tmp_path: Path) -> None:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db.sqlite3")}
    deferred = manage(environment(tmp_path, ADOPTED, database), tmp_path, "check")
    assert (deferred.returncode, "(onefold.W003)" in deferred.stderr) == (0, True)
    assert '"transaction_mode"] to "IMMEDIATE"' in deferred.stderr
    unqueued = manage(environment(tmp_path, ADOPTED | {"QUEUES": []}), tmp_path, "check")
    assert (unqueued.returncode, "(onefold.E004)" in unqueued.stderr) == (1, True)
    bare = manage(environment(tmp_path, ADOPTED, SITE_BARE="1"), tmp_path, "check")
    assert (bare.returncode, "(onefold.W002)" in bare.stderr) == (0, True)


@pytest.mark.slow
def test_a_transactional_task_needs_the_engine_in_the_file_of_the_database(tmp_path: Path) -> None:
    tasks = {"OPTIONS": {"url": f"sqlite:///{tmp_path}/queue.db", "transaction": "on_commit"}}
    there = environment(tmp_path, tasks)
    done = manage(there, tmp_path, "check")
    assert (done.returncode, "(onefold.E008)" in done.stderr) == (1, True)
    assert "effect='transactional' needs the engine in the SQLite file of database 'default'" in done.stderr
    told = story("elsewhere", there | {"SITE_EFFECT": "external"}, tmp_path)
    assert told["task"].startswith("InvalidTask")
    assert "needs the engine in the SQLite file" in told["task"]
    assert told["job"].startswith("ImproperlyConfigured: Database 'default' is ")
    assert "the run's transaction is in memory" in told["job"]
    assert told["orders"] == 0


@pytest.mark.slow
def test_a_connection_that_is_too_old_is_closed_around_each_handler(tmp_path: Path) -> None:
    first, second = story("connecting", environment(tmp_path, ADOPTED), tmp_path)["connections"]
    assert second == first + 1  # CONN_MAX_AGE is 0: each has one of its own


@pytest.mark.slow
def test_a_database_in_memory_is_a_warning_until_a_task_is_enqueued(tmp_path: Path) -> None:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    told = story("in_memory", environment(tmp_path, ADOPTED, database), tmp_path)
    assert told["check"] == ["onefold.W004"]
    assert told["enqueue"].startswith("InMemoryError")
    assert '["TEST"] = {"NAME": "test.sqlite3"}' in told["enqueue"]


def manage(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django", *words],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.mark.slow
def test_the_command_says_what_is_wrong_before_it_works(tmp_path: Path) -> None:
    there = environment(tmp_path, {"OPTIONS": {"quues": {}}})
    done = manage(there, tmp_path, "check")
    assert done.returncode == 1
    assert "(onefold.E001)" in done.stderr
    assert "Did you mean 'queues'?" in done.stderr
    done = manage(environment(tmp_path, ADOPTED), tmp_path, "onefold_worker", "--backend", "other")
    assert done.returncode == 1
    assert "Use --backend with one of: default." in done.stderr
    assert manage(environment(tmp_path, ADOPTED), tmp_path, "onefold_worker", "--treads", "4").returncode == 2
    assert manage(environment(tmp_path, ADOPTED), tmp_path, "makemigrations", "onefold", "--check").returncode == 0


@pytest.mark.slow
def test_tasks_whose_options_cannot_work_are_invalid(tmp_path: Path) -> None:
    told = story("declaring", environment(tmp_path, ADOPTED), tmp_path)
    assert "nubmer" in told["key"]
    assert "'perhaps'" in told["on_unknown"]
    assert "'soon'" in told["timeout"]
    assert "nowhere" in told["queue"]
    assert "attempts=99" in told["retry"]
    assert told["good"] == "nothing"
    assert told["others"] == "nothing"
    assert told["check"] == ["onefold.E008"] * 4


@pytest.mark.slow
def test_the_admin_leads_to_the_page(tmp_path: Path) -> None:
    tasks = {"OPTIONS": {"adopt": True, "page": "/jobs/"}}
    told = story("admin", environment(tmp_path, tasks, SITE_ADMIN="1"), tmp_path)
    assert told == {"boss": [True, 302, "/jobs/"], "clerk": [False, 404, None]}


@pytest.mark.slow
def test_on_postgresql_tasks_leave_by_the_outbox_that_a_migration_has_made(tmp_path: Path) -> None:
    with servers.postgres(fsync="off") as url:
        user, _, rest = url.removeprefix("postgresql://").partition("@")
        address, _, name = rest.partition("/")
        host, _, port = address.partition(":")
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": name, "USER": user, "HOST": host, "PORT": port}
        tasks = {"OPTIONS": {"url": f"sqlite:///{tmp_path}/queue.db", "outbox": True}}
        told = story("joining", environment(tmp_path, tasks, database, SITE_EFFECT="external"), tmp_path)
    in_task, in_job = told.pop("transactional")
    assert "needs the engine in the SQLite file of database 'default'" in in_task
    assert "With PostgreSQL leave effect= out" in in_task
    assert in_job.startswith("ImproperlyConfigured: Database 'default' is postgresql: the ORM joins")
    assert told == {
        "refused": ["nothing", "KeyError: 'o-2'"],
        "waiting": ["nothing", "TaskResultDoesNotExist", "nothing"],
        "statuses": ["READY"] * 3,
        "after": ["nothing", "TaskResultDoesNotExist", "nothing"],
        "states": ["SUCCESSFUL", "READY", "SUCCESSFUL"],
        "orders": ["o-1"],
    }
