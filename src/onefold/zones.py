"""Time zones: converts the local time of a zone to instants, and finds where its clocks jump.

All rules come from the IANA database through `zoneinfo`. Instants are whole seconds since 1970.
Never here: schedules, the machine's own zone. Invariant: a local time that occurs twice means its first occurrence.
Private: may change with any release.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, date, datetime, timezone, tzinfo
from functools import cache
from typing import Final

from onefold.errors import UsageError

ZONE_CHARS_MAX: Final = 50  # CreateSchedule, ScheduleExpressionTimezone: 1 to 50
_ABBREVIATION_CHARS_MAX: Final = 5  # AEST, CEST, MSK
_OFFSET: Final = re.compile(r"(?:GMT|UTC)? ?([+-])0?([1-9]|1[0-4])(:?00|:?30|:?45)?", re.IGNORECASE)
_NOT_IANA: Final = ("posix", "right/", "localtime")  # files in the database's folder that are not zones of its own
DAY_S: Final = 86_400
EPOCH_DAY: Final = date(1970, 1, 1).toordinal()


def zone_name(zone: object) -> str:
    """The IANA name of a zone that was given as a name, a ZoneInfo, or datetime.UTC.

    Raises:
        UsageError: the value is something else: a fixed offset, a zone made from a file, another object.
    """
    if isinstance(zone, str):
        return zone
    if zone is UTC:
        return "UTC"
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key:
        return zone.key
    kind = " is a time zone without an IANA name" if isinstance(zone, tzinfo) else " is not a time zone"
    raise UsageError(
        f"tz={zone!r:.80}{kind}.",
        meaning="A fixed offset follows no clock changes." if isinstance(zone, timezone) else "",
        todo='Give its IANA name, for example tz="Europe/London", or a zoneinfo.ZoneInfo.',
    )


@cache
def zone_of(name: str) -> tzinfo:
    """The time zone of an IANA name; "UTC" needs no database.

    Raises:
        UsageError: there is none of that name; the error proposes a similar one, or says that this machine has no
            zones.
    """
    if name == "UTC":
        return UTC
    if 1 <= len(name) <= ZONE_CHARS_MAX and not name.startswith(_NOT_IANA):
        with suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            return zoneinfo.ZoneInfo(name)
    raise _no_zone(name)


def _no_zone(name: str) -> UsageError:
    there = {zone for zone in zoneinfo.available_timezones() if not zone.startswith(_NOT_IANA)}
    if not there:
        meaning, todo = "This machine has no time zone database.", "Install one: pip install tzdata."
    else:
        offset = _OFFSET.fullmatch(name.strip())
        if offset is not None:
            return _no_offset(name, offset, there)
        lower = {zone.lower(): zone for zone in there}
        cities = {zone.lower().rpartition("/")[2]: zone for zone in sorted(there, reverse=True)}
        word = name.strip().lower().replace(" ", "_")
        near = difflib.get_close_matches(word, [*lower, *cities], n=1, cutoff=0.7)
        if word != name.strip() and name.strip().isupper() and len(word) <= _ABBREVIATION_CHARS_MAX:
            near = []  # otherwise the most similar name may be on another continent
        meant = (lower.get(near[0]) or cities[near[0]]) if near else ""
        meaning = f"Did you mean {meant}?" if meant else ""
        todo = "Name it as the IANA database does, for example Europe/London; abbreviations such as BST are not zones."
    return UsageError(f"There is no time zone {name!r}.", meaning=meaning, todo=todo)


def _no_offset(name: str, offset: re.Match[str], there: Collection[str]) -> UsageError:
    """The error for a name like "GMT+1": zones such as Etc/GMT+1 have POSIX's sign, so the similar name is opposite."""
    sign, hours, minutes = offset.groups()
    fixed = f"Etc/GMT{'-' if sign == '+' else '+'}{hours}"
    is_there = fixed in there and (minutes or "00").endswith("00")
    ahead = f"{hours} h {'ahead of' if sign == '+' else 'behind'} UTC"
    return UsageError(
        f"There is no time zone {name!r}.",
        meaning=f"{fixed} is {ahead}: the sign in these names is reversed." if is_there else "",
        todo="Name a place, for example Europe/Berlin, to follow its clock changes too; that is usually what is meant.",
    )


def instant_s(zone: tzinfo, local: tuple[int, int, int, int, int, int], *, at_jump: bool) -> int | None:
    """The instant of a zone's local time, in seconds since 1970; the first one if the time occurs twice.

    Args:
        zone: from `zone_of`. local: year, month, day, hour, minute, second; a date that exists.
        at_jump: whether a time that the clocks skip means the instant of the jump; otherwise the result is None.
    """
    year, month, day, hour, minute, second = local
    plain = (date(year, month, day).toordinal() - EPOCH_DAY) * DAY_S + hour * 3_600 + minute * 60 + second
    if zone is UTC:
        return plain
    wall = datetime(year, month, day, hour, minute, second, tzinfo=zone)
    before, after = _offset_s(wall), _offset_s(wall.replace(fold=1))
    if after <= before:
        return plain - before
    return jump_s(zone, plain - after, plain - before) if at_jump else None


def _offset_s(wall: datetime) -> int:
    offset = wall.utcoffset()
    assert offset is not None
    return offset.days * DAY_S + offset.seconds


def offset_at_s(zone: tzinfo, at_s: int) -> int:
    """How many seconds the zone's clocks are ahead of UTC at an instant."""
    return _offset_s(datetime.fromtimestamp(at_s, zone))


def jump_s(zone: tzinfo, before_s: int, after_s: int) -> int:
    """The instant at which the zone's offset changes, after `before_s` and no later than `after_s`."""
    old = offset_at_s(zone, before_s)
    while after_s - before_s > 1:
        middle = (before_s + after_s) // 2
        if offset_at_s(zone, middle) == old:
            before_s = middle
        else:
            after_s = middle
    return after_s
