"""The process in an owner's id: whether the owner of a call is known to have ended, checked on the machine it ran on.

The id of a call under `@once` ends in `-HOST-PID-START`: a digest of the machine's boot and of the namespace of its
process ids, the process id, and when that process started, in clock ticks since the boot (Linux). On other systems, in
another container, after a reboot and for other owners nothing is known.

This is used only for reports: no record is taken over because of it. Never here: locks (`engines/sqlite/processes.py`).
Invariant: a running process is never reported as ended.
Private: may change with any release.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from typing import Final

_OWNER: Final = re.compile(r".{1,200}-([0-9a-f]{8})-([1-9][0-9]{0,9})-([0-9]{1,20})")
_START: Final = (
    19  # index among the fields after the command's name in /proc/PID/stat, where the state is 0 (proc(5): 22 and 3)
)


def owner_of(token: str) -> str:
    """The id of an owner in this process; only the token if it could not be distinguished from another process's."""
    host, found = _host(), _stat(os.getpid())
    return f"{token}-{host}-{os.getpid()}-{found[_START]}" if host and found else token


def is_here(owner: str) -> bool:
    """Whether the owner was a process of this machine and boot, so that it can be checked whether it runs."""
    match = _OWNER.fullmatch(owner)
    return match is not None and match[1] == _host()


def ended(owners: Iterable[str]) -> frozenset[str]:
    """The owners whose process is known to have ended."""
    return frozenset(one for one in owners if is_here(one) and _has_ended(one))


def _has_ended(owner: str) -> bool:
    match = _OWNER.fullmatch(owner)
    assert match is not None, owner
    try:
        os.kill(int(match[2]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it runs as another user
    found = _stat(int(match[2]))
    return bool(found) and (found[_START] != match[3] or found[0] in "ZX")


@cache
def _host() -> str:
    """A digest of the boot and of the namespace of process ids; empty if they cannot be determined."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except (OSError, ValueError):
        return ""
    return blake2b(f"{boot}/{namespace}".encode(), digest_size=4).hexdigest()


def _stat(process: int) -> list[str]:
    """The fields of a process in /proc, from its state on; empty if there are none."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            found = file.read().rpartition(")")[2].split()
    except OSError:
        return []
    return found if len(found) > _START else []
