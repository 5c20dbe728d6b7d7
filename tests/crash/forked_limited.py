"""A process under a time limit that raises calls a guarded function and forks, again and again; each child calls it too.

`calls`: the limit fires in the calls, and is over when the process forks. `forks`: it fires as the fork begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress

import onefold
from onefold.entropy import SeededEntropy


class Limit(Exception):
    """The time is up."""


armed = [False]


def raises(*_: object) -> None:
    if armed[0]:
        raise Limit


def fork(limit_s: float) -> int:
    """How many children could not use the file: 0 or 1."""
    parent = os.getpid()
    with suppress(Limit), suppress(Limit):  # it may fire as the first one ends
        armed[0] = True
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        os.fork()
        signal.setitimer(signal.ITIMER_REAL, 0)
    armed[0] = False
    if os.getpid() != parent:
        try:
            call("child")
        except onefold.OnefoldError:
            os._exit(1)
        os._exit(0)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1])
    except ChildProcessError:  # the limit fired before there was a child
        return 0


chance = SeededEntropy(int(sys.argv[3]))
store = onefold.store(f"sqlite:///{sys.argv[1]}")


@onefold.once(key="{key}", name="call", store=store)
def call(key: str) -> str:
    return key


signal.signal(signal.SIGALRM, raises)
limits = refused = 0
kept: list[Limit] = []
for number in range(int(sys.argv[4])):
    call(f"{number}")
    if sys.argv[2] == "calls":
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, chance.fraction() ** 2 * 0.02 + 0.0002)
            for step in range(50):
                call(f"{number} {step}")
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Limit as error:
            limits, kept = limits + 1, [error]  # like a program that logs it later: it keeps its traceback
        armed[0] = False
        refused += fork(0)
    else:
        refused += fork(chance.fraction() * 0.0003 + 0.00001)
sys.stdout.write(json.dumps({"limits": limits, "refused": refused}))
