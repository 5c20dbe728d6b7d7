"""Calls of one turn of the loop: one transaction on a file, at once in memory, each answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from onefold import errors
from onefold.contracts.entries import Entry
from onefold.contracts.settings import QueueSettings
from tests.local.house import House, play


class Counting:
    """An engine whose transactions of a turn are counted."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.synced: list[bool] = []
        inner = house.engine.together

        def together(calls: Sequence[Callable[[], object]], *, synced: bool = True) -> list[object]:
            self.sizes.append(len(calls))
            self.synced.append(synced)
            return inner(calls, synced=synced)

        monkeypatch.setattr(house.engine, "together", together)


def test_requests_of_one_turn_share_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(house: House) -> None:
        counting = Counting(house, monkeypatch)
        await asyncio.gather(*(house.send(f"b{number}") for number in range(50)))
        assert counting.sizes == [50]
        assert counting.synced == [True]
        found = await asyncio.gather(*(house.bodies(count_max=1) for _ in range(50)))
        assert sorted(body for (body,) in found) == sorted(f"b{number}" for number in range(50))
        assert counting.sizes == [50, 50]
        assert counting.synced == [True, False]  # what a power cut takes back of receives does no harm

    play(script, tmp_path / "q.db")


def test_a_lone_request_is_one_transaction_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(house: House) -> None:
        counting = Counting(house, monkeypatch)
        await house.send("a")
        await house.send("b")
        assert counting.sizes == []
        assert sorted(await house.bodies()) == ["a", "b"]

    play(script, tmp_path / "q.db")


def test_who_is_alone_waits_for_no_turn_and_joins_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(house: House) -> None:
        counting, turns = Counting(house, monkeypatch), house.queues.group_commit
        made: list[str] = []
        turns.is_alone = lambda: True
        with pytest.raises(StopIteration):  # done without waiting for anything
            turns.run(lambda: made.append("at once")).send(None)
        assert made == ["at once"]
        answers = iter([False])  # the second is not even asked: there is a turn to join
        turns.is_alone = lambda: next(answers)
        await asyncio.gather(turns.run(lambda: made.append("first")), turns.run(lambda: made.append("second")))
        assert made == ["at once", "first", "second"]
        assert counting.sizes == [2]

    play(script, tmp_path / "q.db")


def test_in_memory_a_call_is_made_at_once() -> None:
    async def script(house: House) -> None:
        order: list[str] = []
        one = house.queues.group_commit.run(lambda: order.append("made"))
        with pytest.raises(StopIteration):
            one.send(None)
        assert order == ["made"]

    play(script)


@pytest.mark.parametrize("on_file", [True, False])
def test_one_that_fails_leaves_the_others_alone(on_file: bool, tmp_path: Path) -> None:
    async def script(house: House) -> None:
        answers = await asyncio.gather(
            house.send("a"), house.send("x", queue="nobody"), house.send("b"), return_exceptions=True
        )
        assert isinstance(answers[1], errors.NotFoundError)
        assert sorted(await house.bodies()) == ["a", "b"]

    play(script, tmp_path / "q.db" if on_file else None)


def test_a_commit_that_fails_is_everybody_s_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(house: House) -> None:
        def together(*_: Any, **__: Any) -> list[object]:
            raise errors.StorageBusy("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(house.engine, "together", together)
            answers = await asyncio.gather(house.send("a"), house.send("b"), return_exceptions=True)
        assert [type(answer) for answer in answers] == [errors.StorageBusy] * 2
        await house.send("c")
        assert await house.bodies() == ["c"]

    play(script, tmp_path / "q.db")


def test_a_call_whose_caller_left_before_the_turn_is_not_made(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        made: list[str] = []
        run = house.queues.group_commit.run
        stays = asyncio.ensure_future(run(lambda: made.append("stays")))
        leaves = asyncio.ensure_future(run(lambda: made.append("leaves")))
        asyncio.get_running_loop().call_soon(leaves.cancel)  # after both have asked, before the turn's transaction
        await asyncio.gather(stays, leaves, return_exceptions=True)
        assert leaves.cancelled()
        assert made == ["stays"]

    play(script, tmp_path / "q.db")


def test_what_was_done_for_one_who_left_is_undone(tmp_path: Path) -> None:
    async def script(house: House) -> None:
        undone: list[int] = []

        def call() -> int:
            asyncio.get_running_loop().call_soon(task.cancel)  # comes between the commit and the answer
            return 7

        task = asyncio.ensure_future(house.queues.group_commit.run(call, undo=undone.append))
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        assert undone == [7]

    play(script, tmp_path / "q.db")


@pytest.mark.parametrize("on_file", [True, False])
def test_calls_of_several_writes_happen_as_a_whole_or_not_at_all(on_file: bool, tmp_path: Path) -> None:
    async def script(house: House) -> None:
        def half() -> None:
            house.engine.queues.create(QueueSettings(name="half"))
            house.engine.queues.open("orders").send([Entry(body="half")])
            raise errors.UsageError("no")

        def whole() -> int:
            house.engine.queues.create(QueueSettings(name="whole"))
            house.engine.queues.open("whole").send([Entry(body="w")])
            return 7

        first, second = await asyncio.gather(house.queues.call(half), house.queues.call(whole), return_exceptions=True)
        assert isinstance(first, errors.UsageError)
        assert second == 7
        with pytest.raises(errors.UsageError):
            await house.queues.call(half)
        assert [one.name for one in house.engine.queues.settings()] == ["orders", "orders-dead", "steps.fifo", "whole"]
        assert await house.bodies() == []
        assert await house.bodies("whole") == ["w"]

    play(script, tmp_path / "q.db" if on_file else None)
