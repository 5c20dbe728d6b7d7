"""How an invocation can end: an answer, or one of the ways there is none; and how Lambda words each.

Values only: who invoked decides what an outcome means for the messages.
Never here: running anything. Invariant: an invocation has exactly one outcome, and only `Answered` and `FunctionError` say
that the handler came to its end.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from onefold.local.settings import ANSWER_BYTES_MAX

Stream = Literal["stdout", "stderr", "platform"]


class LogLine(Struct, frozen=True, gc=False):
    """One line of a function's log.

    Args:
        function: its name. request_id: of the invocation it belongs to.
        stream: what the handler wrote, or `platform`: what Lambda writes around it.
        text: without its line end; at most 256 KiB, a longer line comes in parts.
    """

    function: str
    request_id: str
    stream: Stream
    text: str


class Answered(Struct, frozen=True, tag=True):
    """The handler returned.

    Args:
        payload: what it returned as JSON; NaN is written as NaN, which is none.
    """

    payload: bytes


class FunctionError(Struct, frozen=True, tag=True):
    """The handler raised, could not be imported, or returned what is not JSON.

    Args:
        kind: name of the exception's class, or one of Lambda's such as `Runtime.ImportModuleError`.
        message: the exception's text.
        trace: its frames, without ours.
    """

    kind: str
    message: str
    trace: tuple[str, ...] = ()


class TimedOut(Struct, frozen=True, tag=True):
    """It was killed at its deadline.

    Args:
        timeout_ms: how long it had.
    """

    timeout_ms: int


class Crashed(Struct, frozen=True, tag=True):
    """Its process ended in the middle.

    Args:
        reason: as Lambda has it: `exit status 1`, `signal: killed`; empty for exit status 0.
        detail: what is known beside, in one sentence for a person.
    """

    reason: str
    detail: str = ""


class TooLarge(Struct, frozen=True, tag=True):
    """What the handler returned is longer than an answer may be.

    Args:
        bytes_count: how long it was.
    """

    bytes_count: int


class Throttled(Struct, frozen=True, tag=True):
    """It was not invoked: as many invocations as may be were running.

    Args:
        limit: how many that is.
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
    """The JSON that Lambda gives to the caller of Invoke in place of an answer; None for an answer."""
    if isinstance(outcome, Answered):
        return None
    told: dict[str, Any] = {"errorType": kind_of(outcome), "errorMessage": message_of(outcome)}
    if isinstance(outcome, TimedOut | Crashed):
        told["errorMessage"] = f"RequestId: {request_id} Error: {told['errorMessage']}"
    if isinstance(outcome, FunctionError):
        told |= {"requestId": request_id, "stackTrace": list(outcome.trace)}
    return msgspec.json.encode(told)


def summary(outcome: Outcome) -> str:
    """One line for the history: how it ended, without what the handler returned or said."""
    if isinstance(outcome, Answered):
        return "returned"
    if isinstance(outcome, FunctionError):
        return f"raised {outcome.kind}"
    if isinstance(outcome, Throttled):
        return f"throttled: {outcome.limit} invocations were running"
    text = message_of(outcome)
    detail = outcome.detail if isinstance(outcome, Crashed) else ""
    return f"{text[:1].lower()}{text[1:]}" + (f" ({detail})" if detail else "")
