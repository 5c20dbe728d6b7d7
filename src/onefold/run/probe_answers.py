"""What a job's probe may answer: whether the effect of an earlier run happened.

A probe is a function of the app's own (`on_unknown=`), asked about a run in doubt (`probing.py`); what it answers is written
with these, and becomes a value of the script here. Loaded by apps that have probes.
Never here: asking, what the answer decides (`decide/probing.py`).
Invariant: anything else than these is refused, never guessed at.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from onefold import errors, redact
from onefold.codec import PayloadCodec
from onefold.decide.probing import ProbeAnswer


class Done(Struct, frozen=True):
    """A probe's answer: the effect happened.

    Args:
        result: what the handler would have returned; it answers duplicates from now on.
    """

    result: Any = None


class NotDone(Struct, frozen=True):
    """A probe's answer: the effect did not happen and will not happen any more from the earlier run."""


class StillUnknown(Struct, frozen=True):
    """A probe's answer: it cannot tell; a person must.

    Args:
        why: one line for that person.
    """

    why: str = ""


Found = Done | NotDone | StillUnknown


def answer_of(found: object, job: str, payload: PayloadCodec[Any]) -> ProbeAnswer:
    """What a probe returned, as a value of the script. Arguments and errors as `Job.probe_answer`."""
    match found:
        case Done():
            return ProbeAnswer(verdict="done", result=payload.encode_result(found.result))
        case NotDone():
            return ProbeAnswer(verdict="not-done")
        case StillUnknown():
            return ProbeAnswer(verdict="unknown", summary=redact.printable(redact.masked(found.why[:8_192]))[:500])
        case _:
            raise errors.UsageError(
                f"The probe of {job} returned {type(found).__name__}.",
                meaning="Whether the effect happened stays unknown.",
                todo="Return onefold.Done(result), onefold.NotDone() or onefold.StillUnknown(why).",
            )
