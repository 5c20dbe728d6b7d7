"""The page about checking a template, as a reader would follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.check.test_check import CORPUS
from tests.docs.test_pages import blocks, shell


def of(page: list[tuple[str, str | None, str]], language: str) -> list[str]:
    return [text for one, _, text in page if one == language]


@pytest.mark.slow
def test_the_page_finds_shows_and_fixes_what_it_says(tmp_path: Path) -> None:
    page = blocks("docs/check.md")
    for language, title, text in page:
        if language in ("yaml", "hcl") and title:
            (tmp_path / title).parent.mkdir(exist_ok=True)
            (tmp_path / title).write_text(text, encoding="utf-8")
    scripts = [
        "\n".join(line for line in text.split("\n") if not line.startswith("pip install")) for text in of(page, "sh")
    ]
    first, second, third, fourth = [text for text in scripts if text.strip()]
    found = shell(first, tmp_path)
    of_template, of_worlds, of_python, of_terraform = of(page, "text")
    assert of_template.strip() in found
    assert "3 errors found" in found
    assert of_worlds.strip() in shell(f"onefold check {CORPUS / 'wrong' / 'worlds-condition.yaml'} || true", tmp_path)
    fixed = shell(second, tmp_path)
    assert "+      VisibilityTimeout: 181\n" in fixed
    assert "+        maxReceiveCount: 477\n" in fixed
    assert fixed.endswith("1 template checked: nothing found.\n" * 2)
    for language, title, text in page:
        if language == "python" and title:
            (tmp_path / title).parent.mkdir()
            (tmp_path / title).write_text(text, encoding="utf-8")
    assert shell(third, tmp_path) == of_python
    assert shell(f"{fourth.strip()} || true", tmp_path) == of_terraform
    assert "error[DUP005]" in shell("onefold check template.yaml || true", tmp_path)
