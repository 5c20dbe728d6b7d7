"""The office of the commands' tests with its page: the same app, in memory or in a file, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.web.application import Page
from onefold.web.safety import Access
from tests.faces.office import Office, Open, file_url
from tests.web.browsing import TOKEN, Reader


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture(params=["memory", "file"])
def there(request: pytest.FixtureRequest, office: Office, tmp_path: Path) -> Iterator[Open]:
    url = "sqlite://:memory:" if request.param == "memory" else file_url(tmp_path)
    with office.opened(url) as open_office:
        yield open_office


def page_of(there: Open, **access: object) -> Page:
    """The page of an open office."""
    made = Access(token=TOKEN, actor="person:ada", **access)  # type: ignore[arg-type]  # names of its fields
    return Page(there.session, access=made, app=there.office.app)


@pytest.fixture
def reader(there: Open) -> Reader:
    return Reader(page_of(there))
