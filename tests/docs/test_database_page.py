"""The page about one's own database, as a reader would: its programs and its commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_pages import blocks, shell, write_files

PAGE = "docs/how-to/use-your-database.md"


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    made, sold, taken = (shell(text, tmp_path) for language, _, text in blocks(PAGE) if language == "sh")
    assert made == ""
    assert sold.endswith("[('ulysses', 2)]\n")
    assert taken.endswith("1\n")
