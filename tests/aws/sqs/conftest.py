"""Endpoints for tests of the SQS adapter: `onefold serve` on a virtual clock, and the emulators."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import onefold.testing
from onefold.engines.aws.session import Session
from onefold.engines.aws.sqs import Sqs
from onefold.engines.aws.sqs_admin import SqsQueues
from onefold.entropy import SystemEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.endpoint import Endpoint
from tests.aws.sqs import rig
from tests.emulators import servers


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    with onefold.testing.sqs(clock="virtual", seed=1) as found:
        yield found


@pytest.fixture(scope="module")
def shared_session(endpoint: Endpoint) -> Iterator[Session]:
    found = Session(endpoint.region, {"*": endpoint.url}, session=rig.keys())
    yield found
    found.close()


@pytest.fixture(scope="module")
def hooked_session(endpoint: Endpoint) -> Iterator[rig.HookedSession]:
    found = rig.HookedSession(endpoint.region, {"*": endpoint.url})
    yield found
    found.close()


@pytest.fixture
def session(endpoint: Endpoint, hooked_session: rig.HookedSession) -> rig.HookedSession:
    """A session of an empty server, without hooks."""
    endpoint.reset()
    hooked_session.hooks.clear()
    hooked_session.calls.clear()
    return hooked_session


@pytest.fixture
def clock(endpoint: Endpoint) -> ManualClock:
    return rig.EndpointClock(endpoint)


@pytest.fixture
def queues(session: rig.HookedSession, clock: ManualClock) -> SqsQueues:
    return Sqs(session, clock=clock, entropy=SystemEntropy(), prefix="app-", wait_s=0).admin


@pytest.fixture(scope="session")
def ministack_url() -> Iterator[str]:
    with servers.ministack() as url:
        yield url


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    with servers.moto() as url:
        yield url


@pytest.fixture(params=["ministack", "moto"])
def emulator_url(request: pytest.FixtureRequest) -> str:
    """Both emulators, one after the other."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url
