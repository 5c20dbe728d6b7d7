"""What is known of a run whose worker process on this host was killed, before anybody has taken it over."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from onefold import owner_process
from tests.faces.processes import PATIENCE_S, SLOW, Commands

pytestmark = pytest.mark.slow


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


CALL = '''
import sys
import onefold


@onefold.once(key="{name}", name="charge", store=onefold.store("sqlite:///records.db"), lease="10m")
def charge(name: str) -> None:
    """Say that it runs, and wait for a line that the test writes."""
    print("running", flush=True)
    sys.stdin.readline()


charge("a")
'''


def test_a_killed_call_under_once_is_known_to_be_dead_at_once(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "call.py").write_text(CALL)
    pipe = subprocess.PIPE
    calls = [
        subprocess.Popen([sys.executable, "call.py"], cwd=tmp_path, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
    ]
    try:
        assert calls[0].stdout is not None
        assert calls[0].stdout.readline() == "running\n"

        def asked() -> tuple[str, str, list[str]]:
            story = json.loads(commands.run("why", "a", "sqlite:///records.db", "--json").stdout)["stories"][0]
            stuck = json.loads(commands.run("stuck", "sqlite:///records.db", "--json").stdout)["stuck"]
            return story["place"], story["text"], [one["explanation"] for one in stuck]

        place, text, stuck = asked()
        assert (place, stuck) == ("running", [])
        assert text.endswith("unless renewed.")
        calls[0].kill()  # and it is not waited for: a zombie runs nothing any more
        os.waitid(os.P_PID, calls[0].pid, os.WEXITED | os.WNOWAIT)
        place, text, (stuck_text,) = asked()
        assert place == "silent"
        assert "Silent: the process of run 1, owner " in text
        assert re.search(
            r"frees it at once; any other call with this key waits for its lease to end, in [5-9]m\d+s\.$", text
        )
        assert re.search(
            r"^its process has ended, .* frees it at once; any other call waits for its lease to end, in [5-9]m\d+s$",
            stuck_text,
        )
        calls.append(subprocess.Popen([sys.executable, "call.py"], cwd=tmp_path, text=True, stdin=pipe, stderr=pipe))
        assert calls[1].stderr is not None
        said = calls[1].stderr.readline()
        assert re.search(
            r"^charge 'a': the process of an earlier call, owner .*, ended before an outcome was recorded", said
        )
        assert calls[0].wait(PATIENCE_S) == -signal.SIGKILL
        assert asked()[0] == "running"
    finally:
        for one in calls:
            one.kill()
            one.communicate()


def test_only_a_process_of_this_boot_and_namespace_is_judged() -> None:
    mine = owner_process.owner_of("abc")
    token, host, process, start = mine.rsplit("-", 3)
    assert (token, process) == ("abc", str(os.getpid()))
    other = "0" * 8 if host != "0" * 8 else "1" * 8
    later = f"abc-{host}-{process}-{int(start) + 1}"  # whose number went to this process when it had ended
    no_process = f"abc-{host}-{2**31 - 1}-{start}"
    first = f"abc-{host}-1-{pid_1_start()}"  # of another user, mostly
    strangers = [f"abc-{other}-{process}-1", "abc", "abc-def", f"abc-{host}-0-1", ""]
    owners = [mine, first, later, no_process, *strangers]
    assert owner_process.ended(owners) == {later, no_process}
    assert [owner_process.is_here(one) for one in owners] == [True] * 4 + [False] * len(strangers[:3]) + [False] * 2


def pid_1_start() -> str:
    return Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]


ALONE = '''
import os
import onefold

app = onefold.App("shop", url="sqlite:///shop.db")


@app.job(app.queue("orders"), key="{id}", throttle=onefold.Throttle(concurrency=1))
def book(order: dict[str, str]) -> None:
    """Kill the first worker, and note the others."""
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), 9)
'''


def test_a_killed_worker_keeps_no_slot_of_a_limit(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    for name in "ab":
        assert commands.run("send", "alone:app", "book", json.dumps({"id": name})).returncode == 0
    killed = commands.run(
        "worker", "alone:app", "--until-empty", "--lease", "1h"
    )  # its slot would be taken for an hour
    assert killed.returncode == -signal.SIGKILL
    assert commands.run("worker", "alone:app", "--until-empty").returncode == 0
    status = json.loads(commands.run("status", "alone:app", "--json").stdout)
    assert [one["done_last_hour"] for one in status["jobs"]] == [2]
