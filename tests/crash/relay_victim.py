"""A relay whose queues are in SQS; killed between a send and the removal of its rows, or after that.

    python -m tests.crash.relay_victim ENGINE OUTBOX NUMBER before|after

It kills itself at its NUMBERth removal of rows. The AWS settings in its environment name the server.
Does not contain: judging.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from onefold.clock import Never, SystemClock
from onefold.contracts.outbox import RowId
from onefold.runtime import relay
from tests.run.outbox_shop import OutboxShop


class Deadly:
    """An outbox table whose removal of rows kills the process."""

    def __init__(self, table: Any, number: int, *, is_before: bool) -> None:
        self._table, self._left, self._is_before = table, number, is_before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def remove(self, ids: Sequence[RowId]) -> None:
        self._left -= 1
        if self._left == 0 and self._is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        self._table.remove(ids)
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def main(engine: str, outbox: str, number: str, when: str) -> None:
    relay.TURN_MS = 500  # type: ignore[misc]  # the next relay need not wait for half a minute
    shop = OutboxShop(engine, outbox)
    one = shop.relay(lambda table: Deadly(table, int(number), is_before=when == "before"))
    while not one.check():  # the previous relay's turn may not be over yet
        SystemClock().wait(Never(), 50)


if __name__ == "__main__":
    main(*sys.argv[1:])
