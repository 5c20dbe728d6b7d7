"""A signal's handler raises in the worker's main loop: nobody takes that for what the engine said."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

import onefold
from onefold import errors
from onefold.options import WorkerSettings
from onefold.runner.settlement import backend_of
from tests.run.workshop import Workshop


class Order(msgspec.Struct):
    id: str


class Struck:
    """A contract at whose first call of one verb a signal comes, before or after it is done."""

    def __init__(self, real: Any, verb: str, when: str) -> None:
        self._real, self._verb, self._when = real, verb, when

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name != self._verb:
            return found

        def call(*args: Any, **options: Any) -> Any:
            if self._when == "before":
                signal.raise_signal(signal.SIGUSR1)
            answer = found(*args, **options)
            if self._when == "after":
                signal.raise_signal(signal.SIGUSR1)
            return answer

        return call


@pytest.fixture
def app(tmp_path: Path) -> Iterator[onefold.App]:
    app = onefold.App("shop", url=f"sqlite:///{tmp_path}/shop.db")
    yield app
    app.close()


@pytest.fixture(params=[errors.TransientError, errors.OverLimitError, errors.UsageError, errors.NotFoundError])
def raised(request: pytest.FixtureRequest) -> Iterator[errors.OnefoldError]:
    """What the handler raises."""
    error: errors.OnefoldError = request.param("of the program")

    def handler(_number: int, _frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGUSR1, handler)
    yield error
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("verb", ["receive", "claim", "commit"])
def test_what_a_signals_handler_raises_ends_the_worker(
    app: onefold.App, raised: errors.OnefoldError, verb: str, when: str
) -> None:
    queue = app.queue("orders")

    @app.job(queue, key="{id}")
    def ship(order: Order) -> None: ...

    ship.send(Order("o-1"))
    real = backend_of(app.runtime().engine)
    place = {"claim": "store", "commit": "commit"}.get(verb)
    struck = {place: Struck(getattr(real, place), verb, when)} if place is not None else {}
    opened = real.open_queue("orders")
    shop = Workshop(
        app,
        WorkerSettings(until_empty=True),
        backend=msgspec.structs.replace(real, **struck),
        queues=[opened if place is not None else Struck(opened, verb, when)],
    )
    try:
        with pytest.raises(errors.OnefoldError) as caught:
            shop.worker.run()
    finally:
        shop.waiter.close()
    assert caught.value is raised
    assert shop.told.of("engine-busy") == []
