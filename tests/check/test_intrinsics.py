"""Each intrinsic function: what it gives, and that it never raises."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold.check import intrinsics
from onefold.check.collect_template import with_globals
from onefold.check.documents import Document
from onefold.check.facts import Unresolved
from onefold.check.intrinsics import NO_VALUE
from onefold.check.scope import Scope
from onefold.errors import UsageError

TEMPLATE: dict[str, Any] = {
    "Parameters": {
        "Name": {"Type": "String", "Default": "ada"},
        "Count": {"Type": "Number", "Default": 3},
        "Zones": {"Type": "CommaDelimitedList", "Default": "a, b,c"},
        "Secret": {"Type": "String"},
        "Image": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/path"},
    },
    "Mappings": {"Regions": {"eu-west-1": {"Ami": "ami-1", "List": ["x", "y"]}}},
    "Conditions": {
        "Yes": {"Fn::Equals": [{"Ref": "Name"}, "ada"]},
        "No": {"Fn::Not": [{"Condition": "Yes"}]},
        "Circle": {"Condition": "Circle"},
        "Unknown": {"Fn::Equals": [{"Ref": "Secret"}, "x"]},
    },
    "Resources": {
        "Queue": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "orders"}},
        "Loop": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Fn::GetAtt": ["Loop", "QueueName"]}}},
        "Job": {"Type": "AWS::Serverless::Function"},
        "Table": {"Type": "AWS::DynamoDB::Table"},
    },
}


def scope(region: str = "eu-west-1") -> Scope:
    return Scope(Document("t.yaml", TEMPLATE, {}), parameters={}, account="123456789012", region=region)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        ({"Ref": "Name"}, "ada"),
        ({"Ref": "Count"}, "3"),
        ({"Ref": "Zones"}, ["a", "b", "c"]),
        ({"Ref": "AWS::Region"}, "eu-west-1"),
        ({"Ref": "AWS::AccountId"}, "123456789012"),
        ({"Ref": "AWS::Partition"}, "aws"),
        ({"Ref": "AWS::StackName"}, "local"),
        ({"Ref": "AWS::URLSuffix"}, "amazonaws.com"),
        ({"Ref": "AWS::NotificationARNs"}, []),
        ({"Ref": "AWS::NoValue"}, NO_VALUE),
        ({"Ref": "Queue"}, "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"),
        ({"Ref": "Job"}, "Job"),
        ({"Fn::GetAtt": ["Queue", "Arn"]}, "arn:aws:sqs:eu-west-1:123456789012:orders"),
        ({"Fn::GetAtt": "Queue.QueueName"}, "orders"),
        ({"Fn::GetAtt": ["Job", "Arn"]}, "arn:aws:lambda:eu-west-1:123456789012:function:Job"),
        ({"Fn::Sub": "${Name}-${AWS::Region}-${Queue.QueueName}-${!Name}"}, "ada-eu-west-1-orders-${Name}"),
        ({"Fn::Sub": ["${x}/${Name}", {"x": {"Ref": "Count"}}]}, "3/ada"),
        ({"Fn::Sub": "no names"}, "no names"),
        ({"Fn::Join": ["-", ["a", 1, True, {"Ref": "Name"}]]}, "a-1-true-ada"),
        ({"Fn::Join": [",", {"Ref": "Zones"}]}, "a,b,c"),
        ({"Fn::Join": ["-", ["a", {"Ref": "AWS::NoValue"}, "b"]]}, "a-b"),
        ({"Fn::Select": ["1", {"Fn::Split": [":", "a:b:c"]}]}, "b"),
        ({"Fn::Select": [0, {"Ref": "Zones"}]}, "a"),
        ({"Fn::FindInMap": ["Regions", {"Ref": "AWS::Region"}, "Ami"]}, "ami-1"),
        ({"Fn::FindInMap": ["Regions", "eu-west-1", "List"]}, ["x", "y"]),
        ({"Fn::FindInMap": ["Regions", "x", "Ami", {"DefaultValue": {"Ref": "Name"}}]}, "ada"),
        ({"Fn::If": ["Yes", 1, 2]}, 1),
        ({"Fn::If": ["No", 1, {"Ref": "AWS::NoValue"}]}, NO_VALUE),
        ({"Fn::Equals": ["3", {"Ref": "Count"}]}, True),
        ({"Fn::Equals": [True, "true"]}, True),
        ({"Fn::And": [{"Condition": "Yes"}, {"Condition": "No"}]}, False),
        ({"Fn::Or": [{"Condition": "Unknown"}, {"Condition": "Yes"}]}, True),
        ({"Fn::And": [{"Condition": "Unknown"}, {"Condition": "No"}]}, False),
        ({"Fn::Base64": {"Fn::Sub": "${Name}"}}, "YWRh"),
        ({"Fn::Length": {"Ref": "Zones"}}, 3),
        ({"Fn::ToJsonString": {"a": [{"Ref": "Name"}]}}, '{"a":["ada"]}'),
        ({"Fn::GetAZs": ""}, ["eu-west-1a", "eu-west-1b", "eu-west-1c"]),
        ({"a": {"Ref": "AWS::NoValue"}, "b": [{"Ref": "AWS::NoValue"}, 1]}, {"b": [1]}),
        ({"Condition": {"Bool": {}}}, {"Condition": {"Bool": {}}}),
    ],
)
def test_a_function_gives_its_value(function: object, value: object) -> None:
    assert scope().resolve(function) == value


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ({"Ref": "Secret"}, "Secret has no default"),
        ({"Ref": "Image"}, "read from SSM"),
        ({"Ref": "Nothing"}, "neither a parameter nor a resource"),
        ({"Ref": "Table"}, "AWS::DynamoDB::Table, which does not exist here"),
        ({"Ref": ["x"]}, "does not take"),
        ({"Fn::GetAtt": ["Table", "Arn"]}, "does not exist here"),
        ({"Fn::GetAtt": ["Queue", "Colour"]}, "attribute Colour"),
        ({"Fn::GetAtt": ["Nothing", "Arn"]}, "not a resource"),
        ({"Fn::Sub": "${Name}-${Secret}"}, "Secret has no default"),
        ({"Fn::Sub": "${Zones}"}, "list where a text is needed"),
        ({"Fn::Sub": 7}, "does not take"),
        ({"Fn::Join": [",", ["a", {"Ref": "Secret"}]]}, "Secret"),
        ({"Fn::Select": [9, ["a"]]}, "item 9 of 1"),
        ({"Fn::Select": ["x", ["a"]]}, "whole number"),
        ({"Fn::Split": ["", "a"]}, "does not take"),
        ({"Fn::FindInMap": ["None", "a", "b"]}, "no table None"),
        ({"Fn::FindInMap": ["Regions", "a", "b"]}, "no a.b"),
        ({"Fn::If": ["Circle", 1, 2]}, "refers to itself"),
        ({"Fn::If": ["Nothing", 1, 2]}, "no condition Nothing"),
        ({"Fn::If": ["Unknown", 1, 2]}, "Secret"),
        ({"Fn::ImportValue": {"Fn::Sub": "${Name}-vpc"}}, "another stack, ada-vpc"),
        ({"Fn::Cidr": ["10.0.0.0/16", 1, 8]}, "Fn::Cidr is not evaluated"),
        ({"Fn::Transform": {"Name": "X"}}, "Fn::Transform is not evaluated"),
        ("{{resolve:secretsmanager:x}}", "dynamic reference to secretsmanager"),
        ({"Fn::Sub": "{{resolve:ssm:${Name}}}"}, "dynamic reference to ssm"),
    ],
)
def test_what_cannot_be_known_says_why(function: object, says: str) -> None:
    found = scope().resolve(function)
    assert isinstance(found, Unresolved)
    assert says in found.why


def test_a_name_that_refers_to_itself_is_the_logical_id() -> None:
    name, why = scope().name_of("Loop")
    assert name == "Loop"
    assert why == Unresolved("the name of Loop refers to itself")


def test_other_partitions() -> None:
    assert scope("cn-north-1").resolve({"Fn::Sub": "${AWS::Partition} ${AWS::URLSuffix}"}) == "aws-cn amazonaws.com.cn"
    assert scope("us-gov-west-1").queue_arn("q").startswith("arn:aws-us-gov:sqs:us-gov-west-1:")


def test_sections() -> None:
    assert scope().section("Parameters") == TEMPLATE["Parameters"]
    assert scope().section("Outputs") == {}


def test_a_long_chain_of_names_ends() -> None:
    chain = {f"C{n}": {"Fn::Not": [{"Condition": f"C{n + 1}"}]} for n in range(5_000)} | {
        "C5000": {"Fn::Equals": [1, 1]}
    }
    document = Document("t.yaml", {**TEMPLATE, "Conditions": chain}, {})
    found = Scope(document, parameters={}, account="1", region="r").condition("C0")
    assert isinstance(found, (bool, Unresolved))


def test_text_that_grows_without_bound_is_refused() -> None:
    long = {"Fn::Sub": ["${x}" * 2_000, {"x": "y" * 1_000}]}
    assert isinstance(scope().resolve(long), Unresolved)
    assert isinstance(scope().resolve({"Fn::Join": ["y" * 1_000, ["x"] * 2_000]}), Unresolved)


NAMES = sorted(
    [*scope().functions._functions, "Fn::Other", "Name", "Queue", "Table", "AWS::NoValue", "Yes", "${Name}", ""]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(NAMES) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2),
    max_leaves=12,
)


@given(VALUES)
def test_no_value_makes_it_raise(value: object) -> None:
    found = scope().resolve(value)
    assert found is NO_VALUE or isinstance(found, (Unresolved, str, int, float, list, dict, type(None)))


def test_a_default_is_no_longer_than_a_parameter() -> None:
    for size, refused in ((4_096, False), (4_097, True)):
        document = Document("t.yaml", {"Parameters": {"P": {"Type": "String", "Default": "x" * size}}}, {})
        with (
            pytest.raises(UsageError, match="default of parameter P is longer than 4096") if refused else nullcontext()
        ):
            Scope(document, parameters={}, account="123456789012", region="eu-west-1")


def scope_of(template: dict[str, Any]) -> Scope:
    return Scope(Document("t.yaml", template, {}), parameters={}, account="123456789012", region="eu-west-1")


LONG: dict[str, Any] = {
    "Parameters": {"P": {"Type": "String", "Default": "," * 4_000}},
    "Mappings": {"M": {"a": {"Text": "," * 100_000, "List": [""] * 20_000, "Deep": {"x": [["y"]] * 10_000}}}},
}
FOUND = {"Fn::FindInMap": ["M", "a", "Text"]}


@pytest.mark.parametrize(
    "one",
    [
        FOUND,
        {"Fn::Sub": ["${T}", {"T": FOUND}]},
        {"Fn::Sub": "${P}" * 100},
        {"Fn::Join": ["", ["x", FOUND]]},
        {"Fn::Join": ["", {"Fn::FindInMap": ["M", "a", "List"]}]},
        {"Fn::Length": {"Fn::Split": [",", FOUND]}},
        {"Fn::Select": [0, {"Fn::FindInMap": ["M", "a", "List"]}]},
        {"Fn::Equals": [{"Fn::FindInMap": ["M", "a", "Deep"]}, {"Fn::FindInMap": ["M", "a", "Deep"]}]},
        {"Fn::Base64": FOUND},
        {"Fn::ToJsonString": FOUND},
        {"x": [["y"] * 10_000]},
    ],
    ids=range(11),
)
def test_what_all_functions_make_together_is_bounded(one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intrinsics, "TOTAL_CHARS_MAX", 4 << 20)
    scope = scope_of(LONG)
    with pytest.raises(UsageError, match="in total"):
        scope.resolve([one] * 200)


def test_a_long_text_of_a_table_does_not_multiply() -> None:
    scope = scope_of(LONG)
    kept = []
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="more than 67108864 characters in total"):
            kept.extend(scope.resolve({"Fn::Sub": ["x${T}", {"T": FOUND}]}) for _ in range(2_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20, "it was 200 MB, and 8 GB with 20,000"


def test_what_every_function_gets_from_globals_is_bounded() -> None:
    scope = scope_of({"Globals": {"Function": {"Layers": ["x"] * 50_000}}})
    with pytest.raises(UsageError, match="in total"):
        [with_globals(scope, {"Layers": []}) for _ in range(1_000)]


def test_a_large_template_of_ordinary_values_is_no_reason_to_refuse() -> None:
    scope = scope_of(LONG)
    for number in range(20_000):
        assert scope.resolve({"Fn::Sub": f"arn:${{AWS::Region}}-{number}", "b": ["x"] * 10})
