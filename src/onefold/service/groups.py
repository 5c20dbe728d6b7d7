"""Stopped message groups of FIFO queues: which there are, and starting them again in order.

A group stops when one of its messages is dead-lettered or held (after_failure=stop): a flag in State names that message.
While it stands, every other message of the group that a worker receives follows to the dead-letter queue, so that the order
is kept there; the one it names is run, and when that is done the flag goes with its settlement. Starting a group again:

    1. wait until no worker holds a message of it
    2. in one transaction, send all of it to the queue's end: what is dead, then what waited in the queue
    3. let the flag name the first of them
    4. look again: if a worker received the first of them between 2 and 3, it followed to the dead-letter queue: from 1
       again; what else came in between and followed goes to the end as well

A crash in between leaves the group stopped and in order. Never here: choosing which groups.
Invariant: while something of a group is in the dead-letter queue its flag stands, so nothing newer overtakes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from onefold import errors
from onefold.contracts.admin import Moved, Peeked
from onefold.contracts.state import Change
from onefold.run.finishing import group_flag
from onefold.service.desk import Desk

_LOOKS = 40  # for a worker to let go of a group: 10 s in all
_PAUSE_MS = 250


class Stopped(Struct, frozen=True, kw_only=True):
    """A stopped group.

    Args:
        queue, group: which.
        by: id of the message that stopped it.
    """

    queue: str
    group: str
    by: str


def stopped(desk: Desk, queue: str | None = None) -> list[Stopped]:
    """The stopped groups of one queue, or of all."""
    names = desk.engine.state.names(group_flag(queue, "") if queue is not None else "stopped/")
    found = []
    for name, value in zip(names, desk.engine.state.get(names), strict=True):
        _, source, group = name.split("/", 2)
        if value is not None:
            found.append(Stopped(queue=source, group=group, by=value.value.decode()))
    return found


def start_again(desk: Desk, queue: str, group: str, first: Sequence[str] = ()) -> dict[str, Moved]:
    """Send all dead letters of a stopped group back, in order and before what waits, and let the group go on.

    Args:
        queue: the FIFO queue the group belongs to.
        group: its name.
        first: ids of messages that lie elsewhere (in the held queue) and go before all others.

    Returns:
        By old message id, where each message went; what waited in the queue and had to go behind them is included.

    Raises:
        TransientError: workers kept receiving messages of the group; it is still stopped, and in order.
    """
    dead_letter = desk.settings()[queue].dead_letter
    order = list(first)
    went: dict[str, Moved] = {}
    for _ in range(_LOOKS):
        flag = desk.engine.state.get([group_flag(queue, group)])[0]
        dead = _of_groups(desk, dead_letter, [group], source=queue)[group]
        here = _of_groups(desk, queue, [group])[group]
        if any(one.state == "in_flight" for one in here):
            desk.clock.wait(desk.never, _PAUSE_MS)
            continue
        order += [one.message_id for one in (*dead, *here) if one.message_id not in order]
        order = _to_the_end(desk, queue, order, went)
        if flag is not None:
            named = order[0].encode() if order else None
            desk.engine.state.put([Change(group_flag(queue, group), named, flag.version)])
        if not order or not _followed(desk, order[0], queue):
            break
    else:
        raise errors.TransientError(
            f"Workers kept receiving messages of group {group!r} of {queue} for {_LOOKS * _PAUSE_MS // 1000} s.",
            meaning="It could not be started again. It is still stopped, and its order is kept.",
            todo="Run it again in a moment.",
        )
    dead = _of_groups(desk, dead_letter, [group], source=queue)[group]
    late = [one.message_id for one in dead if one.message_id not in order and _is_follower(one)]
    _to_the_end(desk, queue, late, went)
    return went


def _followed(desk: Desk, message_id: str, queue: str) -> bool:
    """Whether a message that was to be run was taken by a worker too early, and followed to the dead-letter queue."""
    for patient in (True, False):
        found = desk.engine.queues.find([message_id])[0]
        if found is not None and found.queue == queue and found.state == "in_flight" and patient:
            desk.clock.wait(desk.never, _PAUSE_MS)  # it runs, or is about to be buried
            continue
        return found is not None and found.queue != queue and _is_follower(found)
    return False


def _is_follower(message: Peeked) -> bool:
    return message.reason is not None and message.reason.kind == "group-stopped"


def let_go_of_empty(desk: Desk, queue: str) -> list[str]:
    """Let stopped groups of a queue go on of which nothing is left in the dead-letter or held queue; their names."""
    standing = stopped(desk, queue)
    if not standing:
        return []
    settings = desk.settings()[queue]
    names = [one.group for one in standing]
    left = {
        **_of_groups(desk, settings.dead_letter, names, source=queue),
        **_of_groups(desk, settings.held, names, source=queue),
    }
    free = [name for name in names if name not in left]
    _lower(desk, queue, free)
    return free


def dead_letters(desk: Desk, queues: Iterable[str]) -> dict[tuple[str, str], list[Peeked]]:
    """The dead letters of FIFO queues by queue and group, in each group's order."""
    settings = desk.settings()
    found: dict[tuple[str, str], list[Peeked]] = defaultdict(list)
    for queue in queues:
        dead_letter = settings[queue].dead_letter
        for message in desk.every(dead_letter) if dead_letter is not None else ():
            if message.source == queue and message.group is not None:
                found[queue, message.group].append(message)
    for messages in found.values():
        messages.sort(key=lambda message: message.sequence or "")
    return found


def _of_groups(
    desk: Desk, queue: str | None, groups: Collection[str], source: str | None = None
) -> dict[str, list[Peeked]]:
    """The messages of some groups in a queue, by group, in the group's order; those not yet due are not in it."""
    found: dict[str, list[Peeked]] = defaultdict(list)
    now_ms = desk.now_ms()
    for message in desk.every(queue) if queue is not None else ():
        if message.group is None or message.group not in groups or message.sent_at_ms > now_ms:
            continue
        if source in (None, message.source):
            found[message.group].append(message)
    for messages in found.values():
        messages.sort(key=lambda message: message.sequence or "")
    return found


def _lower(desk: Desk, queue: str, groups: Iterable[str]) -> None:
    """Take the flags away."""
    names = [group_flag(queue, group) for group in groups]
    standing = zip(names, desk.engine.state.get(names), strict=True)
    desk.engine.state.put([Change(name, None, value.version) for name, value in standing if value is not None])


def _to_the_end(desk: Desk, queue: str, order: Sequence[str], went: dict[str, Moved]) -> list[str]:
    """Send messages to the end of a queue, in this order; their new ids. Notes in `went` where each one went at last."""
    answers = desk.engine.queues.move([(message_id, queue, None) for message_id in order]) if order else []
    first_ids = {moved.new_message_id: message_id for message_id, moved in went.items()}
    for message_id, moved in zip(order, answers, strict=True):
        if moved is not None:
            went[first_ids.get(message_id, message_id)] = moved
    return [moved.new_message_id for moved in answers if moved is not None]
