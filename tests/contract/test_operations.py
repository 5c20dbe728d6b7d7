"""How operations are named in bytes, which files and databases keep, and how many of them a tally can hold in memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import msgspec
import pytest

from onefold.contracts.ledger import Row, tally_of
from onefold.contracts.store import RecordKey
from onefold.engines.postgres import record_sql as postgres
from onefold.engines.sqlite import file as sqlite

SHORT = RecordKey("tenant", "book_courier", "order-4711")
LONG = RecordKey("", "job", "k" * 49)
LONG_ON_POSTGRES = "6b" * 16 + "ddb995894755ad32f3b627956a6533c601f3e0a77e980c28566010156802bea195"
OPERATIONS = 20_000


@pytest.mark.parametrize(
    ("ident", "key", "stored"),
    [
        (sqlite.ident, SHORT, "6f726465722d3437313100f6426dc320096a54"),
        (sqlite.ident, LONG, "6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6bddb995894755ad32f3b627956a6533c601e1322ddb54f4b4c9"),
        (postgres.ident, SHORT, "6f726465722d3437313100b96b7fa77d7a2179700b1af749f4ae68"),
        (postgres.ident, LONG, LONG_ON_POSTGRES),
    ],
)  # fmt: skip
def test_operations_are_found_under_the_names_that_are_stored_already(ident, key: RecordKey, stored: str) -> None:
    assert ident(key).hex() == stored


def rows() -> Iterator[Row]:
    """Two of each operation, decoded one by one as a database gives them."""
    for event in ("dispatched", "completed"):
        for number in range(OPERATIONS):
            row = Row(at_ms=number, event=event, key=RecordKey("tenant", "book_courier", f"order-2026-{number:09d}"))
            yield msgspec.json.decode(msgspec.json.encode(row), type=Row)


def test_a_tally_keeps_little_of_each_operation() -> None:
    tracemalloc.start()
    try:
        assert tally_of(rows()) == {"completed": OPERATIONS}
        assert tracemalloc.get_traced_memory()[1] < 200 * OPERATIONS
    finally:
        tracemalloc.stop()
