"""Handlers whose children leave their session, their process group or their parent."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("daemon", "group", "session")


def starts(event: Any, context: Any) -> str:
    """One child of each kind that writes its number into the folder; when all have, what `then` says."""
    folder = Path(event["folder"])
    _fork(lambda: _stays(folder, "session", event, os.setsid))
    _fork(lambda: _stays(folder, "group", event, os.setpgrp))
    parent = _fork(lambda: _daemonises(folder, event))
    os.waitpid(parent, 0)
    _all_started(folder)
    if event["then"] == "kills":  # who watches over it, and waits
        os.kill(os.getppid(), signal.SIGKILL)
    if event["then"] == "stops":
        os.kill(os.getppid(), signal.SIGSTOP)
    if event["then"] == "exits":
        os._exit(3)
    if event["then"] == "returns":
        return "done"
    threading.Event().wait()
    return "never"


def adopts(event: Any, context: Any) -> list[str]:
    """A daemon whose parent has ended; who of them the handler can wait for afterwards."""
    child = _fork(lambda: _fork(lambda: None))
    found = [str(os.waitpid(-1, 0)[0] == child)]
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        found.append("none")
    return found


def _fork(does: Callable[[], Any]) -> int:
    child = os.fork()
    if not child:
        does()
        os._exit(0)
    return child


def _daemonises(folder: Path, event: Any) -> None:
    os.setsid()
    _fork(lambda: _stays(folder, "daemon", event, os.setsid))


def _stays(folder: Path, kind: str, event: Any, leaves: Callable[[], Any]) -> None:
    leaves()
    partial = folder / f".{kind}"
    partial.write_text(str(os.getpid()))
    partial.rename(folder / kind)
    _all_started(folder)
    held = bytearray(b"x" * event["bytes"])
    while held is not None:
        threading.Event().wait()


def _all_started(folder: Path) -> None:
    while not all((folder / kind).exists() for kind in KINDS):
        select.select([], [], [], 0.005)
