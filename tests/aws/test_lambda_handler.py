"""`app.lambda_handler()` under a mapping: real processes and HTTP, SQS of `onefold serve`, records in a shared file."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from onefold.contracts.store import RecordKey
from onefold.testing import Endpoint, sqs
from tests.clients.serving import environment, serving

HANDLERS = Path(__file__).with_name("lambda_handlers")
PATIENCE_S = 60.0


class Stage(NamedTuple):
    """A local SQS with the function's mappings, the app as its senders see it, and the log of its jobs."""

    endpoint: Endpoint
    shop: ModuleType
    log: Path

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    def map_queue(self, name: str, *, reports: bool = True) -> None:
        functions = self.endpoint.boto3("lambda")
        functions.create_event_source_mapping(
            EventSourceArn=f"arn:aws:sqs:{self.endpoint.region}:{self.endpoint.account}:{name}",
            FunctionName="shop",
            FunctionResponseTypes=["ReportBatchItemFailures"] if reports else [],
        )
        functions.close()

    def status(self, job: str, key: str) -> str | None:
        engine = self.shop.app.runtime().engine
        record = engine.store.read([RecordKey("", job, key)], self.shop.app.runtime().now_ms())[0]
        return None if record is None else str(record.status)

    def is_empty(self, name: str) -> bool:
        return not self.endpoint.peek(name)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.chdir(HANDLERS)
    monkeypatch.syspath_prepend(str(HANDLERS))
    log = tmp_path / "log"
    with sqs(functions={"shop": "shop_app:handler"}) as endpoint:
        for name, value in endpoint.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SHOP_LOG", str(log))
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("ONEFOLD_URL", f"aws://{endpoint.region}?create=yes&records=sqlite:///{tmp_path}/records.db")
        sys.modules.pop("shop_app", None)
        shop = importlib.import_module("shop_app")
        shop.app.runtime()
        # What the containers see: a plain app on a file, whose messages are nevertheless on SQS.
        monkeypatch.setenv("ONEFOLD_URL", f"sqlite:///{tmp_path}/records.db")
        try:
            yield Stage(endpoint, shop, log)
        finally:
            shop.app.close()
            sys.modules.pop("shop_app", None)


def until(true: Callable[[], Any], told: Callable[[], object] = lambda: "") -> None:
    """Wait for what other processes do; each look is a call of the server or a look at a file."""
    waiter = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if true():
            return
        waiter.wait(0.05)
    raise AssertionError(f"it never came true: {told()}")


@pytest.mark.slow
def test_every_fate_of_a_message(stage: Stage) -> None:
    ship = stage.shop.ship
    does = {"o-1": "", "o-2": "fail-once", "o-3": "poison", "o-4": "note"}
    ship.send_many([{"id": key, "do": do} for key, do in does.items()])
    stage.map_queue("orders")
    stage.map_queue("notes")
    until(lambda: stage.is_empty("orders") and stage.is_empty("notes") and "note o-4" in stage.lines(), stage.lines)
    assert sorted(stage.lines()) == ["note o-4", "ship o-1 1", "ship o-2 1", "ship o-2 2", "ship o-3 1", "ship o-4 1"]
    [dead] = stage.endpoint.peek("orders-dead")
    reason = json.loads(str(dead.attributes["onefold-reason"].value))
    assert (reason["kind"], reason["error"]) == ("permanent", "PermanentError")
    assert [stage.status("ship", key) for key in does] == ["completed", "completed", "failed", "completed"]


@pytest.mark.slow
def test_a_container_that_dies_loses_nothing(stage: Stage) -> None:
    stage.shop.ship.send_many([{"id": "o-1", "do": "die"}, *[{"id": f"o-{number}"} for number in range(2, 8)]])
    stage.map_queue("orders")
    until(lambda: stage.is_empty("orders"), stage.lines)
    assert {stage.status("ship", f"o-{number}") for number in range(1, 8)} == {"completed"}
    lines = stage.lines()
    assert [line for line in lines if line.startswith("ship o-1 ")] == ["ship o-1 1", "ship o-1 2"]
    # The others were under way, or done, when their process died: each ran once, or its policy (rerun) ran it again.
    assert {line.split()[1] for line in lines} == {f"o-{number}" for number in range(1, 8)}


@pytest.mark.slow
def test_a_group_keeps_its_order(stage: Stage) -> None:
    parcels = [
        {"id": f"{customer}-{number}", "customer": customer, "do": "fail-once" if number == 2 else ""}
        for number in range(5)
        for customer in ("a", "b")
    ]
    stage.shop.carry.send_many(parcels)
    stage.map_queue("parcels.fifo")
    until(lambda: stage.is_empty("parcels.fifo"), stage.lines)
    for customer in ("a", "b"):
        ran = [line.removeprefix("carry ") for line in stage.lines() if f" {customer}-" in line]
        assert ran == [f"{customer}-{one}" for one in ("0 1", "1 1", "2 1", "2 2", "3 1", "4 1")]


@pytest.mark.slow
def test_a_mapping_without_reports_is_noticed_and_loses_nothing(stage: Stage) -> None:
    stage.map_queue("orders", reports=False)
    ship = stage.shop.ship
    ship.send({"id": "o-1", "do": "fail-long"})
    until(lambda: "ship o-1 1" in stage.lines() and stage.is_empty("orders"), stage.lines)  # deleted, though named
    until(lambda: ship.send({"id": "o-2"}) and not stage.is_empty("orders-dead"), stage.lines)
    [lost] = stage.endpoint.peek("orders-dead")
    assert json.loads(lost.body)["id"] == "o-1"
    assert json.loads(str(lost.attributes["onefold-reason"].value))["kind"] == "mapping"


@pytest.mark.slow
def test_the_command_runs_the_handler_too(tmp_path: Path) -> None:
    data = tmp_path / "sqs.db"
    log = tmp_path / "log"
    with serving("--data", str(data), folder=HANDLERS) as url:
        env = environment(AWS_ENDPOINT_URL=url, SHOP_LOG=str(log), ONEFOLD_URL=f"sqlite:///{tmp_path}/records.db")
        made = env | {"ONEFOLD_URL": f"aws://us-east-1?create=yes&records=sqlite:///{tmp_path}/records.db"}
        send = "import shop_app; shop_app.ship.send_many([{'id': f'o-{n}'} for n in range(25)])"
        subprocess.run([sys.executable, "-c", send], cwd=HANDLERS, env=made, check=True, timeout=PATIENCE_S)
        command = [
            sys.executable, "-m", "onefold", "lambda", "shop_app:handler", "--queue", "orders", "--data", str(data),
            "--report-batch-item-failures", "--once",
        ]  # fmt: skip
        ended = subprocess.run(
            command, cwd=HANDLERS, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    assert ended.returncode == 0, ended.stderr
    assert sorted(log.read_text().splitlines()) == sorted(f"ship o-{number} 1" for number in range(25))
