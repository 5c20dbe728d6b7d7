"""The person of the third run: settles held invoices as somebody with the partner's books in hand would.

Waits until nothing is under way at the partner any more - before that its books may still change - looks at its books for
each held invoice, and says through the same service as `onefold held settle` whether the effect happened.
Here: looking and answering. Never here: a guess; what is not in the books when nothing is under way was not done.
Invariant: no answer is given while the partner still works on anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

import onefold
from onefold.demo.courier import Courier, Health
from onefold.demo.fulfilment import Booked
from onefold.errors import OnefoldError
from onefold.service import held
from onefold.service.desk import Desk, Jobs

if TYPE_CHECKING:
    from onefold.outside import Clock, Waiter

ACTOR = "person:demo"
CALM_MS = 200
"""The partner must have nothing under way twice, so far apart, with no request in between."""
WAIT_MS_MAX = 30_000
"""The slowest request takes the partner 1.5 s."""


class Settled(Struct, frozen=True, kw_only=True):
    """What the person said: how many invoices were done, and how many were not."""

    done: int = 0
    not_done: int = 0

    def __add__(self, other: Settled) -> Settled:
        return Settled(done=self.done + other.done, not_done=self.not_done + other.not_done)

    @property
    def all(self) -> int:
        """Both together."""
        return self.done + self.not_done


class Person:
    """Sits at the desk of a shop's engine.

    Args:
        app: the shop. courier: how to ask the partner.
    """

    def __init__(self, app: onefold.App, courier: Courier, *, clock: Clock, never: Waiter) -> None:
        jobs = Jobs(named=app.jobs, of=app.job_of, history=app.history)
        self._desk = Desk(app.runtime(), actor=ACTOR, jobs=jobs)
        self._courier = courier
        self._clock = clock
        self._never = never

    def waiting(self) -> list[held.Held]:
        """What is held now."""
        return held.listed(self._desk)

    def settle(self, told: Callable[[int], None]) -> Settled:
        """Settle everything that is held now; what was not done goes back to the queue.

        Args:
            told: hears before each invoice how many there are still.

        Raises:
            OnefoldError: the partner did not come to rest.
        """
        waiting = self.waiting()
        if waiting:
            self._wait_for_calm()
        settled = Settled()
        for place, one in enumerate(waiting):
            told(len(waiting) - place)
            bookings = self._courier.look(one.key).bookings
            held.settle(
                self._desk,
                one.key,
                done=bool(bookings),
                result=msgspec.json.encode(Booked(bookings[0])).decode() if bookings else None,
                reason_text=f"the partner's books show {bookings[0]}" if bookings else "not in the partner's books",
            )
            settled += Settled(done=1) if bookings else Settled(not_done=1)
        return settled

    def _wait_for_calm(self) -> None:
        before: Health | None = None
        for _ in range(WAIT_MS_MAX // CALM_MS):
            now = self._courier.health()
            if now.under_way == 0 and now == before:
                return
            before = now
            self._clock.wait(self._never, CALM_MS)
        raise OnefoldError(
            f"The partner still had something under way after {WAIT_MS_MAX} ms.",
            meaning="Its books may still change, so nothing can be settled by them.",
            todo="Run the demo again; if it stays, the partner is at fault.",
        )
