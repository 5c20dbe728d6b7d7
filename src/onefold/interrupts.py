"""Exceptions that a signal handler raises in the middle of other code.

Python runs such a handler between any two bytecode instructions of the main thread, so its exception seems to come from
whatever code runs there. Examples are a Ctrl-C that is caught, the interrupt of a notebook, a time limit by
`signal.alarm`. Most time limits raise TimeoutError, which is an OSError; so an `except` for errors of the disk or a
server begins with `let_through`, and `ignored` replaces `suppress` (tests/architecture/test_interrupts.py). During a
fork signals are deferred (`Deferred`), because Python prints and discards what is raised in a fork hook.
Never here: permanent handlers. Invariant: an exception that no signal handler raised is never mistaken for one.
Private: may change with any release.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the C functions under `signal`, whose enumerations take 3 ms to import
import _thread
import functools
import inspect
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from opcode import opmap
from types import CodeType, FrameType, TracebackType
from typing import Any, Final

_SIGNALS: Final = tuple(int(number) for number in _signal.valid_signals())
_LAYERS_MAX: Final = 20  # our limit: levels of partials and decorators around a handler


# Exceptions that end a thread or the program, and that a user's types, key functions and probes may raise all the same.
ENDING: Final = (SystemExit, GeneratorExit, KeyboardInterrupt)


def may_be_ctrl_c() -> bool:
    """Whether a KeyboardInterrupt may come from Ctrl-C: it can only in the main thread, unless SIGINT is handled."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler


def let_through_of_types(error: BaseException) -> None:
    """Like `let_through`, for what users' types or key functions raised; their own `raise KeyboardInterrupt` is no Ctrl-C.

    Python handles Ctrl-C between instructions and inside calls, so a `raise` statement is not where its exception comes
    from.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if isinstance(error, KeyboardInterrupt) and trace is not None:
        at = trace.tb_frame.f_code.co_code[trace.tb_lasti]
        if at == opmap["RAISE_VARARGS"] and not _raised_by(error, {n: _signal.getsignal(n) for n in _SIGNALS}):
            return
    let_through(error)


def is_of_a_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this exception, which has just been caught.

    Partials and decorated handlers are recognised. Handlers that are not written in Python are not, except Python's
    own, which raises KeyboardInterrupt; nor are exceptions that another thread raises here
    (`PyThreadState_SetAsyncExc`).
    """
    if isinstance(error, KeyboardInterrupt) and may_be_ctrl_c():
        return True
    trace = error.__traceback__
    if trace is None or trace.tb_next is None:  # raised in the function that caught it, usually by a system call
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    return bool(_raised_by(error, {number: _signal.getsignal(number) for number in _SIGNALS}))


def let_through(error: BaseException) -> None:
    """Raise the exception of a signal handler, if this error is one or a library turned one into this error.

    An exception that the program was already handling when it called onefold does not count, since an outer function
    caught it.

    Args:
        error: the error that was just caught.

    Raises:
        BaseException: the handler's.
    """
    found: BaseException | None = None
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        if is_of_a_signal(one) and (one is error or not _is_dealt_with(one)):
            found = one  # the last one counts: urllib3 gives its own errors the traceback of their cause
        seen.add(id(one))
        one = one.__cause__ or one.__context__
    if found is not None:
        raise found


def stems_from_signal(error: BaseException, own: tuple[type[BaseException], ...] = ()) -> bool:
    """Whether the exception that ended a call came from a signal handler, or was made from such an exception in the call.

    It can be called in any thread, and after the handler was replaced: a handler is recognised by the frame that it is
    passed. An exception that the program was handling when it made the call does not count, and neither does one that
    the call itself handled.

    Args:
        error: the error that the caller has just caught.
        own: classes that the call itself raises about a time limit; their causes are not examined.
    """
    codes = {code for number in _SIGNALS for code in _codes(_signal.getsignal(number))}
    inside: set[FrameType] | None = None  # frames of the call
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        frames = _frames(one)
        if id(one) in seen or (inside is not None and not (frames and frames[0] in inside)):
            continue
        seen.add(id(one))
        if isinstance(one, KeyboardInterrupt) or any(
            after.f_code in codes or _is_passed(after, before) for before, after in pairwise(frames)
        ):
            return True
        inside = (inside or set()).union(frames[1:])
        if isinstance(one, BaseExceptionGroup):
            for part in one.exceptions:
                inside.update(_frames(part)[:1])
                waiting.append(part)
        if not isinstance(one, own):
            waiting += [led for led in (one.__cause__, one.__context__) if led is not None]
    return False


def _frames(error: BaseException) -> list[FrameType]:
    found, trace = list[FrameType](), error.__traceback__
    while trace is not None:
        found.append(trace.tb_frame)
        trace = trace.tb_next
    return found


def _is_passed(frame: FrameType, before: FrameType) -> bool:
    """Whether a function was called like a signal handler, with a signal's number and the interrupted frame."""
    code, given = frame.f_code, list[object]()
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        given += value if isinstance(value, tuple) else (value,)
    return any(one is before for one in given) and any(isinstance(one, int) and one in _SIGNALS for one in given)


class ignored(suppress):  # noqa: N801 - named like `suppress`
    """Like `contextlib.suppress`, but lets a signal handler's exception through."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Whether the exception is ignored."""
        if error is None or not super().__exit__(kind, error, trace):
            return False
        let_through(error)
        return True


def _is_dealt_with(error: BaseException) -> bool:
    """Whether a function that is still running has caught the error."""
    trace = error.__traceback__
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None and trace is not None:
        if frame is trace.tb_frame:
            return True
        frame = frame.f_back
    return False


def _raised_by(error: BaseException, handlers: Mapping[int, object]) -> list[int]:
    """The signals whose handlers raised the error and did not catch it."""
    codes = {number: _codes(handler) for number, handler in handlers.items()}
    trace, found = error.__traceback__ and error.__traceback__.tb_next, list[int]()
    while trace is not None:
        found += [number for number, known in codes.items() if trace.tb_frame.f_code in known]
        trace = trace.tb_next
    return found


class Deferred:
    """Defers signal handlers: signals are noted, and their handlers are called at the end.

    It is for the main thread, in which handlers run; in another thread it defers nothing.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._noted: list[int] = []

    def begin(self) -> None:
        """Start to note signals."""
        if threading.current_thread() is not threading.main_thread():
            return
        while True:
            try:
                self._replace()
            except BaseException as error:  # noqa: BLE001 - from a handler that is not replaced yet
                self.caught(error)
            else:
                return

    def end(self, *, deliver: bool) -> None:
        """Restore the signals' handlers.

        Args:
            deliver: call the handlers for the noted signals soon; False in a forked child, as the signals were the
                parent's.
        """
        if not self._handlers or threading.current_thread() is not threading.main_thread():
            return
        while True:
            try:
                self._restore()
                if self._noted and deliver:
                    _thread.start_new_thread(_deliver, (self._noted,))
                self._noted = []
            except RuntimeError:  # a thread cannot be started
                return
            except BaseException as error:  # noqa: BLE001 - from a restored handler, which is called again later
                self.caught(error)
            else:
                return

    def caught(self, error: BaseException) -> None:
        """Note the signal of a handler that raised this error where it would go unnoticed."""
        found = _raised_by(error, {number: _signal.getsignal(number) for number in _SIGNALS} | self._handlers)
        self._noted += found or ([int(_signal.SIGINT)] if isinstance(error, KeyboardInterrupt) else [])

    def _replace(self) -> None:
        for number in _SIGNALS:  # C functions, as a handler may still raise at each of these lines
            handler = _signal.getsignal(number)
            # asyncio's handler does nothing: the loop learns of the signal through its wake-up file, and must not learn
            # of it twice.
            if callable(handler) and handler != self._note and getattr(handler, "__name__", "") != "_sighandler_noop":
                self._handlers[number] = handler
                _signal.signal(number, self._note)

    def _restore(self) -> None:
        while self._handlers:
            number, handler = next(iter(self._handlers.items()))
            if _signal.getsignal(number) == self._note:
                _signal.signal(number, handler)
            self._handlers.pop(number, None)

    def _note(self, number: int, _frame: object) -> None:
        self._noted.append(number)


def _deliver(noted: list[int]) -> None:
    """Call the noted handlers a moment later, so that they do not raise where Python would only print the exception."""
    pause = _thread.allocate_lock()
    pause.acquire()
    pause.acquire(timeout=0.001)
    numbers = set[int]()
    with suppress(IndexError):
        while True:
            numbers.add(noted.pop(0))
    for number in numbers:
        _thread.interrupt_main(number)  # type: ignore[arg-type]  # a plain number will do


def _codes(handler: object) -> list[CodeType]:
    """The code of a handler and of the functions that it wraps."""
    found: list[CodeType] = []
    for _ in range(_LAYERS_MAX):
        if not callable(handler):
            break
        if isinstance(handler, functools.partial):
            handler = handler.func
            continue
        function = getattr(handler, "__func__", handler)
        if not hasattr(function, "__code__"):  # a callable object
            function = getattr(type(handler).__call__, "__func__", type(handler).__call__)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            found.append(code)
        handler = getattr(handler, "__wrapped__", None)
    return found
