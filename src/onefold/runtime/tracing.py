"""What the runtime and the runner need from tracing, if an app has it; `observe/spans.py` does it with OpenTelemetry.

A sink with an attribute `tracing` provides it; without one, each use costs only a comparison with None.
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
"""The ids of a trace and of a span, in hexadecimal; None if there is none."""


class Tracing(Protocol):
    """Makes spans. Safe from any thread."""

    def sending(
        self, outgoing: Sequence[Outgoing], *, outbox: bool = False
    ) -> AbstractContextManager[Sequence[Outgoing]]:
        """A span while messages are sent or put into a run's outbox; yields the messages with the span's context."""
        ...

    def receiver(self, queue: QueueReceiver) -> QueueReceiver:
        """The same queue, with a span for each receive that brings messages."""
        ...

    def invoked(self, delivery: Delivery) -> Delivery:
        """The same delivery, of a Lambda function's event, with the span of the invocation as its parent."""
        ...

    def processing(self, run: Any) -> AbstractContextManager[None]:
        """A span for the time in which an `Execution` is performed."""
        ...

    def settled(self, runs: Sequence[Any], settle: Callable[[], T]) -> T:
        """Settle runs in a span; returns what `settle` returns."""
        ...

    def carried(self) -> str | None:
        """The current context as text, to be carried elsewhere."""
        ...

    def within(self, carried: str | None) -> AbstractContextManager[None]:
        """Makes the context that was carried here the current one inside the block."""
        ...

    def ids(self, run: Any, delivery: Delivery) -> Ids:
        """The ids of a run's span or, before it has one, of the span that sent its message."""
        ...

    def stamped(self, event: Any) -> Any:
        """The `Event` with the ids of the current span, if there is one."""
        ...
