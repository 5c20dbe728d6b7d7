"""Counts real calls of boto3: a hook in every client that an engine makes.

A call that botocore tries again, because the emulator was slow to answer, is one call. DynamoDB is asked for the
capacity that it consumed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from onefold.engines.aws.session import Session


class Counting:
    """What went out since it was last forgotten.

    Attributes:
        calls: `sqs:SendMessage` to how many.
        consumed: capacity units that DynamoDB reported, all kinds together; units of a refused write are not reported by
            botocore's errors and not in it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: Counter[str] = Counter()
        self.consumed = 0.0
        make = Session._make

        def hooked(session: Session, service: str, waits_s: float) -> Any:
            client = make(session, service, waits_s)
            events = client.meta.events
            events.register("before-call", self._count)
            events.register("provide-client-params.dynamodb", self._ask_capacity)
            events.register("after-call.dynamodb", self._add_capacity)
            return client

        monkeypatch.setattr(Session, "_make", hooked)

    def forget(self) -> None:
        """Begin anew."""
        self.calls.clear()
        self.consumed = 0.0

    def _count(self, event_name: str, **_: Any) -> None:
        _, service, operation = event_name.split(".")
        self.calls[f"{service}:{operation}"] += 1

    def _ask_capacity(self, params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        if "ReturnConsumedCapacity" in model.input_shape.members:
            return params | {"ReturnConsumedCapacity": "TOTAL"}
        return params

    def _add_capacity(self, parsed: dict[str, Any], **_: Any) -> None:
        found = parsed.get("ConsumedCapacity", [])
        for one in [found] if isinstance(found, dict) else found:
            self.consumed += one["CapacityUnits"]
