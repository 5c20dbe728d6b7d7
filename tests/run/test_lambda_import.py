"""What a Lambda function loads before its first event; how long it takes is a row of the benchmark."""

from __future__ import annotations

from importlib.util import find_spec

from tests.architecture.test_import_cost import LATER, loaded_by

DECLARE = (
    "import onefold; app = onefold.App('shop'); orders = app.queue('orders'); "
    "app.job(orders, key='{id}', name='ship')(lambda order: None); handler = app.lambda_handler()"
)
# Rooms of commands, servers, tests and people; and what only some apps need, loaded when they do. Small modules of a
# delivery's own path are not among them: what costs a cold start is a package (asyncio, logging), or a room.
ELSEWHERE = {
    *("cli", "demo", "deploy", "check", "local", "testing"),
    *("engines.aws", "engines.sqlite", "runner.once", "runner.processes", "runner.worker"),
    *("contracts.admin", "runner.tasks", "runner.poll", "runner.longpoll", "runner.retrying"),
}
# Their names are loaded when they are first used: the package is there, none of its modules.
FEATURES = {"events", "maps", "observe", "reconcile", "schedules"}


def test_what_must_not_be_loaded_exists() -> None:
    assert [room for room in sorted(ELSEWHERE | FEATURES) if find_spec(f"onefold.{room}") is None] == []


def test_a_handler_loads_nothing_heavy() -> None:
    loaded = loaded_by(DECLARE)
    assert "onefold.runner.lambda_handler" in loaded
    assert not loaded & (LATER | {"concurrent", "difflib", "dataclasses", "socket", "urllib3"})
    rooms = {".".join(name.split(".")[1:]) for name in loaded if name.startswith("onefold.")}
    assert not {room for room in rooms if any(room == one or room.startswith(f"{one}.") for one in ELSEWHERE)}
    assert not {room for room in rooms if room.partition(".")[0] in FEATURES and room not in FEATURES}
