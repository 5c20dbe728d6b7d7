"""Every setting that is not written in code (environment variables and the options of URLs) in one table, as data.

The reference page of settings is generated from this table, code that reads URL options accepts no others, and a test finds
every variable that the package reads and that is missing here.
Never here: reading a setting, checking its value. Invariant: a name that is not listed has no effect.
Private: may change with any release.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct


class Setting(Struct, frozen=True):
    """One setting.

    Args:
        name: the name of the variable or option.
        meaning: what it changes, in a sentence or two.
        values: which values are allowed.
        default: what applies without it.
        whose: who defined it: onefold, or another program whose convention onefold follows.
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
        "The app of commands that name none.",
        "`module:attribute`",
        "none",
    ),
    Setting(
        "ONEFOLD_SECRET",
        "The secret that signs the attributes of messages on SQS. Of several, the first signs and all are accepted, so "
        "that a secret can be replaced.",
        "32 characters or more each, separated by commas",
        "one that onefold makes and keeps with the records",
    ),
    Setting(
        "ONEFOLD_UNSIGNED_BEFORE",
        "Messages that SQS accepted before this time are trusted although they are not signed; for upgrades.",
        "an ISO time with a zone, `2026-12-01T12:00:00+00:00`",
        "none do",
    ),
    Setting(
        "ONEFOLD_ERROR_TEXT",
        "Whether exceptions' texts are kept in records, dead letters, logs and events; class and location always are.",
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
        "The secret that signs the alarms sent to a webhook (docs/alarms.md).",
        "text, or where it is stored: `env:NAME`, `file:/PATH`",
        "nothing is signed",
    ),
    Setting(
        "ONEFOLD_SMTP_URL",
        "The server that sends alarms by mail: with a login, and the sender as `?from=`.",
        "`smtp://USER:PASSWORD@HOST:587` or `smtps://HOST`, or where it is stored: `env:NAME`, `file:/PATH`",
        "`smtp://localhost:25`",
    ),
    Setting(
        "ONEFOLD_SLACK_API",
        "The address of Slack's Web API, for alarms to a channel (docs/alarms.md).",
        "a URL, or where it is stored: `env:NAME`, `file:/PATH`",
        "`https://slack.com/api`",
    ),
    Setting("ONEFOLD_DEBUG", "The command line shows an error's traceback.", "`1`", "three lines, no traceback"),
    Setting(
        "ONEFOLD_BUCKET", "The bucket for the package of `onefold deploy`; as `--bucket`.", "a bucket's name", "none"
    ),
    Setting(
        "ONEFOLD_SECRET_KEY",
        "The secret of `onefold serve --access-key`; like `--secret-key`, but not visible in the list of processes.",
        "text",
        "none; any credentials are accepted",
    ),
    Setting(
        "ONEFOLD_ADMIN_TOKEN",
        "The token that `/_onefold` of `onefold serve` requires; like `--admin-token`.",
        "text",
        "none",
    ),
    Setting(
        "ONEFOLD_WEB_TOKEN",
        "The token that opens the page of `onefold web`, 16 characters or more; like `--token`.",
        "text",
        "a random one that is printed at each start",
    ),
    Setting(
        "AWS_REGION",
        "The region of a Lambda handler whose app has no `aws://` URL, of a deployment that names none, and of S3 for map "
        "runs outside an `aws://` engine; otherwise `AWS_DEFAULT_REGION` is used.",
        "a region",
        "boto3's configuration",
        "AWS",
    ),
    Setting("AWS_DEFAULT_REGION", "As `AWS_REGION`, when that is not set.", "a region", "as above", "AWS"),
    Setting(
        "AWS_ENDPOINT_URL_S3",
        "The URL of S3 for map runs outside an `aws://` engine; otherwise `AWS_ENDPOINT_URL` is used.",
        "a URL",
        "AWS's own",
        "AWS",
    ),
    Setting("AWS_ENDPOINT_URL", "As `AWS_ENDPOINT_URL_S3`, when that is not set.", "a URL", "AWS's own", "AWS"),
    Setting("VISUAL", "The editor of `onefold dlq edit`; if absent, `EDITOR`.", "a program", "none", "the shell"),
    Setting("EDITOR", "As `VISUAL`, when that is not set.", "a program", "none", "the shell"),
    Setting(
        "COLUMNS",
        "The width of tables.",
        "a number",
        "the terminal's width; without a terminal, as wide as needed",
        "the shell",
    ),
    Setting(
        "SUDO_USER",
        "The person whom the history names for changes by a command that runs under sudo.",
        "a login",
        "the login of the process",
        "sudo",
    ),
)

# The options after `?` in a URL, by what the URL names.
AWS_URL: Final = (
    Setting("table", "The DynamoDB table of records, history and state.", "a table's name", "`onefold`"),
    Setting("prefix", "A prefix of every queue's name.", "up to 40 of `A-Z a-z 0-9 - _`", "none"),
    Setting("payloads", "Where bodies too large for the queue are stored.", "`bucket` or `bucket/folder`", "refused"),
    Setting(
        "records", "A store for records instead of DynamoDB.", "a `redis://`, `postgresql://` ... URL, escaped", "none"
    ),
    Setting(
        "create", "Make the table and queues that are missing: for emulators and development.", "`yes` or `no`", "`no`"
    ),
    Setting("batch", "Use DynamoDB's batch statements; `no` for emulators without them.", "`yes` or `no`", "`yes`"),
    Setting(
        "layout",
        "How the table partitions records: `1` by tenant, `2` each in a partition of its own, named by its job first.",
        "`1` or `2`",
        "`1`",
    ),
    Setting("endpoint", "The URL of all services, for emulators.", "an `http://` or `https://` URL", "AWS's own"),
    Setting("later", "The schedule group for messages that are due later than SQS can delay.", "a name", "refused"),
    Setting("later_role", "The role with which these schedules send.", "an ARN", "refused"),
    Setting(
        "later_dead",
        "The standard queue for late messages of FIFO queues that EventBridge Scheduler could not deliver.",
        "a queue's full name",
        "none",
    ),
    Setting("sqs", "The URL of SQS.", "an `http://` or `https://` URL", "`endpoint`"),
    Setting("dynamodb", "The URL of DynamoDB.", "an `http://` or `https://` URL", "`endpoint`"),
    Setting("s3", "The URL of S3.", "an `http://` or `https://` URL", "`endpoint`"),
    Setting("scheduler", "The URL of EventBridge Scheduler.", "an `http://` or `https://` URL", "`endpoint`"),
)
REDIS_URL: Final = (
    Setting("prefix", "A prefix of every key's name.", "text", "`of:`"),
    Setting("cluster", "The server is a cluster.", "`yes`", "a single server"),
)
POSTGRES_URL: Final = (
    Setting("schema", "The schema of the tables.", "a plain name of `a-z 0-9 _`", "`onefold`"),
    Setting("create", "Make the schema's tables if they are missing.", "`yes` or `no`", "`no`"),
)
