"""Processes of onefold that a demo starts, kills and ends: schedulers and workers with one environment and one log.

Never here: when to kill, and whom. Invariant: a process that was killed is replaced at once, and none is left after `close`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from onefold.errors import OnefoldError

_END_S = 20


class Crew:
    """So many processes at a time.

    Args:
        commands: arguments of `onefold`, one list for each process.
        variables: of their environment, beside ours. log: where they write; appended to.

    Attributes:
        kills: by command, `worker` to how many.
    """

    def __init__(self, commands: Sequence[Sequence[str]], variables: Mapping[str, str], log: Path) -> None:
        self._variables = {**os.environ, **variables}
        self._log = log.open("ab")
        self._commands = commands
        self._processes = [self._start(command) for command in commands]
        self.kills: Counter[str] = Counter()

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "onefold", *command],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=self._variables, start_new_session=True,
        )  # fmt: skip

    def kill(self, number: int) -> None:
        """SIGKILL one of them."""
        self._processes[number].kill()
        self._processes[number].wait()
        self.check()

    def check(self) -> None:
        """Replace who was killed, and see that no other has ended.

        Raises:
            OnefoldError: one has; its words are in the log.
        """
        for number, (process, command) in enumerate(zip(self._processes, self._commands, strict=True)):
            if process.poll() == -signal.SIGKILL:
                self.kills[command[0]] += 1
                self._processes[number] = self._start(command)
            elif process.returncode is not None:
                raise OnefoldError(
                    f"A {command[0]} ended by itself with exit code {process.returncode}.",
                    todo="Run the demo again with --keep DIR, and read crew.log there.",
                )

    def close(self) -> None:
        """End them all: told first, then killed."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._log.close()
