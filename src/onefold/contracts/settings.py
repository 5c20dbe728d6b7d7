"""The settings of a queue: the one value of the operator's verbs (`admin.py`) that declaring and working need, too.

Ranges are SQS's and are checked in `rules.py`.
Never here: how a backend keeps them. Invariant: equal settings make equal queues.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from onefold import limits


class QueueSettings(Struct, frozen=True, kw_only=True, gc=False):
    """The attributes of a queue, in SQS's ranges (see `onefold.limits`).

    Args:
        name: 1-80 of A-Z a-z 0-9 - _; a FIFO queue's name ends in `.fifo`.
        fifo: message groups in order, deduplication.
        visibility_ms: 0 to 12 h.
        retention_ms: 60 s to 14 days.
        delay_ms: 0 to 15 min.
        message_bytes_max: 1,024 to 1,048,576.
        dead_letter: name of the dead-letter queue; same type.
        receives_max: 1 to 1,000; the receive after that many moves the message. Required with dead_letter.
        held: name of the queue for unknown outcomes; same type.
        content_dedup: FIFO: derive the deduplication id from the SHA-256 of the body.
        dedup_scope: FIFO: `queue` or `messageGroup`.
        in_flight_max: SQS: 120,000.
        redrive_allow: `allowAll`, `denyAll`, or `byQueue` with `redrive_sources`.
    """

    name: str
    fifo: bool = False
    visibility_ms: int = limits.VISIBILITY_MS_DEFAULT
    retention_ms: int = limits.RETENTION_MS_DEFAULT
    delay_ms: int = 0
    message_bytes_max: int = limits.MESSAGE_BYTES_MAX
    dead_letter: str | None = None
    receives_max: int | None = None
    held: str | None = None
    content_dedup: bool = False
    dedup_scope: Literal["queue", "messageGroup"] = "queue"
    in_flight_max: int = limits.IN_FLIGHT_MAX
    redrive_allow: Literal["allowAll", "denyAll", "byQueue"] = "allowAll"
    redrive_sources: tuple[str, ...] = ()
