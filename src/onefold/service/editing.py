"""Changing a dead letter's payload where it lies, so that it can be sent back and run.

The result is checked against the job's payload type where its app is known. It carries the fingerprint of the payload it
replaces (`onefold.amends`), so that the guard accepts it in place of the first one instead of calling it a conflict; a
payload that names another operation than before is refused unless that is said to be meant.
Never here: finding messages. Invariant: an edit that is refused changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.contracts.admin import Edit, Peeked
from onefold.contracts.ledger import Row
from onefold.contracts.queue import AMENDS_ATTRIBUTE, CLAIMS, Attribute
from onefold.service import groups, payloads, reading
from onefold.service.desk import Desk
from onefold.service.reading import Forecast, Reading


class Edited(Struct, frozen=True, kw_only=True):
    """What an edit changed, or would change.

    Args:
        message_id: the same as before.
        changed: top-level fields that differ; `(all)` where the body is no JSON object.
        key_before, key_after: the business key; None where it cannot be told.
        amends: fingerprint of the payload it replaces, which the guard will accept it for; None where nothing is recorded.
        forecast: what a redrive would do now.
        redrive: the command that sends it back, or what has to be done before.
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
    desk: Desk,
    message: Peeked,
    *,
    body: str | None = None,
    assignments: Sequence[str] = (),
    new_key: bool = False,
    dry_run: bool = False,
    reason_text: str | None = None,
) -> Edited:
    """Change a dead letter's payload where it lies.

    Args:
        message: from `dead_letters.one_of`.
        body: the new body; None keeps it.
        assignments: `field=JSON` or `field.inner=JSON`, applied to the body; what is no JSON is taken as text.
        new_key: allow a payload that names another operation than before.
        dry_run: only say what would change.
        reason_text: why, for the ledger.

    Raises:
        PayloadError: the result does not fit the job's type; nothing was changed.
        UsageError: nothing to change, another key without `new_key`, an assignment that fits nowhere; on SQS, a message
            with others of its FIFO group behind it.
        TransientError: the message is gone, or somebody holds it.
    """
    text = payloads.assigned(body if body is not None else message.body, assignments)
    changed = payloads.changed_fields(message.body, text)
    if not changed:
        raise errors.UsageError(
            f"The edit of {message.message_id} changes nothing.",
            todo="Give --set field=value or another body.",
        )
    before = reading.read(desk, message)
    dropped = (AMENDS_ATTRIBUTE,) if message.trusted else CLAIMS  # an edit vouches for all that it leaves
    attributes = {name: one for name, one in message.attributes.items() if name not in dropped}
    message = replace(message, trusted=True)
    after = reading.read(desk, reading.as_if(message, text, attributes))
    if after.fate == "malformed":
        raise errors.PayloadError(
            f"The changed payload of {message.message_id} cannot be used: {after.problem}",
            meaning="Nothing was changed.",
            todo="Correct the edit; `onefold dlq show` prints the payload as it is.",
        )
    job = desk.job(after.job)
    if job is not None:
        payloads.check_fields(job, text, message.body)
    _check_key(message, before, after, allowed=new_key)
    record = reading.record_of(desk, after)
    amends = None
    if record is not None and record.status != "completed" and not after.is_of(record.fingerprint):
        amends = record.fingerprint
        attributes[AMENDS_ATTRIBUTE] = Attribute(amends)
    final = reading.read(desk, reading.as_if(message, text, attributes))
    if not dry_run:
        _check_place(desk, message)
        row = desk.row(
            "edit", key=after.key, message=message, changed=", ".join(changed), amends=amends, reason_text=reason_text
        )
        desk.together(lambda: _write(desk, message, Edit(body=text, attributes=attributes), row))
    return Edited(
        message_id=message.message_id,
        changed=changed,
        key_before=before.key.key if before.key is not None else None,
        key_after=after.key.key if after.key is not None else None,
        amends=amends,
        forecast=reading.foresee(desk, final, record),
        redrive=groups.ways_back(desk)(message),
        written=not dry_run,
    )


def _check_place(desk: Desk, message: Peeked) -> None:
    """Refuse an edit that would take a message out of its place in a FIFO group: where it is a copy, sent to the end."""
    if desk.engine.commit is not None or message.group is None or message.sequence is None:
        return
    others = desk.engine.queues.of_group(message.queue, message.group)
    if others[-1:] and others[-1].message_id != message.message_id:
        raise errors.UsageError(
            f"Message {message.message_id} has others of its group {message.group!r} behind it in {message.queue}.",
            meaning="On SQS an edit is a new message at the queue's end, so that the group's order would be lost. "
            "Nothing was changed.",
            todo="Delete it with `onefold dlq purge`, redrive the group with --idle, and send the corrected message.",
        )


def _write(desk: Desk, message: Peeked, change: Edit, row: Row) -> None:
    if not desk.engine.queues.edit(message.message_id, change):
        raise errors.TransientError(
            f"Message {message.message_id} is gone or held by a consumer.",
            todo="Look again: `onefold dlq list --all`.",
        )
    desk.engine.ledger.append([row])


def _check_key(message: Peeked, before: Reading, after: Reading, *, allowed: bool) -> None:
    if before.key is None or after.key is None or before.key == after.key or allowed:
        return
    raise errors.UsageError(
        f"The edit of {message.message_id} changes its key from {before.key.key!r} to {after.key.key!r}.",
        meaning="It would be a different operation; the record of the old key would not apply. Nothing was changed.",
        todo="If that is meant, say --new-key.",
    )
