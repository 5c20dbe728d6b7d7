"""How queues, message groups and messages are stored in the file, and the statements that all operations share.

All functions take a connection and run inside the transaction that is open on it. Ids come from one counter of the file and
are never reused. A message id is the file's token followed by that number; a receipt is id, delivery number and, on FIFO
queues, the group.

Message groups follow SQS's observed behaviour: a group is read from its head, and delivery stops at the first message
that is not visible. So a group is open when its head is visible, and the receiver that holds the head holds the group.
Every operation that changes a head updates `ready_at_ms`, so that a receive costs the same with ten groups and with ten
thousand. Groups are served in the order in which they became ready; of groups that became ready together, the least
recently served is first.

Queues are looked up by name in a `Catalogue`, which caches them until a queue is changed: every change of settings
gives the file a new version token, so one short read shows whether the cache is valid, even if another process made the
change. Tokens are never reused, so that a change that was rolled back cannot be mistaken for a later one.

Never here: what an operation means, order, time, checking settings. Invariants: a message has a row in `message` and exactly
one in `waiting` or `received`; a group's `ready_at_ms` is never later than the instant at which one of its messages can be
received, and a group without messages has no row; a queue that was looked up is what the open transaction sees.
"""

from __future__ import annotations

import sqlite3
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.clock import NO_JUMPS, Jumps
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute, Reason, reason_of
from onefold.contracts.settings import QueueSettings
from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.filetime import longer_sql

if TYPE_CHECKING:
    from onefold.outside import Entropy


class QueueRow(Struct, frozen=True, kw_only=True):
    """One queue's row; valid inside the transaction that read it.

    Args:
        id: its number in the file.
        settings: its settings, as created or last changed.
        token: the prefix of this file's message ids.
        dead_letter, held: its dead-letter and held queues, whose own such queues are not filled in.
        flag_of: see `Engine.stop_groups`.
        is_stopped: returns whether the process that received a message is stopped (`processes.stopped_process`), given
            the process's id and the instant at which the message becomes visible.
        jumps: how the clock was set forward since its messages were sent.
        ahead_ms: as `SteadyClock.ahead_ms`.
    """

    id: int
    settings: QueueSettings
    token: str
    dead_letter: QueueRow | None = None
    held: QueueRow | None = None
    flag_of: Callable[[str, str, str | None], str | None] = lambda *_: None
    is_stopped: Callable[[str, int], bool] = lambda *_: False
    jumps: Jumps = NO_JUMPS
    ahead_ms: Callable[[], int] = lambda: 0

    def expired_at_ms(self, now_ms: int) -> int:
        """The latest instant such that messages sent at it or earlier have expired."""
        return self.jumps.expired_at_ms(now_ms, self.settings.retention_ms)


class MessageMeta(Struct, omit_defaults=True, gc=False):
    """The fields that few messages have.

    Args:
        attributes: name -> (type, text), where the bytes of a Binary are in base64.
        group: on a standard queue the tenant; on a FIFO queue the group of a scheduled message.
        trace: the trace header.
        source: the queue a dead letter came from.
        reason: why it was moved there.
        foreign: it was not sent by onefold, so its attributes are not trusted.
        accepted_at_ms: when a scheduled message was accepted (its `sent_at_ms` is when it is due); 0 for all other
            messages.
        run_at_ms: the instant of the wall clock before which a scheduled message must not be received; 0: it waits for
            a time that is counted (`Entry.wait_ms`), or a version before December 2026 has stored it.
        put_off_at_ms: when it was put off last, because the clock had been set (`waits.py`); 0: never.
    """

    attributes: dict[str, tuple[str, str]] = {}
    group: str | None = None
    trace: str | None = None
    source: str | None = None
    reason: Reason | None = None
    foreign: bool = False
    accepted_at_ms: int = 0
    run_at_ms: int = 0
    put_off_at_ms: int = 0


# A message to be stored: queue, id, sent_at_ms, visible_at_ms, grp, position, dedup_id, key, meta, body.
NewMessage = tuple[int, int, int, int, int | None, int | None, str | None, str | None, str | None, str]
Receipt = tuple[int, int, int | None]  # message, delivery, group


class Found(NamedTuple):
    """A message that can be received now.

    Args:
        id, sent_at_ms, key, meta, body, dedup_id, position: as in `message`.
        visible_at_ms: since when it can be received.
        receives, delivery, first_received_at_ms, received_at_ms: as in `received`; None if it was never received.
        grp, group: number and name of its group, on a FIFO queue.
    """

    id: int
    sent_at_ms: int
    key: str | None
    meta: str | None
    body: str
    visible_at_ms: int
    receives: int | None
    delivery: int | None
    first_received_at_ms: int | None
    received_at_ms: int | None
    grp: int | None = None
    group: str | None = None
    position: int | None = None
    dedup_id: str | None = None


_META_DECODER: Final = msgspec.json.Decoder(MessageMeta)
_META_ENCODER: Final = msgspec.json.Encoder()


def read_meta(text: str | None) -> MessageMeta:
    """The rare fields of a message."""
    if text is None:
        return MessageMeta()
    try:
        return _META_DECODER.decode(text)
    except msgspec.ValidationError:  # an unreadable reason is tolerated; anything else that cannot be read is an error
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        reason = reason_of(bytes(parts.pop("reason", b"null")))
        meta = _META_DECODER.decode(_META_ENCODER.encode(parts))
        meta.reason = reason
        return meta


def meta_text(meta: MessageMeta) -> str | None:
    """The rare fields as they are stored; None if there are none."""
    text = _META_ENCODER.encode(meta).decode()
    return None if text == "{}" else text


def entry_meta(entry: Entry, group: str | None, accepted_at_ms: int = 0, run_at_ms: int | None = None) -> str | None:
    """The fields of an entry that have no column."""
    if not entry.attributes and group is None and entry.trace is None and not accepted_at_ms:
        return None
    meta = MessageMeta(
        attributes=packed(entry.attributes),
        group=group,
        trace=entry.trace,
        foreign=not entry.trusted and bool(entry.attributes),
        accepted_at_ms=accepted_at_ms,
        run_at_ms=run_at_ms or 0,
    )
    return meta_text(meta)


def packed(attributes: Mapping[str, Attribute]) -> dict[str, tuple[str, str]]:
    """User attributes in a form that JSON can represent."""
    return {
        name: (
            attribute.type,
            attribute.value if isinstance(attribute.value, str) else b64encode(attribute.value).decode(),
        )
        for name, attribute in attributes.items()
    }


def unpacked(attributes: Mapping[str, tuple[str, str]]) -> dict[str, Attribute]:
    """User attributes as sent."""
    if not attributes:
        return {}
    return {
        name: Attribute(b64decode(text) if kind.startswith("Binary") else text, kind)
        for name, (kind, text) in attributes.items()
    }


# -- ids and receipts --------------------------------------------------------------------------------------


def draw_ids(connection: sqlite3.Connection, count: int) -> int:
    """Reserve `count` consecutive ids; returns the first. Two statements take a third of the time of one with RETURNING."""
    last: int = connection.execute("SELECT last_id FROM onefold_file WHERE one = 1").fetchone()[0]
    connection.execute("UPDATE onefold_file SET last_id = ? WHERE one = 1", (last + count,))
    return last + 1


def message_number(token: str, message_id: str) -> int | None:
    """The row number of a message id; None for an id that this file never assigned."""
    start, _, number = message_id.rpartition("-")
    return int(number) if start == token and number.isascii() and number.isdigit() and len(number) < 19 else None


def receipt_text(message: int, delivery: int, group: int | None) -> str:
    """The receipt of one receive."""
    return f"{message}:{delivery}" if group is None else f"{message}:{delivery}:{group}"


def read_receipts(receipts: Iterable[str], fifo: bool) -> list[Receipt]:
    """Parse receipts.

    Raises:
        UsageError: one of them did not come from a queue of this type (SQS: ReceiptHandleIsInvalid).
    """
    parts: list[Receipt] = []
    for receipt in receipts:
        try:
            if fifo:
                message, delivery, group = receipt.split(":")
                parts.append((int(message), int(delivery), int(group)))
            else:
                message, delivery = receipt.split(":")
                parts.append((int(message), int(delivery), None))
        except (ValueError, AttributeError) as error:
            raise errors.UsageError(
                f'The input receipt handle "{receipt}" is not a valid receipt handle.',
                meaning="Nothing was changed.",
                todo="Pass the receipt of a delivery as it came, to the queue that it came from.",
            ) from error
    return parts


def receipt_numbers(receipts: Iterable[str]) -> list[int]:
    """The row numbers of the receipts' messages, from queues of either type.

    Raises:
        UsageError: one of them did not come from a queue.
    """
    return [read_receipts([receipt], receipt.count(":") == 2)[0][0] for receipt in receipts]


def sequence_text(position: int | None) -> str | None:
    """A FIFO position as a sequence number: 20 digits, so that texts sort like numbers."""
    return None if position is None else f"{position:020d}"


_INSERT_MESSAGE: Final = (
    "INSERT INTO onefold_message (queue, id, sent_at_ms, visible_at_ms, grp, position, dedup_id, key, meta, body) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

_ROWS_MAX: Final = 50  # rows of one INSERT; each number of rows needs its own statement, which stays prepared

# -- rows --------------------------------------------------------------------------------------------------


def insert_alike(
    connection: sqlite3.Connection, at: tuple[int, int, int, int], rest: Sequence[tuple[str | None, str | None, str]]
) -> None:
    """Like `insert`, for messages of a standard queue with equal times; for ten messages it takes a third of the time.

    Args:
        at: queue, id of the first message (the others have the next ids), sent_at_ms, visible_at_ms.
        rest: key, meta and body of each.
    """
    queue, first, sent_at_ms, visible_at_ms = at
    is_plain = all(key is None and meta is None for key, meta, _ in rest)
    for start in range(0, len(rest), _ROWS_MAX):
        messages: list[int | str | None] = []
        waiting: list[int] = []
        for index in range(start, min(start + _ROWS_MAX, len(rest))):
            shared = (queue, first + index, sent_at_ms, visible_at_ms)
            waiting += shared
            messages += shared
            messages += rest[index][2:] if is_plain else rest[index]
        message, wait = _alike(len(waiting) // 4, is_plain)
        connection.execute(message, messages)
        connection.execute(wait, waiting)


@lru_cache(2 * _ROWS_MAX)
def _alike(count: int, is_plain: bool) -> tuple[str, str]:
    """Statements for this many rows. Each statement is one call of SQLite, which costs more than binding its values."""
    own = "body" if is_plain else "key, meta, body"
    values = "?, ?, ?, ?, ?" if is_plain else "?, ?, ?, ?, ?, ?, ?"
    messages, waiting = ", ".join([f"({values})"] * count), ", ".join(["(?, ?, ?, ?)"] * count)
    return (
        f"INSERT INTO onefold_message (queue, id, sent_at_ms, visible_at_ms, {own}) VALUES {messages}",
        f"INSERT INTO onefold_waiting (queue, id, sent_at_ms, visible_at_ms) VALUES {waiting}",
    )


def insert(connection: sqlite3.Connection, messages: Sequence[NewMessage]) -> None:
    """Put messages into their queues, to be received when they become visible."""
    connection.executemany(_INSERT_MESSAGE, messages)
    connection.executemany(
        "INSERT INTO onefold_waiting (queue, id, sent_at_ms, visible_at_ms) VALUES (?, ?, ?, ?)",
        [message[:4] for message in messages],
    )


def erase(connection: sqlite3.Connection, messages: Iterable[int]) -> None:
    """Delete messages wherever they are. The caller must update their groups."""
    ids = [(message,) for message in messages]
    connection.executemany("DELETE FROM onefold_received WHERE id = ?", ids)
    connection.executemany(
        "DELETE FROM onefold_waiting WHERE (queue, visible_at_ms, id) = "
        "(SELECT queue, visible_at_ms, id FROM onefold_message WHERE id = ?)",
        ids,
    )
    connection.executemany(
        "DELETE FROM onefold_scheduled WHERE (queue, due_at_ms, id) = "
        "(SELECT queue, sent_at_ms, id FROM onefold_message WHERE id = ?)",
        ids,
    )
    connection.executemany("DELETE FROM onefold_message WHERE id = ?", ids)


def ensure_groups_in(
    connection: sqlite3.Connection, queue: int, names: Mapping[str | None, int], ready_at_ms: int
) -> dict[str | None, int]:
    """The numbers of the named groups; missing groups are created. Existing ones keep their number and `ready_at_ms`.

    A group's number is the id of the message that it was created for. Ids are never reused, so the number in a receipt
    or message can never refer to another group.

    Args:
        names: each with the number it gets if it is created: the id, reserved in this transaction, of one of its
            messages.
    """
    found: dict[str | None, int] = {}
    for name, number in names.items():
        group = connection.execute(
            "SELECT id FROM onefold_group WHERE queue = ? AND name = ?", (queue, name)
        ).fetchone()
        if group is None:
            connection.execute(
                "INSERT INTO onefold_group (id, queue, name, ready_at_ms, rotation) VALUES (?, ?, ?, ?, 0)",
                (number, queue, name, ready_at_ms),
            )
        found[name] = number if group is None else group[0]
    return found


def group_members_in(connection: sqlite3.Connection, queue: int, name: str, limit: int | None) -> list[int]:
    """Numbers of a group's messages, starting at its head."""
    found = connection.execute(
        "SELECT id FROM onefold_message WHERE grp = (SELECT id FROM onefold_group WHERE queue = ? AND name = ?) "
        "ORDER BY position LIMIT ?",
        (queue, name, -1 if limit is None else limit),
    )
    return [number for (number,) in found]


def refresh_groups_in(connection: sqlite3.Connection, row: QueueRow, groups: Iterable[int], now_ms: int) -> None:
    """Recompute from its head when each group is ready; delete empty groups.

    A group that is open goes to the end of the rotation.
    """
    changed = [(now_ms, row.settings.retention_ms, group, group) for group in groups]
    longer = longer_sql(row.jumps, "m.sent_at_ms")
    connection.executemany(
        "UPDATE onefold_group SET ready_at_ms = ("
        f"SELECT max(?, min(coalesce(r.visible_at_ms, m.visible_at_ms), m.sent_at_ms + ?{longer})) "
        "FROM onefold_message m LEFT JOIN onefold_received r ON r.id = m.id "
        "WHERE m.grp = ? AND m.queue = onefold_group.queue ORDER BY m.position LIMIT 1) WHERE id = ?",
        changed,
    )
    connection.executemany(
        "DELETE FROM onefold_group WHERE id = ? AND ready_at_ms IS NULL", [(group,) for *_, group in changed]
    )


def lock_groups_in(
    connection: sqlite3.Connection, row: QueueRow, chosen: Sequence[Found], until_ms: int, turn: int
) -> None:
    """Close the groups of messages that are being received until their heads are visible again.

    Args:
        chosen: the result of `choose`.
        until_ms: when the messages are visible again.
        turn: 1 or more, growing with every receive; puts these groups at the end of the rotation.
    """
    heads: dict[int | None, int] = {}
    for found in chosen:
        heads.setdefault(found.grp, found.sent_at_ms)
    retention_ms = row.settings.retention_ms
    connection.executemany(
        "UPDATE onefold_group SET ready_at_ms = ?, rotation = ? WHERE id = ?",
        [
            (min(until_ms, sent_at_ms + retention_ms + row.jumps.longer_ms(sent_at_ms)), turn + index, group)
            for index, (group, sent_at_ms) in enumerate(heads.items())
        ],
    )


def check_groups_in(connection: sqlite3.Connection, queue: int, now_ms: int) -> None:
    """Make the next receive check every group: the queue's settings and so the times of the heads have changed."""
    connection.execute("UPDATE onefold_group SET ready_at_ms = min(ready_at_ms, ?) WHERE queue = ?", (now_ms, queue))


_NAMED_MAX: Final = 30  # how many queues an error names


class Catalogue:
    """The queues of one file. Safe to use from any thread, each inside its own transaction.

    Args:
        engine: the open file; its schema must be up to date.
        entropy: source of the file's token and versions.
        is_stopped: see `QueueRow`.
    """

    def __init__(
        self, engine: Database, entropy: Entropy, is_stopped: Callable[[str, int], bool] = lambda *_: False
    ) -> None:
        self._is_stopped = is_stopped
        self._clock = engine.clock
        self._entropy = entropy
        self._known: tuple[str, dict[str, QueueRow]] = ("", {})
        self._flag_of: Callable[[str, str, str | None], str | None] = lambda *_: None
        if engine.read(lambda connection: connection.execute("SELECT 1 FROM onefold_file").fetchone()) is None:
            engine.write(self._begin_file)

    def _begin_file(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            "INSERT OR IGNORE INTO onefold_file (one, token, last_id, settings_version) VALUES (1, ?, 0, ?)",
            (self._entropy.token(), self._entropy.token()),
        )

    def row_in(self, connection: sqlite3.Connection, name: str) -> QueueRow:
        """The queue with that name.

        Raises:
            NotFoundError: there is none; the error names the existing queues.
        """
        version, token = connection.execute("SELECT settings_version, token FROM onefold_file").fetchone()
        known = self._known
        if known[0] != version:
            known = self._known = (version, {})
        row = known[1].get(name)
        if row is None:
            found = _load(connection, name, token)
            row = known[1][name] = self._complete(found)
        return row

    def _complete(self, row: QueueRow) -> QueueRow:
        targets = {role: getattr(row, role) for role in ("dead_letter", "held")}
        jumps, ahead_ms = self._clock.jumps, self._clock.ahead_ms
        timed = {role: replace(one, jumps=jumps, ahead_ms=ahead_ms) for role, one in targets.items() if one is not None}
        return replace(row, flag_of=self._flag_of, is_stopped=self._is_stopped, jumps=jumps, ahead_ms=ahead_ms, **timed)

    def stop_groups(self, flag_of: Callable[[str, str, str | None], str | None]) -> None:
        """See `Engine.stop_groups`."""
        self._flag_of = flag_of
        self._known = ("", {})

    def known(self, name: str) -> QueueRow | None:
        """The queue as this process last read it; None if it never has."""
        return self._known[1].get(name)

    def row_of(self, connection: sqlite3.Connection, number: int) -> QueueRow:
        """The queue with that number in the file."""
        name = connection.execute("SELECT name FROM onefold_queue WHERE id = ?", (number,)).fetchone()[0]
        return self.row_in(connection, name)

    def token_in(self, connection: sqlite3.Connection) -> str:
        """The prefix of this file's message ids."""
        token: str = connection.execute("SELECT token FROM onefold_file").fetchone()[0]
        return token

    def changed_in(self, connection: sqlite3.Connection) -> None:
        """Mark that settings changed in this transaction."""
        connection.execute("UPDATE onefold_file SET settings_version = ?", (self._entropy.token(),))
        self._known = ("", {})


def names_in(connection: sqlite3.Connection, *, after: str = "", limit: int = -1) -> list[str]:
    """Names of queues, sorted: those after `after`, at most `limit` (-1: all)."""
    found = connection.execute("SELECT name FROM onefold_queue WHERE name > ? ORDER BY name LIMIT ?", (after, limit))
    return [name for (name,) in found]


def stored_in(connection: sqlite3.Connection) -> list[QueueSettings]:
    """All queues' settings, by name."""
    return [
        msgspec.json.decode(text, type=QueueSettings)
        for (text,) in connection.execute("SELECT settings FROM onefold_queue ORDER BY name")
    ]


def is_there(connection: sqlite3.Connection, name: str) -> bool:
    """Whether there is a queue of that name."""
    return connection.execute("SELECT 1 FROM onefold_queue WHERE name = ?", (name,)).fetchone() is not None


def _load(connection: sqlite3.Connection, name: str, token: str, *, alone: bool = False) -> QueueRow:
    found = connection.execute("SELECT id, settings FROM onefold_queue WHERE name = ?", (name,)).fetchone()
    if found is None:
        there = names_in(connection, limit=_NAMED_MAX + 1)
        named = ", ".join(there[:_NAMED_MAX]) + (", and more" if len(there) > _NAMED_MAX else "")
        raise errors.NotFoundError(
            f"There is no queue {name!r}.",
            meaning=f"The queues of this file are: {named}." if there else "This file has no queue.",
            todo="Check the name, or create the queue.",
        )
    settings = msgspec.json.decode(found[1], type=QueueSettings)
    targets: dict[str, QueueRow] = {}
    if not alone:
        for role in ("dead_letter", "held"):
            target = getattr(settings, role)
            if target is not None and is_there(connection, target):  # it may have been dropped
                targets[role] = _load(connection, target, token, alone=True)
    return QueueRow(
        id=found[0], settings=settings, token=token, dead_letter=targets.get("dead_letter"), held=targets.get("held")
    )
