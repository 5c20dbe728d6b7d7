"""URLs of engines and record stores: their options, and the backend that each opens.

    sqlite:///relative/path.db  sqlite:////absolute/path.db  sqlite://:memory:      queues and records in one file
    sqlite:///db.sqlite3?adopt=yes                                                  the same, in a file of the user's
    aws://REGION?table=...                                                          SQS, and records in DynamoDB
    aws://REGION?records=redis://... or postgresql://...                            SQS, and records there
    dynamodb://REGION/TABLE  redis://...  postgresql://...                          records alone, for `onefold.once`

    aws://eu-west-1?table=shop&prefix=shop-&payloads=my-bucket/shop

A URL is the same for every process of an app, so that it can be one environment variable (ONEFOLD_URL). Credentials are
never in an `aws://` URL: they come from boto3's own chain.

A backend is imported when a URL names it; if an extra is missing, the error names it. Never here: settings of an app,
declared queues. Invariant: importing this module imports no backend; the error for an unknown option names the option
that was probably meant.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, extras, owner_process, redact, settings
from onefold.clock import SystemClock, steady
from onefold.contracts.verbs import Store
from onefold.entropy import SystemEntropy
from onefold.outside import Clock, Entropy

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from onefold.contracts.engine import Engine, RecordBackend
    from onefold.contracts.outbox import OutboxTable
    from onefold.engines.sqlite.file import FileSettings


ENGINES: Final = ("sqlite", "aws")
SERVERS: Final = ("redis", "rediss", "postgresql", "postgres")  # servers of records, somewhere on the user's network
STORES: Final = ("sqlite", "dynamodb", *SERVERS)
_DRIVERS: Final = {
    ("sqlite3", "Connection"): "sqlite3",
    ("psycopg", "Connection"): "psycopg",
    ("psycopg", "AsyncConnection"): "psycopg-async",
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
}
_EXTRAS: Final = {"aws": ("AWS", "aws"), "redis": ("Redis", "redis"), "postgres": ("PostgreSQL", "postgres")}


def open_engine(
    url: str,
    *,
    clock: Clock,
    entropy: Entropy,
    owner: str,
    file: FileSettings | None = None,
    records_alone: bool = False,
    read_only: bool = False,
) -> Engine:
    """Open the backend a URL names, creating its file if it does not exist.

    Args:
        file: how an embedded engine opens its file; None for the settings of workers.
        records_alone: also open a store for records, as an engine without queues, for looking at records and settling
            them.
        read_only: nothing will be written, so a file that this user is only allowed to read is opened for reading.

    Raises:
        UsageError: the scheme is unknown, the URL malformed, or the extra that the backend needs not installed.
        StorageError: the file, table, schema or server cannot be used.
    """
    scheme, rest = _split(url, "sqlite:///.onefold/shop.db, sqlite://:memory: or aws://eu-west-1?table=shop")
    if scheme == "sqlite":
        of_file = part("sqlite.file")
        if of_file.adopts(url):
            file = replace(file or of_file.FOR_WORKERS, adopts=True)
        opened: Engine = part("sqlite.engine").SqliteEngine(
            of_file.path_of(url, rest), clock=clock, entropy=entropy, owner=owner, url=url,
            settings=file or of_file.FOR_WORKERS, read_only=read_only,
        )  # fmt: skip
        return opened
    if scheme == "aws":
        return _open_aws(url, clock, entropy)
    if scheme in STORES and records_alone:
        return _open_alone(url, clock, entropy)
    if scheme in STORES:
        raise errors.UsageError(
            f"{redact.shown_url(url)} is a store for records; an app needs queues too.",
            todo="Use aws://REGION?records=URL for an app, or onefold.store(URL) for @onefold.once.",
        )
    known = dict.fromkeys((*ENGINES, *STORES)) if records_alone else ENGINES
    raise errors.UsageError(
        f"{redact.shown_url(url)}: there is no engine {'or store ' if records_alone else ''}{scheme!r}.",
        meaning=f"Known schemes: {', '.join(known)}.",
        todo="Use the URL of one of these." if records_alone else "Use a sqlite:/// or an aws:// URL.",
    )


def is_records_alone(url: str) -> bool:
    """Whether a URL names a store for records, which has no queues."""
    scheme = url.partition("://")[0]
    return scheme in STORES and scheme not in ENGINES


def _open_alone(url: str, clock: Clock, entropy: Entropy) -> Engine:
    """A store for records as an engine. No table is created, and nothing is written until something is settled."""
    backend, _ = _open_records(url, clock, entropy)
    queues: Any = part("composite").NoQueues(url)
    engine: Engine = part("composite").CompositeEngine(
        url, lambda: queues, backend, known_queue=queues.open, provisioned=True, close_queues=lambda: None
    )
    return engine


def open_store(url: str, *, clock: Clock, entropy: Entropy) -> Store:
    """A record store alone, for the guard on any function.

    Settings that make the store less durable than it should be are reported as warnings. An app's own URL (`ENGINES`)
    is not checked: its workers check it when they start, and functions may lack the permission (`RecordBackend.check`).

    Raises:
        as `open_engine`.
    """
    scheme, _ = _split(url, "sqlite:///records.db, redis://localhost/0 or postgresql://localhost/shop")
    store: Any
    if scheme in ENGINES:
        store = open_engine(url, clock=clock, entropy=entropy, owner=owner_process.owner_of(entropy.token())).store
    else:
        backend, _ = _open_records(url, clock, entropy)
        for warning in backend.check():
            warnings.warn(warning, stacklevel=3)
        store = backend.store
    store.location = _location(url)
    return cast("Store", store)


def _location(url: str) -> str | None:
    """The same text for all spellings of a file's URL; None in memory, where no two stores share their records."""
    scheme, _, rest = url.partition("://")
    if scheme != "sqlite":
        return url
    path: str = part("sqlite.file").path_of(url, rest)
    return None if path == ":memory:" else os.path.realpath(path)


def _split(url: str, examples: str) -> tuple[str, str]:
    if not isinstance(url, str):
        raise errors.UsageError(f"url={url!r:.80} is not a URL: it is not text.", todo=f"Write for example {examples}.")
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[\w+.-]{1,31}", scheme):
        raise errors.UsageError(f"{redact.shown_url(url)} is not an engine URL.", todo=f"Write for example {examples}.")
    return scheme, rest


# -- aws -------------------------------------------------------------------------------------------------------------


def _open_aws(url: str, clock: Clock, entropy: Entropy) -> Engine:
    parsed = read_aws(url)
    session = part("aws.session").Session(parsed.region, parsed.endpoints)
    payloads = None
    if parsed.bucket is not None:
        payloads = part("aws.payloads").Payloads(session, parsed.bucket, parsed.folder, entropy=entropy)
    later = None
    if parsed.later_group is not None:
        later = part("aws.sending").Later(
            session, group=parsed.later_group, role=parsed.later_role, dead=parsed.later_dead
        )
    backend: RecordBackend
    if parsed.records is None:
        backend, sweep = _dynamo(
            session, parsed.table, clock, entropy, create=parsed.create, batched=parsed.batched, layout=parsed.layout
        )
    else:
        backend, sweep = _open_records(parsed.records, clock, entropy, create=parsed.create)
    sqs = part("aws.sqs").Sqs(
        session, clock=clock, entropy=entropy, prefix=parsed.prefix, payloads=payloads, later=later,
        state=lambda: backend.state,
    )  # fmt: skip
    engine: Engine = part("composite").CompositeEngine(
        url,
        lambda: sqs.admin,
        backend,
        known_queue=sqs.open,
        provisioned=not parsed.create,
        sweep=sweep,
        close_queues=session.close,
    )
    return engine


Sweep = Callable[[], int] | None


def _open_records(url: str, clock: Clock, entropy: Entropy, *, create: bool = False) -> tuple[RecordBackend, Sweep]:
    scheme, _ = _split(url, "redis://localhost/0 or postgresql://localhost/shop")
    if scheme in ("redis", "rediss"):
        on_redis = part("redis.backend").RedisBackend.open(url, entropy=entropy)
        _go_by_server(clock, on_redis)
        return on_redis, None
    if scheme in ("postgresql", "postgres"):
        backend = part("postgres.backend").PostgresBackend(url, clock=clock, create=create)
        _go_by_server(clock, backend)
        return backend, backend.upkeep
    if scheme == "dynamodb":
        parsed = _read_dynamodb(url)
        session = part("aws.session").Session(parsed.region, parsed.endpoints)
        return _dynamo(
            session,
            parsed.table,
            clock,
            entropy,
            create=create or parsed.create,
            batched=parsed.batched,
            layout=parsed.layout,
        )
    if scheme == "sqlite":
        engine = open_engine(url, clock=clock, entropy=entropy, owner=entropy.token())
        return part("sqlite.engine").FileBooks(engine), lambda: engine.maintain(_ignored)
    raise errors.UsageError(
        f"{redact.shown_url(url)}: there is no record store {scheme!r}.",
        meaning=f"Known schemes: {', '.join(dict.fromkeys((*ENGINES, *STORES)))}.",
        todo="Use the URL of one of these.",
    )


def _go_by_server(clock: Clock, backend: Any) -> None:
    """Make the store use the server's clock for leases, so that the clocks of machines that share it need not agree."""
    backend.store.clock = shared = steady(clock)
    if isinstance(shared.wall, SystemClock):
        shared.follow(backend.server_ms)


def _ignored(_: str) -> None:
    """Discard what the maintenance of a file reports about its own queues, which are not used."""


def _dynamo(
    session: Any, table: str, clock: Clock, entropy: Entropy, *, create: bool, batched: bool, layout: int
) -> tuple[RecordBackend, Sweep]:
    backend = part("aws.dynamodb.backend").DynamoBackend(session, table, clock, entropy, batched=batched, layout=layout)
    if create:
        backend.create()
    return backend, None


def layout_migration(url: str, *, clock: Clock, entropy: Entropy) -> tuple[Any, Any]:
    """The table that a URL names, and the module `aws.dynamodb.migration`, whose functions take it.

    Raises:
        UsageError: the URL does not name a table of DynamoDB, or the extra is not installed.
    """
    scheme, _ = _split(url, "dynamodb://eu-west-1/onefold")
    if scheme not in ("aws", "dynamodb"):
        raise errors.UsageError(
            f"{redact.shown_url(url)} names no table.", todo="Write for example dynamodb://eu-west-1/onefold."
        )
    parsed = read_aws(url) if scheme == "aws" else _read_dynamodb(url)
    if parsed.records is not None:
        raise errors.UsageError(
            f"The records of {redact.shown_url(url)} are not in DynamoDB.", todo="Only tables there have layouts."
        )
    session = part("aws.session").Session(parsed.region, parsed.endpoints)
    table = part("aws.dynamodb.table").Table(session, parsed.table, clock, entropy, batched=parsed.batched)
    return table, part("aws.dynamodb.migration")


def _read_dynamodb(url: str) -> Any:
    """`dynamodb://REGION/TABLE?...` as an `aws://` URL; the table must be given."""
    from urllib.parse import parse_qsl, urlencode  # imports ipaddress; 2 ms that a file does not need

    parts = url_parts(url, "dynamodb://eu-west-1/onefold")
    table = parts.path.strip("/")
    if not table:
        raise errors.UsageError(
            f"{redact.shown_url(url)} names no table.", todo="Write for example dynamodb://eu-west-1/onefold."
        )
    options = [*parse_qsl(parts.query, keep_blank_values=True), ("table", table)]
    return read_aws(f"aws://{parts.netloc}?{urlencode(options)}")


def driver_of(connection: object) -> str | None:
    """The driver of a connection, if messages can be sent through it; otherwise None.

    Returns:
        `sqlite3` or `psycopg`, whose calls block; `psycopg-async` or `asyncpg`, whose calls are awaited.
    """
    for kind in type(connection).__mro__:  # imports no driver
        driver = _DRIVERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if driver is not None:
            return driver
    return None


def open_outbox(url: str) -> OutboxTable:
    """The outbox tables of a database; nothing is asked of it yet.

    Raises:
        UsageError: another scheme, a malformed URL, or the extra is not installed.
    """
    scheme, rest = _split(url, "postgresql://localhost/shop or sqlite:///shop.db")
    opened: OutboxTable
    if scheme == "dynamodb":
        return cast("OutboxTable", part("aws.dynamodb.outbox").DynamoOutbox(_outbox_table(url)))
    if scheme in ("postgresql", "postgres"):
        opened = part("postgres.outbox").PostgresOutbox(url)
    elif scheme == "sqlite":
        opened = part("sqlite.outbox").SqliteOutbox(part("sqlite.file").path_of(url, rest))
    else:
        raise errors.UsageError(
            f"{redact.shown_url(url)}: there is no outbox in {scheme}.",
            meaning="An outbox is a table of the database that the program writes its own rows to.",
            todo="Use a postgresql://, a sqlite:/// or a dynamodb:// URL.",
        )
    return opened


def outbox_sql(url: str) -> str:
    """The statements that make an outbox's tables; for DynamoDB, CreateTable's arguments. Errors as for `open_outbox`."""
    open_outbox(url)
    if url.startswith("dynamodb"):
        arguments: str = part("aws.dynamodb.outbox").definition(_read_dynamodb(url).table)
        return arguments
    sql: str = part("sqlite.outbox" if url.startswith("sqlite") else "postgres.outbox").SQL
    return sql


def _outbox_table(url: str) -> Any:
    parsed = _read_dynamodb(url)
    session = part("aws.session").Session(parsed.region, parsed.endpoints)
    return part("aws.dynamodb.table").Table(session, parsed.table, SystemClock(), SystemEntropy(), batched=False)


def outbox_action(url: str, app: str, queue: str, message: str, together: str, now_ms: int, token: str) -> Any:
    """See `put_action` of the outbox in DynamoDB.

    Raises:
        UsageError: the outbox is not in DynamoDB.
    """
    if url.partition("://")[0] != "dynamodb":
        raise errors.UsageError(
            f"The outbox of app {app} is {redact.shown_url(url)}, which accepts rows, not items.",
            meaning="Nothing was sent.",
            todo="Send with connection=, or give the app outbox='dynamodb://REGION/TABLE'.",
        )
    table = _read_dynamodb(url).table
    return part("aws.dynamodb.outbox").put_action(table, app, queue, message, together, now_ms, token)


def part(name: str) -> Any:
    """Import a module of one backend.

    Raises:
        UsageError: a package that it needs is not installed; names the extra.
    """
    backend = name.partition(".")[0]
    with extras.needed(*_EXTRAS.get(backend, ("The engine", "cli"))):
        return import_module(f"onefold.engines.{name}")


TABLE_DEFAULT: Final = "onefold"
_PREFIX: Final = r"[A-Za-z0-9_-]{0,40}"
_SERVICES: Final = ("sqs", "dynamodb", "s3", "scheduler")
_OPTIONS: Final = tuple(one.name for one in settings.AWS_URL)


class AwsUrl(Struct, frozen=True, kw_only=True):
    """A parsed `aws://` URL: where an app is on AWS.

    Args:
        region: for example `eu-west-1`.
        table: the table of records, history and state, if they are in DynamoDB.
        prefix: put before every queue's name.
        bucket, folder: where bodies over the limit are stored; None to refuse them.
        records: URL of another record store (`redis://`, `postgresql://`); None for DynamoDB.
        create: create what is missing (emulators, development).
        later_group, later_role: name of a schedule group and ARN of the role with which its schedules send, for
            messages that are due later than SQS can delay them; None to refuse those.
        later_dead: the full name of the standard queue for undeliverable messages of FIFO queues.
        batched: use DynamoDB's batch statements; off for emulators that do not have them.
        layout: layout of the table's records: 1 (they share the partition of their tenant) or 2 (each has its own,
            which begins with its job).
        endpoints: from service to URL; `*` for all services that are not named.
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
    later_dead: str | None = None
    batched: bool = True
    layout: Literal[1, 2] = 1
    endpoints: dict[str, str] = {}


def url_parts(url: str, example: str) -> SplitResult:
    """A parsed URL.

    Args:
        example: a correct URL, for the error.

    Raises:
        UsageError: its host or port is malformed.
    """
    from urllib.parse import urlsplit  # as above

    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:  # the error's text may contain a part of a password
        raise errors.UsageError(
            f"{redact.shown_url(url)} cannot be read: its host or port is malformed.",
            todo=f"Write for example {example}.",
        ) from None
    return parts


def read_aws(url: str) -> AwsUrl:
    """Parse an `aws://` URL.

    Raises:
        UsageError: it has no region, an unknown option or an impossible value.
    """
    from urllib.parse import parse_qsl  # as above

    parts = url_parts(url, "aws://eu-west-1?table=shop&prefix=shop-")
    region = parts.netloc
    if not _is_region(region) or parts.path not in ("", "/") or parts.fragment:
        raise errors.UsageError(
            f"{redact.shown_url(url)} names no region.",
            meaning="It begins with aws:// and a region, then options after a question mark.",
            todo="Write for example aws://eu-west-1?table=shop&prefix=shop-.",
        )
    options = dict(_option(url, name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True))
    if ("later" in options) != ("later_role" in options):
        raise errors.UsageError(
            f"{redact.shown_url(url)} has one of later and later_role without the other.",
            meaning="A one-time schedule needs a group and a role.",
            todo="Take the whole URL from the outputs of the stack (EngineUrl).",
        )
    bucket, _, folder = options.get("payloads", "").partition("/")
    endpoints = {
        "*" if name == "endpoint" else name: options[name] for name in ("endpoint", *_SERVICES) if name in options
    }
    return AwsUrl(
        region=region,
        table=options.get("table", TABLE_DEFAULT),
        prefix=options.get("prefix", ""),
        bucket=bucket or None,
        folder=folder,
        records=options.get("records"),
        later_group=options.get("later"),
        later_role=options.get("later_role"),
        later_dead=options.get("later_dead"),
        create=_yes(url, options, "create", default=False),
        batched=_yes(url, options, "batch", default=True),
        layout=2 if options.get("layout") == "2" else 1,
        endpoints=endpoints,
    )


def _is_region(text: str) -> bool:
    """Whether it is the name of a region, such as `eu-west-1`, `us-gov-east-1` or `eusc-de-east-1`."""
    first, *words, last = text.split("-") if text.count("-") >= 2 else ("", "", "")
    names = all(word.isalpha() and word.islower() for word in (first, *words))
    return text.isascii() and len(first) in (2, 4) and names and len(last) == 1 and last.isdigit()


def _option(url: str, name: str, value: str) -> tuple[str, str]:
    if name not in _OPTIONS:
        from difflib import get_close_matches  # imported only after a misspelling

        near = get_close_matches(name, _OPTIONS, n=1)
        raise errors.UsageError(
            f"{redact.shown_url(url)} has no option {name!r}.",
            todo=f"Did you mean {near[0]!r}?" if near else f"The options are: {', '.join(_OPTIONS)}.",
        )
    if not value:
        raise errors.UsageError(f"{redact.shown_url(url)}: {name} is empty.", todo="Give it a value, or leave it out.")
    if name == "prefix" and not re.fullmatch(_PREFIX, value):
        raise errors.UsageError(
            f"prefix={value!r} cannot begin a queue's name.", todo="Use up to 40 of A-Z a-z 0-9 - _."
        )
    if name == "layout" and value not in ("1", "2"):
        raise errors.UsageError(f"{redact.shown_url(url)}: there is no layout {value!r}.", todo="Write 1 or 2.")
    if name in ("endpoint", *_SERVICES) and not _is_endpoint(value):
        raise errors.UsageError(f"The option {name} is not a URL.", todo="Write for example http://127.0.0.1:9324.")
    return name, value


def _is_endpoint(value: str) -> bool:
    try:
        parts = url_parts(value, "")
    except errors.UsageError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _yes(url: str, options: dict[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name)
    if value is None:
        return default
    if value not in ("yes", "no"):
        raise errors.UsageError(
            f"{redact.shown_url(url)}: {name}={value!r} is neither yes nor no.", todo="Write yes or no."
        )
    return value == "yes"


def s3_client(url: str) -> Any:
    """boto3's client for S3, from which map runs read items and to which they write results.

    Region and endpoints come from an engine on AWS, otherwise from the environment; if that has no region, from
    us-east-1, which S3 redirects to the bucket's own region.

    Raises:
        UsageError: boto3 is not installed, or the region or endpoint is invalid.
    """
    if url.startswith("aws://"):
        parsed = read_aws(url)
        region, endpoints = parsed.region, parsed.endpoints
    else:
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        at = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        endpoints = {"s3": at} if at else {}
    return part("aws.session").Session(region, endpoints).client("s3")


def store(url: str, *, clock: Clock | None = None) -> Store:
    """A record store for `onefold.once`.

    Args:
        url: `sqlite:///records.db` (created if it does not exist), `redis://host/0`, `postgresql://host/shop`,
            `dynamodb://eu-west-1/onefold`, or an app's `aws://` URL.
        clock: source of time; the machine's own unless given.

    Raises:
        UsageError: the scheme is unknown, or an extra is not installed.
        StorageError: the file, table or server cannot be used.
    """
    if not isinstance(url, str):
        raise errors.UsageError(
            f"onefold.store({url!r:.80}): a store is named by a URL, as text.",
            meaning="None comes from a variable of the environment that is not set." if url is None else "",
            todo="Write for example onefold.store('sqlite:///records.db').",
        )
    return open_store(url, clock=clock or SystemClock(), entropy=SystemEntropy())


def memory_store() -> Store:
    """A store in this process's memory: for tests and for deduplication that need not survive a restart."""
    memory: Store = part("memory").MemoryStore()
    return memory
