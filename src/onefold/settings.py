"""Every setting that is not written in code: environment variables, and the options of URLs. One table, as data.

The reference page of settings is generated from this table, code that reads URL options accepts no others, and a test finds
every variable that the package reads and this table lacks.
Never here: reading a setting, checking its value. Invariant: a name that is not listed has no effect.
Private: may change with any release.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Setting(Struct, frozen=True):
    """One setting.

    Args:
        name: of the variable.
        meaning: what it changes, in a sentence or two.
        values: what may be given.
        default: what holds without it.
        whose: who defined it: onefold, or another program whose convention we follow.
    """

    name: str
    meaning: str
    values: str
    default: str
    whose: str = "onefold"


ENVIRONMENT: Final = (
    Setting(
        "ONEFOLD_URL",
        "The engine of each app that has no `url=` of its own, and of commands that name neither an app nor a URL.",
        "a URL, see below",
        "`sqlite:///.onefold/<app>.db`; for commands the one file in `.onefold`",
    ),
    Setting(
        "ONEFOLD_OUTBOX",
        "The database with the outbox table of each app that has no `outbox=` of its own.",
        "a `postgresql://`, `sqlite:///` or `dynamodb://` URL",
        "none",
    ),
    Setting(
        "ONEFOLD_APP",
        "The app that commands are about when they name none.",
        "`module:attribute`",
        "none",
    ),
    Setting(
        "ONEFOLD_SECRET",
        "Signs on SQS what a message says beside its body. With several, the first signs and all are accepted, so that a "
        "secret can be replaced.",
        "32 characters or more each, commas between",
        "one that is made, and kept beside the records",
    ),
    Setting(
        "ONEFOLD_UNSIGNED_BEFORE",
        "Messages that SQS accepted before this instant are trusted although they are not signed: for upgrades.",
        "an ISO instant with a zone, `2026-12-01T12:00:00+00:00`",
        "none do",
    ),
    Setting(
        "ONEFOLD_ERROR_TEXT",
        "Whether what exceptions say is kept in records, dead letters, logs and events; their class and place always are.",
        "`on` or `off`",
        "`on`",
    ),
    Setting(
        "ONEFOLD_LOG_KEYS",
        "Whether log lines show business keys, tenants and groups, or a hash of each (docs/logs.md).",
        "`hashed` or `shown`",
        "`hashed`",
    ),
    Setting(
        "ONEFOLD_EMF",
        "A Lambda handler, or `onefold worker`, writes metrics for CloudWatch to standard output (docs/dashboards.md).",
        "`on` or `off`",
        "`off`",
    ),
    Setting(
        "ONEFOLD_ALARM_SECRET",
        "Signs what a webhook gets of alarms (docs/alarms.md).",
        "text, or where it is stored: `env:NAME`, `file:/PATH`",
        "nothing is signed",
    ),
    Setting(
        "ONEFOLD_SMTP_URL",
        "The server that sends alarms by mail: with a login, and the sender as `?from=`.",
        "`smtp://USER:PASSWORD@HOST:587` or `smtps://HOST`, or where it is stored: `env:NAME`, `file:/PATH`",
        "`smtp://localhost:25`",
    ),
    Setting("ONEFOLD_DEBUG", "The command line shows the traceback of an error.", "`1`", "three lines, no traceback"),
    Setting(
        "ONEFOLD_BUCKET", "The bucket for the package of `onefold deploy`; as `--bucket`.", "a bucket's name", "none"
    ),
    Setting(
        "ONEFOLD_SECRET_KEY",
        "The secret of `onefold serve --access-key`; as `--secret-key`, but not visible in the list of processes.",
        "text",
        "none; any credentials are accepted",
    ),
    Setting(
        "ONEFOLD_ADMIN_TOKEN",
        "The token that `/_onefold` of `onefold serve` requires; as `--admin-token`.",
        "text",
        "none",
    ),
    Setting(
        "ONEFOLD_WEB_TOKEN",
        "What opens the page of `onefold web`, 16 characters or more; as `--token`.",
        "text",
        "one that is drawn at each start and printed",
    ),
    Setting(
        "AWS_REGION",
        "The region of a Lambda handler whose app has no `aws://` URL, of a deployment that names none, and of S3 for map "
        "runs outside an `aws://` engine; `AWS_DEFAULT_REGION` is asked next.",
        "a region",
        "what boto3 is configured with",
        "AWS",
    ),
    Setting("AWS_DEFAULT_REGION", "As `AWS_REGION`, when that is not set.", "a region", "as above", "AWS"),
    Setting(
        "AWS_ENDPOINT_URL_S3",
        "Where map runs outside an `aws://` engine find S3; `AWS_ENDPOINT_URL` is asked next.",
        "a URL",
        "AWS's own",
        "AWS",
    ),
    Setting("AWS_ENDPOINT_URL", "As `AWS_ENDPOINT_URL_S3`, when that is not set.", "a URL", "AWS's own", "AWS"),
    Setting("VISUAL", "The editor of `onefold dlq edit`; `EDITOR` is asked next.", "a program", "none", "the shell"),
    Setting("EDITOR", "As `VISUAL`, when that is not set.", "a program", "none", "the shell"),
    Setting(
        "COLUMNS",
        "How wide tables are drawn.",
        "a number",
        "the terminal's width; without one, as wide as they need",
        "the shell",
    ),
    Setting(
        "SUDO_USER",
        "The person that the history names for a command's changes when it runs under sudo.",
        "a login",
        "the login of the process",
        "sudo",
    ),
)

# What follows `?` in a URL, by what the URL names.
AWS_URL: Final = (
    Setting("table", "The DynamoDB table of records, history and state.", "a table's name", "`onefold`"),
    Setting("prefix", "Before every queue's name.", "up to 40 of `A-Z a-z 0-9 - _`", "none"),
    Setting(
        "payloads", "Where bodies go that are larger than the queue takes.", "`bucket` or `bucket/folder`", "refused"
    ),
    Setting(
        "records", "Another store for records than DynamoDB.", "a `redis://`, `postgresql://` ... URL, escaped", "none"
    ),
    Setting(
        "create", "Make the table and queues that are missing: for emulators and development.", "`yes` or `no`", "`no`"
    ),
    Setting("batch", "Use DynamoDB's batch statements; `no` for emulators without them.", "`yes` or `no`", "`yes`"),
    Setting(
        "layout",
        "How records lie in the table: `1` by tenant, `2` each in a partition of its own, which begins with its job.",
        "`1` or `2`",
        "`1`",
    ),
    Setting("endpoint", "Where all services are, for emulators.", "an `http://` or `https://` URL", "AWS's own"),
    Setting("later", "The schedule group for messages that are due later than SQS can delay.", "a name", "refused"),
    Setting("later_role", "The role that its schedules send with.", "an ARN", "refused"),
    Setting(
        "later_dead",
        "The standard queue for late messages of FIFO queues that EventBridge Scheduler could not deliver.",
        "a queue's whole name",
        "none",
    ),
    Setting("sqs", "Where SQS is.", "an `http://` or `https://` URL", "`endpoint`"),
    Setting("dynamodb", "Where DynamoDB is.", "an `http://` or `https://` URL", "`endpoint`"),
    Setting("s3", "Where S3 is.", "an `http://` or `https://` URL", "`endpoint`"),
    Setting("scheduler", "Where EventBridge Scheduler is.", "an `http://` or `https://` URL", "`endpoint`"),
)
REDIS_URL: Final = (
    Setting("prefix", "Before the name of every key.", "text", "`of:`"),
    Setting("cluster", "The server is a cluster.", "`yes`", "a single server"),
)
POSTGRES_URL: Final = (
    Setting("schema", "Of the tables.", "a plain name of `a-z 0-9 _`", "`onefold`"),
    Setting("create", "Make the schema's tables when they are missing.", "`yes` or `no`", "`no`"),
)
