"""How an invocation can end: with an answer or a failure, and Lambda's text for each.

The caller of an invocation decides what its outcome means for the messages. Also here: the lines of a function's log, and
`LogOutput`, which writes them to a descriptor whose reader may be slow, stop reading, or close it. If a program starts
a server and never reads its standard error, the pipe fills, and a write that waited for the reader would block the
loop: no request would be answered, no timeout enforced, no signal handled. So a line waits a moment for its reader and
is then dropped; the number of dropped lines is written once the reader reads again. After the reader has closed the
pipe, nothing more is written, and the server keeps running.

Never here: running anything, how a line looks (`cli/commands`). Invariants: an invocation has exactly one outcome, and only
`Answered` and `FunctionError` mean that the handler itself ended; a write waits at most the patience for each
`PIPE_BUF` bytes of its line, and not at all after the reader has stopped reading.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from onefold.local.settings import ANSWER_BYTES_MAX

Stream = Literal["stdout", "stderr", "platform"]


class LogLine(Struct, frozen=True, gc=False):
    """One line of a function's log.

    Args:
        function: the function's name. request_id: that of the line's invocation.
        stream: the handler's stream, or `platform` for what Lambda writes around it.
        text: without the line end; at most 256 KiB, a longer line comes in parts.
    """

    function: str
    request_id: str
    stream: Stream
    text: str


class Answered(Struct, frozen=True, tag=True):
    """The handler returned.

    Args:
        payload: what it returned, as JSON, except that NaN is written as NaN.
    """

    payload: bytes


class FunctionError(Struct, frozen=True, tag=True):
    """The handler raised, could not be imported, or returned something that is not JSON.

    Args:
        kind: the name of the exception's class, or one of Lambda's such as `Runtime.ImportModuleError`.
        message: the exception's text.
        trace: its frames, without those of onefold.
    """

    kind: str
    message: str
    trace: tuple[str, ...] = ()


class TimedOut(Struct, frozen=True, tag=True):
    """The container was killed at the deadline.

    Args:
        timeout_ms: the function's timeout.
    """

    timeout_ms: int


class Crashed(Struct, frozen=True, tag=True):
    """The process ended during the invocation.

    Args:
        reason: in Lambda's words: `exit status 1`, `signal: killed`; empty for exit status 0.
        detail: more information for a person, in one sentence.
    """

    reason: str
    detail: str = ""


class TooLarge(Struct, frozen=True, tag=True):
    """The handler's return value is longer than an answer may be.

    Args:
        bytes_count: its length.
    """

    bytes_count: int


class Throttled(Struct, frozen=True, tag=True):
    """The function was not invoked, because the maximum number of invocations was running.

    Args:
        limit: that maximum.
    """

    limit: int


Outcome = Answered | FunctionError | TimedOut | Crashed | TooLarge | Throttled


def kind_of(outcome: Outcome) -> str:
    """Lambda's name of the error (`errorType`); empty for an answer."""
    match outcome:
        case Answered():
            return ""
        case FunctionError():
            return outcome.kind
        case TimedOut():
            return "Sandbox.Timedout"
        case Crashed():
            return "Runtime.ExitError"
        case TooLarge():
            return "Function.ResponseSizeTooLarge"
        case Throttled():
            return "TooManyRequestsException"


def message_of(outcome: Outcome) -> str:
    """Lambda's text of the error (`errorMessage`), without the request id; empty for an answer."""
    match outcome:
        case Answered():
            return ""
        case FunctionError():
            return outcome.message
        case TimedOut():
            return f"Task timed out after {outcome.timeout_ms / 1000:.2f} seconds"
        case Crashed():
            if not outcome.reason:
                return "Runtime exited without providing a reason"
            return f"Runtime exited with error: {outcome.reason}"
        case TooLarge():
            return f"Response payload size exceeded maximum allowed payload size ({ANSWER_BYTES_MAX} bytes)."
        case Throttled():
            return "Rate Exceeded."


def error_payload(outcome: Outcome, request_id: str) -> bytes | None:
    """The JSON that Lambda returns to the caller of Invoke instead of an answer; None for an answer."""
    if isinstance(outcome, Answered):
        return None
    answer: dict[str, Any] = {"errorType": kind_of(outcome), "errorMessage": message_of(outcome)}
    if isinstance(outcome, TimedOut | Crashed):
        answer["errorMessage"] = f"RequestId: {request_id} Error: {answer['errorMessage']}"
    if isinstance(outcome, FunctionError):
        answer |= {"requestId": request_id, "stackTrace": list(outcome.trace)}
    return msgspec.json.encode(answer)


def summary(outcome: Outcome) -> str:
    """One line for the history: how the invocation ended, without any text from the handler."""
    if isinstance(outcome, Answered):
        return "returned"
    if isinstance(outcome, FunctionError):
        return f"raised {outcome.kind}"
    if isinstance(outcome, Throttled):
        return f"throttled: {outcome.limit} invocations were running"
    text = message_of(outcome)
    detail = outcome.detail if isinstance(outcome, Crashed) else ""
    return f"{text[:1].lower()}{text[1:]}" + (f" ({detail})" if detail else "")


PATIENCE_MS: Final = 200  # a terminal, `tee` and a log shipper read a full pipe in far less


class LogOutput:
    """Lines to one descriptor.

    Args:
        descriptor: a pipe, a file or a terminal; it is never closed here.
        patience_ms: how long a line waits for a reader that has read the previous line.
    """

    def __init__(self, descriptor: int, *, patience_ms: int = PATIENCE_MS) -> None:
        self._fd = descriptor
        self._writable = select.poll()
        self._writable.register(descriptor, select.POLLOUT)
        self._patience_ms = patience_ms
        self._wait_ms = patience_ms
        self._dropped = 0
        self._is_gone = False

    def say(self, text: str) -> None:
        """Write one line, or drop it if the reader does not read."""
        if self._dropped:
            if not self._write(f"\n... {self._dropped} lines of the log were dropped: nobody read them\n"):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._write(f"{text}\n"):
            self._dropped += 1

    def _write(self, text: str) -> bool:
        """Write a text; False if it had to be dropped, True also if the reader has gone for good."""
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while left and not self._is_gone:
                if not self._writable.poll(self._wait_ms):
                    self._wait_ms = 0
                    return False
                left = left[os.write(self._fd, left[: select.PIPE_BUF]) :]
        except BlockingIOError:  # somebody made the descriptor non-blocking
            return False
        except OSError:  # the reader has left, as with `2>&1 | head`
            self._is_gone = True
        self._wait_ms = self._patience_ms
        return True


def is_terminal() -> bool:
    """Whether standard error is a terminal; False if it is closed."""
    try:
        return sys.stderr.isatty()
    except (ValueError, AttributeError):  # closed later, or before the start
        return False


def to_standard_error(otherwise: Callable[[str], None]) -> Callable[[str], None]:
    """A function that writes lines to standard error; `otherwise` if it has no descriptor, as in some tests."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):
        return otherwise
    return LogOutput(descriptor).say
