"""What the wire keeps of a queue beside the settings: when it was made, tags, and attributes that change nothing here.

A card is one JSON value of the engine's state, so it is as durable as the queue. Cards are kept in this process once
read: one server has a file to itself. A queue that an app declared has no card until somebody asks for it.
Never here: what an attribute means (`attributes`). Invariant: a card is kept only after it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from onefold.contracts.state import Change

if TYPE_CHECKING:
    from onefold.contracts.verbs import State

_CARD = "wire/queue/"
_DROPPED = "wire/dropped/"


class Card(Struct, frozen=True, kw_only=True):
    """One queue's card.

    Args:
        created_at_ms, changed_at_ms: by the server's clock.
        wait_ms: ReceiveMessageWaitTimeSeconds.
        by_group: FifoThroughputLimit is `perMessageGroupId`.
        kept: attributes that are stored and given back: Policy, the KMS settings, SqsManagedSseEnabled.
        tags: by key.
        region: whose client made it; empty for one of every region: made by an app, a template, or an unsigned request.
    """

    created_at_ms: int
    changed_at_ms: int
    wait_ms: int = 0
    by_group: bool = False
    kept: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}
    region: str = ""


class Cards:
    """The cards of one engine.

    Args:
        state: where they are kept.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[str, Card] = {}

    def known(self, queue: str) -> Card | None:
        """The card of a queue, if it was read before."""
        return self._known.get(queue)

    def of(self, queue: str, now_ms: int) -> Card:
        """The card of a queue that exists."""
        known = self._known.get(queue)
        if known is None:
            (found,) = self._state.get([_CARD + queue])
            known = Card(created_at_ms=now_ms, changed_at_ms=now_ms)
            if found is not None:
                known = msgspec.json.decode(found.value, type=Card)
            self._known[queue] = known
        return known

    def write(self, queue: str, card: Card) -> None:
        """Store a card; inside an engine call. `keep` it once the call is done."""
        self._put(_CARD + queue, msgspec.json.encode(card))
        self._put(_DROPPED + queue, None)

    def keep(self, queue: str, card: Card) -> None:
        """From now on this is the queue's card."""
        self._known[queue] = card

    def drop(self, queue: str, now_ms: int) -> None:
        """The queue is gone; inside an engine call. Its name is remembered with the time."""
        self._put(_CARD + queue, None)
        self._put(_DROPPED + queue, msgspec.json.encode(now_ms))

    def erase(self, queue: str) -> None:
        """As if there had never been such a queue; inside an engine call. `forget` it once the call is done."""
        self._put(_CARD + queue, None)
        self._put(_DROPPED + queue, None)

    def forget(self, queue: str) -> None:
        """The queue is gone, and the call that said so is done."""
        self._known.pop(queue, None)

    def dropped_at_ms(self, queue: str) -> int | None:
        """When a queue of this name was dropped last; None when it was not, or is there again."""
        (found,) = self._state.get([_DROPPED + queue])
        return None if found is None else msgspec.json.decode(found.value, type=int)

    def _put(self, name: str, value: bytes | None) -> None:
        (found,) = self._state.get([name])
        if found is not None or value is not None:
            self._state.put([Change(name, value, 0 if found is None else found.version)])
