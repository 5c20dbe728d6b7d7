"""Sinks called in threads of their own, so that a slow one cannot delay jobs, calls, ticks or a Lambda function.

If a sink is too slow, events are lost, counted as its failures and logged; the work does not wait. A sink's queue is in
memory: events that wait in it when the process is killed are lost too, but not the history, which is written with the
work. Before it ends, a program waits briefly for queued events; a Lambda function does so before each answer.
Never here: what events mean, individual sinks. Invariant: `emit` never waits for a sink.
"""

from __future__ import annotations

import _thread
import atexit
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from onefold import forks
from onefold.runtime.events import Event, Sink, Sinks

WAITING_MAX: Final = 10_000  # our choice: events that wait for one slow sink; some 5 MB
END_S: Final = 2.0  # our choice: how long an ending program waits for all sinks together


class _TooSlow(Exception):
    """A sink took its events more slowly than they came."""


class _Mark:
    """A marker in the queue of every sink; set when each has delivered everything before it."""

    def __init__(self, count: int) -> None:
        self._left = list(range(count))
        self.passed = threading.Event()

    def passes(self) -> None:
        """Note that one sink has reached the mark."""
        self._left.pop()
        if not self._left:
            self.passed.set()


class _Waiting:
    """The events that wait for one sink, and the thread that passes them to it, which starts with the first event."""

    def __init__(self, deliver: Callable[[int, Event], None], index: int) -> None:
        self._deliver = deliver
        self._index = index
        self.start_anew()

    def start_anew(self) -> None:
        """Start with an empty queue in a forked child: what was queued is delivered by the parent's thread."""
        self._events: SimpleQueue[Event | _Mark | None] = SimpleQueue()
        self._thread: dict[str, int] = {}

    def put(self, event: Event) -> bool:
        """Queue the event; False if too many are waiting, so that it is lost."""
        if self._events.qsize() >= WAITING_MAX:
            return False
        self._events.put(event)
        self._ensure_thread()
        return True

    def _ensure_thread(self) -> None:
        if not self._thread:
            with suppress(RuntimeError):  # the program is exiting, or cannot start threads: the next event tries again
                _thread.start_new_thread(self._run, (self._events,))

    @property
    def is_used(self) -> bool:
        """Whether anything was ever queued."""
        return bool(self._thread) or self._events.qsize() > 0

    def put_mark(self, mark: _Mark) -> None:
        """Queue the mark behind everything that is waiting now."""
        self._events.put(mark)
        self._ensure_thread()

    def end(self) -> None:
        """Let the thread end after the last event."""
        if self._thread:
            self._events.put(None)

    def _run(self, events: SimpleQueue[Event | _Mark | None]) -> None:
        if self._thread.setdefault("thread", _thread.get_ident()) != _thread.get_ident():
            return  # another was started at the same time
        try:
            while (event := events.get()) is not None:
                if isinstance(event, Event):
                    self._deliver(self._index, event)
                else:
                    event.passes()
                del event  # an exception in it keeps the frames of a handler alive
        finally:
            self._thread.pop("thread", None)  # a sink has ended its thread (sys.exit()): the next event starts another


class QueuedSinks(Sinks):
    """Like `Sinks`, but calls each sink in a thread of its own, unless its `is_quick` is true.

    Args:
        sinks: as for `Sinks`.
        at_exit: wait for the sinks, at most END_S, when the program ends; for guarded calls, where nothing closes them.
    """

    def __init__(self, sinks: Iterable[Sink] = (), *, at_exit: bool = False) -> None:
        super().__init__(sinks)
        self._waiting = [
            None if getattr(sink, "is_quick", False) else _Waiting(self._deliver, index)
            for index, sink in enumerate(self._sinks)
        ]
        if any(self._waiting):
            forks.in_child(self._start_anew)
            if at_exit:
                atexit.register(self.flush)

    def _start_anew(self) -> None:
        for waiting in self._waiting:
            if waiting is not None:
                waiting.start_anew()

    def emit(self, event: Event) -> None:
        """Pass the event to every sink, directly or through its queue."""
        if self.tracing is not None and event.trace_id is None:
            event = self.tracing.stamped(event)
        for index, waiting in enumerate(self._waiting):
            if waiting is None:
                self._deliver(index, event)
            elif not waiting.put(event):
                with suppress(Exception):
                    self._failed(index, event, _TooSlow(f"{WAITING_MAX} events are waiting for it"))

    def flush(self, timeout_s: float = END_S) -> bool:
        """Wait until everything queued now is delivered, at most `timeout_s` in all; returns whether it was."""
        used = [waiting for waiting in self._waiting if waiting is not None and waiting.is_used]
        mark = _Mark(len(used))
        for waiting in used:
            waiting.put_mark(mark)
        found = not used or mark.passed.wait(timeout_s)
        super().flush()
        return found

    def end(self, timeout_s: float = END_S) -> None:
        """Like `flush`; from now on sinks are called directly."""
        self.flush(timeout_s)
        for index, waiting in enumerate(self._waiting):
            if waiting is not None:
                waiting.end()
                self._waiting[index] = None
