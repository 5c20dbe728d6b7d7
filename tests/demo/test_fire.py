"""The fire kills when it is due, counts only what hit work, replaces at once, and leaves nobody behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from onefold.contracts.ledger import Row
from onefold.demo.processes import AT_WORK_MS, EVIDENCE_MS_MAX, FIRST_SHARE, LAST_SHARE, Fire, KillPlan, WorkerFailed
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock

READY = "import os, signal, sys; [os.write(1, part) for part in (b'ready', b' w%d' % os.getpid(), b'\\n')]"  # in pieces
WORKER = f"{READY}; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); sys.stdin.read()"
TURNS_MAX = 1_000


@contextmanager
def fire(tmp_path: Path, kills: int, stops: int = 0, code: str = WORKER) -> Iterator[tuple[Fire, ManualClock]]:
    clock = ManualClock()
    plan = KillPlan(0, SeededEntropy(1))
    plan.kills, plan.stops = [0.5] * kills, [0.5] * stops
    command = [sys.executable, "-c", code]
    with closing(Fire(command, 2, plan=plan, clock=clock, entropy=SeededEntropy(1), log=tmp_path / "log")) as burning:
        yield burning, clock


def until(burning: Fire, share: float, holds: Callable[[], bool]) -> None:
    """Step until something is so; a worker process takes a moment to begin or end."""
    nobody = threading.Event()
    for _ in range(TURNS_MAX):
        burning.step(share)
        if holds():
            return
        nobody.wait(0.01)
    raise AssertionError("it never came about")


def both_at_work(burning: Fire, clock: ManualClock) -> list[str]:
    """Wait until both workers are ready, and for as long as it takes to receive something then; their owner ids."""
    until(burning, 0.4, lambda: len(burning.ready()) == 2)
    clock.advance(AT_WORK_MS)
    return burning.ready()


def died(owner: str, messages: int) -> Row:
    return Row(at_ms=1, event="owner-dead", detail={"owner": owner, "messages": messages})


def alive(owner: str) -> bool:
    try:
        os.kill(int(owner.removeprefix("w")), 0)
    except ProcessLookupError:
        return False
    return True


def test_the_plan_spreads_kills_over_the_work_and_answers_each_once() -> None:
    plan = KillPlan(12, SeededEntropy(7))
    assert len(plan.kills) == 12
    assert len(plan.stops) == 3
    assert plan.kills == sorted(plan.kills)
    assert plan.kills[0] >= FIRST_SHARE
    assert plan.kills[-1] <= LAST_SHARE
    assert plan.due(0.0) == (0, 0)
    assert plan.due(1.0) == (12, 3)
    assert plan.due(1.0) == (0, 0)
    assert KillPlan(12, SeededEntropy(7)).kills == KillPlan(12, SeededEntropy(7)).kills


def test_nobody_is_killed_before_it_is_due(tmp_path: Path) -> None:
    with fire(tmp_path, kills=1) as (burning, _):
        until(burning, 0.4, lambda: len(burning.ready()) == 2)
        burning.step(0.4)
        assert burning.unproved_since_ms() is None


def test_a_worker_is_not_killed_before_it_can_have_received_something(tmp_path: Path) -> None:
    with fire(tmp_path, kills=1) as (burning, clock):
        until(burning, 0.4, lambda: len(burning.ready()) == 2)
        clock.advance(AT_WORK_MS - 1)
        burning.step(0.5)
        assert burning.unproved_since_ms() is None
        clock.advance(1)
        burning.step(0.5)
        assert burning.unproved_since_ms() == clock.now_ms()


def test_a_kill_is_replaced_at_once_and_counts_when_it_hit_work(tmp_path: Path) -> None:
    with fire(tmp_path, kills=1) as (burning, clock):
        before = both_at_work(burning, clock)
        burning.step(0.5)
        assert burning.unproved_since_ms() == clock.now_ms()
        assert burning.kills == 0
        (hit,) = set(before) - set(burning.ready())
        assert not alive(hit)
        until(burning, 0.5, lambda: len(burning.ready()) == 2)
        burning.hear([died("another", 3), died(hit, 5)])
        assert burning.hits == {hit: 5}
        assert (burning.kills, burning.misses, burning.unproved_since_ms()) == (1, 0, None)


def test_only_a_worker_with_work_in_hand_is_killed(tmp_path: Path) -> None:
    with fire(tmp_path, kills=1) as (burning, clock):
        one, other = both_at_work(burning, clock)
        burning.step(0.5, set)
        assert burning.unproved_since_ms() is None
        burning.step(0.5, lambda: {other})
        assert burning.unproved_since_ms() == clock.now_ms()
        assert burning.ready() == [one]


@pytest.mark.parametrize("noticed", [True, False])
def test_a_kill_of_an_idle_worker_is_made_up_for(tmp_path: Path, noticed: bool) -> None:
    with fire(tmp_path, kills=1) as (burning, clock):
        before = both_at_work(burning, clock)
        burning.step(0.5)
        (hit,) = set(before) - set(burning.ready())
        clock.advance(0 if noticed else EVIDENCE_MS_MAX + 1)
        burning.hear([died(hit, 0)] if noticed else [])
        assert (burning.kills, burning.misses) == (0, 1)
        until(burning, 0.5, lambda: burning.unproved_since_ms() is not None)


def test_a_worker_that_somebody_else_killed_is_replaced_and_counts(tmp_path: Path) -> None:
    with fire(tmp_path, kills=0) as (burning, _):
        until(burning, 0.4, lambda: len(burning.ready()) == 2)
        victim = burning.ready()[0]
        os.kill(int(victim.removeprefix("w")), signal.SIGKILL)
        until(burning, 0.4, lambda: burning.unproved_since_ms() is not None)
        burning.hear([died(victim, 1)])
        assert burning.hits == {victim: 1}


def test_a_stopped_worker_is_no_kill(tmp_path: Path) -> None:
    with fire(tmp_path, kills=0, stops=1) as (burning, clock):
        before = both_at_work(burning, clock)
        burning.step(0.5)
        (stopped,) = set(before) - set(burning.ready())
        until(burning, 0.5, lambda: not alive(stopped))
        assert (burning.stops, burning.kills, burning.unproved_since_ms()) == (1, 0, None)


def test_a_worker_that_ends_by_itself_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    code = "import sys; sys.exit('out of cheese')"
    with (
        fire(tmp_path, kills=0, code=code) as (burning, _),
        pytest.raises(WorkerFailed, match="out of cheese"),
    ):
        until(burning, 0.0, lambda: False)


def test_nobody_is_left_after_the_end(tmp_path: Path) -> None:
    deaf = f"{READY}; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.stdin.read(); signal.pause()"
    with fire(tmp_path, kills=0, code=deaf) as (burning, _):
        until(burning, 0.0, lambda: len(burning.ready()) == 2)
        owners = burning.ready()
    assert not any(alive(owner) for owner in owners)


def test_draining_ends_all_in_good_order(tmp_path: Path) -> None:
    with fire(tmp_path, kills=0) as (burning, _):
        until(burning, 0.0, lambda: len(burning.ready()) == 2)
        owners = burning.ready()
        burning.drain()
        assert not any(alive(owner) for owner in owners)


def test_more_work_is_sent_for_a_kill_only_when_somebody_can_be_hit_with_it(tmp_path: Path) -> None:
    with fire(tmp_path, kills=1) as (burning, clock):
        assert burning.takes_more_work(idle=False)  # no kill is due
        burning.step(0.6, lambda: ())
        assert not burning.takes_more_work(idle=False)  # the work that there is may do
        assert not burning.takes_more_work(idle=True)  # nobody is at work yet
        until_ready(burning)
        clock.advance(AT_WORK_MS)
        assert not burning.takes_more_work(idle=False)
        assert burning.takes_more_work(idle=True)
        burning.step(0.6)
        assert not burning.takes_more_work(idle=True)  # what the kill hit is not known yet


def until_ready(burning: Fire) -> None:
    """Wait for both workers without killing one."""
    nobody = threading.Event()
    for _ in range(TURNS_MAX):
        burning.step(0.6, lambda: ())
        if len(burning.ready()) == 2:
            return
        nobody.wait(0.01)
    raise AssertionError("the workers did not start")
