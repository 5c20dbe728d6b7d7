"""Runs: one tick of a schedule, one dispatch or one map run, as a small value in State that shows its progress.

A run's name is its id everywhere: in State (`run/<name>`), in the ledger (`Row.run`), on its messages (the attribute
`onefold.run`). The outcomes of its messages are counted from the ledger (`Ledger.tally`), never in this value, so it
does not grow with them. A run that is not over is also in State as `open-run/<name>`, so that a process that checks
which runs are complete reads only a short list.

    tick        of a plain function: its own message is the run's one operation, and has the attribute
    dispatch    of a generator: the messages that it yields are the operations; the message of its tick has no attribute
    map         the items of a map run are the operations

Never here: sending, the scheduler, output. Invariant: each write of a run names the version that was read.

`begin_followed` also sends the messages that will check the run later (`reconcile/reconciler.py`). It sends them before
the run exists, so that after a crash in between they are sent again under the same keys, and every run is reconciled. A
message that its queue refuses is reported, and delays neither its run nor the other messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, get_args

import msgspec
from msgspec import Struct

from onefold import errors, limits
from onefold.contracts.documents import decode, reader
from onefold.contracts.state import Change
from onefold.runtime.events import Event

if TYPE_CHECKING:
    from onefold.contracts.verbs import Ledger, State
    from onefold.runtime.runtime import Runtime


Kind = Literal["tick", "dispatch", "map"]

PREFIX: Final = "run/"
OPEN_PREFIX: Final = "open-run/"
MAP_PREFIX: Final = "map/"  # a map run's progress in its source (maps/state.py)
RECONCILED_PREFIX: Final = "reconcile/"  # what the last reconciliation found (reconcile/findings.py)
KEPT_MS: Final = 90 * limits.DAY_MS  # the default for history too
NAME_CHARS_MAX: Final = 280  # names in State have at most 300 characters (contracts/state.py)
_PAGE: Final = 100
_TRIES: Final = 20


class RunState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as it is stored in State.

    Args:
        name: its id, for example `monthly-billing/2026-06-01T02:00:00Z`.
        kind: see above. title: the schedule, or the map job, that it is a run of.
        nominal_at_ms: the instant of its tick; None for a run that no schedule began.
        started_at_ms: when it was first begun; a resumed run keeps this.
        expected: how many operations it has; None while they are still being dispatched.
        dispatched: how many messages were enqueued so far. digest: digest of their keys, in order.
        ended_at_ms: when a process found that nothing was left to do. joined: whether the jobs that wait for it
            were started, then or earlier.
        failure: why its dispatch failed the last time, its tick was given up, or the jobs that wait for it could not be
            sent; None after it has continued.
        owner: the team that is responsible for fixes.
    """

    name: str
    kind: Kind
    title: str
    started_at_ms: int
    nominal_at_ms: int | None = None
    expected: int | None = None
    dispatched: int = 0
    digest: str = ""
    ended_at_ms: int | None = None
    joined: bool = False
    failure: str | None = None
    owner: str | None = None


class VersionedRun(Struct, frozen=True, gc=False):
    """A run and the version that was read.

    Args:
        run: its value.
        version: the version of that value; a change must name it.
    """

    run: RunState
    version: int


class Counts(Struct, frozen=True, kw_only=True, gc=False):
    """The outcomes of a run's operations; the five counts after `expected` add up to it.

    Args:
        expected: how many operations there are; while a run is being dispatched, how many there are so far.
        done: took effect once, in this run or before it.
        failed: failed for now; will be tried again.
        dead: in a dead-letter queue.
        unknown: parked for a person, because it is not known whether the effect happened.
        missing: dispatched, but without an outcome yet: waiting, running, or lost. `onefold reconcile` shows which.
    """

    expected: int
    done: int = 0
    failed: int = 0
    dead: int = 0
    unknown: int = 0
    missing: int = 0

    @property
    def settled(self) -> int:
        """How many operations are done, or need a person before anything else happens."""
        return self.done + self.dead + self.unknown


OperationOutcome = Literal["done", "failed", "dead", "unknown"]

_OUTCOMES: Final[Mapping[str, OperationOutcome]] = {
    "completed": "done",
    "duplicate": "done",  # answered from the record of an earlier run
    "discarded": "done",
    "settled": "done",  # a person settled it
    "retry": "failed",
    "dependency-down": "failed",
    "dead-letter": "dead",
    "quarantine": "dead",
    "conflict": "dead",
    "malformed": "dead",
    "group-stopped": "dead",
    "tick-dropped": "dead",
    "held": "unknown",
}  # a message that was redriven, or only started, has no outcome yet


def outcome_of(event: str) -> OperationOutcome | None:
    """The outcome in an operation's deciding row; None before there is one."""
    return _OUTCOMES.get(event)


def counts_of(run: RunState, tally: Mapping[str, int]) -> Counts:
    """The outcomes of a run's operations, by its ledger's tally."""
    sums = dict.fromkeys(get_args(OperationOutcome), 0)
    for event, count in tally.items():
        outcome = outcome_of(event)
        if outcome is not None:
            sums[outcome] += count
    known = sum(tally.values())
    expected = max(known if run.expected is None else run.expected, known)
    return Counts(expected=expected, missing=expected - sum(sums.values()), **sums)


def is_over(run: RunState, counts: Counts) -> bool:
    """Whether everything was dispatched, and nothing is left to do except for a person."""
    return run.expected is not None and counts.settled >= counts.expected


# -- State -----------------------------------------------------------------------------------------------------------


def state_name(name: str) -> str:
    """The name in State of a run."""
    return PREFIX + name


def of_tick(
    name: str,
    schedule: str,
    nominal_at_ms: int | None,
    now_ms: int,
    *,
    dispatches: bool,
    owner: str | None = None,
) -> RunState:
    """The run that a tick begins: of a plain function, whose only operation is the tick itself, or of a dispatcher."""
    return RunState(
        name=name,
        kind="dispatch" if dispatches else "tick",
        title=schedule,
        nominal_at_ms=nominal_at_ms,
        started_at_ms=now_ms,
        expected=None if dispatches else 1,
        dispatched=0 if dispatches else 1,
        owner=owner,
    )


def begin(state: State, run: RunState) -> VersionedRun:
    """Begin a run, or continue it: if it exists, it is not changed.

    Raises:
        UsageError: a name that is empty or longer than 280 characters.
    """
    if not 1 <= len(run.name) <= NAME_CHARS_MAX:
        raise errors.UsageError(
            f"{run.name!r:.100} cannot name a run: it has {len(run.name)} characters.",
            todo=f"Use 1 to {NAME_CHARS_MAX} characters; a run of a schedule is named after it.",
        )
    stored = read(state, run.name)
    if stored is None or stored.run.ended_at_ms is None:  # without transactions, only one of two values may be written
        state.put(began(run))
        stored = read(state, run.name)
    if stored is None:
        raise errors.StorageBusy(f"Run {run.name} was removed while it was being begun.", todo="Begin it again.")
    return stored


def began(run: RunState) -> list[Change]:
    """The changes that begin a new run; if it exists, they are skipped. For a scheduler's own transaction."""
    return [Change(state_name(run.name), encode(run), 0), Change(OPEN_PREFIX + run.name, b"{}", 0)]


def encode(run: RunState) -> bytes:
    """A run as its value in State."""
    return msgspec.json.encode(run)


_run_of: Final = msgspec.json.Decoder(RunState).decode
_run_or_none = reader(RunState, None)


def read(state: State, name: str) -> VersionedRun | None:
    """A run by its name; None when there is none.

    Raises:
        StorageError: its stored value cannot be read.
    """
    found = state.get([state_name(name)])[0]
    return None if found is None else VersionedRun(decode(state_name(name), found.value, _run_of), found.version)


def read_all(state: State, names: Sequence[str]) -> list[VersionedRun | None]:
    """Runs by their names, in order; None if there is none, or none that can be read."""
    found: list[VersionedRun | None] = []
    for first in range(0, len(names), _PAGE):
        for value in state.get([state_name(name) for name in names[first : first + _PAGE]]):
            run = None if value is None else _run_or_none(value.value)
            found.append(None if value is None or run is None else VersionedRun(run, value.version))
    return found


def names(state: State, prefix: str = "") -> list[str]:
    """The names of all runs that begin with `prefix`, sorted; runs of one schedule are sorted by time."""
    return [name.removeprefix(PREFIX) for name in state.names(PREFIX + prefix)]


def open_names(state: State) -> list[str]:
    """The names of runs that are not known to be over, sorted."""
    return [name.removeprefix(OPEN_PREFIX) for name in state.names(OPEN_PREFIX)]


def is_open(state: State, name: str) -> bool:
    """Whether a run is among those not known to be over; after a crash, one of its two values may be missing."""
    return state.get([OPEN_PREFIX + name])[0] is not None


def note(state: State, name: str, **changes: object) -> VersionedRun | None:
    """Change fields of a run, even if others change it meanwhile; returns the changed run, None when it does not exist.

    If a run that had ended has `ended_at_ms` removed, because part of it is done again, it is open again.

    Raises:
        StorageBusy: other processes changed it at every try.
    """
    for _ in range(_TRIES):
        stored = read(state, name)
        if stored is None:
            return None
        after = msgspec.structs.replace(stored.run, **changes)
        changed = Change(state_name(name), encode(after), stored.version)
        opened = [Change(OPEN_PREFIX + name, b"{}", 0)]  # if it is open already, this changes nothing
        reopens = stored.run.ended_at_ms is not None and after.ended_at_ms is None
        if state.put([*opened, changed] if reopens else [changed])[-1]:
            return VersionedRun(after, stored.version + 1)
    raise errors.StorageBusy(f"Run {name} could not be changed: other processes keep changing it.", todo="Try again.")


def stopped(state: State, name: str, why: str) -> tuple[Change, ...]:
    """The change that notes why a run is not dispatched further; none if it was dispatched, or does not exist."""
    stored = read(state, name)
    if stored is None or stored.run.expected is not None:
        return ()
    after = msgspec.structs.replace(stored.run, failure=why[:500])
    return (Change(state_name(name), encode(after), stored.version),)


def count(ledger: Ledger, run: RunState) -> Counts:
    """The outcomes of a run's operations so far."""
    return counts_of(run, ledger.tally(run.name))


def sweep(state: State, until_ms: int, *, limit: int = 1_000) -> int:
    """Remove runs that were begun at `until_ms` or before, at most `limit`; returns how many.

    Runs of one schedule are sorted by time, so only its oldest are read.
    """
    removed = 0
    finished_titles: set[str] = set()
    for name in names(state):
        title = name.rpartition("/")[0] or name
        if title in finished_titles:
            continue
        stored = read(state, name)
        if stored is None or stored.run.started_at_ms > until_ms:
            finished_titles.add(title)
            continue
        beside = [OPEN_PREFIX + name, MAP_PREFIX + name, RECONCILED_PREFIX + name]
        changes = [Change(state_name(name), None, stored.version)]
        for other, value in zip(beside, state.get(beside), strict=True):
            if value is not None:
                changes.append(Change(other, None, value.version))
        removed += state.put(changes)[0]
        if removed >= limit:
            break
    return removed


def send_reconciliations(runtime: Runtime, run: str, title: str, started_at_ms: int) -> list[str]:
    """Send the messages that will reconcile a run later.

    Args:
        runtime: the runtime whose app declares the reconciliations, and which sends the messages.
        run: its full name. title: the schedule or the map that it is a run of. started_at_ms: when it began.

    Returns:
        For each message that could not be sent, the reason; empty when all were sent.

    Raises:
        TransientError: not sent; try again.
    """
    refused: list[str] = []
    for name, one in runtime.registry.reconcilers.items():
        if one.is_for(run, title):
            try:
                runtime.send([one.follow_up(run, started_at_ms)])
            except errors.UsageError as error:
                refused.append(f"{name}: {error.what}")
    return refused


def report_refused(runtime: Runtime, run: str, reasons: Sequence[str]) -> None:
    """Report to history and sinks which reconciliations could not be sent."""
    for why in reasons:
        at_ms = runtime.now_ms()
        event = Event(at_ms=at_ms, name="look-refused", run=run, actor=runtime.owner, detail={"summary": why})
        runtime.engine.ledger.append([event.row()])
        if runtime.sinks is not None:
            runtime.sinks.emit(event)


def begin_followed(runtime: Runtime, run: RunState) -> VersionedRun:
    """Begin a run and send its reconciliations, or continue it: if it exists, it is not changed.

    Args:
        run: its value, if there is no run of that name yet.

    Raises:
        UsageError: a name that is empty or too long. StorageBusy: not begun.
    """
    engine = runtime.engine
    stored = read(engine.state, run.name)
    if stored is not None and (stored.run.ended_at_ms is not None or is_open(engine.state, run.name)):
        return stored
    if stored is None:
        report_refused(runtime, run.name, send_reconciliations(runtime, run.name, run.title, run.started_at_ms))
    return begin(engine.state, run)
