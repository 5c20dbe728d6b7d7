"""The path of every delivery: begin a batch, perform each run, finish the batch.

    begin    open     read the message, find its job; the script decides about stopped groups and malformed messages
             admit    check limits and breakers; deliveries that are not admitted are decided as "not now"
             claim    one store call for all; crashes that it reveals are in the history before any handler is called
             settle   what needs no handler: duplicates, conflicts, waits; the others are ready to be performed
    perform  call     one run: probe, start, handler; in the caller's thread or process (for a task: `tasks.py`)
    finish   decide   the script of `record/attempt.py` gets the result of its step, and decides
             settle   record, outbox, history and message of all of them together, then events
             begin    the deliveries that waited behind these

Deliveries come from a source (`settlement.DeliverySource`): a worker's queues, a Lambda event, a queue on a manual clock.
The loops of the sources call these three methods. Deliveries of one key, and of one FIFO group, are chained: the second
begins as soon as the first has been settled, instead of waiting for the end of the lease.
Never here: threads, waiting, policy. Invariant: what was begun is settled exactly once, or left alone, its lease lost.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from onefold import errors
from onefold.clock import lease_from_ms, until_ms
from onefold.contracts.queue import Ack, Delivery, Leave, MoveTo, RetryIn
from onefold.contracts.state import group_flag
from onefold.contracts.store import Ask, Claimed, Conflict
from onefold.interrupts import ignored, let_through
from onefold.record import attempt as script
from onefold.record import delivery as outcomes
from onefold.record import lease
from onefold.record.delivery import Failed
from onefold.runner import calling
from onefold.runner.aliases import NamedRecords
from onefold.runner.claims import Claims
from onefold.runner.context import Context, watch_threads
from onefold.runner.execution import Execution, InFlight, KeyOrder
from onefold.runner.handlers import run_of
from onefold.runner.reports import Reports
from onefold.runner.settlement import Settler, effect_happened, gone_of
from onefold.runtime.events import kept_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onefold.contracts.commit import Verdict
    from onefold.contracts.ledger import History, Row
    from onefold.contracts.settings import QueueSettings
    from onefold.contracts.state import Versioned
    from onefold.contracts.store import Answer
    from onefold.outside import Clock, Entropy, Waiter
    from onefold.record.decisions import ProbeAnswer
    from onefold.record.delivery import Outcome
    from onefold.runner.admission import Admission
    from onefold.runner.handlers import Job
    from onefold.runner.late_closer import LateCloser
    from onefold.runner.orphans import Orphans
    from onefold.runner.settlement import Backend, DeliverySource
    from onefold.runtime.events import Event, Sinks
    from onefold.runtime.tracing import Tracing

    Settled = Sequence[tuple[Execution, Verdict | None]]
    """Runs whose settlement was tried, each with the result; None when it could not be written."""

    class Caller(Protocol):
        """Calls handlers and probes; by default in the thread that performs the run."""

        def call(self, run: Execution, ctx: Context) -> Outcome:
            """Call the run's handler; returns its outcome."""
            ...

        def probe(self, run: Execution, ctx: Context) -> ProbeAnswer:
            """Ask the job's probe; returns its answer."""
            ...


_START_AGAIN_MS = 1_000  # delay of a message whose run could not be marked as started, because the backend was busy


class Runner:
    """Performs scripts against one backend on behalf of one owner (process).

    Args:
        backend: the wired contracts.
        job_of: returns the job of a delivery; raises NotFoundError, whose text goes into reports, if there is none.
        owner: id of this process; names its leases.
        lease_ms: how long a claim holds until the next heartbeat.
        sinks: receive events. history: what the ledger keeps.
        closer: collects the runs whose messages were settled, and closes them when its caller asks it to.
        settings: those of the app's queues; they limit how long a message may wait for a job that is not declared here.
        in_flight: tracks what was claimed and what has ended; a worker's heartbeat reads it.
        reports: used instead of `Reports` made from `sinks` and `history`.

    Attributes:
        backend, job_of, clock, entropy, admission, closer, in_flight: as given. lease_ms: that of the next claims.
        source: where its deliveries come from, and to which they are returned when they are not begun.
        deadline_ms: monotonic instant at which every run must have ended, whatever its timeout.
        buffers: deliveries wait before they are begun, as in a worker, so their messages may be deleted meanwhile.
        dropped_ms: delay of a FIFO message that could not be begun because the backend failed.
    """

    def __init__(
        self,
        backend: Backend,
        job_of: Callable[[Delivery], Job[Any, Any]],
        *,
        clock: Clock,
        entropy: Entropy,
        never: Waiter,
        owner: str,
        lease_ms: int,
        sinks: Sinks,
        history: History,
        admission: Admission,
        closer: LateCloser,
        settings: Mapping[str, QueueSettings],
        in_flight: InFlight | None = None,
        reports: Reports | None = None,
    ) -> None:
        self.backend = backend
        self.job_of = job_of
        self._settings = settings
        self.clock = clock
        self.entropy = entropy
        self._owner = owner
        self.lease_ms = lease_ms
        self.deadline_ms: int | None = None
        self.dropped_ms = 0
        self.buffers = False
        self.tracing: Tracing | None = sinks.tracing
        self.admission = admission
        self.closer = closer
        self._jobs: dict[str, Job[Any, Any]] = {}
        self._key_order = KeyOrder()
        self.in_flight: InFlight = in_flight or InFlight()
        self._made: dict[str, Orphans] = {}
        self.reports: Reports = reports or Reports(sinks, backend.ledger, history=history, clock=clock, owner=owner)
        self.settler: Settler = Settler(backend, self.reports, clock=clock, never=never)
        self.claims: Claims = Claims(backend.store, backend.ledger, records_with_history=backend.commit is not None)
        self.source: DeliverySource = backend.source

    @property
    def _orphans(self) -> Orphans:
        """The one `Orphans` of all threads that begin deliveries, because it remembers what was already reported."""
        if not self._made:
            from onefold.runner.orphans import Orphans  # most messages have a job; cold starts are measured

            made = Orphans(self._settings, self.backend.state, self.clock, self.reports.waits_for_job)
            self._made.setdefault("orphans", made)
        return self._made["orphans"]

    def orphans(self, queue: str) -> int:
        """How many messages of a queue this runner has hidden now because no job here takes them."""
        return self._orphans.hidden(queue) if self._made else 0

    # -- begin -------------------------------------------------------------------------------------------------------

    def begin(self, deliveries: Sequence[Delivery]) -> list[Execution]:
        """Claim deliveries together. Returns the runs whose handler (or probe) is to be called now.

        Raises:
            TransientError: the backend could not be written. Deliveries that were not begun are in `in_flight.dropped()`,
                were released (FIFO), or (if they were never in `in_flight`) become visible again by themselves.
        """
        watch_threads()
        return self._advance(deliveries, [])

    def _open(self, deliveries: Sequence[Delivery]) -> list[Execution]:
        runs = []
        stopped = self._stopped_groups(deliveries)
        back: set[str] = set()
        for index, delivery in enumerate(deliveries):
            if delivery.receipt in back or self.in_flight.was_returned(delivery):
                continue
            try:
                job = self._suited(self.job_of(delivery), delivery.queue)
            except errors.NotFoundError as error:
                let_through(error)
                counted = not self.backend.open_queue(delivery.queue).capabilities.uncounted
                given_up = self._orphans.settle(delivery, str(error), counted=counted)
                if not isinstance(given_up, int):
                    runs.append(given_up)
                    continue
                until_ms = self.clock.monotonic_ms() + given_up
                if delivery.sequence is None:
                    self.release([delivery], str(error), given_up)
                    held = {delivery.receipt}
                else:
                    held = self._hold_up(deliveries[index:], str(error), given_up)
                    back |= held
                self._orphans.hide(delivery.queue, held, until_ms)
                continue
            facts, payload = _read(job, delivery)
            run = Execution(job, delivery, facts, payload)
            if facts.malformed is not None and isinstance(payload, Exception):
                run.error = payload
            if stopped and delivery.group is not None:
                flag = stopped.get(group_flag(delivery.queue, delivery.group))
                if flag is not None and flag.value.decode(errors="replace") == delivery.message_id:
                    # This is done even if the job stops no group: a redrive begins with the group's first message.
                    run.stopping = flag.version
                elif flag is not None and job.policy.after_failure == "stop":
                    facts = msgspec.structs.replace(facts, stopped=flag.value.decode(errors="replace"))
                    run = Execution(job, delivery, facts, payload)
            runs.append(run)
        return runs

    def _suited(self, job: Job[Any, Any], queue: str) -> Job[Any, Any]:
        """The job, adapted to its queue: where each wait costs a receive (SQS), a waiting message is hidden for longer."""
        found = self._jobs.get(job.name)
        if found is None or found.handler is not job.handler:
            found = job
            if job.policy.uncounted and not self.backend.open_queue(queue).capabilities.uncounted:
                found = copy.copy(job)
                found.policy = msgspec.structs.replace(job.policy, uncounted=False)
            self._jobs[job.name] = found
        return found

    def _stopped_groups(self, deliveries: Sequence[Delivery]) -> dict[str, Versioned]:
        named = {group_flag(one.queue, one.group) for one in deliveries if one.sequence and one.group is not None}
        flags = sorted(named)
        if not flags:
            return {}
        found = self.backend.state.get(flags)
        return {flag: value for flag, value in zip(flags, found, strict=True) if value is not None}

    def _advance(self, deliveries: Sequence[Delivery], settled: Settled) -> list[Execution]:
        """Begin deliveries, and those behind runs that were settled at once; returns the runs to be performed."""
        ready: list[Execution] = []
        while deliveries or settled:
            try:
                with self._key_order.order:
                    waiting = [*self._free(settled), *deliveries]
                    try:
                        runs = self._key_order.enter(self._open(self._present(waiting)), settled)
                    except errors.TransientError:
                        self._drop(waiting)
                        raise
                try:
                    over = self._begin(runs, ready)
                except BaseException:
                    self.admission.forget(runs)
                    with self._key_order.order:
                        self._drop(self._key_order.forget(runs))
                    raise
            except errors.TransientError as error:
                let_through(error)
                if not ready:
                    raise
                return ready  # these must be performed; the next call will meet the error again
            deliveries, settled = [], self.settle(over)
        return ready

    def _present(self, deliveries: list[Delivery]) -> list[Delivery]:
        """All except those whose messages were deleted (a purge) or moved while they waited here: these have ended."""
        gone = gone_of(self.backend, deliveries, self.clock.now_ms()) if self.buffers else set()
        self.in_flight.over([one for one in deliveries if one.receipt in gone], ["gone"] * len(gone))
        return [one for one in deliveries if one.receipt not in gone] if gone else deliveries

    def _drop(self, deliveries: Sequence[Delivery]) -> None:
        """Return deliveries that could not be begun to the worker's buffer or, in order, to their FIFO queue."""
        self.in_flight.drop([one for one in deliveries if one.sequence is None])
        back: set[str] = set()
        for index, one in enumerate(deliveries):
            if one.sequence is not None and one.receipt not in back:
                back |= self._hold_up(deliveries[index:], "the backend failed", self.dropped_ms)

    def _begin(self, runs: list[Execution], ready: list[Execution]) -> list[Execution]:
        """Claim, and add the runs that are to be performed to `ready`; returns those that are finished already."""
        over = [run for run in runs if isinstance(run.step, script.Commit)]
        claiming = [run for run in runs if isinstance(run.step, script.Claim)]
        admitted, refused = self.admission.admit(claiming)
        if admitted:
            self._claim(admitted)
        for run, wait_ms, why in refused:
            run.is_limited = True
            run.refuse(why, wait_ms, self.clock.now_ms())
            over.append(run)
        for run in admitted:
            (over if isinstance(run.step, script.Commit) else ready).append(run)
        return over

    def _claim(self, runs: list[Execution]) -> None:
        trusted_ms = lease.trusted_until_ms(self.clock.monotonic_ms(), self.lease_ms)
        now_ms = lease_from_ms(self.clock)
        asks = []
        named = NamedRecords(self.backend.store, runs, now_ms)
        lease_until_ms = until_ms(self.clock, now_ms, self.lease_ms)
        for key, run in zip(named.keys, runs, strict=True):
            facts, policy = run.facts, run.job.policy
            asks.append(
                Ask(
                    key=key,
                    fingerprint=facts.fingerprint,
                    owner=self._owner,
                    lease_until_ms=lease_until_ms,
                    start=not run.job.aliases,  # a renamed job's run starts only after its other names were read again
                    expires_at_ms=now_ms + policy.keep_ms,
                    amends=facts.amends,
                    message_id=facts.message_id,
                    sent_at_ms=facts.sent_at_ms,
                )
            )
        answers, refused = self._claim_alike(runs, asks, now_ms)
        for index, (run, found) in enumerate(zip(runs, answers, strict=True)):
            run.found(found)
            run.trusted_until_ms = trusted_ms
            if index in refused:
                run.refuse(refused[index], self.lease_ms, now_ms)
            else:
                run.advance(now_ms)
        claimed = [place for place, run in enumerate(runs) if not isinstance(run.step, script.Commit)]
        for place in named.changed(claimed, now_ms):
            self.turn_away(runs[place], "the operation is recorded under another name of its job", _START_AGAIN_MS)
        self.in_flight.claimed(runs)
        self.reports.begun(runs)

    def _claim_alike(
        self, runs: Sequence[Execution], asks: Sequence[Ask], now_ms: int
    ) -> tuple[Sequence[Answer], Mapping[int, str]]:
        """Claim; where a payload differs from the first only in defaults, claim again with the first one's fingerprint."""
        answers, refused = self._claim_all(runs, asks, now_ms)
        same = {
            index: found.fingerprint
            for index, (run, found) in enumerate(zip(runs, answers, strict=True))
            if isinstance(found, Conflict) and _is_alike(run, found)
        }
        if same:
            again = [msgspec.structs.replace(asks[index], fingerprint=first) for index, first in same.items()]
            found_again, refused_again = self._claim_all([runs[index] for index in same], again, now_ms)
            known = dict(zip(same, found_again, strict=True))
            answers = [known.get(index, found) for index, found in enumerate(answers)]
            refused = {**refused, **{list(same)[number]: why for number, why in refused_again.items()}}
        return answers, refused

    def _claim_all(
        self, runs: Sequence[Execution], asks: Sequence[Ask], now_ms: int
    ) -> tuple[Sequence[Answer], Mapping[int, str]]:
        """Claim; returns the answers, and the indexes of runs that must not be performed, with the reason."""

        def event_of(index: int, note: outcomes.Note) -> Event:
            return self.reports.event(note.event, runs[index].delivery, runs[index], note.detail)

        answers, events, failed = self.claims.claim(
            asks, now_ms, [run.job.policy for run in runs], event_of, [run.facts.key for run in runs]
        )
        for run, ask in zip(runs, asks, strict=True):
            run.ask = ask
        for event in events:
            self.reports.emit(event)
        refused = {
            index: f"the history could not be written before the handler: {error}"[:500]
            for index, error in failed.items()
            if isinstance(found := answers[index], Claimed) and found.doubt  # otherwise the claim may have started it
        }
        return answers, refused

    # -- perform -----------------------------------------------------------------------------------------------------

    def perform(self, run: Execution, caller: Caller | None = None) -> None:
        """Perform one run up to its Commit, in this thread. An `async def` handler gets an event loop of its own.

        Args:
            caller: calls handler and probe elsewhere, for example in a child process.
        """
        if self.tracing is None:
            self._perform(run, caller)
        else:
            with self.tracing.processing(run):
                self._perform(run, caller)

    def _perform(self, run: Execution, caller: Caller | None) -> None:
        since_ms = self.clock.monotonic_ms()
        call = self.prepare(run, caller)
        if call is not None:
            ctx = self.open_context(run, call.attempt)
            if run.cut is not None:
                outcome = run.cut
            elif caller is not None:
                outcome = caller.call(run, ctx)
            else:
                outcome = calling.call(run.job, run.payload, ctx, self.clock)
            self.answer(run, call, outcome)
            run.advance(self.clock.now_ms())
        run.took_ms = self.clock.monotonic_ms() - since_ms

    def prepare(self, run: Execution, caller: Caller | None = None) -> script.Call | None:
        """Perform the steps before the handler is called: ask the probe, mark the start. None: do not call it."""
        while not self.is_over(run):
            match run.step:
                case script.Call():
                    return run.step
                case script.Probe() as probe:
                    ctx = self.open_context(run, run.attempt)
                    if caller is not None:
                        probe.answer = caller.probe(run, ctx)
                    else:
                        probe.answer = calling.probe(run.job, run.payload, ctx, self.clock)
                        run.read_again()
                case script.Start():
                    self.start(run)
                case _:
                    raise errors.InvariantBroken(f"A run was performed at its step {type(run.step).__name__}.")
            run.advance(self.clock.now_ms())
        return None

    def is_over(self, run: Execution) -> bool:
        """Whether handler and probe must not be called any more; checked before each, as a process can be suspended."""
        if not isinstance(run.step, script.Commit) and self.clock.monotonic_ms() >= run.trusted_until_ms:
            self.turn_away(run, "its lease ended before its handler could be called: its process had been stopped")
        return isinstance(run.step, script.Commit)

    def start(self, run: Execution) -> None:
        """Mark a run as started, durably. If the backend is busy, it is not started and its message comes back soon."""
        step = run.step
        assert isinstance(step, script.Start)
        assert step.hold is not None
        try:
            step.held = run.started = self.backend.store.start([step.hold], self.clock.now_ms())[0]
            if run.started:
                self.reports.of_run("started", run, {"attempt": run.attempt, "fence": step.hold.fence})
        except errors.TransientError as error:
            let_through(error)
            step.refused = outcomes.NotStarted(str(error)[:500], _START_AGAIN_MS)

    def turn_away(self, run: Execution, why: str, delay_ms: int = 0) -> None:
        """Reject a run that was claimed but not started: its record is released, and its message comes back."""
        assert run.claimed is not None
        run.refuse(why, delay_ms, self.clock.now_ms())

    def answer(self, run: Execution, call: script.Call, outcome: Outcome) -> None:
        """Note the handler's outcome."""
        call.fraction = self.entropy.fraction()
        call.outcome = outcome if isinstance(outcome, outcomes.Success) else self._judged(run, call, outcome)

    def _judged(self, run: Execution, call: script.Call, outcome: Outcome) -> Outcome:
        """The final outcome: if the dependency refuses only this operation, it failed, and its job is not paused."""
        if not isinstance(outcome, Failed):
            return outcome
        if outcome.kind == "dependency-down" and not run.job.policy.is_call and self.admission.is_to_blame(run):
            outcome = msgspec.structs.replace(outcome, kind="transient")
        judge, key = run.job.judge_failure, run.facts.key
        if judge is None or key is None:
            return outcome
        rows = (lambda: self.backend.ledger.of_key(key)) if call.attempt > 1 else list
        judged = judge(outcome, run.delivery, rows, call.fraction)
        run.caught = isinstance(judged, outcomes.Success)
        return judged

    def open_context(self, run: Execution, attempt: int) -> Context:
        """The context for a handler or probe of this run; its time counts from here."""
        assert run.claimed is not None
        policy = run.job.policy
        is_call = policy.is_call
        if not is_call:  # a call's deadline is its caller's
            run.deadline_ms = self.clock.monotonic_ms() + policy.timeout_ms
            if self.deadline_ms is not None:
                run.deadline_ms = min(run.deadline_ms, self.deadline_ms)
        run.ctx = Context(
            run.claimed.hold,
            attempt=attempt,
            attempts_max=policy.attempts_max,
            message=None if is_call else run.delivery,
            clock=self.clock,
            entropy=self.entropy,
            deadline_ms=run.deadline_ms,
            effects=run.effects,
            lost_answers="transient" if policy.on_unknown == "rerun" else "unknown",
            sends=not is_call,
        )
        return run.ctx

    def failed(self, run: Execution, error: BaseException) -> Outcome:
        """The outcome of a run whose handler, or whose own rows, failed with `error`."""
        return calling.raised(run.job, error, self.clock)

    # -- finish ------------------------------------------------------------------------------------------------------

    def finish(self, runs: Sequence[Execution]) -> list[Execution]:
        """Settle performed runs together. Returns the runs that waited behind them and are ready now."""
        try:
            return self._advance([], self.settle(list(runs)))
        except errors.TransientError as error:
            let_through(error)
            return []  # the runs are settled, and deliveries that waited behind them were dropped

    def withdraw(self) -> list[Delivery]:
        """Remove and return the deliveries that wait behind others, in order; for a worker that is about to end."""
        return self._key_order.withdraw()

    def release(self, deliveries: Sequence[Delivery], why: str, delay_ms: int = 0) -> None:
        """Return deliveries that were not begun to their source."""
        self.source.close(deliveries, delay_ms)
        self.in_flight.over(deliveries, ["released"] * len(deliveries))
        self.reports.released(deliveries, why)

    def settle(self, runs: list[Execution]) -> Settled:
        """Write the decisions, and report them. Keys and groups stay taken until `_free`."""
        if self.tracing is None:
            return self._settle(runs)
        return self.tracing.settled(runs, lambda: self._settle(runs))

    def _settle(self, runs: list[Execution]) -> Settled:
        built = [self.settler.built(run) for run in runs]
        open_indexes = [index for index, run in enumerate(runs) if run.verdict is None]
        verdicts: list[Verdict | None] = [run.verdict for run in runs]
        done = self.settler.write([built[index][0] for index in open_indexes], [runs[index] for index in open_indexes])
        for index, verdict in zip(open_indexes, done, strict=True):
            verdicts[index] = verdict
        names: list[str] = []
        emitted: list[Event] = []
        unwritten: list[Row] = []
        decisions = [run.decided() for run in runs]  # `Settler` may have had some decided again
        for run, decision, (built_one, events), verdict in zip(runs, decisions, built, verdicts, strict=True):
            if verdict is None:
                name = "completion-failed" if effect_happened(built_one) else "unsettled"
                event = self.reports.unwritten(name, run)
                emitted.append(event)
                unwritten.append(event.row())
                names.append(name)
            elif not verdict.written or isinstance(decision.settle, Leave):
                self.reports.emit_all(emitted)  # in order: a lost lease is reported at once
                emitted = []
                self.reports.lease_lost(run)
                names.append("lease-lost")
            else:
                as_built = decision.settle is built_one.settle
                emitted += events if as_built else self.settler.built(run)[1]
                names += [note.event for note in decision.notes]
                belongs = run.facts.run
                if belongs is not None and isinstance(decision.settle, Ack | MoveTo):
                    self.closer.touch(belongs)
        self.reports.emit_all(emitted)
        for run, decision in zip(runs, decisions, strict=True):
            with ignored(errors.TransientError):  # if this fails, its slot ends with the lease
                self.admission.settled(run, decision, self.reports.of_run)
            run.forget_errors()
        self.reports.append(unwritten)
        self.claims.append_late()
        self.in_flight.over([run.delivery for run in runs], names)
        return list(zip(runs, verdicts, strict=True))

    def _free(self, settled: Settled) -> list[Delivery]:
        """Free keys and groups; returns what waited behind them, except behind a group's message that is not done.

        The deliveries behind such a message go back to their queue.
        """
        followers: list[Delivery] = []
        for run, verdict in settled:
            behind_key, behind_group = self._key_order.free(run)
            followers += behind_key
            over = verdict is not None and verdict.settled and not isinstance(run.decided().settle, RetryIn | Leave)
            if over:
                followers += behind_group
            elif run.job.policy.fifo and run.delivery.group is not None:
                self._hold_up([run.delivery, *behind_group], "an earlier message of its group is not done", besides=1)
        return followers

    def _hold_up(self, deliveries: Sequence[Delivery], why: str, delay_ms: int = 0, *, besides: int = 0) -> set[str]:
        """Return to their queue, in order, all deliveries of the first one's FIFO group: these and others in flight.

        Args:
            besides: how many of the first ones are not returned, because they are settled.

        Returns:
            The receipts of the returned deliveries.
        """
        queue, group = deliveries[0].queue, deliveries[0].group
        known = {one.receipt for one in deliveries}
        elsewhere = [one for one in self.in_flight.unbegun() if one.receipt not in known]
        behind = [one for one in (*deliveries[besides:], *elsewhere) if (one.queue, one.group) == (queue, group)]
        behind.sort(key=lambda one: one.sequence or "")
        if behind:
            self.release(behind, why, delay_ms)
            self.in_flight.mark_returned(one for one in behind if one.receipt not in known)
        return {one.receipt for one in behind}


def _read(job: Job[Any, Any], delivery: Delivery) -> tuple[script.Facts, Any]:
    """Like `job.read`, but an exception from a payload's own validators makes it malformed, and never ends a worker."""
    try:
        return job.read(delivery)
    except Exception as error:  # noqa: BLE001 - code of the user's types ran on a stranger's data
        let_through(error)
        why = f"Reading it raised {type(error).__name__}: {kept_text(error)}"[:500]
        facts = script.Facts(
            key=None, malformed=why, run=run_of(delivery), message_id=delivery.message_id, sent_at_ms=delivery.sent_at_ms,
            receive_count=delivery.receive_count,
        )  # fmt: skip
        return facts, error


def _is_alike(run: Execution, found: Conflict) -> bool:
    if run.job.versions is not None and run.job.versions.is_other(run.facts.fingerprint, found.fingerprint):
        return True
    from onefold import payload_defaults  # only conflicts need it; cold starts are measured

    return payload_defaults.is_same(run.payload, run.facts.fingerprint, found.fingerprint, run.job.rules.compared)
