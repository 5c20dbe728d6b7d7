"""Declarations: what is refused declares nothing, and what is doubtful is said where it was written. And opening an app."""

from __future__ import annotations

import functools
import threading
import warnings
from contextlib import suppress
from operator import itemgetter
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.runner.declaring import JOB_NAME_CHARS_MAX
from onefold.runtime import runtime as runtime_module
from onefold.testing import inline


def handle(payload: dict[str, str]) -> None: ...


def no_payload() -> None: ...


def three(payload: dict[str, str], ctx: onefold.Context, courier: str) -> None: ...


def named(payload: dict[str, str], *, courier: str) -> None: ...


def two_payloads(payload: dict[str, str], courier: str) -> None: ...


def unnamed(payload, amount): ...  # type: ignore[no-untyped-def]


def default(payload: dict[str, str], courier: str = "dhl") -> None: ...


def yields(payload: dict[str, str]) -> Any:
    yield payload


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": 7}, "7 is not a valid name for a queue"),
        ({"name": "a/b"}, "a/b"),
        ({"dead_letter": onefold.DeadLetter(after=0)}, "dead_letter.after=0 is out of range"),
        ({"dead_letter": onefold.DeadLetter(retention="15d")}, "dead_letter.retention='15d' is out of range"),
        ({"dead_letter": 5}, r"dead_letter=5 is not a DeadLetter. Write dead_letter=onefold.DeadLetter\(after=5\)"),
        ({"dead_letter": 0}, "dead_letter=0 is not a DeadLetter"),
        ({"function": 512}, r"Write function=onefold.aws.Function\(memory_mb=512\)"),
        ({"visibility": 30}, "visibility=30 is not a duration"),
        ({"visibilty": "30s"}, "Did you mean 'visibility'"),
    ],
)
def test_a_queue_that_is_refused_is_not_declared(options: dict[str, Any], said: str) -> None:
    app = onefold.App("shop")
    with pytest.raises(onefold.errors.UsageError, match=said):
        app.queue(**{"name": "orders", **options})
    assert app.queues == {}


def test_a_dead_letter_count_that_is_text_is_called_that() -> None:
    with pytest.raises(
        onefold.errors.UsageError, match=r"dead_letter.after='5' is not a whole number. It may be 1 to 1,000"
    ):
        onefold.App("shop").queue("orders", dead_letter=onefold.DeadLetter(after="5"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tolerated_percent": "2%"}, "tolerated_percent='2%' is not a percentage. It is a number from 0 to 100"),
        ({"tolerated_percent": True}, "tolerated_percent=True is not a percentage"),
        ({"tolerated_count": "4"}, "tolerated_count='4' is not a whole number"),
        ({"concurrency": "4"}, "concurrency='4' is not a whole number"),
        ({"batch": "25"}, r"batch='25' is not an ItemBatch. Write batch=onefold.maps.ItemBatch\(items_max=25\)"),
        ({"batch": True}, "batch=True is not an ItemBatch"),
        ({"retry": onefold.Retry(attempts=3)}, "is not an ItemRetry"),
    ],
)
def test_a_map_whose_numbers_are_text_is_refused_where_it_is_declared(options: dict[str, Any], said: str) -> None:
    app = onefold.App("shop")
    with pytest.raises(onefold.errors.UsageError, match=said):
        app.map(app.queue("rows"), key="{id}", **options)(lambda row: None)
    assert not app.maps


def test_an_item_limit_that_is_text_is_called_that() -> None:
    with pytest.raises(onefold.errors.UsageError, match="items_max='5' is not a whole number"):
        onefold.maps.ItemReader(items_max="5")  # type: ignore[arg-type]


def test_a_url_that_is_not_text_is_called_that() -> None:
    app = onefold.App("shop", url=5)  # type: ignore[arg-type]
    with pytest.raises(onefold.errors.UsageError, match="url=5 is not a URL: it is not text"):
        app.job(app.queue("orders"), key="{id}")(handle).send({"id": "1"})


def test_a_queue_may_be_declared_again_only_as_it_is() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders", fifo=True, content_dedup=True)
    assert orders.name == "orders.fifo"
    assert (orders.dead_letter.name, orders.held.name) == ("orders-dead.fifo", "orders-held.fifo")
    assert app.queue("orders", fifo=True, content_dedup=True) is orders
    with pytest.raises(
        onefold.errors.ConflictError,
        match="declared twice with different settings: content_dedup is True, declared False",
    ):
        app.queue("orders", fifo=True)


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        (handle, {"effect": "transactionl"}, "Did you mean 'transactional'"),
        (handle, {"source": "eventbrige"}, "eventbridge"),
        (handle, {"name": "x" * (JOB_NAME_CHARS_MAX + 1)}, "is not a valid name for a job"),
        (handle, {"name": 5}, "name=5 is not a text. Write name='5'"),
        (handle, {"name": ""}, 'name="" is empty. Give name a text, or leave it out'),
        (handle, {"owner": 3}, "owner=3 is not a text. Write owner='3'"),
        (handle, {"owner": ""}, 'owner="" is empty'),
        (handle, {"unique": "no"}, "unique='no' is not a boolean"),
        (handle, {"retry": onefold.Retry(attempts=11)}, "dead_letter.after=10"),
        (handle, {"retry": 3}, r"retry=3 is not a Retry. Write retry=onefold.Retry\(attempts=3\)"),
        (handle, {"retry": 0}, "retry=0 is not a Retry"),
        (
            handle,
            {"retry": onefold.Retry(attempts="3")},
            "retry.attempts='3' is not a whole number. It may be 1 or more",
        ),
        (handle, {"retry": onefold.Retry(attempts=0)}, "retry.attempts=0 is out of range"),
        (
            handle,
            {"throttle": onefold.Throttle(concurrency="4")},
            "concurrency='4' is not a whole number. It may be 1 to 1,500",
        ),
        (handle, {"retry": "fast"}, r"Write retry=onefold.Retry\(attempts=5\)"),
        (
            handle,
            {"throttle": "30/m"},
            r"throttle='30/m' is not a Throttle. Write throttle=onefold.Throttle\(rate='30/m'\)",
        ),
        (three, {}, "three needs courier, and nothing passes it"),
        (named, {}, "named needs courier, and nothing passes it"),
        (two_payloads, {}, "two_payloads would be given the Context as its second parameter, courier: 'str'"),
        (unnamed, {}, "unnamed would be given the Context as its second parameter, amount, which has no annotation"),
        (handle, {"key": lambda: "x"}, "key of handle: the function <lambda> cannot be called with the payload alone"),
        (handle, {"tenant": lambda a, b: "x"}, "tenant of handle: the function <lambda> cannot be called"),
        (
            handle,
            {"on_unknown": lambda: None},
            "on_unknown='<lambda>' cannot be called with .payload, context",
        ),
        (handle, {"on_unknown": lambda a, b, c: None}, "cannot be called with .payload, context"),
        (default, {}, "default would be given the Context as its second parameter"),
        (handle, {"keep": "1d"}, "is shorter than"),
        (handle, {"when_complete": 7}, "neither a schedule nor a map run"),
        (no_payload, {}, "takes no payload"),
        (yields, {}, "cannot be a handler"),
    ],
)
def test_a_job_that_is_refused_is_not_declared(handler: Any, options: dict[str, Any], said: str) -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    with pytest.raises(onefold.errors.UsageError, match=said):
        app.job(orders, **{"key": "{id}", **options})(handler)
    assert app.jobs == {}


@pytest.mark.parametrize(
    "probe",
    [
        lambda payload: onefold.NotDone(),
        lambda payload, ctx: onefold.NotDone(),
        lambda *both: onefold.NotDone(),
        lambda payload, ctx, twice=2, *, often=3: onefold.NotDone(),
        functools.partial(lambda bank, payload: onefold.NotDone(), "bank"),
        Mock(),
    ],
)
@pytest.mark.parametrize("key", [itemgetter("id"), str, lambda payload, sign="#": sign, lambda *all: "x"])
def test_probes_and_keys_that_can_be_called_are_accepted(probe: Any, key: Any) -> None:
    def plain(payload, ctx): ...  # type: ignore[no-untyped-def]

    app = onefold.App("shop")
    app.job(app.queue("orders"), key=key, on_unknown=probe)(plain)
    assert list(app.jobs) == ["plain"]


def test_a_decorator_without_parentheses_says_how_it_is_written() -> None:
    app = onefold.App("shop")
    with pytest.raises(
        onefold.errors.UsageError, match=r"@app\.job of handle has no parentheses.*@app\.job\(queue, key=\.\.\.\)"
    ):
        app.job(handle)  # type: ignore[call-arg, arg-type]
    with pytest.raises(
        onefold.errors.UsageError, match=r"missing a required argument: 'queue'.*app\.job\(queue, key=\.\.\.\)"
    ):
        app.job(key="{id}")  # type: ignore[call-arg]
    assert app.jobs == {}


def test_an_error_of_the_users_own_rule_is_not_taken_for_a_wrong_call() -> None:
    app = onefold.App("shop")
    with pytest.raises(TypeError, match="cannot be compared"):
        app.job(app.queue("orders"), key="{id}", effect=Incomparable())  # type: ignore[arg-type]


class Incomparable:
    """A value of the user's own class whose comparison fails."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise TypeError("cannot be compared")


@pytest.mark.parametrize(
    "handler",
    [
        lambda payload, ctx=None: None,
        lambda payload, context: None,
        lambda payload, ctx, courier="dhl": None,
        lambda payload, *rest, **more: None,
    ],
)
def test_handlers_that_can_be_called_as_they_are_stay_allowed(handler: Any) -> None:
    app = onefold.App("shop")
    assert app.job(app.queue("orders"), key="{id}", name="work")(handler) is app.jobs["work"]


def test_options_are_named() -> None:
    with pytest.raises(onefold.errors.UsageError, match=r"Name it, for example Retry\(attempts=5\)"):
        onefold.Retry(5)  # type: ignore[call-arg, misc]


def test_two_jobs_of_one_name_are_refused() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    first = app.job(orders, key="{id}")(handle)
    with pytest.raises(onefold.errors.ConflictError, match="Job handle is declared twice"):
        app.job(orders, key="{id}")(handle)
    assert app.jobs == {"handle": first}


def test_a_key_that_is_new_at_every_send_is_warned_of_where_it_is_declared() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    with pytest.warns(UserWarning, match="The key of handle uses timestamp") as told:
        app.job(orders, key="{timestamp}")(handle)
    assert [one.filename for one in told] == [__file__]


def test_a_group_on_a_standard_queue_is_warned_of_where_it_is_declared() -> None:
    """Payments of one tenant would run side by side, and those behind a failed one would go on."""
    app = onefold.App("shop")
    with pytest.warns(UserWarning, match="pay has a group on payments, which is a standard queue.*fifo=True") as caught:
        app.job(app.queue("payments"), key="{id}", group="{tenant}", name="pay")(handle)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        app.job(app.queue("ordered", fifo=True), key="{id}", group="{tenant}", name="ordered")(handle)


def test_threads_that_send_first_open_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    app = onefold.App("shop", url="sqlite://:memory:")
    app.queue("orders")
    both = threading.Barrier(2)
    made: list[object] = []

    def slow(*args: Any, **options: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # as long as opening a file may take; two that open at once meet here
        made.append(open_engine(*args, **options))
        return made[-1]

    open_engine = runtime_module.urls.open_engine
    monkeypatch.setattr(runtime_module.urls, "open_engine", slow)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(app.runtime().engine)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == made * 2
    app.close()


class Charge(msgspec.Struct):
    id: str


@pytest.mark.parametrize("one", [Charge("1"), {"id": "1"}, "1", 7, None])
def test_send_many_of_one_payload_says_what_to_write(one: Any) -> None:
    app = onefold.App("shop")
    charge = app.job(app.queue("q"), key="{id}", name="charge")(takes_anything)
    with inline(app) as world:
        with pytest.raises(onefold.errors.UsageError) as caught:
            charge.send_many(one)
        assert world.depth("q").visible == 0
    assert caught.value.what == f"send_many of charge was given one {type(one).__name__}, not a list of payloads."
    assert caught.value.todo == "Write charge.send(...) for one payload, charge.send_many([...]) for several."


def takes_anything(payload: Charge) -> None: ...


@pytest.mark.parametrize("name", [None, 5, "", "My Shop", "a" * 41])
def test_an_app_has_a_name(name: Any) -> None:
    with pytest.raises(errors.UsageError, match="is not a valid name for an app") as caught:
        onefold.App(name)
    assert ("variable of the environment" in caught.value.meaning) is (name is None)


def test_an_empty_url_is_not_the_default_file() -> None:
    with pytest.raises(errors.UsageError, match="names no engine"):
        onefold.App("shop", url="")
