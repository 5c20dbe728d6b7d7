"""SQS in one account and region, as operations see it; the caller of an operation; repeated receive attempts.

On a FIFO queue, a receive with the same ReceiveRequestAttemptId within 5 minutes gets the same messages again, with the
same handles, as long as all of them are in flight and no client has changed the visibility of one. So a client whose
response was lost can repeat the request. Attempts are kept in memory, up to 64 MiB of messages: after a restart, or when
it was forgotten for newer ones, an attempt is a new receive.
Never here: operations, protocols. Invariants: `SqsService` is all that an operation sees of the server; an attempt is
forgotten as soon as a client deletes one of its messages or changes its visibility. What else ends a receive (a purge, a
mapping, another process) is noticed when the attempt is repeated.

Source: SQS API reference, ReceiveMessage, ReceiveRequestAttemptId.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final

from msgspec import Struct, structs

from onefold import errors, limits
from onefold.contracts.queue import Delivery
from onefold.contracts.settings import QueueSettings
from onefold.local.identifiers import QueueAddresses, name_of_url
from onefold.local.queue_attributes import QueueMetadata, QueueMetadataStore
from onefold.local.queues import LocalQueues

ATTEMPT_MS = 5 * limits.MINUTE_MS
ATTEMPTS_BYTES_MAX = 64 * 1024 * 1024
_ATTEMPT_BYTES: Final = 1_024  # memory of a delivery besides its body
_REGIONS_MAX: Final = 64  # regions whose view is kept; a view for any other region is made anew each time


class _Attempt(Struct):
    deliveries: list[Delivery]
    made_at_ms: int
    until_ms: int
    size: int


class ReceiveAttempts:
    """The receive attempts of one server.

    Args:
        bytes_max: messages are kept up to this total; the oldest attempts are forgotten for a new one.
    """

    def __init__(self, bytes_max: int = ATTEMPTS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._made: dict[tuple[str, str], _Attempt] = {}  # the oldest first
        self._of_receipt: dict[tuple[str, str], tuple[str, str]] = {}

    def recall(self, queue: str, attempt_id: str, now_ms: int) -> list[Delivery] | None:
        """The deliveries of an attempt; None if it is new, too old, or forgotten."""
        found = self._made.get((queue, attempt_id))
        if found is None:
            return None
        if now_ms >= min(found.made_at_ms + ATTEMPT_MS, found.until_ms):
            self._forget((queue, attempt_id))
            return None
        return found.deliveries

    def keep(self, queue: str, attempt_id: str, deliveries: list[Delivery], visible_ms: int, now_ms: int) -> None:
        """Keep what an attempt received, or that it was repeated and hid the messages again."""
        key = (queue, attempt_id)
        known = self._made.get(key)
        made_at_ms = now_ms if known is None else known.made_at_ms
        self._forget(key)
        size = sum(map(_size, deliveries))
        self._make_room(size, now_ms)
        if not visible_ms or size > self._bytes_max:
            return
        self._bytes += size
        self._made[key] = _Attempt(deliveries, made_at_ms, now_ms + visible_ms, size)
        for delivery in deliveries:
            self._of_receipt[queue, delivery.receipt] = key

    def touched(self, queue: str, receipt: str) -> None:
        """Forget the attempt that received a message that was deleted, or whose visibility was changed."""
        if self._of_receipt and (key := self._of_receipt.get((queue, receipt))) is not None:
            self._forget(key)

    def forget(self, queue: str, attempt_id: str) -> None:
        """Forget an attempt whose messages are no longer as it received them."""
        self._forget((queue, attempt_id))

    def _forget(self, key: tuple[str, str]) -> None:
        found = self._made.pop(key, None)
        if found is None:
            return
        self._bytes -= found.size
        for delivery in found.deliveries:
            self._of_receipt.pop((key[0], delivery.receipt), None)

    def _make_room(self, size: int, now_ms: int) -> None:
        """Forget the oldest attempts: those that are over, and others until `size` bytes more fit."""
        while self._made:
            key, oldest = next(iter(self._made.items()))
            is_over = now_ms >= min(oldest.made_at_ms + ATTEMPT_MS, oldest.until_ms)
            if not is_over and self._bytes + size <= self._bytes_max:
                return
            self._forget(key)


def _size(delivery: Delivery) -> int:
    return _ATTEMPT_BYTES + len(delivery.body) + sum(len(one.value) for one in delivery.attributes.values())


class SqsCaller(Struct, frozen=True):
    """One request.

    Args:
        query: whether it uses the older protocol, for which a few error texts differ.
        host: the host that the client called.
        gone: whether the client has hung up.
        region: the region in its signature; empty for an unsigned request.
        trace: the X-Ray trace of the request; None if it names none.
    """

    query: bool = False
    host: str = ""
    gone: Callable[[], bool] | None = None
    trace: str | None = None
    region: str = ""


class SqsService:
    """SQS on one server in one region.

    Queues of the server's own region have the same names in the engine. A queue that a client creates in another region
    is named `region/name` there. Queues that were created without a region are in every region under their names.

    Args:
        queues: the queues.
        addresses: their URLs and ARNs.
        metadata_store: stores their metadata, which the engine does not have.
        recreate_wait: a name can be used again 60 seconds after its queue was deleted, as on AWS.
    """

    def __init__(
        self,
        queues: LocalQueues,
        addresses: QueueAddresses,
        metadata_store: QueueMetadataStore,
        *,
        recreate_wait: bool = True,
    ) -> None:
        self.queues = queues
        self.addresses = addresses
        self.metadata_store = metadata_store
        self.recreate_wait = recreate_wait
        self.attempts: ReceiveAttempts = ReceiveAttempts()
        self._names: dict[tuple[str, str], str] = {}  # the engine's names of queues of other regions
        self._regions: dict[str, SqsService] = {}

    def in_region(self, region: str) -> SqsService:
        """The same server as a client of that region sees it; this object for its own region."""
        if not region or region == self.addresses.region:
            return self
        found = self._regions.get(region)
        if found is None:
            found = copy(self)
            found.addresses = structs.replace(self.addresses, region=region, resolve=found.resolve)
            if len(self._regions) < _REGIONS_MAX:
                self._regions[region] = found
        return found

    def queue(self, url: str) -> str:
        """The engine's name for the queue in a URL, whether or not it exists."""
        name = name_of_url(url)
        return name if self.addresses.resolve is None else self.resolve(name)

    def resolve(self, name: str) -> str:
        """The engine's name for a queue of a region other than the server's own, whether or not it exists."""
        region = self.addresses.region
        known = self._names.get((region, name))
        if known is not None:
            return known
        own = f"{region}/{name}"
        for candidate in (own, name):
            if self._is_there(candidate) and (candidate is own or self.is_everywhere(name)):
                self._names[region, name] = candidate
                return candidate
        return own

    def _is_there(self, queue: str) -> bool:
        try:
            self.queues.engine.queues.setting(queue)
        except errors.NotFoundError:
            return False
        return True

    def is_everywhere(self, name: str) -> bool:
        """Whether a queue that exists without a region in its name belongs to this region."""
        return self.metadata(name).region in ("", self.addresses.region)

    def forget_names(self) -> None:
        """Forget resolved names, because a queue was created or deleted."""
        self._names.clear()

    def settings(self, url: str) -> QueueSettings:
        """The settings of the queue in a URL.

        Raises:
            NotFoundError: the queue does not exist.
        """
        return self.queues.engine.queues.setting(self.queue(url))

    def metadata(self, queue: str) -> QueueMetadata:
        """The metadata of a queue.

        Raises:
            NotFoundError: the queue does not exist (not checked again once its metadata is cached).
        """
        known = self.metadata_store.known(queue)
        if known is None:
            known = self.metadata_store.of(self.queues.engine.queues.setting(queue).name, self.queues.timers.now_ms())
        return known
