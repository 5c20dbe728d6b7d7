"""Commands as processes of their own, in one folder; those that still run at the end of a test are ended.

Never here: expectations. Invariant: no process outlives its test.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ONEFOLD = [sys.executable, "-m", "onefold"]
PATIENCE_S = 60
# An app, as `slow.py`.
SLOW = '''
import sys
import onefold

app = onefold.App("slow")
queue = app.queue("queue")


@app.job(queue, key="{name}")
def wait(payload: dict[str, str]) -> None:
    """Say that it runs, and wait for a line that the test writes."""
    print("running", flush=True)
    sys.stdin.readline()
'''


class Commands:
    """Runs the command line, with an environment that holds nothing of onefold's or pytest's.

    Args:
        folder: where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
        self.environment = kept | {"COLUMNS": "100"}
        self._started: list[subprocess.Popen[str]] = []

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command to its end."""
        return subprocess.run(
            [*ONEFOLD, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def start(self, *words: str, through: Sequence[str] = ()) -> subprocess.Popen[str]:
        """A command that goes on; what it reads and writes are pipes.

        Args:
            through: a command that runs it.
        """
        process = subprocess.Popen(
            [*through, *ONEFOLD, *words], cwd=self.folder, env=self.environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self._started.append(process)
        return process

    def end(self) -> None:
        """End what still runs."""
        for one in self._started:
            if one.poll() is None:
                one.kill()
            one.communicate()
