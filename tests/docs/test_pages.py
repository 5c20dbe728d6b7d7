"""The pages are run: every Python and shell block of README and tutorial, in a directory of its own, as a reader would."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str | None, str]]:
    """Language, title and text of each block of a page."""
    return [(m[1], m[2], m[3]) for m in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))]


def environment() -> dict[str, str]:
    """A shell in which `python` and `onefold` are this environment's."""
    scripts = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
    return kept | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}


def shell(script: str, folder: Path) -> str:
    """Run a block; its output."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder, env=environment(), text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_files(page: str, folder: Path) -> None:
    for language, title, text in blocks(page):
        if language == "python" and title:
            (folder / title).write_text(text, encoding="utf-8")


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    write_files("docs/tutorial.md", tmp_path)
    ran: dict[str, str] = {}
    for language, _, text in blocks("docs/tutorial.md"):
        if language != "sh" or "pip install" in text:
            continue
        if "o-slow" in text:
            kill_in_the_middle(text, tmp_path)
            continue
        # The one line for another program is asked of Python's sqlite3 below.
        ran[text] = shell(text.partition("sqlite3 .onefold")[0], tmp_path)
    everything = "\n".join(ran.values())
    assert everything.count("booked o-1,") == 1
    assert "returned the stored result" in everything
    assert "the courier does not take parcels of 31.0 kg" in everything
    assert "booked o-heavy" in everything
    story = shell("onefold why o-heavy shop:app", tmp_path)
    assert story.index("redrive") < story.rindex("completed")
    story = shell("onefold why o-slow shop:app", tmp_path)
    assert "unknown" in story
    query = "SELECT count(*), sum(pence) FROM account"
    count = f"import sqlite3; print(*sqlite3.connect('.onefold/books.db').execute('{query}'))"
    assert shell(f'python -c "{count}"', tmp_path).strip() == "(100, 4950)"


def kill_in_the_middle(text: str, folder: Path) -> None:
    """The block with two terminals: send, start a worker, kill -9 it while the handler waits, start another."""
    send, start = [line for line in text.splitlines() if line]
    shell(send, folder)
    with worker(start, folder) as first:
        read_until(first, "the courier is thinking, in process ")
        os.kill(int(read_until(first, " ")), signal.SIGKILL)
    with worker(f"{start} --until-empty", folder) as second:
        read_until(second, "the courier is thinking")
        output, _ = second.communicate("\n", timeout=30)
        assert "booked o-slow, attempt 2" in output
    assert second.returncode == 0


def worker(command: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command.split(), cwd=folder, env=environment() | {"PYTHONUNBUFFERED": "1"}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What it prints up to `text`."""
    assert process.stdout is not None
    seen = ""
    while text not in seen:
        char = process.stdout.read(1)
        assert char, f"ended before {text!r}: {seen}"
        seen += char
    return seen.removesuffix(text)


@pytest.mark.slow
def test_the_tutorials_test_passes(tmp_path: Path) -> None:
    write_files("docs/tutorial.md", tmp_path)
    assert "2 passed" in shell("python -m pytest -q -p no:cacheprovider test_shop.py test_payout.py", tmp_path)


@pytest.mark.slow
def test_the_readmes_blocks_run_as_they_are_printed(tmp_path: Path) -> None:
    write_files("README.md", tmp_path)
    untitled = [text for language, title, text in blocks("README.md") if language == "python" and not title]
    assert not untitled, "a block without a file name cannot be run as it is printed"
    said = {command: shell(command, tmp_path) for command in readme_commands("shop", "billing")}
    assert "book_courier 'o-1': sent as message " in said["python shop.py"]
    assert "booking 12 kg with key book_courier-" in said["onefold worker shop:app --until-empty"]
    story = said["onefold why o-1 shop:app"]
    for step in ("sent", "claimed", "started", "completed"):
        assert f"  {step} " in story, story
    assert "2 done" in shell("onefold reconcile monthly_billing/2026-06-01T02:00:00Z billing:app", tmp_path)
    assert "monthly_billing/2026-06-01T02:00:00Z" in said["onefold runs list billing:app"]
    assert "2026-06" in said["onefold why monthly_billing 2026-06 billing:app"]
    assert shell("python charges.py", tmp_path) == "charged 995 for i-1\n" * 2
    assert shell("python -c 'import functions; print(callable(functions.handler))'", tmp_path) == "True\n"
    (deploys,) = re.findall(r"^onefold deploy (\S+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert '"Resources"' in shell(f"onefold synth {deploys}", tmp_path)  # what it would put there; nobody answers here


def readme_commands(*modules: str) -> list[str]:
    """The README's commands for apps of its own blocks, in order, without their comments.

    Not those of the story of a crash, one of which dies: test_pictures.py runs them.
    """
    shells = [text for language, _, text in blocks("README.md") if language == "sh" and "POWER_CUT" not in text]
    lines = [line for text in shells for line in text.splitlines()]
    apps = re.compile(rf"\b({'|'.join(modules)})(:app|\.py)\b")
    return [line.partition("  #")[0].strip() for line in lines if apps.search(line) and "deploy" not in line]


@pytest.mark.slow
def test_the_probe_of_the_guarantees_answers_for_a_worker_that_died(tmp_path: Path) -> None:
    write_files("docs/guarantees.md", tmp_path)
    shell("python -c 'import couriers; couriers.book_courier.send(couriers.Order(\"o-2\"))'", tmp_path)
    with pytest.raises(AssertionError, match="assert -6 == 0"):
        shell("onefold worker couriers:app --until-empty", tmp_path)
    assert (tmp_path / "partner" / "o-2").read_text() == "4711"
    (tmp_path / "partner" / "o-2").write_text("4712")  # what the partner says is what is recorded
    shell("onefold worker couriers:app --until-empty", tmp_path)
    assert (tmp_path / "partner" / "o-2").read_text() == "4712", "it was not booked again"
    story = shell("onefold why o-2 couriers:app", tmp_path)
    assert "label-4712" in story
    assert "takeover" in story


def test_the_first_pages_code_is_the_readmes() -> None:
    (first,) = (text for language, _, text in blocks("docs/index.md") if language == "python")
    assert first in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page", ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
)
def test_python_blocks_are_python(page: str) -> None:
    for language, _, text in blocks(page):
        if language == "python":
            ast.parse(text)
