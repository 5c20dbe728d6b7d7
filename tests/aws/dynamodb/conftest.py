"""Tables for the tests of the DynamoDB backend: each test gets a new one, on the servers where what it asks is true.

ministack: everything used here is faithful, but errors of batched INSERTs hold no old item (one more read).
moto: no BatchExecuteStatement (500), no client tokens of transactions; so one call per record.
stub: `tests/emulators/dynamodb_stub.py`, with old items in batch errors as AWS's API reference has them; no Query, Scan,
transactions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import boto3
import pytest

from onefold.engines.aws.dynamodb import schema
from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.engines.aws.dynamodb.items import Layout
from onefold.engines.aws.dynamodb.schema import definition
from onefold.engines.aws.session import Session
from onefold.entropy import SeededEntropy
from tests.aws.dynamodb.tables import HastyClock, OpenBooks
from tests.emulators import dynamodb_stub, servers

_NUMBERS = itertools.count(1)
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def ministack() -> Iterator[str]:
    with servers.ministack() as url:
        yield url


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    with servers.moto() as url:
        yield url


@pytest.fixture
def stub() -> Iterator[dynamodb_stub.Stub]:
    with dynamodb_stub.serving() as stub:
        yield stub


@pytest.fixture(scope="session")
def shared() -> boto3.session.Session:
    """AWS's service models and credentials are read once, not by each test."""
    return boto3.session.Session(**{name.lower(): servers.CREDENTIALS[name] for name in _KEYS})


@pytest.fixture
def open_books(shared: boto3.session.Session) -> Iterator[OpenBooks]:
    """Opens the backend at an endpoint: on a new table, or on one that is named."""
    with ExitStack() as stack:

        def open_at(
            url: str,
            *,
            table: str | None = None,
            batched: bool = True,
            create: bool = True,
            tries: int = 3,
            boto: boto3.session.Session | None = shared,
            layout: Layout = 1,
        ) -> DynamoBackend:
            session = Session("eu-west-1", {"*": url}, session=boto, tries=tries, read_s=2)
            stack.callback(session.close)
            number = next(_NUMBERS)
            books = DynamoBackend(
                session, table or f"books-{number}", HastyClock(), SeededEntropy(number), batched=batched, layout=layout
            )
            if (
                create and table is None
            ):  # without time to live: ministack has a minute's reaper, and tests an early NOW
                bare = books.table.bare()
                bare.client.create_table(**definition(books.table.name))
                schema.mark_layout(bare)
                assert books.table.client  # its layout is known from here on, and costs no test a call
            return books

        yield open_at
