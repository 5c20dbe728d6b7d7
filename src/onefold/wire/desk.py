"""What every operation works on, and who asks.

Never here: an operation, a protocol. Invariant: an operation sees nothing of the server but this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from onefold.contracts.settings import QueueSettings
from onefold.local.queues import LocalQueues
from onefold.wire.addresses import Address, name_of_url
from onefold.wire.attempts import Attempts
from onefold.wire.cards import Card, Cards

SENDER_ID = "AIDAONEFOLDLOCAL00000"  # the form of an IAM user's id; there are no users here


class Caller(Struct, frozen=True):
    """One request.

    Args:
        protocol: what it is written in; a few texts differ.
        host: the host that the client called.
        gone: whether the client has hung up.
        trace: the X-Ray trace that the request belongs to; None where it names none.
    """

    protocol: Literal["json", "query"] = "json"
    host: str = ""
    gone: Callable[[], bool] | None = None
    trace: str | None = None

    @property
    def query(self) -> bool:
        """Whether it speaks the older protocol."""
        return self.protocol == "query"


class Desk:
    """One server's queues, as operations see them.

    Args:
        queues: the queues.
        addresses: how they are named on the wire.
        cards: what is kept of them beside their settings.
        sender_id: the SenderId of every message.
        recreate_wait: a name may be used again 60 seconds after its queue was deleted, as on AWS.
    """

    def __init__(
        self,
        queues: LocalQueues,
        addresses: Address,
        cards: Cards,
        *,
        sender_id: str = SENDER_ID,
        recreate_wait: bool = True,
    ) -> None:
        self.queues = queues
        self.addresses = addresses
        self.cards = cards
        self.sender_id = sender_id
        self.recreate_wait = recreate_wait
        self.attempts = Attempts()

    def settings(self, url: str) -> QueueSettings:
        """The settings of the queue that a URL names.

        Raises:
            NotFoundError: there is none.
        """
        return self.queues.engine.queues.setting(name_of_url(url))

    def card(self, queue: str) -> Card:
        """The card of a queue.

        Raises:
            NotFoundError: there is no such queue (of one whose card is known this is not asked again).
        """
        known = self.cards.known(queue)
        if known is None:
            known = self.cards.of(self.settings(queue).name, self.queues.pace.now_ms())
        return known
