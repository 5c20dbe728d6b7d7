"""What a reconciliation found, as text: the verdict, the figures, the operations concerned, and what to do next.

Never here: checks, repairs. Invariant: an operation is shown with the location of its payload and the owner of the fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from onefold import redact
from onefold.cli import render
from onefold.cli.render import Style, line
from onefold.reconcile.findings import Example, ReconcileOutcome, Verdict
from onefold.reconcile.survey import OperationStateName

VERDICTS: Final[dict[Verdict, tuple[str, Style]]] = {
    "agrees": ("everything that was dispatched is done, and exists once", "green"),
    "late": ("nothing is wrong so far, but it is not all done", "yellow"),
    "disagrees": ("NOT AS IT SHOULD BE", "red"),
}
_STATES: Final[dict[OperationStateName, str]] = {
    "dead": "dead-lettered"
}  # other places are shown under their own names
_KEY_WIDTH: Final = 38  # followed by a message id, a line fits into 80 columns


def draw(outcome: ReconcileOutcome, words: str, *, repairs: bool = False, is_map: bool = False) -> None:
    """One outcome: the verdict, the figures, what is not as it should be, and what to do next.

    Args:
        words: the target's form on a command line.
        repairs: a repair is shown below, so none is suggested.
        is_map: it is a map run, whose dead letters are redriven with the run.
    """
    text, style = VERDICTS[outcome.verdict]
    by = f"   by {outcome.name}" if outcome.name else ""
    line(f"{outcome.run}{by}", "bold")
    line(f"  {text}", style)
    line(f"  {_figures(outcome)}")
    if (own := outcome.own) is not None:
        line(f"  your own check: expected {own.expected:,} {own.what}, found {own.found:,}")
    if outcome.findings:
        line()
        for finding in outcome.findings:
            line(f"  - {finding}")
    shown = {f"{one.tenant}/{one.key}" if one.tenant else one.key for one in outcome.examples}
    differs = own is not None and own.differs(outcome.dispatched - outcome.done)
    differences = [one for one in own.differences if one.key not in shown] if own is not None and differs else []
    if outcome.examples or differences:
        line()
    draw_examples(outcome.examples, outcome.left_out)
    for one in differences:
        line(render.joined(f"  {one.key}: ", f"your own check found {one.found:,}, expected {one.expected:,}"))
    if todo := _next(outcome, repairs=repairs, is_map=is_map):
        line()
        line("Next:")
        render.todo(todo, words)


def _figures(outcome: ReconcileOutcome) -> str:
    """How many of a run's operations are in each state, in one line, without empty states."""
    parts = [
        (outcome.done, "done"),
        (outcome.running, "running"),
        (outcome.waiting, "waiting"),
        (outcome.stuck, "stuck"),
        (outcome.dead, _STATES["dead"]),
        (outcome.held, "held"),
        (outcome.missing, "missing"),
        (outcome.twice, "completed twice"),
        (outcome.doubtful, "in doubt"),
    ]
    parts_text = ", ".join(f"{count:,} {what}" for count, what in parts if count)
    return f"{outcome.dispatched:,} dispatched" + (f": {parts_text}" if parts_text else "")


def draw_examples(examples: Sequence[Example], left_out: int = 0) -> None:
    """Operations that are not done, grouped by state, reason, job and owner, each group under one heading.

    Each has a line with its key and the id of the message with its payload; the line is never wrapped, so it can be copied.

    Args:
        left_out: how many more there are.
    """
    alike: dict[tuple[str, str, str, str | None, str | None], list[Example]] = {}
    for one in examples:
        state = "completed twice" if one.twice else "in doubt" if one.doubtful else _STATES.get(one.state, one.state)
        alike.setdefault((state, one.why, one.job, one.owner, one.queue), []).append(one)
    for (state, why, job, owner, queue), some in alike.items():
        count = f"{len(some):,} " if len(some) > 1 else ""
        render.fold(f"{count}{state}: {why}", "  ", "    ")
        about = [f"job {job}", f"owner {owner}" if owner else "", f"payload in {queue}" if queue else ""]
        render.fold(", ".join(one for one in about if one), "    ", "    ", "dim")
        names = [f"{one.tenant}/{one.key}" if one.tenant else one.key for one in some]
        width = min(max(map(len, names)), _KEY_WIDTH)
        for name, one in zip(names, some, strict=True):
            line(f"    {name:<{width}}  {one.message_id}" if one.message_id is not None else f"    {name}")
    if left_out:
        line(f"  and {left_out:,} more")


def _next(outcome: ReconcileOutcome, *, repairs: bool, is_map: bool) -> list[str]:
    steps = []
    if outcome.verdict == "disagrees" and outcome.expected is None:
        steps.append(f"onefold runs show {outcome.run}   (how far its dispatch has got, and how to continue it)")
    lost = outcome.missing or any(one.state == "stuck" and one.message_id is None for one in outcome.examples)
    if lost and not repairs:
        steps.append(f"onefold reconcile {outcome.run} --repair   (what would be sent again)")
    if outcome.dead and is_map:
        steps.append(f"onefold map redrive {outcome.run}   (fix the cause first)")
    elif outcome.dead:
        steps.append("onefold dlq list   (fix the cause, then onefold dlq redrive)")
    if outcome.held:
        steps.append("onefold held list   (find out whether the effect happened, then onefold held settle)")
    if any(one.state == "stuck" and one.message_id is not None for one in outcome.examples):
        steps.append("onefold status   (is a worker running?)")
    doubted = [one for one in outcome.examples if one.twice or one.doubtful]
    steps += [redact.command("onefold why", one.key, f"--job {one.job}") for one in doubted[:3]]
    return steps
