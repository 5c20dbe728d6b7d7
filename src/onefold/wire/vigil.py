"""How long the loop goes on looking after an answer, instead of sleeping at once.

A client that asks again as soon as it is answered finds the server asleep, and waking a process takes longer than most
answers: 40 us and more on a virtual machine. So the loop looks at its sockets a hundred times more, which takes about as
long. Where that was for nothing, because clients take their time or want this very core, it is not tried again for the
next 16 answers, then 32, and so on.
Never here: sockets, clocks (turns of the loop are counted). Invariant: a loop without requests sleeps.
"""

from __future__ import annotations

import asyncio
from typing import Final

TURNS: Final = 100  # of an idle loop: about a microsecond each
REST_MIN: Final = 16  # answers after which the loop sleeps at once, when a vigil was for nothing
REST_MAX: Final = 1_024


class Vigil:
    """The vigils of one loop.

    Args:
        loop: the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = 0  # turns of the vigil that is under way
        self._rest = 0  # answers until the next one
        self._rest_next = REST_MIN

    def answered(self) -> None:
        """A request was answered: another one may follow."""
        if self._left:  # it came in time
            self._left = TURNS
            self._rest_next = REST_MIN
        elif self._rest:
            self._rest -= 1
        else:
            self._left = TURNS
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._left -= 1
        if self._left:
            self._loop.call_soon(self._look)
        else:
            self._rest = self._rest_next
            self._rest_next = min(2 * self._rest_next, REST_MAX)
