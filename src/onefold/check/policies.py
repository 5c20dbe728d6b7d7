"""Whether a policy document allows something: yes, no, or unknown.

Only statements that allow are read; those that deny are left to AWS. The answer is "no" only if no statement can match: in
all other cases the rules report nothing.
Never here: which policy belongs to what. Invariant: a part that is not known may match.
Source: IAM user guide, policy elements reference: wildcards `*` and `?`, actions without regard to case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from onefold.check.facts import Unresolved


class Request(Struct, frozen=True, kw_only=True):
    """What somebody wants to do.

    Attributes:
        action: `sqs:SendMessage`. resource: an ARN; its account and region do not matter.
        named: False if the resource's name is made up.
        principal: a service, `sns.amazonaws.com`; None: whoever has the policy.
        source_arn: the ARN of the rule or topic for which it is sent; "" if that is not known.
        known: names and ARNs of the other resources of the document: a pattern for one of these is not for this one.
    """

    action: str
    resource: str
    named: bool
    principal: str | None = None
    source_arn: str = ""
    known: frozenset[str] = frozenset()


def allows(document: Any, request: Request) -> bool | None:
    """Whether some statement of a policy allows a request; None if that is unknown."""
    statements = document.get("Statement") if isinstance(document, Mapping) else None
    if isinstance(statements, Mapping):
        statements = [statements]
    if not isinstance(statements, list):
        return None
    return any_of(_allowed(one, request) for one in statements)


def any_of(answers: Iterable[bool | None]) -> bool | None:
    """Whether one of several answers is yes; None if none is yes and one is unknown."""
    found = list(answers)
    return True if True in found else None if None in found else False


def _allowed(statement: Any, request: Request) -> bool | None:
    if not isinstance(statement, Mapping):
        return None
    if statement.get("Effect", "Allow") == "Deny":
        return False
    parts = [
        any_of(_like(one, request.action.lower()) for one in _listed(statement, "Action", str.lower)),
        any_of(_covers(one, request) for one in _listed(statement, "Resource")),
        True if request.principal is None else _principal(statement, request.principal),
        _condition(statement.get("Condition"), request),
    ]
    return False if False in parts else None if None in parts else True


def _listed(statement: Mapping[str, Any], name: str, change: Callable[[str], str] = str) -> list[Any]:
    """The values of an element; unknown if it is given by its opposite, or not at all."""
    found = statement.get(name, Unresolved("not given"))
    listed = found if isinstance(found, list) else [found]
    return [change(one) if isinstance(one, str) else one for one in listed]


def _like(pattern: Any, text: str) -> bool | None:
    """Whether a text matches a pattern with wildcards, in time that at most grows with the product of their lengths."""
    if not isinstance(pattern, str):
        return None
    at = star = resume = place = 0
    has_star = False
    while place < len(text):
        if at < len(pattern) and pattern[at] == "*":
            has_star, star, resume = True, at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[place]):
            at, place = at + 1, place + 1
        elif has_star:  # let the last star take one character more
            resume += 1
            at, place = star + 1, resume
        else:
            return False
    return not pattern[at:].strip("*")


def _covers(pattern: Any, request: Request) -> bool | None:
    """Whether a resource pattern matches the resource, by its name: accounts and regions are made up in a template."""
    if not isinstance(pattern, str):
        return None
    name = pattern.rsplit(":", 1)[-1]
    if pattern == "*" or _like(name, request.resource.rsplit(":", 1)[-1]):
        return True
    return False if request.named or name in request.known else None


def _principal(statement: Mapping[str, Any], service: str) -> bool | None:
    principal = statement.get("Principal", Unresolved("not given"))
    if principal == "*":
        return True
    if not isinstance(principal, Mapping):
        return None
    aws = [one == "*" or (None if isinstance(one, Unresolved) else False) for one in _listed(principal, "AWS")]
    named = [_like(one, service) for one in _listed(principal, "Service")]
    return any_of([*(aws if "AWS" in principal else []), *(named if "Service" in principal else [])])


def _condition(condition: Any, request: Request) -> bool | None:
    """False if the condition names only sources other than this one; every other condition may hold."""
    if condition is None:
        return True
    for operator in condition.values() if isinstance(condition, Mapping) else ():
        for key, values in operator.items() if isinstance(operator, Mapping) else ():
            if key.lower() != "aws:sourcearn" or not request.source_arn:
                continue
            listed = values if isinstance(values, list) else [values]
            texts = [one for one in listed if isinstance(one, str)]
            if texts == listed != [] and all(one in request.known and one != request.source_arn for one in texts):
                return False
    return None
