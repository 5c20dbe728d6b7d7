"""The pages about frameworks, as a reader would: their programs and their commands."""

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
@pytest.mark.parametrize("name", ["fastapi", "flask"])
def test_orders_over_http(tmp_path: Path, name: str) -> None:
    page = f"docs/how-to/{name}.md"
    write_files(page, tmp_path)
    (command,) = (text for language, _, text in blocks(page) if language == "sh" and "pip install" not in text)
    said = shell(command, tmp_path).splitlines()
    placed, *_, last = [line for line in said if line.startswith("{")]
    assert placed == f"{{'job': 'o-1'}} {shown('waiting', None, name)}"
    assert last == shown("done", "parcel of o-1", name)


def shown(state: str, parcel: str | None, name: str) -> str:
    """As the framework's client gives it: Flask sorts the names."""
    found = {"state": state, "parcel": parcel}
    return str(dict(sorted(found.items())) if name == "flask" else found)


@pytest.mark.slow
def test_from_celery(tmp_path: Path) -> None:
    page = "docs/how-to/from-celery.md"
    write_files(page, tmp_path)
    (command,) = (text for language, _, text in blocks(page) if language == "sh")
    assert shell(command, tmp_path).count("charged o-1") == 1


@pytest.mark.slow
def test_from_powertools(tmp_path: Path) -> None:
    page = "docs/how-to/from-powertools.md"
    write_files(page, tmp_path)
    commands = [text for language, _, text in blocks(page) if language == "sh" and "pip install" not in text]
    said = [shell(command, tmp_path) for command in commands]
    assert said == [
        "charging o-1\n[{'charged': 995}, {'charged': 995}]\n",
        "charging o-2\n{'charged': 500} {'charged': 500}\n",
    ]
