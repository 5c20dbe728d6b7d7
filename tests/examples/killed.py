"""What an example does, killed at each statement of its database in turn: the request that places an order, or the worker.

    python -m tests.examples.killed django|fastapi request|worker FOLDER

For each statement of the request, or of the run of its job from the first one of the handler on, a child is forked that
kills itself just before it, and at last one that does not. A line of JSON for each says whether it died, and what is there
then.
Never here: judging. Invariant: the parent opens no database, so that its children can.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import onefold
from onefold.options import WorkerSettings
from onefold.runner import worker_setup
from onefold.runner.hooks import HookSet

EXAMPLES = Path(__file__).parents[2] / "examples"
STATEMENTS_MAX = 200
PARCELS_OF_DJANGO = "SELECT count(*) FROM shop_parcel JOIN shop_order ON order_id = shop_order.id WHERE number = ?"


class Killer:
    """Ends this process just before its statement number `die_at`."""

    def __init__(self, die_at: int) -> None:
        self._left = die_at

    def watch(self, connection: sqlite3.Connection) -> None:
        connection.set_trace_callback(self._count)

    def _count(self, _statement: str) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Killing(onefold.Hooks):
    """Has a killer watch the transaction of one operation's handler, to its commit and beyond."""

    def __init__(self, killer: Killer, key: str) -> None:
        self._killer = killer
        self._key = key

    @contextmanager
    def around(self, ctx: onefold.Context) -> Iterator[None]:
        if ctx.key == self._key:  # the engine's own connection: what watches the handler's view of it ends with its run
            self._killer.watch(ctx.connection.lender())
        yield


def work(app: onefold.App, killer: Killer, number: str) -> int:
    """Run a worker in this process until nothing is left; runs that were killed before are done as well, unharmed."""
    for job in app.jobs.values():
        job.hooks = HookSet((*job.hooks.hooks, Killing(killer, number)))
    settings = WorkerSettings(until_empty=True, threads=1, group_max=1)
    worker = worker_setup.make_worker(
        app.runtime(), app.jobs, app.registry.job_of, settings=settings, history="brief", sinks=[]
    )
    return worker.run().code


def django_request(number: str, killer: Killer) -> bool:
    from django.db import connection
    from django.test import Client

    connection.ensure_connection()
    killer.watch(connection.connection)
    answer = Client().post("/orders", {"number": number, "grams": 500}, content_type="application/json")
    return bool(answer.status_code == 202)


def django_worker(number: str, killer: Killer) -> bool:
    from onefold.django.backend import app_of

    return django_request(number, Killer(0)) and work(app_of("default"), killer, number) == 0


def fastapi_request(number: str, killer: Killer) -> bool:
    import orders  # type: ignore[import-not-found]  # of the example
    from fastapi.testclient import TestClient
    from sqlalchemy import event

    with TestClient(orders.api) as client:
        orders.engine.dispose()
        event.listen(orders.engine, "connect", lambda connection, _: killer.watch(connection))
        return client.post("/orders", json={"number": number, "grams": 500}).status_code == 202


def fastapi_worker(number: str, killer: Killer) -> bool:
    import orders

    return fastapi_request(number, Killer(0)) and work(orders.jobs, killer, number) == 0


def prepare_django() -> None:
    sys.path.insert(0, str(EXAMPLES / "django-shop"))
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=EXAMPLES / "django-shop", check=True)
    import django

    django.setup()
    import shop.views  # type: ignore[import-not-found]  # noqa: F401 - of the example; so that no child loads it


def prepare_fastapi() -> None:
    sys.path.insert(0, str(EXAMPLES / "fastapi-orders"))
    import fastapi.testclient  # noqa: F401 - so that no child loads it
    import orders

    create = "from orders import *; Base.metadata.create_all(engine); jobs.runtime(); jobs.close()"
    subprocess.run([sys.executable, "-c", create], cwd=EXAMPLES / "fastapi-orders", check=True)
    del orders


def found(path: str, django: bool, number: str) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as look:

        def count(query: str) -> int:
            return int(look.execute(query, (number,)).fetchone()[0])

        return {
            "orders": count(f"SELECT count(*) FROM {'shop_order' if django else 'orders'} WHERE number = ?"),
            "messages": count("SELECT count(*) FROM onefold_message WHERE key = ?"),
            "parcels": count(PARCELS_OF_DJANGO if django else "SELECT count(*) FROM parcels WHERE number = ?"),
            "records": count("SELECT count(*) FROM onefold_record WHERE key = ? AND result IS NOT NULL"),
        }


def main() -> None:
    """Kill one child after the other."""
    name, what, folder = sys.argv[1:]
    path = f"{folder}/shop.db"
    os.environ |= {"SHOP_DATABASE": path, "ORDERS_DATABASE": path}
    prepare_django() if name == "django" else prepare_fastapi()
    act: Callable[[str, Killer], bool] = globals()[f"{name}_{what}"]
    for die_at in range(1, STATEMENTS_MAX):
        number = f"o-{die_at}"
        child = os.fork()
        if not child:
            os._exit(0 if act(number, Killer(die_at)) else 1)
        _, status = os.waitpid(child, 0)
        story = {"status": status, "died": os.WIFSIGNALED(status), **found(path, name == "django", number)}
        sys.stdout.write(json.dumps(story) + "\n")
        sys.stdout.flush()
        if not os.WIFSIGNALED(status) or story["records"]:
            return
    raise SystemExit("it never came to the end of its request")


if __name__ == "__main__":
    main()
