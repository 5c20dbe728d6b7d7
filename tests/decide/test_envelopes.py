"""Envelopes: what EventBridge takes, in which words it refuses, and what travels."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onefold.errors import UsageError
from onefold.record.envelopes import (
    ENTRY_BYTES_MAX,
    EntryFault,
    Envelope,
    EventEntry,
    Origin,
    entry_of,
    event_id,
    instant,
    opened,
    replayed,
    sealed,
    time_text,
)

ORIGIN = Origin("123456789012", "eu-west-1")
ID = "01234567-89ab-4cde-8123-456789abcdef"
NOW_MS = 1_780_279_200_123  # 2026-06-01T02:00:00.123Z


def entry(**changes: Any) -> EventEntry:
    return EventEntry(**{"source": "shop", "detail_type": "Order placed", "detail": {"id": "o-1"}, **changes})


def seal(**changes: Any) -> Envelope:
    made = sealed(entry(**changes), ORIGIN, ID, NOW_MS)
    assert isinstance(made, Envelope), made
    return made


def fault(**changes: Any) -> EntryFault:
    made = sealed(entry(**changes), ORIGIN, ID, NOW_MS)
    assert isinstance(made, EntryFault), made
    return made


def test_the_envelope_is_eventbridges() -> None:
    assert json.loads(seal(resources=["arn:a"]).text) == {
        "version": "0",
        "id": ID,
        "detail-type": "Order placed",
        "source": "shop",
        "account": "123456789012",
        "time": "2026-06-01T02:00:00Z",
        "region": "eu-west-1",
        "resources": ["arn:a"],
        "detail": {"id": "o-1"},
    }


def test_the_time_is_the_senders_in_whole_seconds() -> None:
    made = seal(time_ms=1_999)
    assert (made.time_ms, made.value["time"]) == (1_000, "1970-01-01T00:00:01Z")


def test_numbers_of_a_detail_travel_as_they_were_written() -> None:
    detail = '{"total": 12345678901234567890.10, "rate": 1e2, "n": 1.0}'
    assert '"detail":' + detail in seal(detail=detail).text


def test_an_id_is_a_uuid_of_version_4() -> None:
    made = event_id("0123456789abcdef", "fedcba9876543210")
    assert [len(part) for part in made.split("-")] == [8, 4, 4, 4, 12]
    assert made[14] == "4"
    assert made[19] in "89ab"
    assert made != event_id("0123456789abcdef", "fedcba9876543211")


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"source": ""}, "InvalidArgument", "Source is a required argument"),
        ({"detail_type": ""}, "InvalidArgument", "DetailType is a required argument"),
        ({"source": None}, "InvalidArgument", "Source is a required argument"),
        ({"detail_type": "x" * 129}, "InvalidArgument", "has 129 characters"),
        ({"source": "aws.s3"}, "NotAuthorizedForSourceException", "'aws.s3'"),
        ({"detail": None}, "InvalidArgument", "Detail is a required argument"),
        ({"detail": ""}, "InvalidArgument", "Detail is a required argument"),
        ({"detail": "x"}, "MalformedDetail", "Detail is malformed."),
        ({"detail": "[]"}, "MalformedDetail", "not a JSON object"),
        ({"detail": [1]}, "MalformedDetail", "not a JSON object"),
        ({"detail": {"a": {1, 2}}}, "MalformedDetail", "Detail is malformed."),
        ({"detail": '{"a":' * 5_000}, "MalformedDetail", "Detail is malformed."),
        ({"resources": [1]}, "InvalidArgument", "list of strings"),
        ({"time_ms": 10**18}, "InvalidArgument", "not a valid instant"),
        ({"detail": {"a": "x" * ENTRY_BYTES_MAX}}, "InvalidArgument", "fewer than 1,048,576"),
    ],
)
def test_what_is_wrong_is_said_with_a_code(changes: dict[str, Any], code: str, words: str) -> None:
    found = fault(**changes)
    assert found.code == code
    assert words in found.message


def test_the_size_is_counted_as_putevents_counts() -> None:
    used = len("shop") + len("Order placed") + len('{"a":""}')
    text = "x" * (ENTRY_BYTES_MAX - used - 1)
    assert sealed(entry(detail={"a": text}), ORIGIN, ID, NOW_MS).__class__ is Envelope
    assert fault(detail={"a": text + "x"}).code == "InvalidArgument"
    assert "1,048,589 bytes" in fault(detail={"a": text}, time_ms=0).message  # a time counts 14


def test_a_replayed_event_differs_by_its_replay_name_only() -> None:
    before = seal(detail='{"n": 1.0}')
    after = replayed(before.text, "june")
    assert after.value == {**before.value, "replay-name": "june"}
    assert (after.id, after.time_ms) == (before.id, before.time_ms)
    assert '"n": 1.0' in after.text
    assert replayed(after.text, "july").value["replay-name"] == "july"
    assert opened(before.text) == before


def test_entries_are_read_as_putevents_has_them() -> None:
    full = {
        "Source": "shop",
        "DetailType": "x",
        "Detail": '{"a": 1}',
        "Resources": ["r"],
        "Time": "2026-06-01T02:00:00Z",
        "EventBusName": "orders",
        "TraceHeader": "t",
    }
    assert entry_of(full) == EventEntry(
        source="shop", detail_type="x", detail='{"a": 1}', resources=("r",), time_ms=1_780_279_200_000
    )
    assert entry_of({"Time": 1.5}).time_ms == 1_500
    assert sealed(entry_of({}), ORIGIN, ID, NOW_MS).__class__ is EntryFault
    assert sealed(entry_of({**full, "Resources": "r"}), ORIGIN, ID, NOW_MS).__class__ is EntryFault


@pytest.mark.parametrize(
    "fields", [[], "x", {"source": "shop"}, {"Time": "yesterday"}, {"Time": "2026-06-01T02:00:00"}]
)
def test_what_is_no_entry_is_refused(fields: Any) -> None:
    with pytest.raises(UsageError):
        entry_of(fields)


def test_instants_come_back() -> None:
    assert instant(time_text(NOW_MS)) == NOW_MS // 1000 * 1000
    assert instant("1969-12-31T23:59:59.5Z") == -500


def test_a_time_of_long_ago_is_one_that_can_be_read_again() -> None:
    long_ago = entry_of({"Source": "s", "DetailType": "x", "Detail": "{}", "Time": "0001-01-01T00:00:00Z"})
    made = sealed(long_ago, ORIGIN, ID, NOW_MS)
    assert isinstance(made, Envelope), made
    assert opened(made.text) == made
    assert json.loads(made.text)["time"] == "0001-01-01T00:00:00Z"
    assert instant("2026-06-01T04:00:00.5+02:00") == 1_780_279_200_500
