"""The tutorial about map runs, as a reader would: its files, its commands in their order, what they say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from onefold.maps.rules import CONCURRENCY_DEFAULT, CONCURRENCY_MAX
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
    assert re.search(r"was exceeded: [56] of 200 items, 2 % are tolerated", first.replace("\n", " "))
    done = first.count("enriched c")
    told = shell(look, tmp_path)
    assert "the row has 2 cells, the header 3" in told
    assert "UnknownCountry" in told
    assert '"FAILED":[{"Key":"FAILED_0.json"' in told
    assert "run 1 failed: nightly.UnknownCountry: NO" in shell("onefold why nightly/2026-06-01/c101", tmp_path)
    assert "map run of enrich" in shell("onefold runs show nightly", tmp_path)
    again = shell(redrive, tmp_path)
    assert "nightly/2026-06-01: succeeded, redriven once" in again
    assert done + int(again.split()[-1]) == 200
    assert len(json.loads((tmp_path / RESULTS / "SUCCEEDED_0.json").read_text())) == 200


@pytest.mark.slow
def test_an_item_that_is_sent_back_by_itself_changes_its_run_at_the_redrive(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    make, start, _, _ = [text for language, _, text in blocks(PAGE) if language == "sh"]
    shell(make, tmp_path)
    shell(start, tmp_path)

    def stands() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(shell("onefold map show nightly/2026-06-01 nightly:app --json", tmp_path))
        return found

    ended, work = stands(), "onefold worker nightly:app --until-empty --no-progress"
    results = (tmp_path / RESULTS / "FAILED_0.json").read_bytes()
    shell("echo NO >> segments.txt", tmp_path)
    one = "onefold dlq redrive nightly:app --key nightly/2026-06-01/c101 --no-watch"
    assert "enriched c101" in shell(f"{one} && {work}", tmp_path)
    assert stands() == ended
    assert (tmp_path / RESULTS / "FAILED_0.json").read_bytes() == results
    said = shell(f"onefold map redrive nightly/2026-06-01 nightly:app --detach && {work}", tmp_path)
    assert "enriched c100" in said
    assert "enriched c101" not in said  # found done, and counted
    assert (stands()["done"], stands()["failed"]) == (199, 0)


def test_the_numbers_are_those_of_the_code() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert f"in flight: {CONCURRENCY_DEFAULT:,} by default, at most {CONCURRENCY_MAX:,}" in text
