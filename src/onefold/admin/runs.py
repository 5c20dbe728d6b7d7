"""`runs`: which runs exist, how far each has come, what is left to do, and how fast it is going.

A run's value in State describes it; the outcomes of its operations are counted in the ledger, only for the runs on the page.
Never here: output, changing a run, reconciliation. Invariant: asking changes nothing.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct, field

from onefold import errors, limits
from onefold.admin.session import AdminSession
from onefold.contracts.ledger import Row, replaces
from onefold.contracts.store import RecordKey
from onefold.maps import state as map_state
from onefold.runner import runs
from onefold.runner.runs import Counts, RunState

if TYPE_CHECKING:
    from onefold.contracts.verbs import State

RunStatus = Literal["dispatching", "stopped", "running", "complete", "ended"]

PAGE: Final = 20
_NAMED_MAX: Final = 3  # runs that an error names
_LOOKED_AT: Final = 20_000  # rows of a run that `show` reads to name operations; for a longer run it gives only counts
_ROWS_PAGE: Final = 5_000
_KEYS_PAGE: Final = 100  # records of one read
_RATE_MS: Final = 30 * limits.SECOND_MS  # a rate covers at most this long
_LOOK_MS: Final = limits.SECOND_MS
_LOOK_FACTOR: Final = 10  # polling takes at most a tenth of the time


class RunView(Struct, frozen=True, kw_only=True):
    """One run in its present state.

    Args:
        run, kind, title, owner: those of the run. nominal_at_ms: the instant of its tick; None if no schedule began it.
        status: `dispatching`; `stopped`: its dispatch failed, and continues when its tick is tried again; `running`;
            `complete`: all is done; `ended`: only a person can do what is left.
        failure: why its dispatch stopped; None if it did not.
        started_at_ms, ended_at_ms: when it began, and when it was noticed that nothing was left to do.
        dispatched: messages that were sent. expected: operations; while it is dispatched, those so far.
        done, failed, dead, unknown, missing: their outcomes; see `onefold.runner.runs.Counts`.
    """

    run: str
    kind: str
    title: str
    owner: str | None
    nominal_at_ms: int | None
    status: RunStatus = field(name="stand")  # the name in JSON
    failure: str | None
    started_at_ms: int
    ended_at_ms: int | None
    dispatched: int
    expected: int
    done: int
    failed: int
    dead: int
    unknown: int
    missing: int

    @property
    def settled(self) -> int:
        """How many operations are done, or need a person."""
        return self.done + self.dead + self.unknown

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do except by a person."""
        return self.status in ("complete", "ended")


class RunPage(Struct, frozen=True, kw_only=True):
    """Some runs, the latest first.

    Args:
        after: name of the last run if there are more.
    """

    runs: tuple[RunView, ...]
    after: str | None


class OpenOperation(Struct, frozen=True, kw_only=True):
    """An operation of a run that is not done.

    Args:
        job, tenant, key: those of the operation.
        status: `failed`, `dead` or `unknown` as in `RunView`; `in flight`: in progress; `suspended`: its lease has
            ended, but its process is suspended and keeps it; `waiting`: no outcome yet, and no worker works on it.
        event, at_ms: the last event in its history.
    """

    job: str
    tenant: str
    key: str
    status: Literal["failed", "dead", "unknown", "suspended", "in flight", "waiting"] = field(name="stand")
    event: str
    at_ms: int


class RunDetail(Struct, frozen=True, kw_only=True):
    """One run, and what is left of it.

    Args:
        run: its current state.
        in_flight: operations being worked on; None if the run is too long to examine each.
        open: operations that are not done, those that need a person first; a page of them. open_count: how many there
            are in all, None as for `in_flight`.
        restarts: how often its dispatcher yielded different messages than before, so that all were sent again; or None.
        malformed: rows of a map run's source that are not items, and so not operations, as far as it was read.
        duplicates: rows that repeat an earlier one, and so are no operations of their own; known when it has ended.
    """

    run: RunView
    in_flight: int | None
    open: tuple[OpenOperation, ...]
    open_count: int | None
    restarts: int | None
    malformed: int = 0
    duplicates: int = 0


class RunProgress(Struct, frozen=True, kw_only=True):
    """A run in progress.

    Args:
        run: its current state.
        per_second: operations settled (while it is dispatched: messages sent) per second over the last 30 seconds; None
            at the first poll. eta_ms: time until nothing is left, at that rate; None if not known.
        ended: only a person can do what is left, so this is the last poll.
    """

    run: RunView
    per_second: float | None
    eta_ms: int | None
    ended: bool = False


# -- one run and many ------------------------------------------------------------------------------------------------


def listed(
    session: AdminSession,
    title: str | None = None,
    *,
    unfinished: bool = False,
    limit: int = PAGE,
    after: str | None = None,
) -> RunPage:
    """A page of runs, the latest first.

    Args:
        title: only runs of this schedule or map job.
        unfinished: only runs that are not known to have ended.
        limit: runs on the page, 1 or more. after: the last name on the previous page.

    Raises:
        UsageError: a limit below 1, an `after` that is not a run. NotFoundError: no run of that title.
    """
    if limit < 1:
        raise errors.UsageError(f"A page cannot have {limit} runs.", todo="Ask for 1 or more.")
    state = session.engine.state
    names = runs.open_names(state) if unfinished else _names(state, title)
    found = [one.run for one in runs.read_all(state, names) if one is not None]
    if title is not None:
        known = [one for one in found if one.title == title]
        if not known and not unfinished:
            raise _no_title(session, title)
        found = known
    found.sort(key=lambda one: (one.nominal_at_ms or one.started_at_ms, one.started_at_ms, one.name), reverse=True)
    first = 0
    if after is not None:
        indexes = [index for index, one in enumerate(found) if one.name == after]
        if not indexes:
            raise errors.UsageError(f"The run {after!r} is not on this list.", todo="Begin again without --after.")
        first = indexes[0] + 1
    page = found[first : first + limit]
    more = len(found) > first + limit
    return RunPage(runs=tuple(_seen(session, one) for one in page), after=page[-1].name if more else None)


def _names(state: State, title: str | None) -> list[str]:
    """Runs that may belong to a schedule or map: those named after it, and map runs, whose names a person chose."""
    if title is None:
        return runs.names(state)
    mapped = (name.removeprefix(runs.MAP_PREFIX) for name in state.names(runs.MAP_PREFIX))
    return sorted({*runs.names(state, f"{title}/"), *mapped})


def one(session: AdminSession, name: str) -> RunView:
    """A run in its present state, by its name or a unique beginning of it.

    Raises:
        NotFoundError: there is none; the error names similar runs. UsageError: several begin like that.
    """
    return _seen(session, _named(session, name))


def show(session: AdminSession, name: str, *, limit: int = PAGE, after: int = 0) -> RunDetail:
    """A run, with its operations that are not done.

    Args:
        name: as for `one`. limit: how many of those operations. after: how many of them to skip.

    Raises:
        As `one`.
    """
    run = one(session, name)
    rows = _rows(session, run.run) if run.expected <= _LOOKED_AT else None
    mapped = map_state.read(session.engine.state, run.run)
    malformed = mapped.state.malformed if mapped is not None else 0
    duplicates = mapped.state.repeats.answered if mapped is not None else 0
    if rows is None:
        return RunDetail(
            run=run, in_flight=None, open=(), open_count=None, restarts=None, malformed=malformed, duplicates=duplicates
        )
    last: dict[RecordKey, Row] = {}
    for row in rows:
        if row.key is not None and replaces(row.event, last[row.key].event if row.key in last else None):
            last[row.key] = row
    not_done = [row for row in last.values() if runs.outcome_of(row.event) != "done"]
    busy = _in_flight(session, [row.key for row in not_done if row.key is not None])
    operations = sorted((_operation(row, busy) for row in not_done), key=lambda one: (_ORDER[one.status], one.at_ms))
    return RunDetail(
        run=run,
        in_flight=sum(status == "in flight" for status in busy.values()),
        open=tuple(operations[after : after + limit]),
        open_count=len(operations),
        restarts=sum(row.event == "dispatch-restarted" for row in rows),
        malformed=malformed,
        duplicates=duplicates,
    )


_ORDER: Final = {"unknown": 0, "suspended": 1, "dead": 2, "failed": 3, "in flight": 4, "waiting": 5}


def _operation(row: Row, busy: Mapping[RecordKey, str]) -> OpenOperation:
    assert row.key is not None
    outcome = busy.get(row.key) or runs.outcome_of(row.event) or "waiting"
    return OpenOperation(
        job=row.key.job, tenant=row.key.scope, key=row.key.key, status=outcome, event=row.event, at_ms=row.at_ms  # type: ignore[arg-type]  # never "done"
    )  # fmt: skip


def _rows(session: AdminSession, name: str) -> list[Row] | None:
    """All rows of a run; None if there are too many to read."""
    rows: list[Row] = []
    for page in session.engine.ledger.walk_run(name, _ROWS_PAGE):
        rows += page
        if len(rows) > _LOOKED_AT:
            return None
    return rows


def _in_flight(session: AdminSession, keys: Sequence[RecordKey]) -> dict[RecordKey, str]:
    """The operations that a process works on now: `in flight`, or `suspended` if its process is suspended and keeps it."""
    now_ms, busy = session.now_ms(), dict[RecordKey, str]()
    for first in range(0, len(keys), _KEYS_PAGE):
        some = keys[first : first + _KEYS_PAGE]
        for key, record in zip(some, session.engine.store.read(some, now_ms), strict=True):
            if record is None or record.status != "in_progress":
                continue
            if record.lease_until_ms > now_ms:
                busy[key] = "in flight"
            elif session.engine.stopped_process(record) is not None:
                busy[key] = "suspended"
    return busy


def find_run(session: AdminSession, text: str) -> str:
    """The full name of a run, even of one that only the ledger remembers.

    Args:
        text: its name, or a beginning of it that no other run has, for example `monthly-billing/2026-06`.

    Raises:
        NotFoundError: no run begins like that; the error names similar runs. UsageError: several do.
    """
    state = session.engine.state
    if runs.read(state, text) is not None or session.engine.ledger.of_run(text, 1):
        return text
    found = runs.names(state, text)
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[-_NAMED_MAX:])
        raise errors.UsageError(
            f"{len(found):,} runs begin with {text!r}, the last of them: {shown}.", todo="Give more of the name."
        )
    raise _no_run(session, text)


def _named(session: AdminSession, text: str) -> RunState:
    found = runs.read(session.engine.state, find_run(session, text))
    if found is None:
        raise _no_run(session, text)
    return found.run


def _no_run(session: AdminSession, text: str) -> errors.NotFoundError:
    near = difflib.get_close_matches(text, runs.names(session.engine.state), n=_NAMED_MAX, cutoff=0.5)
    return errors.NotFoundError(
        f"There is no run {text!r}.",
        meaning=f"It has not begun on {session.url}, or was deleted after 90 days.",
        todo=f"Did you mean {' or '.join(near)}?" if near else "See `onefold runs list`.",
    )


def _no_title(session: AdminSession, title: str) -> errors.NotFoundError:
    titles = sorted({name.partition("/")[0] for name in runs.names(session.engine.state)})
    near = difflib.get_close_matches(title, titles, n=1)
    there = f"There are runs of {', '.join(titles[:10])}." if titles else "No run was begun on this engine yet."
    return errors.NotFoundError(
        f"There is no run of {title!r}.",
        meaning=there,
        todo=f"Did you mean {near[0]}?" if near else "See `onefold runs list`.",
    )


def _seen(session: AdminSession, run: RunState) -> RunView:
    counts = runs.count(session.engine.ledger, run)
    return RunView(
        run=run.name,
        kind=run.kind,
        title=run.title,
        owner=run.owner,
        nominal_at_ms=run.nominal_at_ms,
        status=_status(run, counts),
        failure=run.failure,
        started_at_ms=run.started_at_ms,
        ended_at_ms=run.ended_at_ms,
        dispatched=run.dispatched,
        expected=counts.expected,
        done=counts.done,
        failed=counts.failed,
        dead=counts.dead,
        unknown=counts.unknown,
        missing=counts.missing,
    )


def _status(run: RunState, counts: Counts) -> RunStatus:
    if run.expected is None:
        return "dispatching" if run.failure is None else "stopped"
    if not runs.is_over(run, counts):
        return "running"
    return "complete" if counts.done >= counts.expected else "ended"


# -- while it runs ---------------------------------------------------------------------------------------------------


class RunMeter:
    """How fast a run progresses, from repeated checks."""

    def __init__(self) -> None:
        self._looks: deque[tuple[int, int, bool]] = deque()  # when, how many, and whether of messages

    def read(self, at_ms: int, run: RunView) -> RunProgress:
        """Add a check, and return how fast the run progresses.

        Args:
            at_ms: when the check was made, monotonic.
        """
        dispatching = run.status in ("dispatching", "stopped")
        if self._looks and self._looks[-1][2] != dispatching:
            self._looks.clear()  # from now on something else is counted
        self._looks.append((at_ms, run.dispatched if dispatching else run.settled, dispatching))
        while len(self._looks) > 2 and at_ms - self._looks[1][0] >= _RATE_MS:
            self._looks.popleft()
        since_ms, before, _ = self._looks[0]
        passed_ms = at_ms - since_ms
        per_second = (self._looks[-1][1] - before) * limits.SECOND_MS / passed_ms if passed_ms else None
        left = run.expected - run.settled
        eta_ms = None
        if not dispatching and left == 0:
            eta_ms = 0
        elif not dispatching and per_second:
            eta_ms = round(left / per_second * limits.SECOND_MS) if per_second > 0 else None
        return RunProgress(run=run, per_second=per_second, eta_ms=eta_ms)


Snapshots = Iterator[RunProgress]


def watched(session: AdminSession, name: str, *, wait: Callable[[int], object]) -> Snapshots:
    """Check a run again and again until nothing is left to do except by a person; that check is the last.

    Args:
        name: as for `one`. wait: waits for a number of milliseconds.

    Raises:
        As `one`; nothing is yielded then.
    """
    meter, name = RunMeter(), _named(session, name).name
    while True:
        before_ms = session.clock.monotonic_ms()
        progress = meter.read(before_ms, one(session, name))
        progress = msgspec.structs.replace(
            progress, ended=progress.run.is_over or _is_left_to_a_person(session, progress.run)
        )
        yield progress
        if progress.ended:
            return
        took_ms = session.clock.monotonic_ms() - before_ms
        wait(max(_LOOK_MS, took_ms * _LOOK_FACTOR))


def _is_left_to_a_person(session: AdminSession, run: RunView) -> bool:
    """Whether a run that stopped during its dispatch needs a person to continue, and none of its operations is running."""
    if run.status != "stopped":
        return False
    if run.kind == "map":
        return True  # it failed, or was stopped
    if run.settled < run.expected:
        return False
    tick = RecordKey("", run.title, run.run)
    given_up_ms = _given_up_ms(session, run, tick)
    if given_up_ms is None:
        return False
    return not any(row.event == "redrive" and row.at_ms >= given_up_ms for row in session.engine.ledger.of_key(tick))


def _given_up_ms(session: AdminSession, run: RunView, tick: RecordKey) -> int | None:
    """When a dispatcher's tick was given up: dead-lettered, held, or never taken by its queue; None if it was not."""
    (record,) = session.engine.store.read([tick], session.now_ms())
    if record is not None:
        is_dead = record.status == "failed" and record.budget_closed
        return record.updated_at_ms if is_dead or record.parked else None
    rows = [] if run.dispatched else session.engine.ledger.of_run(run.run)
    given_up = (row.at_ms for row in rows if row.key is None and row.event in ("dead-letter", "tick-dropped"))
    return max(given_up, default=None)
