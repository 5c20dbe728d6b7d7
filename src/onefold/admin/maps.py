"""Map runs for an operator: start, inspect, resume, redrive, stop.

A run is driven in turns by any worker of the app (`maps/mapper.py`), or by the caller of `drive` here.
Never here: one step of a run (`maps/mapper.py`), output. Invariant: a run that cannot be started changes nothing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors
from onefold.contracts import documents
from onefold.contracts.state import Change
from onefold.maps import state as map_state
from onefold.maps.checks import check_columns, check_shape, check_source, is_cut
from onefold.maps.formats import count
from onefold.maps.jobs import MapJob, MapTurn
from onefold.maps.mapper import Mapper, halt
from onefold.maps.rules import REDRIVES_MAX
from onefold.maps.sources import Position, Source, SourceIdentity, source_of
from onefold.maps.state import MapState, OtherDriverError, Repeats
from onefold.observe.wording import counted
from onefold.runner import runs
from onefold.runner.runs import report_refused, send_reconciliations
from onefold.runtime.events import Event, Sinks, kept
from onefold.runtime.outgoing import transaction

if TYPE_CHECKING:
    from onefold.app import App
    from onefold.contracts.engine import Engine
    from onefold.runtime.runtime import Runtime

_MALFORMED_SHOWN = 20
_LISTED = 20
_UNDER_WAY = ("running", "stopping", "ending")


class MapProgress(Struct, frozen=True, kw_only=True):
    """The state of a map run.

    Args:
        run, map, source, failure, results, round: as in `MapState`.
        status: as in `MapState`; if a run sends no more, but sent items still finish: `stopping` if a person stopped it,
            `ending` after too many failures.
        total: items. done, failed, malformed: how many of them. under_way: sent and not over.
        duplicates: items that repeat the key and contents of an earlier one, and were answered from its record; known when
            the run is over, until then they count as done.
        pending: not sent and not done. started_at_ms, ended_at_ms: those of the run.
        threshold: what is tolerated, in words; empty if the map is not declared.
        remark: a note in addition to its counts; None: none.
    """

    run: str
    map: str
    source: str
    status: str
    total: int
    done: int
    failed: int
    malformed: int
    under_way: int
    duplicates: int = 0
    pending: int
    round: int
    threshold: str
    started_at_ms: int
    ended_at_ms: int | None
    failure: str | None
    results: str
    remark: str | None = None

    @property
    def over(self) -> bool:
        """Whether no process drives it any more."""
        return self.status not in _UNDER_WAY


class Quarantined(Struct, frozen=True, kw_only=True):
    """A row that is not a valid item: its line, and why."""

    line: int
    reason: str
    round: int


def find(app: App, name: str) -> MapJob:
    """A declared map by its name.

    Raises:
        NotFoundError: the run does not exist; the error lists those that do.
    """
    found = app.maps.get(name)
    if found is not None:
        return found
    near = difflib.get_close_matches(name, app.maps, n=1)
    known = ", ".join(sorted(app.maps)) or "none"
    raise errors.NotFoundError(
        f"App {app.name} declares no map {name!r}.",
        meaning=f"It declares: {known}.",
        todo=f"Did you mean {near[0]!r}?" if near else "Declare it with @app.map(...).",
    )


def of_run(app: App, run: str) -> tuple[MapJob, MapState]:
    """A run and its map.

    Raises:
        NotFoundError: the run does not exist, or its map is no longer declared.
    """
    state = map_state.must_read(app.runtime().engine.state, run).state
    return find(app, state.map), state


def start(app: App, name: str, *, run: str, items: str | None = None, turns: bool = True) -> MapProgress:
    """Start a run: its source is read once, to count its items and to identify it later.

    Args:
        name: the name of the declared map. run: the run's name; keys of items begin with it.
        items: path or s3:// URL; if None, the declared source.
        turns: have workers drive it; False if the caller does.

    Raises:
        NotFoundError: the map or the file does not exist. UsageError: the file is empty, breaks off, lacks a column
            that an item needs ...; or the name is not valid.
        ConflictError: a run of this name exists.
    """
    mapping = find(app, name)
    map_state.check_name(run)
    location = _absolute(items or mapping.spec.source or "")
    if not location:
        raise errors.UsageError(
            f"Map {name} declares no source.", todo="Say which file: --items FILE, or declare source=."
        )
    opened = app.runtime()
    _refuse_known(opened, run)
    source = source_of(location, opened.s3_client)
    identity, total = _measured(source, mapping)
    now_ms = opened.steady.now_ms()
    state = MapState(
        run=run, map=name, id=opened.entropy.token(), source=location, identity=identity, shape=mapping.shape, total=total,
        started_at_ms=now_ms, round_at_ms=now_ms, results=_results(app, mapping, run),
    )  # fmt: skip
    remark = _remark(mapping, state)
    detail = {"map": name, "source": location, "remark": remark}
    empty = (
        None if remark is None else Event(at_ms=now_ms, name="map-empty", run=run, actor=opened.owner, detail=detail)
    )
    begun = runs.RunState(name=run, kind="map", title=name, started_at_ms=now_ms, owner=mapping.owner)

    def write() -> None:
        if not opened.engine.state.put(runs.began(begun))[0]:
            _refuse_known(opened, run)
        map_state.write(opened.engine.state, state, 0)
        if empty is not None and kept(empty.name, app.history, run=run):
            opened.engine.ledger.append([empty.row()])
        report_refused(opened, run, send_reconciliations(opened, run, name, now_ms))
        if turns:
            mapping.turns.deliver([mapping.turns.outgoing(MapTurn(run=run, begun_at_ms=now_ms))])

    transaction(opened.engine, write)
    if empty is not None:
        Sinks(app.sinks).emit(empty)
    return progress(app, run)


def resume(app: App, run: str, *, turns: bool = True) -> MapProgress:
    """Resume a run that was halted, or that no process drives: its file is read and compared first.

    Raises:
        NotFoundError: the run or the file does not exist. UsageError: it has ended; or the file or the declaration has
            changed.
    """
    mapping, state = of_run(app, run)
    if state.status not in ("running", "halted"):
        raise errors.UsageError(
            f"Run {run} has ended: {state.status}.",
            todo=f"`onefold map redrive {run}` does what has failed, and what was not sent.",
        )
    check_shape(mapping, state)
    opened = app.runtime()
    check_source(source_of(state.source, opened.s3_client), state, mapping, wholly=True)

    def write() -> None:
        _change(opened, run, lambda before: replace(before, status="running", failure=None))
        runs.note(opened.engine.state, run, failure=None)
        _turn(mapping, opened, run, turns)

    transaction(opened.engine, write)
    return progress(app, run)


def redrive(app: App, run: str, *, items: str | None = None, turns: bool = True) -> MapProgress:
    """Run again what failed, and send what was not sent; what is done stays done.

    Args:
        items: the whole source, repaired, as path or s3:// URL; if None, the run's own, which must not have changed.

    Raises:
        NotFoundError: the run or the file does not exist. UsageError: it has not ended; nothing is left to do; it was
            redriven 1,000 times; another source for a run in batches of which some are done.
    """
    mapping, state = of_run(app, run)
    opened = app.runtime()
    if not state.over or state.status == "halted":
        raise errors.UsageError(
            f"Run {run} is not over: {_status(state)}.",
            todo=f"Wait for it, or `onefold map stop {run}`; if it is halted or not driven: `onefold map resume {run}`.",
        )
    if state.round >= REDRIVES_MAX:
        raise errors.UsageError(
            f"Run {run} was redriven {state.round} times.", todo=f"{REDRIVES_MAX} times is the most; start another run."
        )
    if items is None and state.done == state.total:
        raise errors.UsageError(f"Run {run} has nothing left to do: all {state.total} items are done.")
    if items is not None and is_cut(state, mapping):
        raise errors.UsageError(
            f"Run {run} gives its items to the handler in batches, and {state.done} of them are done.",
            meaning="A batch is one effect, identified by its items: a repaired source would make different batches.",
            todo=f"`onefold map redrive {run}` without another source does what failed, from the unchanged {state.source}; "
            f"put the repaired items alone into a file, for a run of its own: "
            f"`onefold map start {state.map} --items FILE --name NAME`.",
        )
    check_shape(mapping, state)
    location = state.source if items is None else _absolute(items)
    source = source_of(location, opened.s3_client)
    if items is None:
        check_source(source, state, mapping, wholly=True)
    identity, total = _measured(source, mapping)
    now_ms = opened.steady.now_ms()
    again = {
        "status": "running", "ending": None, "failure": None, "ended_at_ms": None, "clearing": True,
        "sent": Position(), "settled": Position(), "children": 0, "settled_children": 0, "done": 0, "failed": 0,
        "malformed": 0, "seen_done": 0, "seen_failed": 0, "earlier": state.seen_done + state.ahead, "passed": 0,
        "source": location, "identity": identity, "total": total, "round_at_ms": now_ms, "repeats": Repeats(),
    }  # fmt: skip

    def write() -> None:
        _change(opened, run, lambda before: replace(before, round=before.round + 1, **again), expected=state)
        _reopen(opened, run)
        _turn(mapping, opened, run, turns)

    transaction(opened.engine, write)
    return progress(app, run)


def stop(app: App, run: str) -> MapProgress:
    """Send no more items of a run; what was sent can finish. The run can be redriven.

    Raises:
        NotFoundError: the run does not exist. UsageError: it has ended.
    """
    _, state = of_run(app, run)
    if state.over and state.status != "halted":
        raise errors.UsageError(f"Run {run} has ended: {state.status}.")
    said = "Stopped by a person; `onefold map redrive` does the rest."
    opened = app.runtime()

    def ended(before: MapState) -> MapState:
        if before.status == "halted":  # no process drives it: there is nothing to wait for
            now_ms = opened.steady.now_ms()
            return replace(before, status="aborted", ending="aborted", failure=said, ended_at_ms=now_ms)
        return before if before.ending is not None else replace(before, ending="aborted", failure=said)

    def write() -> None:
        _change(opened, run, ended)
        if state.status == "halted":
            runs.note(opened.engine.state, run, failure=said)

    transaction(opened.engine, write)
    return progress(app, run)


def drive(app: App, run: str, report: Callable[[MapProgress], None]) -> MapProgress:
    """Drive a run in this thread until it ends, and report now and then; workers still process its items.

    Raises:
        UsageError: the run is halted until a person acts. OtherDriverError: another process drives it too.
    """
    mapping, _ = of_run(app, run)
    opened = app.runtime()
    never = opened.never()
    try:
        mapper = Mapper(opened, mapping, run)
        while not mapper.over:
            try:
                wait_ms = mapper.advance()
            except OtherDriverError:
                if mapper.is_replaced():
                    raise
                mapper = Mapper(opened, mapping, run)  # it was stopped: what was sent can finish
                continue
            report(_progress(mapping, mapper.state))
            if wait_ms and not mapper.over:
                opened.clock.wait(never, wait_ms)
    except errors.UsageError as error:
        halt(opened.engine, run, error)
        raise
    return progress(app, run)


def progress(app: App, run: str) -> MapProgress:
    """The state of a run. Raises as `of_run`."""
    return _progress(*of_run(app, run))


def look(engine: Engine, maps: Mapping[str, MapJob], run: str) -> MapProgress:
    """The state of a run; `maps` are the known maps. If its map is not among them, `threshold` is empty.

    Raises:
        NotFoundError: the run does not exist.
    """
    state = map_state.must_read(engine.state, run).state
    return _progress(maps.get(state.map), state)


def listed(engine: Engine, maps: Mapping[str, MapJob], limit: int = _LISTED) -> list[MapProgress]:
    """The map runs that were started last, latest first; `maps` as for `look`."""
    found = sorted(map_state.read_all(engine.state), key=lambda state: state.started_at_ms, reverse=True)
    return [_progress(maps.get(state.map), state) for state in found[:limit]]


def quarantine(engine: Engine, run: str, limit: int = _MALFORMED_SHOWN) -> list[Quarantined]:
    """The first rows of the run's last round that are not items.

    Raises:
        NotFoundError: the run does not exist.
    """
    state = map_state.must_read(engine.state, run).state
    found: list[Quarantined] = []
    for page in engine.ledger.walk_run(run):
        for row in page:
            if row.event == "malformed" and row.key is None and row.detail.get("round") == state.round:
                line, reason = row.detail["line"], row.detail["reason"]
                found.append(Quarantined(line=int(line or 0), reason=str(reason), round=state.round))
        if len(found) >= limit:
            break
    return found[:limit]


def _progress(mapping: MapJob | None, state: MapState) -> MapProgress:
    over = state.seen_done + state.seen_failed + state.malformed
    return MapProgress(
        run=state.run, map=state.map, source=state.source, status=_status(state), total=state.total,
        done=state.seen_done + state.ahead - state.repeats.answered, failed=state.seen_failed, malformed=state.malformed,
        under_way=max(state.sent.index - over, 0), duplicates=state.repeats.answered,
        pending=state.pending - state.ahead, round=state.round,
        threshold="" if mapping is None else _threshold(mapping), started_at_ms=state.started_at_ms,
        ended_at_ms=state.ended_at_ms, failure=state.failure, results=state.results,
        remark=_repeated(state.repeats) or (None if mapping is None else _remark(mapping, state)),
    )  # fmt: skip


def _status(state: MapState) -> str:
    if state.status != "running" or state.ending is None:
        return state.status
    return "stopping" if state.ending == "aborted" else "ending"


def _threshold(mapping: MapJob) -> str:
    tolerated = mapping.spec.tolerated
    parts = [] if tolerated.count is None else [f"{tolerated.count:,} items"]
    parts += [] if tolerated.percent is None else [f"{tolerated.percent:g} %"]
    return " or ".join(parts) or "none"


def _repeated(repeats: Repeats) -> str | None:
    """A note about rows that repeat an earlier one."""
    count, again = repeats.answered + repeats.given_again, repeats.given_again
    if not count:
        return None
    lines = ", ".join(map(str, repeats.lines))
    where = f"line{'s' if len(repeats.lines) > 1 else ''} {lines}{', ...' if count > len(repeats.lines) else ''}"
    text = f"{counted(count, 'row')} {'repeats' if count == 1 else 'repeat'} the key of an earlier row ({where})"
    if not again:
        return f"{text}, answered from {'its record' if count == 1 else 'their records'}: no effect happened again."
    which = f"{again:,} of them {'was' if again == 1 else 'were'}" if count > 1 else "it was"
    return f"{text}. A batch is one effect with all its rows: {which} given to the handler again."


def _remark(mapping: MapJob, state: MapState) -> str | None:
    """A note for a source without items: the run succeeds, as in Step Functions, which may not be what was meant."""
    if state.total:
        return None
    reader = mapping.spec.reader
    if reader.format == "csv" and reader.header is None:
        return "The file has a header and no rows: 0 items."
    return "The source is empty: 0 items." if reader.format == "listing" else "The file has no values in it: 0 items."


# -- parts -------------------------------------------------------------------------------------------------------------


def _absolute(location: str) -> str:
    return location if not location or "://" in location else str(Path(location).absolute())


def _results(app: App, mapping: MapJob, run: str) -> str:
    given = mapping.spec.results
    if given is None:
        file = app.url.removeprefix("sqlite:///") if app.url.startswith("sqlite:///") else os.path.join(".onefold", "_")
        given = str(Path(file).absolute().parent / "map-runs")
    return f"{_absolute(given).rstrip('/')}/{run}"


def _measured(source: Source, mapping: MapJob) -> tuple[SourceIdentity, int]:
    """The identity of a source and its number of items; refuses missing columns, and a source that changes."""
    identity = source.identity()
    check_columns(source, mapping)
    total = count(source, mapping.spec.reader)
    stamp = source.stamp()
    if stamp is not None and stamp != (identity.size, identity.stamp):
        raise errors.UsageError(
            f"{source.name} changed while it was read.", todo="Wait until it is complete, then start again."
        )
    return identity, total


def _refuse_known(opened: Runtime, run: str) -> None:
    stored = runs.read(opened.engine.state, run)
    begun = stored is not None and stored.run.kind == "map" and map_state.read(opened.engine.state, run) is None
    if stored is not None and not begun:  # if begun, its start was interrupted between two steps
        raise errors.ConflictError(
            f"There is a run {run!r} already, of {stored.run.title}.",
            meaning="The keys of its items begin with its name. Nothing was started.",
            todo=f"See what it does, and give the new run another name: `onefold map show {run}`",
        )


def _change(
    opened: Runtime, run: str, change: Callable[[MapState], MapState], *, expected: MapState | None = None
) -> None:
    def decide(before: MapState | None) -> tuple[MapState | None, bool]:
        before = before or map_state.must_read(opened.engine.state, run).state  # raises: the run does not exist
        return (before, False) if expected is not None and before != expected else (change(before), True)

    _, done = documents.change(opened.engine.state, map_state.PREFIX + run, map_state.state_of, None, decide)
    if not done:
        raise errors.StorageBusy(f"Map run {run} is being changed by others.", todo="Look at it, and try again.")


def _reopen(opened: Runtime, run: str) -> None:
    """Mark a run that was complete as open again until its redrive is complete."""
    runs.note(opened.engine.state, run, expected=None, ended_at_ms=None, failure=None)
    opened.engine.state.put([Change(runs.OPEN_PREFIX + run, b"{}", 0)])


def _turn(mapping: MapJob, opened: Runtime, run: str, turns: bool) -> None:
    if turns:
        mapping.turns.send(MapTurn(run=run, begun_at_ms=opened.clock.now_ms()))
