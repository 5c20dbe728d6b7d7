"""What an `aws://` URL says: region, table, prefix, endpoints, and where records live.

    aws://eu-west-1?table=shop&prefix=shop-&payloads=my-bucket/shop

The same for every process of an app, so that it can stand in one environment variable (ONEFOLD_URL). Credentials never do:
they come from boto3's own chain.
Never here: clients, other schemes. Invariant: an option that is not known is refused with the one that was probably meant.
"""

from __future__ import annotations

import re
from typing import Final, Literal
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from onefold import errors

TABLE_DEFAULT: Final = "onefold"
_PREFIX: Final = r"[A-Za-z0-9_-]{0,40}"
_SERVICES: Final = ("sqs", "dynamodb", "s3", "scheduler")
_LATER: Final = ("later", "later_role")
_OPTIONS: Final = (
    "table",
    "prefix",
    "payloads",
    "records",
    "create",
    "batch",
    "layout",
    "endpoint",
    *_LATER,
    *_SERVICES,
)


class Place(Struct, frozen=True, kw_only=True):
    """Where an app lives on AWS.

    Args:
        region: for example `eu-west-1`.
        table: of records, history and state, when they are in DynamoDB.
        prefix: before every queue's name.
        bucket, folder: where bodies over the limit go; None: they are refused.
        records: URL of another record store (`redis://`, `postgresql://`); None: DynamoDB.
        create: make what is missing (emulators, development).
        later_group, later_role: name of a schedule group and ARN of the role that its schedules send with, for messages that
            are due later than SQS delays; None: those are refused.
        batched: use DynamoDB's batch statements; off for emulators that do not have them.
        layout: of the table's records: 1 (they share the partition of their tenant) or 2 (each has its own, which begins
            with its job).
        endpoints: service to URL; `*` for all that are not named.
    """

    region: str
    table: str = TABLE_DEFAULT
    prefix: str = ""
    bucket: str | None = None
    folder: str = ""
    records: str | None = None
    create: bool = False
    later_group: str | None = None
    later_role: str | None = None
    batched: bool = True
    layout: Literal[1, 2] = 1
    endpoints: dict[str, str] = {}


def read(url: str) -> Place:
    """The place an `aws://` URL names.

    Raises:
        UsageError: no region, an unknown option, a value that cannot be.
    """
    parts = urlsplit(url)
    region = parts.netloc
    if not _is_region(region) or parts.path not in ("", "/") or parts.fragment:
        raise errors.UsageError(
            f"{url!r} names no region.",
            meaning="It begins with aws:// and a region, then options after a question mark.",
            todo="Write for example aws://eu-west-1?table=shop&prefix=shop-.",
        )
    options = dict(_option(url, name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    if ("later" in options) != ("later_role" in options):
        raise errors.UsageError(
            f"{url!r} has one of later and later_role without the other.",
            meaning="A one-time schedule needs a group and a role.",
            todo="Take the whole URL from the outputs of the stack (EngineUrl).",
        )
    bucket, _, folder = options.get("payloads", "").partition("/")
    endpoints = {
        "*" if name == "endpoint" else name: options[name] for name in ("endpoint", *_SERVICES) if name in options
    }
    return Place(
        region=region,
        table=options.get("table", TABLE_DEFAULT),
        prefix=options.get("prefix", ""),
        bucket=bucket or None,
        folder=folder,
        records=options.get("records"),
        later_group=options.get("later"),
        later_role=options.get("later_role"),
        create=_yes(url, options, "create", default=False),
        batched=_yes(url, options, "batch", default=True),
        layout=2 if options.get("layout") == "2" else 1,
        endpoints=endpoints,
    )


def _is_region(text: str) -> bool:
    """Letters, words and a digit, as `eu-west-1`, `us-gov-east-1` or `eusc-de-east-1`."""
    first, *words, last = text.split("-") if text.count("-") >= 2 else ("", "", "")
    names = all(word.isalpha() and word.islower() for word in (first, *words))
    return text.isascii() and len(first) in (2, 4) and names and len(last) == 1 and last.isdigit()


def _option(url: str, name: str, value: str) -> tuple[str, str]:
    if name not in _OPTIONS:
        from difflib import get_close_matches  # only a typing error pays for it

        near = get_close_matches(name, _OPTIONS, n=1)
        raise errors.UsageError(
            f"{url!r} has no option {name!r}.",
            todo=f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(_OPTIONS)}.",
        )
    if not value:
        raise errors.UsageError(f"{url!r}: {name} is empty.", todo="Give it a value, or leave it out.")
    if name == "prefix" and not re.fullmatch(_PREFIX, value):
        raise errors.UsageError(
            f"prefix={value!r} cannot begin a queue's name.", todo="Use up to 40 of A-Z a-z 0-9 - _."
        )
    if name == "layout" and value not in ("1", "2"):
        raise errors.UsageError(f"{url!r}: there is no layout {value!r}.", todo="Write 1 or 2.")
    if name in ("endpoint", *_SERVICES) and not value.startswith(("http://", "https://")):
        raise errors.UsageError(f"{name}={value!r} is no URL.", todo="Write for example http://127.0.0.1:9324.")
    return name, value


def _yes(url: str, options: dict[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value not in ("yes", "no"):
        raise errors.UsageError(f"{url!r}: {name}={value!r} is neither yes nor no.", todo="Write yes or no.")
    return value == "yes"
