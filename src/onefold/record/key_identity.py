"""What can be remembered of a job's key rule, so that a later release notices that the rule has changed.

A template or an expression is its own text. A function is its name and a digest of its compiled code, which only the same
minor version of Python can compare; what the function calls is not part of it.
Never here: making keys, where this is stored. Invariant: no value of a payload, and no constant of a function, is in it.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from onefold import codec

if TYPE_CHECKING:
    from onefold.record.keys import KeyRule

_SHOWN_CHARS = 200
_CODE_CHARS = 16


class RuleIdentity(Struct, frozen=True):
    """A key rule as it is remembered.

    Args:
        text: for people and for comparison: the template or expression, or the function's name; with the tenant's.
        code: digest of the functions' code, with the version of Python that compiled it; empty if there are none.
    """

    text: str
    code: str = ""

    def differs(self, now: RuleIdentity) -> bool:
        """Whether the rule may give other keys now."""
        if self.code and now.code and self._python == now._python:
            return self.code != now.code
        return self.text != now.text

    @property
    def _python(self) -> str:
        return self.code.partition(" ")[0]


def identity_of(key: KeyRule, tenant: KeyRule | None) -> RuleIdentity:
    """The rule for keys, and for the tenant's scope if there is one."""
    rules = [key] if tenant is None else [key, tenant]
    text = ", tenant ".join(one.text[:_SHOWN_CHARS] for one in rules)
    codes = [getattr(one.function, "__code__", None) for one in rules]
    if any(len(one.text) > _SHOWN_CHARS for one in rules):
        text += f" #{codec.digest(codec.encode([one.text for one in rules]))[:_CODE_CHARS]}"
    if not any(isinstance(code, CodeType) for code in codes):
        return RuleIdentity(text)
    parts = [
        _of(code, getattr(one.function, "__doc__", None)) if isinstance(code, CodeType) else one.text
        for code, one in zip(codes, rules, strict=True)
    ]
    digest = codec.digest(codec.encode(parts))[:_CODE_CHARS]
    return RuleIdentity(text, f"{sys.version_info[0]}.{sys.version_info[1]} {digest}")


def _of(code: CodeType, doc: str | None = None) -> str:
    """A digest of what a function does; not of its name, its docstring, its place in the file or its line numbers."""
    constants = code.co_consts[1:] if code.co_consts[:1] == (doc,) else code.co_consts
    return codec.digest(codec.encode([code.co_code.hex(), list(code.co_names), list(map(_constant, constants))]))


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _of(value)
    if isinstance(value, frozenset):  # its order differs between processes
        return repr(sorted(map(_constant, value)))
    return repr(tuple(map(_constant, value))) if isinstance(value, tuple) else repr(value)


def changed(job: str, before: RuleIdentity, now: RuleIdentity) -> str:
    """A sentence about a rule that has changed, and what that means."""
    what = f"was {before.text!r} until now and is {now.text!r}"
    if before.text == now.text:
        what = f"is the function {now.text}, whose code has changed"
    return (
        f"The key rule of {job} {what}. Where it gives another key, what was done under the earlier key does not answer a"
        " repeated message, also one that waits now: its effect happens again."
    )
