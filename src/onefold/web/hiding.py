"""Hides payloads that a page must not show: all of them, or single fields.

A field is named as in the payload (`email`), or with the fields around it (`card.number`); upper and lower case are the
same. It is hidden wherever it occurs: in bodies, attributes and results, and in JSON inside one of their texts, as SNS
and outboxes write it. Fields cannot be found in what is not JSON: such a body is hidden whole, and so is a text that
begins like JSON and contains the name of a hidden field.
Never here: hiding anything else of a message: keys and the texts of exceptions are the app's responsibility.
Invariant: numbers that are shown keep every digit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold import codec, redact

HIDDEN: Final = "(hidden)"
_encode = msgspec.json.Encoder(decimal_format="number").encode


def _refuse(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities, which JSON does not have


class Hiding(Struct, frozen=True, kw_only=True):
    """What is hidden.

    Args:
        payloads: hide all bodies, attributes and results. fields: names of single fields to hide, in lower case.
    """

    payloads: bool = False
    fields: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether anything is hidden; if so, payloads are neither edited nor searched."""
        return self.payloads or bool(self.fields)

    def body(self, text: str) -> str:
        """A body or result as it may be shown."""
        if self.payloads:
            return HIDDEN
        if not self.fields:
            return text
        try:
            found = json.loads(text, parse_float=codec.decimal, parse_constant=_refuse)
            return _encode(self._without(found, "")).decode()
        except (ValueError, RecursionError, msgspec.MsgspecError):
            return HIDDEN

    def attributes(self, attributes: Mapping[str, str]) -> dict[str, str]:
        """Attributes as they may be shown."""
        return {
            name: HIDDEN if self.payloads or self._names(name.lower()) else self._text(text, f".{name.lower()}")
            for name, text in attributes.items()
        }

    def _without(self, value: Any, path: str) -> Any:
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, list):
            return [self._without(one, path) for one in value]
        if not isinstance(value, dict):
            return value
        found = {}
        for name, one in value.items():
            inside = f"{path}.{name.lower()}"
            found[name] = HIDDEN if self._names(inside) else self._without(one, inside)
        return found

    def _text(self, text: str, path: str) -> str:
        """A text of a payload, which may be JSON itself."""
        if not self.fields or not (json_text := redact.from_first_visible(text)).startswith(("{", "[", '"')):
            return text
        try:
            found = json.loads(json_text, parse_float=codec.decimal, parse_constant=_refuse)
            shown = self._without(found, path)
            return text if shown == found else _encode(shown).decode()
        except (ValueError, RecursionError, msgspec.MsgspecError):
            low = text.lower()
            is_named = "\\u" in low or any(field.rpartition(".")[2] in low for field in self.fields)
            return HIDDEN if is_named else text  # an escape may be part of a name

    def _names(self, path: str) -> bool:
        return any(f".{path}".endswith(f".{field}") for field in self.fields)
