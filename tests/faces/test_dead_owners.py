"""What is known of a run whose worker process on this host was killed, before anybody has taken it over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faces.processes import PATIENCE_S, Commands

pytestmark = pytest.mark.slow

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def test_a_killed_worker_is_known_to_be_dead_at_once(commands: Commands) -> None:
    assert commands.run("send", "slow:app", "wait", '{"name": "a"}').returncode == 0
    worker = commands.start("worker", "slow:app", "--no-progress")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "running\n"

    def asked() -> tuple[str, str, list[str]]:
        story = json.loads(commands.run("why", "a", "slow:app", "--json").stdout)["stories"][0]
        stuck = json.loads(commands.run("stuck", "slow:app", "--json").stdout)["stuck"]
        return story["place"], story["text"], [one["explanation"] for one in stuck]

    place, _, stuck = asked()
    assert (place, stuck) == ("running", [])
    worker.kill()
    worker.wait(PATIENCE_S)
    place, text, stuck = asked()
    assert place == "silent"
    assert text.startswith("Silent: the process of run 1, owner ")
    assert "has ended; a worker on this machine frees its message" in text
    assert stuck == [
        "its process has ended: a worker on this machine frees its message and takes it over; is one running?"
    ]
