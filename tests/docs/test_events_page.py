"""The page about events is run as it stands: every program and every command, and what they end in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onefold.decide.operators import _OPERATORS
from tests.docs.test_pages import blocks, shell, write_files

PAGE = "docs/how-to/events.md"


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    said = [shell(text, tmp_path) for language, _, text in blocks(PAGE) if language == "sh"]
    put, worked, asked, refused, replayed = said
    assert refused == "Everything was delivered.\n"
    assert put == "taken\nMalformedDetail\n"
    assert "billed o-1" in worked
    assert "billed o-2" in worked
    assert '{"alert":"order o-1"}' in worked
    assert '$.detail.total should be one of [{"numeric":[">=",100]}], and it is "640"' in asked
    assert "2 events would be replayed." in replayed
    assert "Replay again of all: completed; 2 events, 3 messages." in replayed
    assert "billed" not in replayed
    assert "duplicate: answered from the record" in replayed
    archived = json.loads(shell("onefold events archive all shop:app --json", tmp_path))["events"]
    assert len(archived) == 2


def test_the_table_has_every_operator() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [name for name in (*_OPERATORS, "$or") if not any(f"`{name}`" in row for row in rows)] == []
