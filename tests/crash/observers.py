"""What is between the workers of a walk and the real backend, and reports every answer to the judge.

Store, commit and effect transactions pass everything on; the queue accepts every settlement and delivers again whenever
it likes. `Gate` and `Never` stand for what does not happen in a walk. Does not contain: rules of right and wrong
(`judge.py`).
Invariant: the judge gets an answer before the worker does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onefold.contracts.commit import Settlement, Verdict
from onefold.contracts.queue import Ack, MoveTo, QueueCapabilities, RetryIn
from onefold.contracts.store import Answer, Ask, Claimed, Complete, Hold, Outcome, Record, RecordKey, Unknown
from onefold.contracts.verbs import RowsOf, Store
from onefold.engines.sqlite.commit import SqliteCommit
from onefold.record.delivery import Decision
from onefold.runner.admission import Admission, Report
from onefold.runner.execution import Execution
from tests.crash.judge import Judge


class ObservedStore:
    """The store of one worker; reports every answer to the judge."""

    def __init__(self, store: Store, judge: Judge) -> None:
        self._store = store
        self._judge = judge
        self.capabilities = store.capabilities

    def claim(self, asks: Sequence[Ask], now_ms: int, rows_of: RowsOf | None = None) -> list[Answer]:
        answers = self._store.claim(asks, now_ms, rows_of)
        for ask, answer in zip(asks, answers, strict=True):
            if isinstance(answer, Claimed):
                self._judge.claimed(
                    ask.owner,
                    answer.hold.fence,
                    started=answer.started,
                    now_ms=now_ms,
                    lease_end_ms=ask.lease_until_ms,
                )
        return answers

    def start(self, holds: Sequence[Hold], now_ms: int) -> list[bool]:
        answers = self._store.start(holds, now_ms)
        for hold, took in zip(holds, answers, strict=True):
            self._judge.started(hold.owner, hold.fence, took=took)
        return answers

    def renew(self, holds: Sequence[Hold], lease_until_ms: int) -> list[bool]:
        answers = self._store.renew(holds, lease_until_ms)
        for hold, took in zip(holds, answers, strict=True):
            self._judge.renewed(hold.owner, hold.fence, lease_until_ms, took=took)
        return answers

    def write(self, writes: Sequence[tuple[Hold, Outcome]], now_ms: int) -> list[bool]:
        answers = self._store.write(writes, now_ms)
        for write, took in zip(writes, answers, strict=True):
            observe(self._judge, write, took=took)
        return answers

    def restore(self, records: Sequence[Record]) -> list[bool]:
        return self._store.restore(records)

    def clear_outbox(self, holds: Sequence[Hold]) -> list[bool]:
        return self._store.clear_outbox(holds)

    def read(self, keys: Sequence[RecordKey], now_ms: int) -> list[Record | None]:
        return self._store.read(keys, now_ms)


def observe(judge: Judge, write: tuple[Hold, Outcome], *, took: bool) -> None:
    """Report a write to the judge."""
    hold, outcome = write
    judge.wrote(
        hold.owner,
        hold.fence,
        result=int(outcome.result) if isinstance(outcome, Complete) else None,
        in_doubt=isinstance(outcome, Unknown) and not outcome.parked,
        took=took,
    )


class ObservedEffects:
    """Handlers' own rows, committed with the record; the judge counts them once they are committed."""

    def __init__(self, effects: Any, judge: Judge, planted: Callable[[Settlement], Settlement]) -> None:
        self._effects = effects
        self._judge = judge
        self._planted = planted
        self._kept: list[tuple[Settlement, Verdict]] = []

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._effects, verb)

    def finish(self, settlement: Settlement, now_ms: int) -> Verdict:
        verdict: Verdict = self._effects.finish(self._planted(settlement), now_ms)
        self._kept.append((settlement, verdict))
        return verdict

    def commit(self) -> None:
        self._effects.commit()
        for settlement, verdict in self._kept:
            assert settlement.write is not None
            if verdict.written:
                hold = settlement.write[0]
                self._judge.effect(hold.owner, hold.fence)
            observe(self._judge, settlement.write, took=verdict.written)
            _fate(self._judge, settlement, written=verdict.written)
        self._kept = []


class ObservedCommit:
    """One-transaction settlements; the judge sees what they wrote."""

    def __init__(self, commit: SqliteCommit, judge: Judge, planted: Callable[[Settlement], Settlement] | None) -> None:
        self._commit = commit
        self._judge = judge
        self._planted = planted or (lambda settlement: settlement)

    def commit(self, settlements: Sequence[Settlement], now_ms: int) -> list[Verdict]:
        verdicts = self._commit.commit([self._planted(one) for one in settlements], now_ms)
        for settlement, verdict in zip(settlements, verdicts, strict=True):
            if settlement.write is not None:
                observe(self._judge, settlement.write, took=verdict.written)
            _fate(self._judge, settlement, written=verdict.written)
        return verdicts

    def effects(self, limit_ms: int) -> ObservedEffects:
        return ObservedEffects(self._commit.effects(limit_ms), self._judge, self._planted)


def _fate(judge: Judge, settlement: Settlement, *, written: bool) -> None:
    if written and isinstance(settlement.settle, MoveTo):
        judge.settled(settlement.settle.to)
    elif written and isinstance(settlement.settle, Ack):
        judge.settled("deleted")


class AdverseQueue:
    """A queue that accepts every settlement and delivers again whenever it likes; the judge sees what was settled."""

    capabilities = QueueCapabilities(fifo=True, uncounted=True, run_at=True, atomic_move=True)

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        self._judge.settled("deleted")
        return [True] * len(receipts)

    def move_aside(self, moves: Sequence[tuple[str, MoveTo]]) -> list[bool]:
        for _, move in moves:
            self._judge.settled(move.to)
        return [True] * len(moves)

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        return [True] * len(changes)


class Gate(Admission):
    """Admits everything; its other methods do nothing."""

    def __init__(self) -> None:
        """Keep nothing."""

    def admit(self, runs: Sequence[Execution]) -> tuple[list[Execution], list[tuple[Execution, int, str]]]:
        return list(runs), []

    def is_to_blame(self, run: Execution) -> bool:
        return False

    def forget(self, runs: Sequence[Execution]) -> None: ...

    def renew(self) -> None: ...

    def settled(self, run: Execution, decision: Decision, tell: Report) -> None: ...


class Never:
    """A waiter for pauses that do not occur here."""

    def wait(self, timeout_s: float) -> bool:
        raise AssertionError("nothing fails here, so nothing waits")
