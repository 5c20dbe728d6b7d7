"""Parses the expressions of EventBridge Scheduler: `cron(...)` with six fields, `rate(...)`, `at(...)`.

An expression becomes a small value of bit masks; `fire_times.py` steps through time with it. What AWS documents, or was seen
to accept, is accepted; everything else is refused, so that what runs here can be deployed there. An error names the field
and its column, what was probably meant, and what is allowed there. The hints are at the end of the file: they are computed
only for an expression that was refused, and an expression is suggested only if it parses.
Never here: time zones, instants. Invariant: the same text always parses the same way, and never in part; a hint never
changes what is accepted.

Sources: EventBridge Scheduler user guide, "Schedule types"; API CreateSchedule, ScheduleExpression; EventBridge user
guide, "Cron expressions"; Systems Manager, "Cron and rate expressions" (the same language). docs/decisions/0012.
"""

from __future__ import annotations

import difflib
import re
from calendar import monthrange
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from onefold import limits
from onefold.errors import UsageError

TEXT_CHARS_MAX: Final = 256  # CreateSchedule, ScheduleExpression: 1 to 256
YEAR_MIN: Final = 1970  # user guide, schedule types, cron fields
YEAR_MAX: Final = 2199
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_SATURDAY: Final = 6
_UNITS_MS: Final = {"minute": limits.MINUTE_MS, "hour": limits.HOUR_MS, "day": limits.DAY_MS}
_AT: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})")

# dates: bit d-1 of `days` is day d; weekdays: bit 0 of `days` is Sunday, seven bits, six weeks of them;
# nearest: the weekday nearest day `days`; nth: the nth of the weekday `days` (0 is Sunday); last-of: the last one.
DayRule = Literal["dates", "last", "last-weekday", "nearest", "weekdays", "nth", "last-of"]


class CronExpression(Struct, frozen=True):
    """A cron expression. Bit 0 of each mask is the field's lowest value; that of `years` is 1970.

    Args:
        text: as written.
        minutes, hours, months, years: masks of what matches.
        rule, days, nth: which days of a month match; see `DayRule`.
    """

    text: str
    minutes: int
    hours: int
    months: int
    years: int
    rule: DayRule
    days: int
    nth: int = 0


class RateExpression(Struct, frozen=True):
    """A rate expression: every `period_ms`, counted from its start; a day is 24 hours whatever clocks do."""

    text: str
    period_ms: int


class AtExpression(Struct, frozen=True):
    """A one-time expression: year, month, day, hour, minute, second of a zone's clocks."""

    text: str
    local: tuple[int, int, int, int, int, int]


Expression = CronExpression | RateExpression | AtExpression


class _Field(Struct, frozen=True):
    """A field of a cron expression, and what it can contain.

    Args:
        name: for errors. least, most: its lowest and highest value. marks: its wildcards.
        names: of values, such as JAN. sample: an example, for errors.
    """

    name: str
    least: int
    most: int
    marks: str
    sample: str
    names: Mapping[str, int] = {}

    @property
    def allowed(self) -> str:
        """The allowed values, as text."""
        words = list(self.names)
        also = f" or {words[0]}-{words[-1]}" if words else ""
        marks = f"{' '.join(self.marks[:-1])} and {self.marks[-1]}"
        return f"The {self.name} may be {self.least}-{self.most}{also}, with {marks}, for example {self.sample}."


_MINUTES: Final = _Field("minutes", 0, 59, ",-*/", "0/15")
_HOURS: Final = _Field("hours", 0, 23, ",-*/", "8-17")
_DATES: Final = _Field("day of month", 1, 31, ",-*?/LW", "1,15, L or 3W")
_MONTH: Final = _Field("month", 1, 12, ",-*/", "JAN,JUL", {name: at + 1 for at, name in enumerate(_MONTHS)})
_WEEK: Final = _Field(
    "day of week", 1, 7, ",-*?L#", "MON-FRI, 6L or TUE#2", {d: at + 1 for at, d in enumerate(_WEEKDAYS)}
)
_YEARS: Final = _Field("year", YEAR_MIN, YEAR_MAX, ",-*/", "2026-2030")
_FIELDS: Final = (_MINUTES, _HOURS, _DATES, _MONTH, _WEEK, _YEARS)


def parse(text: str) -> Expression:
    """Read an expression.

    Args:
        text: 1 to 256 characters: `cron(minutes hours day-of-month month day-of-week year)`, `rate(value unit)` or
            `at(yyyy-mm-ddThh:mm:ss)`. Cron and at use the local time of the schedule's zone.

    Raises:
        UsageError: the text is none of these; the error names the field, its column (the first is 1), what was probably
            meant and what is allowed there.
    """
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is not a schedule expression.", todo='Write text, for example "rate(5 minutes)".')
    if len(text) > TEXT_CHARS_MAX:
        raise UsageError(
            f"The schedule expression {text[:40]!r}... has {len(text)} characters.",
            todo=f"EventBridge Scheduler allows up to {TEXT_CHARS_MAX}.",
        )
    name, opened, inside = text.partition("(")
    if opened and name in _READERS:
        if not inside.endswith(")"):
            column = text.find(")") + 2 if ")" in text else len(text) + 1
            problem = 'something follows the ")"' if ")" in text else 'the ")" at the end is missing'
            raise _refused(text, column, problem, todo=f"Write {name}(...) and no more.")
        return _READERS[name](text, inside[:-1])
    raise _refused(
        text,
        1,
        "it does not begin with cron(, rate( or at(",
        meaning=_hint_for_no_form(text, _reads),
        todo='Write for example "cron(0 3 1 * ? *)", "rate(5 minutes)" or "at(2026-12-01T03:00:00)".',
    )


def _refused(text: str, column: int, problem: str, *, meaning: str = "", todo: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a schedule expression: {problem} (column {column}).", meaning=meaning, todo=todo
    )


def _reads(text: str) -> bool:
    if text.partition("(")[0] not in _READERS:
        return False  # calling `parse` would compute a hint for it again
    try:
        parse(text)
    except UsageError:
        return False
    return True


# -- cron ------------------------------------------------------------------------------------------------------------


class _Word(Struct, frozen=True):
    """A part of an expression, with its column."""

    text: str
    column: int
    whole: str

    def part(self, start: int, end: int | None = None) -> _Word:
        return _Word(self.text[start:end], self.column + start, self.whole)

    def refused(self, field: _Field, problem: str, meaning: str = "") -> UsageError:
        shown = (
            f'"{self.text}" in the {field.name} {problem}' if self.text else f"a value is missing in the {field.name}"
        )
        return _refused(self.whole, self.column, shown, meaning=meaning, todo=field.allowed)


def _cron(text: str, inside: str) -> CronExpression:
    words, column = [], len("cron(") + 1
    for part in inside.split(" "):
        words.append(_Word(part, column, text))
        column += len(part) + 1
    for word in words:
        if word.text.split() != [word.text]:
            problem, meaning, todo = _hint_for_space(inside)
            raise _refused(text, word.column, problem, meaning=meaning, todo=todo)
    if len(words) != len(_FIELDS):
        raise _wrong_count(text, inside, words)
    minutes, hours, dates, months, week, years = words
    minute_mask, hour_mask = _mask(_MINUTES, minutes), _mask(_HOURS, hours)
    by_date = _date_rule(dates)
    month_mask = _mask(_MONTH, months)
    by_week = _week_rule(week)
    year_mask = _mask(_YEARS, years)
    chosen = by_date or by_week
    if chosen is None or (by_date and by_week):
        raise _wrong_days(text, words)
    rule, days, nth = chosen
    return CronExpression(text, minute_mask, hour_mask, month_mask, year_mask, rule, days, nth)


def _wrong_count(text: str, inside: str, words: list[_Word]) -> UsageError:
    count = len(words)
    column = words[-1].column + len(words[-1].text) if count < len(_FIELDS) else words[len(_FIELDS)].column
    found = "1 field" if count == 1 else f"{count} fields"
    return _refused(
        text,
        column,
        f"it has {found}, not six",
        meaning=_hint_for_count(inside, _reads),
        todo="The six are minutes, hours, day of month, month, day of week, year: cron(0 3 * * ? *) is 03:00 every day.",
    )


def _wrong_days(text: str, words: list[_Word]) -> UsageError:
    dates, week = words[2], words[4]
    if dates.text == "?":
        wrong, problem = dates, "both day fields are ?, so no day is named"
        meaning = _offer(text, wrong.column, "?", "*")
    elif "*" in (dates.text, week.text):
        wrong = week if week.text == "*" else dates
        problem = "both day fields are set, and one of them must be ?"
        meaning = _offer(text, wrong.column, wrong.text, "?")
    else:
        wrong, problem = week, "both day fields are set, and one of them must be ?"
        meaning = "Unix cron would fire on either day; here that takes two schedules, one for each."
    return _refused(text, wrong.column, problem, meaning=meaning, todo="Put ? into the day field that does not decide.")


_Days = tuple[DayRule, int, int]


def _date_rule(word: _Word) -> _Days | None:
    text = word.text
    if text == "?":
        return None
    if text == "L":
        return "last", 0, 0
    if text == "LW":
        return "last-weekday", 0, 0
    if re.fullmatch("[0-9]+W", text):
        return "nearest", _value(_DATES, word.part(0, -1)), 0
    if re.fullmatch("(?=[0-9,-]*[LW?])[0-9,LW?-]+", text):
        raise word.refused(_DATES, "cannot be read", _hint_for_last(text, "L, LW, 3W and ?"))
    return "dates", _mask(_DATES, word), 0


def _week_rule(word: _Word) -> _Days | None:
    text = word.text
    if text == "?":
        return None
    if text == "L":
        return "weekdays", _weeks(1 << _SATURDAY), 0
    if text.endswith("L") and "," not in text and "-" not in text:
        return "last-of", _value(_WEEK, word.part(0, -1)) - 1, 0
    if "#" in text:
        day, _, nth = text.partition("#")
        if "," in text or "-" in text:
            raise word.refused(_WEEK, "has more than one day with #", "AWS allows one term when # is used.")
        weekday = _value(_WEEK, word.part(0, len(day)))
        if not re.fullmatch("[1-5]", nth):
            raise word.part(len(day) + 1).refused(_WEEK, "is not the number of a week", "After # comes 1 to 5.")
        return "nth", weekday - 1, int(nth)
    if text != "*" and (re.fullmatch("(?=[A-Z0-9,-]*[?*])[A-Z0-9,*?-]+", text) or re.search("[0-9]L", text)):
        raise word.refused(_WEEK, "cannot be read", _hint_for_last(text, "*, ?, 6L and TUE#2"))
    return "weekdays", _weeks(_mask(_WEEK, word)), 0


def _weeks(week: int) -> int:
    """A week's mask repeated six times, so that the mask of a month is one shift away."""
    return sum(week << (7 * at) for at in range(6))


def _mask(field: _Field, word: _Word) -> int:
    """The values that a numeric field names, as bits."""
    if word.text == "*":
        return (1 << (field.most - field.least + 1)) - 1
    if word.text.isdecimal() and word.text.isascii():
        return 1 << (_value(field, word) - field.least)
    mask = start = 0
    for item in word.text.split(","):
        mask |= _item(field, word.part(start, start + len(item)))
        start += len(item) + 1
    return mask


def _item(field: _Field, word: _Word) -> int:
    """A value, a range, or either with a step."""
    if word.text == "*":
        raise word.refused(field, "is in a list", "It is every value already; an asterisk must be alone.")
    body, slash, _ = word.text.partition("/")
    span = field.most - field.least + 1
    step = _step(field, word, word.part(len(body) + 1), span) if slash else 1
    if body == "*":
        first, last = field.least, field.most
    else:
        left, dash, _ = body.partition("-")
        first = _value(field, word.part(0, len(left)))
        last = field.most if slash else first
        if dash:
            last = _value(field, word.part(len(left) + 1, len(body)))
    if last < first:
        if field is _YEARS:
            raise word.refused(field, "ends before it begins")
        last += span
    mask = 0
    for value in range(first, last + 1, step):
        mask |= 1 << ((value - field.least) % span)
    return mask


def _step(field: _Field, word: _Word, step: _Word, span: int) -> int:
    if "/" not in field.marks:
        raise word.refused(field, "has a step", "AWS allows none in the day of week: list the days instead.")
    if not (step.text.isdecimal() and step.text.isascii() and 1 <= int(step.text) < span):
        problem = f"is not a step; it may be 1 to {span - 1}"
        raise step.refused(field, problem, _hint_for_step(field.name, word.text, step.text))
    return int(step.text)


def _value(field: _Field, word: _Word) -> int:
    text = word.text
    if text.isdecimal() and text.isascii():
        number = int(text)
        if field.least <= number <= field.most:
            return number
        raise word.refused(field, "is out of range", _hint_for_number(field.name, number))
    found = field.names.get(text)
    if found is None:
        raise word.refused(field, "cannot be read", _hint_for_word(field.name, text, field.marks, list(field.names)))
    return found


# -- rate and at -----------------------------------------------------------------------------------------------------


def _rate(text: str, inside: str) -> RateExpression:
    value, _, unit = inside.partition(" ")
    problem = ""
    column = len("rate(") + 1
    if not (value.isdecimal() and value.isascii()):
        problem = f'the value "{value}" is not a whole number' if value else "the value is missing"
    elif int(value) == 0:
        problem = "the value is 0"
    elif unit.removesuffix("s") not in _UNITS_MS or unit.endswith("ss"):
        column += len(value) + 1
        problem = f'the unit "{unit}" is not known' if unit else "the unit is missing"
    if problem:
        raise _refused(
            text,
            column,
            problem,
            meaning=_hint_for_rate(value, unit),
            todo="Write rate(value unit): a whole number of 1 or more, one space, minutes, hours or days.",
        )
    return RateExpression(text, int(value) * _UNITS_MS[unit.removesuffix("s")])


def _at(text: str, inside: str) -> AtExpression:
    todo = "Write at(yyyy-mm-ddThh:mm:ss), for example at(2026-12-01T03:00:00), in the time of the schedule's zone."
    column = len("at(") + 1
    found = _AT.fullmatch(inside)
    if found is None:
        problem = f'"{inside}" is not yyyy-mm-ddThh:mm:ss' if inside else "the time is missing"
        raise _refused(text, column + _column_of_at(inside), problem, meaning=_hint_for_at(inside), todo=todo)
    year, month, day, hour, minute, second = (int(part) for part in found.groups())
    bounds = (
        ("year", year, YEAR_MIN, YEAR_MAX),
        ("month", month, 1, 12),
        ("day", day, 1, monthrange(year, month)[1] if year and 1 <= month <= 12 else 31),
        ("hour", hour, 0, 23),
        ("minute", minute, 0, 59),
        ("second", second, 0, 59),
    )
    for position, (name, value, least, most) in enumerate(bounds, start=1):
        if not least <= value <= most:
            at = column + found.start(position)
            raise _refused(text, at, f"the {name} {value} is out of range: it may be {least} to {most}", todo=todo)
    return AtExpression(text, (year, month, day, hour, minute, second))


_READERS: Final[Mapping[str, Callable[[str, str], Expression]]] = {"cron": _cron, "rate": _rate, "at": _at}


_Reads = Callable[[str], bool]

_UNIX_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")  # Unix cron: 0 and 7 are Sunday
_NICKNAMES: Final = {
    "@yearly": "cron(0 0 1 1 ? *)",
    "@annually": "cron(0 0 1 1 ? *)",
    "@monthly": "cron(0 0 1 * ? *)",
    "@weekly": "cron(0 0 ? * SUN *)",
    "@daily": "cron(0 0 * * ? *)",
    "@midnight": "cron(0 0 * * ? *)",
    "@hourly": "cron(0 * * * ? *)",
}
_EVERY: Final = re.compile(r"(?:every )?([0-9]+) ?(m|min|minute|h|hour|d|day)s?")
_UNITS: Final = {
    "m": "minutes",
    "min": "minutes",
    "minute": "minutes",
    "h": "hours",
    "hour": "hours",
    "d": "days",
    "day": "days",
}
_NUMBERS: Final = {
    ("minutes", 60): "The full hour is minute 0.",
    ("hours", 24): "Midnight is hour 0.",
    ("day of week", 0): "That is Unix cron's Sunday; here Sunday is 1, Monday 2, Saturday 7. Names are safer: SUN.",
    ("month", 0): "January is 1.",
}


def _meant(text: str, reads: _Reads) -> str:
    return f"Did you mean {text}?" if reads(text) else ""


def _hint_for_no_form(text: str, reads: _Reads) -> str:
    """For a text that is not cron(...), rate(...) or at(...)."""
    plain = text.strip()
    if plain in _NICKNAMES:
        return _meant(_NICKNAMES[plain], reads)
    if found := _EVERY.fullmatch(plain.lower()):
        return _meant(f"rate({found[1]} {_UNITS[found[2]]})", reads)
    if re.match(r"[0-9]{4}-[0-9]{2}-", plain):
        return _meant(f"at({plain.removesuffix('Z').replace(' ', 'T')})", reads)
    if plain.count(" ") in {4, 5} and "(" not in plain:
        return (_meant(f"cron({plain})", reads) if plain.count(" ") == 5 else "") or _hint_for_count(plain, reads)
    name, opened, inside = plain.partition("(")
    return _meant(f"{name.strip().lower()}({inside}", reads) if opened else ""


def _hint_for_count(inside: str, reads: _Reads) -> str:
    """For a cron expression without six fields: five are Unix cron, seven have seconds in front."""
    words = inside.split()
    if len(words) == 5:
        unix = "Five fields are Unix cron; EventBridge has a year at the end, and ? in one of the day fields."
        if "*" not in (words[2], words[4]) and "?" not in (words[2], words[4]):
            return f"{unix} Both days are set here: that takes two schedules, one for each."
        return f"{unix} {_meant(_from_unix(words), reads)}".strip()
    if len(words) == 7:
        without = _meant(f"cron({' '.join(words[1:])})", reads)
        return f"Seven fields have seconds in front, which EventBridge does not know. {without}".strip()
    return ""


def _from_unix(words: Sequence[str]) -> str:
    minutes, hours, dates, months, week = words
    if week == "?" or dates == "?":
        return f"cron({' '.join(words)} *)"
    if week == "*":
        week = "?"
    else:
        dates = "?"
        week = re.sub("(?<![#0-9])[0-7](?![0-9])", lambda found: _UNIX_DAYS[int(found[0])], week.upper())
    return f"cron({minutes} {hours} {dates} {months.upper()} {week} *)"


def _hint_for_space(inside: str) -> tuple[str, str, str]:
    """For an empty field: problem, meaning, what to do."""
    if not inside.strip():
        return "it is empty", "", "It has six fields: cron(0 3 * * ? *) is 03:00 every day."
    tidy = " ".join(inside.split())
    return "there is an extra space", f"Did you mean cron({tidy})?", "There is one space between two fields."


def _offer(text: str, column: int, wrong: str, right: str) -> str:
    """The expression with one word replaced."""
    start = column - 1
    return f"Did you mean {text[:start]}{right}{text[start + len(wrong) :]}?"


def _hint_for_last(text: str, alone: str) -> str:
    """For L, W, ? or * where they are not allowed."""
    if re.fullmatch("L-[0-9]+", text):
        return "AWS documents no days counted back from the end; L is the last day, LW the last weekday of the month."
    return f"Each of {alone} must be alone in its field, with no list and no range."


def _hint_for_step(field: str, item: str, step: str) -> str:
    """For a step that is too large or not a number."""
    if step.isdecimal() and int(step) and field in {"minutes", "hours"}:
        again = "hour" if field == "minutes" else "day"
        return f"{item} would begin again with every {again}; for a fixed distance write rate({int(step)} {field})."
    return ""


def _hint_for_number(field: str, number: int) -> str:
    """For a number out of range."""
    return _NUMBERS.get((field, number), "")


def _hint_for_word(field: str, text: str, marks: str, names: Sequence[str]) -> str:
    """The error for a word that is not a value of its field."""
    if text.upper() in names:
        return f"AWS writes names in capitals: {text.upper()}."
    if len(text) > 3 and text[:3].upper() in names:
        return f"AWS writes names with three letters: {text[:3].upper()}."
    swapped = [name for name in names if sorted(name) == sorted(text.upper())]
    if swapped:
        return f"Did you mean {swapped[0]}?"
    foreign = [mark for mark in "?LW#" if mark in text and mark not in marks]
    if foreign:
        return f"{foreign[0]} is not allowed in the {field}."
    near = difflib.get_close_matches(text.upper(), names, n=1)
    return f"Did you mean {near[0]}?" if near else ""


def _hint_for_rate(value: str, unit: str) -> str:
    """For a rate that cannot be read."""
    if found := re.fullmatch("([0-9]+) *([A-Za-z]+)", f"{value} {unit}".strip()):
        value, unit = found[1], found[2]
    single = unit.lower().rstrip("s")
    if single == "second":
        return "The shortest period is 1 minute."
    if single == "week" and value.isdecimal():
        return f"A week is 7 days: rate({int(value) * 7} days)."
    if single in {"month", "year"}:
        return "Months and years differ in length: write a cron expression, for example cron(0 0 1 * ? *)."
    if value.isdecimal() and int(value):
        near = difflib.get_close_matches(unit.lower(), ["minutes", "hours", "days"], n=1)
        return f"Did you mean rate({int(value)} {near[0]})?" if near else ""
    if value == "0":
        return "A schedule with no time between its ticks would never rest."
    return ""


def _column_of_at(inside: str) -> int:
    """How many characters at the start of a one-time expression are correct."""
    form = "dddd-dd-ddTdd:dd:dd"
    for position, (found, wanted) in enumerate(zip(inside, form, strict=False)):
        if not (found.isdecimal() if wanted == "d" else found == wanted):
            return position
    return min(len(inside), len(form))


def _hint_for_at(inside: str) -> str:
    """For a one-time expression that cannot be read."""
    if re.search(r"(Z|[+-][0-9]{2}:?[0-9]{2})$", inside) and "T" in inside:
        return "The zone is an option of its own (tz=...), not part of the expression."
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", inside):
        return f"The time of day is missing: at({inside}T00:00:00) is midnight."
    if re.fullmatch(r"[0-9-]{10}T[0-9]{2}:[0-9]{2}", inside):
        return f"The seconds are missing: at({inside}:00)."
    if "." in inside:
        return "Fractions of a second cannot be set."
    if re.fullmatch(r"[0-9-]{10} [0-9:]{8}", inside):
        return f"Write a T between date and time: at({inside.replace(' ', 'T')})."
    return ""
