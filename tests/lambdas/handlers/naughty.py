"""Handlers that misbehave, each in one way."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

kept: list[Any] = []


def _for_ever() -> None:
    threading.Event().wait()


def raises(event: Any, context: Any) -> None:
    raise ValueError(f"no such order: {event['order']}")


def raises_the_unprintable(event: Any, context: Any) -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    raise Silent


def binary(event: Any, context: Any) -> str:
    os.write(1, bytes(range(256)) + b"\n\xff\xfe\n")
    return "done"


def long_line(event: Any, context: Any) -> str:
    for _ in range(40):
        os.write(1, b"x" * 50_000)
    return "done"


def closes_stdout(event: Any, context: Any) -> str:
    sys.stdout.close()
    os.closerange(1, 3)
    return "done"


def forks(event: Any, context: Any) -> str:
    """Both processes come back from the handler."""
    os.fork()
    return "done"


def leaves_a_child(event: Any, context: Any) -> int:
    """A child that outlives the handler and holds its output."""
    child = os.fork()
    if not child:
        _for_ever()
    return child


def waits_with_a_child(event: Any, context: Any) -> None:
    """Writes the child's number to the file it is told, then both wait for ever."""
    child = os.fork()
    if child:
        Path(event["file"]).write_text(str(child))
    _for_ever()


def waits(event: Any, context: Any) -> None:
    _for_ever()


def spins(event: Any, context: Any) -> None:
    while True:
        pass


def exits(event: Any, context: Any) -> None:
    os._exit(event)


def sys_exits(event: Any, context: Any) -> None:
    sys.exit(event)


def interrupts(event: Any, context: Any) -> None:
    raise KeyboardInterrupt


def crashes(event: Any, context: Any) -> None:
    ctypes.string_at(0)


def aborts(event: Any, context: Any) -> None:
    os.abort()


def recurses(event: Any, context: Any) -> None:
    recurses(event, context)


def recurses_in_c(event: Any, context: Any) -> None:
    sys.setrecursionlimit(10**8)
    nested: Any = []
    for _ in range(10**6):
        nested = [nested]
    repr(nested)


def allocates(event: Any, context: Any) -> str:
    try:
        while True:
            kept.append(bytearray(b"x" * 1_000_000))
    except MemoryError:
        return "survived"


def children_allocate(event: Any, context: Any) -> str:
    """Four children that keep within the limit, each for itself, for as long as they are let."""
    for _ in range(4):
        if not os.fork():
            kept.append(bytearray(b"x" * 70_000_000))
            _for_ever()
    _for_ever()
    return "never"


def shares_with_children(event: Any, context: Any) -> str:
    """60 MB that three children see too, for as long as the server needs to look several times."""
    shared = bytearray(b"x" * 60_000_000)
    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            select.select([], [], [], 30)
            os._exit(len(shared) and 0)
        children.append(child)
    select.select([], [], [], 1.0)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return "done"


def asks_for_too_much(event: Any, context: Any) -> None:
    bytearray(10**11)


def many_threads(event: Any, context: Any) -> int:
    ended = threading.Event()
    threads = [threading.Thread(target=ended.wait) for _ in range(24)]
    for thread in threads:
        thread.start()
    ended.set()
    for thread in threads:
        thread.join()
    return len(threads)


def returns(event: Any, context: Any) -> Any:
    return {
        "set": {1, 2},
        "nan": float("nan"),
        "bytes": b"x",
        "keys": {(1, 2): 3},
        "deep": json.loads("[" * 900 + "]" * 900),
        "self": kept,
    }[event]


def returns_much(event: Any, context: Any) -> str:
    return "x" * event


def ignores_signals(event: Any, context: Any) -> None:
    for number in range(1, 32):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_IGN)
    _for_ever()


def thread_goes_on(event: Any, context: Any) -> str:
    threading.Thread(target=_for_ever, daemon=True).start()  # for another kind a later sys.exit here would wait
    return "done"


def reads_stdin(event: Any, context: Any) -> str:
    return sys.stdin.read()


def closes_all(event: Any, context: Any) -> str:
    os.closerange(0, 65_536)
    return "done"


def closes_all_and_waits(event: Any, context: Any) -> None:
    os.closerange(0, 65_536)
    _for_ever()


def writes_to_control(event: Any, context: Any) -> str:
    for fd in range(3, 300):
        try:
            os.write(fd, event.encode())
        except OSError:
            continue
    return "done"


def speaks_for_itself(event: Any, context: Any) -> str:
    """Forges an answer to another invocation."""
    head = json.dumps({"kind": "answer", "id": "somebody-else", "took_us": 1}).encode()
    frame = len(head).to_bytes(4, "big") + (0).to_bytes(4, "big") + head
    for fd in range(200, 300):
        try:
            os.write(fd, frame)
        except OSError:
            continue
    return "done"


def stops_itself(event: Any, context: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def any_of(event: Any, context: Any) -> Any:
    """Misbehave in the way the event names."""
    return globals()[event["how"]](event.get("event"), context)


def grows_when_idle(event: Any, context: Any) -> str:
    """Answers, and then a thread of it, or a process it has started, takes more memory than the function has."""

    def grows() -> None:
        select.select([], [], [], 0.5)  # the answer is out by then
        kept.append(b"x" * (300 << 20))
        threading.Event().wait()

    if event == "thread":
        threading.Thread(target=grows, daemon=True).start()
    elif event == "process" and not os.fork():
        grows()
    return "answered"


def fills_memory_files(event: Any, context: Any) -> str:
    """Memory that no process has mapped: in a file that has no name, or one of /dev/shm that was removed."""
    if event == "memfd":
        file = os.memfd_create("kept")
    else:
        path = f"/dev/shm/onefold-test-{os.getpid()}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    for _ in range(300):
        os.write(file, b"x" * (1 << 20))
    threading.Event().wait()
    return "never"
