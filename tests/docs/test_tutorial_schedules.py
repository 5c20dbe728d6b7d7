"""The tutorial about schedules, as a reader would: its file, its commands in their order, its tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onefold.schedules.schedule import MISSED_MAX, RETRIES_MAX
from tests.docs.test_pages import ROOT, blocks, shell, write_files

PAGE = "docs/tutorial-schedules.md"


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    look, skipped, run, again, tests, runs, by_hand, synth = [
        text for language, _, text in blocks(PAGE) if language == "sh"
    ]
    assert re.findall(r"monthly_billing/([\dT:-]+Z)", shell(look, tmp_path)) == [
        "2027-03-01T03:00:00Z", "2027-04-01T02:00:00Z", "2027-05-01T02:00:00Z",
    ]  # fmt: skip
    assert "skipped" in shell(skipped, tmp_path)
    ran = shell(run, tmp_path)
    assert "ended: 1 tick sent" in ran
    assert ran.count("still here: still_here/") == 1
    assert "next: monthly_billing at" in ran
    assert "ended: 0 ticks sent" in shell(again, tmp_path)
    assert "2 passed" in shell(tests, tmp_path)
    assert "still_here/" in shell(runs, tmp_path).replace("\n", "")
    said = shell(by_hand, tmp_path)
    assert re.search(r"Sent monthly_billing/[\dT:-]+Z to billing-schedules", said)
    assert "monthly_billing is paused." in said
    assert "monthly_billing is resumed." in said
    written = shell(synth, tmp_path)
    assert re.search(r"2 .*AWS::Scheduler::Schedule\b", written)
    assert "aws.scheduler.scheduled-time" in written


def test_the_numbers_are_those_of_the_code() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"retries={RETRIES_MAX}" in text
    assert f"{MISSED_MAX:,} at most" in text
