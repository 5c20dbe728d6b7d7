"""The redrives that this page has begun, each in its own thread, so that it can be watched and stopped.

A redrive ends by itself if the messages it sent fail again (`admin/redrive.py`). If the page's process ends, what was
sent stays sent. Never here: choosing messages, when a redrive ends. Invariant: a redrive that ends early states why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from onefold import errors
from onefold.admin.redrive import Redrive, Tally
from onefold.admin.session import AdminSession

_REMEMBERED: Final = 50  # redrives whose outcome can still be seen


class RunningRedrive:
    """A redrive in its own thread.

    Attributes:
        number: identifies it in its page's address. queue: the dead-letter queue. actor, reason: who began it, and why.
        tally: its progress. problem: why it stopped early; empty if it did not.
    """

    def __init__(self, number: str, queue: str, redrive: Redrive, session: AdminSession, reason: str) -> None:
        self.number, self.queue, self.reason = number, queue, reason
        self.actor = session.actor
        self.tally: Tally = redrive.tally
        self.problem = ""
        self.is_over = False
        self._redrive = redrive
        self._session = session
        self._stopping = False

    def stop(self) -> None:
        """Send no more; what was sent stays sent."""
        self._stopping = True

    def step(self) -> int:
        """Send what may be sent now, check what was sent before, and return the milliseconds until the next step."""
        wait_ms = 0
        try:
            wait_ms = self._redrive.step() if not self._stopping else 0
            self.tally = self._redrive.tally
            if self._stopping and not self.tally.end:
                self.tally = msgspec.structs.replace(self.tally, end="interrupted")
        except errors.OnefoldError as error:
            self.problem = str(error)
        self.is_over = bool(self.tally.end or self.problem)
        return wait_ms

    def run(self) -> None:
        """Carry the redrive out."""
        while not self.is_over:
            wait_ms = self.step()
            if not self.is_over:
                self._session.clock.wait(self._session.never, wait_ms)


def _in_a_thread(one: RunningRedrive) -> None:
    threading.Thread(target=one.run, name=f"onefold-redrive-{one.number}", daemon=True).start()


class RunningRedrives:
    """The redrives that this page has begun, the latest 50.

    Args:
        spawn: runs a redrive in the background; in a thread unless given.
    """

    def __init__(self, spawn: Callable[[RunningRedrive], None] | None = None) -> None:
        self._spawn = spawn or _in_a_thread
        self._found: dict[str, RunningRedrive] = {}
        self._lock = threading.Lock()

    def begin(self, queue: str, redrive: Redrive, session: AdminSession, reason: str) -> RunningRedrive:
        """Start a redrive."""
        with self._lock:
            one = RunningRedrive(session.entropy.token(), queue, redrive, session, reason)
            self._found[one.number] = one
            for old in [each for each in self._found.values() if each.is_over][
                : max(len(self._found) - _REMEMBERED, 0)
            ]:
                del self._found[old.number]
        self._spawn(one)
        return one

    def one(self, number: str) -> RunningRedrive:
        """A redrive by its number.

        Raises:
            NotFoundError: this page has not begun it, or it ended long ago.
        """
        if number not in self._found:
            raise errors.NotFoundError(
                "This page does not know that redrive.",
                meaning="It was begun by another process, or the page was started again since. What it sent stays sent.",
                todo="See the audit page for what was sent.",
            )
        return self._found[number]
