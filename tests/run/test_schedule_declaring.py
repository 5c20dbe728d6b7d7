"""`App.schedule`: what it makes, and what it refuses at the door, with the field and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from onefold import App, Context, Retry, Tick, errors
from onefold.contracts.entries import Entry
from onefold.contracts.queue import Attribute
from onefold.schedules import ScheduleRetry
from onefold.schedules.schedule import SCHEDULED_TIME, TickMessage
from onefold.testing import inline


def an_app() -> App:
    return App("shop", url="sqlite://:memory:")


def work(tick: Tick) -> None:
    """Work."""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"expression": "rate(0 minutes)"}, "0"),
        ({"expression": "rate(10 seconds)"}, "seconds"),
        ({"expression": "cron(71 8 1 * ? *)"}, "71"),
        ({"expression": "cron(0 1 * * * *)"}, r"\?"),
        ({"expression": "every day"}, "every day"),
        ({"expression": "at(2026-06-01)"}, "2026-06-01"),
        ({"tz": "Europe/Lodnon"}, "Europe/Lodnon"),
        ({"start": datetime(2026, 6, 2, tzinfo=UTC), "end": datetime(2026, 6, 1, tzinfo=UTC)}, "before the start"),
        ({"start": datetime(2026, 6, 2)}, "start=.* is not a valid instant"),  # noqa: DTZ001 - that is the point
        ({"end": "2026-06-02"}, "end=.* is not a valid instant"),
        ({"window": "90s"}, "window='90s' is not a whole number of minutes"),
        ({"window": "25h"}, "window"),
        ({"missed": "some"}, "missed='some' is not known"),
        ({"missed_max": 0}, "missed_max=0 is out of range"),
        ({"missed_max": True}, "missed_max=True is not a whole number"),
        ({"dst": "never"}, "dst='never' is not known"),
        ({"name": "month end"}, "'month end' is not a valid name"),
        ({"name": "n" * 65}, "is not a valid name"),
        ({"retry": ScheduleRetry(retries=186)}, "retry.retries=186"),
        ({"retry": ScheduleRetry(age="59s")}, "retry.age"),
        ({"queue": "bills"}, "'bills' is not a queue"),
        ({"expression": "cron(0 3 31 2 ? *)"}, r"cron\(0 3 31 2 \? \*\) never fires"),
        ({"expression": "cron(30 1 28 3 ? 2027)", "tz": "Europe/London"}, "or the clocks of Europe/London skip it"),
        (
            {"tz": timezone(timedelta(hours=1))},
            "is a time zone without an IANA name. A fixed offset follows no clock changes",
        ),
        ({"tz": 5}, "tz=5 is not a time zone. Give its IANA name"),
        ({"tz": None}, "tz=None is not a time zone"),
        (
            {
                "expression": "cron(0 3 1 1 ? *)",
                "start": datetime(2026, 2, 1, tzinfo=UTC),
                "end": datetime(2026, 3, 1, tzinfo=UTC),
            },
            "matches it between its start and its end",
        ),
    ],
)
def test_what_cannot_be_right_is_refused(options: dict[str, Any], said: str) -> None:
    app = an_app()
    expression = options.pop("expression", "rate(1 day)")
    with pytest.raises(errors.UsageError, match=said) as caught:
        app.schedule(expression, **options)(work)
    assert caught.value.todo
    assert app.schedules == {}
    assert app.jobs == {}


@pytest.mark.parametrize(
    ("tz", "name"), [(UTC, "UTC"), (ZoneInfo("UTC"), "UTC"), (ZoneInfo("Europe/London"), "Europe/London")]
)
def test_a_zone_may_be_given_as_an_object(tz: Any, name: str) -> None:
    assert an_app().schedule("cron(0 3 1 * ? *)", tz=tz)(work).timing.zone == name


@pytest.mark.parametrize("expression", ["cron(0 3 1 1 ? 2020)", "at(2020-01-01T00:00:00)"])
def test_what_has_fired_in_its_time_may_stay_declared(expression: str) -> None:
    app = an_app()
    assert app.schedule(expression)(work).expression == expression
    assert list(app.schedules) == ["work"]


@pytest.mark.parametrize(
    ("zone", "meaning"),
    [
        ("GMT+1", "Etc/GMT-1 is 1 h ahead of UTC: the sign in these names is reversed."),
        ("UTC-05:00", "Etc/GMT+5 is 5 h behind UTC: the sign in these names is reversed."),
        ("+05:30", ""),
        *((zone, "") for zone in ("CEST", "EEST", "AEST", "MSK", "WEST", "AKST")),
    ],
)
def test_an_offset_is_never_answered_with_its_opposite(zone: str, meaning: str) -> None:
    with pytest.raises(errors.UsageError, match="There is no time zone") as caught:
        an_app().schedule("rate(1 day)", tz=zone)
    assert caught.value.meaning == meaning
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("retry", [3, 0, Retry(attempts=3)])
def test_a_schedules_retry_is_a_value_of_its_own_class(retry: Any) -> None:
    with pytest.raises(
        errors.UsageError, match=r"is not a ScheduleRetry. Write retry=onefold.schedules.ScheduleRetry\(retries="
    ):
        an_app().schedule("rate(1 day)", retry=retry)


def test_a_misspelt_option_is_answered_with_the_right_one() -> None:
    with pytest.raises(errors.UsageError, match=r"^app.schedule\(\) has no option 'mised'") as caught:
        an_app().schedule("rate(1 day)", mised="skip")  # type: ignore[call-arg]
    assert caught.value.todo == "Did you mean 'missed'?"


def test_a_decorator_without_its_expression_says_how_it_is_written() -> None:
    with pytest.raises(errors.UsageError, match=r"@app\.schedule on work has no expression") as caught:
        an_app().schedule(work)  # type: ignore[arg-type]
    assert '@app.schedule("cron(' in caught.value.todo


def test_two_schedules_cannot_have_one_name() -> None:
    app = an_app()
    app.schedule("rate(1 day)")(work)
    with pytest.raises(errors.ConflictError, match="Schedule work is declared twice"):
        app.schedule("rate(2 days)")(work)


def surplus(tick: Tick, ctx: Context, region: str) -> None: ...


def surplus_of_a_dispatcher(tick: Tick, *, region: str) -> Iterator[object]:
    yield from ()


async def no_context(tick: Tick, dry_run: bool = False) -> None: ...


def unnamed(tick: Tick, region): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (surplus, "surplus needs region, and nothing passes it. It is called with the tick and"),
        (surplus_of_a_dispatcher, "surplus_of_a_dispatcher needs region, and nothing passes it"),
        (no_context, "no_context would be given the Context as its second parameter, dry_run"),
        (unnamed, "unnamed would be given the Context as its second parameter, region, which has no annotation"),
    ],
)
def test_a_parameter_that_no_tick_fills_is_refused_where_it_is_declared(wrong: Any, said: str) -> None:
    """Each tick would fail with a TypeError, or take the Context for another value."""
    app = an_app()
    with pytest.raises(errors.UsageError, match=said):
        app.schedule("rate(1 day)")(wrong)
    assert not app.schedules
    assert not app.jobs


def test_a_second_parameter_that_is_the_context_stays_allowed() -> None:
    def of_another_module(tick: Tick, ctx: "NotImported") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    def with_a_default(tick: Tick, ctx: Context | None = None, *, region: str = "eu") -> None: ...

    def of_anything(*tick: Tick) -> None: ...

    allowed: tuple[Any, ...] = (of_another_module, with_a_default, of_anything, lambda tick, context: None)
    for number, right in enumerate(allowed):
        an_app().schedule("rate(1 day)", name=f"n{number}")(right)


@pytest.mark.parametrize("wrong", [lambda: None, 7])
def test_a_function_without_a_tick_is_refused(wrong: Any) -> None:
    with pytest.raises(errors.UsageError, match="takes no tick"):
        an_app().schedule("rate(1 day)")(wrong)


def test_schedules_share_a_queue_of_their_own_or_have_the_one_that_is_given() -> None:
    app = an_app()
    bills = app.queue("bills")
    first = app.schedule("rate(1 day)", name="first")(work)
    second = app.schedule("rate(1 day)", name="second")(work)
    third = app.schedule("rate(1 day)", name="third", queue=bills)(work)
    assert [one.job.policy.queue for one in (first, second, third)] == ["shop-schedules", "shop-schedules", "bills"]
    assert third.undelivered.dead_letter == "bills-dead"


def test_ticks_of_a_fifo_queue_are_in_order_per_schedule_and_their_dead_letters_in_a_standard_queue() -> None:
    app = an_app()
    made = app.schedule("rate(1 day)", queue=app.queue("bills", fifo=True))(work)
    entry = made.outgoing(0).entry
    assert entry.group == "work"
    assert entry.dedup_id == made.outgoing(0).entry.dedup_id != made.outgoing(86_400_000).entry.dedup_id
    assert made.undelivered.dead_letter == "shop-schedules-dead", "EventBridge Scheduler takes no FIFO queue there"


def test_the_message_is_the_one_that_eventbridge_scheduler_writes_from_the_template() -> None:
    made = an_app().schedule("rate(1 day)")(work)
    template = made.outgoing_at(SCHEDULED_TIME).entry
    sent = made.outgoing(0).entry
    assert template.body.replace(SCHEDULED_TIME, "1970-01-01T00:00:00Z") == sent.body
    assert sent.attributes["onefold.run"] == Attribute("work/1970-01-01T00:00:00Z")


def test_a_schedule_is_still_its_function() -> None:
    seen: list[Tick] = []
    made = an_app().schedule("rate(1 day)", name="daily")(seen.append)
    made(
        Tick(
            schedule="daily", nominal_at_ms=0, run="daily/1970-01-01T00:00:00Z", local=datetime(1970, 1, 1, tzinfo=UTC)
        )
    )
    assert len(seen) == 1


def test_coroutines_and_functions_with_a_context_are_called_with_what_they_take() -> None:
    app = an_app()
    seen: list[str] = []

    @app.schedule("at(2020-01-01T00:00:00)")
    async def later(tick: Tick) -> None:
        seen.append(tick.run)

    @app.schedule("at(2020-01-01T00:00:00)")
    def with_context(tick: Tick, ctx: Any) -> None:
        seen.append(f"{tick.run} {ctx.attempt}")

    with inline(app) as world:
        assert world.tick() == 2
        world.run()
    assert sorted(seen) == ["later/2020-01-01T00:00:00Z", "with_context/2020-01-01T00:00:00Z 1"]


def test_a_message_whose_time_cannot_be_read_is_a_dead_letter() -> None:
    app = an_app()
    app.schedule("rate(1 day)")(work)
    with inline(app) as world:
        queue = app.runtime().engine.queues.open("shop-schedules")
        queue.send([Entry(body='{"schedule":"work","scheduled_at":"yesterday"}')])
        world.run()
        assert world.depth("shop-schedules").visible == 0
        (letter,) = app.runtime().engine.queues.peek("shop-schedules-dead")
        assert letter.reason is not None
        assert letter.reason.kind == "malformed"
        assert "'yesterday'" in letter.reason.summary


def test_a_tick_of_another_schedule_is_refused_and_that_schedules_run_still_goes_out() -> None:
    app, ran = an_app(), list[tuple[str, str]]()
    mails = app.queue("mails")

    @app.job(mails, key="{who}/{at}")
    def mail(payload: dict[str, str]) -> None:
        ran.append((payload["who"], payload["at"]))

    @app.schedule("rate(1 hour)", queue=app.queue("letters"))
    def newsletter(tick: Tick) -> Any:
        yield mail.message({"who": "all", "at": tick.run})

    @app.schedule("rate(1 hour)", queue=app.queue("salaries"))
    def payroll(tick: Tick) -> Any:
        yield mail.message({"who": "ada", "at": tick.run})

    with inline(app) as world:
        queues = app.runtime().engine.queues
        body = payroll.outgoing(3_600_000).entry.body
        queues.open("letters").send([Entry(body=body)])
        world.run()
        app.runtime().send([payroll.outgoing(3_600_000)])
        world.run()
        assert ran == [("ada", "payroll/1970-01-01T01:00:00Z")]
        (letter,) = queues.peek("letters-dead")
        assert letter.reason is not None
        assert letter.reason.kind == "malformed"
        assert "schedule 'payroll'" in letter.reason.summary


@pytest.mark.parametrize(
    "spelled",
    ["1970-01-01T01:00:00+00:00", "1970-01-01T03:00:00+02:00", "1970-01-01T01:00:00.000Z", "19700101T010000Z"],
)
@pytest.mark.parametrize("generator", [False, True])
def test_an_instant_has_one_key_however_it_is_written(spelled: str, generator: bool) -> None:
    app, ran = an_app(), list[str]()
    queue = app.queue("ticks")

    def plain(tick: Tick) -> None:
        ran.append(tick.run)

    def yielding(tick: Tick) -> Any:
        ran.append(tick.run)
        yield from ()

    made = app.schedule("rate(1 hour)", name="work", queue=queue)(yielding if generator else plain)
    with inline(app) as world:
        app.runtime().engine.queues.open("ticks").send(
            [Entry(body=f'{{"schedule":"work","scheduled_at":"{spelled}"}}')]
        )
        world.run()
        app.runtime().send([made.outgoing(3_600_000)])
        world.run()
        assert ran == ["work/1970-01-01T01:00:00Z"]
        assert made.tick(TickMessage(schedule="work", scheduled_at=spelled)).nominal_at_ms == 3_600_000


@pytest.mark.parametrize("spelled", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1969-12-31T23:59:59Z"])
def test_an_instant_that_no_schedule_has_is_refused(spelled: str) -> None:
    made = an_app().schedule("rate(1 hour)", name="work")(work)
    with pytest.raises(errors.PayloadError, match="is not an instant"):
        made.tick(TickMessage(schedule="work", scheduled_at=spelled))
