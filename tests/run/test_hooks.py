"""Hooks: what runs when a process starts and stops, around handlers, and when one raises; and what their own errors do."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import errors
from onefold.options import WorkerSettings
from onefold.runner.worker_setup import make_worker
from onefold.testing import inline


@dataclass
class Order:
    id: str


class Noted(onefold.Hooks):
    """Writes down what it is called for."""

    def __init__(self, name: str = "", log: list[str] | None = None) -> None:
        self.name = name
        self.log: list[str] = [] if log is None else log

    def start(self, place: Any) -> None:
        self.log.append(f"{self.name}start {place}")

    def stop(self, place: Any) -> None:
        self.log.append(f"{self.name}stop {place}")

    @contextmanager
    def around(self, ctx: onefold.Context) -> Iterator[None]:
        self.log.append(f"{self.name}enter {ctx.key}")
        try:
            yield
        finally:
            self.log.append(f"{self.name}leave {ctx.key}")

    def error(self, error: BaseException, ctx: onefold.Context) -> None:
        self.log.append(f"{self.name}error {ctx.key} {type(error).__name__}")


def shop(*hooks: onefold.Hooks, is_async: bool = False, fails: BaseException | None = None, **job: Any) -> Any:
    """An app with one job that writes into the first hook's log, and fails."""
    app = onefold.App("shop", hooks=hooks)
    log = getattr(hooks[0], "log", [])

    def run(order: Order) -> str:
        log.append(f"run {order.id}")
        if fails is not None:
            raise fails
        return order.id

    async def run_async(order: Order) -> str:
        return run(order)

    options: dict[str, Any] = {"key": "{id}", "name": "run", "retry": onefold.Retry(attempts=1)} | job
    app.job(app.queue("orders"), **options)(run_async if is_async else run)
    return app


def ran(app: Any) -> list[onefold.observe.Event]:
    """Its events after one message."""
    with inline(app) as world:
        app.jobs["run"].send(Order("a"))
        world.run()
        return [one for one in world.events if one.name not in ("received", "started", "released")]


# -- around and error --------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("is_async", [False, True], ids=["plain", "coroutine"])


@BOTH
def test_hooks_are_entered_in_order_and_left_in_the_opposite_one(is_async: bool) -> None:
    first = Noted("1 ")
    app = shop(first, Noted("2 ", first.log), is_async=is_async)
    assert [one.name for one in ran(app)] == ["completed"]
    assert first.log == [
        "1 start inline", "2 start inline", "1 enter a", "2 enter a", "run a", "2 leave a", "1 leave a", "2 stop inline",
        "1 stop inline",
    ]  # fmt: skip


@BOTH
def test_what_a_handler_raises_is_reported_within_what_is_around_it(is_async: bool) -> None:
    hooks = Noted()
    (event,) = ran(shop(hooks, is_async=is_async, fails=onefold.PermanentError("no")))
    assert event.name == "dead-letter"
    assert hooks.log[1:-1] == ["enter a", "run a", "error a PermanentError", "leave a"]


class Refusing(onefold.Hooks):
    """Raises as it is entered."""

    def __init__(self, error: BaseException) -> None:
        self.raised = error

    @contextmanager
    def around(self, ctx: onefold.Context) -> Iterator[None]:
        if ctx.attempt:
            raise self.raised
        yield


@BOTH
def test_what_is_raised_before_the_handler_is_a_failed_attempt_without_an_effect(is_async: bool) -> None:
    hooks = Noted()
    refusing = Refusing(TimeoutError("no connection of the pool"))
    found = ran(shop(hooks, refusing, is_async=is_async, on_unknown="hold", retry=onefold.Retry(attempts=3)))
    assert [one.name for one in found] == ["retry"]  # a handler's TimeoutError would be an unknown outcome, and held
    assert found[0].detail["attempt"] == 1
    assert "run a" not in hooks.log
    assert "error a TimeoutError" in hooks.log


@BOTH
def test_what_a_handler_raises_of_that_kind_is_unknown(is_async: bool) -> None:
    found = ran(shop(Noted(), is_async=is_async, on_unknown="hold", fails=TimeoutError("no answer")))
    assert [one.name for one in found] == ["unknown", "held"]


class Leaving(onefold.Hooks):
    """Raises as it is left, or takes in what was raised."""

    def __init__(self, error: BaseException | None) -> None:
        self.raised = error

    @contextmanager
    def around(self, ctx: onefold.Context) -> Iterator[None]:
        with suppress(Exception):
            yield
        if self.raised is not None:
            raise self.raised


@BOTH
def test_no_hook_hides_what_a_handler_raised(is_async: bool) -> None:
    (event,) = ran(shop(Leaving(None), is_async=is_async, fails=onefold.PermanentError("no")))
    assert (event.name, event.detail["error"]) == ("dead-letter", "PermanentError")


@BOTH
def test_what_is_raised_as_a_hook_is_left_counts_as_raised_by_the_handler(is_async: bool) -> None:
    hooks = Noted()
    (event,) = ran(shop(hooks, Leaving(onefold.PermanentError("the commit failed")), is_async=is_async))
    assert (event.name, event.detail["summary"]) == ("dead-letter", "the commit failed")
    assert "error a PermanentError" in hooks.log


def test_an_error_hook_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(onefold.Hooks):
        def error(self, error: BaseException, ctx: onefold.Context) -> None:
            raise OSError("no route to the collector")

    hooks = Noted()
    (event,) = ran(shop(Broken(), hooks, fails=onefold.PermanentError("no")))
    assert event.detail["error"] == "PermanentError"
    assert "error a PermanentError" in hooks.log
    assert "Broken.error raised OSError: no route to the collector (at test_hooks.py:" in caplog.text
    assert "The outcome of run 'a' is unchanged." in caplog.text


@asynccontextmanager
async def asynchronous() -> AsyncIterator[None]:
    yield


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            iter(()),
            "returned a tuple_iterator, not a context manager. The handler was not called. Write @contextmanager",
        ),
        (asynchronous(), "It is asynchronous, and the handler is not."),
    ],
)
def test_what_is_no_context_manager_is_refused_before_the_handler(answer: Any, says: str) -> None:
    class Odd(onefold.Hooks):
        def around(self, ctx: onefold.Context) -> Any:
            return answer

    hooks = Noted()
    (event,) = ran(shop(hooks, Odd()))
    assert event.name == "dead-letter"
    assert event.exception is not None
    assert says in str(event.exception)
    assert "run a" not in hooks.log


def test_an_asynchronous_manager_serves_coroutines() -> None:
    seen: list[str] = []

    class Pool(onefold.Hooks):
        @asynccontextmanager
        async def around(self, ctx: onefold.Context) -> AsyncIterator[None]:
            seen.append("enter")
            yield
            seen.append("leave")

    (event,) = ran(shop(Pool(), is_async=True))
    assert (event.name, seen) == ("completed", ["enter", "leave"])


CURRENT: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="")


@BOTH
def test_a_context_variable_that_a_hook_sets_is_the_handlers(is_async: bool) -> None:
    class Setting(onefold.Hooks):
        @contextmanager
        def around(self, ctx: onefold.Context) -> Iterator[None]:
            token = CURRENT.set(ctx.key)
            yield
            CURRENT.reset(token)

    app = onefold.App("shop", hooks=[Setting()])
    seen: list[str] = []

    async def run_async(order: Order) -> None:
        seen.append(CURRENT.get())

    def run(order: Order) -> None:
        seen.append(CURRENT.get())

    app.job(app.queue("orders"), key="{id}", name="run")(run_async if is_async else run)
    assert [one.name for one in ran(app)] == ["completed"]
    assert (seen, CURRENT.get()) == (["a"], "")


# -- in a worker -------------------------------------------------------------------------------------------------------


def worked(app: Any, **settings: Any) -> list[str]:
    """One message through a real worker; its errors by text."""
    app.jobs["run"].send(Order("a"))
    worker = make_worker(
        app.runtime(), app.jobs, app.registry.job_of, settings=WorkerSettings(until_empty=True, **settings)
    )
    try:
        worker.run()
    except errors.OnefoldError as error:
        return [str(error)]
    finally:
        app.close()
    return []


@BOTH
def test_a_worker_calls_them_all(is_async: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hooks = Noted()
    assert worked(shop(hooks, is_async=is_async)) == []
    assert hooks.log == ["start worker", "enter a", "run a", "leave a", "stop worker"]


def test_a_worker_does_not_start_where_a_hook_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    class Pool(onefold.Hooks):
        def start(self, place: Any) -> None:
            raise OSError("database is down")

    hooks = Noted()
    app = shop(hooks, Pool())
    (text,) = worked(app)
    assert "Pool.start raised OSError: database is down (at test_hooks.py:" in text
    assert "nothing was received" in text
    assert hooks.log == ["start worker", "stop worker"]
    assert app.runtime().engine.queues.open("orders").depth().visible == 1
    app.close()


def test_a_stop_hook_that_raises_is_logged_and_the_others_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)

    class Pool(onefold.Hooks):
        def stop(self, place: Any) -> None:
            raise OSError("was closed")

    hooks = Noted()
    assert worked(shop(hooks, Pool())) == []
    assert hooks.log[-1] == "stop worker"
    assert "Pool.stop raised OSError: was closed" in caplog.text


APP = """
import os
from contextlib import contextmanager
import onefold

def log(text):
    with open("log", "a") as file:
        print(text, file=file)

class Mine(onefold.Hooks):
    def start(self, place):
        log(f"start {place}")
        if os.environ.get("BREAKS") == place:
            raise OSError(f"no pool for a {place}")
    def stop(self, place):
        log(f"stop {place}")
    @contextmanager
    def around(self, ctx):
        log("enter")
        try:
            yield
        finally:
            log("leave")
    def error(self, error, ctx):
        log(f"error {error}")

app = onefold.App("shop", hooks=[Mine()])

@app.job(app.queue("orders"), key="{id}", retry=onefold.Retry(attempts=1))
def run(order: dict):
    raise onefold.PermanentError("no")

if __name__ == "__main__":
    run.send({"id": "a"})
"""


def command(at: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (at / "shop.py").write_text(APP)
    python = [sys.executable]
    subprocess.run([*python, "shop.py"], cwd=at, check=True, timeout=60)
    return subprocess.run(
        [*python, "-m", "onefold", "worker", "shop:app", "--until-empty", *words],
        cwd=at, capture_output=True, text=True, check=False, timeout=60, env=os.environ | environment,
    )  # fmt: skip


def test_handlers_in_child_processes_have_hooks_there(tmp_path: Path) -> None:
    ended = command(tmp_path, "--processes", "1")
    assert ended.returncode == 0, ended.stderr
    log = (tmp_path / "log").read_text().splitlines()
    assert sorted(log[:2]) == ["start child", "start worker"]
    assert log[2:] == ["enter", "error no", "leave", "stop child", "stop worker"]


@pytest.mark.parametrize("place", ["worker", "child"])
def test_the_command_says_which_hook_could_not_start(place: str, tmp_path: Path) -> None:
    ended = command(tmp_path, "--processes", "1", BREAKS=place)
    assert ended.returncode == 1
    assert f"The hook Mine.start raised OSError: no pool for a {place} (at shop.py:" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "enter" not in (tmp_path / "log").read_text()


# -- under @once -------------------------------------------------------------------------------------------------------


@BOTH
def test_calls_under_once_have_hooks_too(is_async: bool) -> None:
    hooks = Noted()

    def plain(order: str, fails: bool = False) -> str:
        hooks.log.append("run")
        if fails:
            raise ValueError("no")
        return order

    async def coroutine(order: str, fails: bool = False) -> str:
        return plain(order, fails)

    once: Any = onefold.once(key="{order}", name="pay", store=onefold.memory_store(), hooks=[hooks])
    guarded: Any = once(coroutine if is_async else plain)

    def call(*args: Any) -> Any:
        return asyncio.run(guarded(*args)) if is_async else guarded(*args)

    assert [call("o-1"), call("o-1")] == ["o-1", "o-1"]
    with pytest.raises(ValueError, match="no"):
        call("o-2", True)
    assert hooks.log == ["enter o-1", "run", "leave o-1", "enter o-2", "run", "error o-2 ValueError", "leave o-2"]


def test_a_hook_and_a_context_at_once() -> None:
    seen: list[tuple[str, int]] = []

    @onefold.once(key="{order}", name="pay", store=onefold.memory_store(), hooks=[Noted()])
    def pay(order: str, ctx: onefold.Context | None = None) -> None:
        assert ctx is not None
        seen.append((ctx.key, ctx.fence))

    pay("o-1")
    assert seen == [("o-1", 1)]


# -- declaring ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hooks", "says"),
    [
        (Noted(), "is not a list"),
        ([Noted], "which is not an object with hooks.*Write Noted"),
        ([object()], "which is not an object with hooks"),
    ],
)
def test_what_are_no_hooks(hooks: Any, says: str) -> None:
    for declare in (lambda: onefold.App("shop", hooks=hooks), lambda: onefold.once(hooks=hooks, **ONCE)(print_order)):
        with pytest.raises(errors.UsageError, match=says):
            declare()


ONCE: dict[str, Any] = {"key": "{order}", "name": "print", "store": onefold.memory_store()}


def print_order(order: str) -> None: ...


def test_a_forked_child_of_a_handler_leaves_no_hook() -> None:
    hooks = Noted()
    app = onefold.App("shop", hooks=[hooks])
    codes: list[int] = []

    def run(order: Order) -> None:
        child = os.fork()
        if child == 0:
            hooks.log.append("in the child")
            return
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    app.job(app.queue("orders"), key="{id}", name="run")(run)
    assert [one.name for one in ran(app)] == ["completed"]
    assert codes == [0]
    assert hooks.log[1:-1] == ["enter a", "leave a"]


def test_handlers_in_threads_have_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen: set[tuple[str, int]] = set()

    class Threads(onefold.Hooks):
        @contextmanager
        def around(self, ctx: onefold.Context) -> Iterator[None]:
            seen.add((ctx.key, threading.get_ident()))
            yield

    app = onefold.App("shop", hooks=[Threads()])
    gate = threading.Barrier(2)

    @app.job(app.queue("orders"), key="{id}", name="run")
    def run(order: Order) -> None:
        gate.wait(60)

    app.jobs["run"].send(Order("b"))
    assert worked(app, threads=2) == []
    assert {key for key, _ in seen} == {"a", "b"}
    assert len({thread for _, thread in seen}) == 2
