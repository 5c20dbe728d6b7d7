"""The conformance page names what the tests show: each row, and no row that no test shows any more."""

from __future__ import annotations

import pytest

from tests import conformance


def test_every_row_that_is_shown_is_on_the_page(request: pytest.FixtureRequest) -> None:
    text = conformance.PAGE.read_text()
    lacking = conformance.missing(request.session.items, text)
    assert not lacking, "docs/conformance.md is out of date: make conformance"


def test_the_page_has_no_row_that_failed_or_that_no_test_shows(request: pytest.FixtureRequest) -> None:
    text = conformance.PAGE.read_text()
    assert "**FAIL**" not in text
    config = request.config
    if config.option.keyword or config.option.markexpr or config.args != ["tests"]:
        return  # only a whole run has collected every row
    shown = {row.cells() for item in request.session.items for row in conformance.rows_of(item)}
    lines = [line.rpartition(" | ")[0] for line in text.splitlines() if line.endswith(" pass |")]
    assert [line for line in lines if line not in shown] == []
