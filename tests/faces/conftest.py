"""The office, open on the engine in memory and on a file: every use case is run on both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faces.office import Office, Open, file_url


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture(params=["memory", "file"])
def there(request: pytest.FixtureRequest, office: Office, tmp_path: Path) -> Iterator[Open]:
    url = "sqlite://:memory:" if request.param == "memory" else file_url(tmp_path)
    with office.opened(url) as open_office:
        yield open_office
