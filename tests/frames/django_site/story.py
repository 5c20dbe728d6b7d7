"""Programs of the tests, each run in a process of its own by its name; they print JSON."""

# ruff: noqa: E402 - Django is set up first
from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from functools import partial
from typing import Any

import django
from django.core.management import call_command

django.setup()

from django.db import transaction
from django.utils import timezone

import onefold
from onefold.django import orm, settings
from onefold.django.declaring import id_of
from tests.frames.django_site import tasks
from tests.frames.django_site.models import Order, Parcel
from tests.frames.django_site.package import TaskException, task, task_backends, task_enqueued


def work(*options: str) -> str:
    """Run a worker as a person would, until nothing is left; what it wrote."""
    done = subprocess.run(
        [sys.executable, "-m", "django", "onefold_worker", "--until-empty", "--no-progress", *options],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def shown(result: Any) -> dict[str, Any]:
    """A result, without what differs between two runs."""
    return {
        "status": str(result.status),
        "value": result._return_value,
        "args": result.args,
        "kwargs": result.kwargs,
        "errors": [one.exception_class_path for one in result.errors],
        "attempts": result.attempts,
        "queue": result.task.queue_name,
        "enqueued": result.enqueued_at is not None,
        "started": result.started_at is not None,
        "finished": result.finished_at is not None,
    }


def refused(call: Any) -> str:
    """What a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - to be told
        return f"{type(error).__name__}: {error}"
    return "nothing"


def all_kinds() -> dict[str, Any]:
    """Enqueued in transactions, run by a worker."""
    enqueued: list[str] = []
    task_enqueued().connect(lambda task_result, **_: enqueued.append(task_result.id), weak=False)
    told: dict[str, Any] = {}
    with transaction.atomic():
        for number in ("o-1", "o-2"):
            Order.objects.create(number=number)
        one, two = tasks.book.enqueue("o-1"), tasks.book.enqueue("o-2", fails=True)
        with transaction.atomic():
            part = tasks.ship.enqueue("savepoint")
            transaction.set_rollback(True)
        told["before the commit"] = refused(lambda: tasks.book.get_result(one.id))
    told["before the worker"] = shown(tasks.book.get_result(one.id))

    def place_and_fail() -> None:
        with transaction.atomic():
            Order.objects.create(number="o-3")
            gone.append(tasks.book.enqueue("o-3"))
            raise KeyError("o-3")

    gone: list[Any] = []
    told["rolled back"] = [refused(place_and_fail), *(refused(each.refresh) for each in (gone[0], part))]
    first, again = tasks.ship.enqueue("o-1", grams=7), tasks.ship.enqueue("o-1", grams=7)
    long_key = tasks.ship.enqueue("x" * 200)
    elsewhere = tasks.ship.using(queue_name="mail").enqueue("o-9")
    told["same id"] = [first.id == again.id, len(long_key.id) < 64]
    others: list[Any] = [tasks.later.enqueue({"a": 1}), tasks.breaks.enqueue(), elsewhere, long_key, first]
    told["signals"] = len(enqueued)
    told["log"] = work("--queues", "default,mail", "--threads", "4")
    backend = task_backends["default"]
    told["after the worker"] = [shown(backend.get_result(each.id)) for each in [one, two, *others]]
    coming = tasks.where.using(run_after=timezone.now() + timedelta(days=2)).enqueue()
    told["coming"] = shown(tasks.where.get_result(coming.id))
    told["strangers"] = [refused(partial(backend.get_result, each)) for each in ("nobody", "a-b")]
    told["context"] = backend.get_result(id_of(tasks.tell.module_path, "o-1")).return_value
    told["rows"] = [list(Order.objects.order_by("number").values_list("number", "state")), Parcel.objects.count()]
    other = refused(lambda: tasks.book.get_result(first.id))
    told["of another task"] = other.partition(":")[0]
    told["priority"] = refused(lambda: tasks.ship.using(priority=5)).partition(":")[0]
    ship: Any = tasks.ship
    told["arguments"] = [
        refused(partial(ship.enqueue, object())), refused(partial(ship.enqueue, None)),
        refused(ship.enqueue),
    ]  # fmt: skip
    return told


def crashing() -> dict[str, Any]:
    """Handlers that end their process, in children that set Django up."""
    held, asked, fine = tasks.crashes.enqueue(), tasks.crashes_and_asks.enqueue("o-1"), tasks.where.enqueue()
    work("--processes", "1")
    where = tasks.where.get_result(fine.id).return_value
    return {
        "held": shown(tasks.crashes.get_result(held.id)),
        "asked": shown(tasks.crashes_and_asks.get_result(asked.id)),
        "in another process": where not in (os.getpid(), None),
    }


def checking() -> dict[str, Any]:
    """Settings that cannot work, and what `check` says of each."""
    cases: dict[str, Any] = json.loads(sys.stdin.read())
    return {
        name: [f"{one.number} {one.what} {one.todo}" for one in settings.problems(options, {"default"})]
        for name, options in cases.items()
    }


def declaring() -> dict[str, Any]:
    """Tasks whose options cannot work."""

    def declared(**options: Any) -> str:
        made.append(f"task_{len(made)}")
        scope: dict[str, Any] = {"__name__": "tests.frames.django_site.tasks"}
        exec(f"def {made[-1]}(number): pass", scope)
        try:
            task(**options)(scope[made[-1]]).enqueue("o-1")
        except TaskException as error:
            return str(error)
        return "nothing"

    made: list[str] = []
    return {
        "key": declared(key="{nubmer}"),
        "on_unknown": declared(on_unknown="perhaps"),
        "timeout": declared(timeout="soon"),
        "queue": declared(queue_name="nowhere"),
        "retry": declared(retry=onefold.Retry(attempts=99)),
        "good": declared(key=lambda number: f"k-{number}"),
        "others": refused(partial(tasks.ship.enqueue, "o-1")),
        "check": [one.id for one in task_backends["default"].check()],
    }


def admin() -> dict[str, Any]:
    """The link to the page, for those who may see it."""
    from django.contrib.auth.models import Permission, User
    from django.test import Client

    told = {}
    for name, permitted in (("boss", True), ("clerk", False)):
        user = User.objects.create_user(name, is_staff=True)
        if permitted:
            user.user_permissions.add(Permission.objects.get(codename="view_jobs"))
        client = Client()
        client.force_login(user)
        answer = client.get("/admin/onefold/jobs/")
        told[name] = [
            "/admin/onefold/jobs/" in client.get("/admin/").content.decode(), answer.status_code,
            answer.headers.get("Location"),
        ]  # fmt: skip
    return told


def connecting() -> dict[str, Any]:
    """Two handlers of one thread, one after the other."""
    results = [tasks.connects.enqueue() for _ in range(2)]
    work("--threads", "1")
    return {"connections": sorted(tasks.connects.get_result(one.id).return_value for one in results)}


def in_memory() -> dict[str, Any]:
    """The database of most tests."""
    return {
        "check": [one.id for one in task_backends["default"].check()],
        "enqueue": refused(partial(tasks.ship.enqueue, "o-1")),
    }


def declare_transactional(number: str) -> None:
    """A task whose rows cannot be in the transaction of its run."""
    Order.objects.create(number=number)


def run_transactional() -> str:
    """What a job gets that uses the ORM in its run's transaction, where the engine is in another place."""
    app = onefold.App("alone")

    @app.job(app.queue("orders"), key="{number}", effect="transactional")
    def place(order: dict[str, str], ctx: onefold.Context) -> None:
        said.append(refused(partial(write, ctx, order["number"])))

    def write(ctx: onefold.Context, number: str) -> None:
        with orm(ctx):
            Order.objects.create(number=number)

    said: list[str] = []
    with onefold.testing.inline(app) as world:
        place.send({"number": "o-9"})
        world.run()
    return said[0]


def elsewhere() -> dict[str, Any]:
    """Transactional work where the engine is in another file than the database."""
    return {
        "task": refused(lambda: task(effect="transactional")(declare_transactional).enqueue("o-8")),
        "job": run_transactional(),
        "orders": Order.objects.count(),
    }


def joining() -> dict[str, Any]:
    """On PostgreSQL: rows and tasks in one transaction, by the outbox that the migration has made."""

    def place(number: str, fails: bool) -> None:
        with transaction.atomic():
            Order.objects.create(number=number)
            results.append(tasks.ship.enqueue(number))
            if fails:
                raise KeyError(number)

    results: list[Any] = []
    told: dict[str, Any] = {"refused": [refused(lambda: place("o-1", False)), refused(lambda: place("o-2", True))]}
    results.append(tasks.ship.enqueue("o-3"))
    told["waiting"] = [refused(one.refresh).partition(":")[0] for one in results]
    told["statuses"] = [str(one.status) for one in results]
    work()
    told["after"] = [refused(one.refresh).partition(":")[0] for one in results]
    told["states"] = [str(one.status) for one in results]
    told["orders"] = list(Order.objects.values_list("number", flat=True))
    told["transactional"] = [elsewhere()[name] for name in ("task", "job")]
    return told


if __name__ == "__main__":
    call_command("migrate", run_syncdb=True, verbosity=0)
    programs = {
        one.__name__: one
        for one in (all_kinds, crashing, checking, declaring, admin, connecting, in_memory, joining, elsewhere)
    }
    answer = programs[sys.argv[1]]()
    sys.stdout.write(json.dumps(answer, default=str))
