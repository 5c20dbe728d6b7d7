"""What is chosen for all of an app's infrastructure, and the engine's URL that follows from it.

A `Stack` is the choices of one deployment (a prefix per stage, the table, where large payloads go, keys, tags). An app whose
URL is `aws://...` has made some of them there; what the command line says wins.
Never here: what is declared in the app. Invariant: the URL names no secret and no endpoint of an emulator, because it is
written into a template for AWS that many people may read.
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

# CloudWatch Logs API, PutRetentionPolicy: the values it takes, in days.
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
_RECORDS_TODO: Final = (
    "Write for example postgresql://app@db.example/shop or rediss://cache.example:6379, or give a table."
)
Alarms = Literal["none", "few", "all", "jobs"]
ALARMS: Final[tuple[Alarms, ...]] = ("none", "few", "all", "jobs")
_SLACK = re.compile(r"[0-9A-Z]{1,255}/[0-9A-Za-z]{1,255}")  # CloudFormation, AWS::Chatbot::SlackChannelConfiguration
_POLICY = re.compile(r"arn:[a-z-]+:iam::(aws|\d{12}):policy/[\w+=,.@/-]+")  # IAM API, CreateRole, PermissionsBoundary
_ROLE_PATH = re.compile(r"/|(?=.{3,512}$)/[\x21-\x7e]*/")  # same, Path
_KEY = re.compile(r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+")  # KMS developer guide, key ARN


class Stack(Struct, frozen=True, kw_only=True):
    """The choices of one deployment.

    Args:
        prefix: put before every name on AWS, for example `prod-`.
        table: of the records; unless given, prefix and app.
        layout: of the table's records; 2 is for new or migrated tables, and lets a function write its own jobs' only.
        records: URL of a store elsewhere (`redis://`, `postgresql://`) instead of a table.
        payloads: `bucket/prefix` for bodies over the queue's limit; None for none.
        kms_key: ARN of your own key for queues, table, logs and variables; None: AWS's keys.
        log_days: how long logs are kept.
        deletion_protection: the table cannot be deleted until this is taken back.
        disposable: queues and table are deleted with the stack; otherwise they are kept.
        later: a message whose `run_at` is beyond what SQS delays becomes a one-time schedule, which functions may then make.
        alarms: `all`; `few`: the indispensable ones; `jobs`: all, and one more for each job, which
            notifies instead of them; `none`.
        topic: the stack has an SNS topic of its own, which alarms notify.
        boundary: ARN of the permissions boundary of each role; None for none. role_path: path of each role, `/` and `/.../`.
        slack: `WORKSPACE/CHANNEL`, both by their ids: Amazon Q Developer in chat applications posts alarms there.
        tags: of every resource that can have some.
        overrides: of single resources, by logical id, or by address (`aws_sqs_queue.orders`) for Terraform: what is merged
            into the resource as it is written; None takes a value out.
    """

    prefix: str = ""
    table: str | None = None
    layout: Literal[1, 2] = 1
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
                raise errors.UsageError(f"{what}={value!r} cannot be right.", todo=f"Write for example {example}.")
        if self.log_days not in LOG_DAYS:
            raise errors.UsageError(
                f"Logs cannot be kept for {self.log_days} days.",
                todo=f"CloudWatch Logs knows {', '.join(map(str, LOG_DAYS))}.",
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
            meaning="It would be written into the template and in the function's settings for everyone who may read them.",
            todo="Leave it out, and give the function its password in another way, for example IAM authentication.",
        )
    if parts.scheme not in urls.SERVERS:
        raise errors.UsageError(
            f"Functions cannot keep their records in {redact.shown_url(url)}.",
            meaning="They share a table of the stack, Redis or PostgreSQL; a file would be one container's own.",
            todo=_RECORDS_TODO,
        )


def overridden(resources: dict[str, Any], overrides: Mapping[str, Mapping[str, Any]]) -> None:
    """Merge the owner's own values into resources.

    Args:
        resources: by the names that `overrides` uses; changed in place.

    Raises:
        UsageError: there is no such resource.
    """
    for name, changes in overrides.items():
        if name not in resources:
            near = difflib.get_close_matches(name, resources, n=1)
            raise errors.UsageError(
                f"There is no resource {name} to be overridden.",
                todo=f"Did you mean {near[0]}?" if near else "Take its name from the output of onefold synth.",
            )
        resources[name] = _merged(resources[name], changes)


def _merged(below: Any, above: Any) -> Any:
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    found = {**below, **{name: _merged(below.get(name), one) for name, one in above.items()}}
    return {name: one for name, one in found.items() if not (one is None and name in above)}


def stack_of(url: str) -> Stack:
    """The choices that an engine's URL makes; none when the engine is not on AWS.

    Args:
        url: of the app; an endpoint in it is for its own process and is left out.

    Raises:
        UsageError: a part of it cannot be right.
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


def engine_url(stack: Stack, group: str, late_dead: str | None = None) -> str:
    """The URL that functions and operators open, a pattern (see `names.py`).

    Args:
        group: of the schedules for messages that are due late; it is in the URL where the stack has them.
        late_dead: full name of the queue for messages that could not be delivered to FIFO queues; None for none.
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
