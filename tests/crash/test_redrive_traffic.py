"""Stopped FIFO groups are sent back while messages go on arriving: no group is ever run out of order.

Two workers and a producer are processes of their own; this process is the operator, who sends back dead letters as soon
as there are any. Nothing is killed. Afterwards every message has been run once, each group from its first to its last.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from onefold import errors
from onefold.admin import dead_letters
from onefold.admin.dead_letters import Select
from onefold.admin.redrive import Redrive
from onefold.admin.session import AdminSession, open_session

SOAK = os.environ.get("ONEFOLD_SOAK") == "1"
ROOT = Path(__file__).parents[2]
GROUPS = 2
MESSAGES = 20_000 if SOAK else 800
PATIENCE_S = 60.0

# It sends as fast as it can, up to a few ahead of what is done, so that messages arrive all the time.
SEND = f"""
import os
from pathlib import Path
from tests.crash.redrive_app import app, step
runtime, effects = app.runtime(), Path(os.environ["EFFECTS"])
for number in range({MESSAGES // GROUPS}):
    while number * {GROUPS} - effects.read_bytes().count(b"\\n") > 60:
        runtime.clock.wait(runtime.never(), 2)
    for group in range({GROUPS}):
        step.send({{"group": group, "number": number}})
app.close()
"""


class Yard:
    """One file, its workers, and what they did."""

    def __init__(self, folder: Path) -> None:
        self.url, self.effects, once = f"sqlite:///{folder / 'lines.db'}", folder / "effects", folder / "once"
        once.mkdir()
        self._environment = {
            **os.environ,
            "ONEFOLD_URL": self.url,
            "EFFECTS": str(self.effects),
            "ONCE": str(once),
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def python(self, code: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process that runs this code."""
        started = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.DEVNULL,
        )
        self.processes.append(started)
        return started

    def worker(self) -> subprocess.Popen[bytes]:
        """Start a worker as a user does."""
        code = "from onefold.cli.main import main; main()"
        return self.python(code, "worker", "tests.crash.redrive_app:app", "--no-progress")

    def done(self) -> list[tuple[int, int]]:
        """Group and number of what was done, in order."""
        text = self.effects.read_text() if self.effects.exists() else ""
        return [(int(group), int(number)) for group, number in (line.split() for line in text.splitlines())]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE_S)


def send_back(session: AdminSession) -> int:
    """Send back all dead letters, as `onefold dlq redrive --all --no-watch` does; returns how many went."""
    messages = list(dead_letters.find(session, Select()))
    if not messages:
        return 0
    try:
        work = Redrive(session, messages, watch=False, per_second=500, select=Select())
        return work.run(lambda _: None).sent
    except errors.TransientError:  # a worker had messages of the group in flight all the time: try again
        return 0


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(0 if SOAK else 300)
def test_groups_are_sent_back_in_order_while_messages_arrive(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    try:
        first = yard.python("from tests.crash.redrive_app import app; app.runtime(); app.close()")
        assert first.wait(PATIENCE_S) == 0
        session = open_session(yard.url, actor="person:ada")
        workers = [yard.worker(), yard.worker()]
        producer = yard.python(SEND)
        sent_back, under_traffic = 0, 0
        while len(yard.done()) < MESSAGES:
            went = send_back(session)
            sent_back += went
            under_traffic += bool(went) and producer.poll() is None
            if not went:
                session.clock.wait(session.never, 5)  # until a group stops: there is no signal for that
        assert producer.wait(PATIENCE_S) == 0
        assert [worker.poll() for worker in workers] == [None, None]
        session.close()
    finally:
        yard.close()
    in_order: dict[int, list[int]] = defaultdict(list)
    for group, number in yard.done():
        in_order[group].append(number)
    print(f"{sent_back} sent back, {under_traffic} times while messages arrived")  # noqa: T201 - pytest -s
    for group in range(GROUPS):
        assert in_order[group] == list(range(MESSAGES // GROUPS)), f"group {group}"
    assert under_traffic > 3
