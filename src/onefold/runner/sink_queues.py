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
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from onefold import forks
from onefold.runtime.events import Event, Sink, Sinks

WAITING_MAX: Final = 10_000  # our choice: events that wait for one slow sink; some 5 MB
AT_ONCE: Final = 100  # events that a sink with `emit_all` is given in one call
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
    """The events that wait for one sink, and the thread that passes them to it, which starts with the first event.

    Args:
        at_once: how many events it is given in one call.
    """

    def __init__(self, deliver: Callable[[int, Sequence[Event]], None], index: int, at_once: int) -> None:
        self._deliver = deliver
        self._index = index
        self._at_once = at_once
        self.start_anew()

    def start_anew(self) -> None:
        """Start with an empty queue in a forked child: what was queued is delivered by the parent's thread."""
        self._events: deque[Event | _Mark] = deque()
        self._woken: SimpleQueue[bool] = SimpleQueue()  # True: look for events; False: end
        self._thread: dict[str, int] = {}

    def put(self, events: Sequence[Event]) -> Sequence[Event]:
        """Queue events; returns those that are lost because too many are waiting."""
        room = max(WAITING_MAX - len(self._events), 0)
        self._put(events[:room])
        return events[room:]

    def put_mark(self, mark: _Mark) -> None:
        """Queue the mark behind everything that is waiting now."""
        self._put((mark,))

    def _put(self, some: Sequence[Event | _Mark]) -> None:
        self._events.extend(some)
        if self._woken.empty():  # otherwise the thread has yet to look, and finds these too
            self._woken.put(True)
        if not self._thread:
            with suppress(RuntimeError):  # the program is exiting, or cannot start threads: the next event tries again
                _thread.start_new_thread(self._run, (self._events, self._woken))

    @property
    def is_used(self) -> bool:
        """Whether anything was ever queued."""
        return bool(self._thread) or len(self._events) > 0

    def end(self) -> None:
        """Let the thread end after the last event."""
        if self._thread:
            self._woken.put(False)

    def _run(self, events: deque[Event | _Mark], woken: SimpleQueue[bool]) -> None:
        if self._thread.setdefault("thread", _thread.get_ident()) != _thread.get_ident():
            return  # another was started at the same time
        try:
            while woken.get():
                while events:
                    if isinstance(events[0], _Mark):
                        events.popleft().passes()  # type: ignore[union-attr]
                    else:
                        self._deliver(self._index, self._taken(events))
        finally:
            self._thread.pop("thread", None)
            if events:  # a sink has ended its thread (sys.exit()): another goes on with the rest
                self._put(())

    def _taken(self, events: deque[Event | _Mark]) -> Sequence[Event]:
        """Remove the next events from the queue, up to a mark. Only the thread does this."""
        taken: list[Event] = []
        while events and len(taken) < self._at_once and isinstance(event := events[0], Event):
            events.popleft()
            taken.append(event)
        return taken


class QueuedSinks(Sinks):
    """Like `Sinks`, but calls each sink in a thread of its own, unless its `is_quick` is true.

    Args:
        sinks: as for `Sinks`.
        at_exit: wait for the sinks, at most END_S, when the program ends; for guarded calls, where nothing closes them.
    """

    def __init__(self, sinks: Iterable[Sink] = (), *, at_exit: bool = False) -> None:
        super().__init__(sinks)
        self._waiting = [
            None
            if getattr(sink, "is_quick", False)
            else _Waiting(self._deliver, index, 1 if self._emit_all[index] is None else AT_ONCE)
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

    def _pass_on(self, index: int, events: Sequence[Event]) -> None:
        """Pass events to one sink, directly or through its queue."""
        waiting = self._waiting[index]
        if waiting is None:
            self._deliver(index, events)
        elif lost := waiting.put(events):
            self._lost(index, lost, _TooSlow(f"{WAITING_MAX} events are waiting for it"))

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
