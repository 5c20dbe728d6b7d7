"""The steps of a story, drawn: the day where it changes, then time, event, what happened, and under it what decided.

A message is named where it is another one than in the step before. Never here: the story's words.
Invariant: times are the reader's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from onefold.cli import render
from onefold.cli.render import line
from onefold.observe.timeline import Line

_TEXT_COLUMN = 30


def draw(steps: Sequence[Line], message: str | None = None) -> None:
    """Print steps, oldest first.

    Args:
        message: the message that the reader has in mind already; the first step's unless given.
    """
    message = message or (steps[0].message_id if steps else None)
    day = ""
    for step in steps:
        if render.day(step.at_ms) != day:
            if day:
                line()
            day = render.day(step.at_ms)
            line(f"  {day}", "dim")
        hanging = " " * _TEXT_COLUMN
        _print(step.text, f"  {render.clock_time(step.at_ms)}  {step.event:<12}  ", hanging)
        about = _about(step, names_message=step.message_id not in (None, message))
        if about:
            _print(about, hanging, hanging, "dim")
        message = step.message_id or message


def _print(text: str, first: str, following: str, style: render.Style = "") -> None:
    """One line in a pipe; on a terminal as many as it needs, so that the column of times stays one."""
    if render.console().is_terminal:
        render.fold(text, first, following, style)
    else:
        line(f"{first}{text}", style)


def _about(step: Line, *, names_message: bool) -> str:
    about = []
    if names_message and step.message_id is not None and step.message_id not in step.text:
        about.append(f"message {step.message_id}")
    if step.actor is not None and step.actor.startswith("person:"):
        about.append(f"by {step.actor.removeprefix('person:')}")
    if step.rule:
        about.append(step.rule)
    return "; ".join(about)
