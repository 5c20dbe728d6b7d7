"""Threads for tests: many threads that start the same work at the same time.

They are for finding races, which show in the values that the threads return, so only these values are collected.
Never here: the work itself, assertions. Invariant: no thread waits forever, and an exception that is not one of
onefold's own errors is raised where the threads were started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final, TypeVar

from onefold.errors import OnefoldError

T = TypeVar("T")

PATIENCE_S: Final = 30.0  # for all threads to begin, and then again to end


def at_once(count: int, work: Callable[[int], T]) -> list[T | OnefoldError]:
    """Call `work(0)` to `work(count - 1)`, each in a thread of its own; returns their results in this order.

    One of onefold's errors counts as a result.

    Raises:
        BrokenBarrierError: not all threads could begin. TimeoutError: not all threads ended.
    """
    ready = threading.Barrier(count)
    answers: list[Future[T | OnefoldError]] = [Future() for _ in range(count)]

    def run(number: int) -> None:
        try:
            ready.wait(PATIENCE_S)
            answers[number].set_result(work(number))
        except OnefoldError as error:
            answers[number].set_result(error)
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            answers[number].set_exception(error)

    for number in range(count):  # daemon threads, which block neither the test nor the interpreter if they hang
        threading.Thread(target=run, args=(number,), name=f"at-once-{number}", daemon=True).start()
    _, hanging = wait(answers, PATIENCE_S)
    if hanging:
        raise TimeoutError(f"{len(hanging)} of {count} threads did not end within {PATIENCE_S:g} s.")
    return [one.result() for one in answers]
