"""The handler that drives map runs: a turn of a few seconds, then the next one, in whichever worker takes it.

A turn in which nothing moves ends early, so that it holds no thread while items wait for their retries; the longer nothing
moves, the later the next one. What only a person can fix halts the run and says how; nothing is lost by that.
Never here: what a step does (`mapper.py`). Invariant: a run that is not over has a next turn, or waits for a person, or
another process drives it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from onefold import errors
from onefold.contracts.engine import Engine
from onefold.maps import state as map_state
from onefold.maps.jobs import MapJob, MapTurn
from onefold.maps.mapper import Mapper
from onefold.maps.state import OtherDriverError
from onefold.runner import runs
from onefold.runner.context import Context
from onefold.runtime.runtime import Runtime

if TYPE_CHECKING:
    from onefold.outside import Clock

TURN_MS: Final = 5_000
_STILL_MS: Final = 1_000  # a turn in which nothing moves for so long ends
_NEXT_MS: Final = 100  # after a turn in which nothing moved: 100 ms x 2^n, at most
_NEXT_MS_MAX: Final = 5_000
_KEPT_MS: Final = 60_000  # driven elsewhere, or over: dropped by the next turn of the map that this process takes
_KEPT_MAX: Final = 4  # runs of one map whose reading is kept in a process: 10 MB and an open file each, at most


class _Pause:
    """A short wait of this thread alone. A manual clock asks without waiting: then the turn ends."""

    def __init__(self) -> None:
        self._never = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """True at once where the time does not pass by itself."""
        return timeout_s <= 0 or self._never.wait(timeout_s)


class Turns:
    """Takes the turns of one declared map in this process, from any thread.

    What a turn has read of its run is kept for the next one. Otherwise every turn would read the source again from the first
    child that is not over, a compressed one even from its beginning.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], tuple[Mapper, int]] = {}  # by run and chain, the latest last; with when

    def take(self, runtime: Runtime, mapping: MapJob, turn: MapTurn, ctx: Context) -> str:
        """Drive a run for a while, and send the next turn; returns how far it is, for people.

        Raises:
            TransientError: the engine could not be used; the turn is delivered again.
            PayloadError: the run is one of another map; nothing of it was changed.
        """
        chain = str(turn.begun_at_ms)
        _refuse_other(runtime.engine, mapping, turn.run)
        with self._lock:
            mapper, _ = self._kept.pop((turn.run, chain), (None, 0))
        try:
            if mapper is None or not mapper.take_up(runtime.engine, turn.still):
                mapper = Mapper(runtime, mapping, turn.run, turn.still, chain=chain)
            try:
                moved, whole = _drive(runtime.clock, mapper, ctx), True
            except OtherDriverError:
                if mapper.is_replaced():
                    return "another process drives it"
                moved, whole = True, False  # it was cut short in a step: the next turn reads again
        except errors.UsageError as error:
            halt(runtime.engine, turn.run, error)
            return "halted"
        if mapper.over:
            return mapper.state.status
        idle = 0 if moved else turn.idle + 1
        wait_ms = min(_NEXT_MS << min(idle, 10), _NEXT_MS_MAX) if idle else 0
        following = replace(turn, number=turn.number + 1, idle=idle, still=mapper.still)
        if whole:
            self._keep((turn.run, chain), mapper, runtime.clock.monotonic_ms())
        mapping.turns.send(following, delay=f"{wait_ms}ms")
        return f"{mapper.state.sent.index} of {mapper.state.total}"

    def _keep(self, which: tuple[str, str], mapper: Mapper, now_ms: int) -> None:
        with self._lock:
            self._kept[which] = mapper, now_ms
            for old, (_, at_ms) in list(self._kept.items()):
                if len(self._kept) > _KEPT_MAX or now_ms - at_ms > _KEPT_MS:
                    del self._kept[old]


def _refuse_other(engine: Engine, mapping: MapJob, run: str) -> None:
    standing = map_state.read(engine.state, run)
    if standing is not None and standing.state.map != mapping.name:
        raise errors.PayloadError(
            f"The message is a turn of a run of map {standing.state.map}, and its queue's job drives {mapping.name}.",
            meaning="Driven here the run would stop, or be other work than it is.",
            todo="Let `onefold map resume` send a turn to the queue of its own map.",
        )


def _drive(clock: Clock, mapper: Mapper, ctx: Context) -> bool:
    """Take steps until the turn is over; False when it ended because nothing moved."""
    pause = _Pause()
    begin_ms = still_ms = clock.monotonic_ms()
    while not mapper.over:
        ctx.check()
        wait_ms = mapper.advance()
        now_ms = clock.monotonic_ms()
        if mapper.moved:
            still_ms = now_ms
        if now_ms - begin_ms >= TURN_MS:
            return True
        if now_ms - still_ms >= _STILL_MS or (wait_ms and clock.wait(pause, wait_ms)):
            return False
    return True


def halt(engine: Engine, run: str, error: errors.UsageError) -> None:
    """Note that a run cannot go on until a person has done something, and what."""
    standing = map_state.read(engine.state, run)
    if standing is None or standing.state.over:
        return
    why = " ".join(str(error).split())[:1_000]
    try:
        map_state.write(engine.state, replace(standing.state, status="halted", failure=why), standing.version)
    except OtherDriverError:
        return
    runs.note(engine.state, run, failure=why[:500])
