"""Event buses of a server: where an outbox item goes whose queue is `bus_place(name)`.

On AWS a bus is EventBridge's, and a put is a send to its place: each entry's body is one entry of PutEvents, as JSON. The
embedded engine has no such places: its buses are rules of the app (`events/bus.py`).
Never here: events, rules. Invariant: no queue's name is a place.
"""

from __future__ import annotations

from typing import Final

_PLACE: Final = "bus:"  # no queue's name has a colon


def bus_place(name: str) -> str:
    """Where an outbox item goes that is to be put on this bus."""
    return f"{_PLACE}{name}"


def bus_of(place: str) -> str | None:
    """The bus that a place names; None for a queue's name."""
    return place.removeprefix(_PLACE) if place.startswith(_PLACE) else None
