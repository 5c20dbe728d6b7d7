"""The paths for machines: `/metrics` for Prometheus, and `/readyz`.

The metrics are those of the engine: depths, ages, paused jobs, runs, reconciliations, with the same names as on a
worker. What a worker counts (durations, outcomes) is on its own `--metrics`. Never here: which metrics there are
(`observe/metrics.py`), who may ask (`safety.py`).
Invariants: a request changes nothing; requests that come together are answered from one reading.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from onefold import errors
from onefold.admin.session import AdminSession
from onefold.observe.metrics import gauges
from onefold.observe.prometheus import CONTENT_TYPE, exposition
from onefold.observe.readings import Reader
from onefold.web.exchange import WebAnswer

if TYPE_CHECKING:
    from onefold.app import App

_TEXT: Final = ("Content-Type", "text/plain; charset=utf-8")


class EngineNumbers:
    """The numbers of one engine.

    Args:
        app: its jobs and reconciliations are listed even if none has run yet; None if only the engine is known.
    """

    def __init__(self, session: AdminSession, app: App | None) -> None:
        self._engine = session.engine
        reconciled = sorted({one.of for one in app.reconcilers.values()}) if app is not None else ()
        self._reader = Reader(
            session.engine, session.clock, jobs=app.jobs if app is not None else (), reconciled=reconciled
        )
        self._reading = threading.Lock()

    def exposition(self) -> WebAnswer:
        """The metrics in Prometheus's text format; status 503 if the engine cannot be read."""
        try:
            with self._reading:
                readings = self._reader.read()
            text = exposition(gauges(readings))
        except errors.OnefoldError as error:
            return WebAnswer(status=503, body=f"{error.code}: {error.what}\n{error.todo}\n".encode(), headers=(_TEXT,))
        return WebAnswer(status=200, body=text, headers=(("Content-Type", CONTENT_TYPE),))

    def ready(self) -> WebAnswer:
        """Whether the engine answers, and nothing else, because anybody may ask."""
        try:
            self._engine.state.get(["readyz"])
        except errors.OnefoldError as error:
            return WebAnswer(status=503, body=f"{error.code}: the engine does not answer\n".encode(), headers=(_TEXT,))
        return WebAnswer(status=200, body=b"ok\n", headers=(_TEXT,))
