"""A map on a private engine and a clock that stands, its file, and a driver that can be ended at any step of its own.

Never here: expectations. Invariant: what a driver that was ended had not committed is not there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

import onefold
from onefold.admin import maps
from onefold.admin.maps import MapProgress
from onefold.maps.jobs import MapJob
from onefold.maps.mapper import Mapper
from onefold.testing.inline import World

RUN = "nightly/1"


class Row(Struct):
    id: str
    qty: int


class NotThereError(onefold.PermanentError):
    pass


class BusyError(onefold.TransientError):
    pass


class Mill:
    """An app with one map, whose handler does what the test says for each id."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.app = onefold.App("mill")
        self.queue = self.app.queue("items", dead_letter=onefold.DeadLetter(after=50))
        self.operations = self.app.queue("operations")
        self.ill: dict[str, Callable[[int], Exception | None]] = {}
        self.effects: Counter[str] = Counter()
        options = {"results": str(folder / "results"), "concurrency": 8, "retry": ()} | options

        def grind(row: Row, ctx: onefold.Context) -> dict[str, int]:
            error = self.ill.get(row.id, lambda _: None)(ctx.attempt)
            if error is not None:
                raise error
            self.effects[row.id] += 1
            return {"twice": row.qty * 2}

        self.map: MapJob = self.app.map(self.queue, key="{id}", **options)(grind)

    def file(self, count: int, *, name: str = "in.csv", bad: dict[int, str] | None = None) -> str:
        """A CSV file of rows 0, 1, ...; some lines replaced."""
        lines = [(bad or {}).get(number, f"{number},{number}") for number in range(count)]
        place = self.folder / name
        place.write_text("id,qty\n" + "".join(f"{line}\n" for line in lines))
        return str(place)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """All records of the result files of one kind, by the manifest."""
        place = self.folder / "results" / RUN
        listed = json.loads((place / "manifest.json").read_text())["ResultFiles"].get(kind, [])
        return [record for one in listed for record in json.loads((place / one["Key"]).read_text())]


def drive(mill: Mill, world: World, *, steps_max: int = 500, advance_ms: int = 500) -> MapProgress:
    """Drive the run and do its items until it is over."""
    mapper = Mapper(mill.app.runtime(), mill.map, RUN)
    for _ in range(steps_max):
        mapper.advance()
        if mapper.over:
            return maps.progress(mill.app, RUN)
        world.run()
        world.clock.advance(advance_ms)
    raise AssertionError(f"not over after {steps_max} steps: {maps.progress(mill.app, RUN)}")


class Killed(BaseException):
    """The process has ended here."""


class Countdown:
    """Ends the process at one of its steps.

    Args:
        at: the number of the step, from 1 on; before or after each call is one.
    """

    def __init__(self, at: int) -> None:
        self._left = at
        self.where = ""

    def step(self, what: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.where = what
            raise Killed(what)

    @property
    def passed(self) -> bool:
        """Whether there were fewer steps than that."""
        return self._left > 0


class Mortal:
    """Something whose calls may be the last ones."""

    def __init__(self, inner: Any, name: str, verbs: tuple[str, ...], countdown: Countdown) -> None:
        self._inner, self._name, self._verbs, self._countdown = inner, name, verbs, countdown

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if verb not in self._verbs:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._countdown.step(f"before {self._name}.{verb}")
            answer = found(*args, **kwargs)
            self._countdown.step(f"after {self._name}.{verb}")
            return answer

        return call


class MortalEngine:
    """An engine whose writes may be the last ones; with `apart` each is a transaction of its own, as on AWS."""

    def __init__(self, inner: Any, countdown: Countdown, *, apart: bool) -> None:
        self._inner, self._apart = inner, apart
        self.state = Mortal(inner.state, "state", ("put",), countdown)
        self.ledger = Mortal(inner.ledger, "ledger", ("append",), countdown)
        self.queues = Mortal(inner.queues, "queues", ("remove",), countdown)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def together(self, calls: Any, *, synced: bool = True) -> list[object]:
        if not self._apart:
            return list(self._inner.together(calls, synced=synced))
        answers: list[object] = []
        for call in calls:
            try:
                answers.append(call())
            except Exception as error:  # noqa: BLE001 - the contract's
                answers.append(error)
        return answers


class MortalRuntime:
    """The app's runtime, with a mortal engine."""

    def __init__(self, app: Any, countdown: Countdown, *, apart: bool) -> None:
        self._inner, self._countdown = app.runtime(), countdown
        self.engine = MortalEngine(self._inner.engine, countdown, apart=apart)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, outgoing: Any) -> Any:
        self._countdown.step("before send")
        answer = self._inner.send(outgoing)
        self._countdown.step("after send")
        return answer
