"""`LogSink`: events as structured log lines, for whoever collects the standard library's logging.

One event is one line: JSON with stable field names, or plain words. A line names the message, key, group, receive count,
kind of failure and reason; an event never holds a payload, so a log line cannot either. This module is loaded when a sink is
made: a program that logs nothing does not pay for `logging`.
Never here: metrics, alarms, formatting for a terminal. Invariant: the line's level is the event's severity in
`runtime/events.py`; `completion-failed` is CRITICAL whatever the level of the others.
"""

from __future__ import annotations

import logging
from typing import Final, Literal, TextIO

import msgspec

from onefold import redact
from onefold.contracts.queue import text_at
from onefold.errors import UsageError
from onefold.observe import wording
from onefold.runtime.events import EVENTS, Event, Severity

Form = Literal["json", "plain"]

_LEVELS: Final[dict[Severity, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_encode = msgspec.json.Encoder().encode


class LogSink:
    """Writes each event as one line to a standard logger.

    Args:
        logger: where lines go; unless given, the logger `onefold`, which gets a handler on `stream` if nobody gave the
            program's logging one.
        form: `json`, or `plain` for people.
        level: the least severe event that is written; the logger's own level applies too.
        stream: for the handler made here; standard error unless given.

    Raises:
        UsageError: an unknown form or level.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        form: Form = "json",
        level: Severity = "info",
        stream: TextIO | None = None,
    ) -> None:
        if form not in ("json", "plain"):
            raise UsageError(f"form={form!r} is not known.", todo="It is json or plain.")
        if level not in _LEVELS:
            raise UsageError(f"level={level!r} is not known.", todo=f"It is one of {', '.join(_LEVELS)}.")
        self._logger = logger if logger is not None else _own_logger(_LEVELS[level], stream)
        self._level = _LEVELS[level]
        self._say = json_line if form == "json" else plain_line

    def emit(self, event: Event) -> None:
        """Write one event."""
        level = _LEVELS[event.severity]
        if level >= self._level and self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", self._say(event))


def _own_logger(level: int, stream: TextIO | None) -> logging.Logger:
    logger = logging.getLogger("onefold")
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if stream is None and logger.hasHandlers():
        return logger
    theirs = [one.stream for one in logger.handlers if isinstance(one, logging.StreamHandler)]
    if stream is None or stream not in theirs:  # one line is written once, however many sinks there are
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        logger.propagate = False
    return logger


def json_line(event: Event) -> str:
    """The event as one JSON object.

    Fields, each only where there is something to say: at, severity, event, text, job, key, tenant, queue, message_id, group,
    receive_count, run, actor, failure_kind, and the numbers that decided under their own names (attempt, of, delay_ms,
    reason, error, summary ...).
    """
    fields: dict[str, str | int | bool | None] = {
        "at": wording.instant(event.at_ms),
        "severity": event.severity,
        "event": event.name,
        "text": EVENTS[event.name].text,
    }
    if event.key is not None:
        fields |= {"job": event.key.job, "key": event.key.key, "tenant": event.key.scope or None}
    fields |= {
        "queue": event.queue,
        "message_id": event.message_id,
        "group": event.group,
        "receive_count": event.receive_count,
        "run": event.run,
        "actor": event.actor,
        "failure_kind": failure_kind(event),
    }
    fields |= {name: value for name, value in event.detail.items() if name not in fields}
    return redact.printable_json(_encode({name: value for name, value in fields.items() if value is not None}).decode())


def plain_line(event: Event) -> str:
    """The event in words: time, severity, name, operation, then the numbers that decided."""
    parts = [wording.instant(event.at_ms), event.severity.upper(), event.name]
    if event.key is not None:
        parts.append(wording.operation(event.key))
    if event.queue is not None:
        parts.append(f"on {event.queue}")
    if event.message_id is not None:
        parts.append(f"message {event.message_id}")
    if event.run is not None:
        parts.append(f"run {event.run}")
    detail = event.detail
    trace = str(detail.get("trace") or "")
    lines = trace[text_at(trace) :].split("\n")
    if len(lines) > 1 and detail.get("summary"):  # all that the exception says
        text = " | ".join([lines[0].removeprefix(f"{detail.get('error')}: "), *(one.strip() for one in lines[1:])])
        detail = {**detail, "summary": text}
    said = ", ".join(  # the frames are many lines; `where` is the one that says most
        f"{name}={value}" for name, value in detail.items() if value is not None and name != "trace"
    )
    return wording.one_line(" ".join(parts) + (f": {said}" if said else ""), 1_000)


_FAILURES: Final = {
    "retry": "transient",
    "dead-letter": None,  # its own reason says which
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


def failure_kind(event: Event) -> str | None:
    """The kind of failure that an event reports; None when it reports none."""
    if event.name not in _FAILURES:
        return None
    reason = event.detail.get("reason")
    return _FAILURES[event.name] or (str(reason) if reason is not None else "permanent")
