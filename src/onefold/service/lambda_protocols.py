"""What a Lambda handler needs of an app and of a queue, as protocols.

`app.py` and `backends/aws/sqs.py` have the classes; tests have others. They are named in annotations and imported where
types are checked: nothing here is needed to run.
Never here: classes with code. Invariant: whatever fits can stand behind `LambdaHandler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from onefold import options as declared
from onefold.contracts.ledger import History
from onefold.contracts.queue import Delivery
from onefold.maps.jobs import MapJob
from onefold.run.events import Sink
from onefold.run.handlers import Job
from onefold.service.wiring import Runtime


class Declared(Protocol):
    """What a handler needs of an app."""

    url: str
    history: History
    sinks: tuple[Sink, ...]
    queues: dict[str, declared.Queue]
    jobs: dict[str, Job[Any, Any]]
    maps: dict[str, MapJob]

    def job_of(self, delivery: Delivery) -> Job[Any, Any]:
        """The job a delivery is for."""
        ...

    def runtime(self, url: str | None = None) -> Runtime:
        """The runtime, opened on this engine unless one is open."""
        ...


class Adopting(Protocol):
    """A queue that takes over messages which an event source mapping received."""

    def adopt(self, records: Sequence[Mapping[str, Any]], visible_ms: int) -> list[Delivery]:
        """The deliveries of records of a mapping's event, in order; `visible_ms`: how long the receive hides them."""
        ...

    def disown(self, receipts: Sequence[str]) -> None:
        """Lambda deletes these; what else belongs to them is removed."""
        ...
