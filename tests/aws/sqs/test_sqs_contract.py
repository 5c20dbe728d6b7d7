"""SQS passes the whole Queue contract over its wire, against `onefold serve` on a virtual clock.

The endpoint answers as recorded from AWS (docs/conformance.md). What SQS cannot do is skipped by the capabilities that the
adapter declares.
"""

from __future__ import annotations

import pytest

from onefold.engines.aws.session import Session
from onefold.engines.aws.sqs import Sqs
from onefold.entropy import SystemEntropy
from onefold.testing.endpoint import Endpoint
from onefold.testing.queue_contract import QueueContract
from tests.aws.sqs.rig import EndpointClock


class TestOverTheWire(QueueContract):
    @pytest.fixture(autouse=True)
    def open_queues(self, endpoint: Endpoint, shared_session: Session) -> None:
        endpoint.reset()
        self.clock = EndpointClock(endpoint)
        self.queues = Sqs(shared_session, clock=self.clock, entropy=SystemEntropy(), prefix="app-", wait_s=0).admin
