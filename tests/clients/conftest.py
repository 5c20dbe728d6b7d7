"""One server in memory for the client tests of a test process, a queue of its own for each test, and boto3 to look with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest

from tests.clients.serving import CREDENTIALS, Reports, serving, unique


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with serving("--memory") as url:
        yield url


@pytest.fixture
def sqs(server: str) -> Iterator[Any]:
    """boto3's client."""
    client = boto3.client("sqs", endpoint_url=server, **CREDENTIALS)
    yield client
    client.close()


@pytest.fixture
def make_queue(sqs: Any) -> Callable[..., str]:
    """Creates a queue of this name and a random part; its URL."""

    def make(name: str = "queue", **attributes: str) -> str:
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        return str(sqs.create_queue(QueueName=unique(name), Attributes={**fifo, **attributes})["QueueUrl"])

    return make


@pytest.fixture
def reports() -> Iterator[Reports]:
    heard = Reports()
    yield heard
    heard.close()
