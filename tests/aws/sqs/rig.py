"""What tests of the SQS adapter share: a virtual clock over the wire, sessions, and a hook between boto3 and the server.

Never here: an expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import boto3
import botocore.exceptions

from onefold import limits
from onefold.contracts.queue import Reason
from onefold.engines.aws.session import Session
from onefold.manual_clock import ManualClock
from onefold.testing.endpoint import Endpoint

FOURTEEN_DAYS = 14 * limits.DAY_MS
WRONG = Reason(kind="permanent", summary="the address does not exist", error="AddressError", attempts=3)

Answer = Callable[..., Any]
Hook = Callable[[Mapping[str, Any], Answer], Any]


class EndpointClock(ManualClock):
    """A manual clock that takes the endpoint's time along."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.now_ms)
        self._endpoint = endpoint

    def advance(self, by_ms: int) -> None:
        self._endpoint.advance(timedelta(milliseconds=by_ms))
        super().advance(by_ms)


def keys() -> boto3.session.Session:
    """Credentials that mean nothing."""
    return boto3.session.Session(aws_access_key_id="test", aws_secret_access_key="test")


class Between:
    """A client with hooks: `hooks["send_message_batch"](request, answer)` stands for the call, `answer()` makes it.

    `answer(Entries=...)` makes it with other parameters.
    """

    def __init__(self, client: Any, hooks: Mapping[str, Hook], calls: list[str]) -> None:
        self._client = client
        self._hooks = hooks
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name in ("close", "exceptions", "meta"):
            return method

        def call(**request: Any) -> Any:
            self._calls.append(name)
            hook = self._hooks.get(name)
            return method(**request) if hook is None else hook(request, lambda **other: method(**{**request, **other}))

        return call


class HookedSession(Session):
    """A session whose clients can be put hooks on.

    Attributes:
        hooks: by method. calls: methods in the order they were called.
    """

    def __init__(self, region: str, endpoints: Mapping[str, str]) -> None:
        super().__init__(region, endpoints, session=keys())
        self.hooks: dict[str, Hook] = {}
        self.calls: list[str] = []

    def client(self, service: str, *, waits_s: float = 0.0) -> Any:
        return Between(super().client(service, waits_s=waits_s), self.hooks, self.calls)


def client_error(code: str, message: str = "said by the server", status: int = 400) -> botocore.exceptions.ClientError:
    """An answer of AWS that is an error."""
    answer = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(answer, "Operation")


def refuse(code: str, message: str = "said by the server", status: int = 400) -> Hook:
    """A hook: the server says no and does nothing."""

    def hook(_: Mapping[str, Any], __: Answer) -> Any:
        raise client_error(code, message, status)

    return hook


def lose_answer(_: Mapping[str, Any], answer: Answer) -> Any:
    """A hook: the server does it, and the answer does not arrive."""
    answer()
    raise botocore.exceptions.ReadTimeoutError(endpoint_url="http://127.0.0.1")


def fail_entries(fails: Callable[[Mapping[str, Any]], bool], times: int = 99, *, wrong: bool = False) -> Hook:
    """A hook: so many times, entries that `fails` picks are not done; `wrong`: and the server says they never will be."""
    left = [times]

    def hook(request: Mapping[str, Any], answer: Answer) -> Any:
        if left[0] <= 0:
            return answer()
        left[0] -= 1
        bad = [one for one in request["Entries"] if fails(one)]
        good = [one for one in request["Entries"] if not fails(one)]
        found = dict(answer(Entries=good)) if good else {}
        code = "Bad" if wrong else "InternalError"
        failed = [{"Id": one["Id"], "SenderFault": wrong, "Code": code, "Message": "no"} for one in bad]
        return {**found, "Failed": [*found.get("Failed", ()), *failed]}

    return hook
