"""An emulator of AWS for the deployments of one test session, and stacks that look often instead of every two seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from onefold.deploy.apply import LiveStack
from onefold.engines.aws.session import Session, aws_errors
from tests.emulators import servers

BUCKET = "code-bucket"
REGION = "eu-west-1"


def pause(_ms: int) -> None:
    """Let the emulator work; it needs milliseconds where CloudFormation needs minutes."""
    threading.Event().wait(0.02)


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    with servers.ministack() as url:
        yield url


@pytest.fixture
def session(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """Clients of the emulator, and a bucket for packages."""
    for name, value in servers.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    made = Session(REGION, {"*": endpoint})
    s3 = made.client("s3")
    if BUCKET not in {one["Name"] for one in s3.list_buckets()["Buckets"]}:
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    yield made
    made.close()


@pytest.fixture
def stack(session: Session) -> Callable[[str], LiveStack]:
    def make(name: str) -> LiveStack:
        return LiveStack(session.client("cloudformation"), name, aws_errors=aws_errors, pause=pause)

    return make
