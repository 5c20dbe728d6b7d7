"""The demo as its user runs it, on the first rows: it passes under fire, finds the fault, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from onefold.demo import command, screen

ROWS, KILLS, KILLS_MIN = 600, 4, 3
DEMO = [sys.executable, "-c", "import sys; from onefold.demo.command import demo; demo(sys.argv[1:])"]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*DEMO, "--rows", str(ROWS), "--kills", str(KILLS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def started_for(folder: Path) -> list[int]:
    """Processes that were started with this folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended since it was listed
    return found


@pytest.mark.slow
def test_all_three_runs_pass_under_fire(tmp_path: Path) -> None:
    done = demo("--json", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["passed"] is True
    assert [run["name"] for run in found["runs"]] == ["keys", "probe", "hold"]
    for run in found["runs"]:
        assert (run["twice"], run["never"], run["faults"]) == (0, 0, [])
        assert run["bookings"] == run["expected"] == 555
        assert run["dead_letters"] == {"permanent": 44, "conflict": 1}
        assert run["kills"] >= KILLS_MIN
        assert run["takeovers"] > 0
        assert run["deliveries"] >= run["messages"] > ROWS
    assert found["runs"][2]["held"] > 0
    assert started_for(tmp_path) == []
    assert (tmp_path / "kept" / "hold" / "shop.db").exists()


@pytest.mark.slow
def test_the_fault_is_found(tmp_path: Path) -> None:
    done = demo("--plant", "no-fence", "--keep", str(tmp_path / "kept"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED, as it must: the fault no-fence was built in" in done.stdout
    assert "keys: twice 0, never 0: the partner's memory of the key took the fence's place" in done.stdout
    assert "Passed" not in done.stdout
    assert started_for(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path, number: signal.Signals, code: int) -> None:
    command = [*DEMO, "--run", "hold", "--keep", str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "fulfilled" in process.stderr.readline()  # the first line of progress: all are at work
        assert len(started_for(tmp_path)) > 3
        process.send_signal(number)
        process.communicate()
    assert process.returncode == code
    assert started_for(tmp_path) == []


@pytest.mark.slow
def test_nothing_is_left_when_it_is_killed(tmp_path: Path) -> None:
    """Its children notice the end of their standard input."""
    command = [*DEMO, "--run", "keys", "--keep", str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "fulfilled" in process.stderr.readline()
        children = []
        for number in started_for(tmp_path):
            with suppress(ProcessLookupError):  # the demo has killed it since it was listed
                children += [os.pidfd_open(number)] if number != process.pid else []
        assert len(children) > 2
        process.kill()
    for child in children:
        with os.fdopen(child):
            signal_by_end(child)
    assert started_for(tmp_path) == []


def signal_by_end(child: int) -> None:
    """Wait until a process has ended."""
    import select

    ended, _, _ = select.select([child], [], [], 60)
    assert ended, "a process outlived the demo for a minute"


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = demo("--keep", str(tmp_path))
    assert done.returncode == 1
    assert "is not an empty folder" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.slow
def test_so_few_rows_that_twelve_kills_find_no_work_pass_without_further_options() -> None:
    done = subprocess.run([*DEMO, "--rows", "200", "--run", "keys"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "kills", "least"),
    [
        ([], 12, 10),
        (["--rows", "1200"], 12, 10),
        (["--rows", "200"], 2, 1),
        (["--rows", "100"], 1, 0),
        (["--rows", "99"], 0, 0),
        (["--kills", "0"], 0, 0),
        (["--rows", "200", "--kills", "12"], 12, 10),
        (["--rows", "99", "--kills", "1"], 1, 1),
    ],
)
def test_the_kills_follow_the_rows_unless_they_are_given(
    monkeypatch: pytest.MonkeyPatch, options: list[str], kills: int, least: int
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(screen, "show", lambda settings, *_args, **_named: seen.append(settings) or True)
    assert CliRunner().invoke(command.demo, options).exit_code == 0
    assert [(one.kills, one.kills_min) for one in seen] == [(kills, least)]


def test_the_help_imports_no_demo() -> None:
    program = (
        "import sys; from onefold.demo import command; print([one for one in sys.modules if 'onefold.demo' in one])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(["onefold.demo", "onefold.demo.data", "onefold.demo.command"])


def test_every_other_demo_is_listed_and_found() -> None:
    said = CliRunner().invoke(command.demo, ["--help"]).output
    for name, (_, text) in command.OTHERS.items():
        assert f"{name} {text}" in " ".join(said.split())
        assert CliRunner().invoke(command.demo, [name, "--help"]).output.startswith(f"Usage: demo {name} [OPTIONS]")


def test_a_plant_that_the_run_cannot_show_is_refused() -> None:
    done = demo("--plant", "no-fence", "--run", "keys")
    assert done.returncode == 2
    assert "Use it with --run probe, hold or all." in done.stderr


def test_the_command_needs_no_package_of_another_extra() -> None:
    """`pip install onefold[demo]` brings no boto3: only `onefold demo aws` may ask for it."""
    blocked = (
        "for name in ('boto3', 'botocore', 'psycopg', 'redis', 'yaml', 'uvloop', 'httptools'): sys.modules[name] = None"
    )
    program = f"import sys\n{blocked}\nfrom onefold.demo.command import demo\ndemo(['--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
