"""What a reconciliation found: the verdict with its reasons, and where it is stored.

    agrees     everything that was dispatched is done, and exists once
    late       nothing is wrong, but not everything is done or dispatched yet
    disagrees  something is missing, stuck, dead, held, exists twice, or differs from what the user counted

The last outcome of a run is kept in State (`reconcile/<run>`); all outcomes and their figures are in the ledger, and
each is emitted as an event. Never here: checks, repairs.
Invariant: an outcome names at most `EXAMPLES_MAX` operations, however many it concerns, and fits into one State value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from onefold import errors
from onefold.contracts.documents import change, reader
from onefold.contracts.engine import Engine
from onefold.contracts.ledger import Row
from onefold.contracts.state import VALUE_BYTES_MAX
from onefold.contracts.store import RecordKey
from onefold.reconcile.counts import Own
from onefold.reconcile.survey import OperationStateName, Survey, SurveyedOperation
from onefold.runner import runs
from onefold.runner.runs import RunState
from onefold.runtime.events import Event, Sinks

if TYPE_CHECKING:
    from onefold.contracts.verbs import State

Verdict = Literal["agrees", "late", "disagrees"]

EXAMPLES_MAX: Final = 20  # operations that an outcome names; the others are only counted


class Example(Struct, frozen=True, kw_only=True):
    """One operation with a problem; the fields are those of `SurveyedOperation`."""

    job: str
    tenant: str
    key: str
    state: OperationStateName = field(name="place")  # the name in JSON
    why: str
    message_id: str | None = None
    queue: str | None = None
    owner: str | None = None
    twice: bool = False
    doubtful: bool = False


class ReconcileOutcome(Struct, frozen=True, kw_only=True):
    """What a reconciliation found.

    Args:
        run: the run's full name. name: the name of the reconciliation; empty if the check was manual and none is declared.
        look: the number of the check, 1 or more; 0 for a manual one. at_ms: when it was made.
        verdict: `agrees`: everything exists, once. `late`: nothing is wrong, but not all is done. Else `disagrees`.
        expected: how many operations the run dispatched; None while that is not known.
        dispatched: how many the ledger names. The counts of the states of `survey.py` follow, and add up to it.
        twice: how many completed more than once. doubtful: how many may have taken effect more than once.
        own: the result of the user's own check; None if there is none.
        findings: what is not as it should be, one sentence each; empty if everything agrees.
        examples: the first of the operations concerned. left_out: how many more there are.
    """

    run: str
    name: str
    look: int
    at_ms: int
    verdict: Verdict
    expected: int | None
    dispatched: int
    done: int
    running: int
    waiting: int
    stuck: int
    dead: int
    held: int
    missing: int
    twice: int
    doubtful: int
    own: Own | None
    findings: tuple[str, ...]
    examples: tuple[Example, ...]
    left_out: int = 0


def assemble(
    survey: Survey,
    items: Sequence[SurveyedOperation],
    run: RunState | None,
    own: Own | None,
    *,
    concerned: int,
    name: str,
    look: int,
    now_ms: int,
) -> ReconcileOutcome:
    """Combine a walk through a run and the user's own count into an outcome.

    Args:
        survey: after its walk. items: at most `EXAMPLES_MAX` of what the walk returned. concerned: how many it
            returned.
        run: from State; None if State does not know it.
        own: the result of the user's check; None if there is none.
        name, look, now_ms: as in `ReconcileOutcome`.
    """
    counts = survey.counts
    wrong, late = tuple(_wrong(survey, run, own)), tuple(_late(survey, run))
    outcome = ReconcileOutcome(
        run=survey.run,
        name=name,
        look=look,
        at_ms=now_ms,
        verdict="disagrees" if wrong else "late" if late else "agrees",
        expected=run.expected if run is not None else None,
        dispatched=survey.dispatched,
        done=counts.get("done", 0),
        running=counts.get("running", 0),
        waiting=counts.get("waiting", 0),
        stuck=counts.get("stuck", 0),
        dead=counts.get("dead", 0),
        held=counts.get("held", 0),
        missing=counts.get("missing", 0),
        twice=survey.twice,
        doubtful=survey.doubtful,
        own=own,
        findings=wrong + late,
        examples=tuple(example_of(one) for one in items),
        left_out=concerned - len(items),
    )
    return _fitting(outcome)


def _fitting(outcome: ReconcileOutcome) -> ReconcileOutcome:
    """The outcome with as many examples and differences as fit into one State value."""
    while len(msgspec.json.encode(outcome)) > VALUE_BYTES_MAX:
        if outcome.examples:
            outcome = replace(outcome, examples=outcome.examples[:-1], left_out=outcome.left_out + 1)
        elif outcome.own is not None and outcome.own.differences:
            outcome = replace(outcome, own=replace(outcome.own, differences=outcome.own.differences[:-1]))
        else:
            break
    return outcome


def _wrong(survey: Survey, run: RunState | None, own: Own | None) -> Iterator[str]:
    counts = survey.counts
    if run is not None and run.failure is not None:
        yield f"Its dispatch failed: {run.failure}"
    if run is not None and run.expected is not None and run.expected > survey.dispatched:
        yield f"It dispatched {run.expected:,}; the ledger names {survey.dispatched:,}."
    for state, text in _WRONG.items():
        if counts.get(state):
            yield f"{counts[state]:,} {text}"
    if survey.twice:
        yield f"{survey.twice:,} completed more than once."
    unfinished = survey.dispatched - counts.get("done", 0)
    if survey.doubtful and (own is None or own.differs(unfinished)):
        yield f"{survey.doubtful:,} may have taken effect more than once: a run died and was run again."
    if own is not None and own.differs(unfinished):
        yield own.text(unfinished)


_WRONG: Final[Mapping[OperationStateName, str]] = {
    "missing": "missing: dispatched, not done, and no message of it is left.",
    "stuck": "stuck: a run of it went silent and was not taken over.",
    "dead": "in a dead-letter queue.",
    "held": "held: its outcome is unknown, and a person decides.",
}


def _late(survey: Survey, run: RunState | None) -> Iterator[str]:
    if run is not None and run.expected is None and run.failure is None:
        yield f"It is still being dispatched: {survey.dispatched:,} so far."
    open_count = survey.counts.get("waiting", 0) + survey.counts.get("running", 0)
    if open_count:
        yield f"{open_count:,} not done yet: waiting or running."


def example_of(item: SurveyedOperation) -> Example:
    """The example that an outcome shows for a surveyed operation."""
    return Example(
        job=item.key.job,
        tenant=item.key.scope,
        key=item.key.key,
        state=item.state,
        why=item.why,
        message_id=item.message_id,
        queue=item.queue,
        owner=item.owner,
        twice=item.twice,
        doubtful=item.doubtful,
    )


# -- storing ---------------------------------------------------------------------------------------------------------

_outcome_of = reader(ReconcileOutcome, None)


def state_name(run: str) -> str:
    """The name in State of a run's last outcome."""
    return runs.RECONCILED_PREFIX + run


def read(state: State, run: str) -> ReconcileOutcome | None:
    """A run's last outcome; None if the run has not been checked yet."""
    found = state.get([state_name(run)])[0]
    return _outcome_of(found.value) if found is not None else None


def record(engine: Engine, outcome: ReconcileOutcome, *, actor: str, sinks: Sinks) -> None:
    """Store an outcome and emit it. Repeating it after a crash adds its ledger rows again, and changes nothing else.

    Raises:
        TransientError: others keep changing the same value.
    """
    detail: dict[str, str | int | bool | None] = {
        name: value
        for name, value in msgspec.structs.asdict(outcome).items()
        if isinstance(value, str | int) and name not in ("run", "at_ms")
    }
    if outcome.own is not None:
        detail |= {"own_expected": outcome.own.expected, "own_found": outcome.own.found}
    event = Event(
        at_ms=outcome.at_ms,
        name="reconciled" if outcome.verdict == "agrees" else "reconcile-failed",
        run=outcome.run,
        actor=actor,
        detail=detail,
    )
    name = state_name(outcome.run)
    _, written = change(engine.state, name, _outcome_of, None, lambda _: (outcome, True))
    if not written:
        raise errors.TransientError(f"{name} is being changed by others.", todo="Run it again now.")
    engine.ledger.append([event.row(), *_rows(outcome, actor)])
    sinks.emit(event)


def _rows(outcome: ReconcileOutcome, actor: str) -> Iterator[Row]:
    """A row for each missing operation, so that `onefold why` of its key shows who found it missing, and when."""
    for one in outcome.examples:
        if one.state == "missing":
            yield Row(
                at_ms=outcome.at_ms,
                event="missing",
                key=RecordKey(one.tenant, one.job, one.key),
                run=outcome.run,
                actor=actor,
                detail={"why": one.why},
            )
