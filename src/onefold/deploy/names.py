"""Names on AWS: of resources, their ARNs, and the logical ids of a template.

Names and ids depend only on the declared names and the prefix, so that they are the same at every run and a new queue
never renames an old one. ARNs are patterns: `{partition}`, `{region}` and `{account}` are placeholders for values that
are known only when the template is applied, `{queue_url.ID}` and similar ones for the name that a resource of the same
plan gets then; each writer replaces them by its own expressions (`filled`).
Never here: which resources there are. Invariant: two resources of a kind never share a logical id (`by_id` refuses it).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from onefold import errors
from onefold.engines.aws.dynamodb.items import job_part

PREFIX_CHARS_MAX: Final = 40
TAG_CHARS_MAX: Final = 256  # AWS tagging guide, "Tag naming limits and requirements": keys 128, values 256
_PREFIX = re.compile(rf"[A-Za-z0-9_-]{{0,{PREFIX_CHARS_MAX}}}")
_PLAIN = re.compile(r"[a-z][a-z0-9]*(-[a-z][a-z0-9]*)*")
_TAG = re.compile(r"[\w .:/=+@-]*")  # same: letters, digits, spaces and _ . : / = + - @
_NO_TAG = re.compile(r"[^\w .:/=+@-]")
_PLACE = re.compile(
    r"\{(partition|region|account|(?:queue_arn|queue_url|function_arn|role_arn|alias_arn|bus_arn|mapping_id|topic_arn)\.[A-Za-z0-9]+)\}"
)


def check_prefix(prefix: str) -> None:
    """Refuse a prefix that a name on AWS cannot have.

    Raises:
        UsageError: it has over 40 characters, or characters other than A-Z a-z 0-9 - _.
    """
    if not _PREFIX.fullmatch(prefix):
        raise errors.UsageError(
            f"{prefix!r} cannot be a prefix of names on AWS.",
            todo=f"Use at most {PREFIX_CHARS_MAX} of A-Z a-z 0-9 - _, for example prod-.",
        )


def is_tag(name: str, value: str) -> bool:
    """Whether AWS accepts a tag."""
    fits = 1 <= len(name) <= TAG_CHARS_MAX // 2 and len(value) <= TAG_CHARS_MAX
    return fits and not name.startswith("aws:") and all(_TAG.fullmatch(one) for one in (name, value))


def tag_value(text: str) -> str:
    """A text as the value of a tag: shortened, with a hyphen for each character that AWS does not accept."""
    return _NO_TAG.sub("-", text)[:TAG_CHARS_MAX]


def check_length(name: str, most: int, what: str) -> None:
    """Refuse a name that has become too long with its prefix.

    Args:
        what: the thing that would have this name, for the error.

    Raises:
        UsageError: the name has over `most` characters.
    """
    if len(name) > most:
        raise errors.UsageError(
            f"{what} would be called {name}, which is {len(name)} characters.",
            meaning=f"AWS allows {most}.",
            todo="Choose a shorter prefix, app or queue name.",
        )


def logical_id(name: str) -> str:
    """A declared name as part of a logical id, which can have only letters and digits.

    `order-mails` becomes `OrderMails`, `orders.fifo` becomes `OrdersFIFO`; a name with characters other than
    lower-case letters, digits and single hyphens gets a hash, to keep it unique: `Order_Mails` becomes `OrderMails1f2e3d4c`.
    """
    stem = name.removesuffix(".fifo")
    words = "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", stem))
    kept_apart = "" if _PLAIN.fullmatch(stem) else hashlib.sha256(stem.encode()).hexdigest()[:8]
    found = words + kept_apart + ("FIFO" if stem != name else "")
    return found if found[0].isalpha() else f"N{found}"  # Terraform requires a letter at the beginning


def check_apart(kind: str, found: Iterable[str]) -> None:
    """Refuse two things of one kind that would have the same name on AWS.

    Args:
        kind: for the error. found: their names or ARNs.

    Raises:
        UsageError: two of them are equal.
    """
    known: set[str] = set()
    for name in found:
        if name in known:
            raise errors.UsageError(
                f"Two things of the app lead to the same {kind} {name} on AWS.",
                meaning="The second would replace the first, or the deployment would fail midway.",
                todo="Rename one of them, so that their names differ by more than a dot or a hyphen.",
            )
        known.add(name)


class HasId(Protocol):
    """Something in a template that has an id."""

    @property
    def id(self) -> str:
        """Part of its logical ids."""


T = TypeVar("T", bound=HasId)


def by_id(things: Iterable[T]) -> tuple[T, ...]:
    """Things of one kind, sorted by their ids.

    Raises:
        UsageError: two have the same id.
    """
    known: dict[str, T] = {}
    for thing in things:
        if known.setdefault(thing.id, thing) is not thing:
            raise errors.UsageError(
                f"Two things of the app lead to the same id {thing.id} in the template.",
                todo="Rename one of them, so that their names differ by more than a hyphen.",
            )
    return tuple(known[one] for one in sorted(known))


def queue_arn(name: str) -> str:
    """The ARN of a queue, by its full name."""
    return f"arn:{{partition}}:sqs:{{region}}:{{account}}:{name}"


SHARED_PARTITIONS: Final = ("~day#*", "~days", "~key#*", "~layout", "~names", "~run#*", "~state")
"""Partitions of a table of layout 2 for history and for shared state of an app's processes; they have no records."""


def partitions(jobs: Iterable[str]) -> tuple[str, ...]:
    """Patterns of the partition keys that a process writes in a table of layout 2.

    Args:
        jobs: the jobs whose records it writes.
    """
    return (*(f"{job_part(job)}#*" for job in sorted(set(jobs))), *SHARED_PARTITIONS)


def table_arn(name: str) -> str:
    """The ARN of a table, by its name."""
    return f"arn:{{partition}}:dynamodb:{{region}}:{{account}}:table/{name}"


def log_streams_arn(log_group: str) -> str:
    """The ARN of all streams of a log group."""
    return f"arn:{{partition}}:logs:{{region}}:{{account}}:log-group:{log_group}:*"


def rule_arn(bus: str, rule: str) -> str:
    """The ARN of an EventBridge rule, by its full name; for rules of the default bus it does not name the bus."""
    path = rule if bus == "default" else f"{bus}/{rule}"
    return f"arn:{{partition}}:events:{{region}}:{{account}}:rule/{path}"


def bus_arn(name: str) -> str:
    """The ARN of an event bus, by its full name."""
    return f"arn:{{partition}}:events:{{region}}:{{account}}:event-bus/{name}"


def schedules_arn(group: str, prefix: str) -> str:
    """The ARN of the schedules of a group whose names begin with `prefix`."""
    return f"arn:{{partition}}:scheduler:{{region}}:{{account}}:schedule/{group}/{prefix}*"


def machine_arn(name: str) -> str:
    """The ARN of a state machine, by its name."""
    return f"arn:{{partition}}:states:{{region}}:{{account}}:stateMachine:{name}"


def executions_arn(machine: str, label: str | None = None) -> str:
    """The ARN of all executions of a state machine, or of all children of one of its map states."""
    path = machine if label is None else f"{machine}/{label}"
    return f"arn:{{partition}}:states:{{region}}:{{account}}:execution:{path}:*"


def objects_arn(payloads: str) -> str:
    """The ARN of all objects below `bucket/prefix`."""
    return f"arn:{{partition}}:s3:::{payloads.rstrip('/')}/*"


def bucket_arn(payloads: str) -> str:
    """The ARN of the bucket in `bucket/prefix`."""
    return f"arn:{{partition}}:s3:::{payloads.partition('/')[0]}"


def has_placeholders(text: str) -> bool:
    """Whether a text has placeholders to fill in."""
    return _PLACE.search(text) is not None


def in_json(text: str) -> str:
    """An equivalent JSON text without placeholders, and without `${...}` that a substitution would replace."""
    return _PLACE.sub(r"\\u007b\1}", text).replace("${", "\\u0024{")


def filled(text: str, expression: Callable[[str], str], literal: Callable[[str], str] = str) -> str:
    """A pattern with its placeholders filled in.

    Args:
        text: for example an ARN of this module.
        expression: returns what replaces a placeholder, by its name.
        literal: writes the text between placeholders, for writers that must escape some characters.
    """
    parts = _PLACE.split(text)
    return "".join(expression(part) if index % 2 else literal(part) for index, part in enumerate(parts))
