"""The tutorial about map runs, as a reader would: its files, its commands in their order, what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onefold.decide.mapplan import CONCURRENCY_DEFAULT, CONCURRENCY_MAX
from tests.docs.test_pages import ROOT, blocks, shell, write_files

PAGE = "docs/tutorial-map-runs.md"
RESULTS = ".onefold/map-runs/nightly/2026-06-01"


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    make, start, look, redrive = [text for language, _, text in blocks(PAGE) if language == "sh"]
    shell(make, tmp_path)
    first = shell(start, tmp_path)
    assert "nightly/2026-06-01: failed" in first
    assert "was exceeded: 6 of 200 items, 2 % are tolerated" in first.replace("\n", " ")
    done = first.count("enriched c")
    told = shell(look, tmp_path)
    assert "the row has 2 cells, the header 3" in told
    assert "UnknownCountry" in told
    assert '"FAILED":[{"Key":"FAILED_0.json"' in told
    again = shell(redrive, tmp_path)
    assert "nightly/2026-06-01: succeeded, redriven once" in again
    assert done + int(again.split()[-1]) == 200
    assert len(json.loads((tmp_path / RESULTS / "SUCCEEDED_0.json").read_text())) == 200


def test_the_numbers_are_those_of_the_code() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"not finished: {CONCURRENCY_DEFAULT:,}, at most {CONCURRENCY_MAX:,}" in text
