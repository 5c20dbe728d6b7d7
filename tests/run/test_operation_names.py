"""Names of operations belong to one app on each store: a second app with a job of that name is refused before it claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.admin import jobs
from onefold.admin.session import open_session
from onefold.clock import SystemClock
from onefold.contracts.state import Change
from onefold.engines.urls import open_engine
from onefold.entropy import SystemEntropy
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker
from onefold.runtime import names

Owned = list[tuple[str, str, tuple[str, ...]]]


class Shop:
    """An app with one job, `ship`, on a queue of its own."""

    def __init__(self, name: str, url: str, *, unique: bool = False) -> None:
        self.done: list[str] = []
        self.app = onefold.App(name, url=url)

        @self.app.job(self.app.queue(f"{name}-orders"), key="{id}", unique=unique)
        def ship(order: dict[str, str]) -> None:
            self.done.append(order["id"])

        self.ship = ship

    def work(self) -> None:
        """Do all that waits, in this thread."""
        worker = make_worker(
            self.app.runtime(), self.app.jobs, self.app.registry.job_of, settings=WorkerSettings(until_empty=True)
        )
        worker.run()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shared.db"


@pytest.fixture
def shop(url: str) -> Iterator[Callable[..., Shop]]:
    opened: list[Shop] = []

    def make(name: str, **options: Any) -> Shop:
        opened.append(Shop(name, url, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.app.close()


def owned(url: str) -> Owned:
    session = open_session(url, actor="person:ada")
    try:
        return [(one.name, one.kind, one.apps) for one in jobs.taken_names(session)]
    finally:
        session.close()


def test_two_apps_with_a_job_of_one_name_never_answer_each_other(shop: Callable[..., Shop], url: str) -> None:
    parcels, invoices = shop("parcels"), shop("invoices")
    parcels.ship.send({"id": "1"})
    invoices.ship.send({"id": "1"})
    parcels.work()
    with pytest.raises(errors.ConflictError) as refused:
        invoices.work()
    assert "The job 'ship' of the app 'invoices' has the name of a job of the app 'parcels'" in refused.value.what
    assert "onefold names give ship --to invoices" in refused.value.todo
    assert (parcels.done, invoices.done) == (["1"], [])
    assert invoices.app.runtime().engine.queues.open("invoices-orders").depth().visible == 1, "nothing was lost"
    assert owned(url) == [("ship", "job", ("parcels",))]


def test_a_unique_job_is_refused_when_it_is_sent(shop: Callable[..., Shop]) -> None:
    shop("parcels", unique=True).ship.send({"id": "1"})
    invoices = shop("invoices", unique=True)
    with pytest.raises(errors.ConflictError, match="of the app 'parcels' on the same store"):
        invoices.ship.send({"id": "1"})
    assert invoices.app.runtime().engine.queues.open("invoices-orders").depth().visible == 0


def test_one_app_in_many_processes_and_again_after_a_restart(shop: Callable[..., Shop]) -> None:
    for number in range(3):
        again = shop("parcels")
        again.ship.send({"id": str(number)})
        again.work()
        assert again.done == [str(number)]


def test_a_name_is_asked_for_once_in_a_process(shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch) -> None:
    parcels = shop("parcels", unique=True)
    parcels.ship.send({"id": "1"})
    parcels.work()  # it adds the key rule to the name

    def refuse(*_: object) -> Any:
        raise AssertionError("State was asked again")

    monkeypatch.setattr(names, "_check", refuse)
    parcels.ship.send({"id": "2"})
    parcels.work()
    assert parcels.done == ["1", "2"]


def test_a_schedule_of_another_app_is_not_taken_over(shop: Callable[..., Shop], url: str) -> None:
    from onefold.schedules.scheduler import make_scheduler

    def declared(name: str) -> onefold.App:
        app = onefold.App(name, url=url)

        @app.schedule("rate(1 day)", queue=app.queue(f"{name}-ticks"), name="nightly")
        def nightly(tick: onefold.Tick) -> None: ...

        return app

    first, second = declared("parcels"), declared("invoices")
    try:
        make_scheduler(first.runtime())
        with pytest.raises(errors.ConflictError, match="'nightly' of the app 'invoices'"):
            make_scheduler(second.runtime())
    finally:
        first.close()
        second.close()


def test_a_function_refuses_its_events_until_the_name_is_its_own(
    shop: Callable[..., Shop], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    shop("parcels").work()
    handler = shop("invoices").app.lambda_handler()
    for _ in range(2):
        with pytest.raises(errors.ConflictError, match="of the app 'parcels' on the same store"):
            handler({"Records": []})
    session = open_session(url, actor="person:ada")
    jobs.give_names(session, ["ship"], "invoices")
    session.close()
    assert handler({"Records": []}) == {"batchItemFailures": []}


# -- guarded calls ---------------------------------------------------------------------------------------------------


@pytest.fixture
def guard(url: str) -> Iterator[Callable[[], Callable[[str], str]]]:
    engines = []

    def make() -> Callable[[str], str]:
        engine = open_engine(url, clock=SystemClock(), entropy=SystemEntropy(), owner=f"o-{len(engines)}")
        engines.append(engine)

        @onefold.once(key="{id}", name="ship", store=engine.store)
        def ship(id: str) -> str:  # noqa: A002 - the field's name
            return id

        return ship

    yield make
    for engine in engines:
        engine.close()


def test_a_guard_does_not_answer_for_a_job_of_its_name(shop: Callable[..., Shop], guard: Any) -> None:
    assert guard()("1") == "1"
    parcels = shop("parcels")
    parcels.ship.send({"id": "1"})
    with pytest.raises(errors.ConflictError, match="has the name of a function under @once on the same store"):
        parcels.work()


def test_nor_a_job_for_a_guard(shop: Callable[..., Shop], guard: Any) -> None:
    parcels = shop("parcels")
    parcels.ship.send({"id": "1"})
    parcels.work()
    with pytest.raises(errors.ConflictError, match="The function 'ship' under @once has the name of a job of the app"):
        guard()("1")


def test_guards_of_one_name_are_one_operation(guard: Any) -> None:
    assert guard()("1") == guard()("1") == "1"


# -- handing over ----------------------------------------------------------------------------------------------------


def test_a_name_is_given_to_a_renamed_app_and_shared_meanwhile(shop: Callable[..., Shop], url: str) -> None:
    shop("parcels").work()
    with pytest.raises(errors.ConflictError):
        shop("courier").work()
    session = open_session(url, actor="person:ada")
    try:
        jobs.give_names(session, (), "courier", of="parcels", shared=True)
        shop("courier").work()
        shop("parcels").work()
        jobs.give_names(session, ["ship"], "courier", reason_text="renamed")
        shop("courier").work()
        with pytest.raises(errors.ConflictError, match="a job of the app 'courier'"):
            shop("parcels").work()
        for wrong in ({"names": ["shipp"]}, {"names": (), "of": "parcels"}):
            with pytest.raises(errors.NotFoundError, match="is known here"):
                jobs.give_names(session, app="courier", **wrong)  # type: ignore[arg-type]
        rows = [row for row in session.engine.ledger.between(0, session.now_ms() + 1) if row.event == "name-given"]
        assert [(row.actor, row.detail["to"]) for row in rows] == [
            ("person:ada", "parcels, courier"),
            ("person:ada", "courier"),
        ]
    finally:
        session.close()


# -- what may be in the way ------------------------------------------------------------------------------------------


class Kept:
    """A State in memory, which others may change between a read and a write, or which may not be read."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.meanwhile: list[Callable[[], None]] = []
        self.error: Exception | None = None

    def get(self, wanted: Any) -> list[Any]:
        from onefold.contracts.state import Versioned

        if self.error is not None:
            raise self.error
        return [Versioned(1, self.values[one]) if one in self.values else None for one in wanted]

    def put(self, changes: list[Change]) -> list[bool]:
        others, self.meanwhile = self.meanwhile, []
        for other in others:
            other()
        answers = []
        for one in changes:
            answers.append(one.name not in self.values)
            if answers[-1] and one.value is not None:
                self.values[one.name] = one.value
        return answers


def test_who_is_first_by_a_moment_has_it() -> None:
    state: Any = Kept()
    state.meanwhile = [lambda: names.take(state, ["ship"], "parcels", 1)]
    with pytest.raises(errors.ConflictError, match="of the app 'parcels'"):
        names.take(state, ["pack", "ship"], "invoices", 1)
    names.take(state, ["ship"], "parcels", 1)


def test_where_one_is_refused_none_is_taken() -> None:
    state: Any = Kept()
    names.take(state, ["ship"], "parcels", 1)
    with pytest.raises(errors.ConflictError):
        names.take(state, ["pack", "ship"], "invoices", 1)
    assert list(state.values) == ["operation/ship"]


def test_who_may_not_read_state_works_as_before() -> None:
    state: Any = Kept()
    state.error = errors.UsageError("AWS does not allow dynamodb:BatchGetItem.", todo="Add it.")
    names.take(state, ["ship"], "parcels", 1)
    state.error = errors.TransientError("throttled", todo="again")
    with pytest.raises(errors.TransientError):
        names.take(state, ["ship"], "parcels", 1)


def test_what_a_later_version_writes_there_is_left_alone() -> None:
    state: Any = Kept()
    state.values["operation/ship"] = b'{"kind":"swarm"}'
    names.take(state, ["ship"], "parcels", 1)
    assert state.values["operation/ship"] == b'{"kind":"swarm"}'


@pytest.mark.parametrize("length", [1, 128, 290, 291, 512])
def test_names_of_any_length_have_places_of_their_own(length: int) -> None:
    places = {names.state_name_of("x" * length), names.state_name_of("x" * (length - 1) + "y")}
    assert len(places) == 2
    assert max(map(len, places)) <= 300
