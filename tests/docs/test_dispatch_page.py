"""The page about dispatchers and joins is run as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold import limits
from onefold.runner import dispatcher, runs
from tests.docs.test_pages import ROOT, blocks, shell, write_files

PAGE = "docs/how-to/dispatch-and-join.md"


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    work, show = [text for language, _, text in blocks(PAGE) if language == "sh"]
    said = shell(work, tmp_path)
    before, _, after = said.partition("the worker is dead")
    assert "closed" not in before
    assert "dispatching" in after
    assert after.count("closed: 1200 bills") == 1
    shown = shell(show, tmp_path)
    assert "over, and 1 operation not done" in shown
    assert "c-13/" in shown
    assert "begun again" not in shown  # it went on where it had been killed


def test_the_numbers_are_those_of_the_code() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"batches of {dispatcher.BATCH}" in text
    assert f"kept for {runs.KEPT_MS // limits.DAY_MS} days" in text
