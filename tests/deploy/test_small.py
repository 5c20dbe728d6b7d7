"""No more resources than an app needs: a small one has few, and no queue is there that nobody uses."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import onefold
from onefold.cli.stack_options import declared_in
from onefold.deploy import cloudformation, terraform
from onefold.deploy.plan import plan
from onefold.deploy.stack import Stack
from onefold.options import Function
from tests.deploy.declared import declared
from tests.deploy.shapes import SHAPES


def kinds(app: onefold.App, stack: Stack) -> Counter[str]:
    made = cloudformation.template(plan(app.name, "shop:app", declared_in(app), stack))
    return Counter(one["Type"].removeprefix("AWS::") for one in made["Resources"].values())


def test_the_smallest_app_has_what_a_platform_engineer_would_write() -> None:
    assert kinds(declared(), Stack(alarms="none")) == {
        "SQS::Queue": 3,  # the queue, its dead letters, its held messages
        "SQS::QueuePolicy": 3,
        "DynamoDB::Table": 1,
        "Lambda::Function": 1,
        "Lambda::EventSourceMapping": 1,
        "IAM::Role": 1,
        "Logs::LogGroup": 1,
        "CloudWatch::Dashboard": 1,
    }
    few = kinds(declared(), Stack(alarms="few"))
    more = few - kinds(declared(), Stack(alarms="none"))
    assert set(more) == {"CloudWatch::Alarm", "Logs::MetricFilter"}
    assert more.total() == 9


def test_records_elsewhere_make_no_table() -> None:
    assert "DynamoDB::Table" not in kinds(declared(), Stack(records="rediss://cache.example:6379"))


def test_a_queue_for_workers_only_is_left_out_where_there_are_none() -> None:
    notes = SHAPES["orders"]().notes
    assert not any("-maps" in one.settings.name for one in SHAPES["orders"]().queues)
    assert any("Step Functions drives every map run" in one for one in notes)


@pytest.mark.parametrize("source", ["s3://shop-files/customers.csv", "customers.csv"])
@pytest.mark.parametrize("worker", [True, False])
def test_workers_and_maps_outside_s3_keep_the_queue_by_which_maps_are_driven(source: str, worker: bool) -> None:
    app = onefold.App("shop")
    app.map(app.queue("customers", function=Function()), key="{id}", name="enrich", source=source)(lambda row: None)
    app.queue("for-people", function=None)  # it has no job, so nobody runs one
    if worker:
        app.job(app.queue("slow", function=None), key="{id}", name="pack")(lambda payload: None)
    names = {one.settings.name for one in plan("shop", "shop:app", declared_in(app), Stack()).queues}
    is_left_out = not worker and source.startswith("s3:")
    assert ("shop-maps" not in names) is is_left_out
    assert ({"shop-maps-dead", "shop-maps-held"} & names == set()) is is_left_out


@pytest.mark.parametrize("shape", SHAPES)
def test_every_queue_of_a_template_is_used(shape: str) -> None:
    """Used: a function or pipe takes from it, something sends to it, or it is the dead-letter queue of one."""
    planned = SHAPES[shape]()
    resources = cloudformation.template(planned)["Resources"]
    taken = {one.queue_id for one in planned.functions} | {
        referred(one["Properties"]["Source"]).pop().removesuffix("Queue")
        for one in resources.values()
        if one["Type"] == "AWS::Pipes::Pipe"
    }
    used = {f"{one}Queue" for one in taken}
    for name, one in resources.items():
        is_about_it = one["Type"].rpartition("::")[2] in ("QueuePolicy", "Alarm", "CompositeAlarm", "Dashboard")
        may_only_send = one["Type"] == "AWS::IAM::Role" and "Function" in name
        fills_no_dead_letters = one["Type"] == "AWS::SQS::Queue" and name.removesuffix("Queue") not in taken
        if not (is_about_it or may_only_send or fills_no_dead_letters):
            used |= referred(one["Properties"])
    held = {one.settings.held for one in planned.queues if one.id in taken and "mirror" not in one.settings.name}
    unused = {
        one.settings.name
        for one in planned.queues
        if f"{one.id}Queue" not in used and one.settings.name not in held and one.settings.name not in planned.url
    }
    # companions of queues from which no function of the app receives; workers' declarations have them
    known = {"prod-mirror-held", "prod-shop-undelivered-dead", "prod-shop-undelivered-held"}
    assert unused == (set() if shape == "minimal" else known)


def referred(value: Any) -> set[str]:
    """The logical ids that a value refers to."""
    if isinstance(value, dict):
        if "Fn::GetAtt" in value:
            return {value["Fn::GetAtt"][0]}
        if "Ref" in value:
            return {value["Ref"]}
        return {one for inner in value.values() for one in referred(inner)}
    return {one for inner in value for one in referred(inner)} if isinstance(value, list) else set()


def test_terraform_keeps_a_maps_queue_that_an_earlier_version_made() -> None:
    planned = SHAPES["orders"]()
    before = json.loads(terraform.to_json(planned))
    before["resource"]["aws_sqs_queue"]["orders_maps"] = {"lifecycle": {"prevent_destroy": True}}
    removed = terraform.module(planned, before)["removed"]
    assert [one["from"] for one in removed] == ["aws_sqs_queue.orders_maps"]
