"""Small things that a first use trips over: each says what to write."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold.cli import render
from onefold.manual_clock import ManualClock
from onefold.observe.timeline import Line
from onefold.testing import inline


def test_a_time_zone_is_called_tz() -> None:
    app = onefold.App("shop")
    wrong: Any = {"timezone": "UTC"}
    with pytest.raises(onefold.errors.UsageError, match=r"has no option 'timezone'\. Did you mean 'tz'\?"):
        app.schedule("rate(1 day)", **wrong)


def test_the_world_takes_an_app_and_its_clock_durations() -> None:
    name: Any = "shop:app"
    with (
        pytest.raises(
            onefold.errors.UsageError, match=r"given 'shop:app', which is not an onefold\.App\. Import the app"
        ),
        inline(name),
    ):
        pass
    clock = ManualClock(0)
    clock.advance("30m")
    clock.advance(5)
    assert clock.now_ms() == 30 * 60_000 + 5
    with pytest.raises(onefold.errors.UsageError, match="advance"):
        clock.advance("half an hour")


def test_a_long_event_keeps_the_column_of_texts(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        Line(
            at_ms=0, at="", event=event, text="text of it", rule="a rule", message_id=None, actor=None, told_by="ledger"
        )
        for event in ("sent", "running-elsewhere")
    ]  # fmt: skip
    render.draw_steps(steps)
    drawn = capsys.readouterr().out.splitlines()[1:]
    assert {line.index("text of" if "text of" in line else "a rule") for line in drawn} == {35}
