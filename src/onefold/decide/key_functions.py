"""Keys that are no template: a JMESPath expression over the payload's JSON, or a function of the payload.

`keys.py` comes here with a rule of these forms, and makes a text of what is found. Needs the package jmespath for the first.
Never here: what may be a key, and how long. Invariant: whatever an expression or a function raises for a payload is an error
of that payload, which names the rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from onefold import codec
from onefold.errors import PayloadError, UsageError


def last_names(expression: str) -> list[str]:
    """The names in an expression that name values, not what leads to them."""
    return re.findall(r"[A-Za-z_]\w*(?![\w.(\[])", expression)


def by_expression(expression: str, what: str) -> Callable[[Any], object]:
    """What an expression finds in a payload.

    Raises:
        UsageError: jmespath is not installed or cannot read the expression.
    """
    try:
        import jmespath as library
    except ImportError:
        raise UsageError(
            f"{what}={expression!r} is JMESPath, and the package jmespath is not installed.",
            todo='pip install jmespath (it is in the extra "onefold[cli]"), or use a template or a function.',
        ) from None
    try:
        compiled = library.compile(expression)
    except ValueError as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise UsageError(
            f"{what}={expression!r} is not JMESPath: {reason}.",
            todo="See https://jmespath.org for the language.",
        ) from None

    def find(payload: Any) -> object:
        try:
            return compiled.search(codec.plain(payload))
        except (TypeError, ValueError) as error:  # no JSON form; a function that met a value of the wrong type
            raise _failed(f"{what} jmespath:{expression}", error) from error

    return find


def by_function(function: Callable[[Any], object], name: str, what: str) -> Callable[[Any], object]:
    """What a function of the app's own makes of a payload."""

    def find(payload: Any) -> object:
        try:
            return function(payload)
        except Exception as error:
            raise _failed(f"{what} function {name}", error) from error

    return find


def _failed(rule: str, error: Exception) -> PayloadError:
    return PayloadError(
        f"The {rule} raised {type(error).__qualname__} for this payload.",
        meaning=f"It said: {str(error)[:200]}",
        todo="Send what the rule expects, or make the rule cover this case.",
    )
