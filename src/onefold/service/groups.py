"""Stopped message groups of FIFO queues: which there are, and starting them again in order.

A group stops when one of its messages is dead-lettered or held (after_failure=stop). While its flag stands in State every
message of it that a worker receives follows to the dead-letter queue, so that the order is kept there. Starting it again:

    1. wait until no worker holds a message of it
    2. take its flag away, and at once, in one transaction, send all of it to the queue's end: first what lies in the
       dead-letter queue, then what waited in the queue
    3. look again: what a worker had received just before step 2 followed to the dead-letter queue; it goes to the end too

Between the two halves of step 2 lies one commit, some milliseconds: a message of the group that is sent and received in just
that time runs before the older ones. With the halves the other way round a busy worker would bury the first of them again.
Never here: choosing which groups. Invariant: what lay in the dead-letter queue keeps its order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

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


def start_again(
    desk: Desk, queue: str, groups: Collection[str], first: Iterable[str] = ()
) -> dict[str, Moved]:
    """Send all dead letters of some groups back, in order and before what waits, and let the groups go on.

    Args:
        queue: the FIFO queue the groups belong to.
        groups: their names.
        first: ids of messages that lie elsewhere (in the held queue) and go before all others of their group.

    Returns:
        By old message id, where each message went; what waited in the queue and had to go behind them is included.

    Raises:
        TransientError: a worker kept holding messages of a group; nothing was changed.
    """
    wanted = dict.fromkeys(groups)
    ahead: dict[str, list[Peeked]] = defaultdict(list)
    for one in desk.engine.queues.find(list(first)):
        if one is not None and one.group in wanted:
            ahead[one.group].append(one)
    dead_letter = desk.settings()[queue].dead_letter
    for _ in range(_LOOKS):
        dead = _of_groups(desk, dead_letter, wanted, source=queue)
        here = _of_groups(desk, queue, wanted)
        if not any(one.state == "in_flight" for messages in here.values() for one in messages):
            break
        desk.clock.wait(desk.never, _PAUSE_MS)
    else:
        raise errors.TransientError(
            f"A worker holds messages of {', '.join(sorted(wanted))} on {queue}, for {_LOOKS * _PAUSE_MS // 1000} s now.",
            meaning="A group can be started again only while none of it is being worked on. Nothing was changed.",
            todo="Run it again in a moment.",
        )
    flags = _lower(desk, queue, wanted)
    try:
        went = _to_the_end(
            desk, queue, [one for name in wanted for one in (*ahead[name], *dead[name], *here[name])]
        )
    except BaseException:
        desk.engine.state.put(flags)
        raise
    late = _of_groups(desk, dead_letter, wanted, source=queue)
    late_ones = [
        one for name in wanted for one in late[name] if one.reason and one.reason.kind == "group-stopped"
    ]
    return went | _to_the_end(desk, queue, late_ones)


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


def _lower(desk: Desk, queue: str, groups: Iterable[str]) -> list[Change]:
    """Take the flags away; the changes that would put them back."""
    names = [group_flag(queue, group) for group in groups]
    standing = [
        (name, value)
        for name, value in zip(names, desk.engine.state.get(names), strict=True)
        if value is not None
    ]
    desk.engine.state.put([Change(name, None, value.version) for name, value in standing])
    return [Change(name, value.value, 0) for name, value in standing]


def _to_the_end(desk: Desk, queue: str, messages: Iterable[Peeked]) -> dict[str, Moved]:
    ids = [message.message_id for message in messages]
    answers = desk.engine.queues.move([(message_id, queue, None) for message_id in ids]) if ids else []
    return {old: moved for old, moved in zip(ids, answers, strict=True) if moved is not None}
