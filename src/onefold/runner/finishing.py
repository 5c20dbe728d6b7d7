"""The end of deliveries: settlements built, written (again, when that fails), told, and what waited behind them freed.

A settlement that cannot be written is tried again for a while; when the effect had happened and its record still cannot be
written, that is the loudest event there is (I11), and the message is left alone: its redelivery meets the unknown outcome.
Never here: what is decided. Invariant: every run that comes in is told about and freed, whatever fails.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from onefold import errors
from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.queue import Ack, Bury, Delivery, Leave, RetryIn
from onefold.contracts.state import Change, group_flag
from onefold.contracts.store import Claimed, Complete, Conflict
from onefold.record import delivery as fate
from onefold.record.delivery import Unstorable
from onefold.runner import settlement
from onefold.runner.claims import Claims
from onefold.runner.events import EVENTS, Event, Sinks, kept
from onefold.runner.handlers import run_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onefold.contracts.ledger import History, Row
    from onefold.contracts.store import Answer, Ask
    from onefold.outside import Clock, Waiter
    from onefold.runner.admission import Admission
    from onefold.runner.completion import Closing
    from onefold.runner.execution import Execution, InFlight, KeyOrder
    from onefold.runner.settlement import Backend

    Settled = Sequence[tuple[Execution, Verdict | None]]
    """Runs whose settlement was tried, each with what became of it; None: it could not be written."""

_WRITE_TRIES = 6  # a settlement that fails is tried again after 50 ms x 2^n: about 1.6 s in all
_WRITE_PAUSE_MS = 50


class Finisher:
    """Settles runs against one backend on behalf of one owner. Arguments as `Driver`'s.

    Attributes:
        last_try_ms: monotonic instant after which nothing is tried again; None: the process is not to end.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        clock: Clock,
        never: Waiter,
        owner: str,
        sinks: Sinks,
        history: History,
        admission: Admission,
        closer: Closing,
        key_order: KeyOrder,
        in_flight: InFlight,
    ) -> None:
        self._backend = backend
        self._claims = Claims(backend.store, backend.ledger, records_with_history=backend.commit is not None)
        self._clock = clock
        self._never = never
        self._owner = owner
        self._sinks = sinks
        self._history = history
        self._admission = admission
        self._closer = closer
        self._key_order = key_order
        self._in_flight = in_flight
        self.last_try_ms: int | None = None

    def claim(
        self, runs: Sequence[Execution], asks: Sequence[Ask], now_ms: int
    ) -> tuple[Sequence[Answer], Mapping[int, str]]:
        """Claim as `_claim` does; once more, under the payload that came first, what differs from it only in defaults."""
        answers, refused = self._claim(runs, asks, now_ms)
        same = {
            place: found.fingerprint
            for place, (run, found) in enumerate(zip(runs, answers, strict=True))
            if isinstance(found, Conflict) and _is_alike(run, found)
        }
        if same:
            again = [msgspec.structs.replace(asks[place], fingerprint=first) for place, first in same.items()]
            found_again, refused_again = self._claim([runs[place] for place in same], again, now_ms)
            known = dict(zip(same, found_again, strict=True))
            answers = [known.get(place, found) for place, found in enumerate(answers)]
            refused = {**refused, **{list(same)[number]: why for number, why in refused_again.items()}}
        return answers, refused

    def _claim(
        self, runs: Sequence[Execution], asks: Sequence[Ask], now_ms: int
    ) -> tuple[Sequence[Answer], Mapping[int, str]]:
        """Claim; the answers, and the indexes of runs that must not be performed, with why."""

        def event_of(place: int, note: fate.Note) -> Event:
            return self._event(note.event, runs[place].delivery, runs[place], note.detail)

        answers, events, failed = self._claims.claim(asks, now_ms, [run.job.policy for run in runs], event_of)
        for event in events:
            self._sinks.emit(event)
        refused = {
            place: f"the history could not be written before the handler: {error}"[:500]
            for place, error in failed.items()
            if isinstance(found := answers[place], Claimed) and found.doubt  # else it may be a start already
        }
        return answers, refused

    def give_back(self, deliveries: Sequence[Delivery], why: str, delay_ms: int = 0) -> None:
        """Return deliveries that were not begun, last first, so that a FIFO group keeps its order."""
        changes: dict[str, list[str]] = {}
        for one in reversed(deliveries):
            changes.setdefault(one.queue, []).append(one.receipt)
        for name, receipts in changes.items():
            queue = self._backend.open_queue(name)
            back = RetryIn(delay_ms, uncounted=queue.capabilities.uncounted)
            with suppress(errors.TransientError):  # then they become visible by themselves, when their receive ends
                queue.set_visible_in([(receipt, back) for receipt in receipts])
        self._in_flight.over(deliveries, ["released"] * len(deliveries))
        if self._sinks:
            for one in deliveries:
                self._emit(self._event("released", one, None, {"why": why}))

    def settle(self, runs: list[Execution]) -> Settled:
        """Write what was decided, and tell it. Keys and groups stay taken until `free`."""
        built = [self.settlement(run) for run in runs]
        open_places = [place for place, run in enumerate(runs) if run.verdict is None]
        verdicts: list[Verdict | None] = [run.verdict for run in runs]
        done = self._write([built[place][0] for place in open_places], [runs[place] for place in open_places])
        for place, verdict in zip(open_places, done, strict=True):
            verdicts[place] = verdict
        told: list[str] = []
        unwritten: list[Row] = []
        for run, (built_one, events), verdict in zip(runs, built, verdicts, strict=True):
            if verdict is None:
                name = "completion-failed" if _effect_happened(built_one) else "unsettled"
                event = self._event(name, run.delivery, run, {"attempt": run.attempt})
                self._sinks.emit(event)
                unwritten.append(event.row())
                told.append(name)
            elif not verdict.written or isinstance(run.decided().settle, Leave):
                self.lose(run)
                told.append("lease-lost")
            else:
                as_built = run.decided().settle is built_one.settle  # else decided again by `_write_as_unknown`
                for event in events if as_built else self.settlement(run)[1]:
                    self._emit(event)
                told.extend(note.event for note in run.decided().notes)
                belongs = run.facts.run
                if belongs is not None and isinstance(run.decided().settle, Ack | Bury):
                    self._closer.touch(belongs)
            with suppress(errors.TransientError):  # what a gate then still counts ends with the lease
                self._admission.settled(run, run.decided(), self.tell)
        self._append(unwritten)
        self._in_flight.over([run.delivery for run in runs], told)
        return list(zip(runs, verdicts, strict=True))

    def settlement(self, run: Execution) -> tuple[Settlement, list[Event]]:
        """Everything that becomes of a run's delivery, and what is to be told once it stands."""
        decision = run.decided()
        events, rows = [], []
        belongs = run.facts.run
        for note in decision.notes:
            if note.event == "lease-lost":
                continue  # told by `lose`: at once, and once
            keep = kept(note.event, self._history, run=belongs)
            if keep or self._sinks:
                event = self._event(note.event, run.delivery, run, note.detail)
                events.append(event)
                if keep:
                    rows.append(event.row())
        hold = run.claimed.hold if run.claimed is not None else None
        built = Settlement(
            write=(hold, decision.write) if hold is not None and decision.write is not None else None,
            queue=run.delivery.queue,
            receipt=run.delivery.receipt,
            settle=decision.settle,
            rows=tuple(rows),
            clear=decision.clear,
            outbox=decision.outbox,
            changes=(*_group_changes(run, decision), *self._dispatch_changes(run, decision)),
        )
        return built, events

    def _dispatch_changes(self, run: Execution, decision: fate.Decision) -> tuple[Change, ...]:
        """A dispatcher's tick that is buried takes its run along: the run says why it stopped, whoever stopped it.

        A run that cannot be read or noted does not keep its tick from ending as decided, nor what ends beside it.
        """
        key, settle = run.facts.key, decision.settle
        if not run.job.dispatches or key is None or not isinstance(settle, Bury) or settle.reason.kind == "conflict":
            return ()
        from onefold.runner.runs import stopped  # only a dispatch that ends like this; the cold start is measured

        reason = settle.reason
        why = ": ".join(filter(None, (reason.error, reason.summary)))
        for number in range(_WRITE_TRIES):
            try:
                return stopped(self._backend.state, key.key, why)
            except errors.TransientError:  # after the last, the settlement meets the same backend
                if not self._pause(number):
                    break
            except (errors.UsageError, msgspec.DecodeError):  # not allowed, or written by a version that knows more
                break
        return ()

    def _write(self, settling: list[Settlement], runs: list[Execution]) -> list[Verdict | None]:
        """Settle; what fails for now again for a while, what can never be written apart from the rest; None: not written."""
        if not settling:
            return []
        for number in range(_WRITE_TRIES):
            try:
                return list(settlement.settle(self._backend, settling, self._clock.now_ms(), again=number > 0))
            except errors.TransientError:
                if not self._pause(number):
                    break
            except errors.UsageError as error:
                if len(settling) == 1:
                    return [self._write_as_unknown(settling[0], runs[0], error)]
                return [self._write([one], [run])[0] for one, run in zip(settling, runs, strict=True)]
        return [None] * len(settling)

    def _pause(self, number: int) -> bool:
        """After a try that failed: wait before the next; False: there is none."""
        pause_ms = _WRITE_PAUSE_MS << number
        if number + 1 == _WRITE_TRIES:
            return False
        if self.last_try_ms is not None:
            pause_ms = min(pause_ms, self.last_try_ms - self._clock.monotonic_ms())
            if pause_ms <= 0:
                return False
        self._clock.wait(self._never, pause_ms)
        return True

    def _write_as_unknown(self, settlement: Settlement, run: Execution, error: errors.UsageError) -> Verdict | None:
        """Park a run whose effect happened and whose settlement can never be written (an outbox to no queue)."""
        if not _effect_happened(settlement) or run.claimed is None:
            return None
        run.decide_again(Unstorable(summary=str(error)[:500]), self._clock.now_ms(), 0.0)
        verdict = self._write([self.settlement(run)[0]], [run])[0]
        return verdict if verdict is not None and verdict.written else None

    def free(self, settled: Settled) -> list[Delivery]:
        """Free keys and groups; what waited behind them, in order. What is behind in a group that is not done goes back."""
        followers: list[Delivery] = []
        for run, verdict in settled:
            behind_key, behind_group = self._key_order.free(run)
            followers += behind_key
            over = verdict is not None and verdict.settled and not isinstance(run.decided().settle, RetryIn | Leave)
            if over:
                followers += behind_group
            elif run.job.policy.fifo and run.delivery.group is not None:
                self.hold_up([run.delivery, *behind_group], "an earlier message of its group is not done", besides=1)
        return followers

    def hold_up(self, deliveries: Sequence[Delivery], why: str, delay_ms: int = 0, *, besides: int = 0) -> set[str]:
        """Give back, in order, all that is here of the first delivery's FIFO group: of these, and of what is only in flight.

        Args:
            besides: how many at the head are not to be given back, because they are settled.

        Returns:
            The receipts that were given back.
        """
        queue, group = deliveries[0].queue, deliveries[0].group
        known = {one.receipt for one in deliveries}
        elsewhere = [one for one in self._in_flight.unbegun() if one.receipt not in known]
        behind = [one for one in (*deliveries[besides:], *elsewhere) if (one.queue, one.group) == (queue, group)]
        behind.sort(key=lambda one: one.sequence or "")
        if behind:
            self.give_back(behind, why, delay_ms)
            self._in_flight.mark_returned(one for one in behind if one.receipt not in known)
        return {one.receipt for one in behind}

    # -- telling -----------------------------------------------------------------------------------------------------

    def _event(self, name: str, delivery: Delivery, run: Execution | None, detail: fate.Detail) -> Event:
        return Event(
            at_ms=self._clock.now_ms(),
            name=name,
            key=run.facts.key if run is not None else None,
            queue=delivery.queue,
            message_id=delivery.message_id,
            group=delivery.group,
            receive_count=delivery.receive_count,
            run=run.facts.run if run is not None else run_of(delivery),
            actor=self._owner,
            detail=detail,
        )

    def _emit(self, event: Event) -> None:
        self._sinks.emit(event)
        if event.name == "lease-lost":
            self._append([event.row()])

    def _append(self, rows: Sequence[Row]) -> None:
        if rows and self._history != "off":
            with suppress(errors.OnefoldError):  # the store is what failed; the sinks have heard it
                self._backend.ledger.append(rows)

    def lose(self, run: Execution) -> None:
        """A run lost its lease: its handler can see it from now on, and it is told once."""
        if run.ctx is not None:
            run.ctx.lease_lost = True
        if not run.lost:
            run.lost = True
            self._emit(self._event("lease-lost", run.delivery, run, {"attempt": run.attempt}))

    def tell_begun(self, runs: Sequence[Execution]) -> None:
        """At history `full`: that messages were received, and which of their handlers are called now."""
        if not kept("started", self._history):
            return
        events = []
        for run in runs:
            events.append(self._event("received", run.delivery, run, {}))
            if run.claimed is not None and run.claimed.started:
                detail: fate.Detail = {"attempt": run.attempt, "fence": run.claimed.hold.fence}
                events.append(self._event("started", run.delivery, run, detail))
        for event in events:
            self._sinks.emit(event)
        with suppress(errors.TransientError):
            self._backend.ledger.append([event.row() for event in events])

    def tell(self, name: str, run: Execution, detail: fate.Detail) -> None:
        """Tell something of a run that is no part of its settlement; what only `full` keeps, only at `full`."""
        if EVENTS[name].kept == "full" and not kept(name, self._history):
            return
        self._note(self._event(name, run.delivery, run, detail))

    def tell_orphan(self, delivery: Delivery, detail: fate.Detail) -> None:
        """Tell that a message waits for somebody who takes it."""
        self._note(self._event("waits-for-job", delivery, None, detail))

    @property
    def sink_failures(self) -> int:
        """How many times a sink raised."""
        return self._sinks.failures

    def announce(self, name: str, detail: fate.Detail) -> None:
        """Tell something of this process."""
        self._note(Event(at_ms=self._clock.now_ms(), name=name, actor=self._owner, detail=detail))

    def _note(self, event: Event) -> None:
        self._sinks.emit(event)
        if kept(event.name, self._history):
            with suppress(errors.TransientError):  # the sinks have heard it; a full disk must not stop the work
                self._backend.ledger.append([event.row()])


def _group_changes(run: Execution, decision: fate.Decision) -> tuple[Change, ...]:
    """A message that is buried stops its group; the one that the group waits for lets it go on when it no longer does."""
    delivery, policy = run.delivery, run.job.policy
    if not policy.fifo or delivery.group is None:
        return ()
    flag = group_flag(delivery.queue, delivery.group)
    stops = policy.after_failure == "stop"
    if stops and isinstance(decision.settle, Bury) and run.facts.stopped is None:
        return (_change(flag, delivery.message_id.encode(), 0),)
    if run.stopping is not None and isinstance(decision.settle, Ack if stops else (Ack, Bury)):
        return (_change(flag, None, run.stopping),)
    return ()


def _change(name: str, value: bytes | None, expected: int) -> Change:
    return Change(name, value, expected)


def _is_alike(run: Execution, found: Conflict) -> bool:
    from onefold import payload_defaults  # and dataclasses: asked only when two fingerprints of one key differ

    return payload_defaults.is_alike(run.payload, run.facts.fingerprint, found.fingerprint)


def _effect_happened(settlement: Settlement) -> bool:
    return settlement.write is not None and isinstance(settlement.write[1], Complete)
