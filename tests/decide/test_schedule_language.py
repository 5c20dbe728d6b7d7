"""What is an expression and what is none; errors that point at the field, and advice that can be followed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import limits
from onefold.errors import UsageError
from onefold.schedules.expressions import AtExpression, CronExpression, RateExpression, parse


def refusal(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(text)
    return caught.value


# What AWS is documented or was seen to refuse: where the error points, and at what.
REFUSED_BY_AWS = [
    ("cron()", 6, "it is empty"),
    ("cron(INVALID)", 13, "it has 1 field, not six"),
    ("cron(0 dummy ? * MON-FRI *)", 8, '"dummy" in the hours cannot be read'),
    ("cron(71 8 1 * ? *)", 6, '"71" in the minutes is out of range'),
    ("cron(7 20 * * NOT *)", 15, '"NOT" in the day of week cannot be read'),
    ("cron(0 1 * * * *)", 14, "both day fields are set, and one of them must be ?"),
    ("cron(0 0 ? * 3#1,6#3 *)", 14, '"3#1,6#3" in the day of week has more than one day with #'),
    ("rate()", 6, "the value is missing"),
    ("rate(10)", 9, "the unit is missing"),
    ("rate(10 seconds)", 9, 'the unit "seconds" is not known'),
    ("rate(10 years)", 9, 'the unit "years" is not known'),
    ("rate(10 minutess)", 9, 'the unit "minutess" is not known'),
    ("rate(foo minutes)", 6, 'the value "foo" is not a whole number'),
    ("rate(-10 minutes)", 6, 'the value "-10" is not a whole number'),
    ("rate( 10 minutes )", 6, "the value is missing"),
    (" rate(10 minutes)", 1, "it does not begin with cron(, rate( or at("),
    ("rate(0 minutes)", 6, "the value is 0"),
    ("rate(10 MINUTES)", 9, 'the unit "MINUTES" is not known'),
    ("at(2026-12-01T03:00:00Z)", 23, '"2026-12-01T03:00:00Z" is not yyyy-mm-ddThh:mm:ss'),
    ("at(2026-12-01T03:00:00.5)", 23, '"2026-12-01T03:00:00.5" is not yyyy-mm-ddThh:mm:ss'),
    ("at(2026-12-01)", 14, '"2026-12-01" is not yyyy-mm-ddThh:mm:ss'),
]

REFUSED = [
    *REFUSED_BY_AWS,
    ("", 1, "it does not begin with cron(, rate( or at("),
    ("cron 0 9 * * ? *", 1, "it does not begin with cron(, rate( or at("),
    ("cron(0 9 * * ? *", 17, 'the ")" at the end is missing'),
    ("cron(0 9 * * ? *) UTC", 18, 'something follows the ")"'),
    ("cron(0 9 * * ?  *)", 16, "there is an extra space"),
    ("cron( 0 9 * * ? *)", 6, "there is an extra space"),
    ("cron(0\t9 * * ? *)", 6, "there is an extra space"),
    ("cron(0 9 * * 1-5)", 17, "it has 5 fields, not six"),
    ("cron(0 0 9 * * ? *)", 18, "it has 7 fields, not six"),
    ("cron(0 9 ? * ? *)", 10, "both day fields are ?, so no day is named"),
    ("cron(0 9 1 * MON *)", 14, "both day fields are set, and one of them must be ?"),
    ("cron(60 0 * * ? *)", 6, '"60" in the minutes is out of range'),
    ("cron(0,5,77 0 * * ? *)", 10, '"77" in the minutes is out of range'),
    ("cron(-5 9 * * ? *)", 6, "a value is missing in the minutes"),
    ("cron(1- 9 * * ? *)", 8, "a value is missing in the minutes"),
    ("cron(1,,2 9 * * ? *)", 8, "a value is missing in the minutes"),
    ("cron(1,* 9 * * ? *)", 8, '"*" in the minutes is in a list'),
    ("cron(? 9 * * ? *)", 6, '"?" in the minutes cannot be read'),
    ("cron(0/0 9 * * ? *)", 8, '"0" in the minutes is not a step; it may be 1 to 59'),
    ("cron(0/60 9 * * ? *)", 8, '"60" in the minutes is not a step; it may be 1 to 59'),
    ("cron(0/ 9 * * ? *)", 8, "a value is missing in the minutes"),
    ("cron(\u0663 9 * * ? *)", 6, '"\u0663" in the minutes cannot be read'),
    ("cron(0 24 * * ? *)", 8, '"24" in the hours is out of range'),
    ("cron(0 9 0 * ? *)", 10, '"0" in the day of month is out of range'),
    ("cron(0 9 32 * ? *)", 10, '"32" in the day of month is out of range'),
    ("cron(0 9 32W * ? *)", 10, '"32" in the day of month is out of range'),
    ("cron(0 9 W * ? *)", 10, '"W" in the day of month cannot be read'),
    ("cron(0 9 L-3 * ? *)", 10, '"L-3" in the day of month cannot be read'),
    ("cron(0 9 1,L * ? *)", 10, '"1,L" in the day of month cannot be read'),
    ("cron(0 9 1-5W * ? *)", 10, '"1-5W" in the day of month cannot be read'),
    ("cron(0 9 1 0 ? *)", 12, '"0" in the month is out of range'),
    ("cron(0 9 1 13 ? *)", 12, '"13" in the month is out of range'),
    ("cron(0 9 1 JAN-FOO ? *)", 16, '"FOO" in the month cannot be read'),
    ("cron(0 9 ? * 0 *)", 14, '"0" in the day of week is out of range'),
    ("cron(0 9 ? * 8 *)", 14, '"8" in the day of week is out of range'),
    ("cron(0 9 ? * 2/2 *)", 14, '"2/2" in the day of week has a step'),
    ("cron(0 9 ? * 3#6 *)", 16, '"6" in the day of week is not the number of a week'),
    ("cron(0 9 ? * 3# *)", 16, "a value is missing in the day of week"),
    ("cron(0 9 ? * #2 *)", 14, "a value is missing in the day of week"),
    ("cron(0 9 ? * 6L,2L *)", 14, '"6L,2L" in the day of week cannot be read'),
    ("cron(0 9 ? * 8L *)", 14, '"8" in the day of week is out of range'),
    ("cron(0 9 1 * ? 1969)", 16, '"1969" in the year is out of range'),
    ("cron(0 9 1 * ? 2200)", 16, '"2200" in the year is out of range'),
    ("cron(0 9 1 * ? 2030-2026)", 16, '"2030-2026" in the year ends before it begins'),
    ("rate(1.5 hours)", 6, 'the value "1.5" is not a whole number'),
    ("rate(5minutes)", 6, 'the value "5minutes" is not a whole number'),
    ("rate(5  minutes)", 8, 'the unit " minutes" is not known'),
    ("rate(\u0663 minutes)", 6, 'the value "\u0663" is not a whole number'),
    ("at()", 4, "the time is missing"),
    ("at(2026-12-01 03:00:00)", 14, '"2026-12-01 03:00:00" is not yyyy-mm-ddThh:mm:ss'),
    ("at(2026-02-29T00:00:00)", 12, "the day 29 is out of range: it may be 1 to 28"),
    ("at(2026-13-01T00:00:00)", 9, "the month 13 is out of range: it may be 1 to 12"),
    ("at(2026-12-01T24:00:00)", 15, "the hour 24 is out of range: it may be 0 to 23"),
    ("at(2026-12-01T00:60:00)", 18, "the minute 60 is out of range: it may be 0 to 59"),
    ("at(2026-12-01T00:00:60)", 21, "the second 60 is out of range: it may be 0 to 59"),
    ("at(1969-12-31T00:00:00)", 4, "the year 1969 is out of range: it may be 1970 to 2199"),
    ("at(0000-00-00T00:00:00)", 4, "the year 0 is out of range: it may be 1970 to 2199"),
]


@pytest.mark.parametrize(("text", "column", "problem"), REFUSED)
def test_an_error_points_at_the_field_and_says_what_may_stand_there(text: str, column: int, problem: str) -> None:
    error = refusal(text)
    assert error.what == f"{text!r} is not a schedule expression: {problem} (column {column})."
    assert error.todo
    named = re.search("in the (minutes|hours|day of month|month|day of week|year)", problem)
    if named:
        assert error.todo.startswith(f"The {named[1]} may be ")


# A near mistake and what is advised; what is offered can be read.
MEANT = [
    ("*/5 * * * *", "Did you mean cron(*/5 * * * ? *)?"),
    ("0 9 * * 1-5", "Did you mean cron(0 9 ? * MON-FRI *)?"),
    ("0 9 * * 0,7", "Did you mean cron(0 9 ? * SUN,SUN *)?"),
    ("cron(0 9 1 jan *)", "Did you mean cron(0 9 1 JAN ? *)?"),
    ("cron(0 9 1 * 1)", "Both days are set here: that takes two schedules, one for each."),
    ("0 9 * * ? *", "Did you mean cron(0 9 * * ? *)?"),
    ("cron(0 0 9 * * ? *)", "Did you mean cron(0 9 * * ? *)?"),
    ("@daily", "Did you mean cron(0 0 * * ? *)?"),
    ("@weekly", "Did you mean cron(0 0 ? * SUN *)?"),
    ("5m", "Did you mean rate(5 minutes)?"),
    ("every 2 hours", "Did you mean rate(2 hours)?"),
    ("2026-12-01T03:00:00Z", "Did you mean at(2026-12-01T03:00:00)?"),
    ("CRON(0 9 * * ? *)", "Did you mean cron(0 9 * * ? *)?"),
    (" rate(10 minutes)", "Did you mean rate(10 minutes)?"),
    ("rate( 10 minutes )", "Did you mean rate(10 minutes)?"),
    ("rate(5minutes)", "Did you mean rate(5 minutes)?"),
    ("rate(10 MINUTES)", "Did you mean rate(10 minutes)?"),
    ("rate(10 seconds)", "The shortest period is 1 minute."),
    ("rate(2 weeks)", "A week is 7 days: rate(14 days)."),
    ("rate(1 month)", "Months and years differ in length: write a cron expression, for example cron(0 0 1 * ? *)."),
    ("rate(0 days)", "A schedule with no time between its ticks would never rest."),
    ("cron(0 9 * * * *)", "Did you mean cron(0 9 * * ? *)?"),
    ("cron(0 9 ? * ? *)", "Did you mean cron(0 9 * * ? *)?"),
    ("cron(0 9 1 * * *)", "Did you mean cron(0 9 1 * ? *)?"),
    ("cron(0 9 * * MON *)", "Did you mean cron(0 9 ? * MON *)?"),
    ("cron(0 9 1 * MON *)", "Unix cron would fire on either day; here that takes two schedules, one for each."),
    ("cron(0 9 * * ?  *)", "Did you mean cron(0 9 * * ? *)?"),
    ("cron(0 24 * * ? *)", "Midnight is hour 0."),
    ("cron(60 0 * * ? *)", "The full hour is minute 0."),
    ("cron(0/90 0 * * ? *)", "write rate(90 minutes)."),
    ("cron(0 9 ? * 0 *)", "That is Unix cron's Sunday; here Sunday is 1"),
    ("cron(0 9 ? * mon *)", "AWS writes names in capitals: MON."),
    ("cron(0 9 ? * MONDAY *)", "AWS writes names with three letters: MON."),
    ("cron(0 9 ? * WDE *)", "Did you mean WED?"),
    ("cron(0 9 1 JNA ? *)", "Did you mean JAN?"),
    ("cron(0 9 1 L ? *)", "L is not allowed in the month."),
    ("cron(0 9 L-3 * ? *)", "L is the last day, LW the last weekday of the month."),
    ("at(2026-12-01T03:00:00Z)", "The zone is an option of its own (tz=...), not part of the expression."),
    ("at(2026-12-01T03:00:00.5)", "Fractions of a second cannot be set."),
    ("at(2026-12-01)", "The time of day is missing: at(2026-12-01T00:00:00) is midnight."),
    ("at(2026-12-01T03:00)", "The seconds are missing: at(2026-12-01T03:00:00)."),
    ("at(2026-12-01 03:00:00)", "Write a T between date and time: at(2026-12-01T03:00:00)."),
]


@pytest.mark.parametrize(("text", "meant"), MEANT)
def test_a_near_mistake_is_told_what_was_probably_meant(text: str, meant: str) -> None:
    meaning = refusal(text).meaning
    assert meant in meaning
    for offered in re.findall(r"(?:Did you mean |: )((?:cron|rate|at)\([^)]*\))", meaning):
        parse(offered)


def test_an_expression_of_more_than_256_characters_is_refused() -> None:
    minutes = ",".join(["0"] * 120)
    longest = f"cron({minutes}{'0' * (256 - 239 - 17)} 9 * * ? *)"
    assert len(longest) <= 256
    assert isinstance(parse(longest), CronExpression)
    assert "allows up to 256" in refusal(longest + " " * (257 - len(longest))).todo
    assert "allows up to 256" in refusal("9" * 100_000).todo


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(UsageError, match="Write text"):
        parse(5)  # type: ignore[arg-type]  # what a caller without types writes


def test_what_an_expression_becomes() -> None:
    assert parse("rate(2 hours)") == RateExpression("rate(2 hours)", 2 * limits.HOUR_MS)
    assert parse("at(2026-12-01T03:04:05)") == AtExpression("at(2026-12-01T03:04:05)", (2026, 12, 1, 3, 4, 5))
    cron = parse("cron(0,59 0-2 L JAN ? 1970/100)")
    assert isinstance(cron, CronExpression)
    assert (cron.minutes, cron.hours, cron.months, cron.rule) == (1 | 1 << 59, 0b111, 1, "last")
    assert cron.years == 1 | 1 << 100 | 1 << 200


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("cron(*/15 * * * ? *)", "cron(0,15,30,45 * * * ? *)"),
        ("cron(0-59/30 * * * ? *)", "cron(0/30 * * * ? *)"),
        ("cron(0 20-2 * * ? *)", "cron(0 20,21,22,23,0,1,2 * * ? *)"),
        ("cron(0 22-4/3 * * ? *)", "cron(0 22,1,4 * * ? *)"),
        ("cron(0 0 1 NOV-FEB ? *)", "cron(0 0 1 11,12,1,2 ? *)"),
        ("cron(0 0 ? * SAT-SUN *)", "cron(0 0 ? * 7,1 *)"),
        ("cron(0 0 ? * MON-FRI *)", "cron(0 0 ? * 2-6 *)"),
        ("cron(0 0 ? * L *)", "cron(0 0 ? * SAT *)"),
        ("cron(0 0 ? * FRIL *)", "cron(0 0 ? * 6L *)"),
        ("cron(00 09 01 01 ? *)", "cron(0 9 1 1 ? *)"),
        ("cron(8-8 0 * * ? *)", "cron(8 0 * * ? *)"),
        ("rate(1 hours)", "rate(1 hour)"),
        ("rate(1 day)", "rate(1 days)"),
    ],
)
def test_two_ways_to_say_one_thing(text: str, same: str) -> None:
    one, other = parse(text), parse(same)
    assert isinstance(one, CronExpression | RateExpression)
    assert isinstance(other, CronExpression | RateExpression)
    fields = [field for field in one.__struct_fields__ if field != "text"]
    assert [getattr(one, field) for field in fields] == [getattr(other, field) for field in fields]


@given(st.text(alphabet="cronateL0123456789 ,-*/?#WMONSUAJ()T:@.", max_size=40))
def test_whatever_is_typed_is_read_or_refused_with_advice(text: str) -> None:
    for typed in (text, f"cron({text})", f"rate({text})", f"at({text})"):
        try:
            found: object = parse(typed)
        except UsageError as error:
            found = error
        if isinstance(found, UsageError):
            assert found.what.endswith(").")
            assert found.todo
        else:
            assert isinstance(found, CronExpression | RateExpression | AtExpression)
            assert found.text == typed
