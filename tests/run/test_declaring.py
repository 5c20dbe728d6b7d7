"""Declarations: what is refused declares nothing, and what is doubtful is said where it was written. And opening an app."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

import onefold
from onefold.run.declaring import JOB_NAME_CHARS_MAX
from onefold.service import wiring


def handle(payload: dict[str, str]) -> None: ...


def no_payload() -> None: ...


def yields(payload: dict[str, str]) -> Any:
    yield payload


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": 7}, "7 is not a name for a queue"),
        ({"name": "a/b"}, "a/b"),
        ({"dead_letter": onefold.DeadLetter(after=0)}, "dead_letter.after=0 is out of range"),
        ({"dead_letter": onefold.DeadLetter(retention="15d")}, "dead_letter.retention='15d' is out of range"),
        ({"visibility": 30}, "visibility=30 is not a duration"),
        ({"visibilty": "30s"}, "Did you mean 'visibility'"),
    ],
)
def test_a_queue_that_is_refused_is_not_declared(options: dict[str, Any], said: str) -> None:
    app = onefold.App("shop")
    with pytest.raises(onefold.UsageError, match=said):
        app.queue(**{"name": "orders", **options})
    assert app.queues == {}


def test_a_queue_may_be_declared_again_only_as_it_is() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders", fifo=True, content_dedup=True)
    assert orders.name == "orders.fifo"
    assert (orders.dead_letter.name, orders.held.name) == ("orders-dead.fifo", "orders-held.fifo")
    assert app.queue("orders", fifo=True, content_dedup=True) is orders
    with pytest.raises(onefold.ConflictError, match="declared twice with different settings"):
        app.queue("orders", fifo=True)


@pytest.mark.parametrize(
    ("handler", "options", "said"),
    [
        (handle, {"effect": "transactionl"}, "Did you mean 'transactional'"),
        (handle, {"source": "eventbrige"}, "eventbridge"),
        (handle, {"name": "x" * (JOB_NAME_CHARS_MAX + 1)}, "is not a name for a job"),
        (handle, {"retry": onefold.Retry(attempts=11)}, "dead_letter.after=10"),
        (handle, {"keep": "1d"}, "is shorter than"),
        (handle, {"when_complete": 7}, "neither a schedule nor a map run"),
        (no_payload, {}, "takes no payload"),
        (yields, {}, "cannot be a handler"),
    ],
)
def test_a_job_that_is_refused_is_not_declared(handler: Any, options: dict[str, Any], said: str) -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    with pytest.raises(onefold.UsageError, match=said):
        app.job(orders, key="{id}", **options)(handler)
    assert app.jobs == {}


def test_two_jobs_of_one_name_are_refused() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    first = app.job(orders, key="{id}")(handle)
    with pytest.raises(onefold.ConflictError, match="Job handle is declared twice"):
        app.job(orders, key="{id}")(handle)
    assert app.jobs == {"handle": first}


def test_a_key_that_is_new_at_every_send_is_warned_of_where_it_is_declared() -> None:
    app = onefold.App("shop")
    orders = app.queue("orders")
    with pytest.warns(UserWarning, match="The key of handle uses timestamp") as told:
        app.job(orders, key="{timestamp}")(handle)
    assert [one.filename for one in told] == [__file__]


def test_threads_that_send_first_open_one_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    app = onefold.App("shop", url="sqlite://:memory:")
    app.queue("orders")
    both = threading.Barrier(2)
    made: list[object] = []

    class Slow(wiring.Runtime):
        def __init__(self, *args: Any, **options: Any) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # as long as opening a file may take; two that open at once meet here
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(wiring, "Runtime", Slow)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(app.runtime())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == made * 2
    app.close()
