"""The Archive contract: events kept by name and time, to be replayed.

An archive keeps the text of envelopes, each once by its event id. It is written in the transaction of the put (calls inside
`Engine.together`) or of the run that put the event: an outbox item whose queue is `archive_queue_name(name)` is kept there.
Never here: which events are kept, patterns, delivery. Invariant: a kept event does not change until its retention ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from msgspec import Struct

_PLACE: Final = "archive:"  # no queue's name has a colon
EXPIRES_ATTRIBUTE: Final = "expires_at_ms"  # an attribute of such an outbox item
TIME_ATTRIBUTE: Final = "time_ms"


class Archived(Struct, frozen=True, gc=False):
    """One event in an archive.

    Args:
        position: its number in the archive; grows with every event kept.
        event_id: its id. time_ms: when it happened, UTC.
        text: its envelope, as JSON.
        expires_at_ms: when it is removed, UTC; None: never.
    """

    position: int
    event_id: str
    time_ms: int
    text: str
    expires_at_ms: int | None = None


class Holdings(Struct, frozen=True, gc=False):
    """The content of an archive, in numbers.

    Args:
        count: events. size: bytes of their texts.
        first_ms, last_ms: time of the oldest and the newest event; None when there is none.
        position: position of the event that was kept last; 0 when there is none.
    """

    count: int
    size: int
    first_ms: int | None
    last_ms: int | None
    position: int


class Archive(Protocol):
    """Archives by name. Plain blocking calls, safe from any thread."""

    def keep(self, name: str, events: Sequence[Archived]) -> None:
        """Keep events durably and assign their positions; an event whose id is in the archive is not kept again."""
        ...

    def read(
        self, name: str, from_ms: int, to_ms: int, *, after: tuple[int, int] | None = None, last: int, limit: int
    ) -> list[Archived]:
        """Events with from_ms <= time < to_ms by time, then position.

        Args:
            after: time and position of the last event read; None: from the start.
            last: events kept after this position are left out.
        """
        ...

    def holdings(self, name: str, from_ms: int | None = None, to_ms: int | None = None) -> Holdings:
        """The content of an archive, as a whole or in a time range."""
        ...

    def names(self) -> list[str]:
        """All archives that are not empty, sorted."""
        ...


def archive_queue_name(name: str) -> str:
    """The queue name of an outbox item that is to be kept in this archive."""
    return f"{_PLACE}{name}"


def archive_of(queue_name: str) -> str | None:
    """The archive that a name made by `archive_queue_name` stands for; None for the name of a real queue."""
    return queue_name.removeprefix(_PLACE) if queue_name.startswith(_PLACE) else None
