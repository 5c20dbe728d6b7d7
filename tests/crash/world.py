"""A small world of workers on one operation, moved one step at a time on the real runner, script and SQLite store.

There is one message that can be delivered again at any moment, a manual clock, and a partner that keeps no keys. What
happens next is a choice: a worker takes its next step or dies, or time passes beyond every lease, so that a slow worker
goes on as a zombie. Does not contain: what to choose (`walk.py`), rules of right and wrong (`judge.py`).
Invariant: the same choices lead to the same situation.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import NamedTuple

import onefold
from onefold.contracts.queue import Delivery
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.record import attempt as script
from onefold.runner import calling
from onefold.runner.completion import Closer
from onefold.runner.execution import Execution
from onefold.runner.executors import Grouper
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend
from onefold.runtime.events import Event, Sinks
from tests.crash.judge import Judge, Violation
from tests.crash.observers import AdverseQueue, Gate, Never, ObservedCommit, ObservedStore
from tests.crash.stage import START_MS, Stage

LEASE_MS = 30_000
DRAIN_ROUNDS_MAX = 12


class Choice(NamedTuple):
    """What happens next: to which worker (-1 for time itself), and what."""

    worker: int
    what: str

    def __str__(self) -> str:
        return self.what if self.worker < 0 else f"w{self.worker} {self.what}"


class Bounds(NamedTuple):
    """How much may happen in one history.

    Args:
        workers: processes. deliveries: how often the message is delivered in all.
        deaths: how many workers die. waits: how often time passes beyond every lease.
        faults: how many handlers fail, or lose the answer of their effect. renewals: heartbeats.
        steps_max: steps of one history; a longer one is cut off (and drained).
    """

    workers: int
    deliveries: int
    deaths: int = 0
    waits: int = 0
    faults: int = 0
    renewals: int = 0
    steps_max: int = 1_000


class Partner:
    """Somebody else's system, where the effect happens. Keeps no keys; a fencing probe makes it refuse older runs."""

    def __init__(self) -> None:
        self.booked: list[int] = []
        self.refuses_below = 0

    def book(self, fence: int) -> bool:
        """Have the effect; False when this run was fenced off."""
        if fence < self.refuses_below:
            return False
        self.booked.append(fence)
        return True

    def look(self, fence: int, *, fences: bool) -> int | None:
        """Which run booked, if any; with `fences`, runs older than the asking one are refused from now on."""
        if fences:
            self.refuses_below = max(self.refuses_below, fence)
        return self.booked[0] if self.booked else None


class Worker:
    """One process. When it dies, its place is taken by another one with a new owner id."""

    def __init__(self, place: int) -> None:
        self.place = place
        self.life = 0
        self.runner: Runner | None = None  # made with the first delivery of each life
        self.run: Execution | None = None
        self.ending: tuple[object, ...] | None = None  # what the call returned or raised, if it was made

    @property
    def owner(self) -> str:
        return f"w{self.place}.{self.life}"


class World:
    """Everything in one history. Built again for each history, on the same database.

    Args:
        stage: database, job and policy. bounds: what may happen.
    """

    def __init__(self, stage: Stage, bounds: Bounds) -> None:
        stage.clear(self)
        self._stage = stage
        self._left = bounds._asdict()
        self.bounds = bounds
        self.clock = ManualClock(START_MS)
        stage.engine.database.clock = self.clock
        self.judge = Judge(stage.doubles, stage.deaf_to)
        self.partner = Partner()
        self.workers = [Worker(place) for place in range(bounds.workers)]
        self.behaviour = "go on"  # what the next handler does
        self._objection: Violation | None = None  # raised where a handler's exceptions are caught
        self.steps = 0

    # -- what may happen -------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """Everything that can happen next. An empty list: the history is over."""
        if self.steps >= self.bounds.steps_max:
            return []
        some: list[Choice] = []
        for worker in self.workers:
            if worker.run is None:
                if self._left["deliveries"]:
                    some.append(Choice(worker.place, "claim"))
                continue
            step = self._next(worker)
            some.append(Choice(worker.place, step))
            if step == "call" and self._left["faults"]:
                some.append(Choice(worker.place, "call and fail"))
                if self._stage.transactional is False:
                    some.append(Choice(worker.place, "call and lose the answer"))
            if self._left["renewals"]:
                some.append(Choice(worker.place, "renew"))
            if self._left["deaths"]:
                some.append(Choice(worker.place, "die unseen"))
                some.append(Choice(worker.place, "die and be found"))
        # Time matters only to workers at work, and to leases that still run.
        if self._left["waits"] and some and self._lease_runs():
            some.append(Choice(-1, "time passes"))
        return some

    def _next(self, worker: Worker) -> str:
        """The step that a worker at work takes next."""
        assert worker.run is not None
        return type(worker.run.step).__name__.lower()

    def _lease_runs(self) -> bool:
        row = self._stage.row()
        return row is not None and row["status"] == 0 and row["lease_until_ms"] > self.clock.now_ms()

    def happen(self, choice: Choice, *, again: bool = False) -> None:
        """Make it happen; `again` when it has happened before, in another history.

        Raises:
            Violation: the judge objects.
        """
        self.steps += 1
        if choice.worker < 0:
            self._left["waits"] -= 1
            self.clock.advance(LEASE_MS + 1)
        else:
            self._move(self.workers[choice.worker], choice.what)
        if not again:
            self._check_record()

    def _check_record(self) -> None:
        row = self._stage.row()
        self.judge.record(int(row["result"]) if row is not None and row["status"] == 1 else None)

    def _move(self, worker: Worker, what: str) -> None:
        match what:
            case "claim":
                self._left["deliveries"] -= 1
                self._claim(worker)
            case "renew":
                self._left["renewals"] -= 1
                assert worker.run is not None
                lease_until_ms = self.clock.now_ms() + LEASE_MS
                self._store().renew([worker.run.hold], lease_until_ms)
            case "die unseen" | "die and be found":
                self._left["deaths"] -= 1
                if what == "die and be found":
                    self._stage.end_owner(worker.owner, self.clock.now_ms())
                    self.judge.died(worker.owner)
                worker.life += 1
                worker.runner = worker.run = None
                worker.ending = None
            case _:
                self.behaviour = what.removeprefix("call").removeprefix(" and ") or "go on"
                self._left["faults"] -= self.behaviour != "go on"
                self._step(worker)

    # -- one worker ------------------------------------------------------------------------------------------

    def _store(self) -> ObservedStore:
        return ObservedStore(self._stage.store, self.judge)

    def _backend(self) -> Backend:
        engine, judge = self._stage.engine, self.judge
        commit = ObservedCommit(engine.commit, judge, self._stage.settlement) if self._stage.transactional else None
        return Backend(
            store=self._store(),
            ledger=engine.ledger,
            state=engine.state,
            commit=commit,
            open_queue=lambda name: AdverseQueue(judge),  # type: ignore[arg-type, return-value]
            effects=commit.effects if commit is not None else None,
        )

    def _claim(self, worker: Worker) -> None:
        if worker.runner is None:
            worker.runner = Runner(
                self._backend(),
                lambda delivery: self._stage.job,
                clock=self.clock,
                entropy=SeededEntropy(0),
                never=Never(),
                owner=worker.owner,
                lease_ms=LEASE_MS,
                sinks=Sinks([self]),
                history="off",
                admission=Gate(),
                settings={},
                closer=Closer(self._stage.engine, {}, self.clock),
            )
        ready = worker.runner.begin([_delivery(f"{worker.owner}:{self.steps}", self.clock.now_ms())])
        worker.run = ready[0] if ready else None
        if worker.run is None:
            self.judge.rested(worker.owner)

    def _step(self, worker: Worker) -> None:
        """Take one step of what `Runner.perform` and `finish` do."""
        runner, run = worker.runner, worker.run
        assert runner is not None
        assert run is not None
        match run.step:
            case script.Probe() as probe:
                probe.answer = calling.probe(run.job, run.payload, runner.open_context(run, run.attempt), self.clock)
            case script.Start() as start:
                runner.start(run)
                assert start.refused is None
            case script.Call() if self._stage.transactional:
                # Nobody else can write from the first row to the commit: handler and settlement are one step.
                grouper = Grouper(runner)
                assert grouper.perform([run]) == []
                self._rest(worker)
                return
            case script.Call() as call:
                ctx = runner.open_context(run, call.attempt)
                runner.answer(run, call, calling.call(run.job, run.payload, ctx, self.clock))
                if self._objection is not None:
                    raise self._objection
            case script.Commit():
                assert runner.finish([run]) == []
                self._rest(worker)
                return
        run.advance(self.clock.now_ms())

    def _rest(self, worker: Worker) -> None:
        worker.run = None
        self.judge.rested(worker.owner)

    def emit(self, event: Event) -> None:
        """Receive an event."""
        self.judge.told(event.actor or "", event.name, event.detail)

    def handle(self, ctx: onefold.Context) -> int:
        """The handler."""
        if self.behaviour == "fail":
            raise onefold.TransientError("The partner refused for now.", todo="Try again.")
        if self._stage.transactional:
            ctx.connection.execute("INSERT INTO effect (fence) VALUES (?)", (ctx.fence,))
        elif not self.partner.book(ctx.fence):
            raise onefold.PermanentError("The partner was told to refuse this run.", todo="Stop.")
        else:
            try:
                self.judge.effect(ctx.hold.owner, ctx.fence)
            except Violation as objection:
                self._objection = objection
        if self.behaviour == "lose the answer":
            raise onefold.OutcomeUnknown("Sent, and the answer was lost.", todo="Find out.")
        return ctx.fence

    def probe(self, ctx: onefold.Context) -> onefold.Done | onefold.NotDone:
        """The probe."""
        booked = self.partner.look(ctx.fence, fences=self._stage.probe_fences)
        return onefold.NotDone() if booked is None else onefold.Done(booked)

    # -- where it stands -------------------------------------------------------------------------------------

    def state(self) -> tuple[object, ...]:
        """Everything that can matter from here on. Two histories with equal states have equal futures.

        Left out: instants, except whether the lease still runs (everything else lasts longer than any history), and the
        names of workers: a situation in which two workers have swapped places is the same situation.
        """
        row = self._stage.row()
        now_ms = self.clock.now_ms()
        shared: tuple[object, ...] = (
            tuple(self._left.values()),
            self.steps if self.bounds.steps_max < 1_000 else 0,
            tuple(self.partner.booked),
            self.partner.refuses_below,
        )
        rows: tuple[object, ...] = ()
        if row is not None:
            rows = (*row[:11], row["lease_until_ms"] > now_ms)
        judged = self.judge.state(now_ms)
        workers = [self._worker_state(worker) for worker in self.workers]
        # Names: each worker is named by its position after sorting, anybody else is "gone".
        best: tuple[object, ...] | None = None
        for order in permutations(range(len(workers))):
            names = {self.workers[place].owner: index for index, place in enumerate(order)}
            renamed = (
                shared,
                _renamed(rows, names),
                _renamed(judged, names),
                tuple(workers[place] for place in order),
            )
            if best is None or repr(renamed) < repr(best):
                best = renamed
        assert best is not None
        return best

    def _worker_state(self, worker: Worker) -> tuple[object, ...]:
        run = worker.run
        if run is None:
            return ()
        assert run.claimed is not None
        step = run.step
        decided: object = None
        if isinstance(step, script.Commit):
            assert step.decision is not None
            write, settle = step.decision.write, step.decision.settle
            kept = [getattr(write, name, None) for name in ("result", "parked", "closes_budget", "crashed")]
            told = [(note.event, note.detail.get("crashes")) for note in step.decision.notes]
            decided = (type(write).__name__, *kept, type(settle).__name__, *told)
        claimed = run.claimed
        before = (claimed.found, claimed.previous_owner is not None, claimed.doubt)
        found = (claimed.hold.fence, *before, claimed.started, claimed.attempts, claimed.crashes)
        return (type(step).__name__, *found, decided)

    # -- the end ---------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Faults off: workers still at work end, time passes, and a last worker gets the message until it is over.

        Raises:
            Violation: the judge objects.
        """
        last = Worker(len(self.workers))
        self._left = dict.fromkeys(self._left, 0)
        for _ in range(DRAIN_ROUNDS_MAX):
            if self.judge.over is not None:
                break
            self.clock.advance(LEASE_MS + 1)
            self._claim(last)
            while last.run is not None:
                self.behaviour = "go on"
                self._step(last)
            self._check_record()
        self.judge.end()
        if self._stage.transactional and self._stage.rows() != len(self.judge.effects):
            raise Violation("effects", f"{self._stage.rows()} rows stand for {len(self.judge.effects)} effects")


def _renamed(value: object, names: Mapping[str, int]) -> object:
    if isinstance(value, tuple):
        return tuple(_renamed(one, names) for one in value)
    return names.get(value, "gone") if isinstance(value, str) and value[:1] == "w" else value


def _delivery(receipt: str, now_ms: int) -> Delivery:
    return Delivery(
        queue="orders",
        message_id="m-1",
        receipt=receipt,
        body='{"id":"o-1"}',
        attributes={},
        receive_count=1,
        sent_at_ms=START_MS,
        first_received_at_ms=now_ms,
        received_at_ms=now_ms,
        visible_ms=LEASE_MS,
    )
