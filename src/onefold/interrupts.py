"""Exceptions that are nobody's own: those that the handler of a signal raises in the middle of something else.

Python runs such a handler between any two calls of the main thread, so its exception seems to come from whatever runs there:
a Ctrl-C that is caught, the interrupt of a notebook, a time limit by `signal.alarm`. Who gives each piece of work its own
error must not give one of them that.
Never here: handlers of ours. Invariant: an exception that no handler of a signal raised is never taken for one.
"""

from __future__ import annotations

import functools
import signal
import threading
from types import CodeType
from typing import Final

_LAYERS_MAX: Final = 20  # ours: of partials and decorators around a handler


def is_of_a_signal(error: BaseException) -> bool:
    """Whether the handler of a signal raised this; of an exception that was just caught.

    Partials and decorated handlers are seen through. A handler that is not written in Python cannot be seen; Python's own
    one raises KeyboardInterrupt. Neither can what another thread raises here (`PyThreadState_SetAsyncExc`).
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    codes = {code for one in signal.valid_signals() for code in _codes(signal.getsignal(one))}
    place = error.__traceback__
    while place is not None:
        if place.tb_frame.f_code in codes:
            return True
        place = place.tb_next
    return False


def _codes(handler: object) -> list[CodeType]:
    """The code of a handler, and of what it wraps."""
    found: list[CodeType] = []
    for _ in range(_LAYERS_MAX):
        if not callable(handler):
            break
        if isinstance(handler, functools.partial):
            handler = handler.func
            continue
        function = getattr(handler, "__func__", handler)
        if not hasattr(function, "__code__"):  # an object that can be called
            function = getattr(type(handler).__call__, "__func__", type(handler).__call__)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            found.append(code)
        handler = getattr(handler, "__wrapped__", None)
    return found
