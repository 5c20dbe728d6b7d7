"""What an item's failure comes to: tried again, caught, failed for good; and that a caught run's own rows are taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

import onefold
from onefold import limits
from onefold.admin import maps
from onefold.contracts.ledger import Row
from onefold.contracts.queue import Delivery
from onefold.maps.mapper import Mapper
from onefold.maps.rules import Catcher, ItemFailures, MapSpec, Retrier
from onefold.record.delivery import Failed, Success
from onefold.testing.inline import inline
from tests.maps.map_world import RUN, NotThereError
from tests.maps.map_world import Row as Item

DELIVERY = Delivery(
    queue="items", message_id="m", receipt="r", body='{"id":"1"}', attributes={}, receive_count=1, sent_at_ms=0,
    first_received_at_ms=0, received_at_ms=0, visible_ms=1, key="run/1",
)  # fmt: skip
RETRY = Retrier(errors=("States.ALL",), interval_ms=1_000, retries=2)


def rules(**options: object) -> ItemFailures:
    return ItemFailures(spec=MapSpec(name="m", queue="items", **options))  # type: ignore[arg-type]


def retried(*names: str) -> list[Row]:
    return [Row(at_ms=place, event="retry", detail={"error": name}) for place, name in enumerate(names)]


def failed(error: str = "ValueError", kind: str = "transient", retry_in_ms: int | None = None) -> Failed:
    return Failed(kind=kind, error=error, summary="why", retry_in_ms=retry_in_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failure", "earlier", "kind", "wait_ms"),
    [
        (failed(), [], "transient", 1_000),
        (failed(), ["ValueError"], "transient", 2_000),
        (failed(), ["ValueError"] * 2, "permanent", None),
        (failed(kind="unknown"), [], "transient", 1_000),
        (failed(retry_in_ms=9_000), [], "transient", 9_000),
        (failed(retry_in_ms=10**12), [], "transient", limits.VISIBILITY_MS_MAX),
        (failed("shop.NotThere", kind="permanent"), [], "permanent", None),
        (failed(kind="dependency-down"), [], "dependency-down", None),
    ],
)
def test_the_names_of_errors_decide(failure: Failed, earlier: list[str], kind: str, wait_ms: int | None) -> None:
    found = rules(retry=(RETRY,)).judge(failure, DELIVERY, lambda: retried(*earlier), 0.0)
    assert isinstance(found, Failed)
    assert (found.kind, found.retry_in_ms) == (kind, wait_ms)


def test_a_permanent_failure_that_is_named_is_tried_again() -> None:
    named = rules(retry=(Retrier(errors=("shop.NotThere",)),))
    found = named.judge(failed("shop.NotThere", kind="permanent"), DELIVERY, list, 0.0)
    assert isinstance(found, Failed)
    assert found.kind == "transient"


def test_what_is_caught_has_succeeded_with_its_error() -> None:
    clauses = (Catcher(errors=("NotThere",), queue="operations"),)
    found = rules(catch=clauses).judge(failed("shop.NotThere"), DELIVERY, list, 0.0)
    assert isinstance(found, Success)
    assert found.result == b'{"Error":"shop.NotThere","Cause":"why"}'
    assert [one.queue for one in found.outbox] == ["operations"]
    other = rules(catch=clauses).judge(failed("ValueError"), DELIVERY, list, 0.0)
    assert isinstance(other, Failed)


def test_a_redrive_begins_a_new_count() -> None:
    named = rules(retry=(Retrier(errors=("ValueError",), retries=1),))
    rows = [*retried("ValueError"), Row(at_ms=2, event="dead-letter"), Row(at_ms=3, event="redrive")]
    kinds = []
    for history in (rows[:1], rows, [*rows, Row(at_ms=4, event="lease-lost")], [*rows, *retried("ValueError")]):
        found = named.judge(failed(), DELIVERY, lambda history=history: history, 0.0)  # type: ignore[misc]
        assert isinstance(found, Failed)
        kinds.append(found.kind)
    assert kinds == ["permanent", "transient", "transient", "permanent"]


def test_the_rows_of_a_caught_run_are_taken_back(tmp_path: Path) -> None:
    app = onefold.App("rows")
    queue, operations = app.queue("items"), app.queue("operations")

    @app.map(queue, key="{id}", effect="transactional", retry=(), catch=operations, results=str(tmp_path / "r"))
    def grind(row: Item, ctx: onefold.Context) -> None:
        ctx.connection.execute("CREATE TABLE IF NOT EXISTS made (id TEXT)")
        ctx.connection.execute("INSERT INTO made VALUES (?)", (row.id,))
        if row.id == "1":
            raise NotThereError("no")

    (tmp_path / "in.csv").write_text("id,qty\n0,0\n1,1\n2,2\n")
    with inline(app) as world:
        maps.start(app, "grind", run=RUN, items=str(tmp_path / "in.csv"), turns=False)
        mapper = Mapper(app.runtime(), grind, RUN)
        operations_name = operations.name
        told = []
        while not mapper.over:
            mapper.advance()
            found = world.app.runtime().engine.queues.peek(operations_name)
            told += [one.body for one in found]
            world.app.queues.pop(operations_name, None)  # nobody works on it here
            world.run()
        database = app.runtime().engine.database  # type: ignore[attr-defined]  # SQLite's
        made = database.read(lambda link: [row[0] for row in link.execute("SELECT id FROM made ORDER BY id")])
        assert made == ["0", "2"]
        assert maps.progress(app, RUN).done == 3
        assert world.app.runtime().engine.queues.depth(operations_name).visible == 1


@pytest.mark.parametrize(
    ("retry", "earlier", "kind"),
    [
        (("NotThere",), [], "transient"),  # with or without module
        (("other.NotThere",), [], "permanent"),
        (("States.ALL",), [], "permanent"),
        (("PermanentError",), ["shop.NotThere"], "transient"),
        (("PermanentError",), ["shop.NotThere", "shop.Gone"], "permanent"),
        (("PermanentError",), ["shop.NotThere"] * 2, "permanent"),
    ],
)
def test_a_permanent_failure_is_tried_again_as_often_as_it_is_named(
    retry: tuple[str, ...], earlier: list[str], kind: str
) -> None:
    named = rules(retry=(Retrier(errors=retry, retries=2),))
    found = named.judge(failed("shop.NotThere", kind="permanent"), DELIVERY, lambda: retried(*earlier), 0.0)
    assert isinstance(found, Failed)
    assert found.kind == kind


def test_permanent_failures_and_others_have_their_own_counts() -> None:
    spec = rules(retry=(Retrier(errors=("PermanentError",), retries=1), Retrier(errors=("States.ALL",), retries=1)))
    earlier = ["shop.NotThere"]
    found = spec.judge(failed("shop.NotThere", kind="permanent"), DELIVERY, lambda: retried(*earlier), 0.0)
    assert isinstance(found, Failed)
    assert found.kind == "permanent"
    found = spec.judge(failed("ValueError"), DELIVERY, list, 0.0)
    assert isinstance(found, Failed)
    assert found.kind == "transient"
