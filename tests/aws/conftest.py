"""A local SQS on real time that the process's own AWS settings name, and the URL of an engine on it.

Never here: apps. Invariant: nothing of the machine's own AWS configuration is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.testing import Endpoint, sqs


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with sqs() as opened:
        for name, value in opened.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        yield opened


@pytest.fixture
def url(endpoint: Endpoint, tmp_path: Path) -> str:
    """Queues there, which are made when they are declared; records in a file."""
    return f"aws://{endpoint.region}?create=yes&records=sqlite:///{tmp_path}/records.db"
