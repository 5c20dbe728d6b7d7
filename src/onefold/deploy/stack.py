"""The choices for all of an app's infrastructure, and the engine's URL that follows from them.

A `Stack` is the choices of one deployment (a prefix per stage, the table, where large payloads go, keys, tags). An app whose
URL is `aws://...` makes some of them there; options on the command line take precedence.
Never here: what is declared in the app. Invariant: the URL contains no secret and no endpoint of an emulator, because
it is written into a template for AWS that many people can read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from onefold import errors, redact
from onefold.deploy import names
from onefold.engines import urls

# CloudWatch Logs API, PutRetentionPolicy: the values it accepts, in days.
LOG_DAYS: Final = (
    1,
    3,
    5,
    7,
    14,
    30,
    60,
    90,
    120,
    150,
    180,
    365,
    400,
    545,
    731,
    1096,
    1827,
    2192,
    2557,
    2922,
    3288,
    3653,
)
_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")  # DynamoDB API, CreateTable, TableName
_PAYLOADS = re.compile(
    r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9!_.'()/-]*)?"
)  # S3 user guide: bucket names, safe keys
_RECORDS_TODO: Final = "Write for example postgresql://db.example/shop or rediss://cache.example:6379, or give a table."
Alarms = Literal["none", "few", "all", "jobs"]
ALARMS: Final[tuple[Alarms, ...]] = ("none", "few", "all", "jobs")
_SLACK = re.compile(r"[0-9A-Z]{1,255}/[0-9A-Za-z]{1,255}")  # CloudFormation, AWS::Chatbot::SlackChannelConfiguration
_POLICY = re.compile(r"arn:[a-z-]+:iam::(aws|\d{12}):policy/[\w+=,.@/-]+")  # IAM API, CreateRole, PermissionsBoundary
_ROLE_PATH = re.compile(r"/|(?=.{3,512}$)/[\x21-\x7e]*/")  # same, Path
_KEY = re.compile(r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+")  # KMS developer guide, key ARN


class Stack(Struct, frozen=True, kw_only=True):
    """The choices of one deployment.

    Args:
        prefix: prefix of every name on AWS, for example `prod-`.
        table: name of the table of records; by default prefix and app.
        layout: the layout of the table's records. 2 spreads them over partitions and lets a function write only its own
            jobs'; 1 is for tables that were made with it and have not been migrated.
        records: URL of another store (`redis://`, `postgresql://`) instead of a table.
        payloads: `bucket/prefix` for bodies over the queue's limit; None: they are refused.
        kms_key: ARN of your own key for queues, table, logs and variables; None: AWS's keys.
        log_days: for how many days logs are kept.
        deletion_protection: the table cannot be deleted until this is turned off.
        disposable: queues and table are deleted with the stack; otherwise they are kept.
        later: a message whose `run_at` is later than SQS can delay becomes a one-time schedule, which functions may
            make.
        alarms: `all`; `few`: the indispensable ones; `jobs`: all, and one more for each job, which
            notifies instead of them; `none`.
        topic: the stack has its own SNS topic, which alarms notify.
        boundary: ARN of the permissions boundary of each role; None for none. role_path: path of each role, `/` or
            `/.../`.
        slack: `WORKSPACE/CHANNEL`, both as ids, to which Amazon Q Developer in chat applications posts alarms.
        tags: the tags of every resource that can have tags.
        overrides: of individual resources, by logical id, or for Terraform by address (`aws_sqs_queue.orders`): values
            that are merged into the written resource; None removes a value.
    """

    prefix: str = ""
    table: str | None = None
    layout: Literal[1, 2] = 2
    records: str | None = None
    payloads: str | None = None
    kms_key: str | None = None
    log_days: int = 30
    deletion_protection: bool = False
    disposable: bool = False
    later: bool = False
    alarms: Alarms = "all"
    slack: str | None = None
    topic: bool = False
    boundary: str | None = None
    role_path: str | None = None
    tags: Mapping[str, str] = {}
    overrides: Mapping[str, Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for what, value, form, example in (
            ("table", self.table, _TABLE, "shop-records"),
            ("payloads", self.payloads, _PAYLOADS, "my-bucket/payloads"),
            ("slack", self.slack, _SLACK, "T0123ABCD/C0456EFGH"),
            ("boundary", self.boundary, _POLICY, "arn:aws:iam::111122223333:policy/team-boundary"),
            ("role_path", self.role_path, _ROLE_PATH, "/team/onefold/"),
            (
                "kms_key",
                self.kms_key,
                _KEY,
                "arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
            ),
        ):
            if value is not None and not form.fullmatch(value):
                raise errors.UsageError(f"{what}={value!r} is not valid.", todo=f"Write for example {example}.")
        if self.log_days not in LOG_DAYS:
            raise errors.UsageError(
                f"Logs cannot be kept for {self.log_days} days.",
                todo=f"CloudWatch Logs accepts {', '.join(map(str, LOG_DAYS))}.",
            )
        if self.records is not None:
            _check_records(self.records)
        for name, value in self.tags.items():
            if not names.is_tag(name, value):
                raise errors.UsageError(
                    f"{name}={value} cannot be a tag.",
                    todo="A name has 1 to 128, a value up to 256 letters, digits, spaces and _ . : / = + - @.",
                )


def _check_records(url: str) -> None:
    """Refuse a store that functions could not reach, or a secret in its URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise errors.UsageError("The URL of the records cannot be read.", todo=_RECORDS_TODO) from None
    if parts.password or any(name == "password" for name, _ in parse_qsl(parts.query)):
        raise errors.UsageError(
            "The URL of the records holds a password.",
            meaning="Everyone who can read the template or the function's settings could read it.",
            todo="Leave it out, and give the function its password in another way, for example IAM authentication.",
        )
    if parts.scheme not in urls.SERVERS:
        raise errors.UsageError(
            f"Functions cannot keep their records in {redact.shown_url(url)}.",
            meaning="They can share a table of the stack, Redis or PostgreSQL; a file would exist once per container.",
            todo=_RECORDS_TODO,
        )


def overridden(resources: dict[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> None:
    """Merge the user's own values into resources.

    Args:
        resources: by the names that `overrides` uses; changed in place.

    Raises:
        UsageError: there is no such resource.
    """
    for name, changes in overrides.items():
        if name not in resources:
            near = difflib.get_close_matches(name, resources, n=1)
            raise errors.UsageError(
                f"There is no resource {name} to override.",
                todo=f"Did you mean {near[0]}?" if near else "Take its name from the output of onefold synth.",
            )
        resources[name] = _merged(resources[name], changes)


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    found = {**below, **{name: _merged(below.get(name), one) for name, one in above.items()}}
    return {name: one for name, one in found.items() if not (one is None and name in above)}


def stack_of(url: str) -> Stack:
    """The choices that an engine's URL makes; none if the engine is not on AWS.

    Args:
        url: the URL of the app; an endpoint in it is for the app's own process and is left out.

    Raises:
        UsageError: a part of the URL is not valid.
    """
    if not url.startswith("aws://"):
        return Stack()
    location = urls.read_aws(url)
    return Stack(
        prefix=location.prefix,
        table=None if location.records else location.table,
        layout=location.layout,
        records=location.records,
        later=location.later_group is not None,
        payloads=f"{location.bucket}/{location.folder}".rstrip("/") if location.bucket else None,
    )


def written_layout(text: str) -> Literal[1, 2] | None:
    """The layout in a template or module that was written before: that of the engine's URL in it; None if it has none."""
    found = re.search(r"aws://[^\s\"']*", text)
    if found is None:
        return None
    return 2 if re.search(r"[?&]layout=2\b", found[0]) else 1


def engine_url(stack: Stack, group: str, late_dead: str | None = None) -> str:
    """The URL that functions and operators open, a pattern (see `names.py`).

    Args:
        group: the group of the schedules for messages that are due late; it is in the URL if the stack has such schedules.
        late_dead: full name of the queue for messages that could not be delivered to FIFO queues; None if there is
            none.
    """
    layout = str(stack.layout) if stack.layout != 1 and not stack.records else None
    query = {
        "layout": layout,
        "payloads": stack.payloads,
        "prefix": stack.prefix,
        "records": stack.records,
        "table": stack.table,
    }
    said = urlencode({name: value for name, value in query.items() if value}, safe="/:@")
    if stack.later:
        said += f"{'&' if said else ''}later={group}&later_role={{role_arn.Scheduler}}"
        said += f"&later_dead={late_dead}" if late_dead is not None else ""
    return f"aws://{{region}}{'?' if said else ''}{said}"
