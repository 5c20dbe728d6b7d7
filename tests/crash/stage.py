"""What all histories of one walk share: a database, a job with its policy, and perhaps a planted fault.

Does not contain: what happens in a history (`world.py`). Invariant: every history begins with an empty database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import onefold
from onefold.contracts.verbs import Store
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.engines.sqlite.processes import free_in
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.runner.handlers import Job
from tests.crash.judge import Doubles
from tests.crash.plants import Plant

if TYPE_CHECKING:
    from tests.crash.world import Bounds, World

START_MS = 1_700_000_000_000


class Stage:
    """What all histories of one walk share: a database, a job with its policy, and perhaps a planted fault.

    Args:
        on_unknown: `rerun`, `hold`, `probe` (one that fences) or `look` (one that only looks).
        transactional: the effect is a row through ctx.connection.
        plant: wraps the store with a fault built in on purpose.
        deaf_to: rules of the judge whose breach is ignored.
        calls: if given, workers take no messages but call a function under `onefold.once`: `plain`, or `followed` by a
            sink. crashes: after this many crashes such an operation is held.
    """

    def __init__(
        self,
        on_unknown: str,
        *,
        transactional: bool = False,
        plant: Callable[[Store], Plant] | None = None,
        deaf_to: Collection[str] = (),
        calls: Literal["plain", "followed"] | None = None,
        crashes: int = 1_000,
    ) -> None:
        self.calls = calls
        self.crashes = crashes
        self.on_unknown = on_unknown
        self.transactional = transactional
        self.deaf_to = deaf_to
        self.doubles: Doubles = (
            "after doubt" if on_unknown == "rerun" and not transactional and crashes > 1 else "never"
        )
        self.probe_fences = on_unknown == "probe"
        self.engine = SqliteEngine(
            ":memory:",
            clock=ManualClock(START_MS),
            entropy=SeededEntropy(0),
            owner="nobody",
            url="sqlite://:memory:",
        )
        self.engine.database.write(lambda connection: connection.execute("CREATE TABLE effect (fence INTEGER)"))
        planted = plant(self.engine.store) if plant else None
        self.store: Store = planted or self.engine.store
        self.settlement = planted.settlement if planted else None
        self._world: World | None = None
        self.job = self._declare(on_unknown)

    def _declare(self, on_unknown: str) -> Job[Any, Any]:
        app = onefold.App("walk", url="sqlite://:memory:")
        queue = app.queue("orders", dead_letter=onefold.DeadLetter(after=1_000))

        def probe(order: dict[str, str], ctx: onefold.Context) -> onefold.Done | onefold.NotDone:
            assert self._world is not None
            return self._world.probe(ctx)

        @app.job(
            queue,
            key="{id}",
            effect="transactional" if self.transactional else "external",
            on_unknown=probe if on_unknown in ("probe", "look") else on_unknown,  # type: ignore[arg-type]
            retry=onefold.Retry(attempts=1_000, crashes=1_000),
        )
        def ship(order: dict[str, str], ctx: onefold.Context) -> int:
            assert self._world is not None
            return self._world.handle(ctx)

        return ship

    def world(self, bounds: Bounds) -> World:
        """The beginning of a history."""
        from tests.crash.call_world import CallWorld
        from tests.crash.world import World

        return World(self, bounds) if self.calls is None else CallWorld(self, bounds)

    def clear(self, world: World) -> None:
        """Empty the database for the next history."""
        self._world = world

        def run(connection: sqlite3.Connection) -> None:
            for table in ("onefold_record", "onefold_dead_owner", "onefold_ledger", "effect"):
                connection.execute(f"DELETE FROM {table}")

        self.engine.database.write(run)

    def row(self) -> sqlite3.Row | None:
        """The record as it is in the file."""
        columns = (
            "status, fence, owner, parked, doubt, started_fence, attempts, crashes, budget_closed, result, "
            "owner IN (SELECT owner FROM onefold_dead_owner) AS owner_dead, lease_until_ms"
        )

        def run(connection: sqlite3.Connection) -> sqlite3.Row | None:
            cursor = connection.cursor()
            cursor.row_factory = sqlite3.Row
            found: sqlite3.Row | None = cursor.execute(f"SELECT {columns} FROM onefold_record").fetchone()
            return found

        return self.engine.database.read(run)

    def end_owner(self, owner: str, now_ms: int) -> None:
        """End the leases of an owner that is known to be dead."""
        self.engine.database.write(lambda connection: free_in(connection, owner, "nobody", now_ms))

    def rows(self) -> int:
        """How many rows handlers have left."""
        count: int = self.engine.database.read(
            lambda connection: connection.execute("SELECT count(*) FROM effect").fetchone()[0]
        )
        return count

    def close(self) -> None:
        self.engine.close()


@contextmanager
def staged(on_unknown: str, **options: Any) -> Iterator[Stage]:
    """A stage that is closed at the end."""
    stage = Stage(on_unknown, **options)
    try:
        yield stage
    finally:
        stage.close()
