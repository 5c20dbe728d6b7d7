"""A renamed job finds its records on each store, whichever name they have, and sees a record that is made meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onefold.contracts.store import Ask, Complete, RecordKey
from onefold.runner.aliases import NamedRecords
from tests.stores.test_looking_at_records import PLACES, session

pytestmark = pytest.mark.slow

NAMES = ("ship", "book")


def run_of(job: str, key: str) -> Any:
    declared = SimpleNamespace(name="ship", aliases=("book",), names=NAMES)
    return SimpleNamespace(job=declared, facts=SimpleNamespace(key=RecordKey("", job, key)))


@pytest.mark.parametrize("where", PLACES)
def test_the_record_that_exists_counts(where: str) -> None:
    with PLACES[where]() as place, session(place.url) as opened:
        store, now_ms = opened.engine.store, opened.now_ms()

        def claim(job: str, key: str) -> Any:
            ask = Ask(
                key=RecordKey("", job, key), fingerprint="0" * 32, owner="elsewhere", lease_until_ms=now_ms + 600_000,
                start=True, expires_at_ms=now_ms + 86_400_000,
            )  # fmt: skip
            return store.claim([ask], now_ms)[0]

        done = claim("book", "1")
        assert store.write([(done.hold, Complete(result=b"1", expires_at_ms=now_ms + 86_400_000))], now_ms) == [True]
        runs = [run_of("ship", "1"), run_of("book", "2"), run_of("ship", "2"), run_of("ship", "3")]
        named = NamedRecords(store, runs, now_ms)
        assert [key.job for key in named.keys] == ["book", "book", "ship", "ship"]
        claim("ship", "2")
        claim("book", "3")
        assert named.changed([0, 1, 3], now_ms) == {1, 3}
        assert [key.job for key in NamedRecords(store, runs, now_ms).keys] == ["book", "ship", "ship", "book"]
