"""The page about schedules, map runs and events on AWS: its file, its commands, and what it says of numbers and names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onefold.maps.rules import BUSY
from tests.docs.test_pages import ROOT, blocks, shell, write_files

PAGE = "docs/how-to/schedules-and-maps-on-aws.md"


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    synth, later = [text for language, _, text in blocks(PAGE) if language == "sh"]
    written = dict(re.findall(r'(?m)^\s*\d+ "Type": "(AWS::(\w+)::\w+)"', shell(synth, tmp_path)))
    assert written.keys() == {
        "AWS::Events::EventBus",
        "AWS::Events::Rule",
        "AWS::Scheduler::Schedule",
        "AWS::Scheduler::ScheduleGroup",
        "AWS::StepFunctions::StateMachine",
    }
    assert int(shell(later, tmp_path).split()[-1]) == 2  # of both functions


def test_the_page_is_in_the_navigation_and_names_what_there_is() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert "schedules-and-maps-on-aws.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"`{BUSY}`" in text
