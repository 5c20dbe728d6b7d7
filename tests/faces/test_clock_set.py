"""What people are shown when the machine's clock was set: leases by the time of the file, as its workers have it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.admin import stuck
from onefold.admin.session import AdminSession
from onefold.contracts.store import Ask, Claimed, RecordKey
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.registry import Registry
from onefold.runtime.runtime import Runtime

HOUR_MS = 3_600_000
LEASE_MS = 60_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def session(tmp_path: Path, clock: ManualClock) -> Iterator[AdminSession]:
    """On a file where a call runs."""
    runtime = Runtime(Registry("a"), f"sqlite:///{tmp_path}/a.db", clock=clock, entropy=SeededEntropy(0))
    now_ms = clock.now_ms()
    ask = Ask(
        key=RecordKey("", "charge", "o-1"), fingerprint="", owner="elsewhere", lease_until_ms=now_ms + LEASE_MS,
        start=True, expires_at_ms=now_ms + 24 * HOUR_MS,
    )  # fmt: skip
    assert isinstance(runtime.engine.store.claim([ask], now_ms)[0], Claimed)
    session = AdminSession(runtime, actor="person:test")
    yield session
    session.close()


def test_a_clock_set_forward_makes_no_running_call_silent(session: AdminSession, clock: ManualClock) -> None:
    clock.jump(HOUR_MS)
    assert stuck.runs(session) == []
    clock.advance(LEASE_MS + 1_000)
    (found,) = stuck.runs(session)
    assert found.silent_ms == 1_000


def test_a_clock_set_back_does_not_hide_one_that_hangs(session: AdminSession, clock: ManualClock) -> None:
    clock.jump(-HOUR_MS)
    assert stuck.runs(session) == []
    clock.advance(2 * LEASE_MS + 2_000)  # every second lasts two until the wall is back
    (found,) = stuck.runs(session)
    assert found.key == "o-1"
