"""`thread_beside`: a thread that runs during a block, and whose failure is raised when the block ends.

Never here: what a thread does, how it is woken. Invariant: the block ends only when the thread has ended, or has not
ended within the time that the caller allows.
Private: may change with any release.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def thread_beside(
    name: str,
    run: Callable[[], None],
    stop: Callable[[], None],
    *,
    failed: Callable[[], None] = lambda: None,
    join_s: float | None = None,
) -> Iterator[None]:
    """Run a function in a thread of its own during the block.

    Args:
        name: the name of the thread.
        run: what it does; it returns soon after `stop` was called.
        stop: called when the block ends, by the thread that runs the block.
        failed: called in the thread when `run` has raised.
        join_s: seconds to wait for the thread after `stop`, before it is abandoned. None: until it has ended.

    Raises:
        Whatever ended the thread, when the block ends, unless the block itself raises.
    """
    raised: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits for it
            raised.append(error)
            failed()

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(join_s)
    if raised:
        raise raised[0]
