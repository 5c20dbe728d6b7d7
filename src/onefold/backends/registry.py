"""URL scheme to backend: imports that one backend now, and names the extra that is missing.

    sqlite:///relative/path.db  sqlite:////absolute/path.db  sqlite://:memory:      queues and records in one file
    aws://REGION?table=...                                                          SQS, and records in DynamoDB
    aws://REGION?records=redis://... or postgresql://...                            SQS, and records there
    dynamodb://REGION/TABLE  redis://...  postgresql://...                          records alone, for `onefold.once`

Never here: settings of an app, declared queues. Invariant: importing this module imports no backend.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from onefold import errors
from onefold.clock import SystemClock
from onefold.steady_clock import steady

if TYPE_CHECKING:
    from onefold.backends.sqlite.file import FileSettings
    from onefold.contracts.engine import Books, Engine
    from onefold.contracts.verbs import Store
    from onefold.outside import Clock, Entropy

ENGINES: Final = ("sqlite", "aws")
SERVERS: Final = ("redis", "rediss", "postgresql", "postgres")  # of records, somewhere on a network of the user's
STORES: Final = ("sqlite", "dynamodb", *SERVERS)
_EXTRAS: Final = {
    "boto3": "aws",
    "botocore": "aws",
    "redis": "redis",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
}


def open_engine(
    url: str,
    *,
    clock: Clock,
    entropy: Entropy,
    owner: str,
    file: FileSettings | None = None,
    records_alone: bool = False,
    looks: bool = False,
) -> Engine:
    """Open the backend a URL names, creating its file when it is not there.

    Args:
        file: what may be chosen about an embedded engine's file; None: what workers have.
        records_alone: a store for records is opened too, as an engine without queues: for who looks at it and settles.
        looks: nothing is to be written: a file that this user may only read is opened for reading.

    Raises:
        UsageError: unknown scheme, malformed URL, or the extra that the backend needs is not installed.
        StorageError: the file, table, schema or server cannot be used.
    """
    scheme, rest = _split(url, "sqlite:///.onefold/shop.db, sqlite://:memory: or aws://eu-west-1?table=shop")
    if scheme == "sqlite":
        from onefold.backends.sqlite.engine import SqliteEngine
        from onefold.backends.sqlite.file import FOR_WORKERS, path_of

        return SqliteEngine(
            path_of(url, rest), clock=clock, entropy=entropy, owner=owner, url=url,
            settings=file or FOR_WORKERS, looks=looks,
        )  # fmt: skip
    if scheme == "aws":
        return _open_aws(url, clock, entropy)
    if scheme in STORES and records_alone:
        return _open_alone(url, clock, entropy)
    if scheme in STORES:
        raise errors.UsageError(
            f"{url!r} is a store for records; an app needs queues too.",
            todo="Use aws://REGION?records=URL for an app, or onefold.store(URL) for @onefold.once.",
        )
    known = dict.fromkeys((*ENGINES, *STORES)) if records_alone else ENGINES
    raise errors.UsageError(
        f"{url!r}: there is no engine {'or store ' if records_alone else ''}{scheme!r}.",
        meaning=f"Known schemes: {', '.join(known)}.",
        todo="Use the URL of one of these." if records_alone else "Use a sqlite:/// or an aws:// URL.",
    )


def is_records_alone(url: str) -> bool:
    """Whether a URL is that of a store for records, which has no queues."""
    scheme = url.partition("://")[0]
    return scheme in STORES and scheme not in ENGINES


def _open_alone(url: str, clock: Clock, entropy: Entropy) -> Engine:
    """A store for records as an engine. Nothing is made in it, and until something is settled nothing is written."""
    from onefold.backends import joined, no_queues

    books, _ = _open_books(url, clock, entropy)
    queues: Any = no_queues.NoQueues(url)
    return joined.JoinedEngine(
        url, lambda: queues, books, known_queue=queues.open, provisioned=True, close_queues=lambda: None
    )


def open_store(url: str, *, clock: Clock, entropy: Entropy) -> Store:
    """A record store alone, for the guard on any function.

    What makes the store less durable than it should be is told as a warning. Of an app's own URL (`ENGINES`) nothing is
    asked: its workers do that when they start, and functions may not (`Books.check`).

    Raises:
        as `open_engine`.
    """
    scheme, _ = _split(url, "sqlite:///records.db, redis://localhost/0 or postgresql://localhost/shop")
    if scheme in ENGINES:
        return open_engine(url, clock=clock, entropy=entropy, owner=entropy.token()).store
    books, _ = _open_books(url, clock, entropy)
    for warning in books.check():
        warnings.warn(warning, stacklevel=3)
    return books.store


def _split(url: str, examples: str) -> tuple[str, str]:
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise errors.UsageError(f"{url!r} is not an engine URL.", todo=f"Write for example {examples}.")
    return scheme, rest


# -- aws -------------------------------------------------------------------------------------------------------------


def _open_aws(url: str, clock: Clock, entropy: Entropy) -> Engine:
    from onefold.backends import joined, places

    place = places.read(url)
    session = part("aws.session").Session(place.region, place.endpoints)
    payloads = None
    if place.bucket is not None:
        payloads = part("aws.payloads").Payloads(session, place.bucket, place.folder, entropy=entropy)
    later = None
    if place.later_group is not None:
        later = part("aws.sending").Later(session, group=place.later_group, role=place.later_role)
    books: Books
    if place.records is None:
        books, sweep = _dynamo(
            session, place.table, clock, entropy, create=place.create, batched=place.batched, layout=place.layout
        )
    else:
        books, sweep = _open_books(place.records, clock, entropy, create=place.create)
    sqs = part("aws.sqs").Sqs(
        session, clock=clock, entropy=entropy, prefix=place.prefix, payloads=payloads, later=later,
        state=lambda: books.state,
    )  # fmt: skip
    return joined.JoinedEngine(
        url,
        lambda: sqs.admin,
        books,
        known_queue=sqs.open,
        provisioned=not place.create,
        sweep=sweep,
        close_queues=session.close,
    )


Sweep = Callable[[], int] | None


def _open_books(url: str, clock: Clock, entropy: Entropy, *, create: bool = False) -> tuple[Books, Sweep]:
    scheme, _ = _split(url, "redis://localhost/0 or postgresql://localhost/shop")
    if scheme in ("redis", "rediss"):
        on_redis = part("redis.backend").RedisBackend.open(url, entropy=entropy)
        _go_by_server(clock, on_redis)
        return on_redis, None
    if scheme in ("postgresql", "postgres"):
        books = part("postgres.backend").PostgresBackend(url, clock=clock, create=create)
        _go_by_server(clock, books)
        return books, books.upkeep
    if scheme == "dynamodb":
        place = _dynamo_place(url)
        session = part("aws.session").Session(place.region, place.endpoints)
        return _dynamo(
            session,
            place.table,
            clock,
            entropy,
            create=create or place.create,
            batched=place.batched,
            layout=place.layout,
        )
    if scheme == "sqlite":
        from onefold.backends.sqlite.books import FileBooks

        engine = open_engine(url, clock=clock, entropy=entropy, owner=entropy.token())
        return FileBooks(engine), lambda: engine.maintain(_ignored)
    raise errors.UsageError(
        f"{url!r}: there is no record store {scheme!r}.",
        meaning=f"Known schemes: {', '.join(dict.fromkeys((*ENGINES, *STORES)))}.",
        todo="Use the URL of one of these.",
    )


def _go_by_server(clock: Clock, books: Any) -> None:
    """Leases on a server are compared by its own clock: machines that share it need not agree, nor stay as they are set."""
    books.store.clock = shared = steady(clock)
    if isinstance(shared.wall, SystemClock):
        shared.follow(books.server_ms)


def _ignored(_: str) -> None:
    """What a file's upkeep tells of its own queues, which nobody uses."""


def _dynamo(
    session: Any, table: str, clock: Clock, entropy: Entropy, *, create: bool, batched: bool, layout: int
) -> tuple[Books, Sweep]:
    books = part("aws.dynamodb.backend").DynamoBackend(session, table, clock, entropy, batched=batched, layout=layout)
    if create:
        books.create()
    return books, None


def migrating(url: str, *, clock: Clock, entropy: Entropy) -> tuple[Any, Any]:
    """The table that a URL names, as `aws.dynamodb.migration` takes it, and that module.

    Raises:
        UsageError: the URL names no table of DynamoDB, or the extra is not installed.
    """
    from onefold.backends import places

    scheme, _ = _split(url, "dynamodb://eu-west-1/onefold")
    if scheme not in ("aws", "dynamodb"):
        raise errors.UsageError(f"{url!r} names no table.", todo="Write for example dynamodb://eu-west-1/onefold.")
    place = places.read(url) if scheme == "aws" else _dynamo_place(url)
    if place.records is not None:
        raise errors.UsageError(f"The records of {url!r} are not in DynamoDB.", todo="Only tables there have layouts.")
    session = part("aws.session").Session(place.region, place.endpoints)
    table = part("aws.dynamodb.table").Table(session, place.table, clock, entropy, batched=place.batched)
    return table, part("aws.dynamodb.migration")


def _dynamo_place(url: str) -> Any:
    """`dynamodb://REGION/TABLE?...` as a place; the table may not be left out."""
    from onefold.backends import places

    parts = urlsplit(url)
    table = parts.path.strip("/")
    if not table:
        raise errors.UsageError(f"{url!r} names no table.", todo="Write for example dynamodb://eu-west-1/onefold.")
    options = [*parse_qsl(parts.query, keep_blank_values=True), ("table", table)]
    return places.read(f"aws://{parts.netloc}?{urlencode(options)}")


def part(name: str) -> Any:
    """A module of one backend.

    Raises:
        UsageError: a package it needs is not installed; names the extra.
    """
    try:
        return import_module(f"onefold.backends.{name}")
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise errors.UsageError(
            f"The package {error.name} is not installed.",
            meaning="onefold installs light; each backend comes with an extra.",
            todo=f"Run: pip install 'onefold[{extra}]'",
        ) from None
