"""`LogSink`: events as structured log lines, written through the standard library's logging.

One event is one line: JSON with stable field names, plain words, or a short text with the fields as attributes for the
user's own formatter. This module is loaded when a sink is made: a program without logging does not load `logging`.
Never here: which fields there are (`log_fields.py`), metrics, alarms, formatting for a terminal. Invariant: the line's
level is the event's severity in `runtime/events.py`; `completion-failed` is always CRITICAL.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final, Literal, TextIO

from onefold.errors import UsageError
from onefold.observe import log_fields
from onefold.observe.log_fields import Keys
from onefold.runtime.events import EVENTS, Event, Severity

Form = Literal["json", "plain", "fields"]

_LEVELS: Final[dict[Severity, int]] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_ON_LAMBDA: Final = {"function": "AWS_LAMBDA_FUNCTION_NAME", "log_stream": "AWS_LAMBDA_LOG_STREAM_NAME"}


class LogSink:
    """Writes each event as one line to a standard logger.

    Args:
        logger: where lines go; unless given, the logger `onefold`, which gets a handler on `stream` if nothing gave the
            program's logging one.
        form: `json`; `plain` for people; or `fields`: a short text whose record has the fields as attributes, for your
            own formatter, or structlog's.
        level: the least severe event that is written; the logger's own level applies too.
        stream: for the handler made here; standard error unless given.
        keys: `hashed`: business keys, tenants and groups are replaced by a hash; `shown`: they are written in full. Unless
            given, the value of ONEFOLD_LOG_KEYS, otherwise `hashed`.

    Raises:
        UsageError: an unknown form, level or `keys`.
    """

    def __init__(
        self,
        logger: logging.Logger | None = None,
        *,
        form: Form = "json",
        level: Severity = "info",
        stream: TextIO | None = None,
        keys: Keys | None = None,
    ) -> None:
        if form not in ("json", "plain", "fields"):
            raise UsageError(f"form={form!r} is not known.", todo="It is json, plain or fields.")
        if level not in _LEVELS:
            raise UsageError(f"level={level!r} is not known.", todo=f"It is one of {', '.join(_LEVELS)}.")
        self._keys = log_fields.keys_from_environment() if keys is None else log_fields.checked_keys(keys)
        self._logger = logger if logger is not None else _own_logger(_LEVELS[level], stream)
        self._level = _LEVELS[level]
        self._form: Form = form
        self._apps: set[str] = set()
        self._base = {name: os.environ[said] for name, said in _ON_LAMBDA.items() if said in os.environ}

    def for_app(self, name: str) -> None:
        """Name this app in each line. A sink that serves several apps names none."""
        self._apps.add(name)
        self._base.pop("app", None)
        if len(self._apps) == 1:
            self._base["app"] = name

    def takes(self, name: str) -> bool:
        """Whether events of this name are written."""
        level = _LEVELS[EVENTS[name].severity]
        return level >= self._level and self._logger.isEnabledFor(level)

    def emit(self, event: Event) -> None:
        """Write one event."""
        self.emit_all((event,))

    def emit_all(self, events: Sequence[Event]) -> None:
        """Write several events, each as one line; where nothing else of logging sees these, in one write."""
        lines: list[str] = []
        own: _Lines | None = None
        try:
            for event in events:
                if not self.takes(event.name):
                    continue
                level = _LEVELS[event.severity]
                if level < self._level or not self._logger.isEnabledFor(level):
                    continue
                fields = log_fields.fields_of(event, self._base, self._keys)
                if self._form == "fields":
                    self._logger.log(level, "%s", log_fields.words(fields), extra=fields)
                    continue
                line = log_fields.json_line(fields) if self._form == "json" else log_fields.plain_line(fields)
                if (only := _only_handler(self._logger, level)) is not None:
                    own = only
                    lines.append(line)
                else:
                    self._logger.log(level, "%s", line)
        finally:
            if own is not None:
                own.write(lines)


def of_app(app: str, form: str | None) -> LogSink:
    """The log of a command, on standard error: `form` from its option, plain unless given."""
    made = LogSink(form="json" if form == "json" else "plain", stream=sys.stderr)
    made.for_app(app)
    return made


class _Lines(logging.StreamHandler[TextIO]):
    """The handler that is made here. `write` skips logging's record of a line, which costs as much as the line itself."""

    def __init__(self, stream: TextIO | None) -> None:
        super().__init__(stream)
        self.setFormatter(_MESSAGE_ALONE)

    def write(self, lines: Sequence[str]) -> None:
        """Write lines as `emit` would write records with these messages."""
        with self.lock or nullcontext():
            self.stream.write("".join(f"{line}{self.terminator}" for line in lines))
            self.flush()


_MESSAGE_ALONE: Final = logging.Formatter("%(message)s")


def _only_handler(logger: logging.Logger, level: int) -> _Lines | None:
    """The handler that is made here, if nothing else of logging would see a line of this level, or change it."""
    if logger.propagate or logger.filters or len(logger.handlers) != 1:
        return None
    handler = logger.handlers[0]
    if not isinstance(handler, _Lines) or handler.filters or level < handler.level:
        return None
    is_ours = handler.formatter is _MESSAGE_ALONE and logging.getLogRecordFactory() is logging.LogRecord
    return handler if is_ours else None


def _own_logger(level: int, stream: TextIO | None) -> logging.Logger:
    logger = logging.getLogger("onefold")
    if logger.level == logging.NOTSET:
        logger.setLevel(level)
    if stream is None and logger.hasHandlers():
        return logger
    theirs = [one.stream for one in logger.handlers if isinstance(one, logging.StreamHandler)]
    if stream is None or stream not in theirs:  # a line is written once, however many sinks there are
        logger.addHandler(_Lines(stream))
        logger.propagate = False
    return logger
