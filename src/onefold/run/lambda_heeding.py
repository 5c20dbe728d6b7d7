"""Whether a mapping heeds the answers of a Lambda handler: without ReportBatchItemFailures it deletes what is named, too.

That is looked for once in each container: a message that was named and hidden for a retry must still be there at the next
invocation. Where it is not, it is moved to the dead-letter queue from memory, and its queue is known to be one whose
answers are ignored. Loaded when a message first stays.
Never here: what becomes of a delivery, the answer itself. Invariant: a queue is ignored only when a message was seen to be
gone that nobody else could have taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from onefold import errors
from onefold.contracts.queue import Bury, Delivery, Reason, RetryIn
from onefold.run.lambda_crew import Crew

_LOOK_LEAST_MS: Final = 2_000  # a retry that is due sooner says nothing: the message may be with another consumer
_LOOK_AFTER_MS: Final = 1_000  # Lambda deletes soon after the answer, not at once
_LOOK_MAX: Final = 10  # of a queue; one call
_LOST: Final = Bury(
    "dead-letter",
    Reason(
        kind="mapping",
        summary="Its mapping deleted it although the handler had named it as failed: ReportBatchItemFailures is not set, or"
        " something around the handler changes its answer.",
    ),
)


class Named(Struct, frozen=True):
    """A message that was named in an answer, when, and until when it was hidden (monotonic)."""

    delivery: Delivery
    named_at_ms: int
    until_ms: int


class Heeding:
    """What was named in this container's answers, and what is known of the mappings of its queues."""

    def __init__(self) -> None:
        self._named: dict[str, list[Named]] = {}  # by queue
        self._heeds: dict[str, bool] = {}  # whether a queue's mapping is known to keep what is named

    def ignored(self, queues: Sequence[str]) -> list[str]:
        """Those of the queues whose mapping is known to delete what is named."""
        return sorted({queue for queue in queues if self._heeds.get(queue) is False})

    def remember(self, crew: Crew, staying: Sequence[Delivery], now_ms: int) -> None:
        """These are named in the answer that is given now."""
        for one in staying:
            named = self._named.setdefault(one.queue, [])
            until_ms = crew.answered.hidden_until_ms(one.receipt)
            if one.queue not in self._heeds and until_ms is not None and len(named) < _LOOK_MAX:
                named.append(Named(one, now_ms, until_ms))

    def look(self, crew: Crew, now_ms: int) -> None:
        """Look whether messages that were named are still there; `now_ms`: monotonic."""
        for name, all_named in list(self._named.items()):
            named = [one for one in all_named if one.until_ms - now_ms >= _LOOK_LEAST_MS]
            self._named[name] = named
            if not named or now_ms - named[-1].named_at_ms < _LOOK_AFTER_MS:
                continue
            del self._named[name]
            queue = crew.real_queue(name)
            again = [(one.delivery.receipt, RetryIn(one.until_ms - now_ms)) for one in named]
            try:
                there = queue.set_visible_in(again)
                gone = [one.delivery for one, ok in zip(named, there, strict=True) if not ok]
                self._heeds[name] = not gone
                if gone:
                    crew.driver.finisher.announce("answer-ignored", {"queue": name, "messages": len(gone)})
                    queue.bury([(one.receipt, _LOST) for one in gone])
            except errors.OnefoldError as error:
                crew.tell_trouble(name, len(named), error)
