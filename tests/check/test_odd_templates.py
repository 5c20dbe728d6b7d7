"""Templates with an odd value in any place: a refusal that says why, or no finding too many; never another error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

from onefold.check.collect_template import collect
from onefold.check.documents import read_document
from onefold.check.facts import Document, PropertyPath, Unresolved
from onefold.check.model import model_of
from onefold.check.rules import RULES
from onefold.errors import OnefoldError, UsageError

CORPUS: Final = sorted((Path(__file__).parent / "corpus").rglob("*.yaml"))
ODD: Final[tuple[Any, ...]] = (
    None, [], {}, "x", "", 5, -1, True, 1.5, 10**30, [None], [["x"]], [{"a": 1}], {"a": {"b": 1}}, "$" * 10, Unresolved("x"),
    {"Ref": "Nope"}, {"Ref": "AWS::NoValue"}, {"Fn::GetAtt": ["Nope", "Arn"]}, {"Fn::If": ["Nope", "a", "b"]},
    "arn:aws:sqs:::x", "arn:aws:lambda:::function:x:y", "{{resolve:ssm:x}}",
)  # fmt: skip
RIGHT: Final = [one for one in CORPUS if one.parent.name == "right" and one.name != "suppressed.yaml"]
PLACES_EACH: Final = 12
REFERRING: Final = {"DeploymentPreference", "Watching", "Allowing"}  # what they refer to would not be seen any more


def places(value: Any, path: PropertyPath = ()) -> Iterator[PropertyPath]:
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from places(inner, (*path, key))


def changed(value: Any, path: PropertyPath, new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return {key: changed(inner, path[1:], new) if key == path[0] else inner for key, inner in value.items()}
    return [changed(inner, path[1:], new) if number == path[0] else inner for number, inner in enumerate(value)]


def look(document: Document) -> int:
    model = model_of(collect(document, parameters={}, account="123456789012", region="us-east-1", everything=True))
    return sum(len(list(rule.find(model))) for rule in RULES if rule.find is not None)


AS_TEXT: Final = frozenset(
    [
        "AssumeRolePolicyDocument",
        "DefinitionString",
        "EventPattern",
        "FilterPolicy",
        "Input",
        "Pattern",
        "PolicyDocument",
        "RedriveAllowPolicy",
        "RedrivePolicy",
        "SendMessage",
    ]
)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, "[" * 900 + "]" * 900])
def test_json_that_is_nested_too_deep_in_a_text_is_refused_or_not_known(deep: str) -> None:
    seen = set()
    for file in CORPUS:
        document = read_document(file)
        for path in [one for one in places(document.data) if one and one[-1] in AS_TEXT]:
            seen.add(path[-1])
            with suppress(OnefoldError):
                look(Document(document.file, changed(document.data, path, deep), {}, document.spans, document.text))
    assert len(seen) >= 6


@pytest.mark.parametrize("file", CORPUS, ids=lambda one: one.name)
def test_an_odd_value_in_any_place_raises_nothing_else_than_a_refusal(file: Path) -> None:
    document = read_document(file)
    every = [path for path in places(document.data) if path]
    first = crc32(file.name.encode())  # so that each file has other places and values
    for number in range(first, first + PLACES_EACH):
        data = changed(document.data, every[number * 7 % len(every)], ODD[number % len(ODD)])
        with suppress(OnefoldError):
            look(Document(document.file, data, {}, document.spans, document.text))


@pytest.mark.parametrize("file", RIGHT, ids=lambda one: one.name)
def test_a_value_that_becomes_unknown_in_a_right_template_is_no_finding(file: Path) -> None:
    document = read_document(file)
    unknown = {"Zzz": {"Fn::Equals": [{"Ref": "Zzp"}, "a"]}}
    shared = {
        "Parameters": {**(document.data.get("Parameters") or {}), "Zzp": {"Type": "String"}},
        "Conditions": {**(document.data.get("Conditions") or {}), **unknown},
    }
    number = 0
    for path in places(document.data):
        is_inside = len(path) > 3 and path[0] == "Resources" and path[2] == "Properties"
        if not is_inside or {"Ref", *REFERRING} & set(path) or any(str(part).startswith("Fn::") for part in path):
            continue
        number += 1
        chosen = {"Fn::If": ["Zzz", document.at(path), {"Ref": "AWS::NoValue"}]}
        data = changed(document.data, path, (Unresolved("it is known after apply"), chosen)[number % 2])
        found = look(Document(document.file, {**data, **shared}, {}, document.spans, document.text))
        assert found == 0, path


@pytest.mark.parametrize("event", [None, [], "SQS", 5, {"Type": None}, {"Type": "Schedule", "Properties": "x"}])
def test_an_event_that_is_none_is_left_out(event: Any) -> None:
    properties = {"Handler": "a.b", "Runtime": "python3.12", "Events": {"Odd": event}}
    data = {"Resources": {"Book": {"Type": "AWS::Serverless::Function", "Properties": properties}}}
    assert look(Document("t.yaml", data, {})) == 0


@pytest.mark.parametrize("source", [{"a": 1}, [{"a": 1}], [], None, 5])
def test_a_condition_of_an_odd_form_may_hold(source: Any) -> None:
    statement = {
        "Principal": "*",
        "Action": "*",
        "Resource": "*",
        "Condition": {"ArnEquals": {"aws:SourceArn": source}},
    }
    policy = {"Queues": [{"Ref": "Orders"}], "PolicyDocument": {"Statement": [statement]}}
    topic = {"Subscription": [{"Protocol": "sqs", "Endpoint": {"Fn::GetAtt": ["Orders", "Arn"]}}]}
    resources = {
        "Orders": {"Type": "AWS::SQS::Queue"},
        "Policy": {"Type": "AWS::SQS::QueuePolicy", "Properties": policy},
        "News": {"Type": "AWS::SNS::Topic", "Properties": topic},
    }
    assert look(Document("t.yaml", {"Resources": resources}, {})) == 0


def loops(*entries: Any, names: Any = ("A", "B-1")) -> Document:
    body = dict(entries)
    return Document("t.yaml", {"Resources": {"Fn::ForEach::Loop": ["Name", list(names), body]}}, {})


@pytest.mark.parametrize(
    "loop",
    [
        [], ["Name"], ["Name", ["A"], []], [1, ["A"], {}], ["Name", "A", {"${Name}": {}}], ["Name", [1], {"${Name}": {}}],
        ["Name", ["A"], {"${Name}": {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": {"Ref": ["Name"]}}}}], "x", None,
    ],
)  # fmt: skip
def test_a_loop_of_an_odd_form_stays_as_it_is(loop: Any) -> None:
    assert (
        look(Document("t.yaml", {"Resources": {"Fn::ForEach::Loop": loop, "Q": {"Type": "AWS::SQS::Queue"}}}, {})) == 0
    )


def test_a_loop_makes_what_it_says_with_both_forms_of_its_identifier() -> None:
    document = loops(("${Name}Queue", {"Type": "AWS::SQS::Queue"}), ("Q&{Name}", {"Type": "AWS::SQS::Queue"}))
    facts = collect(document, parameters={}, account="1", region="r", everything=True)
    assert [one.logical_id for one in facts.queues] == ["AQueue", "QA", "B-1Queue", "QB1"]
    assert facts.unseen == ()


def test_loops_inside_of_loops_are_bounded() -> None:
    many = [str(number) for number in range(50)]
    body: dict[str, Any] = {"${A}${B}${C}": {"Type": "AWS::SQS::Queue"}}
    for name in "CBA":
        body = {f"Fn::ForEach::{name}": [name, many, body]}
    facts = collect(
        Document("t.yaml", {"Resources": body}, {}), parameters={}, account="1", region="r", everything=True
    )
    assert facts.queues == ()
    assert facts.unseen != ()
    long = loops(
        ("${Name}", {"Type": "AWS::SQS::Queue", "Metadata": "x" * 1_000_000}), names=[str(one) for one in range(90)]
    )
    with pytest.raises(UsageError, match="more than"):
        collect(long, parameters={}, account="1", region="r", everything=True)
