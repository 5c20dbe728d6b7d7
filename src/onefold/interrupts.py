"""Exceptions that are nobody's own: those that the handler of a signal raises in the middle of something else.

Python runs such a handler between any two calls of the main thread, so its exception seems to come from whatever runs there:
a Ctrl-C that is caught, the interrupt of a notebook, a time limit by `signal.alarm`. Who gives each piece of work its own
error must not give one of them that.
Never here: handlers of ours. Invariant: an exception that no handler of a signal raised is never taken for one.
"""

from __future__ import annotations

import signal
import threading
from types import CodeType


def is_of_a_signal(error: BaseException) -> bool:
    """Whether the handler of a signal raised this; of an exception that was just caught.

    A handler that is not written in Python cannot be seen; Python's own one raises KeyboardInterrupt.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = {_code(signal.getsignal(one)) for one in signal.valid_signals()} - {None}
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in codes:
            return True
        place = place.tb_next
    return False


def _code(handler: object) -> CodeType | None:
    if callable(handler) and not hasattr(handler, "__func__") and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    found = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return found if isinstance(found, CodeType) else None
