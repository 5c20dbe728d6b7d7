"""Records as items: every record comes back as it was, and no two operations share a place."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from onefold import errors
from onefold.contracts import transitions
from onefold.contracts.store import OutboxItem, Record, RecordKey
from onefold.engines.aws.dynamodb.items import Layout, item_key_of, item_of, job_part, key_of, record_of, stamp_of
from onefold.testing.records import BROKEN, KEPT_MS, LEASE_MS, NOW, ask

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["", "-", "--", "~", "~state", "#", "a#b", "%", "%23", "sha256:", "sha256:" + "0" * 64, "é" * 512, "x" * 512]
)
KEYS = st.builds(RecordKey, TEXTS, TEXTS.map(lambda text: text[:120]), TEXTS)


def fresh(key: RecordKey) -> Record:
    _, record = transitions.claim(None, ask(key), NOW)
    assert record is not None
    return record


@pytest.mark.parametrize("layout", [1, 2])
@given(KEYS)
@example(RecordKey("", "é" * 120, "\U0001f600" * 512))
@example(RecordKey("~ledger", "j#%", "k#%"))
def test_a_key_comes_back_from_its_item(layout: Layout, key: RecordKey) -> None:
    item = item_of(fresh(key), "s", layout)
    assert key_of(item) == key
    assert {name: item[name] for name in ("pk", "sk")} == item_key_of(key, layout)
    assert 1 <= len(item["pk"]["S"].encode()) <= 2_048
    assert 1 <= len(item["sk"]["S"].encode()) <= 1_024
    assert not item["pk"]["S"].startswith("~")


@pytest.mark.parametrize("layout", [1, 2])
@given(KEYS, KEYS)
@example(RecordKey("", "j", "k"), RecordKey("-", "j", "k"))
@example(RecordKey("~a", "j", "k"), RecordKey("-~a", "j", "k"))
@example(RecordKey("", "a#b", "c"), RecordKey("", "a", "b#c"))
@example(RecordKey("", "a%23b", "c"), RecordKey("", "a#b", "c"))
def test_two_operations_have_two_places(layout: Layout, one: RecordKey, other: RecordKey) -> None:
    assert (item_key_of(one, layout) == item_key_of(other, layout)) == (one == other)


@pytest.mark.parametrize("layout", [1, 2])
def test_a_record_comes_back_as_it_was(layout: Layout) -> None:
    record = fresh(RecordKey("t", "j", "k"))
    full = replace(
        record,
        status="completed", parked=True, doubt=True, budget_closed=True, result='{"é":"\\u0000"}'.encode(), failure=BROKEN,
        outbox=[OutboxItem(queue="q", body="{}", attributes={"a": "b"}, delay_ms=5)], message_id="m", sent_at_ms=NOW - 1,
    )  # fmt: skip
    bare = replace(record, expires_at_ms=None, started_at_ms=None, message_id=None, sent_at_ms=None)
    counted = replace(record, crashes=1, crashes_total=2)
    for one in (record, full, bare, counted):
        item = item_of(one, "stamp-1", layout)
        assert record_of(item) == one
        assert stamp_of(item) == "stamp-1"


def test_time_to_live_is_a_day_after_the_record_or_its_lease_has_ended() -> None:
    record = fresh(RecordKey("t", "j", "k"))
    assert item_of(record, "s", 1)["ttl"] == {"N": str(-(-(NOW + KEPT_MS) // 1000) + 86_400)}
    odd = replace(record, expires_at_ms=NOW + 1)
    assert item_of(odd, "s", 1)["ttl"] == {"N": str(-(-(NOW + LEASE_MS) // 1000) + 86_400)}
    assert "ttl" not in item_of(replace(record, expires_at_ms=None), "s", 1)


@pytest.mark.parametrize("name", ["fence", "status", "sk", "attempts", "owner"])
def test_an_item_that_lacks_something_is_none_of_ours(name: str) -> None:
    item = item_of(fresh(RecordKey("t", "j", "k")), "s", 1)
    del item[name]
    with pytest.raises(errors.StorageError, match="is not a record of onefold"):
        record_of(item)


@given(KEYS, st.one_of(KEYS.map(lambda key: key.job), st.sampled_from(["a", "a#", "a#b", "a*", "a?", "${a}", "ä"])))
@example(RecordKey("", "a#b", "c"), "a")
@example(RecordKey("", "ab", "c"), "a*")
@example(RecordKey("", "ab", "c"), "a?")
@example(RecordKey("", "x", "c"), "*")
def test_the_pattern_of_a_job_fits_its_own_records_only(key: RecordKey, job: str) -> None:
    """In layout 2, as IAM matches `dynamodb:LeadingKeys`: `*` is any text, `?` any character, `${` begins a variable."""
    part = job_part(job)
    assert part.isascii()
    assert not set(part) & set("*?${}#~")
    own = item_key_of(key, 2)["pk"]["S"]
    assert own.startswith(f"{part}#") == (key.job == job)
