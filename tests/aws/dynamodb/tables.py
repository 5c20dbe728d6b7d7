"""What the tests of the DynamoDB backend share beside fixtures: how a backend is opened, and a clock that never waits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import botocore.exceptions

from onefold.engines.aws.dynamodb.backend import DynamoBackend
from onefold.engines.aws.session import Session
from onefold.manual_clock import ManualClock
from onefold.outside import Waiter
from tests.emulators import dynamodb_stub
from tests.emulators.dynamodb_expressions import RefusedError

OpenBooks = Callable[..., DynamoBackend]


class HastyClock(ManualClock):
    """A wait that nothing can end takes no time, and is noted."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_ms: list[int] = []

    def wait(self, waiter: Waiter, timeout_ms: int) -> bool:
        self.waits_ms.append(timeout_ms)
        self.advance(timeout_ms)
        return waiter.wait(0)


class LocalClient:
    """What boto3's client of DynamoDB does, on a stub's tables in this process, without a server.

    Args:
        store: the tables. before: called before each operation with its name.
        loses: whether this call's answer is lost, so that botocore makes it again.
    """

    def __init__(
        self,
        store: dynamodb_stub.Store,
        before: Callable[[str], None] = lambda _: None,
        loses: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._before = before
        self._loses = loses

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        operation = "".join(part.title() for part in name.split("_"))

        def call(**request: Any) -> dict[str, Any]:
            self._before(operation)
            if self._loses():
                with contextlib.suppress(RefusedError):
                    self._store.operate(operation, request)
            try:
                return self._store.operate(operation, request)
            except RefusedError as error:
                told: Any = {"Error": {"Code": error.code, "Message": str(error)}, "Item": error.item or {}}
                raise botocore.exceptions.ClientError(told, operation) from error

        return call


class LocalSession(Session):
    """A session whose only client is a `LocalClient`."""

    def __init__(self, client: LocalClient) -> None:
        super().__init__("eu-west-1")
        self._local = client

    def client(self, service: str, *, waits_s: float = 0.0) -> Any:
        assert service == "dynamodb"
        return self._local
