"""One operation's story: what happened to it, step by step, each step with the rule or number that decided it.

Pure: the record, the ledger's rows and the messages that still exist go in (`Evidence`), lines come out. The record shows
the clean run, rows show what was not clean, messages show what still waits; so there is a story at every history level, and
it says what the level leaves out. The numbers in a row are those that decided at the time; what the row lacks (the base of
a backoff, the limit of crashes) is added from the job's policy if its app is known.
Never here: reading anything, rendering, the state now and what to do next (`operation_state.py`).
Invariants: a line states only what a record, a row or a message holds. A row of an unknown event is still shown, with all
its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct, field
from msgspec.structs import replace

from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import History, Row
from onefold.contracts.store import Record, RecordKey
from onefold.observe.wording import age, cause, counted, instant, one_line, pause
from onefold.record.delivery import Policy
from onefold.runtime.events import EVENTS

Number = str | int | bool | None
Detail = Mapping[str, Number]
Description = tuple[str, str]  # what happened, and what decided it


def alone(message: Peeked) -> str:
    """The command that sends back a dead letter whose group is not stopped."""
    return f"onefold dlq redrive {message.message_id}"


class Evidence(Struct, frozen=True, kw_only=True):
    """Everything that is known of one operation.

    Args:
        key: the operation. record: the current one; None if it is absent or expired.
        rows: its history, oldest first.
        messages: sent with this key and still in some queue.
        policy: the job's, if its app is known.
        history: what the ledger keeps, if the app is known.
        dead, held: names of the dead-letter queues and of the held queues.
        paused_until_ms: when the job's circuit breaker tries again; None if the job is not paused.
        owner_dead: the process that owns the record is known to have ended. stopped_process: its id if it is stopped.
        owner_is_here: the owner is a process of this machine, so that it runs unless `owner_dead`; for calls under
            @once.
        now_ms: the instant of the question.
        say: formats an instant inside a sentence; in UTC unless the reader's zone is known.
        way_back: the command that sends a dead letter back, or what must be done before.
        not_asked: why it is not known whether one of its messages waits; empty if it is known.
        is_blocked: its job is `unique`, and a send checks only the record; None if the job is not known.
        is_one_of_many: several operations with its key are held.
        is_declared: the app declares its job, or no app is known. is_received: it also declares it on the queue of its
            message.
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
    paused_until_ms: int | None = None
    owner_dead: bool = False
    stopped_process: int | None = None
    owner_is_here: bool = False
    say: Callable[[int], str] = instant
    way_back: Callable[[Peeked], str] = alone
    not_asked: str = ""
    is_blocked: bool | None = False
    is_one_of_many: bool = False
    is_declared: bool = True
    is_received: bool = True


def described(row: Row, evidence: Evidence) -> Description:
    """What a row says: what happened, and the rule or number that decided it."""
    text, rule = _described(row, evidence)
    there_for = row.detail.get("there_for")
    about_it = (one for one in evidence.rows if one.message_id == row.message_id and "there_for" in one.detail)
    if there_for and next(about_it, row) is row:
        rule = f"it had been dead-lettered: {there_for}" + (f"; {rule}" if rule else "")
    return text, rule


def _described(row: Row, evidence: Evidence) -> Description:
    if row.event in _WITH_EVIDENCE:
        return _WITH_EVIDENCE[row.event](row.detail, evidence)
    if row.event in _DESCRIPTIONS:
        return _DESCRIPTIONS[row.event](row.detail)
    meaning = EVENTS.get(row.event)
    numbers = ", ".join(
        f"{name} {value}" for name, value in row.detail.items() if value is not None and name not in ("number", "trace")
    )
    return meaning.text if meaning is not None else row.event, numbers


def _failure(detail: Detail) -> str:
    at = detail.get("where")
    text = cause(_word(detail, "error", ""), _word(detail, "summary", ""))
    return f"{text} (at {at})" if at and str(at) not in text else text


def _word(detail: Detail, name: str, otherwise: str) -> str:
    value = detail.get(name)
    return otherwise if value is None else str(value)


def _run(detail: Detail) -> str:
    number = detail.get("number") or detail.get("attempt")
    return f"run {number}" if number else "the run"


def _sent(detail: Detail) -> Description:
    if detail.get("duplicate"):
        return "sent again, and nothing was added", "the key (unique=True) or the deduplication id was known already"
    return "a message was accepted", ""


def _paused(detail: Detail, evidence: Evidence) -> Description:
    until_ms = detail.get("until_ms")
    text = f"the job is paused by its circuit breaker: {_word(detail, 'summary', 'it keeps failing')}"
    return text, f"pause {_word(detail, 'pauses', '?')}, until {evidence.say(int(until_ms))}" if until_ms else ""


def _received(detail: Detail) -> Description:
    count = detail.get("receive_count")
    return "received by a worker", f"receive {count} of this message" if count else ""


def _started(detail: Detail) -> Description:
    return f"{_run(detail)} started", ""


def _completed(detail: Detail, evidence: Evidence) -> Description:
    return f"{_run(detail)} completed; its record is kept", lifetime(evidence)


def lifetime(evidence: Evidence) -> str:
    """How long the record of a finished operation answers duplicates; empty if it is not finished."""
    record = evidence.record
    if record is None or record.status != "completed" or record.expires_at_ms is None:
        return ""
    return f"answers duplicates until {evidence.say(record.expires_at_ms)}"


def _retry(detail: Detail, evidence: Evidence) -> Description:
    attempt, wait_ms = detail.get("attempt"), detail.get("delay_ms")
    failure = _failure(detail)
    text = f"{_run(detail)} failed: {failure}" if failure else "will be tried again"
    rule = f"retry in {pause(int(wait_ms))}" if wait_ms is not None else "retry"
    if attempt and detail.get("of"):
        rule += f": attempt {attempt} of {detail['of']}"
    return text, rule + _backoff(attempt, evidence.policy)


def _failed(detail: Detail) -> Description:
    return f"{_run(detail)} failed: {_failure(detail)}", "the key is free: the next call runs it"


def _backoff(attempt: Number, policy: Policy | None) -> str:
    if policy is None or not attempt:
        return ""
    backoff, power = policy.backoff, int(attempt) - 1
    jitter = {"full": "full jitter", "half": "+-50 % jitter", "none": "no jitter"}[backoff.jitter]
    return f", base {backoff.base_ms / 1000:g} s x {backoff.factor:g}^{power}, {jitter}"


def _dead_letter(detail: Detail) -> Description:
    failure = _failure(detail)
    text = f"{_run(detail)} failed: {failure}; moved to the dead-letter queue" if failure else "dead-lettered"
    match detail.get("reason"):
        case "attempts":
            rule = f"attempt {_word(detail, 'attempt', '?')} of {_word(detail, 'of', '?')}: no attempt is left"
        case "permanent":
            rule = "permanent error: trying again cannot help"
        case reason:
            rule = f"reason {reason}" if reason else ""
    return text, rule


def _quarantine(detail: Detail, evidence: Evidence) -> Description:
    of = f" of at most {evidence.policy.crashes_max}" if evidence.policy is not None else ""
    rule = f"{_word(detail, 'crashes', 'too many')} runs{of} ended with their process: it died, or was killed at the timeout"
    return "quarantined: moved to the dead-letter queue", rule


def _duplicate(detail: Detail, evidence: Evidence) -> Description:
    of, at_ms = detail.get("of"), detail.get("completed_at_ms")
    whose = f"message {of}" if of else "the earlier run"
    when = f", completed at {evidence.say(int(at_ms))}" if at_ms else ""
    return f"duplicate: returned the stored result of {whose}{when}", "finished work is not run again"


def _running_elsewhere(detail: Detail) -> Description:
    left, wait_ms = detail.get("lease_left_ms"), detail.get("delay_ms")
    rule = f"owner {_word(detail, 'owner', '?')} holds the lease"
    if left is not None and wait_ms is not None:
        rule += f" for {pause(int(left))}; will check again in {pause(int(wait_ms))}, no attempt used"
    return "waits: another run of this key is in progress", rule


def _takeover(detail: Detail) -> Description:
    if detail.get("started", detail.get("doubt")):
        doubt = "it had started, so its outcome is unknown"
    else:
        doubt = "it had not started" + (
            ", and whether a run before it had its effect is unknown" if detail.get("doubt") else ""
        )
    ended = f"the lease of {_word(detail, 'from', 'its owner')} had expired or its process had died"
    rule = f"{ended}; fence {_word(detail, 'fence', '?')}; {doubt}"
    return "taken over from a run that ended without reporting an outcome", rule


_POLICIES = {
    "rerun": "on_unknown=rerun: the handler runs again",
    "hold": "on_unknown=hold: a person settles it",
    "probe": "on_unknown is a probe: it is asked whether the effect happened",
}


def _unknown(detail: Detail, evidence: Evidence) -> Description:
    if detail.get("took_effect"):
        return f"{_run(detail)} took effect, and its result could not be recorded", "held: a person gives the result"
    again = "called again" if is_call(evidence) else "redelivered"
    text = f"{again}; it is unknown whether the previous run took effect"
    if detail.get("error"):
        text = f"{_run(detail)} ended with {detail['error']}: it is unknown whether the effect happened"
    return text, _POLICIES.get(str(detail.get("policy")), "")


def _probe(detail: Detail) -> Description:
    answers = {
        "done": "the effect happened: completed with what the probe found",
        "not-done": "the effect did not happen: the handler may run",
        "unknown": "the probe cannot say: waiting for a person",
    }
    return "the job's probe was asked", answers.get(str(detail.get("answer")), _word(detail, "answer", "no answer"))


def _held(detail: Detail) -> Description:
    if detail.get("since_ms") is not None:
        return "a duplicate waits for a person, too", "the outcome of the run before it is unknown"
    return (
        f"waiting for a person: {detail.get('summary') or 'outcome unknown'}",
        "nothing runs until it is settled",
    )


def _conflict(detail: Detail) -> Description:
    first = f"message {detail.get('of')}" if detail.get("of") else "another message"
    text = "came with another payload; moved to the dead-letter queue, not run"
    status = _word(detail, "status", "unknown")
    return text, f"{first} used this key first (now {status}); a key belongs to one payload"


def _group_stopped(detail: Detail) -> Description:
    text = "followed an earlier message of its group to the dead-letter queue"
    by = _word(detail, "by", "before it")
    return text, f"message {by} stopped the group (after_failure=stop), so that the order is kept"


def _released(detail: Detail) -> Description:
    wait_ms = detail.get("delay_ms")
    back = f"; will check again in {pause(int(wait_ms))}" if wait_ms else ""
    return "returned without having started", f"{detail.get('why') or 'not started'}{back}, no attempt used"


def _dependency_down(detail: Detail) -> Description:
    return f"the dependency refuses everything: {_failure(detail)}", "the job is paused; no attempt used"


def _overrun(detail: Detail) -> Description:
    timeout_ms, running_ms = detail.get("timeout_ms"), detail.get("running_ms")
    of = f" of {pause(int(timeout_ms))}" if timeout_ms is not None else ""
    so_far = f"it had run for {pause(int(running_ms))}; " if running_ms is not None else ""
    return (
        f"the handler passed its timeout{of}",
        f"{so_far}in a thread it goes on, and keeps its key and its message; a coroutine or a process is stopped",
    )


def _lease_lost(detail: Detail) -> Description:
    return (
        f"{_run(detail)} lost its lease; none of it was recorded",
        "another run had taken the operation over, or its record was gone from the store",
    )


def _record_gone(detail: Detail) -> Description:
    return (
        f"the record of {_run(detail)} was gone from the store while it ran; it was put back, and the run went on",
        "flushed, evicted, deleted or restored from a backup; no other process had taken the operation over",
    )


def _redrive(detail: Detail) -> Description:
    new = detail.get("new_message_id")
    text = f"sent back to {_word(detail, 'to', 'its queue')}" + (f" as message {new}" if new is not None else "")
    return text, _said_why(detail, "a redrive starts a new count of attempts")


def _edit(detail: Detail) -> Description:
    if detail.get("new_key") is not None:
        return f"its message was given another key: {detail['new_key']}", _said_why(
            detail, "it is another operation now"
        )
    text = f"payload changed in the dead-letter queue ({_word(detail, 'changed', 'all of it')})"
    old_key = detail.get("old_key")
    return text + (f"; its key was {old_key}" if old_key is not None else ""), _said_why(detail, "")


def _settled(detail: Detail) -> Description:
    word = "done" if detail.get("done") else "not done: it may run again"
    again = ", with another result than before" if detail.get("corrected") else ""
    return f"settled as {word}{again}", _said_why(detail, "")


def _said_why(detail: Detail, otherwise: str) -> str:
    why = detail.get("reason_text")
    return f"reason given: {why}" if why else otherwise


_DESCRIPTIONS: Mapping[str, Callable[[Detail], Description]] = {
    "received": _received,
    "sent": _sent,
    "started": _started,
    "failed": _failed,
    "dead-letter": _dead_letter,
    "running-elsewhere": _running_elsewhere,
    "takeover": _takeover,
    "probe": _probe,
    "held": _held,
    "conflict": _conflict,
    "group-stopped": _group_stopped,
    "released": _released,
    "dependency-down": _dependency_down,
    "lease-lost": _lease_lost,
    "record-gone": _record_gone,
    "overrun": _overrun,
    "missing": lambda detail: (
        "a reconciliation found it missing",
        _word(detail, "why", "it is not done, and no message of it is left"),
    ),
    "resent": lambda detail: ("sent again by a repair, under its own key", _said_why(detail, "")),
    "redrive": _redrive,
    "edit": _edit,
    "removed": lambda detail: (
        f"message {'cancelled by the program' if detail.get('by') == 'cancel' else 'deleted by an operator'}",
        _said_why(detail, ""),
    ),
    "settled": _settled,
}
_WITH_EVIDENCE: Mapping[str, Callable[[Detail, Evidence], Description]] = {
    "completed": _completed,
    "paused": _paused,
    "retry": _retry,
    "quarantine": _quarantine,
    "duplicate": _duplicate,
    "unknown": _unknown,
}


class Line(Struct, frozen=True, kw_only=True):
    """One step.

    Args:
        at_ms, at: when it happened; `at` is in UTC, for people who read the JSON.
        event: its name, as in `runtime/events.py`.
        text: what happened.
        rule: what decided it; empty if nothing had to be decided.
        message_id, actor: which message, and who did it.
        source: where the step is known from.
        trace: where its exception was raised, frames without locals; None if nothing was raised or it is not known.
    """

    at_ms: int
    at: str
    event: str
    text: str
    rule: str
    message_id: str | None
    actor: str | None
    source: Literal["record", "ledger", "message"] = field(name="told_by")  # its name in JSON
    trace: str | None = None


def lines(evidence: Evidence) -> list[Line]:
    """The story, oldest first."""
    rows = _counted_on(evidence.rows, evidence.record)
    lines = [(_rank(row.event, of_run="attempt" in row.detail), _of_row(row, evidence)) for row in rows]
    lines += [(_rank(line.event), line) for line in (*_of_record(evidence), *_of_messages(evidence))]
    return [line for _, line in sorted(lines, key=lambda one: (one[1].at_ms, one[0]))]


def _counted_on(rows: Sequence[Row], record: Record | None) -> list[Row]:
    """The rows with each run's number in the whole story; a message that was sent back can begin at attempt 1 again.

    A run that ended without a report has no row with its number, so for the last budget the record's count decides.
    """
    found: list[Row] = []
    before, last, sent_back = 0, 0, False
    last_back = max((index for index, row in enumerate(rows) if row.event in ("redrive", "settled")), default=len(rows))
    for index, row in enumerate(rows):
        attempt = row.detail.get("attempt")
        if row.event in ("redrive", "settled"):
            sent_back = True
        elif isinstance(attempt, int):
            if sent_back and attempt <= last:
                before, last = before + last, 0
            if index > last_back and record is not None:
                before = max(before, record.attempts_total - record.attempts)
            last, sent_back = max(last, attempt), False
            found.append(replace(row, detail={**row.detail, "number": before + attempt}))
            continue
        found.append(row)
    return found


def _rank(event: str, *, of_run: bool = True) -> int:
    """The order of steps within one millisecond; rows of equal rank keep their order."""
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
    """A sentence about what the history level leaves out; empty at `full`."""
    if is_call(evidence):
        return "Of calls that went well only the last one is known, from its record."
    match evidence.history or _guessed(evidence):
        case "full":
            return ""
        case "brief":
            return 'History is brief: only the last clean run is known, from the record. App(history="full") keeps them all.'
        case "off":
            return 'History is off: failures and duplicates on the way left no trace. App(history="brief") keeps them.'


def is_call(evidence: Evidence) -> bool:
    """Whether the operation is a call under @once, without a message."""
    known = evidence.rows if evidence.record is None else [evidence.record]
    return bool(known) and not evidence.messages and all(one.message_id is None for one in known)


def _guessed(evidence: Evidence) -> History:
    names = {row.event for row in evidence.rows}
    return "full" if names & {"started", "received", "completed"} else "brief"


def _of_row(row: Row, evidence: Evidence) -> Line:
    text, rule = described(row, evidence)
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
    source: Literal["record", "ledger", "message"],
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
        source=source,
        trace=trace,
    )


# -- from the record -------------------------------------------------------------------------------------------------

_FAILED_ROWS = frozenset(
    {"failed", "retry", "dead-letter", "quarantine", "unknown", "held", "dependency-down", "probe"}
)


def _of_record(evidence: Evidence) -> list[Line]:
    """The steps that the record knows and no row reports."""
    record = evidence.record
    if record is None:
        return []
    names = {row.event for row in evidence.rows}
    lines: list[Line] = []

    def add(at_ms: int, event: str, text: str, rule: str = "", *, fence: int | None = record.fence) -> None:
        """`fence`: the claim it is about. Only for the last claim does the record have message and owner."""
        message_id, owner = (record.message_id, record.owner) if fence == record.fence else (None, None)
        lines.append(_line(at_ms, event, text, rule, message_id, owner if event != "sent" else None, "record"))

    moves = [row for row in evidence.rows if row.event == "redrive"]
    sent_back = {row.detail.get("new_message_id") for row in moves}
    first = next((row.message_id for row in moves if row.message_id not in sent_back), None)
    by_worker = [row.message_id for row in evidence.rows[:1] if row.event not in ("redrive", "edit")]
    if record.sent_at_ms is not None and "sent" not in names and record.message_id not in sent_back:
        add(record.sent_at_ms, "sent", f"sent as message {record.message_id}")
    elif "sent" not in names and first is not None and by_worker == [first]:  # the run of this message made the record
        rule = "at this time or before: the record keeps only when it was sent last"
        at_ms = min(record.created_at_ms, evidence.rows[0].at_ms)
        lines.append(_line(at_ms, "sent", f"sent as message {first}", rule, first, None, "ledger"))
    if "received" not in names:
        rule = "there was no record of this key before"
        if record.sent_at_ms is None and not record.attempts_total and not is_call(evidence):
            rule = f"{rule}; its job is unique, and nothing has claimed it yet"
            add(record.created_at_ms, "reserved", "reserved by send", rule, fence=1)
        else:
            add(record.created_at_ms, "claimed", "claimed for the first time", rule, fence=1)
    run = f"run {record.attempts_total}" if record.attempts_total else "the run"
    if record.started_at_ms is not None and "started" not in names:
        before = record.attempts_total - record.attempts
        earlier = f"; {counted(before, 'run')} before it was sent back" if before else ""
        rule = f"fence {record.started_fence}{earlier}"
        add(record.started_at_ms, "started", f"{run} started", rule, fence=record.started_fence)
    by_hand = any(row.event == "settled" and row.detail.get("done") for row in evidence.rows)
    if record.status == "completed" and "completed" not in names and not by_hand:
        add(record.updated_at_ms, "completed", f"{run} completed; its record is kept", lifetime(evidence))
    failed = record.status in ("failed", "unknown") and record.failure is not None
    since_ms = record.started_at_ms or record.created_at_ms
    if failed and not any(row.event in _FAILED_ROWS and row.at_ms >= since_ms for row in evidence.rows):
        assert record.failure is not None
        text = f"failed: {cause(record.failure.error, record.failure.summary)}"
        add(record.updated_at_ms, "failed", text, f"kind {record.failure.kind}")
    return lines


# -- from the messages -----------------------------------------------------------------------------------------------


def _of_messages(evidence: Evidence) -> list[Line]:
    """The arrival of each existing message in its queue, unless a row or the record has it."""
    record = evidence.record  # the row of a send has the id, but not the time
    by_record = record.message_id if record is not None and record.sent_at_ms is not None else None
    known = {(row.event, row.message_id) for row in evidence.rows}
    lines = []
    for message in evidence.messages:
        waits = message.queue not in evidence.dead and message.queue not in evidence.held
        if waits and message.message_id != by_record and ("sent", message.message_id) not in known:
            text, rule = f"sent to {message.queue}", _not_before(message, evidence)
            lines.append(_line(message.sent_at_ms, "sent", text, rule, message.message_id, None, "message"))
        elif message.queue in evidence.dead and not any(
            row.message_id == message.message_id and row.event in _DEAD_LETTERED for row in evidence.rows
        ):
            lines.append(_dead_lettered(message))
    return lines


_DEAD_LETTERED = frozenset(
    {"dead-letter", "quarantine", "conflict", "malformed", "untrusted", "no-job", "group-stopped"}
)


def _not_before(message: Peeked, evidence: Evidence) -> str:
    ahead_ms = message.visible_at_ms - message.sent_at_ms
    if message.state == "delayed" and ahead_ms > 0:
        return f"not before {evidence.say(message.visible_at_ms)}, {age(ahead_ms)} later"
    return ""


def _dead_lettered(message: Peeked) -> Line:
    reason = message.reason
    if reason is None:
        text, rule = f"moved to {message.queue}", "no reason travels with it: the queue moved it, not onefold"
    else:
        failure = cause(reason.error, reason.summary)
        text = f"moved to {message.queue}: {failure}"
        rule = f"reason {reason.kind}" + (f", after {counted(reason.attempts, 'run')}" if reason.attempts else "")
    at_ms = (reason.last_at_ms if reason is not None else None) or message.sent_at_ms
    trace = reason.trace if reason is not None else None
    return _line(at_ms, "dead-letter", text, rule, message.message_id, None, "message", trace)
