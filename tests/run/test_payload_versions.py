"""Payloads of earlier versions are upgraded before they are validated, and those of later ones left to a later release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import payloads
from onefold.admin.session import AdminSession, jobs_of
from onefold.contracts.entries import Entry
from onefold.contracts.queue import JOB_ATTRIBUTE, VERSION_ATTRIBUTE, Attribute
from onefold.contracts.store import RecordKey
from onefold.options import Queue
from onefold.runner.versions import marked
from onefold.testing import World, inline
from tests.run.mapped import REGION, mapped


@dataclass
class First:
    id: str
    euros: int


@dataclass
class Third:
    id: str
    cents: int
    currency: str


def in_cents(payload: dict[str, Any]) -> dict[str, Any]:
    return {"id": payload["id"], "cents": payload["euros"] * 100}


def with_currency(payload: dict[str, Any]) -> dict[str, Any]:
    return {**payload, "currency": "EUR"}


class Shop:
    def __init__(self, **options: Any) -> None:
        self.app = onefold.App("shop")
        self.queue: Queue = self.app.queue("orders")
        self.options = options
        self.ran: list[Any] = []

        @self.app.job(self.queue, key="{id}", name="pay", **options)
        def pay(order: First) -> str:
            self.ran.append(order)
            return "paid"

        self.first = pay

    def deploy(self, version: int = 3, **options: Any) -> onefold.Job[Third, str]:
        del self.app.jobs["pay"]

        @self.app.job(self.queue, key="{id}", name="pay", version=version, **self.options, **options)
        def pay(order: Third) -> str:
            self.ran.append(order)
            return "paid"

        return pay

    def upgraded(self) -> onefold.Job[Third, str]:
        pay = self.deploy(upgrade={1: in_cents})
        pay.upgrade(from_version=2)(with_currency)
        return pay

    def put(self, body: str, **attributes: str) -> None:
        named = {name.replace("_", "."): Attribute(value) for name, value in attributes.items()}
        queue = self.app.runtime().engine.queues.open("orders")
        queue.send([Entry(body=body, attributes={JOB_ATTRIBUTE: Attribute("pay"), **named})])

    def survey(self, **options: Any) -> payloads.PayloadSurvey:
        return payloads.survey(AdminSession(self.app.runtime(), actor="test", jobs=jobs_of(self.app)), **options)


def dead(world: World) -> list[str]:
    runtime = world.app.runtime()
    return [
        str(one.reason.summary) for one in runtime.engine.queues.peek("orders-dead", limit=10) if one.reason is not None
    ]


def test_an_earlier_payload_is_upgraded_step_by_step() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.first.send(First("1", 5))
        pay = shop.upgraded()
        pay.send(Third("2", 7, "USD"))
        shop.put('{"id": "3", "cents": 9}', onefold_version="2")
        world.run()
        assert shop.ran == [Third("1", 500, "EUR"), Third("2", 7, "USD"), Third("3", 9, "EUR")]
        assert dead(world) == []


def test_in_lambda_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", REGION)
    shop = Shop()
    with mapped(shop.app) as world:
        shop.first.send(First("1", 5))
        shop.upgraded()
        assert world.poll() == []
        assert shop.ran == [Third("1", 500, "EUR")]


def test_one_operation_in_two_versions_is_one_operation() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.first.send(First("1", 5))
        world.run()
        pay = shop.upgraded()
        pay.send(Third("1", 500, "EUR"))
        shop.put('{"id": "1", "euros": 5}')
        world.run()
        assert shop.ran == [First("1", 5)]
        assert world.names().count("duplicate") == 2
        assert dead(world) == []


def test_in_one_version_another_payload_is_a_conflict_still() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        pay = shop.upgraded()
        pay.send(Third("1", 5, "EUR"))
        pay.send(Third("1", 6, "EUR"))
        shop.put('{"id": "2", "euros": 5}')
        shop.put('{"id": "2", "euros": 6}')
        world.run()
        assert sorted(order.id for order in shop.ran) == ["1", "2"]
        assert world.names().count("conflict") == 2


def test_a_unique_key_is_known_in_both_versions() -> None:
    shop = Shop(unique=True)
    with inline(shop.app):
        shop.first.send(First("1", 5))
        pay = shop.upgraded()
        assert pay.send(Third("1", 500, "EUR")).found == "waiting"
        pay.send(Third("2", 500, "EUR"))
        with pytest.raises(errors.ConflictError):
            pay.send(Third("2", 600, "EUR"))


def test_what_a_later_release_sent_waits_for_it() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.put('{"id": "1", "cents": 5, "currency": "EUR"}', onefold_version="3")
        world.run()
        assert shop.ran == []
        assert dead(world) == []
        (event,) = [one for one in world.events if one.name == "waits-for-job"]
        assert "has version 3 of the payload of pay, and this release takes version 1" in str(event.detail["why"])
        (unfit,) = shop.survey().unfit
        assert (unfit.kind, unfit.version, unfit.why) == (
            "later-version", 3, "Its payload has version 3, and pay takes version 1.",
        )  # fmt: skip
        shop.upgraded()
        world.clock.advance(3_600_000)
        world.run()
        assert shop.ran == [Third("1", 5, "EUR")]


def test_what_no_function_can_upgrade_is_dead_lettered_and_said() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.put('{"id": "1", "secret": 5}')
        shop.put('{"id": "2"', onefold_version="2")
        shop.put('{"id": "3"}', onefold_version="x")
        shop.upgraded()
        world.run()
        said = "\n".join(sorted(dead(world)))
        assert "The upgrade of pay from version 1 raised KeyError" in said
        assert "The payload is not JSON" in said
        assert "Its attribute onefold.version='x' is not a version" in said


def test_a_worker_does_not_start_without_a_function_for_each_version() -> None:
    shop = Shop()
    with inline(shop.app):
        shop.deploy(upgrade={1: in_cents})
        from onefold.runner.setup import make_runner
        from onefold.runtime.events import Sinks

        with pytest.raises(errors.UsageError, match="no upgrade from version 2"):
            make_runner(
                shop.app.runtime(),
                shop.app.jobs,
                shop.app.registry.job_of,
                lease_ms=1_000,
                sinks=Sinks([]),
                history="off",
            )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"version": 0}, "version=0 is out of range"),
        ({"version": "2"}, "version='2' is not a whole number"),
        ({"version": 1, "upgrade": {1: in_cents}}, "its payload is at version 1"),
        ({"version": 2, "upgrade": {2: in_cents}}, "has no payload version 2 to upgrade from"),
        ({"version": 2, "upgrade": {"1": in_cents}}, "has no payload version '1' to upgrade from"),
        ({"version": 2, "upgrade": {1: "in_cents"}}, "The upgrade of pay from version 1 is 'in_cents'"),
        ({"version": 2, "upgrade": in_cents}, "is not a dict"),
    ],
)
def test_what_is_no_version(options: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.UsageError, match=text):
        Shop().deploy(**options)


def test_one_function_a_version() -> None:
    pay = Shop().upgraded()
    with pytest.raises(errors.ConflictError, match="two upgrades from version 1"):
        pay.upgrade(from_version=1)(in_cents)
    with pytest.raises(errors.UsageError, match="has one payload version"):
        Shop().first.upgrade(from_version=1)


def test_marks_of_versions_are_told_from_fingerprints() -> None:
    pay = Shop().upgraded()
    plain = "0123456789abcdef0123456789abcdef"
    assert pay.versions is not None
    assert marked(plain, 1) == plain
    assert pay.versions.is_other(plain, marked(plain, 3))
    assert pay.versions.is_other(marked(plain, 2), marked(plain, 3))
    assert not pay.versions.is_other(marked(plain, 3), marked("f" * 32, 3))


def test_the_survey_names_fields_and_no_values() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.put('{"id": "1", "euros": "sixty-six"}')
        shop.put('{"id": "2", "euros": 5}')
        world.run()
        shop.first.send(First("3", 8))
        shop.put('{"id": "4", "cents": "seventy-seven", "currency": "EUR"}', onefold_version="3")
        shop.put('{"id": true, "cents": 5, "currency": "EUR"}', onefold_version="3")
        shop.put('{"id": "5", "euros": "eighty-eight"}', onefold_job="other")
        shop.put('{"id": " ", "cents": 5, "currency": "EUR"}', onefold_version="3")
        shop.deploy(upgrade={1: in_cents, 2: with_currency})
        found = shop.survey()
        assert [(one.place, one.kind, one.why) for one in found.unfit] == [
            ("waiting", "malformed", "The field $.cents does not fit Third: Expected `int`, got `str`."),
            ("waiting", "malformed", "The field $.id does not fit Third: Expected `str`, got `bool`."),
            ("waiting", "no-job", "No job is declared as 'other'."),
            ("waiting", "malformed", "The key of pay {id} cannot be made: id is white space only."),
            ("dead", "malformed", "The field $.cents does not fit Third: Expected `int`, got `str`."),
        ]
        assert "sixty" not in str(found)
        assert "seventy" not in str(found)
        assert "eighty" not in str(found)
        assert [(one.job, one.place, one.count, one.upgraded, one.unfit) for one in found.jobs] == [
            ("other", "waiting", 1, 0, 1),
            ("pay", "waiting", 4, 1, 3),
            ("pay", "dead", 1, 0, 1),
        ]
        assert (found.looked_at, found.is_whole, found.unfit_count, found.fits) == (6, True, 5, False)
        assert shop.survey(limit=2).is_whole is False
        record = shop.app.runtime().engine.store.read([RecordKey("", "pay", "3")], world.clock.now_ms())[0]
        assert record is None  # it looked, and wrote nothing


def test_a_name_that_no_job_has_any_more_is_stranded() -> None:
    shop = Shop()
    with inline(shop.app) as world:
        shop.first.send(First("1", 5))
        world.run()
        job = shop.app.jobs.pop("pay")
        assert shop.survey().stranded == ("pay",)
        job.aliases, job.name = ("pay",), "settle"
        shop.app.jobs["settle"] = job
        assert shop.survey().fits


@dataclass
class Counted:
    id: str
    euros: int
    count: int = 1
    note: str = ""


@pytest.mark.parametrize("options", [{}, {"fingerprint": ["id", "euros", "count"]}, {"ignore": ["note"]}])
def test_a_default_that_one_of_two_payloads_of_a_later_version_omits_is_no_conflict(options: dict[str, Any]) -> None:
    app = onefold.App("shop")
    ran: list[Counted] = []

    @app.job(app.queue("orders"), key="{id}", name="pay", version=2, upgrade={1: dict}, **options)
    def pay(order: Counted) -> None:
        ran.append(order)

    def put(body: str) -> None:
        attributes = {JOB_ATTRIBUTE: Attribute("pay"), VERSION_ATTRIBUTE: Attribute("2")}
        app.runtime().engine.queues.open("orders").send([Entry(body=body, attributes=attributes)])

    with inline(app) as world:
        for order in ("a", "b"):  # either may be first
            written = [f'{{"id":"{order}","euros":1}}', f'{{"id":"{order}","euros":1,"count":1}}']
            for body in written if order == "a" else reversed(written):
                put(body)
                world.run()
        assert ran == [Counted("a", 1), Counted("b", 1)]
        assert world.names().count("duplicate") == 2
        put('{"id":"a","euros":1,"count":2}')
        world.run()
        assert "conflict" in world.names()
