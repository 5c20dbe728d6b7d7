"""Threads for tests: the same work in many of them, begun together.

What is found out this way is a race; it shows in what the threads were answered, so answers are all there is here.
Never here: what the work is, an expectation. Invariant: nobody waits for ever, and an exception that is not one of onefold's
own errors is raised where the threads were started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from onefold.errors import OnefoldError

T = TypeVar("T")

PATIENCE_S: Final = 30.0  # for all of them to begin, and then to end


def at_once(count: int, work: Callable[[int], T]) -> list[T | OnefoldError]:
    """What `work(0)` to `work(count - 1)` answered, each in a thread of its own, in this order.

    An error of onefold is an answer.

    Raises:
        BrokenBarrierError: not all of them could begin. TimeoutError: not all of them ended.
    """
    ready = threading.Barrier(count)

    def run(number: int) -> T | OnefoldError:
        ready.wait(PATIENCE_S)
        try:
            return work(number)
        except OnefoldError as error:
            return error

    with ThreadPoolExecutor(count, thread_name_prefix="at-once") as pool:
        return list(pool.map(run, range(count), timeout=PATIENCE_S))
