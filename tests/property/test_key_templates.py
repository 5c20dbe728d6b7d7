"""No two different lists of values give one key, whatever the signs between them; keys of rules that exist do not change."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from onefold.errors import UsageError
from onefold.record.keys import key_rule

# What is hard: the escape sign, its code, digits, box drawing, and pieces of escapes.
HARD = [
    "%",
    "2",
    "5",
    "25",
    "%25",
    "%2502",
    "02",
    "\u2502",
    "\u250c",
    "\u025a",
    "~",
    "~s",
    "~t",
    "#",
    "%23",
    "3",
    "-",
    "0",
    "a",
    "/",
]
VALUES = st.one_of(
    st.lists(st.sampled_from(HARD), min_size=1, max_size=5).map("".join), st.text(min_size=1, max_size=6)
).filter(lambda text: text.strip() and text.isprintable())
SIGNS = st.one_of(
    st.lists(st.sampled_from(HARD), min_size=1, max_size=2).map("".join), st.characters(codec="utf-8").map(str)
).filter(lambda text: text.isprintable() and not set(text) & set("{}"))


def keys_of(template: str, fields: int, *values: tuple[str, ...]) -> list[str]:
    try:
        rule = key_rule(template)
    except UsageError:  # the sign is flawed; other templates are refused in both
        rule = key_rule(f"keys-v2:{template}")
    return [rule.of({f"f{place}": value for place, value in enumerate(one[:fields])}) for one in values]


def template_of(signs: tuple[str, ...]) -> str:
    return "".join(f"{{f{place}}}{sign}" for place, sign in enumerate(signs)) + f"{{f{len(signs)}}}"


@given(st.data(), st.lists(SIGNS, min_size=1, max_size=2).map(tuple))
def test_different_values_give_different_keys(data: st.DataObject, signs: tuple[str, ...]) -> None:
    lists = st.tuples(*[VALUES] * (len(signs) + 1))
    one, other = data.draw(lists), data.draw(lists)
    assume(one != other)
    first, second = keys_of(template_of(signs), len(signs) + 1, one, other)
    assert first != second


@given(SIGNS, st.text(alphabet="%25023~st\u2502#", min_size=3, max_size=9))
@example("%", "x%2525%z")
def test_one_text_cut_in_two_places_gives_two_keys(sign: str, text: str) -> None:
    """The hardest values for a sign: those that make the same text when they are only put together."""
    cuts = [(text[:place], text[place:]) for place in range(1, len(text))]
    joined = [(left, right) for left, _, right in (text.partition(sign), text.rpartition(sign)) if left and right]
    found = keys_of(template_of((sign,)), 2, *cuts, *joined)
    assert len(set(found)) == len({*cuts, *joined})


@pytest.mark.parametrize(
    ("template", "one", "other"),
    [
        ("{f0}%{f1}", ("x%", "z"), ("x", "2525%z")),
        ("{f0}\u2502{f1}", ("%02", "z"), ("\u2502", "z")),
    ],
)
def test_signs_that_gave_one_key_are_refused_until_a_version_is_chosen(
    template: str, one: tuple[str, str], other: tuple[str, str]
) -> None:
    with pytest.raises(UsageError, match=r"keys-v2:.*keys-v1:"):
        key_rule(template)
    before = key_rule(f"keys-v1:{template}")
    values = [{"f0": left, "f1": right} for left, right in (one, other)]
    assert before.of(values[0]) == before.of(values[1])  # what was wrong, and what records that exist are found by
    assert key_rule(f"keys-v2:{template}").of(values[0]) != key_rule(f"keys-v2:{template}").of(values[1])


def as_before(values: tuple[str, ...], signs: tuple[str, ...]) -> str:
    """Keys as the version before made them, written down once more."""
    found = ""
    for value, sign in zip(values, (*signs, ""), strict=True):
        is_escaped = sign and (sign[0] in value or "%" in value)
        found += value.replace("%", "%25").replace(sign[0], f"%{ord(sign[0]):02X}") if is_escaped else value
        found += sign
    return found


@given(st.data(), st.lists(SIGNS, min_size=1, max_size=2).map(tuple))
def test_the_keys_of_rules_that_exist_stay_as_they_are(data: st.DataObject, signs: tuple[str, ...]) -> None:
    values = data.draw(st.tuples(*[VALUES] * (len(signs) + 1)))
    template, payload = template_of(signs), {f"f{place}": value for place, value in enumerate(values)}
    try:
        rule = key_rule(template)
    except UsageError:
        rule = key_rule(f"keys-v1:{template}")
    assert rule.of(payload) == as_before(values, signs)
    assert key_rule(f"keys-v1:{template}").of(payload) == as_before(values, signs)


def test_a_version_changes_nothing_where_no_sign_is_flawed() -> None:
    payload = {"f0": "a#%b", "f1": "c"}
    assert {key_rule(f"{version}{{f0}}#{{f1}}").of(payload) for version in ("", "keys-v1:", "keys-v2:")} == {
        "a%23%25b#c"
    }
    assert unicodedata.name("\u2502").startswith("BOX DRAWINGS")
