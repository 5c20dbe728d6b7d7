"""Names on AWS are functions of declared names; logical ids keep apart what is apart."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.deploy import names

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
    assert names.has_places(names.queue_arn("q"))
    assert not names.has_places("{other} ${AWS::Region}")


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
