"""Options that several commands share, and their value types: durations, rates, which operation is meant.

Parsing only. Never here: which dead letters are meant (`selection.py`).
Invariant: a value that cannot be parsed is a usage error that shows the expected form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from onefold import duration, errors, limits

F = TypeVar("F", bound=Callable[..., Any])

_RATE = re.compile(r"(\d+)(?:/(s|m|h))?")
_PER_MS = {"s": limits.SECOND_MS, "m": limits.MINUTE_MS, "h": limits.HOUR_MS}


class DurationType(click.ParamType[int]):
    """A duration with a unit, in milliseconds: `90s`, `2h30m`, `3d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        try:
            return duration.to_ms(value, "")
        except errors.UsageError as error:
            self.fail(f"{error.what.removeprefix('=')} {error.todo}", param, ctx)


class WholeType(click.IntRange):
    """A whole number within bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            bounds = f"of at least {self.min}" if self.max is None else f"from {self.min} to {self.max}"
            self.fail(f"{str(value)[:40]!r} is not a whole number {bounds}.", param, ctx)


class RateType(click.ParamType[int]):
    """A rate in messages per second, at least one: `10/s`, `300/m`, or a bare number for `/s`."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        found = _RATE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not a rate; write for example 10/s or 300/m.", param, ctx)
        per_second = int(found[1]) * limits.SECOND_MS / _PER_MS[found[2] or "s"]
        if not 1 <= per_second <= limits.MOVE_PER_SECOND_MAX:
            self.fail(f"{value!r} is out of range: 1 to {limits.MOVE_PER_SECOND_MAX} per second.", param, ctx)
        return int(per_second)


DURATION = DurationType()
RATE = RateType()


def reason_text(function: F) -> F:
    """Add --reason-text, stored with the operator's name."""
    text = "The reason; kept in the history with your name."
    return click.option("--reason-text", metavar="TEXT", help=text)(function)


def idle(function: F) -> F:
    """Add --idle, for stopped groups on SQS."""
    text = "Confirm that nobody sends to a stopped group's queue and no worker receives from it; SQS needs it to keep order."
    return click.option("--idle", is_flag=True, help=text)(function)


def operation(function: F) -> F:
    """Add --job and --tenant, for keys that several operations have."""
    function = click.option("--tenant", metavar="NAME", help="Only this tenant's.")(function)
    return click.option("--job", metavar="NAME", help="Only this job's.")(function)
