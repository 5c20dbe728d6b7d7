"""Payload texts as people change them: `field=value` assignments on JSON, and which fields differ.

Numbers keep the digits they were written with. Never here: types of payloads (the job's codec checks those), messages.
Invariant: a part of the text that no assignment names means the same afterwards.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onefold import errors, payload_errors

if TYPE_CHECKING:
    from onefold.run.handlers import Job

_DECODER: Final = msgspec.json.Decoder(float_hook=Decimal)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def assigned(text: str, assignments: Sequence[str]) -> str:
    """The JSON text with assignments applied in order; the very text when there are none.

    Args:
        assignments: `field=JSON`, `outer.inner=JSON`, `items.0.count=JSON`; a value that is no JSON is taken as text, so
            `city=London` works and `zip="01234"` keeps its zero. A missing last field is added.

    Raises:
        UsageError: no `=`, the text is no JSON object, or a step of the path leads nowhere.
    """
    if not assignments:
        return text
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise errors.UsageError(
            f"The body is not JSON, so single fields cannot be set: {error}.",
            todo="Give the whole body with --body.",
        ) from error
    for assignment in assignments:
        path, equals, given = assignment.partition("=")
        if not equals or not path:
            raise errors.UsageError(
                f"{assignment!r} is not of the form FIELD=VALUE.",
                todo="Write field=value, for example amount=12.50 or city=London.",
            )
        _put(value, path.split("."), _read(given), assignment)
    return _ENCODER.encode(value).decode()


def _read(given: str) -> Any:
    try:
        return _DECODER.decode(given)
    except (ValueError, RecursionError):
        return given


def _put(value: Any, steps: list[str], given: Any, assignment: str) -> None:
    for depth, step in enumerate(steps):
        last = depth == len(steps) - 1
        if isinstance(value, dict) and (last or step in value):
            if last:
                value[step] = given
            else:
                value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            if last:
                value[int(step)] = given
            else:
                value = value[int(step)]
        else:
            raise errors.UsageError(
                f"{assignment!r}: there is no {'.'.join(steps[: depth + 1])!r} in the payload.",
                meaning="Nothing was changed.",
                todo="`onefold dlq show` prints the payload as it is.",
            )


def check_fields(job: Job[Any, Any], text: str, before: str | None = None) -> None:
    """Refuse a field that a person has written and the job's payload type does not have: reading would pass over it.

    Args:
        text: the payload, which fits the type otherwise. before: fields that stood there already are left alone.

    Raises:
        PayloadError: there is one; names the field that was probably meant.
    """
    if job.rules.source != "json":
        return
    value, given = job.rules.payload.decode(text), msgspec.json.decode(text)
    known: set[tuple[str, str]] = set()
    if before is not None:
        with suppress(errors.PayloadError, ValueError, RecursionError):
            old = payload_errors.strange_fields(job.rules.payload.decode(before), msgspec.json.decode(before))
            known = {(path, name) for path, name, _ in old}
    for path, name, names in payload_errors.strange_fields(value, given):
        if (path, name) not in known:
            near = difflib.get_close_matches(name, names, n=1)
            raise errors.PayloadError(
                f"{job.rules.payload.name} has no field {f'{path}.{name}'.removeprefix('$.')}.",
                meaning=f"It has {', '.join(names) or 'none'}. Nothing was changed.",
                todo=f"Did you mean {near[0]}?" if near else "Name one of its fields.",
            )


def changed_fields(before: str, after: str) -> tuple[str, ...]:
    """The top-level fields in which two JSON objects differ; `(all)` where one of them is none and they differ."""
    try:
        old, new = _DECODER.decode(before), _DECODER.decode(after)
    except (ValueError, RecursionError):
        return () if before == after else ("(all)",)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return () if old == new else ("(all)",)
    names = dict.fromkeys((*old, *new))
    return tuple(name for name in names if (name in old, old.get(name)) != (name in new, new.get(name)))
