"""The bus: rules, transformations, refusals, archives and puts inside handlers, on the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import onefold
from onefold.errors import ConflictError, UsageError
from onefold.events import EventEntry, InputTransformer
from onefold.events.bus import Bus, PutAnswer
from onefold.testing import World, inline

PLACED = {"detail-type": ["Order placed"]}


class Town:
    """An app with a bus, three queues that nobody works on, and what lies in them."""

    def __init__(self) -> None:
        self.app = onefold.App("town")
        self.billing = self.app.queue("billing")
        self.small = self.app.queue("small", max_bytes=1_024)
        self.lines = self.app.queue("lines", fifo=True, content_dedup=True)
        self.bus = self.app.bus("orders", account="123456789012", region="eu-west-1")

    def lies(self, queue: str) -> list[Any]:
        return self.app.runtime().engine.queues.peek(queue)

    def bodies(self, queue: str) -> list[Any]:
        return [json.loads(one.body) for one in self.lies(queue)]

    def put(self, detail: Any = None, kind: str = "Order placed", **more: Any) -> PutAnswer:
        given = {"id": "o-1", "customer": "c-1"} if detail is None else detail
        return self.bus.put([EventEntry(source="shop", detail_type=kind, detail=given, **more)])[0]


@pytest.fixture
def town() -> Town:
    return Town()


@pytest.fixture
def world(town: Town) -> Iterator[World]:
    """Opened at its first use, once rules are declared."""
    with inline(town.app) as there:
        yield there


# -- delivering ------------------------------------------------------------------------------------------------------


def test_an_event_goes_to_every_target_of_every_rule_that_matches(town: Town) -> None:
    town.bus.rule("both", PLACED, to=[town.billing, town.small])
    town.bus.rule("all", {"source": ["shop"]}, to=town.billing)
    town.bus.rule("none", {"source": ["bank"]}, to=town.billing)
    town.bus.rule("off", {"source": ["shop"]}, to=town.billing, enabled=False)
    with inline(town.app):
        answer = town.put()
        assert [one["id"] for one in town.bodies("billing")] == [answer.event_id] * 2
        assert len(town.bodies("small")) == 1
        assert (town.bodies("billing")[0]["account"], town.bodies("billing")[0]["region"]) == (
            "123456789012",
            "eu-west-1",
        )
        assert town.put(kind="Order shipped").event_id is not None
        assert len(town.bodies("billing")) == 3


def test_an_event_that_no_rule_matches_is_taken_and_gone(town: Town, world: World) -> None:
    assert town.put().event_id is not None
    assert world.run() == 0


def test_each_entry_is_answered_and_none_holds_up_another(town: Town) -> None:
    town.bus.rule("all", PLACED, to=town.billing)
    with inline(town.app):
        good = {"Source": "shop", "DetailType": "Order placed", "Detail": '{"id": "o-1"}'}
        answers = town.bus.put([good, {**good, "Detail": "x"}, {**good, "Source": ""}, good])
        codes = [one.error_code for one in answers]
        assert codes == [None, "MalformedDetail", "InvalidArgument", None]
        assert [one["id"] for one in town.bodies("billing")] == [answers[0].event_id, answers[3].event_id]


def test_what_is_no_entry_puts_nothing_of_the_call(town: Town) -> None:
    town.bus.rule("all", {"source": ["shop"]}, to=town.billing)
    with inline(town.app):
        with pytest.raises(UsageError, match="source"):
            town.bus.put([EventEntry(source="shop", detail_type="x", detail={}), {"source": "shop"}])
        assert town.lies("billing") == []
        assert town.bus.put([]) == []


def test_characters_that_no_queue_takes_are_refused_at_the_door(town: Town) -> None:
    town.bus.rule("all", {"source": ["shop"]}, to=town.billing)
    with inline(town.app):
        assert town.put("x" * 3).error_code == "MalformedDetail"
        answer = town.put({"a": "x" * (1024 * 1024 - 2_000)})
        assert answer.error_code == "InvalidArgument"
        assert town.lies("billing") == []


def test_targets_get_a_part_a_template_or_a_constant(town: Town) -> None:
    town.bus.rule("part", PLACED, to=town.billing, input_path="$.detail")
    transformer = InputTransformer(
        paths={"id": "$.detail.id"}, template='{"order": <id>, "by": "<aws.events.rule-name>"}'
    )
    town.bus.rule("template", PLACED, to=town.billing, input_transformer=transformer)
    town.bus.rule("constant", PLACED, to=town.billing, constant={"go": True})
    with inline(town.app):
        town.put()
        assert town.bodies("billing") == [
            {"id": "o-1", "customer": "c-1"},
            {"order": "o-1", "by": "template"},
            {"go": True},
        ]


def test_a_fifo_target_keeps_order_by_group(town: Town) -> None:
    town.bus.rule("lines", PLACED, to=town.lines, group="$.detail.customer")
    with inline(town.app):
        for number in range(3):
            town.put({"id": f"o-{number}", "customer": f"c-{number % 2}"})
        assert [(one.group, json.loads(one.body)["detail"]["id"]) for one in town.lies("lines.fifo")] == [
            ("c-0", "o-0"),
            ("c-1", "o-1"),
            ("c-0", "o-2"),
        ]


def test_a_job_takes_its_payload_out_of_the_event_and_answers_duplicates(town: Town) -> None:
    done: list[Any] = []

    @town.app.job(town.billing, key="{id}", source="eventbridge")
    def bill(order: dict[str, Any]) -> None:
        done.append(order["id"])

    town.bus.rule("all", PLACED, to=town.billing)
    with inline(town.app) as world:
        town.put()
        town.put()
        world.run()
        assert done == ["o-1"]
        assert world.names().count("duplicate") == 1


# -- refusals --------------------------------------------------------------------------------------------------------


def told(dead: Any) -> dict[str, str]:
    return {name: str(one.value) for name, one in dead.attributes.items()}


def test_what_a_target_refuses_goes_to_the_dead_letter_queue_as_eventbridge_has_it(town: Town) -> None:
    town.bus.rule("small", PLACED, to=[town.small, town.billing])
    with inline(town.app):
        answer = town.put({"a": "x" * 2_000})
        assert answer.event_id is not None
        assert (town.lies("small"), len(town.lies("billing"))) == ([], 1)
        (dead,) = town.lies("orders-undelivered")
        assert json.loads(dead.body) == town.bodies("billing")[0]
        attributes = told(dead)
        assert attributes.pop("ERROR_MESSAGE")
        assert attributes == {
            "RULE_ARN": "arn:aws:events:eu-west-1:123456789012:rule/orders/small",
            "TARGET_ARN": "arn:aws:sqs:eu-west-1:123456789012:small",
            "ERROR_CODE": "INVALID_PARAMETER",
            "RETRY_ATTEMPTS": "0",
        }


@pytest.mark.parametrize(
    ("options", "words"),
    [({"input_path": "$.detail.nowhere"}, "InputPath"), ({"group": "$.detail.nowhere"}, "MessageGroupId")],
)
def test_a_path_that_leads_nowhere_is_a_dead_letter(town: Town, options: dict[str, Any], words: str) -> None:
    town.bus.rule("lost", PLACED, to=town.lines, **{"group": "all", **options})
    with inline(town.app):
        town.put()
        (dead,) = town.lies("orders-undelivered")
        assert told(dead)["ERROR_MESSAGE"].startswith(words)
        assert town.lies("lines.fifo") == []


def test_a_queue_that_was_removed_refuses_everything(town: Town) -> None:
    other = town.app.queue("other")
    town.bus.rule("all", PLACED, to=town.billing, dead_letter=other)
    with inline(town.app):
        town.app.runtime().engine.queues.drop("billing")
        town.put()
        (dead,) = town.lies("other")
        assert told(dead)["ERROR_CODE"] == "NO_RESOURCE"


def test_without_any_queue_left_nothing_of_the_put_is_stored(town: Town) -> None:
    other = town.app.queue("other")
    town.bus.rule("gone", PLACED, to=town.billing, dead_letter=other)
    town.bus.rule("fine", PLACED, to=town.small)
    town.bus.archive("all")
    with inline(town.app):
        for name in ("billing", "other"):
            town.app.runtime().engine.queues.drop(name)
        with pytest.raises(UsageError, match="cannot be delivered by rule gone"):
            town.put()
        assert town.lies("small") == []
        assert holdings(town) == 0


# -- archives --------------------------------------------------------------------------------------------------------


def holdings(town: Town, archive: str = "orders/all") -> int:
    found = town.app.runtime().engine.archive
    assert found is not None
    return found.holdings(archive).count


def test_archives_keep_what_their_pattern_matches_for_as_long_as_they_say(town: Town) -> None:
    town.bus.archive("all")
    town.bus.archive("placed", PLACED, retention="1d")
    with inline(town.app) as world:
        town.put()
        town.put(kind="Order shipped")
        assert (holdings(town), holdings(town, "orders/placed")) == (2, 1)
        world.clock.advance(86_400_000)
        assert (holdings(town), holdings(town, "orders/placed")) == (2, 0)


# -- inside handlers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["external", "repeatable", "transactional"])
def test_events_of_a_handler_leave_when_its_run_completes(town: Town, effect: Any) -> None:
    seen: list[int] = []
    work = town.app.queue("work")
    town.bus.rule("all", PLACED, to=[town.billing, town.lines], group="$.detail.customer")
    town.bus.rule("small", PLACED, to=town.small, input_path="$.detail.nowhere")
    town.bus.archive("all", retention="2d")

    @town.app.job(work, key="{id}", effect=effect, retry=onefold.Retry(attempts=2, base="1s", jitter="none"))
    def place(order: dict[str, Any], ctx: onefold.Context) -> None:
        assert town.put(order).event_id is not None
        seen.append(len(town.lies("billing")) + holdings(town))
        if ctx.attempt == 1:
            raise RuntimeError("the first run fails")

    with inline(town.app) as world:
        place.send({"id": "o-1", "customer": "c-1"})
        world.run()
        assert (town.lies("billing"), holdings(town)) == ([], 0)
        world.clock.advance(1_000)
        world.run()
        place.send({"id": "o-1", "customer": "c-1"})
        world.run()
        assert seen == [0, 0]
        assert [one["detail"]["id"] for one in town.bodies("billing")] == ["o-1"]
        assert [one.group for one in town.lies("lines.fifo")] == ["c-1"]
        (dead,) = town.lies("orders-undelivered")
        assert told(dead)["ERROR_CODE"] == "INVALID_PARAMETER"
        assert holdings(town) == 1
        world.clock.advance(2 * 86_400_000)
        assert holdings(town) == 0


# -- declaring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "a b"}, "not a valid name for a rule"),
        ({"name": "x" * 65}, "not a valid name for a rule"),
        ({"pattern": {}}, "Event pattern is not valid. Reason: Empty"),
        ({"pattern": {"a": 1}}, 'Reason: "a" must be an object or an array'),
        ({"pattern": {"a": [object()]}}, "no JSON form"),
        ({"pattern": '{"a": ["' + "x" * 4_096 + '"]}'}, "too long"),
        ({"to": []}, "has 0 targets"),
        ({"to": ["billing"]}, "not a queue of this bus's app"),
        ({"input_path": "detail"}, "JSON path"),
        ({"input_path": "$.detail", "constant": 1}, "Only one of"),
        ({"group": "$..x"}, "JSON path"),
    ],
)
def test_a_rule_that_cannot_be_declares_nothing(town: Town, options: dict[str, Any], words: str) -> None:
    given = {"name": "bad", "pattern": PLACED, "to": town.billing, **options}
    with pytest.raises(UsageError, match=words):
        town.bus.rule(given.pop("name"), given.pop("pattern"), **given)
    assert town.bus.rules == {}
    assert "orders-undelivered" not in town.app.queues


def test_fifo_targets_need_a_group_and_deduplication_by_content(town: Town) -> None:
    bare = town.app.queue("bare", fifo=True)
    with pytest.raises(UsageError, match="has no group"):
        town.bus.rule("lines", PLACED, to=town.lines)
    with pytest.raises(UsageError, match="content-based deduplication"):
        town.bus.rule("lines", PLACED, to=bare, group="all")


def test_a_dead_letter_queue_must_take_everything(town: Town) -> None:
    for queue in (town.lines, town.small):
        with pytest.raises(UsageError, match="cannot take what the targets of rule all refuse"):
            town.bus.rule("all", PLACED, to=town.billing, dead_letter=queue)


def test_names_are_taken_once(town: Town) -> None:
    town.bus.rule("all", PLACED, to=town.billing)
    town.bus.archive("all")
    with pytest.raises(ConflictError, match="Rule all is declared twice"):
        town.bus.rule("all", PLACED, to=town.billing)
    with pytest.raises(ConflictError, match="Archive all is declared twice"):
        town.bus.archive("all")
    assert town.app.bus("orders") is town.bus
    with pytest.raises(ConflictError, match="123456789012"):
        town.app.bus("orders", account="999999999999")


@pytest.mark.parametrize("options", [{"name": "x" * 49}, {"name": "a/b"}, {"pattern": {}}, {"retention": "0s"}])
def test_an_archive_that_cannot_be_is_not_declared(town: Town, options: dict[str, Any]) -> None:
    given = {"name": "bad", "pattern": None, "retention": None, **options}
    with pytest.raises(UsageError):
        town.bus.archive(given["name"], given["pattern"], retention=given["retention"])
    assert town.bus.archives == {}


@pytest.mark.parametrize("options", [{"name": "a b"}, {"account": "12"}, {"name": "x" * 61}])
def test_a_bus_that_cannot_be_is_not_declared(town: Town, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        town.app.bus(**{"name": "other", **options})
    assert list(town.app.buses) == ["orders"]


def test_the_arn_of_a_rule_on_the_default_bus_has_no_bus(town: Town) -> None:
    rule = town.app.bus().rule("all", PLACED, to=town.billing)
    assert rule.arn == "arn:aws:events:us-east-1:000000000000:rule/all"
    assert isinstance(town.app.buses["default"], Bus)
