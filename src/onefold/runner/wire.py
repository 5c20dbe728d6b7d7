"""The messages between a worker and its child processes: length-prefixed MessagePack over a socket pair, never pickle.

    parent -> child   Hello, then one Order after another
    child -> parent   Ready or Broken, then for each Order OrderTaken and a Reply

Never here: processes, handlers. Invariant: a frame is read whole or not at all; a process that finds the other end closed
stops.
"""

from __future__ import annotations

import socket
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from onefold.contracts.queue import Attribute, Delivery, Reason
from onefold.contracts.store import Hold
from onefold.record.decisions import ProbeAnswer
from onefold.record.delivery import Outcome

T = TypeVar("T")

_LENGTH_BYTES = 4
_FRAME_BYTES_MAX = 64 * 1024 * 1024  # a queue's message has at most 1 MiB; results and outboxes may be larger


class Hello(Struct, frozen=True, kw_only=True):
    """The first message to a child: what it is to run.

    Args:
        target: the app, as `module:attribute`.
        path: the parent's import path.
        join: `module:function` to be called with `lock_file` before any handler runs (presence lock); None: no lock
            file.
    """

    target: str
    path: list[str]
    join: str | None = None
    lock_file: str | None = None


class Ready(Struct, frozen=True, tag=True):
    """The child has imported the app and waits for orders."""


class Broken(Struct, frozen=True, tag=True):
    """The child cannot run this app; `hook`: whether one of the app's start hooks raised."""

    why: str
    hook: bool = False


class Order(Struct, frozen=True, kw_only=True):
    """Call a handler, or a probe.

    Args:
        what: which of the two.
        job: the job's name. message: the fields of the delivery; the child reads the payload from it as the parent did.
        hold, attempt, attempts_max: those of the run.
        remaining_ms: the time left until the run's deadline. trace: the span of the run in the parent, while tracing is
            on.
    """

    what: Literal["call", "probe"]
    job: str
    message: dict[str, Any]
    hold: Hold
    attempt: int
    attempts_max: int
    remaining_ms: int
    trace: str | None = None


def fields_of(delivery: Delivery) -> dict[str, Any]:
    """The fields of a delivery, for an order."""
    return msgspec.structs.asdict(delivery)


def delivery_of(fields: dict[str, Any]) -> Delivery:
    """The delivery in an order. Converted by hand, because an attribute's value may be text or bytes."""
    attributes = {name: Attribute(one["value"], one["type"]) for name, one in fields["attributes"].items()}
    reason = msgspec.convert(fields["reason"], Reason | None)
    return Delivery(**(fields | {"attributes": attributes, "reason": reason}))


class OrderTaken(Struct, frozen=True, tag=True):
    """The child has read the order and is about to make the call; if it never sends this, it made none."""


class Reply(Struct, frozen=True, kw_only=True):
    """The reply to an order: the outcome of a call, or the answer of a probe."""

    outcome: Outcome | None = None
    answer: ProbeAnswer | None = None


def send(end: socket.socket, message: Struct) -> None:
    """Write one frame.

    Raises:
        OSError: the other end is gone.
    """
    body = msgspec.msgpack.encode(message)
    end.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


def receive(end: socket.socket, kind: Any) -> Any:
    """Read one frame as `kind`.

    Raises:
        EOFError: the other end is gone, or sent something else.
    """
    try:
        length = int.from_bytes(_exactly(end, _LENGTH_BYTES), "big")
        if length > _FRAME_BYTES_MAX:
            raise EOFError(f"a frame of {length} bytes")
        return msgspec.msgpack.decode(_exactly(end, length), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise EOFError(str(error)) from error


def _exactly(end: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = end.recv(count)
        if not part:
            raise EOFError("closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
