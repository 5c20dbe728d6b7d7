"""The office, open on the engine in memory and on a file: every use case is run on both. The command line as processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.cli import render
from tests.faces.office import Office, Open, file_url
from tests.faces.processes import Commands


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture(params=["memory", "file"])
def there(request: pytest.FixtureRequest, office: Office, tmp_path: Path) -> Iterator[Open]:
    url = "sqlite://:memory:" if request.param == "memory" else file_url(tmp_path)
    with office.opened(url) as open_office:
        yield open_office


@pytest.fixture
def commands(folder: Path) -> Iterator[Commands]:
    """The command line as processes, in the folder that a test module lays out."""
    found = Commands(folder)
    yield found
    found.end()


@pytest.fixture(autouse=True)
def own_console() -> Iterator[None]:
    """The console keeps the width of its first drawing: each test has one of its own."""
    render.console.cache_clear()
    yield
    render.console.cache_clear()
