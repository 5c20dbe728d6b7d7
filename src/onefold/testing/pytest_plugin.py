"""The pytest plugin: the fixture `sqs_endpoint`, a local SQS on real time that ends with the test.

pytest loads this module through its entry point in every test run in an environment with onefold, so it must cost
nothing until the fixture is requested. Never here: what an endpoint is (`testing/endpoint.py`).
Invariant: importing this module imports pytest and nothing else that is not loaded already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onefold.testing.endpoint import Endpoint


@pytest.fixture
def sqs_endpoint() -> Iterator[Endpoint]:
    """A local SQS with no queues: `sqs_endpoint.url`, `sqs_endpoint.boto3()`. See `onefold.testing.sqs`."""
    from onefold.testing.endpoint import sqs

    with sqs() as endpoint:
        yield endpoint
