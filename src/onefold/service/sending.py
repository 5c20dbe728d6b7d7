"""Messages from an app into its queues: all of one call are accepted, or none.

Never here: how a payload becomes a message (run/handlers.py). Invariant: when `send_all` returns, each receipt that is no
duplicate names a message that survives a crash of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from contextlib import suppress
from typing import cast

from onefold import errors
from onefold.contracts.ledger import History
from onefold.contracts.queue import Refused
from onefold.contracts.rules import check_entry
from onefold.contracts.store import Ask, Claimed, Hold, Release
from onefold.run.events import Event, kept
from onefold.run.handlers import Outgoing, Receipt
from onefold.service.wiring import Runtime

_RESERVE_LEASE_MS = 1_000  # a sender that dies before it sends blocks its key so long; a quicker worker waits for it
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
    if any(one.unique for one in outgoing):  # a key is known together with its message, or not at all
        (answer,) = runtime.engine.together([lambda: _send(runtime, outgoing)])
        if isinstance(answer, BaseException):
            raise answer
        receipts = cast(list[Receipt], answer)
    else:
        receipts = _send(runtime, outgoing)
    if any(receipt.message_id is not None for receipt in receipts):
        runtime.engine.notify()
    if kept("sent", history):
        runtime.backend.ledger.append(
            [
                Event(
                    at_ms=runtime.clock.now_ms(), name="sent", key=one.record, queue=one.queue, actor=runtime.owner,
                    message_id=receipt.message_id, detail={"duplicate": True} if receipt.duplicate else {},
                ).row()
                for one, receipt in zip(outgoing, receipts, strict=True)
            ]
        )  # fmt: skip
    return receipts


def _send(runtime: Runtime, outgoing: Sequence[Outgoing]) -> list[Receipt]:
    """Reserve what is `unique`, then send; what was reserved and could not be sent is free again."""
    known: set[int] = set()
    holds: list[Hold] = []
    try:
        for place, one in enumerate(outgoing):
            if one.unique:
                hold = _reserve(runtime, one)
                if hold is None:
                    known.add(place)
                else:
                    holds.append(hold)
        receipts = _deliver(runtime, outgoing, known)
    except BaseException:
        with suppress(errors.OnefoldError):  # then they are free when their leases end
            _release(runtime, holds, 0)
        raise
    with suppress(errors.TransientError):  # then a worker claims them when their leases end
        _release(runtime, holds, _RESERVED_MS)
    return receipts


def _deliver(runtime: Runtime, outgoing: Sequence[Outgoing], known: Container[int]) -> list[Receipt]:
    """Put into their queues all but those whose keys are known; the receipts of all, in order."""
    receipts: dict[int, Receipt] = {}
    by_queue: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(outgoing):
        if place in known:
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
    return [receipts[place] for place in range(len(outgoing))]


def _refused(one: Outgoing, refused: Refused) -> errors.PayloadError:
    return errors.PayloadError(
        f"Queue {one.queue} does not take the message of {one.record.job} {one.record.key!r}: {refused.message}",
        meaning=f"Code {refused.code}. Nothing was sent.",
        todo="Mend the payload and send it again.",
    )


def _reserve(runtime: Runtime, one: Outgoing) -> Hold | None:
    """Make the record of a key that was never sent, held until its message is in its queue; None: the key is known."""
    store, now_ms = runtime.engine.store, runtime.clock.now_ms()
    standing = store.read([one.record], now_ms)[0]
    if standing is not None and not (standing.status == "in_progress" and standing.lease_until_ms <= now_ms):
        return None
    ask = Ask(
        key=one.record,
        fingerprint=one.fingerprint,
        owner=runtime.owner,
        lease_until_ms=now_ms + _RESERVE_LEASE_MS,
        start=False,
        expires_at_ms=now_ms + _RESERVED_MS,
    )
    found = store.claim([ask], now_ms)[0]
    return found.hold if isinstance(found, Claimed) and not found.doubt else None


def _release(runtime: Runtime, holds: Sequence[Hold], keep_ms: int) -> None:
    """Let the worker claim what was reserved; with `keep_ms` 0 the keys were never known."""
    if holds:
        now_ms = runtime.clock.now_ms()
        runtime.engine.store.write([(hold, Release(expires_at_ms=now_ms + keep_ms)) for hold in holds], now_ms)
