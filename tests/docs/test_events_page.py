"""The page about events is run as it stands: every program and every command, and what they end in."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

import onefold
from onefold.errors import NotFoundError
from onefold.events.operators import _OPERATORS
from onefold.testing import inline
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
    assert '$.detail.total should be one of [{"numeric":[">=",100]}], but it is "640"' in asked
    assert "2 events would be replayed." in replayed
    assert "Replay again of all: completed; 2 events, 3 messages." in replayed
    assert "billed" not in replayed
    assert "duplicate: returned the stored result" in replayed
    archived = json.loads(shell("onefold events archive all shop:app --json", tmp_path))["events"]
    assert len(archived) == 2


def test_the_table_has_every_operator() -> None:
    page = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [name for name in (*_OPERATORS, "$or") if not any(f"`{name}`" in row for row in rows)] == []


def test_a_pipe_sends_a_replayed_event_on_and_the_job_behind_it_answers() -> None:
    app, done = onefold.App("shop"), []
    source, orders = app.queue("source"), app.queue("orders")
    bus = app.bus("orders")
    bus.rule("all", {"source": ["shop"]}, to=source)
    bus.archive("all")
    app.pipe(source, orders, transform="<$.body.detail>")

    @app.job(orders, key="{id}")
    def work(order: dict[str, str]) -> None:
        done.append(order["id"])

    with inline(app) as world:
        bus.put([onefold.events.EventEntry(source="shop", detail_type="x", detail={"id": "o-1"})])
        world.run()
        assert (done, world.names().count("duplicate")) == (["o-1"], 0)
        bus.replay("all", datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC), name="again")
        world.run()
        assert (done, world.names().count("duplicate")) == (["o-1"], 1)


def test_a_put_inside_a_handler_to_a_queue_that_was_removed_parks_the_run() -> None:
    app = onefold.App("shop")
    work, target = app.queue("work"), app.queue("target")
    bus = app.bus("orders")
    bus.rule("all", {"source": ["shop"]}, to=target)

    @app.job(work, key="{id}")
    def place(order: dict[str, str]) -> None:
        app.runtime().engine.queues.drop("target")
        bus.put([onefold.events.EventEntry(source="shop", detail_type="x", detail=order)])

    with inline(app) as world:
        place.send({"id": "o-1"})
        with suppress(NotFoundError):  # behind the job: it receives from every queue of the app
            world.run()
        assert len(app.runtime().engine.queues.peek("work-held")) == 1
        (record,) = app.runtime().engine.records.find("o-1")
        assert record.status == "unknown"
