"""Replays: the events of an archive's time range go through the rules of their bus once more, marked with `replay-name`.

A replay is a value in State, `replay/<bus>/<name>`. Each step reads a page of events in order of their time, delivers it,
and advances the cursor, in one transaction; after a crash the replay continues from its cursor. Events that are put while a
replay runs are not part of it. Replayed events keep id, time and detail, so a job whose key is in the detail answers them
from its record; they are not archived again.
Never here: which rules match, the archive's storage. Invariant: each event of the range is delivered once per replay.

Sources: EventBridge user guide, "Archive and replay events"; API reference, StartReplay, DescribeReplay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.contracts.documents import change, decode
from onefold.contracts.state import Change, Versioned
from onefold.record.envelopes import replayed
from onefold.runtime.outgoing import transaction

if TYPE_CHECKING:
    from onefold.contracts.verbs import State
    from onefold.events.bus import Bus
    from onefold.runtime.runtime import Runtime

_NAME: Final = r"[.\-_A-Za-z0-9]{1,64}"  # API reference, StartReplay, ReplayName
_PREFIX: Final = "replay/"
PAGE: Final = 200  # events in one transaction


class Replay(Struct, frozen=True, kw_only=True):
    """The state of a replay.

    Args:
        bus, name: those of the replay. archive: what is replayed.
        from_ms, to_ms: events with from_ms <= time < to_ms, UTC.
        rules: only these; None: all that are enabled.
        state: `running` (also when no process is running it at the moment), `completed`, `cancelled`.
        last: events archived after this position are not part of it.
        cursor: time and position of the last event that was delivered; None before the first.
        replayed: events so far. delivered: messages sent for them.
        started_at_ms, ended_at_ms: wall time.
    """

    bus: str
    name: str
    archive: str
    from_ms: int
    to_ms: int
    rules: tuple[str, ...] | None
    last: int
    started_at_ms: int
    state: Literal["running", "completed", "cancelled"] = "running"
    cursor: tuple[int, int] | None = None
    replayed: int = 0
    delivered: int = 0
    ended_at_ms: int | None = None


_replay_of: Callable[[bytes], Replay | None] = msgspec.json.Decoder(Replay).decode


def begin(
    bus: Bus,
    runtime: Runtime,
    archive: str,
    from_ms: int,
    to_ms: int,
    *,
    name: str,
    rules: Sequence[str] | None = None,
) -> Replay:
    """Begin a replay, or find the one of that name to resume.

    Raises:
        NotFoundError: the bus has no archive or rule of that name.
        UsageError: an invalid name, or an end that is not after the start.
        ConflictError: a replay of this name has ended, or has another archive, range or rules.
    """
    if not re.fullmatch(_NAME, str(name)):
        raise errors.UsageError(
            f"{name!r:.80} is not a valid name for a replay.", todo="Use 1 to 64 of A-Z a-z 0-9 . - and _."
        )
    if to_ms <= from_ms:
        raise errors.UsageError("The replay would end before it starts.", todo="Give an end after the start.")
    if archive not in bus.archives:
        raise errors.NotFoundError(
            f"Bus {bus.name} has no archive {archive!r:.80}.",
            todo=f"It has {', '.join(bus.archives) or 'none; declare one with bus.archive(...)'}.",
        )
    unknown = [rule for rule in rules or () if rule not in bus.rules]
    if unknown:
        raise errors.NotFoundError(
            f"Bus {bus.name} has no rule {unknown[0]!r:.80}.", todo=f"It has {', '.join(bus.rules) or 'none'}."
        )
    wanted = Replay(
        bus=bus.name,
        name=name,
        archive=archive,
        from_ms=from_ms,
        to_ms=to_ms,
        rules=None if rules is None else tuple(rules),
        last=bus.archives_of(runtime).holdings(bus.archives[archive].place).position,
        started_at_ms=runtime.clock.now_ms(),
    )
    state = runtime.engine.state
    state.put([Change(_state_name(wanted), msgspec.json.encode(wanted), 0)])
    stored = _read(state, _state_name(wanted))
    if stored is None:
        raise errors.StorageBusy(f"Replay {name} was removed while it was being begun.", todo="Begin it again.")
    found = stored[0]
    same = ("archive", "from_ms", "to_ms", "rules")
    if any(getattr(found, field) != getattr(wanted, field) for field in same) or found.state != "running":
        raise errors.ConflictError(
            f"Replay {name} of bus {bus.name} exists: {found.state}, of archive {found.archive}.",
            meaning="It would be continued if it were still running, with the same archive, range and rules.",
            todo="Give this one another name.",
        )
    return found


def step(bus: Bus, runtime: Runtime, name: str) -> Replay:
    """Deliver one page of events; returns the replay's state afterwards. Call it until that is not `running`.

    Raises:
        NotFoundError: the replay does not exist, or its archive or a rule is not declared any more; nothing was delivered.
        StorageBusy: nothing was delivered.
    """

    def page() -> Replay:
        before, version = _of(runtime.engine.state, bus, name)
        if before.state != "running":
            return before
        after = _deliver(bus, runtime, before)
        if not runtime.engine.state.put([Change(_state_name(before), msgspec.json.encode(after), version)])[0]:
            raise errors.StorageBusy(f"Another process has changed replay {name} meanwhile.", todo="Try again.")
        return after

    return transaction(runtime.engine, page)


def _deliver(bus: Bus, runtime: Runtime, replay: Replay) -> Replay:
    archive = bus.archives.get(replay.archive)
    gone = (
        replay.archive if archive is None else next((one for one in replay.rules or () if one not in bus.rules), None)
    )
    if archive is None or gone is not None:
        raise errors.NotFoundError(
            f"{gone} of replay {replay.name} is not declared on bus {bus.name} any more.",
            todo=f"Declare it again, or `onefold events replay --name {replay.name} --cancel`.",
        )
    now_ms = runtime.clock.now_ms()
    kept = bus.archives_of(runtime).read(
        archive.place, replay.from_ms, replay.to_ms, after=replay.cursor, last=replay.last, limit=PAGE
    )
    if not kept:
        return replace(replay, state="completed", ended_at_ms=now_ms)
    parcels = [parcel for one in kept for parcel in bus.parcels(replayed(one.text, replay.name), now_ms, replay.rules)]
    bus.deliver(runtime, parcels)
    return replace(
        replay,
        cursor=(kept[-1].time_ms, kept[-1].position),
        replayed=replay.replayed + len(kept),
        delivered=replay.delivered + len(parcels),
    )


def run(bus: Bus, runtime: Runtime, name: str) -> Replay:
    """Run a replay to its end; errors as `step`."""
    while True:
        now = step(bus, runtime, name)
        if now.state != "running":
            return now


def cancel(bus: Bus, runtime: Runtime, name: str) -> Replay:
    """End a running replay; what it has delivered stays. One that has ended is not changed.

    Raises:
        NotFoundError: the replay does not exist.
    """

    def decide(before: Replay | None) -> tuple[Replay | None, Replay]:
        if before is None:
            raise _unknown(bus, name)
        if before.state != "running":
            return before, before
        after = replace(before, state="cancelled", ended_at_ms=runtime.now_ms())
        return after, after

    state_name = f"{_PREFIX}{bus.name}/{name}"
    _, found = change(
        runtime.engine.state, state_name, lambda value: decode(state_name, value, _replay_of), None, decide
    )
    if found is None:
        raise errors.StorageBusy(f"Another process keeps changing replay {name}.", todo="Cancel it again.")
    return found


def listed(state: State, bus: str) -> list[Replay]:
    """All replays of a bus, oldest first."""
    found = [_read(state, name) for name in state.names(f"{_PREFIX}{bus}/")]
    return sorted((one[0] for one in found if one is not None), key=lambda one: one.started_at_ms)


def _of(state: State, bus: Bus, name: str) -> tuple[Replay, int]:
    found = _read(state, f"{_PREFIX}{bus.name}/{name}")
    if found is None:
        raise _unknown(bus, name)
    return found


def _unknown(bus: Bus, name: str) -> errors.NotFoundError:
    return errors.NotFoundError(f"Bus {bus.name} has no replay {name!r:.80}.", todo="See `onefold events replays`.")


def _state_name(replay: Replay) -> str:
    return f"{_PREFIX}{replay.bus}/{replay.name}"


def _read(state: State, state_name: str) -> tuple[Replay, int] | None:
    value: Versioned | None = state.get([state_name])[0]
    replay = None if value is None else decode(state_name, value.value, _replay_of)
    return None if value is None or replay is None else (replay, value.version)
