"""The command line as processes: signals, exit codes, pipes, a redrive beside a worker, what is imported. Nothing sleeps."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.faces.processes import ONEFOLD, PATIENCE_S, SLOW, Commands

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(Path(__file__).with_name("shop.py"), tmp_path)
    (tmp_path / "slow.py").write_text(SLOW)
    return tmp_path


def running_worker(commands: Commands) -> subprocess.Popen[str]:
    """A worker whose one handler waits for a line."""
    assert commands.run("send", "slow:app", "wait", '{"name": "a"}').returncode == 0
    worker = commands.start("worker", "slow:app", "--log", "json")
    assert worker.stdout is not None
    assert worker.stdout.readline() == "running\n"
    return worker


def test_a_worker_says_once_which_delayed_messages_it_waits_for(commands: Commands) -> None:
    words = ("send", "slow:app", "wait", '{"name": "later"}', "--delay", "10m")
    assert commands.run(*words).returncode == 0
    worker = commands.start("worker", "slow:app", "--until-empty", "--no-progress")
    assert worker.stderr is not None
    assert re.fullmatch(
        r"waiting for 1 delayed message in queue, due \d\d:\d\d \(in [5-9]m\d+s\)\n", worker.stderr.readline()
    )
    worker.send_signal(signal.SIGTERM)
    _, rest = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0
    assert "waiting" not in rest


def told_draining(worker: subprocess.Popen[str]) -> None:
    assert worker.stderr is not None
    for line in worker.stderr:
        if line.startswith("Draining"):
            return
    raise AssertionError("the worker did not say that it drains")


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_the_handler_finish(commands: Commands, sent: signal.Signals) -> None:
    worker = running_worker(commands)
    worker.send_signal(sent)
    told_draining(worker)
    out, err = worker.communicate("go on\n", timeout=PATIENCE_S)
    assert worker.returncode == 0
    assert "ended: done 1" in out
    events = [json.loads(line)["event"] for line in err.splitlines() if line.startswith("{")]
    assert events[-1] == "worker-stopped"


def test_the_second_signal_stops_at_once_and_says_what_is_left(commands: Commands) -> None:
    worker = running_worker(commands)
    worker.send_signal(signal.SIGTERM)
    told_draining(worker)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(timeout=PATIENCE_S) == 3  # before its input is closed, which would let the handler finish
    out, err = worker.communicate()
    assert "1 run abandoned; other workers follow on_unknown (rerun, hold or its probe): wait a" in out
    assert "Stopping now" in err
    story = json.loads(commands.run("why", "a", "slow:app", "--json").stdout)["stories"][0]
    assert story["place"] in ("running", "silent", "waiting")
    # Its process is dead, so the next worker takes it over at once, whatever the lease says.
    again = commands.start("worker", "slow:app", "--until-empty", "--json")
    assert again.stdout is not None
    assert again.stdout.readline() == "running\n"
    out, _ = again.communicate("go on\n", timeout=PATIENCE_S)
    report = json.loads(out)
    assert (report["code"], report["counts"]["completed"]) == (0, 1)
    assert "takeover" in commands.run("why", "a", "slow:app", "--json").stdout


def test_processes_and_coroutines(commands: Commands) -> None:
    for job, order_id in (("book", "a"), ("charge", "b")):
        assert commands.run("send", "shop:app", job, f'{{"order_id": "{order_id}"}}').returncode == 0
    words = ("--processes", "1", "--asyncio", "4", "--until-empty", "--queues", "orders, careful", "--json")
    done = commands.run("worker", "shop:app", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["completed"] == 2


def test_a_redrive_beside_a_worker(folder: Path, commands: Commands) -> None:
    (folder / "down").touch()
    send = "import shop; shop.book.send_many(shop.Order(f'o-{n}', 'Atlantis') for n in range(60))"
    subprocess.run([sys.executable, "-c", send], cwd=folder, env=commands.environment, check=True, timeout=PATIENCE_S)
    assert commands.run("worker", "shop:app", "--until-empty").returncode == 0
    commands.start("worker", "shop:app", "--no-progress")
    stopped = commands.run("dlq", "redrive", "shop:app", "--all", "--stop-after", "3")
    assert stopped.returncode == 1
    assert "Stopped early: the messages fail again" in stopped.stdout
    (folder / "down").unlink()
    tally = json.loads(commands.run("dlq", "redrive", "shop:app", "--all", "--rate", "500/s", "--json").stdout)
    assert (tally["end"], tally["sent"], tally["done"]) == ("done", 60, 60)
    assert sorted((folder / "booked").read_text().split()) == sorted(f"o-{number}" for number in range(60))


def test_a_reader_that_goes_away_is_no_error_to_shout_about(folder: Path, commands: Commands) -> None:
    commands.run("send", "shop:app", "book", '{"order_id": "a"}')
    command = f"{' '.join(ONEFOLD)} queue list shop:app | true"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=commands.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stderr == ""


def test_plain_lines_without_a_terminal_and_no_colours(commands: Commands) -> None:
    commands.run("send", "shop:app", "book", '{"order_id": "a"}')
    for words in (("status", "shop:app"), ("queue", "list"), ("why", "a")):
        assert "\x1b" not in commands.run(*words).stdout


def test_fast_commands_import_little(folder: Path, commands: Commands) -> None:
    commands.run("send", "shop:app", "book", '{"order_id": "a"}')

    def imported(*words: str) -> set[str]:
        program = f"import sys; from onefold.cli.main import run; run({list(words)!r}); print('#', *sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=commands.environment,
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


FULL = '''
import resource
import onefold

app = onefold.App("full")
queue = app.queue("queue")


@app.job(queue, key="{name}")
def fill(payload: dict[str, str]) -> None:
    """From here on no file of this process can grow, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
'''


def test_a_worker_on_a_full_disk_says_what_to_do_without_progress_too(folder: Path, commands: Commands) -> None:
    (folder / "full.py").write_text(FULL)
    for name in ("a", "b"):
        assert commands.run("send", "full:app", "fill", f'{{"name": "{name}"}}').returncode == 0
    worker = commands.start("worker", "full:app", "--threads", "1", "--no-progress")
    assert worker.stderr is not None
    lines: SimpleQueue[str] = SimpleQueue()
    reader = threading.Thread(target=lambda: [lines.put(one) for one in worker.stderr or ()], daemon=True)
    reader.start()
    said: list[str] = []
    while not any("engine" in line for line in said):
        said.append(lines.get(timeout=PATIENCE_S))
    worker.kill()
    reader.join(PATIENCE_S)
    lost = [line for line in said if "THE EFFECT HAPPENED" in line]
    (busy,) = [line for line in said if "engine" in line]
    assert busy.startswith("warning: the engine could not be written for now")
    assert "Free space on the disk or enlarge it" in busy
    assert "their records of finished work stay until they expire" in busy
    assert all("COULD NOT BE WRITTEN: fill a: " in line for line in lost)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_full_disk_behind_the_output_is_no_defect(commands: Commands, folder: Path, form: list[str]) -> None:
    assert commands.run("send", "slow:app", "wait", '{"name": "a"}').returncode == 0
    for app in ("slow:app", "nosuch:app"):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*ONEFOLD, "status", app, *form], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
                timeout=PATIENCE_S,
            )  # fmt: skip
        assert done.returncode == 1
        assert "defect" not in done.stderr
        assert "Traceback" not in done.stderr
        assert ("error: Standard output cannot be written: No space left on device." in done.stderr) == (
            app == "slow:app"
        )
