"""The small world of `world.py`, whose workers make calls of one function under `onefold.once` instead of taking messages.

The guard, its runner, script and store are the real ones; a call's claim, probe, start, effect and record are separate
steps, between which its process may die. The judge learns of takeovers and doubts from the history, where they are
durable.
Does not contain: what to choose (`walk.py`), rules of right and wrong (`judge.py`).
Invariant: as in `world.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import onefold
from onefold import errors
from onefold.contracts.ledger import Row
from onefold.contracts.store import Answer, Ask, Claimed, Completed, Hold, Running
from onefold.contracts.verbs import Ledger, RowsOf, Store
from onefold.entropy import SeededEntropy
from onefold.record import attempt as script
from onefold.runner import calling
from onefold.runner.execution import Execution
from onefold.runner.guarded import GuardedFunction
from onefold.runtime.events import Event, Sinks
from tests.crash.judge import Judge, Violation
from tests.crash.observers import ObservedStore
from tests.crash.stage import Stage
from tests.crash.world import LEASE_MS, Bounds, Worker, World


class CallStore(ObservedStore):
    """An observed store with its history; each row that is written is reported to the judge."""

    def __init__(self, store: Store, judge: Judge, ledger: Ledger) -> None:
        super().__init__(store, judge)
        self.ledger = SimpleNamespace(append=self._append, of_key=ledger.of_key)
        self._ledger = ledger

    def _append(self, rows: Sequence[Row]) -> None:
        self._ledger.append(rows)
        self._tell(rows)

    def _tell(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._judge.told(row.actor or "", row.event, row.detail)

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        """As in the store."""
        if rows_of is None:
            return super().claim(asks, now_ms)
        noted: list[Row] = []
        of: Callable[[int, Claimed], Sequence[Row]] = rows_of

        def noting(index: int, found: Claimed) -> Sequence[Row]:
            rows = of(index, found)
            noted.extend(rows)
            return rows

        answers = super().claim(asks, now_ms, noting)
        self._tell(noted)
        return answers


class Deaf:
    """A sink that ignores every event."""

    def emit(self, event: Event) -> None:
        """Nothing."""


class NoKeeper:
    """Renewals are choices of the walk."""

    def appear(self) -> None: ...

    def add(self, found: Claimed, ask: Ask) -> bool:
        return True

    def trusts(self, hold: Hold) -> bool:
        return True

    def ask_of(self, hold: Hold) -> Ask | None:
        return None

    def end(self, hold: Hold) -> None: ...

    def remove(self, hold: Hold) -> None: ...

    def __contains__(self, hold: Hold) -> bool:
        return False


class CallWorld(World):
    """Workers that all call the function with the same key."""

    def __init__(self, stage: Stage, bounds: Bounds) -> None:
        super().__init__(stage, bounds)
        self._guards: dict[str, GuardedFunction] = {}  # by owner

    def _guard(self, worker: Worker) -> GuardedFunction:
        if worker.owner not in self._guards:
            stage = self._stage

            def ship(order: str) -> int:
                raise AssertionError(order)  # the effect is a step of the walk

            probe: Any = (
                (lambda order: self._probed(worker)) if stage.on_unknown in ("probe", "look") else stage.on_unknown
            )
            guard = GuardedFunction(
                ship,
                key="{order}",
                store=cast("Store", CallStore(stage.store, self.judge, stage.engine.ledger)),
                name="ship",
                tenant=None,
                ignore=(),
                keep_ms=90 * 86_400_000,
                lease_ms=LEASE_MS,
                on_unknown=probe,
                on_running="raise",
                wait_ms=0,
                crashes=stage.crashes,
                sinks=Sinks([Deaf()] if stage.calls == "followed" else []),
                clock=self.clock,
                entropy=SeededEntropy(0),
            )
            guard._owner = worker.owner
            guard._runner = guard._make_runner()
            guard._runner.prepare = lambda run, caller=None: cast("script.Call", run.step)  # type: ignore[method-assign]  # step by step, below
            guard._keeper = cast("Any", NoKeeper())
            self._guards[worker.owner] = guard
        return self._guards[worker.owner]

    def _probed(self, worker: Worker) -> onefold.Done | onefold.NotDone:
        assert worker.run is not None
        booked = self.partner.look(worker.run.hold.fence, fences=self._stage.probe_fences)
        return onefold.NotDone() if booked is None else onefold.Done(booked)

    # -- one worker ------------------------------------------------------------------------------------------

    def _next(self, worker: Worker) -> str:
        if worker.ending is not None:
            return "commit"
        return super()._next(worker) if isinstance(worker.run, Execution) else "call"

    def _claim(self, worker: Worker) -> None:
        self._answer(worker, lambda: self._guard(worker).claim(("o-1",), {}))

    def _answer(self, worker: Worker, call: Callable[[], object]) -> None:
        """Keep what the caller gets: the result, or the exception."""
        worker.run = worker.ending = None
        try:
            found = call()
        except errors.OutcomeUnknown:
            row = self._stage.row()
            if row is not None and row["parked"]:
                self.judge.settled("held")
        except (errors.LeaseLost, errors.TransientError):
            pass
        except Violation as objection:  # and what the guard did next, to which the judge objects as well
            first: BaseException = objection
            while isinstance(first.__context__, Violation):
                first = first.__context__
            raise first from None
        else:
            if isinstance(found, Claimed | Execution):
                worker.run = cast("Execution", found)
                return
            if isinstance(found, Completed):
                self.judge.record(int(found.result))
            if not isinstance(found, Running):
                self.judge.settled("deleted")
        self.judge.rested(worker.owner)

    def _step(self, worker: Worker) -> None:
        guard, run = self._guard(worker), worker.run
        assert run is not None
        if worker.ending is not None:
            self._end(worker, guard, run)
            return
        step = run.step if isinstance(run, Execution) else None
        match step:
            case None | script.Call():
                context: Any = SimpleNamespace(fence=run.hold.fence, hold=run.hold)
                try:
                    worker.ending = (self.handle(context),)
                except errors.OnefoldError as error:
                    worker.ending = (None, error)
                if self._objection is not None:
                    raise self._objection
            case script.Probe() as probe:
                context = guard._runner.open_context(run, run.attempt)
                probe.answer = calling.probe(run.job, run.payload, context, self.clock)
                run.advance(self.clock.now_ms())
            case script.Start() as start:
                guard._runner.start(run)
                assert start.refused is None
                run.advance(self.clock.now_ms())
            case script.Commit():
                self._answer(worker, lambda: guard._not_called(run))

    def _end(self, worker: Worker, guard: GuardedFunction, run: Execution) -> None:
        assert worker.ending is not None
        ending = worker.ending

        def settle() -> object:
            if len(ending) == 1:
                return guard.finished(run, ending[0])
            error = cast("errors.OnefoldError", ending[1])
            guard.failed(run, error)
            raise (
                error
                if isinstance(error, errors.OutcomeUnknown)
                else errors.TransientError("It failed.", todo="Again.")
            )

        self._answer(worker, settle)

    def _worker_state(self, worker: Worker) -> tuple[object, ...]:
        run: Any = worker.run
        if run is None:
            return ()
        ending = tuple(type(one).__name__ if isinstance(one, Exception) else one for one in worker.ending or ())
        if isinstance(run, Execution):
            return (*super()._worker_state(worker), worker.ending is None, ending)
        return ("plain", run.hold.fence, run.attempts, run.crashes, worker.ending is None, ending)
