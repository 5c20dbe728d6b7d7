"""A program whose sends and guarded calls are interrupted by an alarm at a random instant; for `test_alarm.py`.

    python -m tests.crash.alarmed FILE ROUNDS SEED

Writes one line of JSON: what was accepted, which effects happened, and what went wrong; then it stays alive until its
input ends, because anything that it left open would keep others from the file. The times of alarms are drawn from the
time that such a call takes, so that they fall before, into and after it.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import onefold
from onefold.entropy import SeededEntropy

_MEASURED = 3  # of 32 rounds, one of each kind of call: without an alarm, to measure how long one takes


class TooLate(TimeoutError):
    """A soft time limit, as most write it."""


class Alarmed(Exception):
    """A soft time limit that is not an OSError."""


KINDS = (TooLate, Alarmed, KeyboardInterrupt)


class Program:
    """What is sent and called, and the results."""

    def __init__(self, path: str) -> None:
        app = onefold.App("alarmed", url=f"sqlite:///{path}", history="off")
        self.accepted: list[str] = []
        self.calm: list[str] = []
        self.effects: dict[str, int] = {}
        self.wrong: list[str] = []
        self.over = threading.Event()

        @app.job(app.queue("orders"), key="{order}")
        def book(_payload: dict[str, str]) -> None:
            raise AssertionError("nobody works here")

        @app.job(app.queue("unique"), key="{order}", unique=True)
        def book_once(_payload: dict[str, str]) -> None:
            raise AssertionError("nobody works here")

        @onefold.once(key="{key}", name="charge", store=onefold.store(f"sqlite:///{path}"), on_running="raise")
        def charge(key: str) -> str:
            # Nothing is called after the effect: if the alarm fires in the function itself, the function has raised.
            self.effects[key] = self.effects.get(key, 0) + 1
            return key

        self.book = book
        self.charge = charge
        self.calls: list[Callable[[str], object]] = [
            lambda name: self.accepted.append(book.send({"order": name}).key),
            lambda name: self.accepted.append(book_once.send({"order": name}).key),
            charge,
        ]
        for call in self.calls:
            call("first")
        self.threads = [threading.Thread(target=self._send_calmly, args=(number,)) for number in range(2)]

    def _send_calmly(self, number: int) -> None:
        while not self.over.is_set():
            name = f"calm-{number}-{len(self.calm)}"
            try:
                self.book.send({"order": name})
            except BaseException as error:  # noqa: BLE001 - reported
                self.wrong.append(f"{name}: {error!r}")
                return
            self.calm.append(name)

    def end(self) -> None:
        """Wait for the threads."""
        self.over.set()
        for thread in self.threads:
            thread.join(60)
            if thread.is_alive():
                self.wrong.append("a thread hangs")


def interrupt(program: Program, rounds: int, chance: SeededEntropy) -> list[tuple[int, str]]:
    """Make calls under alarms; returns which were interrupted. In the second half two other threads send."""
    kind: type[BaseException] = TooLate

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise kind

    signal.signal(signal.SIGALRM, ring)
    took_s = [0.0] * len(program.calls)
    interrupted: list[tuple[int, str]] = []
    for number in range(rounds):
        if number == rounds // 2:
            for thread in program.threads:
                thread.start()
        which, kind, name = number % len(program.calls), KINDS[number // 3 % len(KINDS)], f"m-{number}"
        alarm_s = 0.0 if number % 32 < _MEASURED else max(chance.fraction() * 1.2 * took_s[which], 1e-6)
        began_s = time.monotonic()  # noqa: TID251 - a call takes less than a clock's millisecond
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, alarm_s)
                program.calls[which](name)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except KINDS:
            interrupted.append((which, name))
        except Exception as error:  # noqa: BLE001 - reported
            program.wrong.append(f"{name}: {error!r}")
            if len(program.wrong) > 9:
                break
        if alarm_s == 0.0:
            took_s[which] = time.monotonic() - began_s  # noqa: TID251
    return interrupted


def main(path: str, rounds: int, seed: int) -> dict[str, Any]:
    """Run all of it; returns what is printed."""
    program = Program(path)
    interrupted = interrupt(program, rounds, SeededEntropy(seed))
    program.end()
    for name in [name for which, name in interrupted if which == 2]:  # every key can be asked for again, at once
        try:
            program.charge(name)
        except Exception as error:  # noqa: BLE001 - reported
            program.wrong.append(f"{name} again: {error!r}")
    program.book.send({"order": "last"})
    return {
        "accepted": [*program.accepted, *program.calm, "last"],
        "twice": [key for key, count in program.effects.items() if count > 1],
        "interrupted": [name for which, name in interrupted if which != 2],
        "wrong": program.wrong,
        "alarms": len(interrupted),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()
