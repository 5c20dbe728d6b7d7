"""What the runtime and the runner ask of tracing, where an app has it: `observe/spans.py` does it with OpenTelemetry.

A sink with an attribute `tracing` provides it; an app without one only compares with None.
Never here: OpenTelemetry. Invariant: tracing decides nothing; an error in it never fails a job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from onefold.contracts.queue import Delivery
    from onefold.contracts.verbs import QueueReceiver
    from onefold.runtime.outgoing import Outgoing

T = TypeVar("T")
Ids = tuple[str | None, str | None]
"""A trace's id and a span's, in hexadecimal; None where there is none."""


class Tracing(Protocol):
    """Makes spans. Safe from any thread."""

    def sending(
        self, outgoing: Sequence[Outgoing], *, outbox: bool = False
    ) -> AbstractContextManager[Sequence[Outgoing]]:
        """While messages are sent, or put into a run's outbox: the messages, carrying the span's context."""
        ...

    def receiver(self, queue: QueueReceiver) -> QueueReceiver:
        """The same queue, with a span for each receive that brings messages."""
        ...

    def invoked(self, delivery: Delivery) -> Delivery:
        """A delivery of a Lambda function's event: the span of the invocation is its parent."""
        ...

    def processing(self, run: Any) -> AbstractContextManager[None]:
        """While an `Execution` is performed."""
        ...

    def settled(self, runs: Sequence[Any], settle: Callable[[], T]) -> T:
        """Settle runs."""
        ...

    def carried(self) -> str | None:
        """The context that is current here, to be carried elsewhere."""
        ...

    def within(self, carried: str | None) -> AbstractContextManager[None]:
        """As if what happens here happened where the context was carried from."""
        ...

    def ids(self, run: Any, delivery: Delivery) -> Ids:
        """Of a run's span; before it has one, of the span that sent its message."""
        ...

    def stamped(self, event: Any) -> Any:
        """The `Event` with the ids of the span that is current here, if one is."""
        ...
