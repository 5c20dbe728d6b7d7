"""Groups: runs of repeatable or transactional jobs, performed one after the other in one thread and committed together.

An external effect is recorded as soon as it is done; these need not be, so one fsync serves many. A finished run still
waits for its siblings at most COMMIT_WITHIN_MS. Transactional handlers share one open transaction, each in a savepoint:
what one wrote is kept with its record, or taken back alone.
Never here: external jobs. Invariant: a handler's rows and its record are in the same commit, or neither is anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onefold import errors
from onefold.contracts.store import Complete
from onefold.record.delivery import LeaseGone, Outcome
from onefold.runner.execution import Execution
from onefold.runner.executors import COMMIT_WITHIN_MS
from onefold.runner.runner import Runner
from onefold.runner.settlement import Backend

if TYPE_CHECKING:
    from onefold.contracts.verbs import EffectTransaction
    from onefold.outside import Clock, Entropy

EFFECT_LIMIT_MS = 1_000  # how long a handler's transaction may keep the file's other writers waiting


class Grouper:
    """Performs groups with one runner.

    Args:
        runner: performs the single runs.
        backend: for the transaction that transactional handlers share.
    """

    def __init__(self, runner: Runner, backend: Backend, clock: Clock, entropy: Entropy) -> None:
        self._runner = runner
        self._backend = backend
        self._clock = clock
        self._entropy = entropy
        self._quick: set[str] = set()  # jobs whose last run was over before its siblings had to be committed

    def perform(self, runs: Sequence[Execution]) -> list[Execution]:
        """Perform and finish runs in order. Answers the runs that were waiting behind them and are ready now."""
        effects = self._effects(runs)
        try:
            return self._perform(runs, effects)
        except BaseException:  # this thread ends in the middle of a handler: nobody may wait for its transaction
            if effects is not None:
                effects.rollback()
            raise

    def _perform(self, runs: Sequence[Execution], effects: EffectTransaction | None) -> list[Execution]:
        ready: list[Execution] = []
        waiting: list[Execution] = []
        since_ms = self._clock.monotonic_ms()
        for run in runs:
            if effects is not None and waiting and run.job.name not in self._quick:
                # What is kept holds the file; a handler that may take its time must not make the other writers wait.
                ready.extend(self._finish(waiting, effects))
                waiting, since_ms = [], self._clock.monotonic_ms()
            run.effects = effects if run.job.policy.effect == "transactional" else None
            self._runner.perform(run)
            waiting.append(run)
            (self._quick.add if run.took_ms < COMMIT_WITHIN_MS else self._quick.discard)(run.job.name)
            if run.effects is not None:
                self._keep_or_undo(run, run.effects)
            if self._clock.monotonic_ms() - since_ms >= COMMIT_WITHIN_MS:
                ready.extend(self._finish(waiting, effects))
                waiting, since_ms = [], self._clock.monotonic_ms()
        ready.extend(self._finish(waiting, effects))
        return ready

    def _effects(self, runs: Sequence[Execution]) -> EffectTransaction | None:
        if self._backend.effects is None or all(run.job.policy.effect != "transactional" for run in runs):
            return None
        return self._backend.effects(EFFECT_LIMIT_MS)

    def _keep_or_undo(self, run: Execution, effects: EffectTransaction) -> None:
        """Write this handler's settlement into the open transaction, or take its rows back."""
        if run.ctx is None or not run.ctx.used_connection:
            return
        if run.caught or not isinstance(run.decided().write, Complete):
            effects.undo()
            return
        settlement, _ = self._runner.settler.built(run)
        try:
            verdict = effects.finish(settlement, self._clock.now_ms())
        except errors.OnefoldError as error:
            effects.undo()
            self._decide_again(run, error)
            return
        if verdict.written:
            run.verdict = verdict
        else:
            self._decide_again(run, None)

    def _finish(self, runs: list[Execution], effects: EffectTransaction | None) -> list[Execution]:
        kept = [run for run in runs if run.verdict is not None]
        if effects is not None and kept:
            try:
                effects.commit()
            except errors.OnefoldError as error:
                for run in kept:
                    run.verdict = None
                    self._decide_again(run, error)
        return self._runner.finish(runs)

    def _decide_again(self, run: Execution, error: errors.OnefoldError | None) -> None:
        """The handler's rows were rolled back: nothing of it happened, so it failed (or lost its lease)."""
        assert run.claimed is not None
        outcome: Outcome = LeaseGone() if error is None else self._runner.failed(run, error)
        run.decide_again(outcome, self._clock.now_ms(), self._entropy.fraction())
