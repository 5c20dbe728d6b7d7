"""The same map run on the embedded engine and as a Distributed Map on ministack: items, threshold, catch; moto's manifest.

ministack runs the deployed template: reader, selector, retry and catch in the children, the threshold, and Lambda functions
with the real handler. Its Python runtime calls every error Runtime.HandlerError; so the function is given a runtime of its
own there (`RUNTIME`), which tells an error's class as Lambda's does. It has no ItemBatcher and no ResultWriter, performs all
items also past the threshold, and does not know JitterStrategy. moto writes a ResultWriter's manifest without result files,
and runs no Lambda function without Docker, so the children there are a Pass state. Batches, result files and the moment at
which AWS stops starting children are shown by neither: for these the definition is held to golden files
(`test_state_machine.py`).
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

import onefold.testing
from onefold.admin import maps
from onefold.deploy import cloudformation, state_machine
from onefold.deploy.plan import AppDeclarations, plan
from onefold.deploy.stack import Stack
from onefold.maps import results as mapresult
from tests.deploy.map_shop import BUCKET, KEY, app, customers_csv
from tests.deploy.test_state_machine import as_deployed
from tests.emulators import servers

REGION = "eu-west-1"
ROOT = Path(__file__).parents[2]
PREFIX = "m-"
MACHINE = f"{PREFIX}mapshop-enrich"
PATIENCE = 600  # looks, a tenth of a second apart

pytestmark = pytest.mark.slow

Json = dict[str, Any]


class Aws:
    """Clients of an emulator."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def put(self, key: str, body: bytes | str) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.client("s3").put_object(Bucket=BUCKET, Key=key, Body=content)

    def run(self, machine: str, name: str) -> Json:
        """Start a run and follow it to its end."""
        states = self.client("stepfunctions")
        known = states.list_state_machines()["stateMachines"]
        (arn,) = [one["stateMachineArn"] for one in known if one["name"] == machine]
        execution = states.start_execution(stateMachineArn=arn, name=name, input="{}")["executionArn"]
        pause = threading.Event()
        for _ in range(PATIENCE):
            found: Json = states.describe_execution(executionArn=execution)
            if found["status"] != "RUNNING":
                return found
            pause.wait(0.1)
        raise AssertionError(f"{name} still runs")


RUNTIME = """#!{python}
import json, os, sys, urllib.request
sys.path[:0] = {path}
os.environ["AWS_ENDPOINT_URL"] = {endpoint!r}
from tests.deploy.map_shop import handler
home = f"http://{{os.environ['AWS_LAMBDA_RUNTIME_API']}}/2018-06-01/runtime/invocation"
while True:
    with urllib.request.urlopen(f"{{home}}/next") as asked:
        request, event = asked.headers["Lambda-Runtime-Aws-Request-Id"], json.load(asked)
    try:
        where, told = "response", handler(event)
    except Exception as error:
        where, told = "error", {{"errorMessage": str(error), "errorType": type(error).__name__, "stackTrace": []}}
    urllib.request.urlopen(urllib.request.Request(f"{{home}}/{{request}}/{{where}}", json.dumps(told).encode())).close()
"""
"""Of the Lambda developer guide, "Using the Lambda runtime API for custom runtimes"."""


def code(endpoint: str) -> bytes:
    """A package whose runtime finds this checkout and its environment."""
    path = [str(ROOT), str(ROOT / "src")]
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        entry = zipfile.ZipInfo("bootstrap")
        entry.external_attr = 0o755 << 16
        archive.writestr(entry, RUNTIME.format(python=sys.executable, path=path, endpoint=endpoint))
    return found.getvalue()


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    """ministack, with the app deployed."""
    with servers.ministack() as endpoint:
        made = Aws(endpoint)
        made.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        made.put("app.zip", code(endpoint))
        declared = AppDeclarations(
            queues=app.queues.values(), jobs=app.jobs.values(), maps=[one.spec for one in app.maps.values()]
        )
        planned = plan(
            app.name, "tests.deploy.map_shop:app", declared, Stack(prefix=PREFIX, disposable=True, alarms="few")
        )
        template = cloudformation.template(planned)
        template["Resources"]["CustomersFunction"]["Properties"]["Runtime"] = "provided.al2023"
        client = made.client("cloudformation")
        client.create_stack(
            StackName=planned.name,
            TemplateBody=json.dumps(template),
            Parameters=[
                {"ParameterKey": "CodeBucket", "ParameterValue": BUCKET},
                {"ParameterKey": "CodeKey", "ParameterValue": "app.zip"},
            ],
            Capabilities=["CAPABILITY_IAM"],
        )
        waiter = client.get_waiter("stack_create_complete")
        waiter.wait(StackName=planned.name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        yield made


class Outcome(dict[str, tuple[str, Any]]):
    """Status and output, or error, of each item by its id."""


def of_children(aws: Aws, execution: Json) -> tuple[Outcome, Json]:
    """What became of each item of a Distributed Map, and the Map Run."""
    states = aws.client("stepfunctions")
    (run,) = states.list_map_runs(executionArn=execution["executionArn"])["mapRuns"]
    described: Json = states.describe_map_run(mapRunArn=run["mapRunArn"])
    found = Outcome()
    for page in states.get_paginator("list_executions").paginate(mapRunArn=run["mapRunArn"]):
        for one in page["executions"]:
            child = states.describe_execution(executionArn=one["executionArn"])
            item = json.loads(child["input"])["item"]
            said = json.loads(child["output"]) if child["status"] == "SUCCEEDED" else child["error"]
            found[item["id"]] = (child["status"], said)
    return found, described


def embedded(tmp_path: Path, text: str, name: str) -> tuple[Outcome, maps.MapProgress, list[Json]]:
    """The same on the embedded engine: outcomes, the run, and what was told to operations."""
    (tmp_path / "customers.csv").write_text(text)
    with contextlib.chdir(tmp_path), onefold.testing.inline(app) as world:
        maps.start(app, "enrich", run=f"enrich/{name}", items=str(tmp_path / "customers.csv"))
        world.run_for(120_000)
        progress = maps.progress(app, f"enrich/{name}")
        found = Outcome()
        mapping = app.maps["enrich"]
        runtime = app.runtime()
        for number in range(1, 21):
            key = mapping.record_key(f"enrich/{name}", str(number))
            (record,) = runtime.engine.store.read([key], runtime.clock.now_ms())
            if record is None:
                continue
            done = record.status == "completed"
            said = json.loads(record.result or b"null") if done else record.failure.error if record.failure else None
            found[str(number)] = ("SUCCEEDED" if done else "FAILED", said)
        told = [json.loads(one.body) for one in runtime.engine.queues.peek("operations")]
    return found, progress, told


def told_on(aws: Aws) -> list[Json]:
    """What lies in the operations queue; taken out of it."""
    sqs = aws.client("sqs")
    url = sqs.get_queue_url(QueueName=f"{PREFIX}operations")["QueueUrl"]
    found = []
    for one in sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", ()):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
        found.append(json.loads(one["Body"]))
    return found


def short(error: str) -> str:
    """An error's name as Lambda tells it: its class, without the module."""
    return error.rpartition(".")[2]


def in_lambdas_words(outcome: Outcome) -> Outcome:
    """Names as Lambda tells them; causes are left out, Lambda's has a stack trace."""
    found = Outcome()
    for name, (status, said) in outcome.items():
        caught = {"Error": short(said["Error"])} if isinstance(said, dict) and "Error" in said else said
        found[name] = (status, short(said) if status == "FAILED" else caught)
    return found


def test_items_have_the_same_outcomes_and_what_is_caught_has_succeeded(aws: Aws, tmp_path: Path) -> None:
    text = customers_csv(c2="flaky", c5="poisoned", c9="broken", c12="flaky", c20="broken")
    aws.put(KEY, text)
    execution = aws.run(MACHINE, "first")
    here, progress, told = embedded(tmp_path, text, "first")
    there, run = of_children(aws, execution)

    assert execution["status"] == "SUCCEEDED", execution.get("cause")
    assert in_lambdas_words(there) == in_lambdas_words(here)
    assert len(here) == 20
    assert there["9"] == ("FAILED", "BrokenError")
    assert (progress.status, progress.failed) == ("succeeded", 2)
    assert run["itemCounts"]["failed"] == progress.failed
    assert run["itemCounts"]["succeeded"] == progress.done == 18

    on_aws = told_on(aws)
    assert [one["Input"] for one in on_aws] == [one["Input"] for one in told] == [{
        "id": "5", "name": "name 5", "kind": "poisoned"
    }]  # fmt: skip
    assert on_aws[0].keys() == told[0].keys()
    assert on_aws[0]["Error"] == short(told[0]["Error"]) == "PoisonedError"


@pytest.mark.parametrize(("broken", "status"), [(4, "SUCCEEDED"), (5, "FAILED")])
def test_the_threshold_is_strictly_more_than_the_percentage(aws: Aws, tmp_path: Path, broken: int, status: str) -> None:
    text = customers_csv(**{f"c{number}": "broken" for number in range(1, broken + 1)})
    aws.put(KEY, text)
    execution = aws.run(MACHINE, f"threshold-{broken}")
    _, progress, _ = embedded(tmp_path, text, f"threshold-{broken}")
    assert execution["status"] == status
    assert progress.status == status.lower()
    if status == "FAILED":
        assert execution["error"] == "States.ExceedToleratedFailureThreshold"
        assert str(progress.failure).startswith(execution["error"])


def test_a_run_that_is_started_again_under_its_name_does_nothing_twice(aws: Aws) -> None:
    """Of the same run's children each finds its record, whoever starts it; here by calling the function again."""
    aws.put(KEY, customers_csv())
    aws.run(MACHINE, "again")
    event = {
        "onefold": {"map": "enrich", "run": "enrich/again"},
        "item": {"id": "1", "name": "name 1", "kind": "fine"},
    }
    answer = aws.client("lambda").invoke(FunctionName=f"{PREFIX}mapshop-customers", Payload=json.dumps(event))
    assert json.loads(answer["Payload"].read()) == {"id": "1", "said": "NAME 1"}
    records = aws.client("dynamodb").scan(TableName=f"{PREFIX}mapshop")["Items"]
    assert any("enrich/again/1" in json.dumps(one) for one in records)


# -- the manifest --------------------------------------------------------------------------------------------------------


def keys_of(value: Any) -> Any:
    """The names in a value, whatever they hold; lists are seen as lists."""
    if isinstance(value, dict):
        return {name: keys_of(one) for name, one in value.items()}
    return type(value).__name__


def test_the_embedded_manifest_has_the_shape_of_motos() -> None:
    with servers.moto() as endpoint:
        aws = Aws(endpoint)
        aws.client("s3").create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        settings = {"stepfunctions": {"execute_state_machine": True}}
        request = urllib.request.Request(f"{endpoint}/moto-api/config", json.dumps(settings).encode())
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request).close()
        aws.put(KEY, customers_csv())
        definition = as_deployed(state_machine.as_text(state_machine.definition(app.maps["enrich"].spec)))
        processor = definition["States"]["Items"]["ItemProcessor"]
        processor["States"] = {"Item": {"Type": "Pass", "End": True}}
        aws.client("stepfunctions").create_state_machine(
            name=MACHINE, definition=json.dumps(definition), roleArn="arn:aws:iam::123456789012:role/states"
        )
        execution = aws.run(MACHINE, "manifest")
        assert execution["status"] == "SUCCEEDED", execution.get("cause")
        details = json.loads(execution["output"])["ResultWriterDetails"]
        assert details["Bucket"] == BUCKET
        assert re.fullmatch(r"onefold-map-runs/enrich/[0-9a-f-]{36}/manifest\.json", details["Key"])
        there = json.loads(aws.client("s3").get_object(Bucket=BUCKET, Key=details["Key"])["Body"].read())
    ours = mapresult.manifest("enrich", "token", BUCKET, {"SUCCEEDED": [("out/token/SUCCEEDED_0.json", 1)]})
    assert keys_of(ours) == keys_of(there)
    assert re.sub(r"[^:/]+$", "id", ours["MapRunArn"]).split(":")[5:] == ["mapRun", "enrich/Items", "id"]
    assert there["MapRunArn"].split(":")[5:7] == ["mapRun", f"{MACHINE}/Items"]
