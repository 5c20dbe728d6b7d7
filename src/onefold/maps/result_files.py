"""What a map run leaves behind, in the shapes of Step Functions' ResultWriter: one record per child, and the manifest.

    SUCCEEDED_n.json  FAILED_n.json  PENDING_n.json     arrays of records; n from 0
    QUARANTINED_n.json                                  ours: rows that are no items, with line and reason
    manifest.json                                       which of these there are, and how large

Source: Step Functions developer guide, input-output-resultwriter; recorded answers (see the facts behind section 6 there).
An embedded run has no ARNs: names in their form stand in their fields, with the account 000000000000.
Never here: writing files. Invariant: a record is made of what is stored; nothing in it depends on who writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, json

Kind = Literal["SUCCEEDED", "FAILED", "PENDING", "QUARANTINED"]
KINDS: Final[tuple[Kind, ...]] = ("FAILED", "PENDING", "SUCCEEDED", "QUARANTINED")
FILE_BYTES_MAX: Final = 5 * 1024**3  # DG input-output-resultwriter: up to 5 GB a file
MANIFEST: Final = "manifest.json"
_ARN: Final = "arn:onefold:states:local:000000000000"


class Outcome(Struct, frozen=True, kw_only=True):
    """How one child stands.

    Args:
        name: its key. body: its payload as JSON text; of a batch the list of its items.
        output: the stored result as JSON text; None where there is none.
        error, cause: why it failed. started_at, stopped_at: ISO 8601; None where it never started.
        redrives: how often its run was redriven.
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
    """What stands for the Map Run's ARN: `...:mapRun:<machine>/<label>:<id>`."""
    return f"{_ARN}:mapRun:{mapping}/Items:{token}"


def record_of(kind: Kind, outcome: Outcome, mapping: str, *, batched: bool) -> dict[str, Any]:
    """One child as ResultWriter writes it."""
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
    """The manifest.

    Args:
        bucket: where the files are; of a local run their folder.
        files: of each kind, keys and sizes in bytes.
    """
    listed = {
        kind: [{"Key": key, "Size": size} for key, size in files.get(kind, ())]
        for kind in KINDS
        if kind != "QUARANTINED" or files.get(kind)
    }
    return {"DestinationBucket": bucket, "MapRunArn": run_arn(mapping, token), "ResultFiles": listed}


def as_bytes(value: object) -> bytes:
    """A value of a result file."""
    return json.encode(value)
