"""Powertools' own idempotency decorator on stores of onefold: what stays as it was, and what the fence adds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyPersistenceLayerError,
    IdempotencyValidationError,
)

import onefold
from onefold import errors
from onefold.clock import SystemClock
from onefold.contracts.verbs import Store
from onefold.engines.sqlite.store import SqliteStore
from onefold.manual_clock import ManualClock
from onefold.powertools import OnefoldPersistence
from tests.contract.sqlite_engine import open_engine


class Lambda:
    """As much of Lambda's context as Powertools asks for."""

    def __init__(self, left_ms: int = 60_000) -> None:
        self.left_ms = left_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.left_ms


class Shop:
    """A function under the decorator, and the calls that reached it."""

    def __init__(self, layer: OnefoldPersistence, left_ms: int = 60_000, **config: Any) -> None:
        self.calls: list[str] = []
        self.inside: Any = lambda order: f"paid {order['id']}"
        context: Any = Lambda(left_ms)
        settings = IdempotencyConfig(event_key_jmespath="id", lambda_context=context, **config)

        @idempotent_function(data_keyword_argument="order", persistence_store=layer, config=settings)  # type: ignore[untyped-decorator]
        def pay(order: dict[str, Any]) -> Any:
            self.calls.append(order["id"])
            return self.inside(order)

        def called(**order: Any) -> Any:
            return pay(order=order)

        self.pay = called


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().now_ms())


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    if request.param == "memory":
        yield onefold.memory_store()
        return
    engine = open_engine(tmp_path / "records.db", clock)
    yield SqliteStore(engine)
    engine.close()


def test_a_duplicate_is_answered_with_the_stored_result(store: Store, clock: ManualClock) -> None:
    shop = Shop(OnefoldPersistence(store, clock=clock))
    shop.inside = lambda order: {"paid": order["pence"]}
    assert [shop.pay(id="o-1", pence=5), shop.pay(id="o-1", pence=5), shop.pay(id="o-2", pence=7)] == [
        {"paid": 5}, {"paid": 5}, {"paid": 7},
    ]  # fmt: skip
    assert shop.calls == ["o-1", "o-2"]
    nothing = Shop(OnefoldPersistence(store, clock=clock))
    nothing.inside = lambda order: None
    assert [nothing.pay(id="o-3"), nothing.pay(id="o-3"), nothing.calls] == [None, None, ["o-3"]]


def test_what_raised_runs_again(store: Store, clock: ManualClock) -> None:
    shop = Shop(OnefoldPersistence(store, clock=clock))

    def fail(order: dict[str, Any]) -> None:
        raise KeyError(order["id"])

    shop.inside, works = fail, shop.inside
    with pytest.raises(KeyError):
        shop.pay(id="o-1")
    shop.inside = works
    assert (shop.pay(id="o-1"), shop.calls) == ("paid o-1", ["o-1", "o-1"])


def test_while_one_runs_another_call_is_refused(store: Store, clock: ManualClock) -> None:
    shop = Shop(OnefoldPersistence(store, clock=clock))

    def again(order: dict[str, Any]) -> str:
        shop.inside = lambda order: "second"
        with pytest.raises(IdempotencyAlreadyInProgressError):
            shop.pay(id=order["id"])
        return "first"

    shop.inside = again
    assert (shop.pay(id="o-1"), shop.pay(id="o-1"), shop.calls) == ("first", "first", ["o-1"])


def test_another_payload_under_the_same_key_is_refused_and_the_same_is_answered(
    store: Store, clock: ManualClock
) -> None:
    for cache in (False, True):
        shop = Shop(OnefoldPersistence(store, clock=clock), payload_validation_jmespath="pence", use_local_cache=cache)
        key = f"o-{cache}"
        assert [shop.pay(id=key, pence=5) for _ in range(2)] == [f"paid {key}"] * 2
        with pytest.raises(IdempotencyValidationError):
            shop.pay(id=key, pence=6)
        assert shop.calls == [key]


@pytest.mark.parametrize("ends", ["raises", "returns"])
def test_a_run_that_outlived_its_time_changes_nothing_of_the_one_that_took_over(
    store: Store, clock: ManualClock, ends: str
) -> None:
    """With Powertools' own stores a late failure deletes the record of the run that has finished: the next call runs."""
    shop = Shop(OnefoldPersistence(store, clock=clock), left_ms=1_000)

    def late(order: dict[str, Any]) -> str:
        shop.inside = lambda order: "the second"
        clock.advance(5_000)
        other = threading.Thread(target=lambda: answers.append(shop.pay(id=order["id"])))
        other.start()
        other.join()
        if ends == "raises":
            raise KeyError("late")
        return "the first"

    answers: list[str] = []
    shop.inside = late
    with pytest.raises(KeyError if ends == "raises" else IdempotencyPersistenceLayerError) as raised:
        shop.pay(id="o-1")
    if ends == "returns":
        assert isinstance(raised.value.__cause__, errors.LeaseLost)
    assert answers == ["the second"]
    assert shop.pay(id="o-1") == "the second"
    assert shop.calls == ["o-1", "o-1"]


def test_a_run_without_an_end_is_held_where_the_policy_says_so(store: Store, clock: ManualClock) -> None:
    layer = OnefoldPersistence(store, clock=clock, on_unknown="hold")
    shop = Shop(layer, left_ms=1_000)

    def dies(order: dict[str, Any]) -> None:
        raise SystemExit  # which Powertools does not catch: as if the process had ended

    shop.inside = dies
    with pytest.raises(SystemExit):
        shop.pay(id="o-1")
    clock.advance(5_000)
    for _ in range(2):
        with pytest.raises(IdempotencyPersistenceLayerError) as raised:
            shop.pay(id="o-1")
        assert isinstance(raised.value.__cause__, errors.OutcomeUnknown)
    assert shop.calls == ["o-1"]
    again = Shop(OnefoldPersistence(store, clock=clock), left_ms=1_000)
    again.inside = dies
    with pytest.raises(SystemExit):
        again.pay(id="o-2")
    clock.advance(5_000)
    again.inside = lambda order: "at last"
    assert again.pay(id="o-2") == "at last"


def test_options_and_urls_that_cannot_work() -> None:
    with pytest.raises(errors.UsageError, match="on_unknown"):
        OnefoldPersistence(onefold.memory_store(), on_unknown="perhaps")  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="lease"):
        OnefoldPersistence(onefold.memory_store(), lease="soon")
    with pytest.raises(errors.UsageError):
        OnefoldPersistence("mysql://localhost/shop")
