"""An example's request in which an order is placed, killed at each statement of its database in turn.

    python -m tests.examples.killed django|fastapi FOLDER

For each statement that the request makes, a child is forked that kills itself just before it, and at last one that does not.
A line of JSON for each says whether it died, and how many orders and messages there are then.
Never here: judging. Invariant: the parent opens no database, so that its children can.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
STATEMENTS_MAX = 200


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


def django_shop(number: str, killer: Killer) -> int:
    from django.db import connection
    from django.test import Client

    connection.ensure_connection()
    killer.watch(connection.connection)
    answer = Client().post("/orders", {"number": number, "grams": 500}, content_type="application/json")
    return int(answer.status_code)


def fastapi_orders(number: str, killer: Killer) -> int:
    import orders  # type: ignore[import-not-found]  # of the example
    from fastapi.testclient import TestClient
    from sqlalchemy import event

    with TestClient(orders.api) as client:
        orders.engine.dispose()
        event.listen(orders.engine, "connect", lambda connection, _: killer.watch(connection))
        return client.post("/orders", json={"number": number, "grams": 500}).status_code


def prepare_django() -> Callable[[str, Killer], int]:
    sys.path.insert(0, str(EXAMPLES / "django-shop"))
    os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=EXAMPLES / "django-shop", check=True)
    import django

    django.setup()
    import shop.views  # type: ignore[import-not-found]  # noqa: F401 - of the example; so that no child loads it

    return django_shop


def prepare_fastapi() -> Callable[[str, Killer], int]:
    sys.path.insert(0, str(EXAMPLES / "fastapi-orders"))
    import fastapi.testclient  # noqa: F401 - so that no child loads it
    import orders

    create = "from orders import *; Base.metadata.create_all(engine); jobs.runtime(); jobs.close()"
    subprocess.run([sys.executable, "-c", create], cwd=EXAMPLES / "fastapi-orders", check=True)
    del orders
    return fastapi_orders


def found(path: str, table: str, number: str) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as look:

        def count(query: str) -> int:
            return int(look.execute(query, (number,)).fetchone()[0])

        return {
            "orders": count(f"SELECT count(*) FROM {table} WHERE number = ?"),
            "messages": count("SELECT count(*) FROM onefold_message WHERE key = ?"),
        }


def main() -> None:
    """Kill one child after the other."""
    name, folder = sys.argv[1:]
    path = f"{folder}/shop.db"
    os.environ |= {"SHOP_DATABASE": path, "ORDERS_DATABASE": path}
    place = prepare_django() if name == "django" else prepare_fastapi()
    table = "shop_order" if name == "django" else "orders"
    for die_at in range(1, STATEMENTS_MAX):
        number = f"o-{die_at}"
        child = os.fork()
        if not child:
            os._exit(0 if place(number, Killer(die_at)) == 202 else 1)
        _, status = os.waitpid(child, 0)
        story = {"status": status, "died": os.WIFSIGNALED(status), **found(path, table, number)}
        sys.stdout.write(json.dumps(story) + "\n")
        sys.stdout.flush()
        if not os.WIFSIGNALED(status):
            return
    raise SystemExit("it never came to the end of its request")


if __name__ == "__main__":
    main()
