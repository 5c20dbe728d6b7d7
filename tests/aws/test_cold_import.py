"""What the benchmark of cold imports counts is all that a function's first batch needs: nothing is imported later.

For both subjects, so that neither is counted short.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import boto3
import pytest

import onefold
from onefold.engines.aws.dynamodb.schema import definition
from onefold.engines.aws.session import Session
from onefold.testing import sqs
from tests.emulators import dynamodb_stub, servers

LOCAL = {"region_name": "eu-west-1", "aws_access_key_id": "test", "aws_secret_access_key": "test"}
SOURCES = os.pathsep.join([str(servers.ROOT / "src"), str(servers.ROOT)])
FIRST_BATCHES = """
import json, sys
import boto3.dynamodb.conditions, boto3.dynamodb.types
from benchmarks.aws import cold
from benchmarks.aws.batch import Context, event

before = {name for name in sys.modules if name.startswith("onefold")}
cold.onefold_ms()
known = set(sys.modules)

import onefold
app = onefold.App("shop")
orders = app.queue("orders", visibility="5m")

@app.job(orders, key="{order_id}", timeout="20s")
def book(order: dict[str, str]) -> str:
    return order["order_id"]

handler = app.lambda_handler()
answers = [handler(event(0), Context()) for _ in range(2)]
later = sorted(name for name in set(sys.modules) - known if name.partition(".")[0] in ("asyncio", "onefold", "msgspec"))
print(json.dumps({"before": sorted(before), "answers": answers, "later": later}))
"""

FIRST_BATCHES_OF_POWERTOOLS = """
import json, sys
import boto3.dynamodb.conditions, boto3.dynamodb.types
from benchmarks.aws import cold
from benchmarks.aws.batch import Context, event, powertools_handler

before = {name for name in sys.modules if name.startswith("aws_lambda_powertools")}
cold.powertools_ms()
known = set(sys.modules)
handler = powertools_handler(sys.argv[1])
answers = [handler(event(0), Context()) for _ in range(2)]
parts = ("asyncio", "aws_lambda_powertools", "typing_extensions")
later = sorted(name for name in set(sys.modules) - known if name.partition(".")[0] in parts)
print(json.dumps({"before": sorted(before), "answers": answers, "later": later}))
"""
# The job's name is the app's since its first function of all started; that one alone writes it.
TAKEN: dict[str, Any] = {
    "pk": {"S": "~state"},
    "sk": {"S": "operation/book"},
    "name": {"S": "operation/book"},
    "version": {"N": "1"},
    "value": {"S": '{"name":"book","kind":"job","apps":["shop"],"since_ms":1}'},
}
NOTHING_LATER = {"before": [], "answers": [{"batchItemFailures": []}] * 2, "later": []}


def answer_of(program: str, *arguments: str, url: str = "") -> object:
    environment = os.environ | servers.CREDENTIALS | {"ONEFOLD_URL": url, "PYTHONPATH": SOURCES}
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_first_batch_and_its_duplicate_import_nothing_more() -> None:
    with sqs() as endpoint, dynamodb_stub.process() as dynamodb:
        queues = endpoint.boto3("sqs")
        queues.create_queue(QueueName="orders")
        queues.close()
        tables = boto3.client("dynamodb", endpoint_url=dynamodb, **LOCAL)
        tables.create_table(**definition("shop"))
        tables.put_item(TableName="shop", Item=TAKEN)
        tables.close()
        url = f"aws://eu-west-1?table=shop&sqs={endpoint.url}&dynamodb={dynamodb}"
        assert answer_of(FIRST_BATCHES, url=url) == NOTHING_LATER


def test_the_clients_that_a_first_batch_needs_are_made_in_the_init_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making one takes longer than the batch, and in its init phase a function has a whole processor."""
    made: list[str] = []
    make = Session._make

    def noted(session: Session, service: str, waits_s: float) -> Any:
        made.append(service)
        return make(session, service, waits_s)

    monkeypatch.setattr(Session, "_make", noted)
    for name, value in {**servers.CREDENTIALS, "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand"}.items():
        monkeypatch.setenv(name, value)
    app = onefold.App("shop", url="aws://eu-west-1?table=shop")
    app.job(app.queue("orders"), key="{order_id}", name="book")(lambda order: None)
    app.lambda_handler()
    assert made == ["dynamodb"]
    app.close()


def test_a_first_batch_of_powertools_imports_nothing_more_either() -> None:
    with dynamodb_stub.process() as dynamodb:
        assert answer_of(FIRST_BATCHES_OF_POWERTOOLS, dynamodb) == NOTHING_LATER
