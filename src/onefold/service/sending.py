"""Messages from an app into its queues: all of one call are accepted, or none.

Never here: how a payload becomes a message (run/handlers.py). Invariant: when `send_all` returns, each receipt that is no
duplicate names a message that survives a crash of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from onefold import errors
from onefold.contracts.ledger import History
from onefold.contracts.queue import Refused
from onefold.contracts.rules import check_entry
from onefold.contracts.store import Ask, Claimed, Release
from onefold.run.events import Event, kept
from onefold.run.handlers import Outgoing, Receipt
from onefold.service.wiring import Runtime

_RESERVE_LEASE_MS = 5_000  # a sender that dies between reserving a key and sending blocks it for this long
_RESERVED_MS = 90 * 24 * 3_600_000


def send_all(runtime: Runtime, outgoing: Sequence[Outgoing], history: History) -> list[Receipt]:
    """Send messages to their queues, in order.

    Raises:
        PayloadError: a queue would not take one of them (size, characters, group); none was sent.
    """
    for one in outgoing:
        refused = check_entry(one.entry, runtime.settings[one.queue])
        if refused is not None:
            raise _refused(one, refused)
    receipts: list[Receipt | None] = [None] * len(outgoing)
    by_queue: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(outgoing):
        if one.unique and not _reserve(runtime, one):
            receipts[place] = Receipt(job=one.record.job, key=one.record.key, message_id=None, duplicate=True)
        else:
            by_queue[one.queue].append(place)
    for name, places in by_queue.items():
        answers = runtime.engine.queues.open(name).send([outgoing[place].entry for place in places])
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, Refused):  # the engine's queue has other settings than the app declares
                raise _refused(outgoing[place], answer)
            record = outgoing[place].record
            receipts[place] = Receipt(
                job=record.job, key=record.key, message_id=answer.message_id, duplicate=answer.duplicate
            )
    if by_queue:
        runtime.engine.notify()
    if kept("sent", history):
        runtime.backend.ledger.append(
            [
                Event(
                    at_ms=runtime.clock.now_ms(), name="sent", key=one.record, queue=one.queue, actor=runtime.owner,
                    message_id=receipt.message_id, detail={"duplicate": True} if receipt.duplicate else {},
                ).row()
                for one, receipt in zip(outgoing, receipts, strict=True)
                if receipt is not None
            ]
        )  # fmt: skip
    return [receipt for receipt in receipts if receipt is not None]


def _refused(one: Outgoing, refused: Refused) -> errors.PayloadError:
    return errors.PayloadError(
        f"Queue {one.queue} does not take the message of {one.record.job} {one.record.key!r}: {refused.message}",
        meaning=f"Code {refused.code}. Nothing was sent.",
        todo="Mend the payload and send it again.",
    )


def _reserve(runtime: Runtime, one: Outgoing) -> bool:
    """Whether this key was never sent: its record is made now, and released for the worker to claim."""
    store, now_ms = runtime.engine.store, runtime.clock.now_ms()
    standing = store.read([one.record], now_ms)[0]
    if standing is not None and not (standing.status == "in_progress" and standing.lease_until_ms <= now_ms):
        return False
    ask = Ask(
        key=one.record,
        fingerprint=one.fingerprint,
        owner=runtime.owner,
        lease_until_ms=now_ms + _RESERVE_LEASE_MS,
        start=False,
        expires_at_ms=now_ms + _RESERVED_MS,
    )
    found = store.claim([ask], now_ms)[0]
    if not isinstance(found, Claimed) or found.doubt:
        return False
    return store.write([(found.hold, Release(expires_at_ms=now_ms + _RESERVED_MS))], now_ms)[0]
