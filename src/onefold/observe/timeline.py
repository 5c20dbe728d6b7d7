"""One operation's story: what happened to it, step by step, each step with the rule or number that decided it.

Pure: the record, the ledger's rows and the messages that are still there go in, lines come out. The record tells the clean
run, rows tell what was not clean, messages tell what still waits; so a story can be told at every history level, and it says
what the level leaves out. Where it stands now and what to do next is `observe/standing.py`'s.
Never here: reading anything, rendering. Invariant: a line states only what a record, a row or a message holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import History, Row
from onefold.contracts.store import Record
from onefold.observe import telling
from onefold.observe.telling import Evidence, lifetime
from onefold.observe.wording import age, counted, instant, one_line


class Line(Struct, frozen=True, kw_only=True):
    """One step.

    Args:
        at_ms, at: when; the second in UTC for people who read the JSON.
        event: its name, as in `run/events.py`.
        text: what happened.
        rule: what decided it; empty where nothing had to be decided.
        message_id, actor: which message, and who did it.
        told_by: where it is known from.
        trace: where its exception was raised, frames without locals; None where nothing was raised or it is not known.
    """

    at_ms: int
    at: str
    event: str
    text: str
    rule: str
    message_id: str | None
    actor: str | None
    told_by: Literal["record", "ledger", "message"]
    trace: str | None = None


def lines(evidence: Evidence) -> list[Line]:
    """The story, oldest first."""
    rows = _counted_on(evidence.rows, evidence.record)
    told = [(_rank(row.event, of_run="attempt" in row.detail), _of_row(row, evidence)) for row in rows]
    told += [(_rank(line.event), line) for line in (*_of_record(evidence), *_of_messages(evidence))]
    return [line for _, line in sorted(told, key=lambda one: (one[1].at_ms, one[0]))]


def _counted_on(rows: Sequence[Row], record: Record | None) -> list[Row]:
    """The rows with the number of each run in the whole story: sent back, a message may begin at attempt 1 again.

    A run that ended without a word has no row with its number, so the record's count of them decides for the last budget.
    """
    found: list[Row] = []
    before, last, sent_back = 0, 0, False
    last_back = max((place for place, row in enumerate(rows) if row.event in ("redrive", "settled")), default=len(rows))
    for place, row in enumerate(rows):
        attempt = row.detail.get("attempt")
        if row.event in ("redrive", "settled"):
            sent_back = True
        elif isinstance(attempt, int):
            if sent_back and attempt <= last:
                before, last = before + last, 0
            if place > last_back and record is not None:
                before = max(before, record.attempts_total - record.attempts)
            last, sent_back = max(last, attempt), False
            found.append(replace(row, detail={**row.detail, "number": before + attempt}))
            continue
        found.append(row)
    return found


def _rank(event: str, *, of_run: bool = True) -> int:
    """Which of the steps of one millisecond came first; rows keep their order among themselves where this says nothing."""
    if event == "unknown" and not of_run:  # found at the claim, not the end of a run
        event = "takeover"
    return _RANKS.get(event, _RANKS["started"] + 1)


_RANKS = {
    "sent": 0,
    "reserved": 0,
    "received": 1,
    "claimed": 2,
    "takeover": 3,
    "probe": 4,
    "started": 5,
} | dict.fromkeys(("duplicate", "running-elsewhere", "conflict", "group-stopped"), 9)


def left_out(evidence: Evidence) -> str:
    """What the history level keeps no trace of; empty at `full`."""
    if _is_call(evidence):
        return "Of calls that went well only the last one is known, from its record."
    match evidence.history or _guessed(evidence):
        case "full":
            return ""
        case "brief":
            return (
                'History is brief: of clean runs only the record tells, of the last one. App(history="full") keeps all.'
            )
        case "off":
            return 'History is off: failures and duplicates on the way left no trace. App(history="brief") keeps them.'


def _is_call(evidence: Evidence) -> bool:
    """Whether it is a call under @once, which no message brought."""
    return evidence.record is not None and evidence.record.message_id is None and not evidence.messages


def _guessed(evidence: Evidence) -> History:
    names = {row.event for row in evidence.rows}
    return "full" if names & {"started", "received", "completed"} else "brief"


def _of_row(row: Row, evidence: Evidence) -> Line:
    text, rule = telling.told(row, evidence)
    trace = row.detail.get("trace")
    shown = str(trace) if trace else None
    return _line(row.at_ms, row.event, text, rule, row.message_id, row.actor, "ledger", shown)


def _line(
    at_ms: int,
    event: str,
    text: str,
    rule: str,
    message_id: str | None,
    actor: str | None,
    told_by: Literal["record", "ledger", "message"],
    trace: str | None = None,
) -> Line:
    return Line(
        at_ms=at_ms,
        at=instant(at_ms),
        event=event,
        text=one_line(text),
        rule=one_line(rule),
        message_id=message_id,
        actor=actor,
        told_by=told_by,
        trace=trace,
    )


# -- from the record -------------------------------------------------------------------------------------------------

_FAILED_ROWS = frozenset(
    {"failed", "retry", "dead-letter", "quarantine", "unknown", "held", "dependency-down", "probe"}
)


def _of_record(evidence: Evidence) -> list[Line]:
    """What the record knows and no row told already."""
    record = evidence.record
    if record is None:
        return []
    names = {row.event for row in evidence.rows}
    told: list[Line] = []

    def tell(at_ms: int, event: str, text: str, rule: str = "", *, last: bool = True) -> None:
        """`last`: it is about the last claim, whose message and owner the record knows."""
        known = last or record.fence == 1
        message_id, owner = (record.message_id, record.owner) if known else (None, None)
        told.append(_line(at_ms, event, text, rule, message_id, owner, "record"))

    moves = [row for row in evidence.rows if row.event == "redrive"]
    sent_back = {row.detail.get("new_message_id") for row in moves}
    first = next((row.message_id for row in moves if row.message_id not in sent_back), None)
    if record.sent_at_ms is not None and "sent" not in names and record.message_id not in sent_back:
        tell(record.sent_at_ms, "sent", f"sent as message {record.message_id}")
    elif "sent" not in names and first is not None:
        rule = "at this time or before: the record keeps only when it was sent last"
        at_ms = min(record.created_at_ms, evidence.rows[0].at_ms)
        told.append(_line(at_ms, "sent", f"sent as message {first}", rule, first, None, "ledger"))
    if "received" not in names:
        rule = "no record of this key stood before"
        if record.message_id is None and not record.attempts_total and not _is_call(evidence):
            rule = f"{rule}; its job is unique, and nothing has claimed it yet"
            tell(record.created_at_ms, "reserved", "reserved by send", rule, last=False)
        else:
            tell(record.created_at_ms, "claimed", "claimed for the first time", rule, last=False)
    run = f"run {record.attempts_total}" if record.attempts_total else "the run"
    if record.started_at_ms is not None and "started" not in names:
        before = record.attempts_total - record.attempts
        earlier = f"; {counted(before, 'run')} before this budget" if before else ""
        tell(record.started_at_ms, "started", f"{run} started", f"fence {record.started_fence}{earlier}")
    by_hand = any(row.event == "settled" and row.detail.get("done") for row in evidence.rows)
    if record.status == "completed" and "completed" not in names and not by_hand:
        tell(record.updated_at_ms, "completed", f"{run} completed; its record is kept", lifetime(evidence))
    failed = record.status in ("failed", "unknown") and record.failure is not None
    since_ms = record.started_at_ms or record.created_at_ms
    if failed and not any(row.event in _FAILED_ROWS and row.at_ms >= since_ms for row in evidence.rows):
        assert record.failure is not None
        text = f"failed: {record.failure.error}: {record.failure.summary}"
        tell(record.updated_at_ms, "failed", text, f"kind {record.failure.kind}")
    return told


# -- from the messages -----------------------------------------------------------------------------------------------


def _of_messages(evidence: Evidence) -> list[Line]:
    """When each message that is still there came to where it is, unless a row or the record says so."""
    by_record = evidence.record.message_id if evidence.record is not None else None
    known = {(row.event, row.message_id) for row in evidence.rows}
    told = []
    for message in evidence.messages:
        waits = message.queue not in evidence.dead and message.queue not in evidence.held
        if waits and message.message_id != by_record and ("sent", message.message_id) not in known:
            told.append(
                _line(
                    message.sent_at_ms,
                    "sent",
                    f"sent to {message.queue}",
                    _not_before(message, evidence),
                    message.message_id,
                    None,
                    "message",
                )
            )
        elif message.queue in evidence.dead and not any(
            row.message_id == message.message_id and row.event in _BURIED for row in evidence.rows
        ):
            told.append(_buried(message))
    return told


_BURIED = frozenset({"dead-letter", "quarantine", "conflict", "malformed", "untrusted", "no-job", "group-stopped"})


def _not_before(message: Peeked, evidence: Evidence) -> str:
    ahead_ms = message.visible_at_ms - message.sent_at_ms
    if message.state == "delayed" and ahead_ms > 0:
        return f"not before {evidence.say(message.visible_at_ms)}, {age(ahead_ms)} later"
    return ""


def _buried(message: Peeked) -> Line:
    reason = message.reason
    if reason is None:
        text, rule = f"moved to {message.queue}", "no reason travels with it: not buried by onefold"
    else:
        failure = f"{reason.error}: {reason.summary}" if reason.error else reason.summary
        text = f"moved to {message.queue}: {failure}"
        rule = f"reason {reason.kind}" + (f", after {counted(reason.attempts, 'run')}" if reason.attempts else "")
    at_ms = (reason.last_at_ms if reason is not None else None) or message.sent_at_ms
    trace = reason.trace if reason is not None else None
    return _line(at_ms, "dead-letter", text, rule, message.message_id, None, "message", trace)
