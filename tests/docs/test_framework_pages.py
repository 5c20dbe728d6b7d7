"""The pages about web frameworks, as a reader would: their programs and their commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_pages import blocks, shell, write_files


@pytest.mark.slow
def test_django(tmp_path: Path) -> None:
    page = "docs/how-to/django.md"
    setup, use = (text for language, _, text in blocks(page) if language == "sh" and "pip install" not in text)
    shell(setup, tmp_path)
    write_files(page, tmp_path)
    said = shell(f"export PYTHONPATH=$PWD:${{PYTHONPATH:-}}\n{use}", tmp_path)
    assert "System check identified no issues" in said
    assert said.count("mail about o-1, attempt 1, key shop-tasks-confirm-") == 1
    assert said.endswith("SUCCESSFUL 1\n")


@pytest.mark.slow
def test_fastapi(tmp_path: Path) -> None:
    page = "docs/how-to/fastapi.md"
    write_files(page, tmp_path)
    (command,) = (text for language, _, text in blocks(page) if language == "sh")
    first, *_, last = shell(command, tmp_path).splitlines()
    assert first == "{'job': 'o-1'} {'state': 'waiting', 'parcel': None}"
    assert last == "{'state': 'done', 'parcel': 'parcel of o-1'}"
