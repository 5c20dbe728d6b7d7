"""Changing a payload by hand: `field=value` assignments on JSON, and editing a dead letter in its queue.

An edited dead letter is checked against the job's payload type where its app is known. It carries the fingerprint of the
payload it replaces (`onefold.amends`), so that the guard accepts it in place of the first one instead of calling it a
conflict; a payload that names another operation than before is refused unless the caller confirms it.
Numbers keep the digits they were written with. Never here: finding messages.
Invariants: an edit that is refused changes nothing; fields that no assignment names keep their meaning.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import codec, errors, payload_errors
from onefold.admin import groups, reading
from onefold.admin.reading import Forecast, Reading
from onefold.admin.session import AdminSession
from onefold.contracts.admin import Edit, Peeked
from onefold.contracts.ledger import Row
from onefold.contracts.queue import AMENDS_ATTRIBUTE, CLAIMS, Attribute

if TYPE_CHECKING:
    from onefold.runner.handlers import Job


_DECODER: Final = msgspec.json.Decoder(float_hook=codec.decimal)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def assigned(text: str, assignments: Sequence[str]) -> str:
    """The JSON text with assignments applied in order; the unchanged text if there are none.

    Args:
        assignments: `field=JSON`, `outer.inner=JSON`, `items.0.count=JSON`; a value that is not JSON is taken as text, so
            `city=London` works and `zip="01234"` keeps its zero. If the last field of a path is missing, it is added.

    Raises:
        UsageError: no `=`, the text is not a JSON object, or a step of the path leads nowhere.
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
                todo="Name a field that is there; `onefold dlq show ID` prints the payload.",
            )


def check_fields(
    job: Job[Any, Any], text: str, before: str | None = None, *, so_far: str = "Nothing was changed."
) -> None:
    """Refuse a field that a person has written but the job's payload type does not have: reading would ignore it.

    Args:
        text: the payload, which otherwise fits the type. before: the payload whose own fields are not checked.
        so_far: for the error: what has not been done.

    Raises:
        PayloadError: there is such a field; names the field that was probably meant.
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
                meaning=f"It has {', '.join(names) or 'none'}. {so_far}",
                todo=f"Did you mean {near[0]}?" if near else "Name one of its fields.",
            )


def changed_fields(before: str, after: str) -> tuple[str, ...]:
    """The top-level fields in which two JSON objects differ; `(all)` if they differ and one is not an object."""
    try:
        old, new = _DECODER.decode(before), _DECODER.decode(after)
    except (ValueError, RecursionError):
        return () if before == after else ("(all)",)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return () if old == new else ("(all)",)
    names = dict.fromkeys((*old, *new))
    return tuple(name for name in names if (name in old, old.get(name)) != (name in new, new.get(name)))


class Edited(Struct, frozen=True, kw_only=True):
    """What an edit changed, or would change.

    Args:
        message_id: the same as before.
        changed: fields that differ; for a whole body its top-level fields; `(all)` if it is not a JSON object.
        key_before, key_after: the business key; None if it is not known.
        amends: fingerprint of the payload that the guard will let it replace; None if nothing is recorded.
        forecast: what a redrive would do now.
        redrive: the command that sends it back, or what has to be done first.
        written: False in a dry run.
    """

    message_id: str
    changed: tuple[str, ...]
    key_before: str | None
    key_after: str | None
    amends: str | None
    forecast: Forecast
    redrive: str
    written: bool


def edit(
    session: AdminSession,
    message: Peeked,
    *,
    body: str | None = None,
    assignments: Sequence[str] = (),
    new_key: bool = False,
    dry_run: bool = False,
    reason_text: str | None = None,
) -> Edited:
    """Change a dead letter's payload in its queue.

    Args:
        message: from `dead_letters.one_of`.
        body: the new body; None keeps it.
        assignments: `field=JSON` or `field.inner=JSON`, applied to the body; what is not JSON is taken as text.
        new_key: allow a payload that names a different operation than before.
        dry_run: only report what would change.
        reason_text: why, for the ledger.

    Raises:
        PayloadError: the result does not fit the job's type; nothing was changed.
        UsageError: nothing to change, another key without `new_key` or of a `unique` job, an assignment to a field that
            does not exist; on SQS, a message with others of its FIFO group behind it.
        TransientError: the message is gone, or somebody holds it.
    """
    text = assigned(body if body is not None else message.body, assignments)
    changed = changed_fields(message.body, text)
    if not changed:
        raise errors.UsageError(
            f"The edit of {message.message_id} changes nothing.",
            todo="Give --set field=value or another body.",
        )
    named = (assignment.partition("=")[0] for assignment in assignments)
    changed = (body is None and tuple(name for name in named if name.partition(".")[0] in changed)) or changed
    before = reading.read(session, message)
    dropped = (AMENDS_ATTRIBUTE,) if message.trusted else CLAIMS  # an edit makes the attributes that it keeps trusted
    attributes = {name: one for name, one in message.attributes.items() if name not in dropped}
    message = replace(message, trusted=True)
    after = reading.read(session, reading.as_if(message, text, attributes))
    if after.outcome == "malformed":
        raise errors.PayloadError(
            f"The changed payload of {message.message_id} cannot be used: {after.problem}",
            meaning="Nothing was changed.",
            todo=f"Correct the edit; `onefold dlq show {message.message_id}` prints the payload unchanged.",
        )
    job = session.job(after.job)
    if job is not None:
        check_fields(job, text, message.body)
    _check_key(message, before, after, allowed=new_key, unique=job is not None and job.unique)
    record = reading.record_of(session, after)
    amends = None
    if record is not None and record.status != "completed" and not after.is_of(record.fingerprint):
        amends = record.fingerprint
        attributes[AMENDS_ATTRIBUTE] = Attribute(amends)
    final = reading.read(session, reading.as_if(message, text, attributes))
    if not dry_run:
        _check_editable(session, message)
        moved = before.key is not None and after.key is not None and before.key != after.key
        old_key = before.key.key if moved and before.key is not None else None
        change = Edit(
            body=text,
            attributes=attributes,
            key=after.key.key if after.key is not None and after.key != before.key else None,
        )
        rows = [
            session.row(
                "edit", key=after.key, message=message, changed=", ".join(changed), amends=amends, old_key=old_key,
                reason_text=reason_text,
            )
        ]  # fmt: skip
        if moved and after.key is not None:
            row = session.row("edit", key=before.key, message=message, new_key=after.key.key, reason_text=reason_text)
            rows.append(row)
        session.together(lambda: _write(session, message, change, rows))
    return Edited(
        message_id=message.message_id,
        changed=changed,
        key_before=before.key.key if before.key is not None else message.key,
        key_after=after.key.key if after.key is not None else None,
        amends=amends,
        forecast=reading.foresee(session, final, record),
        redrive=groups.ways_back(session)(message),
        written=not dry_run,
    )


def _check_editable(session: AdminSession, message: Peeked) -> None:
    """Refuse an edit that would move a message to the end of its FIFO group, because the edit is a copy."""
    if session.engine.commit is not None or message.group is None or message.sequence is None:
        return
    others = session.engine.queues.of_group(message.queue, message.group)
    if others[-1:] and others[-1].message_id != message.message_id:
        raise errors.UsageError(
            f"Message {message.message_id} has others of its group {message.group!r} behind it in {message.queue}.",
            meaning="On SQS an edit is a new message at the queue's end, so the group's order would be lost. "
            "Nothing was changed.",
            todo="Delete it with `onefold dlq purge`, redrive the group with --idle, and send the corrected message.",
        )


def _write(session: AdminSession, message: Peeked, change: Edit, rows: Sequence[Row]) -> None:
    if reading.unchanged(session, [message]) != [True] or not session.engine.queues.edit(message.message_id, change):
        raise errors.TransientError(
            f"Message {message.message_id} is gone, was changed meanwhile, or is held by a consumer.",
            meaning="Nothing was changed.",
            todo="Look again: `onefold dlq list --all`.",
        )
    session.engine.ledger.append(rows)


def _check_key(message: Peeked, before: Reading, after: Reading, *, allowed: bool, unique: bool) -> None:
    if before.key is None or after.key is None or before.key == after.key or (allowed and not unique):
        return
    if allowed:
        raise errors.UsageError(
            f"The edit of {message.message_id} gives another key to a message of {after.key.job}, which is unique.",
            meaning=f"{before.key.key!r} would stay taken without a message, and {after.key.key!r} would not be taken."
            " Nothing was changed.",
            todo="Send the corrected payload as a new message, and delete this one: `onefold dlq purge`.",
        )
    raise errors.UsageError(
        f"The edit of {message.message_id} changes its key from {before.key.key!r} to {after.key.key!r}.",
        meaning="It would be a different operation; the record of the old key would not apply. Nothing was changed.",
        todo="If this is intended, add --new-key.",
    )
