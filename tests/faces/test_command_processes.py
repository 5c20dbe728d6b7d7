"""The command line as processes: signals, exit codes, pipes, a redrive beside a worker, what is imported. Nothing sleeps."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ONEFOLD = [sys.executable, "-m", "onefold"]
PATIENCE_S = 60

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
    shutil.copy(Path(__file__).with_name("shop.py"), tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


@pytest.fixture
def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
    return kept | {"COLUMNS": "80"}


@pytest.fixture
def started(folder: Path, environment: dict[str, str]) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ended when the test is."""
    running: list[subprocess.Popen[str]] = []
    yield running
    for one in running:
        if one.poll() is None:
            one.kill()
        one.communicate()


def run(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ONEFOLD, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def start(
    started: list[subprocess.Popen[str]], folder: Path, environment: dict[str, str], *words: str
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [*ONEFOLD, *words], cwd=folder, env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    started.append(process)
    return process


def running_worker(
    started: list[subprocess.Popen[str]], folder: Path, environment: dict[str, str]
) -> subprocess.Popen[str]:
    """A worker whose one handler waits for a line."""
    assert run(folder, environment, "send", "slow:app", "wait", '{"name": "a"}').returncode == 0
    worker = start(started, folder, environment, "worker", "slow:app", "--log", "json")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "running\n"
    return worker


def test_a_worker_says_once_which_delayed_messages_it_waits_for(
    started: list[subprocess.Popen[str]], folder: Path, environment: dict[str, str]
) -> None:
    words = ("send", "slow:app", "wait", '{"name": "later"}', "--delay", "10m")
    assert run(folder, environment, *words).returncode == 0
    worker = start(started, folder, environment, "worker", "slow:app", "--until-empty", "--no-progress")
    assert worker.stderr is not None
    assert re.fullmatch(
        r"waiting for 1 delayed message in queue, due \d\d:\d\d \(in 9m\d+s\)\n", worker.stderr.readline()
    )
    worker.send_signal(signal.SIGTERM)
    _, rest = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0
    assert "waiting" not in rest


def told_draining(worker: subprocess.Popen[str]) -> None:
    assert worker.stderr is not None
    for line in worker.stderr:
        if line.startswith("draining"):
            return
    raise AssertionError("the worker did not say that it drains")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_the_handler_finish(
    started: list[subprocess.Popen[str]], folder: Path, environment: dict[str, str], sent: signal.Signals
) -> None:
    worker = running_worker(started, folder, environment)
    worker.send_signal(sent)
    told_draining(worker)
    out, err = worker.communicate("go on\n", timeout=PATIENCE_S)
    assert worker.returncode == 0
    assert "ended: done 1" in out
    events = [json.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    assert events[-1] == "worker-stopped"


def test_the_second_signal_stops_at_once_and_says_what_is_left(
    started: list[subprocess.Popen[str]], folder: Path, environment: dict[str, str]
) -> None:
    worker = running_worker(started, folder, environment)
    worker.send_signal(signal.SIGTERM)
    told_draining(worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=PATIENCE_S) == 3  # before its input is closed, which would let the handler finish
    out, err = worker.communicate()
    assert "Left: 1 run, to be taken over: wait a" in out
    assert "stopping at once" in err
    story = json.loads(run(folder, environment, "why", "a", "slow:app", "--json").stdout)["stories"][0]
    assert story["place"] in ("running", "silent", "waiting")
    # Its process is dead, so the next worker takes it over at once, whatever the lease says.
    again = start(started, folder, environment, "worker", "slow:app", "--until-empty", "--json")
    assert again.stdout is not None
    assert again.stdout.readline() == "running\n"
    out, _ = again.communicate("go on\n", timeout=PATIENCE_S)
    report = json.loads(out)
    assert (report["code"], report["counts"]["completed"]) == (0, 1)
    assert "takeover" in run(folder, environment, "why", "a", "slow:app", "--json").stdout


def test_processes_and_coroutines(folder: Path, environment: dict[str, str]) -> None:
    for job, order_id in (("book", "a"), ("charge", "b")):
        assert run(folder, environment, "send", "shop:app", job, f'{{"order_id": "{order_id}"}}').returncode == 0
    words = ("--processes", "1", "--asyncio", "4", "--until-empty", "--queues", "orders, careful", "--json")
    done = run(folder, environment, "worker", "shop:app", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["completed"] == 2


def test_a_redrive_beside_a_worker(
    started: list[subprocess.Popen[str]], folder: Path, environment: dict[str, str]
) -> None:
    (folder / "down").touch()
    send = "import shop; shop.book.send_many(shop.Order(f'o-{n}', 'Atlantis') for n in range(60))"
    subprocess.run([sys.executable, "-c", send], cwd=folder, env=environment, check=True, timeout=PATIENCE_S)
    assert run(folder, environment, "worker", "shop:app", "--until-empty").returncode == 0
    start(started, folder, environment, "worker", "shop:app", "--no-progress")
    stopped = run(folder, environment, "dlq", "redrive", "shop:app", "--all", "--stop-after", "3")
    assert stopped.returncode == 1
    assert "Stopped by itself: the messages fail again" in stopped.stdout
    (folder / "down").unlink()
    tally = json.loads(
        run(folder, environment, "dlq", "redrive", "shop:app", "--all", "--rate", "500/s", "--json").stdout
    )
    assert (tally["end"], tally["sent"], tally["done"]) == ("done", 60, 60)
    assert sorted((folder / "booked").read_text().split()) == sorted(f"o-{number}" for number in range(60))


def test_a_reader_that_goes_away_is_no_error_to_shout_about(folder: Path, environment: dict[str, str]) -> None:
    run(folder, environment, "send", "shop:app", "book", '{"order_id": "a"}')
    command = f"{' '.join(ONEFOLD)} queue list shop:app | true"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stderr == ""


def test_plain_lines_without_a_terminal_and_no_colours(folder: Path, environment: dict[str, str]) -> None:
    run(folder, environment, "send", "shop:app", "book", '{"order_id": "a"}')
    for words in (("status", "shop:app"), ("queue", "list"), ("why", "a")):
        assert "\x1b" not in run(folder, environment, *words).stdout


def test_fast_commands_import_little(folder: Path, environment: dict[str, str]) -> None:
    run(folder, environment, "send", "shop:app", "book", '{"order_id": "a"}')

    def imported(*words: str) -> set[str]:
        program = f"import sys; from onefold.cli.main import run; run({list(words)!r}); print('#', *sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return set(done.stdout.rpartition("#")[2].split())

    helped = imported("--help")
    assert "click" in helped
    assert not {name for name in helped if name.startswith(("onefold.cli.commands.", "sqlite3", "rich.table"))}
    asked = imported("status", "--json")
    assert "onefold.cli.commands.status" in asked
    assert not {"rich.table", "rich.live", "asyncio", "logging", "onefold.cli.commands.worker"} & asked
