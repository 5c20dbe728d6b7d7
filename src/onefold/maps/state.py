"""A map run's value in State: its source, its progress and its end. The value is small, however long the run is.

    map/<run>       this value; the run itself (`run/<run>`, runs.py) counts operations from the ledger, like any run

It keeps positions, not items: `sent` is the position after the last child whose message is in the queue, `settled` the
position before the first child that is not finished. There are at most `SPAN_MAX` children between the two; a process
that takes over the run reads their items again.
Never here: reading, sending, deciding. Invariant: every write of the value names the version that was read.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.contracts import documents
from onefold.contracts.state import Change
from onefold.maps.sources import Position, SourceIdentity
from onefold.runner.runs import MAP_PREFIX

if TYPE_CHECKING:
    from onefold.contracts.verbs import State

PREFIX: Final = MAP_PREFIX
RUN_CHARS_MAX: Final = 200  # it is a prefix of every item's key, which has at most 512 characters in all
_PAGE: Final = 100  # values in one read
_SHOWN: Final = 3  # names that the error for an unknown one lists
_NAME: Final = re.compile(r"[A-Za-z0-9_.:=@+-]+(/[A-Za-z0-9_.:=@+-]+)*")

Status = Literal["running", "succeeded", "failed", "aborted", "halted"]


class Repeats(Struct, frozen=True, omit_defaults=True):
    """Rows that repeat an earlier one, among those that are done.

    Args:
        answered: rows with the key and contents of an earlier one, answered from its record.
        given_again: rows of batches with the key of an earlier row; the handler was given both.
        lines: the lines on which the first of them begin.
    """

    answered: int = 0
    given_again: int = 0
    lines: tuple[int, ...] = ()


class MapState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A map run.

    Args:
        run: its name. map: name of the declared map. id: a token, for the name used in place of AWS's Map Run ARN.
        source: path or URL. identity: the identity of the source at the start. shape: the shape of the declaration
            (`MapJob.shape`).
        total: items of the source, including malformed rows.
        status: `running`; `succeeded`; `failed`: the threshold was exceeded; `aborted`: a person stopped it; `halted`:
            it waits until a person has done something (see `failure`), and nothing is lost.
        ending: how it will end; set once it is decided that nothing more is sent.
        sent, settled: positions, see above. children: sent so far. settled_children: how many of them before `settled`.
        done, failed: items of the settled children. malformed: malformed rows before `sent`.
        seen_done, seen_failed: items known to have ended by now, for people.
        earlier: items that earlier rounds have done. passed: how many of these are before `sent`.
        round: how often it was redriven. clearing: a redrive has begun and still removes the last round's dead letters.
        driver: token of the last writer, so that two drivers that write the same value can be distinguished.
        repeats: rows that repeat an earlier one; known when the results are written.
        started_at_ms, round_at_ms, ended_at_ms: start of the run, start of this round, and end.
        failure: what happened, why, and what to do, in one line for a person.
        results: location of its result files.
    """

    run: str
    map: str
    id: str
    source: str
    identity: SourceIdentity
    shape: str
    total: int
    started_at_ms: int
    round_at_ms: int
    results: str
    status: Status = "running"
    ending: Literal["failed", "aborted"] | None = None
    sent: Position = Position()
    settled: Position = Position()
    children: int = 0
    settled_children: int = 0
    done: int = 0
    failed: int = 0
    malformed: int = 0
    seen_done: int = 0
    seen_failed: int = 0
    earlier: int = 0
    passed: int = 0
    round: int = 0
    clearing: bool = False
    driver: str = ""
    repeats: Repeats = Repeats()
    ended_at_ms: int | None = None
    failure: str | None = None

    @property
    def over(self) -> bool:
        """Whether it no longer needs a driver."""
        return self.status != "running"

    @property
    def pending(self) -> int:
        """How many items were not sent yet."""
        return self.total - self.sent.index

    @property
    def ahead(self) -> int:
        """How many items an earlier round has done that this one has not reached yet."""
        return min(max(self.earlier - self.passed, 0), self.pending)


state_of: Final = msgspec.json.Decoder(MapState).decode
_state_or_none = documents.reader(MapState, None)


class VersionedMapState(Struct, frozen=True):
    """A map run and the version read from State.

    Args:
        state: the run's value. version: every change must name it.
    """

    state: MapState
    version: int


class OtherDriverError(Exception):
    """Another process drives this run, or a person has changed it."""


def check_name(run: str) -> None:
    """Refuse a name that cannot be a prefix of keys, a name in State and a folder of results.

    Raises:
        UsageError: the name is empty, too long, or has other characters.
    """
    if not _NAME.fullmatch(run) or ".." in run or len(run) > RUN_CHARS_MAX:
        raise errors.UsageError(
            f"{run!r:.80} is not a valid name for a map run.",
            meaning="It is a prefix of every item's key, and names the folder of the results.",
            todo=f"Use at most {RUN_CHARS_MAX} of A-Z a-z 0-9 and - _ . : = @ + , with / between parts: nightly/2026-06-01.",
        )


def read(state: State, run: str) -> VersionedMapState | None:
    """A map run by its name; None if there is none."""
    found = state.get([PREFIX + run])[0]
    if found is None:
        return None
    return VersionedMapState(documents.decode(PREFIX + run, found.value, state_of), found.version)


def read_all(state: State) -> list[MapState]:
    """All map runs that can be read, ordered by name."""
    names = list(state.names(PREFIX))
    pages = (state.get(names[first : first + _PAGE]) for first in range(0, len(names), _PAGE))
    found = (_state_or_none(one.value) for page in pages for one in page if one is not None)
    return [one for one in found if one is not None]


def must_read(state: State, run: str) -> VersionedMapState:
    """A map run by its name.

    Raises:
        NotFoundError: there is none.
    """
    found = read(state, run)
    if found is None:
        known = [name.removeprefix(PREFIX) for name in state.names(PREFIX)]
        shown = ", ".join(difflib.get_close_matches(run, known, n=_SHOWN) or known[:_SHOWN])
        raise errors.NotFoundError(
            f"There is no map run {run!r}.",
            meaning=f"There are {len(known)}, for example {shown}."
            if known
            else "There are no map runs on this engine.",
            todo="See `onefold map list`, or start it with `onefold map start`.",
        )
    return found


def write(state: State, after: MapState, version: int) -> VersionedMapState:
    """Replace the version that was read; version 0 stands for a new value.

    Raises:
        OtherDriverError: the value has changed since it was read.
    """
    value = msgspec.json.encode(after)
    if state.put([Change(PREFIX + after.run, value, version)])[0]:
        return VersionedMapState(after, version + 1)
    found = state.get([PREFIX + after.run])[0]
    if found is None or found.value != value:  # equal: written by an earlier try whose answer was lost
        raise OtherDriverError(after.run)
    return VersionedMapState(after, found.version)
