"""What a log line says of an event: its fields, in one table, and the three forms of a line.

`FIELDS` is the only place where a field is named: the page of the documentation is written from it, and a test compares it
with what events of every kind really give. Names are stable: fields can be added, but none is removed or changes its
meaning. Fields that come from a payload and name the business (`PRIVATE`: key, tenant, group) are hashed unless
requested. Never here: `logging`, sinks. Invariants: an event never holds a payload, so a line cannot either; a line is
one line.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from onefold import redact
from onefold.contracts.ledger import COUNT_PREFIX
from onefold.contracts.queue import text_at
from onefold.contracts.store import RecordKey
from onefold.errors import UsageError
from onefold.observe import wording
from onefold.record.error_text import quoted_keys
from onefold.runtime.events import EVENTS, Event

Keys = Literal["hashed", "shown"]
Value = str | int | bool | dict[str, int]

KEYS_VARIABLE: Final = "ONEFOLD_LOG_KEYS"
HASH_CHARS: Final = 16  # of SHA-256: among a million keys, two share a hash once in some ten million cases
FRAMES_MAX: Final = 8  # the last frames of a traceback in a plain line
_PLAIN_CHARS_MAX: Final = 2_000

FIELDS: Final[Mapping[str, str]] = {
    "ts": "When it happened: ISO 8601, UTC, milliseconds.",
    "level": "debug, info, warning, error or critical.",
    "event": "What happened, one word of a fixed list (below).",
    "text": "The same as a sentence.",
    "app": "The app, where the sink belongs to one.",
    "job": "The job or guarded function.",
    "key": "The business key, as a hash unless keys are shown.",
    "tenant": "The tenant of the key; as `key`.",
    "queue": "The queue.",
    "message_id": "The message. `onefold why MESSAGE_ID` shows its whole history.",
    "group": "The message group, on a FIFO queue; as `key`.",
    "attempt": "Which run of the operation this was, from 1; runs after a redrive begin at 1 again.",
    "of": "How many runs there are; of a duplicate or conflict the message that came first.",
    "receive_count": "How often the message had been received.",
    "fence": "Which claim of the operation this was; it only grows.",
    "run": "The tick or map run that the message belongs to.",
    "owner": "The process that reports, or `person:LOGIN`.",
    "other_owner": "The process that had the operation before, or has it now, or died.",
    "failure_class": "What kind of failure it was: transient, permanent, unknown, conflict, malformed, ...",
    "rule": "Which rule decided: attempts, permanent, receives, ...; of an unknown outcome the job's on_unknown.",
    "error": "The class of the exception, or the code of onefold's own error.",
    "summary": "What it says, one line of at most 500 characters. ONEFOLD_ERROR_TEXT=off leaves it out.",
    "where": "The last frame in the handler's own code: `shop.py:12 in book`.",
    "trace": "The frames of the exception and of its causes, without values of variables; at most 4,000 characters.",
    "duration_ms": "How long the handler ran.",
    "wait_ms": "From the send until the handler was first called.",
    "trace_id": "Of the trace, where tracing is on: 32 hexadecimal digits.",
    "span_id": "Of the span: 16 hexadecimal digits.",
    "function": "The Lambda function.",
    "log_stream": "The log stream of its container.",
    "aws_request_id": "The invocation.",
    "answer": "What the job's probe found: done, not done, or unknown.",
    "by": "Whose dead letter stopped the group: a message id.",
    "by_ms": "How far the clock was set; negative: back.",
    "completed_at_ms": "When the work was done that a duplicate is answered with.",
    "count": "How many ticks.",
    "counts": "What the handler counted with ctx.count, by name.",
    "crashes": "Runs that ended with their process.",
    "dead": "Operations of the run in dead-letter queues.",
    "dead_letter": "The dead-letter queue.",
    "delay_ms": "Until it is tried again.",
    "dispatched": "Messages that the run has sent.",
    "done": "Operations of the run that are done.",
    "doubt": "Whether the run before may have taken effect.",
    "doubtful": "Operations of the run whose outcome is not known.",
    "duplicate": "Whether the key was known already.",
    "expected": "Operations that the run should have.",
    "expires_in_ms": "Until the first of the queue's messages is gone.",
    "expression": "The schedule's expression.",
    "failing_ms": "For how long every call of the engine has failed.",
    "from_ms": "The first of the ticks.",
    "given_back": "Messages that were not begun.",
    "given_up_in_ms": "Until the message goes to the dead-letter queue.",
    "held": "Operations of the run in held queues.",
    "jobs": "The jobs of the worker.",
    "late_ms": "How late the tick was sent.",
    "lease_left_ms": "For how long the other run holds the key.",
    "left": "Handlers that still ran when the worker ended.",
    "left_out": "Operations of the run that the user's own check leaves out.",
    "line": "Of the map run's source, from 1.",
    "look": "Which look at the run this is.",
    "map": "The map job.",
    "messages": "How many messages it is about.",
    "missing": "Operations of the run that are missing.",
    "new_message_id": "The message in its new place.",
    "own_expected": "What the user's own check expects.",
    "own_found": "What it found.",
    "pauses": "How often the job was paused in a row.",
    "place": "The file or URL of the worker's engine, without a password.",
    "pid": "The worker's process id.",
    "queues": "The queues of the worker.",
    "reconciler": "The reconciliation.",
    "remark": "What is odd about the source.",
    "retries": "How often the tick was sent again.",
    "round": "Which round of the map run, from 1.",
    "row": "Which row of the outbox table.",
    "running": "Handlers that run.",
    "running_ms": "For how long the handler has run.",
    "schedule": "The schedule.",
    "schedules": "How many schedules.",
    "schedules_ahead": "Schedules whose next tick the clock has passed.",
    "sender": "Where messages of the map run come from.",
    "since_ms": "Since when it is held.",
    "started": "Whether the run before had called the handler.",
    "status": "What the record under the key says.",
    "stopped_process": "The process of the previous run, which is stopped and keeps its lease.",
    "stuck": "Operations of the run that wait for longer than they should.",
    "thread_name": "The thread beside the worker's handlers.",
    "threads": "How many threads the worker has.",
    "timeout_ms": "How long the handler may run.",
    "to_ms": "The last of the ticks.",
    "took_effect": "Whether the effect is known to have happened.",
    "twice": "Operations of the run that took effect more than once.",
    "until_ms": "Until when the job is paused.",
    "verdict": "What the reconciliation found: agrees, differs, ...",
    "version": "Of onefold.",
    "waiting": "Operations of the run that wait for their turn.",
    "why": "Why, in words.",
}
"""Every field of a line and its meaning, in the order of a line. A line has only the fields that have a value."""
PRIVATE: Final = ("key", "tenant", "group")
_RENAMED: Final = {
    "owner": "other_owner", "from": "other_owner", "message": "message_id", "in": "queue", "name": "reconciler",
    "thread": "thread_name", "reason": "rule", "policy": "rule", "kind": "failure_class", "source": "sender",
}  # fmt: skip
"""Details of events that are renamed: the name belongs to another field, or `logging`'s records use it themselves."""


class _Ranks(dict[str, int]):
    """The place of each field in a line; a name that is not in the table comes last."""

    def __missing__(self, name: str) -> int:
        return len(self)


_rank_of: Final = _Ranks(
    (name, rank) for rank, name in enumerate(FIELDS)
).__getitem__  # called for each field of each line
_NOT_PLAIN: Final = frozenset(
    {
        "ts", "level", "event", "text", "app", "job", "key", "tenant", "queue", "message_id", "group", "run", "owner",
        "receive_count", "failure_class", "trace", "trace_id", "span_id", "function", "log_stream", "aws_request_id",
    }
)  # fmt: skip
_encode = msgspec.json.Encoder().encode


def keys_from_environment() -> Keys:
    """Whether the environment asks for hashed or shown keys in log lines.

    Raises:
        UsageError: the value is not known.
    """
    return checked_keys(os.environ.get(KEYS_VARIABLE) or "hashed", KEYS_VARIABLE)


def checked_keys(keys: str, of: str = "keys") -> Keys:
    """`keys`, if the value is known.

    Raises:
        UsageError: it is not known.
    """
    if keys == "hashed":
        return "hashed"
    if keys == "shown":
        return "shown"
    raise UsageError(
        f"{of}={keys!r:.80} is not known.",
        todo="It is hashed (a line has a hash of keys, tenants and groups) or shown.",
    )


def hashed(text: str) -> str:
    """What replaces a key in a log: `sha256:` and 16 hexadecimal digits, the same everywhere for the same key."""
    return f"sha256:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:HASH_CHARS]}"


def fields_of(event: Event, base: Mapping[str, str] = {}, keys: Keys = "hashed") -> dict[str, Value]:
    """The fields of an event, in the order of `FIELDS`.

    Args:
        base: fields that every line of a sink has: app, function, log_stream.
    """
    found: dict[str, Value | None] = {
        "ts": wording.instant(event.at_ms),
        "level": event.severity,
        "event": event.name,
        "text": EVENTS[event.name].text,
        **base,
        "queue": event.queue,
        "message_id": event.message_id,
        "group": event.group,
        "receive_count": event.receive_count,
        "run": event.run,
        "owner": event.actor,
        "failure_class": failure_class(event),
        "duration_ms": event.took_ms,
        "wait_ms": event.wait_ms,
        "aws_request_id": event.request_id,
        "trace_id": event.trace_id,
        "span_id": event.span_id,
    }
    if event.key is not None:
        found["job"], found["key"], found["tenant"] = event.key.job, event.key.key, event.key.scope or None
    counts: dict[str, int] = {}
    for name, value in event.detail.items():
        if name.startswith(COUNT_PREFIX) and isinstance(value, int):
            counts[name.removeprefix(COUNT_PREFIX)] = value
            continue
        field = _RENAMED.get(name, name)
        if found.get(field) is None:
            found[field] = value
    if counts:
        found["counts"] = counts
    if keys == "hashed":
        quoted = quoted_keys(event.exception)
        for name in PRIVATE:
            text = found.get(name)
            if text is not None:
                found[name] = hashed(str(text))
                quoted.add(str(text))
        for name in ("summary", "trace"):  # onefold's own errors quote keys
            if isinstance(said := found.get(name), str):
                found[name] = _without(said, quoted)
    return {name: said for name in sorted(found, key=_rank_of) if (said := found[name]) is not None}


def _without(text: str, keys: Iterable[str]) -> str:
    for key in keys:
        text = text.replace(repr(key), hashed(key))
    return text


def json_line(fields: Mapping[str, Value]) -> str:
    """Fields as one JSON object, without characters that a terminal obeys."""
    return redact.printable_json(_encode(fields).decode())


def plain_line(fields: Mapping[str, Value]) -> str:
    """Fields for people: time, level, event, operation, message, and then the numbers that decided.

    The line of an error has the whole text of the exception, and the last frames that led to it.
    """
    parts = [str(fields["ts"]), str(fields["level"]).upper(), words(fields)]
    return wording.one_line(" ".join(parts), _PLAIN_CHARS_MAX)


def words(fields: Mapping[str, Value]) -> str:
    """A plain line without its time and level."""
    parts = [str(fields["event"])]
    if "key" in fields:
        parts.append(
            wording.operation(RecordKey(str(fields.get("tenant", "")), str(fields.get("job", "")), str(fields["key"])))
        )
    elif "job" in fields:
        parts.append(str(fields["job"]))
    if "place" in fields and "app" in fields:  # a worker's start
        parts.append(f"of app {fields['app']}")
    for name, before in (("queue", "on "), ("message_id", "message "), ("run", "run ")):
        if name in fields:
            parts.append(f"{before}{fields[name]}")
    rest: dict[str, object] = {name: value for name, value in fields.items() if name not in _NOT_PLAIN}
    if trace := str(fields.get("trace") or ""):
        at = text_at(trace)
        lines = trace[at:].split("\n")
        if len(lines) > 1 and "summary" in rest:  # the whole text of the exception
            said = [lines[0].removeprefix(f"{fields.get('error')}: "), *(one.strip() for one in lines[1:])]
            rest["summary"] = " | ".join(said)
        if fields["level"] in ("error", "critical") and (frames := _frames(trace[:at])):
            rest["frames"] = " > ".join(frames)
    others = ", ".join(f"{name}={value}" for name, value in rest.items())
    return wording.one_line(" ".join(parts) + (f": {others}" if others else ""), _PLAIN_CHARS_MAX)


def _frames(trace: str) -> list[str]:
    """`shop.py:12 in book` for each of the last frames."""
    found = []
    for line in trace.split("\n"):
        if line.startswith('  File "'):
            path, _, rest = line.removeprefix('  File "').partition('", line ')
            found.append(f"{path.rpartition('/')[2]}:{rest.replace(', in ', ' in ', 1)}")
    return found[-FRAMES_MAX:]


_FAILURES: Final = {
    "retry": "transient",
    "dead-letter": None,  # its own reason names it
    "quarantine": "quarantine",
    "conflict": "conflict",
    "malformed": "malformed",
    "untrusted": "untrusted",
    "no-job": "no-job",
    "group-stopped": "group-stopped",
    "dependency-down": "dependency-down",
    "unknown": "unknown",
    "held": "unknown",
    "overrun": "unknown",
    "lease-lost": "lease-lost",
    "completion-failed": "completion-failed",
}


def failure_class(event: Event) -> str | None:
    """The kind of failure that an event reports; None if it reports none."""
    if event.name not in _FAILURES:
        return None
    reason = event.detail.get("reason")
    return _FAILURES[event.name] or (str(reason) if reason is not None else "permanent")
