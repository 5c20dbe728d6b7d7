"""A call that sends: each message is checked once, and all are accepted or none, also by several queues."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest

from onefold import App, errors
from onefold.contracts import entries
from onefold.testing import inline
from tests.run.ticking import Loose


@pytest.fixture
def app() -> App:
    return App("shop", url="sqlite://:memory:")


def declare(app: App, name: str, **options: Any) -> Any:
    @app.job(app.queue(name, max_bytes=1_024), key="{id}", name=name.partition(".")[0], **options)
    def job(order: dict[str, str]) -> None: ...

    return job


class Checks:
    """Counts how often messages are checked in a `with`."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is entries.check_entry.__code__:
            self.counted[frame.f_locals["entry"].key] += 1

    def __enter__(self) -> Counter[str]:
        sys.setprofile(self)
        return self.counted

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)


@pytest.mark.parametrize("unique", [False, True])
def test_a_message_is_checked_once_on_its_way(app: App, unique: bool) -> None:
    job = declare(app, "orders", unique=unique)
    with inline(app), Checks() as counted:
        job.send({"id": "1"})
        job.send_many([{"id": "2"}, {"id": "3"}])
    assert counted == {"1": 1, "2": 1, "3": 1}


@pytest.mark.parametrize("is_loose", [False, True], ids=["one transaction", "none"])
def test_messages_to_several_queues_are_accepted_by_all_or_none(app: App, is_loose: bool) -> None:
    orders, letters = declare(app, "orders"), declare(app, "letters")
    with inline(app) as world:
        runtime: Any = app.runtime()
        if is_loose:
            runtime._opened.engine = Loose(runtime.engine)
        large = letters.message({"id": "2", "text": "x" * 1_024})
        with pytest.raises(errors.PayloadError, match="Queue letters does not take the message of letters '2'"):
            app.runtime().send([orders.message({"id": "1"}), large])
        assert world.depth("orders").visible == 0
        first, second = app.runtime().send([letters.message({"id": "4"}), orders.message({"id": "3"})])
        assert (first.job, second.job) == ("letters", "orders")
        assert (world.depth("letters").visible, world.depth("orders").visible) == (1, 1)


def test_one_refused_of_many_keeps_the_others_from_being_sent(app: App) -> None:
    orders = declare(app, "orders")
    with inline(app) as world:
        with pytest.raises(errors.PayloadError, match="the message of orders '2'"):
            orders.send_many([{"id": "1"}, {"id": "2", "text": "x" * 1_024}, {"id": "3"}])
        assert world.depth("orders").visible == 0
        assert orders.send_many([]) == []
