"""Result files of a map run, in the formats of Step Functions' ResultWriter: one record per child, and the manifest.

    SUCCEEDED_n.json  FAILED_n.json  PENDING_n.json     arrays of records; n from 0
    QUARANTINED_n.json                                  only in onefold: malformed rows, with line and reason
    manifest.json                                       which of these there are, and how large

The source of the run is read again, and each child's record gives its outcome. So nothing has to be kept for the files
while the run is in progress, and files that a crash left incomplete are simply written again. An embedded run has no
ARNs; it uses names of the same form, with the account 000000000000.

Never here: how a file is written (`sources.py`), deciding outcomes. Invariants: each item of the source is in exactly
one file; a record contains only what is stored.

Source: Step Functions developer guide, input-output-resultwriter; recorded answers of the service.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

from msgspec import Struct, json

from onefold.contracts.store import Record, RecordKey
from onefold.maps.children import MapChild, children, taken
from onefold.maps.jobs import MapJob
from onefold.maps.repeats import RowsMet
from onefold.maps.sources import Position, ResultLocation, Source
from onefold.maps.state import MapState, Repeats

if TYPE_CHECKING:
    from onefold.contracts.verbs import Store


Kind = Literal["SUCCEEDED", "FAILED", "PENDING", "QUARANTINED"]
KINDS: Final[tuple[Kind, ...]] = ("FAILED", "PENDING", "SUCCEEDED", "QUARANTINED")
FILE_BYTES_MAX: Final = 5 * 1024**3  # DG input-output-resultwriter: up to 5 GB per file
MANIFEST: Final = "manifest.json"
_ARN: Final = "arn:onefold:states:local:000000000000"


class ChildOutcome(Struct, frozen=True, kw_only=True):
    """How one child ended, or that it is still open.

    Args:
        name: its key. body: its payload as JSON text; for a batch, the list of its items.
        output: the stored result as JSON text; None if there is none.
        error, cause: why it failed. started_at, stopped_at: ISO 8601; None if it never started.
        redrives: how often its map run was redriven.
    """

    name: str
    body: str
    output: str | None = None
    error: str | None = None
    cause: str | None = None
    started_at: str | None = None
    stopped_at: str | None = None
    redrives: int = 0


def run_arn(mapping: str, token: str) -> str:
    """The name used in place of the Map Run's ARN: `...:mapRun:<machine>/<label>:<id>`."""
    return f"{_ARN}:mapRun:{mapping}/Items:{token}"


def record_of(kind: Kind, outcome: ChildOutcome, mapping: str, *, batched: bool) -> dict[str, Any]:
    """One child's record in the format of ResultWriter."""
    machine = f"{_ARN}:stateMachine:{mapping}/Items"
    body = f'{{"Items":{outcome.body}}}' if batched else outcome.body
    found: dict[str, Any] = {
        "ExecutionArn": f"{_ARN}:execution:{mapping}/Items:{outcome.name}",
        "Input": body,
        "InputDetails": {"Included": True},
        "Name": outcome.name,
    }
    if kind == "SUCCEEDED":
        found |= {"Output": outcome.output or "null", "OutputDetails": {"Included": True}}
    if kind == "FAILED":
        found |= {"Error": outcome.error or "Unknown", "Cause": outcome.cause or ""}
    redrivable = kind == "FAILED"
    found |= {
        "RedriveCount": outcome.redrives,
        "RedriveStatus": "REDRIVABLE" if redrivable else "NOT_REDRIVABLE",
        "StateMachineArn": machine,
        "Status": kind,
    }
    if not redrivable:
        found["RedriveStatusReason"] = f"Execution is {kind} and cannot be redriven"
    if outcome.started_at is not None:
        found["StartDate"] = outcome.started_at
    if outcome.stopped_at is not None and kind != "PENDING":
        found["StopDate"] = outcome.stopped_at
    return dict(sorted(found.items()))


def manifest(mapping: str, token: str, bucket: str, files: Mapping[Kind, Sequence[tuple[str, int]]]) -> dict[str, Any]:
    """The contents of the manifest.

    Args:
        bucket: where the files are; for a local run, their folder.
        files: keys and sizes in bytes of the files of each kind.
    """
    listed = {
        kind: [{"Key": key, "Size": size} for key, size in files.get(kind, ())]
        for kind in KINDS
        if kind != "QUARANTINED" or files.get(kind)
    }
    return {"DestinationBucket": bucket, "MapRunArn": run_arn(mapping, token), "ResultFiles": listed}


_BATCH: Final = 500
_FILES_MAX: Final = 1_000


class _File:
    """The files of one kind, each an array; when one is full, the next is begun."""

    def __init__(self, kind: Kind, location: ResultLocation, bytes_max: int) -> None:
        self._kind = kind
        self._location = location
        self._bytes_max = bytes_max
        self._stack = ExitStack()
        self._file: BinaryIO | None = None
        self._size = 0
        self.written: list[tuple[str, int]] = []

    def add(self, value: bytes) -> None:
        if self._file is not None and self._size + len(value) > self._bytes_max:
            self._finish()
        if self._file is None:
            self._file = self._stack.enter_context(self._location.writing(f"{self._kind}_{len(self.written)}.json"))
            self._size = self._file.write(b"[")
        else:
            self._size += self._file.write(b",")
        self._size += self._file.write(value)

    def _finish(self) -> None:
        assert self._file is not None
        self._size += self._file.write(b"]")
        name = f"{self._kind}_{len(self.written)}.json"
        self._file = None
        self._stack.close()
        prefix = f"{self._location.prefix}/" if self._location.prefix else ""
        self.written.append((prefix + name, self._size))

    def abandon(self, error: BaseException) -> None:
        """Close the open file without publishing it."""
        if self._file is not None:
            with suppress(type(error)):
                self._stack.__exit__(type(error), error, error.__traceback__)

    def end(self) -> None:
        """Close the last file, and remove files with higher numbers that an earlier round wrote."""
        if self._file is not None:
            self._finish()
        for number in range(len(self.written), _FILES_MAX):
            if not self._location.remove(f"{self._kind}_{number}.json"):
                break


def write_results(
    mapping: MapJob, state: MapState, source: Source, store: Store, location: ResultLocation, *,
    bytes_max: int = FILE_BYTES_MAX,
) -> Repeats:  # fmt: skip
    """Write all files of a run, the manifest last; they replace those of an earlier round.

    Args:
        bytes_max: most bytes of one file.

    Returns:
        The rows that repeat an earlier one; they are in the files like any other.

    Raises:
        OSError: the location cannot be written. Others as `formats.read`.
    """
    files = {kind: _File(kind, location, bytes_max) for kind in KINDS}
    stream = children(mapping, state.run, source, Position())
    try:
        with RowsMet() as met:
            while some := taken(stream, _BATCH):
                for kind, value in _records(mapping, state, store, some, met):
                    files[kind].add(json.encode(value))
        for file in files.values():
            file.end()
    except BaseException as error:
        for file in files.values():
            file.abandon(error)
        raise
    listed = manifest(state.map, state.id, location.bucket, {kind: file.written for kind, file in files.items()})
    with location.writing(MANIFEST) as file:
        file.write(json.encode(listed))
    return met.repeats


def _records(
    mapping: MapJob, state: MapState, store: Store, some: Sequence[MapChild], met: RowsMet
) -> Iterator[tuple[Kind, object]]:
    asked: list[RecordKey] = [child.record for child in some if child.outgoing is not None]
    records = iter(store.read(asked, state.ended_at_ms or state.round_at_ms) if asked else ())
    for child in some:
        for bad in child.malformed:
            yield "QUARANTINED", {"Line": bad.line, "Reason": bad.reason, "Row": bad.text}
        if child.outgoing is not None:
            kind, outcome = _outcome(child, next(records), state)
            if kind == "SUCCEEDED":
                met.add(child, batched=mapping.spec.batch is not None)
            yield kind, record_of(kind, outcome, state.map, batched=mapping.spec.batch is not None)


def _outcome(child: MapChild, record: Record | None, state: MapState) -> tuple[Kind, ChildOutcome]:
    assert child.outgoing is not None
    name = child.record.key
    outcome = ChildOutcome(name=name, body=child.outgoing.entry.body, redrives=state.round)
    if record is None:
        return "PENDING", outcome
    stopped_at = _instant(record.updated_at_ms)
    started_at = None if record.started_at_ms is None else _instant(record.started_at_ms)
    if record.fingerprint != child.outgoing.fingerprint and record.status != "failed":
        cause = "The key was used with another payload; this one was not run."
        return "FAILED", _with(outcome, error="ConflictError", cause=cause, at=(stopped_at, stopped_at))
    if record.status == "completed":
        output = (record.result or b"null").decode()
        return "SUCCEEDED", ChildOutcome(
            name=name, body=outcome.body, output=output, started_at=started_at, stopped_at=stopped_at,
            redrives=state.round,
        )  # fmt: skip
    failed = record.status == "failed" and record.budget_closed
    if failed or record.parked:
        failure = record.failure
        error, cause = ("Unknown", "") if failure is None else (failure.error, failure.summary)
        return "FAILED", _with(outcome, error=error, cause=cause, at=(started_at, stopped_at))
    return "PENDING", outcome


def _with(outcome: ChildOutcome, *, error: str, cause: str, at: tuple[str | None, str]) -> ChildOutcome:
    return ChildOutcome(
        name=outcome.name, body=outcome.body, error=error, cause=cause, started_at=at[0], stopped_at=at[1],
        redrives=outcome.redrives,
    )  # fmt: skip


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
