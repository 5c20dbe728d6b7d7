"""A child of a map run that Step Functions performs: a result once per key, a failure by its name, nothing in a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.aws.lambda_function import LambdaHandler
from onefold.contracts.store import Ask, RecordKey
from onefold.maps.rules import BUSY, ItemReader
from onefold.options import ItemCatch, ItemRetry

RUN = "enrich/n-1"


class Row:
    """What the handlers did."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.fails: dict[str, Exception] = {}


class PoisonedError(Exception):
    """Not to be eaten."""


@pytest.fixture
def did() -> Row:
    return Row()


@pytest.fixture
def app(tmp_path: Path, did: Row) -> Iterator[onefold.App]:
    found = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db")
    customers, operations = found.queue("customers"), found.queue("operations")
    letters = found.queue("letters")

    @found.job(letters, key="{id}")
    def letter(payload: dict[str, str]) -> None:
        """Nothing."""

    @found.map(
        customers,
        key="{id}",
        name="enrich",
        retry=[ItemRetry(errors=["ConnectionError"])],
        catch=[ItemCatch(queue=operations, errors=["PoisonedError"])],
    )
    def enrich(row: dict[str, str]) -> dict[str, str]:
        did.seen.append(row["id"])
        if row["id"] in did.fails:
            raise did.fails[row["id"]]
        letter.send({"id": row["id"]})
        return {"said": row["name"].upper()}

    @found.map(customers, key="{0}", name="load", items=ItemReader(format="json"), batch=3)
    def load(rows: list[list[int]]) -> int:
        did.seen.append(rows)
        return sum(row[0] for row in rows)

    yield found
    found.close()


@pytest.fixture
def handler(app: onefold.App, monkeypatch: pytest.MonkeyPatch) -> LambdaHandler:
    """Of the app, with its file's queues in the place of SQS's."""
    app.runtime()  # what is open stays
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    return app.lambda_handler()


def event(identity: str, **cells: str) -> dict[str, Any]:
    """What the task of a state machine sends."""
    return {"onefold": {"map": "enrich", "run": RUN}, "item": {"id": identity, "name": "ada", **cells}}


def raised(call: Callable[[], Any]) -> tuple[str, str]:
    """What Lambda tells of a failure: errorType and errorMessage."""
    with pytest.raises(Exception) as found:  # noqa: PT011 - its name is what is looked at
        call()
    return type(found.value).__name__, str(found.value)


def test_a_child_answers_its_result_and_a_second_time_from_its_record(
    app: onefold.App, handler: LambdaHandler, did: Row
) -> None:
    assert handler(event("1")) == {"said": "ADA"}
    assert app.runtime().engine.ledger.tally(RUN) == {"completed": 1}
    assert handler(event("1")) == {"said": "ADA"}
    assert did.seen == ["1"]
    queues = app.runtime().engine.queues
    assert [one.key for one in queues.open("letters").receive(10)] == ["1"]
    assert queues.open("customers").depth().visible == 0


def test_the_record_is_that_of_the_embedded_run(app: onefold.App, handler: LambdaHandler) -> None:
    handler(event("7"))
    runtime = app.runtime()
    (record,) = runtime.engine.store.read([RecordKey("", "enrich", f"{RUN}/7")], runtime.clock.now_ms())
    assert record is not None
    mapping = app.maps["enrich"]
    own = mapping.message(RUN, [{"id": "7", "name": "ada"}], ["7"])
    assert (record.key, record.fingerprint) == (own.record, own.fingerprint)


def test_a_batch_is_one_call(handler: LambdaHandler, did: Row) -> None:
    event = {"onefold": {"map": "load", "run": "load/1"}, "items": [[1], [2], [4]]}
    assert handler(event) == handler(event) == 7
    assert did.seen == [[[1], [2], [4]]]


@pytest.mark.parametrize(
    ("failure", "name"),
    [
        (ConnectionError("down"), "ConnectionError"),
        (PoisonedError("bad"), "PoisonedError"),
        (OSError("disk"), "OSError"),
        (onefold.PermanentError("never"), "PermanentError"),
    ],
)
def test_a_failure_has_the_name_that_the_rules_know(
    handler: LambdaHandler, did: Row, failure: Exception, name: str
) -> None:
    did.fails["1"] = failure
    assert raised(lambda: handler(event("1")))[0] == name
    assert raised(lambda: handler(event("1")))[0] == name  # the state machine decides how often
    assert did.seen == ["1", "1"]
    del did.fails["1"]
    assert handler(event("1")) == {"said": "ADA"}


def test_what_failed_sends_nothing(app: onefold.App, handler: LambdaHandler, did: Row) -> None:
    did.fails["1"] = PoisonedError("bad")
    raised(lambda: handler(event("1")))
    queues = app.runtime().engine.queues
    for name in ("customers", "customers-dead", "operations", "letters"):
        assert queues.open(name).receive(10) == []


def test_a_child_that_runs_elsewhere_is_told_to_come_back(app: onefold.App, handler: LambdaHandler, did: Row) -> None:
    runtime = app.runtime()
    now_ms = runtime.clock.now_ms()
    own = app.maps["enrich"].message(RUN, [{"id": "1", "name": "ada"}], ["1"])
    ask = Ask(
        key=own.record, fingerprint=own.fingerprint, owner="another", lease_until_ms=now_ms + 60_000, start=True,
        expires_at_ms=now_ms + 10**9,
    )  # fmt: skip
    runtime.engine.store.claim([ask], now_ms)
    assert raised(lambda: handler(event("1")))[0] == BUSY
    assert did.seen == []


@pytest.mark.parametrize("verb", ["claim", "write", "read"])
def test_a_store_that_fails_for_now_is_no_failure_of_the_item(
    app: onefold.App, handler: LambdaHandler, did: Row, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> Any:
        raise errors.StorageBusy("Throttled.", todo="Wait.")

    with monkeypatch.context() as patched:
        patched.setattr(app.runtime().engine.store, verb, busy)
        assert raised(lambda: handler(event("1")))[0] == BUSY  # which every state machine tries again
    assert did.seen == ([] if verb == "claim" else ["1"])


def test_another_item_under_the_same_key_is_a_conflict_and_not_done(handler: LambdaHandler, did: Row) -> None:
    handler(event("1"))
    name, _ = raised(lambda: handler(event("1", name="bob")))
    assert name not in (BUSY, "AssertionError")
    assert did.seen == ["1"]


def test_events_that_are_not_whole_are_refused(handler: LambdaHandler) -> None:
    for wrong in ({"map": "enrich"}, {"run": RUN}, {}):
        with pytest.raises(errors.UsageError, match="event of a map run"):
            handler({"onefold": wrong, "item": {"id": "1"}})
    with pytest.raises(errors.UsageError, match="or an item"):
        handler({"onefold": {"map": "enrich", "run": RUN}, "items": []})
    with pytest.raises(errors.NotFoundError, match="declares no map"):
        handler({"onefold": {"map": "other", "run": RUN}, "item": {"id": "1"}})
    with pytest.raises(errors.PayloadError):
        handler({"onefold": {"map": "enrich", "run": RUN}, "item": {"name": "no id"}})
