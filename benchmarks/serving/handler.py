"""A function for the mapping to invoke: it does nothing, so that what is measured is the mapping."""

from __future__ import annotations


def noop(event: object, context: object) -> None:
    """Returns nothing: the whole batch is done."""
