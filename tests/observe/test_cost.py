"""What messages cost: the model's arithmetic, its prices, and its constants against the items that are really written."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import errors
from onefold.contracts import transitions
from onefold.contracts.ledger import Row
from onefold.contracts.store import Ask, Claimed, Complete, RecordKey
from onefold.engines.aws.dynamodb import items, ledger, notes
from onefold.entropy import SeededEntropy
from onefold.observe import cost
from onefold.observe.cost import PATHS, Traffic, Usage, Way

TABLE = files("onefold.observe").joinpath("prices.json").read_bytes()
PRICES = cost.read_prices(TABLE, "us-east-1")
PLAIN = Way(queue="orders")
TRAFFIC = Traffic()


def calls(used: Usage) -> dict[str, float]:
    return {name: round(count, 6) for name, count in used.calls.items() if count > 1e-9}


# -- paths -----------------------------------------------------------------------------------------------------------


def test_a_first_delivery_in_a_batch_of_ten() -> None:
    used = cost.usage("first", PLAIN, TRAFFIC)
    assert calls(used) == {
        "sqs:SendMessageBatch": 1.0,
        "sqs:ReceiveMessage": 0.1,
        "sqs:DeleteMessageBatch": 0.1,
        "dynamodb:BatchExecuteStatement": 0.2,
    }
    assert (used.write_units, used.invocations) == (2.1, 0.1)
    assert used.sqs_requests == pytest.approx(1.2)


def test_a_first_delivery_alone() -> None:
    used = cost.usage("first", PLAIN, Traffic(batch=1))
    assert calls(used) == {
        "sqs:SendMessageBatch": 1.0, "sqs:ReceiveMessage": 1.0, "sqs:DeleteMessageBatch": 1.0,
        "dynamodb:PutItem": 1.0, "dynamodb:UpdateItem": 1.0,
    }  # fmt: skip


def test_a_duplicate_runs_nothing_and_leaves_a_row_of_history() -> None:
    used = cost.usage("duplicate", PLAIN, TRAFFIC)
    assert calls(used)["dynamodb:BatchExecuteStatement"] == 0.1
    assert calls(used)["dynamodb:BatchWriteItem"] == 0.1
    assert used.write_units == 3
    silent = cost.usage("duplicate", Way(queue="orders", history="off"), TRAFFIC)
    assert "dynamodb:BatchWriteItem" not in silent.calls
    assert silent.write_units == 1


def test_a_failure_is_received_twice_and_deleted_once() -> None:
    used = cost.usage("retry", PLAIN, TRAFFIC)
    assert calls(used) == {
        "sqs:SendMessageBatch": 1.0, "sqs:ReceiveMessage": 1.1, "sqs:DeleteMessageBatch": 1.0,
        "sqs:ChangeMessageVisibilityBatch": 0.1, "dynamodb:BatchExecuteStatement": 0.2, "dynamodb:BatchWriteItem": 0.1,
        "dynamodb:PutItem": 1.0, "dynamodb:UpdateItem": 2.0,
    }  # fmt: skip
    assert used.write_units == 7.1
    assert used.invocations == pytest.approx(1.1)


def test_full_history_costs_units_on_every_path() -> None:
    full = Way(queue="orders", history="full")
    for path in PATHS:
        assert cost.usage(path, full, TRAFFIC).write_units > cost.usage(path, PLAIN, TRAFFIC).write_units


def test_a_result_over_a_kilobyte_costs_another_unit() -> None:
    assert cost.usage("first", PLAIN, Traffic(result_bytes=400)).write_units == 2.1
    assert cost.usage("first", PLAIN, Traffic(result_bytes=700)).write_units == 3.1
    assert cost.usage("duplicate", PLAIN, Traffic(result_bytes=700)).write_units == 4, (
        "a refused write pays by the item"
    )


def test_bodies_over_64_kb_are_several_requests() -> None:
    small = cost.usage("first", PLAIN, Traffic(body_bytes=1_000, batch=1)).sqs_requests
    large = cost.usage("first", PLAIN, Traffic(body_bytes=65_537, batch=1)).sqs_requests
    assert (small, large) == (3, 5)


def test_records_elsewhere_and_workers_leave_their_parts_out() -> None:
    used = cost.usage("retry", Way(queue="orders", table=False, memory_mb=None), TRAFFIC)
    assert not [name for name in used.calls if name.startswith("dynamodb:")]
    assert (used.write_units, used.invocations, used.gb_seconds, used.stored_byte_months) == (0, 0, 0, 0)
    assert set(cost.dollars(used, Way(queue="orders", table=False, memory_mb=None), PRICES)) == {"SQS"}


def test_lambda_is_paid_by_memory_and_time() -> None:
    half = cost.usage("first", PLAIN, Traffic(run_ms=990)).gb_seconds
    assert half == pytest.approx(0.5 * 1.0 / 10)
    assert cost.usage("first", Way(queue="orders", memory_mb=1_024), Traffic(run_ms=990)).gb_seconds == pytest.approx(
        2 * half
    )
    assert cost.usage("first", Way(queue="orders", threads=1), Traffic(run_ms=990)).gb_seconds > 9 * half


SOME = st.builds(
    Traffic,
    duplicates=st.floats(0, 0.5),
    retries=st.floats(0, 0.5),
    batch=st.integers(1, 100).map(float),
    sent_together=st.integers(1, 10),
    body_bytes=st.integers(1, 1_048_576),
    result_bytes=st.integers(0, 300_000),
)
WAYS = st.builds(
    Way,
    queue=st.just("orders"),
    fifo=st.booleans(),
    memory_mb=st.none() | st.integers(128, 10_240),
    table=st.booleans(),
    history=st.sampled_from(["off", "brief", "full"]),
)


@given(WAYS, SOME)
def test_nothing_is_negative_larger_batches_never_cost_more_and_the_mix_is_the_sum(way: Way, traffic: Traffic) -> None:
    traffic.check()
    mixed = cost.mixed(way, traffic)
    assert all(count >= -1e-9 for count in mixed.calls.values())
    bill = cost.dollars(mixed, way, PRICES)
    assert all(usd >= 0 for usd in bill.values())
    alone = msgspec.structs.replace(traffic, batch=1.0, again_batch=1.0)
    for path in PATHS:
        together, single = cost.usage(path, way, traffic), cost.usage(path, way, alone)
        assert sum(together.calls.values()) <= sum(single.calls.values()) + 1e-9
        assert together.write_units == pytest.approx(single.write_units)
    parts = {
        "first": 1 - traffic.duplicates - traffic.retries,
        "duplicate": traffic.duplicates,
        "retry": traffic.retries,
    }
    summed = sum(
        sum(cost.dollars(cost.usage(path, way, traffic), way, PRICES).values()) * parts[path] for path in PATHS
    )
    assert math.isclose(sum(bill.values()), summed, rel_tol=1e-9)


@pytest.mark.parametrize(
    "wrong",
    [{"messages": 0}, {"duplicates": 1.5}, {"batch": 0.5}, {"sent_together": 11}, {"body_bytes": 2_000_000},
     {"duplicates": 0.6, "retries": 0.6}, {"result_bytes": -1}],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.UsageError):
        Traffic(**wrong).check()


# -- prices ----------------------------------------------------------------------------------------------------------


def test_the_price_table_has_a_date_pages_and_a_warning() -> None:
    assert PRICES.as_of == "2026-06"
    assert "check them on AWS's pricing pages" in PRICES.note
    assert all("pricing" in price.page for price in PRICES.items.values())


def test_a_million_plain_messages_by_hand() -> None:
    """The figures of the price pages, multiplied on paper."""
    way = Way(queue="orders", keep_ms=30 * 86_400_000)
    traffic = Traffic(duplicates=0, retries=0)
    bill = cost.dollars(cost.mixed(way, traffic).times(1_000_000), way, PRICES)
    assert bill["SQS"] == pytest.approx(1.2 * 0.40)
    assert bill["Lambda"] == pytest.approx(0.1 * 0.20 + 1_000_000 / 10 * 0.5 * 0.110 * 0.0000166667)
    assert bill["DynamoDB"] == pytest.approx(2.1 * 0.625)
    stored_gb = 1_000_000 * (cost.RECORD_BYTES + cost.COMPLETED_BYTES + 40 + 200 + 100) / 1_073_741_824
    assert bill["DynamoDB storage"] == pytest.approx(stored_gb * (0.25 + 0.20))
    assert cost.polls_dollars(way, PRICES) == pytest.approx(5 * 3 * 60 * 24 * 30 * 0.40 / 1e6)
    assert cost.watch_dollars(5, 2, PRICES) == pytest.approx(1.10)


def test_fifo_requests_cost_a_quarter_more() -> None:
    used = cost.usage("first", PLAIN, TRAFFIC)
    standard, fifo = (cost.dollars(used, Way(queue="q", fifo=one), PRICES)["SQS"] for one in (False, True))
    assert fifo == pytest.approx(1.25 * standard)


def test_another_region_or_form_is_refused_with_the_next_step() -> None:
    with pytest.raises(errors.NotFoundError, match="no prices for eu-west-1") as refused:
        cost.read_prices(TABLE, "eu-west-1")
    assert "--prices FILE" in refused.value.todo
    with pytest.raises(errors.UsageError, match="cannot be read"):
        cost.read_prices(b"{}", "us-east-1")
    lacking = json.loads(TABLE)
    del lacking["regions"]["us-east-1"]["logs_gb"]
    with pytest.raises(errors.UsageError, match="lacks logs_gb"):
        cost.read_prices(json.dumps(lacking).encode(), "us-east-1")


# -- constants -------------------------------------------------------------------------------------------------------


def bytes_of(item: dict[str, Any]) -> int:
    """The size of an item as DynamoDB counts it (developer guide, "DynamoDB item sizes and formats").

    Names and texts in UTF-8, a number about one byte for two digits and one more, a truth value one byte.
    """
    size = 0
    for name, value in item.items():
        ((kind, content),) = value.items()
        size += len(name.encode())
        size += {"S": lambda c: len(c.encode()), "N": lambda c: (len(c) + 1) // 2 + 1, "BOOL": lambda _c: 1}[kind](
            content
        )
    return size


def test_the_size_of_a_record_is_what_the_model_says() -> None:
    key = RecordKey("", "book_courier", "k" * 40)
    ask = Ask(
        key=key, fingerprint="f" * 32, owner="0123456789abcdef", lease_until_ms=1_795_000_000_000, start=True,
        expires_at_ms=1_803_000_000_000, message_id="5fea7756-0ea4-451a-a703-a558b933e274", sent_at_ms=1_795_000_000_000,
    )  # fmt: skip
    claimed, record = transitions.claim(None, ask, 1_795_000_000_000)
    assert record is not None
    size = bytes_of(items.item_of(record, "0123456789abcdef", 1)) - 40
    assert cost.RECORD_BYTES * 0.8 <= size <= cost.RECORD_BYTES
    assert isinstance(claimed, Claimed)
    done = transitions.write(
        record,
        claimed.hold,
        Complete(result=b'"' + b"x" * 198 + b'"', expires_at_ms=1_803_000_000_000),
        1_795_000_000_500,
    )
    assert done is not None
    more = bytes_of(items.item_of(done, "0123456789abcdef", 1)) - 40 - 200 - size
    assert -20 <= more <= cost.COMPLETED_BYTES


def test_the_size_and_number_of_rows_are_what_the_model_says() -> None:
    row = Row(
        at_ms=1_795_000_000_000, event="retry", key=RecordKey("", "book_courier", "k" * 40), queue="orders",
        actor="0123456789abcdef", message_id="5fea7756-0ea4-451a-a703-a558b933e274",
        detail={"attempt": 1, "of": 5, "delay_ms": 1_000, "kind": "transient", "error": "TimeoutError", "summary": "x" * 60},
    )  # fmt: skip
    table: Any = SimpleNamespace(entropy=SeededEntropy(1), layout=1)
    found = ledger.DynamoLedger(table).items([row])
    assert len(found) == cost.ITEMS_PER_ROW
    assert cost.COUNTED_RUNS == notes.DUE_RUNS
    largest = max(bytes_of(item) for item in found) - 2 * 40  # the key stands in the row and in the item's own key
    assert cost.ROW_BYTES * 0.8 <= largest <= cost.ROW_BYTES
