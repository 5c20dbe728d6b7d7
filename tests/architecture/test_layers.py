"""The layer contracts of pyproject.toml hold, and each of them would notice if it did not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of `root`/pyproject.toml against the package in `root`/src."""
    return subprocess.run(
        [LINT_IMPORTS, "--config", root / "pyproject.toml", "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_contracts_hold() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("errors.py", "from onefold import clock", "Floors"),
        ("contracts/queue.py", "from onefold.runner import events", "Floors"),
        ("record/planted.py", "def f():\n    from onefold.engines import sqlite", "Floors"),
        ("planted.py", "", "Floors"),
        ("record/planted.py", "import time", "Pure"),
        ("contracts/queue.py", "from onefold import clock", "Pure"),
        ("runner/planted.py", "import onefold.engines.sqlite", "Injected"),
        ("engines/sqlite/planted.py", "from onefold.engines import urls", "Rooms"),
        ("engines/planted.py", "", "Rooms"),
        ("contracts/queue.py", "from onefold.contracts import commit", "Rings"),
    ],
)
def test_a_planted_import_is_caught(tmp_path: Path, module: str, line: str, contract: str) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "data"))
    with (tmp_path / "src" / "onefold" / module).open("a") as file:
        file.write(f"\n{line}\n")

    result = lint(tmp_path)

    broken = [row for row in result.stdout.splitlines() if "BROKEN" in row]
    assert result.returncode != 0
    assert any(row.startswith(contract) for row in broken), result.stdout + result.stderr


@pytest.mark.parametrize(
    "call",
    [
        "import time\ntime.time()",
        "from time import monotonic_ns\nmonotonic_ns()",
        "import asyncio\nasyncio.sleep(1)",
        "import time\ntime.sleep(1)",
        "import datetime\ndatetime.datetime.now(tz=datetime.UTC)",
        "import random\nrandom.random()",
        "import uuid\nuuid.uuid4()",
        "import secrets\nsecrets.token_hex()",
        "import os\nos.urandom(8)",
    ],
)
def test_time_and_chance_are_banned_but_for_their_rooms(call: str) -> None:
    def findings(filename: str) -> str:
        return subprocess.run(
            [
                Path(sys.executable).with_name("ruff"),
                "check",
                "--no-cache",
                "--stdin-filename",
                filename,
                "-",
            ],
            cwd=ROOT,
            input=call,
            capture_output=True,
            text=True,
            check=False,
        ).stdout

    assert "TID251" in findings("src/onefold/runner/planted.py")
    assert "TID251" in findings("tests/run/test_planted.py")
    assert "TID251" not in findings("src/onefold/clock.py")
    assert "TID251" not in findings("src/onefold/entropy.py")
