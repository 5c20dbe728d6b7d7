"""What is said of a guarded call whose record is gone, whose outcome is unknown, or whose result could not be recorded."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from tests.run.bench import Elsewhere


class Flushed(Elsewhere):
    """A store that loses its records, as a Redis that is flushed."""

    def flush(self) -> None:
        self._store = onefold.memory_store()


def guard(function: Any, store: Any, **options: Any) -> Any:
    once: Any = onefold.once
    own = {"key": "{i}", "name": "pay", "store": store, "clock": ManualClock(), "entropy": SeededEntropy(0)}
    return once(**own | options)(function)


@pytest.mark.parametrize("on_unknown", ["rerun", "hold"])
def test_a_call_whose_record_is_gone_is_not_said_to_be_taken_over(on_unknown: str) -> None:
    store = Flushed(onefold.memory_store())

    def pay(i: str) -> str:
        store.flush()
        return i

    with pytest.raises(errors.LeaseLost, match="its record is gone from the store") as caught:
        guard(pay, store, on_unknown=on_unknown)("a")
    assert "taken over" not in str(caught.value)


def test_a_failed_call_whose_record_is_gone_says_so_too() -> None:
    store = Flushed(onefold.memory_store())

    def pay(i: str) -> str:
        store.flush()
        raise ValueError(i)

    with pytest.raises(ValueError, match="a") as caught:
        guard(pay, store)("a")
    assert "its record is gone from the store" in caught.value.__notes__[0]
