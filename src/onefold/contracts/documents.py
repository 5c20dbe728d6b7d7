"""Concurrent changes of one JSON document of State: read, decide, compare-and-set; again if another process was faster.

Never here: which documents there are, changes of several documents together. Invariant: a decision is written only over the
version that it was based on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from onefold import errors
from onefold.contracts.state import Change

if TYPE_CHECKING:
    from onefold.contracts.verbs import State

T = TypeVar("T")
A = TypeVar("A")
E = TypeVar("E")

TRIES: Final = 20  # each failed try means that another process has just changed the document


def reader(kind: type[T], empty: E) -> Callable[[bytes], T | E]:
    """Reads documents whose loss is acceptable: one that cannot be read counts as absent, and the next write replaces it.

    Args:
        kind: the type of the JSON. empty: the value of an absent document.
    """
    decode = msgspec.json.Decoder(kind).decode

    def read(value: bytes) -> T | E:
        try:
            return decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return empty

    return read


def decode(name: str, value: bytes, decoder: Callable[[bytes], T]) -> T:
    """Read a document that must not be lost.

    Raises:
        StorageError: it cannot be read; names it.
    """
    try:
        return decoder(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise errors.StorageError(
            f"The document {name!r} in the engine's state cannot be read: {error}.",
            meaning="Another version of onefold wrote it, or somebody changed it. It was not touched.",
            todo="Use the version that wrote it, or restore it; remove it only if what it describes may start from nothing.",
        ) from error


def change(
    state: State, name: str, decode: Callable[[bytes], T], empty: T, decide: Callable[[T], tuple[T, A]]
) -> tuple[T, A | None]:
    """Change a document.

    Args:
        name: the document's name. decode: reads its JSON. empty: its value if State has none.
        decide: from the present value, the new value and a result; may be called several times. When the value stays the
            same, nothing is written. None removes it.

    Returns:
        The document's new value, and the result; None instead of the result: others were faster every time, so nothing
        was written.
    """
    found = state.get([name])[0]
    value = empty if found is None else decode(found.value)
    for _ in range(TRIES):
        after, answer = decide(value)
        if after is value or after == value:
            return after, answer
        text = None if after is None else msgspec.json.encode(after)
        if state.put([Change(name, text, 0 if found is None else found.version)])[0]:
            return after, answer
        found = state.get([name])[0]
        if text is not None and found is not None and found.value == text:
            return after, answer  # an earlier try, whose answer was lost, has written it
        value = empty if found is None else decode(found.value)
    return value, None
