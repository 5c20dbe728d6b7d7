"""Result files in the shapes of Step Functions' ResultWriter: fields of each record, the manifest."""

from __future__ import annotations

import pytest

from onefold.maps.results import ChildOutcome, Kind, manifest, record_of, run_arn

FIELDS = {
    "ExecutionArn", "Input", "InputDetails", "Name", "RedriveCount", "RedriveStatus", "StateMachineArn", "Status",
}  # fmt: skip
WHOLE = ChildOutcome(
    name="r/1", body='{"id":"1"}', output="2", error="E", cause="c", started_at="2026-06-01T00:00:00.000Z",
    stopped_at="2026-06-01T00:00:01.000Z", redrives=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("SUCCEEDED", {"Output", "OutputDetails", "RedriveStatusReason", "StartDate", "StopDate"}),
        ("FAILED", {"Error", "Cause", "StartDate", "StopDate"}),
        ("PENDING", {"RedriveStatusReason", "StartDate"}),
    ],
)
def test_the_fields_of_a_record(kind: Kind, more: set[str]) -> None:
    found = record_of(kind, WHOLE, "enrich", batched=False)
    assert set(found) == FIELDS | more
    assert (found["Input"], found["Status"], found["RedriveCount"]) == ('{"id":"1"}', kind, 1)
    assert found["RedriveStatus"] == ("REDRIVABLE" if kind == "FAILED" else "NOT_REDRIVABLE")


def test_a_child_that_never_started_has_no_times() -> None:
    found = record_of("PENDING", ChildOutcome(name="r/1", body="1"), "enrich", batched=False)
    assert not {"StartDate", "StopDate"} & set(found)


def test_the_input_of_a_batch_is_what_the_batcher_makes() -> None:
    assert (
        record_of("SUCCEEDED", ChildOutcome(name="r/1", body="[1,2]"), "m", batched=True)["Input"] == '{"Items":[1,2]}'
    )


def test_the_manifest() -> None:
    found = manifest("enrich", "4f2a", "bucket", {"SUCCEEDED": [("p/SUCCEEDED_0.json", 12)]})
    assert found == {
        "DestinationBucket": "bucket",
        "MapRunArn": "arn:onefold:states:local:000000000000:mapRun:enrich/Items:4f2a",
        "ResultFiles": {"FAILED": [], "PENDING": [], "SUCCEEDED": [{"Key": "p/SUCCEEDED_0.json", "Size": 12}]},
    }
    assert run_arn("m", "1").count(":") == 7
