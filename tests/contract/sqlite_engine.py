"""A migrated engine for tests of the SQLite backend's parts."""

from __future__ import annotations

from pathlib import Path

from onefold.engines.sqlite.database import Database
from onefold.engines.sqlite.migrations import migrate
from onefold.manual_clock import ManualClock
from onefold.outside import Clock


def open_engine(path: Path | str, clock: Clock | None = None) -> Database:
    """An engine on a file or `:memory:`, with all tables."""
    engine = Database(str(path), clock or ManualClock())
    migrate(engine)
    return engine
