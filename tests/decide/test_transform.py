"""What targets get: parts, templates, constants; and what can be no path and no template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onefold.errors import UsageError
from onefold.events.transform import (
    InputTransformer,
    NowhereError,
    Rendering,
    compile_path,
    compile_pipe_template,
    compile_transformation,
    text_at,
    transformed,
)
from onefold.record.envelopes import opened

EVENT = opened(
    json.dumps(
        {
            "version": "0",
            "id": "i-1",
            "detail-type": "Order placed",
            "source": "shop",
            "account": "0",
            "time": "2026-06-01T02:00:00Z",
            "region": "r",
            "resources": ["arn:a", "arn:b"],
            "detail": {
                "id": "o-1",
                "total": 7,
                "note": 'say "hi"',
                "items": [{"sku": "a"}, {"sku": "b"}],
                "none": None,
            },
        }
    )
)
ABOUT = Rendering("to-billing", "arn:rule", 1_780_279_205_000)


def gets(template: str, **paths: str) -> str:
    return transformed(
        compile_transformation(transformer=InputTransformer(paths=paths, template=template)), EVENT, ABOUT
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("$", EVENT.text),
        ("$.source", '"shop"'),
        ("$.detail.total", "7"),
        ("$.detail.items[1].sku", '"b"'),
        ("$.detail.items[*].sku", '["a","b"]'),
        ("$.detail-type", '"Order placed"'),
        ("$.resources[0]", '"arn:a"'),
        ("$.detail.none", "null"),
    ],
)
def test_an_input_path_gives_the_json_there(path: str, text: str) -> None:
    made = transformed(compile_transformation(input_path=path), EVENT, ABOUT)
    assert json.loads(made) == json.loads(text)
    if path != "$":
        assert made == text


@pytest.mark.parametrize("path", ["$.nowhere", "$.detail.items[2]", "$.source.x", "$.detail[0]"])
def test_an_input_path_that_leads_nowhere_says_so(path: str) -> None:
    with pytest.raises(NowhereError):
        transformed(compile_transformation(input_path=path), EVENT, ABOUT)


@pytest.mark.parametrize(
    ("template", "paths", "text"),
    [
        ('{"id": <id>, "n": <n>}', {"id": "$.detail.id", "n": "$.detail.total"}, '{"id":"o-1","n":7}'),
        ('"order <id> of <n>"', {"id": "$.detail.id", "n": "$.detail.total"}, '"order o-1 of 7"'),
        ('{"all": <d>}', {"d": "$.detail.items"}, '{"all":[{"sku":"a"},{"sku":"b"}]}'),
        ('{"gone": <g>, "in": "<g>"}', {"g": "$.nowhere"}, '{"gone":"","in":""}'),
        ('{"by": "<aws.events.rule-name>", "arn": <aws.events.rule-arn>}', {}, '{"by":"to-billing","arn":"arn:rule"}'),
        ('{"at": <aws.events.event.ingestion-time>}', {}, '{"at":"2026-06-01T02:00:05Z"}'),
        ('["<id>", "a b"]', {"id": "$.detail.id"}, '["o-1","a b"]'),
        ("<id>", {"id": "$.detail.id"}, '"o-1"'),
        ('"<items>"', {"items": "$.detail.items"}, '"[{sku:a},{sku:b}]"'),
    ],
)
def test_a_template_is_filled(template: str, paths: dict[str, str], text: str) -> None:
    assert gets(template, **paths) == text


def test_the_whole_event_can_be_filled_in() -> None:
    assert json.loads(gets('{"event": <aws.events.event.json>}')) == {"event": EVENT.value}
    whole = json.loads(gets('{"event": <aws.events.event>}'))["event"]
    assert "detail" not in whole
    assert whole["detailType"] == "Order placed"


def test_numbers_arrive_digit_for_digit() -> None:
    text = EVENT.text.replace('"total": 7', '"total": 12345678901234567.890')
    event = opened(text)
    assert transformed(compile_transformation(input_path="$.detail.total"), event, ABOUT) == "12345678901234567.890"
    how = compile_pipe_template('{"n": <$.detail.total>, "t": "<$.detail.total>"}')
    assert transformed(how, event, ABOUT) == '{"n":12345678901234567.890,"t":"12345678901234567.890"}'
    assert text_at(compile_path("$.detail.total"), event) == "12345678901234567.890"


def test_a_constant_is_the_same_for_every_event() -> None:
    assert transformed(compile_transformation(constant={"b": 1, "a": [None]}), EVENT, ABOUT) == '{"a":[null],"b":1}'
    assert transformed(compile_transformation(), EVENT, ABOUT) == EVENT.text


def test_a_group_is_a_text() -> None:
    assert text_at(compile_path("$.detail.id"), EVENT) == "o-1"
    assert text_at(compile_path("$.detail.total"), EVENT) == "7"
    assert text_at(compile_path("$.detail.none"), EVENT) is None
    assert text_at(compile_path("$.detail.nowhere"), EVENT) is None


@pytest.mark.parametrize(
    "path", ["", "detail", "$.", "$..a", "$.a[", "$.a[x]", "$.a[?(@.b)]", "$.a b", "$." + "a" * 256]
)
def test_another_path_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="JSON path"):
        compile_path(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"input_path": "$.a", "constant": 1}, "Only one of"),
        ({"transformer": InputTransformer(template="")}, "1 to 8,192"),
        ({"transformer": InputTransformer(template='"' + "x" * 8_192 + '"')}, "1 to 8,192"),
        ({"transformer": InputTransformer(template='{"a": <b>}')}, "invalid placeholder b"),
        ({"transformer": InputTransformer(template="order <b>", paths={"b": "$.b"})}, "not JSON"),
        ({"transformer": InputTransformer(template='{"<b>": 1}', paths={"b": "$.b"})}, "name of a field"),
        ({"transformer": InputTransformer(template='{"a": "<aws.events.event.json>"}')}, "inside quotes"),
        ({"transformer": InputTransformer(template="<a>", paths={"a": "b"})}, "JSON path"),
        ({"transformer": InputTransformer(template='"x"', paths={"AWSx": "$.a"})}, "name of a variable"),
        ({"transformer": InputTransformer(template='"x"', paths={f"v{n}": "$.a" for n in range(101)})}, "too many"),
    ],
)
def test_what_cannot_be_filled_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        compile_transformation(**options)


# ---------------------------------------------------------------------------------------------------- templates of pipes


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ('{"id": "<$.detail.id>", "all": <$.detail.items>}', '{"id":"o-1","all":[{"sku":"a"},{"sku":"b"}]}'),
        ("<$.detail.items[0]>", '{"sku":"a"}'),
        ('{"by": "<aws.pipes.pipe-name>"}', '{"by":"to-billing"}'),
        ('{"twice": ["<$.detail.id>", "<$.detail.id>"]}', '{"twice":["o-1","o-1"]}'),
    ],
)
def test_a_pipes_template_has_its_paths_inside(template: str, text: str) -> None:
    assert transformed(compile_pipe_template(template), EVENT, ABOUT) == text


def test_a_pipes_text_stays_json_inside_of_quotes() -> None:
    made = transformed(compile_pipe_template('{"note": "it says: <$.detail.note>"}'), EVENT, ABOUT)
    assert json.loads(made) == {"note": 'it says: say "hi"'}


@pytest.mark.parametrize("template", ["<order>", "<$..a>", '{"a": <aws.pipes.nothing>}', "", "free text"])
def test_another_template_of_a_pipe_is_refused(template: str) -> None:
    with pytest.raises(UsageError):
        compile_pipe_template(template)


@pytest.mark.parametrize("template", ['"order \\"<id>\\": placed"', '{"said": "order \\"<id>\\" : placed"}'])
def test_a_quote_in_a_text_ends_no_name_of_a_field(template: str) -> None:
    compile_transformation(transformer=InputTransformer(paths={"id": "$.detail.id"}, template=template))


@pytest.mark.parametrize("template", ['{"<id>": 1}', '{"a \\"<id>\\" b": 1}'])
def test_a_placeholder_in_the_name_of_a_field_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="name of a field"):
        compile_transformation(transformer=InputTransformer(paths={"id": "$.detail.id"}, template=template))
