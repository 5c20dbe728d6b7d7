"""A soft time limit that is an OSError, as most are, at each line of ours: it is raised as it is, nothing happens twice.

The signal fires at the first line where it has not fired yet, until a call gets through without one.
"""

from __future__ import annotations

import gc
import itertools
import linecache
import os
import signal
import sys
import types
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import forks
from onefold.clock import SystemClock
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy
from tests.crash.test_alarm import folder

__all__ = ["folder"]
SOURCE = str(Path(onefold.__file__).parent)
FORK_HOOKS = {hook.__code__ for hook in (forks._before, forks._in_parent, forks._in_child)}
pytestmark = pytest.mark.slow


class TooLate(TimeoutError):
    """The limit."""


class NotNow(onefold.TransientError):
    """The limit of a program that wants its job to be tried again."""


def is_step(frame: types.FrameType) -> bool:
    """Whether Python looks for signals at a line: where something is called."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return "(" in line and not line.startswith("case ")


def is_finaliser(frame: types.FrameType) -> bool:
    """Whether Python prints and forgets whatever is raised here."""
    if frame.f_code.co_qualname in ("in_child.<locals>.<lambda>", "register.<locals>.<lambda>"):
        return True
    above: types.FrameType | None = frame
    while above is not None:
        if above.f_code in FORK_HOOKS or above.f_code.co_name == "__del__" or is_called_by_weakref(above):
            return True
        above = above.f_back
    return False


def is_called_by_weakref(frame: types.FrameType) -> bool:
    return frame.f_back is not None and frame.f_back.f_code.co_filename == weakref.__file__


class Limit:
    """A limit that fires once in each call, at a line at which it has not fired before.

    Args:
        kind: what its handler raises.

    Attributes:
        where: the line at which it fired in the last call; empty when it did not.
        waits: whether it must not fire yet.
    """

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind
        self.places: set[tuple[types.CodeType, int]] = set()
        self.where = ""
        self.waits = False

    def ring(self, _number: int, _frame: types.FrameType | None) -> None:
        raise self.kind("the soft limit")

    def trace(self, frame: types.FrameType, event: str, _arg: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE) or is_finaliser(frame):
            return None
        place = frame.f_code, frame.f_lineno
        if event == "line" and not self.where and not self.waits and place not in self.places and is_step(frame):
            self.places.add(place)
            self.where = f"{frame.f_code.co_filename}, {frame.f_code.co_qualname}, line {frame.f_lineno}"
            signal.raise_signal(signal.SIGUSR1)
        return self.trace

    def calls(self, call: Callable[[int], object]) -> Iterator[str]:
        """Repeat the call until the limit no longer fires; yields class and text of what each call raised.

        It does not yield the exceptions: their frames would keep sockets alive that nobody has received yet.
        """
        for number in itertools.count():
            self.where, raised = "", "nothing"
            before = sys.gettrace()
            sys.settrace(self.trace)
            try:
                call(number)
            except BaseException as error:  # noqa: BLE001 - looked at
                raised = f"{type(error).__name__}: {error}"
            finally:
                sys.settrace(before)
            if not self.where:
                assert raised == "nothing"
                return
            yield raised


@contextmanager
def limit(kind: type[Exception] = TooLate) -> Iterator[Limit]:
    """A limit whose handler is installed."""
    found = Limit(kind)
    before = signal.signal(signal.SIGUSR1, found.ring)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield found
        finally:
            signal.signal(signal.SIGUSR1, before)
            gc.collect()


def opened(path: Path) -> SqliteEngine:
    """An engine as `onefold.store` opens it, which the test closes."""
    return SqliteEngine(
        str(path), clock=SystemClock(), entropy=SystemEntropy(), owner=SystemEntropy().token(), url=str(path)
    )


def test_a_limit_while_a_file_is_opened_is_not_taken_for_the_disks_own_error(folder: Path) -> None:
    with limit() as late:
        for raised in late.calls(lambda number: opened(folder / f"{number}.db").close()):
            assert raised == "TooLate: the soft limit", late.where
    assert len(late.places) > 100


@pytest.mark.parametrize("kind", [TooLate, NotNow])
def test_a_limit_while_a_call_is_recorded_that_forked_loses_no_record(folder: Path, kind: type[Exception]) -> None:
    engine = opened(folder / "x.db")
    store = engine.store
    effects: Counter[str] = Counter()

    @onefold.once(key="{key}", name="charge", store=store, on_running="raise")
    def charge(key: str) -> str:
        child = os.fork()  # the file is closed for it, and opened again for the record
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        effects[key] += 1
        late.waits = False
        return key

    def call(number: int) -> None:
        late.waits = kind is NotNow  # until the effect has happened
        charge(str(number))

    with limit(kind) as late:
        for number, raised in enumerate(late.calls(call)):
            where, key = late.where, str(number)
            assert raised == f"{kind.__name__}: the soft limit", where
            try:
                assert charge(key) == key, where
            except onefold.TransientError as error:
                raise AssertionError(f"{where}: {error}") from None
            assert effects[key] == 1, f"{where}: its effect happened {effects[key]} times"
    engine.close()
    assert len(late.places) > 50


def test_a_limit_while_something_is_sent_arrives(folder: Path) -> None:
    app = onefold.App("limited", url=f"sqlite:///{folder}/x.db")

    @app.job(app.queue("orders"), key="{order}", unique=True)
    def book(_payload: dict[str, str]) -> None:
        raise AssertionError("nobody works here")

    book.send({"order": "first"})
    with limit() as late:
        for number, raised in enumerate(late.calls(lambda number: book.send({"order": str(number)}))):
            assert raised == "TooLate: the soft limit", late.where
            book.send({"order": str(number)})
    app.close()
    assert len(late.places) > 100
