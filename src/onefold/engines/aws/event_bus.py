"""EventBridge's PutEvents as a queue that is only sent to: each body is one entry of the request, as JSON.

Entries go ten at a time and stay below the size of a request; those that failed for now are tried again without the
others. EventBridge delivers each event at least once and has no deduplication: an event that is put twice is two events.
Never here: rules, archives. Invariant: an entry's answer is `Sent` only when EventBridge gave it an event id.

Sources: EventBridge API reference, PutEvents; user guide, "Sending events with PutEvents" (which errors to try again).
"""

# ruff: noqa: ARG002 - the verbs that a bus refuses have the arguments of the contract

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from onefold import errors
from onefold.contracts.entries import Entry, Refused, Sent, bus_of
from onefold.contracts.queue import Bury, Delivery, Depth, QueueCapabilities, RetryIn
from onefold.engines.aws.session import Session, aws_errors

if TYPE_CHECKING:
    from onefold.contracts.verbs import Standing

ENTRIES_MAX: Final = 10  # API reference, PutEvents
BYTES_MAX: Final = 1_000_000  # user guide: a request is below 1 MB; ours leaves room for what is not counted
TRIES: Final = 3  # of one entry, the first included; botocore has waited where a whole call failed
_PASSING: Final = frozenset({"InternalFailure", "InternalException", "ThrottlingException"})
DEFAULT_BUS: Final = "default"


class EventBusQueue:
    """One bus, to be sent to. Safe from any thread.

    Args:
        session: clients. place: the name it was opened by. bus: the bus's name on AWS.
    """

    capabilities = QueueCapabilities(fifo=False, uncounted=False, run_at=False, atomic_bury=False, inspectable=False)

    def __init__(self, session: Session, place: str, bus: str) -> None:
        self.name = place
        self._session = session
        self._bus = bus

    def send(self, entries: Sequence[Entry]) -> list[Sent | Refused]:
        """Put events; a `Sent` names the event's id.

        Raises:
            TransientError: some were not taken for now; others may have been. UsageError: not allowed, no credentials.
        """
        answers: dict[int, Sent | Refused] = {}
        waiting = list(range(len(entries)))
        requests = [self._request(entry) for entry in entries]
        code = ""
        for _ in range(TRIES):
            passing: list[int] = []
            for places in _cut([len(entry.body.encode()) for entry in entries], waiting):
                for place, one in zip(places, self._put([requests[place] for place in places]), strict=True):
                    code = one.get("ErrorCode", "")
                    if code in _PASSING:
                        passing.append(place)
                    elif code:
                        answers[place] = Refused(code, one.get("ErrorMessage", ""))
                    else:
                        answers[place] = Sent(one["EventId"])
            waiting = passing
            if not waiting:
                return [answers[place] for place in range(len(entries))]
        raise errors.TransientError(
            f"EventBridge did not take {len(waiting)} of {len(entries)} events on bus {self._bus} for now ({code}).",
            meaning="The others were taken.",
            todo="Put those again later; jobs answer a second event of one operation from its record.",
        )

    def _request(self, entry: Entry) -> dict[str, Any]:
        request: dict[str, Any] = msgspec.json.decode(entry.body)
        return {**request, "Time": datetime.fromisoformat(request["Time"]), "EventBusName": self._bus}

    def _put(self, requests: list[dict[str, Any]]) -> list[dict[str, str]]:
        with aws_errors("events:PutEvents", f"bus {self._bus}"):
            answer: list[dict[str, str]] = self._session.client("events").put_events(Entries=requests)["Entries"]
        return answer

    # -- what a bus is not -------------------------------------------------------------------------------------------

    def receive(self, count_max: int, visible_ms: int | None = None) -> list[Delivery]:
        """Refused."""
        self._refuse()

    def set_visible_in(self, changes: Sequence[tuple[str, RetryIn]]) -> list[bool]:
        """Refused."""
        self._refuse()

    def delete(self, receipts: Sequence[str]) -> list[bool]:
        """Refused."""
        self._refuse()

    def bury(self, burials: Sequence[tuple[str, Bury]]) -> list[bool]:
        """Refused."""
        self._refuse()

    def standing(self, receipts: Sequence[str]) -> list[Standing]:
        """Refused."""
        self._refuse()

    def depth(self) -> Depth:
        """Refused."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise errors.UsageError(
            f"{self._bus} is an event bus, and only sent to.", todo="Receive from the queues of its rules."
        )


def open_bus(session: Session, place: str, prefix: str) -> EventBusQueue:
    """The bus that a place names.

    Args:
        prefix: of the app's own buses on AWS.

    Raises:
        NotFoundError: it does not name a bus.
    """
    bus = bus_of(place)
    if bus is None:
        raise errors.NotFoundError(
            f"{place!r} names neither a queue nor a bus.", todo="The names of queues have no colon."
        )
    return EventBusQueue(session, place, bus if bus == DEFAULT_BUS else prefix + bus)


def _cut(sizes: Sequence[int], places: Sequence[int]) -> list[list[int]]:
    """Indexes in batches of at most ten entries and a request's size; one that is larger is a batch of its own."""
    batches: list[list[int]] = []
    total = 0
    for place in places:
        if not batches or len(batches[-1]) == ENTRIES_MAX or total + sizes[place] > BYTES_MAX:
            batches.append([])
            total = 0
        batches[-1].append(place)
        total += sizes[place]
    return batches
