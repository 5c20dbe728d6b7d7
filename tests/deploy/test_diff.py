"""What differs between two templates, by section, resource and property."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import errors
from onefold.deploy.changes import Difference, differences, read_template

BEFORE: dict[str, Any] = {
    "AWSTemplateFormatVersion": "2010-09-09",
    "Resources": {
        "Orders": {
            "Type": "AWS::SQS::Queue",
            "Properties": {"VisibilityTimeout": 30, "Tags": [{"Key": "a", "Value": "b"}]},
        },
        "Role": {"Type": "AWS::IAM::Role", "Properties": {"Actions": ["sqs:SendMessage"]}},
    },
    "Outputs": {"Url": {"Value": {"Ref": "Orders"}}},
}


def changed(**paths: Any) -> dict[str, Any]:
    """The template with other values at `Resources` places, written with `__` between names."""
    made = copy.deepcopy(BEFORE)
    for path, value in paths.items():
        *above, last = path.split("__")
        place: Any = made["Resources"]
        for name in above:
            place = place[name]
        place[last] = value
    return made


def test_equal_templates_do_not_differ() -> None:
    assert differences(BEFORE, copy.deepcopy(BEFORE)) == []


def test_a_changed_property_is_named_with_both_values() -> None:
    assert differences(BEFORE, changed(Orders__Properties__VisibilityTimeout=60)) == [
        Difference(
            section="Resources",
            name="Orders",
            type="AWS::SQS::Queue",
            path="Properties.VisibilityTimeout",
            kind="changed",
            before=30,
            after=60,
        )
    ]


def test_a_resource_that_came_or_went_is_one_difference() -> None:
    after = changed(Mails={"Type": "AWS::SQS::Queue"})
    del after["Resources"]["Role"]
    found = differences(BEFORE, after)
    assert [(one.kind, one.name, one.type, one.path) for one in found] == [
        ("added", "Mails", "AWS::SQS::Queue", ""), ("removed", "Role", "AWS::IAM::Role", ""),
    ]  # fmt: skip
    assert found[1].before == BEFORE["Resources"]["Role"]


def test_an_element_of_a_list_is_found_and_a_longer_list_is_one_difference() -> None:
    (one,) = differences(BEFORE, changed(Orders__Properties__Tags=[{"Key": "a", "Value": "c"}]))
    assert (one.path, one.before, one.after) == ("Properties.Tags[0].Value", "b", "c")
    (one,) = differences(BEFORE, changed(Role__Properties__Actions=["sqs:SendMessage", "sqs:DeleteMessage"]))
    assert (one.path, one.kind) == ("Properties.Actions", "changed")


def test_other_sections_are_compared_too() -> None:
    after = copy.deepcopy(BEFORE) | {"Description": "new", "Parameters": {"Stage": {"Type": "String"}}}
    assert [(one.section, one.name, one.kind) for one in differences(BEFORE, after)] == [
        ("Description", "", "added"), ("Parameters", "Stage", "added"),
    ]  # fmt: skip


def test_true_is_not_one_and_text_is_not_a_number() -> None:
    assert len(differences(BEFORE, changed(Orders__Properties__VisibilityTimeout="30"))) == 1
    assert len(differences(changed(Orders__Properties__Fifo=True), changed(Orders__Properties__Fifo=1))) == 1


def test_what_onefold_did_not_write_is_refused() -> None:
    assert read_template('{"Resources": {}}', "shop") == {"Resources": {}}
    assert read_template({"Resources": {}}, "shop") == {"Resources": {}}
    for text in ("Resources:\n  A: 1\n", "[]", ""):
        with pytest.raises(errors.UsageError, match="template of stack shop is not JSON"):
            read_template(text, "shop")


VALUES = st.recursive(
    st.integers(-3, 3) | st.booleans() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
RESOURCES = st.dictionaries(
    st.sampled_from(["A", "B", "C"]), st.fixed_dictionaries({"Type": st.just("T"), "Properties": VALUES}), max_size=3
)


@given(RESOURCES, RESOURCES)
def test_no_difference_means_equal_and_each_way_round_finds_as_many(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    there = differences({"Resources": before}, {"Resources": after})
    back = differences({"Resources": after}, {"Resources": before})
    assert len(there) == len(back)
    assert {(one.name, one.path) for one in there} == {(one.name, one.path) for one in back}
    if not there:
        assert before == after
    if before != after:
        assert there
