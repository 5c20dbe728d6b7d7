"""Names on AWS are functions of declared names; logical ids keep apart what is apart."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onefold
from onefold.cli.stack_options import declared_in
from onefold.deploy import names
from onefold.deploy import plan as plans
from onefold.deploy.stack import Stack

QUEUE_NAME = st.from_regex(r"[A-Za-z0-9_-]{1,20}(\.fifo)?", fullmatch=True)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders", "Orders"),
        ("order-mails", "OrderMails"),
        ("order-mails.fifo", "OrderMailsFIFO"),
        ("v2-orders", "V2Orders"),
        ("Order_Mails", "OrderMails843ab520"),
        ("order--mails", "OrderMails8a3caaa2"),
        ("2-orders", "N2Ordersfe2fc830"),
        ("_", "d2e2adf7"),
    ],
)
def test_logical_ids(name: str, found: str) -> None:
    assert names.logical_id(name) == found


@given(QUEUE_NAME, QUEUE_NAME)
def test_different_names_have_different_ids(one: str, other: str) -> None:
    assert (names.logical_id(one) == names.logical_id(other)) == (one == other)
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", names.logical_id(one))


def test_places_are_filled_and_the_rest_is_written_as_the_writer_wants() -> None:
    found = names.filled("x-{region}-{account}{other}", str.upper, lambda text: text.replace("x", "y"))
    assert found == "y-REGION-ACCOUNT{other}"
    assert names.has_placeholders(names.queue_arn("q"))
    assert not names.has_placeholders("{other} ${AWS::Region}")


def test_tags_are_such_as_aws_takes() -> None:
    assert names.tag_value("team a, (b) & ü\n") == "team a- -b- - ü-"
    assert names.is_tag("cost:centre", names.tag_value("x," * 200))
    assert not names.is_tag("cost", "a,b")
    assert not names.is_tag("", "a")
    assert not names.is_tag("aws:x", "a")


def test_arns() -> None:
    assert names.queue_arn("q.fifo") == "arn:{partition}:sqs:{region}:{account}:q.fifo"
    assert names.table_arn("t") == "arn:{partition}:dynamodb:{region}:{account}:table/t"
    assert names.objects_arn("bucket") == "arn:{partition}:s3:::bucket/*"
    assert names.objects_arn("bucket/a/") == "arn:{partition}:s3:::bucket/a/*"
    assert names.bucket_arn("bucket/a") == "arn:{partition}:s3:::bucket"
    assert names.log_streams_arn("/aws/lambda/f") == "arn:{partition}:logs:{region}:{account}:log-group:/aws/lambda/f:*"


def test_queues_that_differ_by_a_dot_would_share_a_function_and_are_refused() -> None:
    app = onefold.App("shop")
    app.job(app.queue("a.fifo", fifo=True), key="{id}", group="{id}", name="one")(lambda payload: None)
    app.job(app.queue("a-fifo"), key="{id}", name="two")(lambda payload: None)
    with pytest.raises(onefold.errors.UsageError, match=r"lead to the same function shop-a-fifo on AWS.*Rename one"):
        plans.plan("shop", "shop:app", declared_in(app), Stack())


def test_functions_of_different_platforms_are_refused_before_anything_is_packed() -> None:
    app = onefold.App("shop")
    for name, architecture in (("one", "arm64"), ("two", "x86_64")):
        queue = app.queue(name, function=onefold.aws.Function(architecture=architecture))  # type: ignore[arg-type]
        app.job(queue, key="{id}", name=f"do-{name}")(lambda payload: None)
    with pytest.raises(
        onefold.errors.UsageError, match=r"python3.13 on arm64, python3.13 on x86_64.*They share one package"
    ):
        plans.plan("shop", "shop:app", declared_in(app), Stack())
