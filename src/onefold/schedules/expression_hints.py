"""What was probably meant: the near mistakes people make with EventBridge's expressions, each answered in a sentence.

Asked only when an expression was refused already. An expression that is offered has been read first, so that following
the advice works. Never here: what is valid (`expressions.py`). Invariant: an empty text where there is nothing to add;
a guess never changes what is accepted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Final

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


def for_no_form(text: str, reads: _Reads) -> str:
    """For a text that is no cron(...), rate(...) or at(...)."""
    plain = text.strip()
    if plain in _NICKNAMES:
        return _meant(_NICKNAMES[plain], reads)
    if found := _EVERY.fullmatch(plain.lower()):
        return _meant(f"rate({found[1]} {_UNITS[found[2]]})", reads)
    if re.match(r"[0-9]{4}-[0-9]{2}-", plain):
        return _meant(f"at({plain.removesuffix('Z').replace(' ', 'T')})", reads)
    if plain.count(" ") in {4, 5} and "(" not in plain:
        return (_meant(f"cron({plain})", reads) if plain.count(" ") == 5 else "") or for_count(plain, reads)
    name, opened, inside = plain.partition("(")
    return _meant(f"{name.strip().lower()}({inside}", reads) if opened else ""


def for_count(inside: str, reads: _Reads) -> str:
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


def for_space(inside: str) -> tuple[str, str, str]:
    """For an empty field: problem, meaning, what to do."""
    if not inside.strip():
        return "it is empty", "", "Six fields stand there: cron(0 3 * * ? *) is 03:00 every day."
    tidy = " ".join(inside.split())
    return "there is a space too many", f"Did you mean cron({tidy})?", "Between two fields stands one space."


def offer(text: str, column: int, wrong: str, right: str) -> str:
    """The expression with one word replaced."""
    start = column - 1
    return f"Did you mean {text[:start]}{right}{text[start + len(wrong) :]}?"


def for_last(text: str, alone: str) -> str:
    """For L, W, ? or * where they cannot stand."""
    if re.fullmatch("L-[0-9]+", text):
        return "AWS documents no days counted back from the end; L is the last day, LW the last weekday of the month."
    return f"Each of {alone} stands alone in its field, with no list and no range."


def for_step(field: str, item: str, step: str) -> str:
    """For a step that is too large or no number."""
    if step.isdecimal() and int(step) and field in {"minutes", "hours"}:
        again = "hour" if field == "minutes" else "day"
        return f"{item} would begin again with every {again}; for a fixed distance write rate({int(step)} {field})."
    return ""


def for_number(field: str, number: int) -> str:
    """For a number out of range."""
    return _NUMBERS.get((field, number), "")


def for_word(field: str, text: str, marks: str, names: Sequence[str]) -> str:
    """For a word that is no value of its field."""
    if text.upper() in names:
        return f"AWS writes names in capitals: {text.upper()}."
    if len(text) > 3 and text[:3].upper() in names:
        return f"AWS writes names with three letters: {text[:3].upper()}."
    swapped = [name for name in names if sorted(name) == sorted(text.upper())]
    if swapped:
        return f"Did you mean {swapped[0]}?"
    foreign = [mark for mark in "?LW#" if mark in text and mark not in marks]
    if foreign:
        return f"{foreign[0]} cannot stand in the {field}."
    near = difflib.get_close_matches(text.upper(), names, n=1)
    return f"Did you mean {near[0]}?" if near else ""


def for_rate(value: str, unit: str) -> str:
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


def column_of_at(inside: str) -> int:
    """How many characters of a one-time expression are as they should be."""
    form = "dddd-dd-ddTdd:dd:dd"
    for place, (found, wanted) in enumerate(zip(inside, form, strict=False)):
        if not (found.isdecimal() if wanted == "d" else found == wanted):
            return place
    return min(len(inside), len(form))


def for_at(inside: str) -> str:
    """For a one-time expression that cannot be read."""
    if re.search(r"(Z|[+-][0-9]{2}:?[0-9]{2})$", inside) and "T" in inside:
        return "The zone is set beside the expression (tz=...), not in it."
    if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", inside):
        return f"The time of day is missing: at({inside}T00:00:00) is midnight."
    if re.fullmatch(r"[0-9-]{10}T[0-9]{2}:[0-9]{2}", inside):
        return f"The seconds are missing: at({inside}:00)."
    if "." in inside:
        return "Fractions of a second cannot be set."
    if re.fullmatch(r"[0-9-]{10} [0-9:]{8}", inside):
        return f"A T stands between date and time: at({inside.replace(' ', 'T')})."
    return ""
