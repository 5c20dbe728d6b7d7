"""What a crash was is in the history when it is noticed: with the claim, before any handler runs, at every history level.

A crash here is an exception that nothing catches in the middle of a handler or of a verb of the backend; processes that are
killed are in tests/faces/test_crash_story.py.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import onefold
from onefold.contracts.ledger import History
from onefold.contracts.store import RecordKey, Release
from tests.run.bench import Bench, Fault, Process, opened
from tests.run.shop import START_MS, Shop

LEASE_MS = 30_000
OPTIONS: dict[str, Any] = {"retry": onefold.Retry(attempts=10, crashes=9)}


class Crash(KeyboardInterrupt):
    """The process ends in the middle of a handler."""


def crash_one(bench: Bench, **options: Any) -> Process:
    """A process that takes what there is and ends in its handler; its lease is over then."""
    process = bench.process(**options)
    with pytest.raises(Crash):
        process.run()
    bench.clock.advance(LEASE_MS)
    return process


def crashes(bench: Bench) -> list[tuple[str, int, object, object]]:
    return [
        (row.event, row.at_ms - START_MS, row.detail["fence"], row.detail["crashes"])
        for row in bench.history("o-1")
        if row.event in ("takeover", "unknown") and row.detail.get("started", True)
    ]


@pytest.mark.parametrize("one_transaction", [True, False], ids=["one transaction", "two systems"])
@pytest.mark.parametrize("history", ["off", "brief", "full"])
def test_each_crash_has_its_own_row_before_the_next_handler_is_called(history: History, one_transaction: bool) -> None:
    seen: list[list[tuple[str, int, object, object]]] = []

    def look(_order: Any, ctx: onefold.Context) -> str:
        seen.append(crashes(bench))
        if ctx.attempt < 3:
            raise Crash
        return "L-1"

    shop = Shop(look, **OPTIONS)
    options: dict[str, Any] = {"history": history, "one_transaction": one_transaction}
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        crash_one(bench, **options)
        second = crash_one(bench, **options)
        last = bench.process(**options)
        last.run()
        first_crash = [("takeover", LEASE_MS, 2, 1), ("unknown", LEASE_MS, 2, 1)]
        second_crash = [("takeover", 2 * LEASE_MS, 3, 2), ("unknown", 2 * LEASE_MS, 3, 2)]
        assert seen == [[], first_crash, first_crash + second_crash]
        assert crashes(bench) == first_crash + second_crash
        # Who listens hears each of them once, from the process that noticed it.
        for process in (second, last):
            assert [name for name in process.names() if name in ("takeover", "unknown")] == ["takeover", "unknown"]


@pytest.mark.parametrize("one_transaction", [True, False], ids=["one transaction", "two systems"])
def test_a_crash_is_reported_once_when_who_noticed_it_dies_before_the_start(one_transaction: bool) -> None:
    shop = Shop(Crash(), "L-1", **OPTIONS)
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        crash_one(bench)

        def dies(verb: str, side: str) -> None:
            if (verb, side) == ("store.start", "before"):
                raise Crash

        crash_one(bench, fault=dies, one_transaction=one_transaction)
        last = bench.process(one_transaction=one_transaction)
        last.run()
        assert crashes(bench) == [("takeover", LEASE_MS, 2, 1), ("unknown", LEASE_MS, 2, 1)]
        assert last.names() == ["takeover", "completed"]  # of the process that died without having started anything
        assert last.of("takeover").detail["started"] is False


def test_a_crash_is_not_lost_between_a_claim_and_a_history_that_is_another_system() -> None:
    shop = Shop(Crash(), "L-1", **OPTIONS)
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        crash_one(bench)

        def dies(verb: str, side: str) -> None:
            if (verb, side) == ("store.claim", "after"):
                raise Crash

        crash_one(bench, fault=dies, one_transaction=False)
        assert crashes(bench) == []
        last = bench.process(one_transaction=False)
        last.run()
        noticed = [("takeover", 2 * LEASE_MS, 2, 1), ("unknown", 2 * LEASE_MS, 2, 1)]
        assert crashes(bench) == noticed
        assert last.names() == ["takeover", "unknown", "takeover", "completed"]


def test_in_one_transaction_a_claim_and_its_rows_stand_or_fall_together() -> None:
    shop = Shop(Crash(), "L-1", **OPTIONS)
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        crash_one(bench)

        def dies(verb: str, side: str) -> None:
            if (verb, side) == ("store.claim", "after"):
                raise Crash

        crash_one(bench, fault=dies)
        assert crashes(bench) == [("takeover", LEASE_MS, 2, 1), ("unknown", LEASE_MS, 2, 1)]


def test_without_its_row_a_run_in_doubt_is_not_begun_and_others_are() -> None:
    shop = Shop(Crash(), "L-1", **OPTIONS)
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        crash_one(bench)
        shop.ship.send({"id": "o-2"})
        process = bench.process(one_transaction=False, fault=Fault("ledger.append"))
        process.run()
        assert shop.calls == [("o-1", 1), ("o-2", 1)]
        assert process.names() == ["released", "completed"]
        assert "history could not be written" in str(process.of("released").detail["why"])
        process.run_for(2 * LEASE_MS)
        assert shop.calls[2:] == [("o-1", 2)]
        assert [row[:1] + row[2:] for row in crashes(bench)] == [("takeover", 2, 1), ("unknown", 2, 1)]


def test_without_its_row_a_takeover_that_leaves_no_doubt_goes_on_and_its_row_is_written_later() -> None:
    shop = Shop("L-1", "L-2", **OPTIONS)
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        (run,) = bench.process().begin()  # its process ends before the start: the claim of a renamed job
        assert run.ask is not None
        assert run.claimed is not None
        bench.backend.store.write([(run.claimed.hold, Release(expires_at_ms=START_MS + 10**9, refund=True))], START_MS)
        unstarted = replace(run.ask, owner="gone", start=False)
        bench.backend.store.claim([unstarted], bench.clock.now_ms())
        bench.clock.advance(LEASE_MS)
        process = bench.process(one_transaction=False, fault=Fault("ledger.append"))
        process.run()
        assert shop.calls == [("o-1", 1)]
        assert process.names() == ["takeover", "completed"]
        (row,) = [row for row in bench.history("o-1") if row.event == "takeover"]
        assert row.detail == {
            "from": "gone",
            "fence": 3,
            "crashes": 0,
            "doubt": False,
            "started": False,
            "receive_count": 2,
        }


def test_a_claim_of_fresh_work_asks_the_history_for_nothing() -> None:
    shop = Shop("L-1")
    with opened(shop.app) as bench:
        shop.ship.send_many([{"id": f"o-{number}"} for number in range(3)])
        process = bench.process(one_transaction=False, history="off")
        process.run()
        assert not [call for call in process.calls if call.startswith("ledger")]
        assert bench.backend.ledger.of_key(RecordKey("", "ship", "o-0")) == []


def unknowns(bench: Bench) -> list[tuple[int, object]]:
    return [(row.at_ms - START_MS, row.detail["fence"]) for row in bench.history("o-1") if row.event == "unknown"]


@pytest.mark.parametrize("one_transaction", [True, False], ids=["one transaction", "two systems"])
def test_a_crash_that_the_end_of_its_run_reported_is_not_reported_again(one_transaction: bool) -> None:
    """As a child process's: its worker says that the run has died, and the next claim finds its record unknown."""
    shop = Shop(onefold.OutcomeUnknown("It died."), onefold.OutcomeUnknown("It died."), "L-1", **OPTIONS)
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})
        process = bench.process(one_transaction=one_transaction)
        process.run_for(60_000)
        assert process.names() == ["unknown", "retry", "unknown", "retry", "completed"]
        assert [fence for _, fence in unknowns(bench)] == [1, 2]


def test_a_reported_crash_whose_row_was_lost_is_reported_by_the_next_claim() -> None:
    shop = Shop(onefold.OutcomeUnknown("It died."), "L-1", **OPTIONS)
    with opened(shop.app) as bench:
        shop.ship.send({"id": "o-1"})

        def dies(verb: str, side: str) -> None:
            if (verb, side) == ("ledger.append", "before"):
                raise Crash

        crash_one(bench, fault=dies, one_transaction=False)
        assert unknowns(bench) == []
        crash_one(bench, fault=dies, one_transaction=False)  # nor can the one that finds it
        last = bench.process(one_transaction=False)
        last.run()
        assert [fence for _, fence in unknowns(bench)] == [2]
        assert [name for name in last.names() if name != "takeover"] == ["unknown", "completed"]
