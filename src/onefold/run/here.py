"""The invoking thread as a lane: for a Lambda handler that runs one plain function after the other, or none at all.

As `executors.py`, without threads of its own: what is submitted has been performed when `submit` returns. Loaded by crews
that need it (`lambda_crew.py`).
Never here: which run comes next. Invariant: a handler runs in the thread that invoked it, as in any Lambda function.
"""

from __future__ import annotations

from onefold.run.executors import Threads, Unit


class Here(Threads):
    """Performs in the thread that submits."""

    def start(self) -> None:
        """Nothing is to be started."""

    def submit(self, unit: Unit) -> None:
        """Perform it now."""
        self._report(self._perform(unit))

    def end(self, *, wait: bool) -> None:
        """Nothing runs."""
