"""The values of the Queue contract, whose methods are in `verbs.py`: received messages, and how they are settled.

A `Queue` is one queue of one backend. Queues take durations (a queue's server owns its clock), never instants, except
`Entry.run_at_ms`, which is the user's own instant. What is sent is in `entries.py`; what an operator does (create, peek,
move, purge) in `admin.py`.

Never here: policy (when to retry, what is poison), storage, or a type that only one backend uses.
Invariant: a message that `send` accepted stays until it is deleted, dead-lettered, purged, or its retention ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

JOB_ATTRIBUTE: Final = "onefold.job"  # names the job; absent on messages that onefold did not send
# Names the tick, dispatch or map run that a message belongs to; see runner/runs.py.
RUN_ATTRIBUTE: Final = "onefold.run"
# Names the app whose job it is; absent on messages from older versions and from other programs.
APP_ATTRIBUTE: Final = "onefold.app"
KEY_ATTRIBUTE: Final = "onefold.key"  # only where the sender gave the key explicitly
AMENDS_ATTRIBUTE: Final = "onefold.amends"  # fingerprint of the payload that an operator replaced
TRACE_ATTRIBUTE: Final = "onefold.trace"  # the span that sent it: W3C's traceparent, and tracestate behind a space
VERSION_ATTRIBUTE: Final = "onefold.version"  # of the payload; absent for version 1
PAYLOAD_VERSIONS_MAX: Final = 1_000
CLAIMS: Final = (KEY_ATTRIBUTE, RUN_ATTRIBUTE, AMENDS_ATTRIBUTE)
"""Attributes that override what the body says. They count only on a message that is `trusted` (docs/security.md)."""


class Attribute(Struct, frozen=True, gc=False):
    """One user attribute of a message (SQS MessageAttributeValue).

    Args:
        value: the text of a String or Number, the bytes of a Binary. Never empty.
        type: `String`, `Number` or `Binary`, with an optional `.label`.
    """

    value: str | bytes
    type: str = "String"


class Delivery(Struct, frozen=True, kw_only=True, gc=False):
    """One receive of one message.

    Args:
        queue: the name of the queue it was received from.
        message_id: the message's stable id.
        receipt: identifies this receive; new for every receive.
        body, attributes, group, dedup_id, sequence, key, trace: as sent.
        receive_count: receives so far, this one included; carried across the move to a dead-letter queue.
        sent_at_ms, first_received_at_ms: the queue's own clock; a message with a `run_at` counts as sent at that
            instant.
        accepted_at_ms: when it was sent, where that is not `sent_at_ms`; 0 otherwise.
        visible_ms: how long this receive hides the message, counted from the receive.
        received_at_ms: when this receive happened, the queue's own clock.
        source: name of the queue a dead letter came from; None otherwise.
        reason: why it was dead-lettered or held, when onefold moved it.
        trusted: onefold in the same app wrote its attributes, as far as the queue can tell; otherwise they are not trusted.
        received_in: the span that received it, while tracing is on.
    """

    queue: str
    message_id: str
    receipt: str
    body: str
    attributes: Mapping[str, Attribute]
    receive_count: int
    sent_at_ms: int
    first_received_at_ms: int
    received_at_ms: int
    visible_ms: int
    group: str | None = None
    dedup_id: str | None = None
    sequence: str | None = None
    key: str | None = None
    trace: str | None = None
    source: str | None = None
    reason: Reason | None = None
    trusted: bool = True
    accepted_at_ms: int = 0
    received_in: str | None = None


REASONS: Final = (
    "permanent", "attempts", "conflict", "malformed", "quarantine", "unknown", "group-stopped", "operator", "receives",
    "untrusted", "no-job", "mapping",
)  # fmt: skip
"""The kinds of `Reason`."""


class Reason(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Why a message was moved to a dead-letter or held queue. It is stored with the message and never holds the payload.

    Args:
        kind: `permanent`, `attempts`, `conflict`, `malformed`, `quarantine`, `unknown`, `group-stopped`, `operator`,
            `receives` (the queue's own maximum receive count), `untrusted` (its attributes claim what only onefold may say)
            or `no-job` (no job is declared for it on its queue).
        error: class name of the exception, where there was one.
        summary: one line for a person; at most 500 characters.
        job, key: which operation.
        attempts, crashes: runs since the count was last reset, and how many of them ended with their worker.
        first_at_ms, last_at_ms: first and last time this operation was tried; if the queue moved it after this many
            receives, last is when it did.
        owner: the team that is responsible for fixes, from the job's declaration.
        trace: where the last run's exception was raised, frames without locals; at most 4,000 characters, on SQS 1,000.
    """

    kind: str
    summary: str
    error: str | None = None
    job: str | None = None
    key: str | None = None
    attempts: int = 0
    crashes: int = 0
    first_at_ms: int | None = None
    last_at_ms: int | None = None
    owner: str | None = None
    trace: str | None = None


def reason_of(stored: bytes | str) -> Reason | None:
    """A reason from its JSON, without the fields that cannot be read; None if not even its kind and summary can.

    One dead letter that another program or version wrote must not make all others unreadable.
    """
    try:
        try:
            return msgspec.json.decode(stored, type=Reason)
        except msgspec.ValidationError:
            found = msgspec.json.decode(stored)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    readable: dict[str, Any] = {}
    for field in msgspec.structs.fields(Reason) if isinstance(found, dict) else ():
        try:
            readable[field.name] = msgspec.convert(found[field.name], field.type)
        except (KeyError, msgspec.ValidationError):
            continue
    return Reason(**readable) if {"kind", "summary"} <= readable.keys() else None


def text_at(trace: str) -> int:
    """The position in the text of a trace where the last exception's own text begins: after its last frame."""
    start = trace.rfind("\n  File ")
    return 0 if start < 0 else trace.find("\n", start + 1) + 1 or len(trace)


class Ack(Struct, frozen=True, gc=False, tag=True):
    """Settle by deleting the message."""


class RetryIn(Struct, frozen=True, gc=False, tag=True):
    """Settle by hiding the message for a while.

    Args:
        delay_ms: 0 to 43,200,000, counted from now. 0: visible at once.
        uncounted: do not count this receive (capability `uncounted`), because waiting is not an attempt.
    """

    delay_ms: int
    uncounted: bool = False


class MoveTo(Struct, frozen=True, gc=False, tag=True):
    """Settle by moving the message, with a reason, to another queue where people handle it.

    Args:
        to: `dead-letter`, or `held` for the queue of unknown outcomes.
        reason: stored with the message.
    """

    to: Literal["dead-letter", "held"]
    reason: Reason


class Leave(Struct, frozen=True, gc=False, tag=True):
    """Settle nothing: another process owns the message's run."""


Settle = Ack | RetryIn | MoveTo | Leave


class Depth(Struct, frozen=True, kw_only=True, gc=False):
    """How many messages a queue holds. Approximate on SQS, exact on the embedded queue.

    Args:
        visible: ready to be received.
        in_flight: received, not deleted, and its visibility timeout has not ended.
        delayed: hidden by a delay, or waiting for their `run_at`.
        oldest_age_ms: age of the oldest message that is not delayed; None when there is none.
        to_retry: how many of those in flight were given back and are only hidden until their next try; None: not known,
            as on SQS.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_age_ms: int | None = None
    to_retry: int | None = None


class QueueCapabilities(Struct, frozen=True, kw_only=True, gc=False):
    """What a queue backend can do beyond the contract's minimum. The contract suite skips by these, never by name.

    Args:
        fifo: message groups in order.
        uncounted: can hide a message without the receive having counted.
        run_at: can hold a message until any later instant.
        atomic_move: moves to the dead-letter queue in one step.
        waits: a receive costs money and time, so it waits for messages on the server; such a queue is a `WaitingQueue`.
        inspectable: can report the state of a receipt, when the next message becomes visible, the oldest age, what was
            dead-lettered, and whether a send was a duplicate; can be read without receiving.
        in_flight_max: the cap of messages in flight can be set.
        finest_ms: delays and visibilities are kept in steps of this, rounded up.
    """

    fifo: bool
    uncounted: bool
    run_at: bool
    atomic_move: bool
    waits: bool = False
    inspectable: bool = True
    in_flight_max: bool = True
    finest_ms: int = 1
