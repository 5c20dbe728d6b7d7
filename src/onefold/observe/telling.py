"""What is known of an operation (`Evidence`), and what one row of its history says, with the rule that decided.

Pure. The numbers in a row are those that decided at the time; what the row does not hold (the base of a backoff, the
limit of crashes) is added from the job's policy where its app is known. Never here: order, what the record tells, rendering.
Invariant: a row of an event that nobody foresaw is still told, with all its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from onefold.contracts.admin import Peeked
from onefold.contracts.ledger import History, Row
from onefold.contracts.store import Record, RecordKey
from onefold.decide.delivery import Policy
from onefold.observe.wording import instant, pause
from onefold.run.events import EVENTS

Number = str | int | bool | None
Detail = Mapping[str, Number]
Told = tuple[str, str]  # what happened, and what decided it


def alone(message: Peeked) -> str:
    """The command that sends back a dead letter of no stopped group."""
    return f"onefold dlq redrive {message.message_id}"


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
        paused_until_ms: when the job's circuit breaker tries again; None when it is not paused.
        owner_dead: the process that has the record is known to have ended.
        now_ms: the instant of the question.
        say: how an instant is said inside a sentence; in UTC unless the reader's zone is known.
        way_back: the command that sends a dead letter back, or what has to be done before.
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
    say: Callable[[int], str] = instant
    way_back: Callable[[Peeked], str] = alone


def told(row: Row, evidence: Evidence) -> Told:
    """What a row says: what happened, and the rule or number that decided it."""
    if row.event in _WITH_EVIDENCE:
        return _WITH_EVIDENCE[row.event](row.detail, evidence)
    if row.event in _TELLINGS:
        return _TELLINGS[row.event](row.detail)
    meaning = EVENTS.get(row.event)
    numbers = ", ".join(
        f"{name} {value}" for name, value in row.detail.items() if value is not None and name not in ("number", "trace")
    )
    return meaning.text if meaning is not None else row.event, numbers


def _failure(detail: Detail) -> str:
    error, summary, at = detail.get("error"), detail.get("summary"), detail.get("where")
    text = ": ".join(str(part) for part in (error, summary) if part)
    return f"{text} (at {at})" if at and str(at) not in text else text


def _word(detail: Detail, name: str, otherwise: str) -> str:
    value = detail.get(name)
    return otherwise if value is None else str(value)


def _run(detail: Detail) -> str:
    number = detail.get("number") or detail.get("attempt")
    return f"run {number}" if number else "the run"


def _sent(detail: Detail) -> Told:
    if detail.get("duplicate"):
        return "sent again, and nothing was added", "the key (unique=True) or the deduplication id was known already"
    return "a message was accepted", ""


def _paused(detail: Detail, evidence: Evidence) -> Told:
    until_ms = detail.get("until_ms")
    text = f"the job is paused by its circuit breaker: {_word(detail, 'summary', 'it keeps failing')}"
    return text, f"pause {_word(detail, 'pauses', '?')}, until {evidence.say(int(until_ms))}" if until_ms else ""


def _received(detail: Detail) -> Told:
    count = detail.get("receive_count")
    return "received by a worker", f"receive {count} of this message" if count else ""


def _started(detail: Detail) -> Told:
    return f"{_run(detail)} started", ""


def _completed(detail: Detail, evidence: Evidence) -> Told:
    return f"{_run(detail)} completed; its record is kept", lifetime(evidence)


def lifetime(evidence: Evidence) -> str:
    """Until when the record of a finished operation answers duplicates; empty where it is not finished."""
    record = evidence.record
    if record is None or record.status != "completed" or record.expires_at_ms is None:
        return ""
    return f"answers duplicates until {evidence.say(record.expires_at_ms)}"


def _retry(detail: Detail, evidence: Evidence) -> Told:
    attempt, wait_ms = detail.get("attempt"), detail.get("delay_ms")
    failure = _failure(detail)
    text = f"{_run(detail)} failed: {failure}" if failure else "will be tried again"
    rule = f"retry in {pause(int(wait_ms))}" if wait_ms is not None else "retry"
    if attempt and detail.get("of"):
        rule += f": attempt {attempt} of {detail['of']}"
    return text, rule + _backoff(attempt, evidence.policy)


def _failed(detail: Detail) -> Told:
    return f"{_run(detail)} failed: {_failure(detail)}", "the key is free: the next call runs it"


def _backoff(attempt: Number, policy: Policy | None) -> str:
    if policy is None or not attempt:
        return ""
    backoff, power = policy.backoff, int(attempt) - 1
    jitter = {"full": "full jitter", "half": "+-50 % jitter", "none": "no jitter"}[backoff.jitter]
    return f", base {backoff.base_ms / 1000:g} s x {backoff.factor:g}^{power}, {jitter}"


def _dead_letter(detail: Detail) -> Told:
    failure = _failure(detail)
    text = f"{_run(detail)} failed: {failure}; moved to the dead-letter queue" if failure else "dead-lettered"
    match detail.get("reason"):
        case "attempts":
            rule = f"attempt {_word(detail, 'attempt', '?')} of {_word(detail, 'of', '?')}: the budget is used up"
        case "permanent":
            rule = "permanent error: trying again cannot help"
        case reason:
            rule = f"reason {reason}" if reason else ""
    return text, rule


def _quarantine(detail: Detail, evidence: Evidence) -> Told:
    of = f" of at most {evidence.policy.crashes_max}" if evidence.policy is not None else ""
    rule = f"{_word(detail, 'crashes', 'too many')} runs{of} ended when their worker process died"
    return "quarantined: moved to the dead-letter queue", rule


def _duplicate(detail: Detail, evidence: Evidence) -> Told:
    of, at_ms = detail.get("of"), detail.get("completed_at_ms")
    whose = f"message {of}" if of else "the earlier run"
    when = f", completed at {evidence.say(int(at_ms))}" if at_ms else ""
    return f"duplicate: returned the stored result of {whose}{when}", "finished work is not run again"


def _running_elsewhere(detail: Detail) -> Told:
    left, wait_ms = detail.get("lease_left_ms"), detail.get("delay_ms")
    rule = f"owner {_word(detail, 'owner', '?')} holds the lease"
    if left is not None and wait_ms is not None:
        rule += f" for {pause(int(left))}; will check again in {pause(int(wait_ms))}, no attempt used"
    return "waits: another run of this key is in progress", rule


def _takeover(detail: Detail) -> Told:
    if detail.get("started", detail.get("doubt")):
        doubt = "it had started, so its outcome is unknown"
    else:
        doubt = "it had not started" + (
            ", and whether a run before it had its effect is unknown" if detail.get("doubt") else ""
        )
    ended = f"the lease of {_word(detail, 'from', 'its owner')} was over, or its process dead"
    rule = f"{ended}; fence {_word(detail, 'fence', '?')}; {doubt}"
    return "taken over from a run whose process died without reporting an outcome", rule


_POLICIES = {
    "rerun": "on_unknown=rerun: the handler runs again",
    "hold": "on_unknown=hold: a person settles it",
    "probe": "on_unknown is a probe: it is asked whether the effect happened",
}


def _unknown(detail: Detail) -> Told:
    if detail.get("error"):
        text = f"{_run(detail)} ended with {detail['error']}: it is unknown whether the effect happened"
    else:
        text = "redelivered; it is unknown whether the previous run took effect"
    return text, _POLICIES.get(str(detail.get("policy")), "")


def _probe(detail: Detail) -> Told:
    answers = {
        "done": "the effect happened: completed with what the probe found",
        "not-done": "the effect did not happen: the handler may run",
        "unknown": "the probe cannot say: waiting for a person",
    }
    return "the job's probe was asked", answers.get(str(detail.get("answer")), _word(detail, "answer", "no answer"))


def _held(detail: Detail) -> Told:
    if detail.get("since_ms") is not None:
        return "a duplicate waits for a person, too", "the outcome of the run before it is unknown"
    return (
        f"waiting for a person: {detail.get('summary') or 'outcome unknown'}",
        "nothing runs until it is settled",
    )


def _conflict(detail: Detail) -> Told:
    first = f"message {detail.get('of')}" if detail.get("of") else "another message"
    text = "came with another payload; moved to the dead-letter queue, not run"
    status = _word(detail, "status", "unknown")
    return text, f"{first} used this key first (now {status}); a key belongs to one payload"


def _group_stopped(detail: Detail) -> Told:
    text = "followed an earlier message of its group to the dead-letter queue"
    by = _word(detail, "by", "before it")
    return text, f"message {by} stopped the group (after_failure=stop), so that the order is kept"


def _released(detail: Detail) -> Told:
    wait_ms = detail.get("delay_ms")
    back = f"; will check again in {pause(int(wait_ms))}" if wait_ms else ""
    return "returned without having started", f"{detail.get('why') or 'not started'}{back}, no attempt used"


def _dependency_down(detail: Detail) -> Told:
    return f"the dependency refuses everything: {_failure(detail)}", "the job is paused; no attempt used"


def _lease_lost(detail: Detail) -> Told:
    return (
        f"{_run(detail)} lost its lease; nothing of it was recorded",
        "a higher fence owns the operation now",
    )


def _redrive(detail: Detail) -> Told:
    new = detail.get("new_message_id")
    text = f"sent back to {_word(detail, 'to', 'its queue')}" + (f" as message {new}" if new is not None else "")
    return text, _said_why(detail, "a redrive starts a new count of attempts")


def _edit(detail: Detail) -> Told:
    return f"payload changed in the dead-letter queue ({_word(detail, 'changed', 'all of it')})", _said_why(detail, "")


def _removed(detail: Detail) -> Told:
    return "message deleted by an operator", _said_why(detail, "")


def _settled(detail: Detail) -> Told:
    word = "done" if detail.get("done") else "not done: it may run again"
    return f"settled as {word}", _said_why(detail, "")


def _said_why(detail: Detail, otherwise: str) -> str:
    why = detail.get("reason_text")
    return f"reason given: {why}" if why else otherwise


def _missing(detail: Detail) -> Told:
    return "a reconciliation found it missing", _word(detail, "why", "it is not done, and no message of it is left")


def _resent(detail: Detail) -> Told:
    return "sent again by a repair, under its own key", _said_why(detail, "")


_TELLINGS: Mapping[str, Callable[[Detail], Told]] = {
    "received": _received,
    "sent": _sent,
    "started": _started,
    "failed": _failed,
    "dead-letter": _dead_letter,
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
    "missing": _missing,
    "resent": _resent,
    "redrive": _redrive,
    "edit": _edit,
    "removed": _removed,
    "settled": _settled,
}
_WITH_EVIDENCE: Mapping[str, Callable[[Detail, Evidence], Told]] = {
    "completed": _completed,
    "paused": _paused,
    "retry": _retry,
    "quarantine": _quarantine,
    "duplicate": _duplicate,
}
