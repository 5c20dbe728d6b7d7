"""One operation's story: what happened to it, step by step, each step with the rule or number that decided it.

Pure: the record, the ledger's rows and the messages that are still there go in, lines come out. The record tells the clean
run, rows tell what was not clean, messages tell what still waits; so a story can be told at every history level, and it says
what the level leaves out. Where it stands now and what to do next is `watch/standing.py`'s.
Never here: reading anything, rendering. Invariant: a line states only what a record, a row or a message holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import History, Row
from onefold.contracts.store import Record, RecordKey
from onefold.decide.delivery import Policy
from onefold.run.events import EVENTS
from onefold.watch.wording import age, counted, instant, one_line, pause


class Evidence(Struct, frozen=True, kw_only=True):
    """Everything that is known of one operation.

    Args:
        key: the operation.
        record: as it stands; None where absent or expired.
        rows: its history, oldest first.
        messages: sent with this key and still in some queue.
        policy: the job's, where its app is known.
        history: what the ledger keeps, where the app is known.
        dead, held: names of the queues that are dead-letter and held queues.
        now_ms: the instant of the question.
        say: how an instant is said inside a sentence; in UTC unless the reader's zone is known.
    """

    key: RecordKey
    record: Record | None
    rows: Sequence[Row]
    messages: Sequence[Peeked]
    policy: Policy | None
    history: History | None
    dead: frozenset[str]
    held: frozenset[str]
    now_ms: int
    say: Callable[[int], str] = instant


class Line(Struct, frozen=True, kw_only=True):
    """One step.

    Args:
        at_ms, at: when; the second in UTC for people who read the JSON.
        event: its name, as in `run/events.py`.
        text: what happened.
        rule: what decided it; empty where nothing had to be decided.
        message_id, actor: which message, and who did it.
        told_by: where it is known from.
    """

    at_ms: int
    at: str
    event: str
    text: str
    rule: str
    message_id: str | None
    actor: str | None
    told_by: Literal["record", "ledger", "message"]


def lines(evidence: Evidence) -> list[Line]:
    """The story, oldest first."""
    told = [_of_row(row, evidence) for row in evidence.rows]
    told += _of_record(evidence)
    told += _of_messages(evidence)
    return sorted(told, key=lambda line: (line.at_ms, _FIRST.get(line.event, len(_FIRST))))


_FIRST = {"sent": 0, "received": 1, "claimed": 2, "started": 3}  # of steps in one millisecond


def left_out(evidence: Evidence) -> str:
    """What the history level keeps no trace of; empty at `full`."""
    match evidence.history or _guessed(evidence):
        case "full":
            return ""
        case "brief":
            return (
                "History level brief: of runs that went well only the record tells, and it keeps the last one. "
                'Every step is kept with App(history="full").'
            )
        case "off":
            return (
                "History level off: only the record and operators' actions are kept; failures and duplicates on the way "
                'are not. They are with App(history="brief").'
            )


def _guessed(evidence: Evidence) -> History:
    names = {row.event for row in evidence.rows}
    return "full" if names & {"started", "received", "completed"} else "brief"


# -- from the ledger -------------------------------------------------------------------------------------------------

Number = str | int | bool | None
Telling = Callable[[Mapping[str, Number], Evidence], tuple[str, str]]


def _of_row(row: Row, evidence: Evidence) -> Line:
    telling = _TELLINGS.get(row.event)
    if telling is not None:
        text, rule = telling(row.detail, evidence)
    else:
        meaning = EVENTS.get(row.event)
        text = meaning.text if meaning is not None else row.event
        rule = ", ".join(f"{name} {value}" for name, value in row.detail.items() if value is not None)
    return _line(row.at_ms, row.event, text, rule, row.message_id, row.actor, "ledger")


def _line(
    at_ms: int,
    event: str,
    text: str,
    rule: str,
    message_id: str | None,
    actor: str | None,
    told_by: Literal["record", "ledger", "message"],
) -> Line:
    return Line(
        at_ms=at_ms, at=instant(at_ms), event=event, text=one_line(text), rule=one_line(rule), message_id=message_id,
        actor=actor, told_by=told_by,
    )  # fmt: skip


def _failure(detail: Mapping[str, Number]) -> str:
    error, summary = detail.get("error"), detail.get("summary")
    return ": ".join(str(part) for part in (error, summary) if part)


def _run(detail: Mapping[str, Number]) -> str:
    attempt = detail.get("attempt")
    return f"run {attempt}" if attempt else "the run"


def _sent(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    return "sent", ""


def _received(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    count = detail.get("receive_count")
    return "received by a worker", f"receive {count} of this message" if count else ""


def _started(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    return f"{_run(detail)} started", ""


def _completed(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    return f"{_run(detail)} completed; the record stands", _lifetime(evidence)


def _lifetime(evidence: Evidence) -> str:
    record = evidence.record
    if record is None or record.status != "completed" or record.expires_at_ms is None:
        return ""
    return f"answers duplicates until {evidence.say(record.expires_at_ms)}"


def _retry(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    attempt, wait_ms = detail.get("attempt"), detail.get("delay_ms")
    failure = _failure(detail)
    text = f"{_run(detail)} failed: {failure}" if failure else "will be tried again"
    rule = f"retry in {pause(int(wait_ms))}" if wait_ms is not None else "retry"
    if attempt and detail.get("of"):
        rule += f": attempt {attempt} of {detail['of']}"
    return text, rule + _backoff(attempt, evidence.policy)


def _backoff(attempt: Number, policy: Policy | None) -> str:
    if policy is None or not attempt:
        return ""
    backoff, power = policy.backoff, int(attempt) - 1
    jitter = {"full": "full jitter", "half": "+-50 % jitter", "none": "no jitter"}[backoff.jitter]
    return f", base {backoff.base_ms / 1000:g} s x {backoff.factor:g}^{power}, {jitter}"


def _dead_letter(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    failure = _failure(detail)
    text = f"{_run(detail)} failed: {failure}; moved to the dead-letter queue" if failure else "dead-lettered"
    match detail.get("reason"):
        case "attempts":
            rule = f"attempt {detail.get('attempt')} of {detail.get('of')}: the budget is used up"
        case "permanent":
            rule = "permanent error: trying again cannot help"
        case reason:
            rule = f"reason {reason}" if reason else ""
    return text, rule


def _quarantine(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    crashes, most = detail.get("crashes"), evidence.policy.crashes_max if evidence.policy else None
    of = f" of at most {most}" if most else ""
    return "quarantined: moved to the dead-letter queue", f"{crashes} runs{of} ended with their worker process"


def _duplicate(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    of, at_ms = detail.get("of"), detail.get("completed_at_ms")
    whose = f"the record of message {of}" if of else "the record"
    when = f", completed at {evidence.say(int(at_ms))}" if at_ms else ""
    return f"duplicate: answered from {whose}{when}", "finished work is not run again"


def _running_elsewhere(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    left, wait_ms = detail.get("lease_left_ms"), detail.get("delay_ms")
    rule = f"owner {detail.get('owner')} holds the lease"
    if left is not None and wait_ms is not None:
        rule += f" for {pause(int(left))}; looks again in {pause(int(wait_ms))}, no attempt used"
    return "waits: the same key runs elsewhere", rule


def _takeover(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    doubt = "it had started, so its outcome is not known" if detail.get("doubt") else "it had not started"
    rule = f"the lease of {detail.get('from')} was over, or its process dead; fence {detail.get('fence')}; {doubt}"
    return "taken over from a run that ended without a word", rule


_POLICIES = {
    "rerun": "on_unknown=rerun: the handler runs again",
    "hold": "on_unknown=hold: a person settles it",
    "probe": "on_unknown is a probe: it is asked whether the effect happened",
}


def _unknown(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    failure = _failure(detail)
    text = "whether the effect happened is not known" + (f" ({failure})" if failure else "")
    return text, _POLICIES.get(str(detail.get("policy")), "")


def _probe(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    answers = {
        "done": "the effect happened: completed with what the probe found",
        "not-done": "the effect did not happen: the handler may run",
        "unknown": "the probe cannot tell: parked for a person",
    }
    return "the job's probe was asked", answers.get(str(detail.get("answer")), str(detail.get("answer")))


def _held(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    if detail.get("since_ms") is not None:
        return "a duplicate was parked too", "waits for the same answer as the run before it"
    return f"parked for a person: {detail.get('summary') or 'outcome unknown'}", "nothing runs until it is settled"


def _conflict(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    first = f"message {detail.get('of')}" if detail.get("of") else "another message"
    text = "came with another payload; moved to the dead-letter queue, not run"
    return text, f"{first} used this key first (now {detail.get('status')}); one key stands for one payload"


def _group_stopped(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    text = "followed an earlier message of its group to the dead-letter queue"
    return text, f"message {detail.get('by')} stopped the group (after_failure=stop), so that the order is kept"


def _released(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    wait_ms = detail.get("delay_ms")
    back = f"; looks again in {pause(int(wait_ms))}" if wait_ms else ""
    return "given back without having started", f"{detail.get('why') or 'not started'}{back}, no attempt used"


def _dependency_down(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    return f"the dependency refuses everything: {_failure(detail)}", "the job pauses; no attempt used"


def _lease_lost(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    return f"{_run(detail)} lost its lease; nothing of it was recorded", "a higher fence owns the operation now"


def _redrive(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    new, to = detail.get("new_message_id"), detail.get("to")
    return f"sent back to {to} as message {new}", _said_why(detail, "a redrive opens a new budget of attempts")


def _edit(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    return f"payload changed in the dead-letter queue ({detail.get('changed')})", _said_why(detail, "")


def _removed(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    return f"message deleted from {detail.get('from')} by hand", _said_why(detail, "")


def _settled(detail: Mapping[str, Number], evidence: Evidence) -> tuple[str, str]:
    word = "done" if detail.get("done") else "not done: it may run again"
    return f"settled by hand as {word}", _said_why(detail, "a person's word ends the doubt")


def _said_why(detail: Mapping[str, Number], otherwise: str) -> str:
    why = detail.get("reason_text")
    return f"reason given: {why}" if why else otherwise


_TELLINGS: Mapping[str, Telling] = {
    "sent": _sent,
    "received": _received,
    "started": _started,
    "completed": _completed,
    "retry": _retry,
    "dead-letter": _dead_letter,
    "quarantine": _quarantine,
    "duplicate": _duplicate,
    "running-elsewhere": _running_elsewhere,
    "takeover": _takeover,
    "unknown": _unknown,
    "probe": _probe,
    "held": _held,
    "conflict": _conflict,
    "group-stopped": _group_stopped,
    "released": _released,
    "dependency-down": _dependency_down,
    "lease-lost": _lease_lost,
    "redrive": _redrive,
    "edit": _edit,
    "removed": _removed,
    "settled": _settled,
}

# -- from the record -------------------------------------------------------------------------------------------------

_FAILED_ROWS = frozenset({"retry", "dead-letter", "quarantine", "unknown", "held", "dependency-down", "probe"})


def _of_record(evidence: Evidence) -> list[Line]:
    """What the record knows and no row told already."""
    record = evidence.record
    if record is None:
        return []
    names = {row.event for row in evidence.rows}
    told: list[Line] = []

    def tell(at_ms: int, event: str, text: str, rule: str = "") -> None:
        told.append(_line(at_ms, event, text, rule, record.message_id, record.owner, "record"))

    if record.sent_at_ms is not None and "sent" not in names:
        tell(record.sent_at_ms, "sent", f"sent as message {record.message_id}")
    if "received" not in names and record.fence:
        tell(record.created_at_ms, "claimed", "claimed for the first time", "no record of this key stood before")
    if record.started_at_ms is not None and "started" not in names:
        text = "the run started" if record.attempts_total == 1 else f"run {record.attempts_total} started, the last one"
        tell(record.started_at_ms, "started", text, f"fence {record.started_fence}")
    if record.status == "completed" and not names & {"completed", "settled"}:
        tell(record.updated_at_ms, "completed", "completed; the record stands", _lifetime(evidence))
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
                _line(message.sent_at_ms, "sent", f"sent to {message.queue}", _not_before(message, evidence),
                      message.message_id, None, "message")  # fmt: skip
            )
        elif message.queue in evidence.dead and not any(
            row.message_id == message.message_id and row.event in _BURIED for row in evidence.rows
        ):
            told.append(_buried(message))
    return told


_BURIED = frozenset({"dead-letter", "quarantine", "conflict", "malformed", "group-stopped"})


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
    return _line(at_ms, "dead-letter", text, rule, message.message_id, None, "message")
