"""A `Closer` of runs that is made when it is first needed, because it and its imports take a tenth of a cold start.

Never here: when a run is complete (`completion.py`). Invariant: only one is made, however many threads ask for it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onefold.contracts.engine import Engine
    from onefold.outside import Clock
    from onefold.runner.completion import Closer
    from onefold.runner.handlers import Job


class LateCloser:
    """A `Closer` that is made when it is first needed: in most functions no message belongs to a run.

    Args:
        as for `Closer`.
    """

    def __init__(self, engine: Engine, jobs: Mapping[str, Job[Any, Any]], clock: Clock) -> None:
        self._engine = engine
        self._jobs = jobs
        self._clock = clock
        self._since_ms = clock.monotonic_ms()
        self._lock = threading.Lock()
        self._made: Closer | None = None

    @property
    def in_use(self) -> bool:
        """Whether a message of a run has been settled here."""
        return self._made is not None

    def touch(self, name: str) -> None:
        """See `Closer.touch`."""
        self._closer().touch(name)

    def check(self, *, turns: bool = True) -> int:
        """See `Closer.check`."""
        return self._closer().check(turns=turns)

    def _closer(self) -> Closer:
        from onefold.runner.completion import Closer  # it imports `runs`: a tenth of a cold start, and few apps need it

        with self._lock:
            if self._made is None:
                self._made = Closer(self._engine, self._jobs, self._clock, self._since_ms)
            return self._made
