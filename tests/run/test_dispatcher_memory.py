"""What a dispatch has in memory does not grow with what it dispatches, once SQLite's page cache is full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FULL, MANY = 250_000, 600_000  # 64 MiB of pages are some 200,000 messages
GROWTH_MB_MAX = 4.0


@pytest.mark.slow
def test_memory_is_flat_while_hundreds_of_thousands_are_dispatched(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.run.dispatch_bench", tmp_path / "many.db", str(MANY), str(FULL), str(MANY)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["expected"] == MANY
    assert found["resident_mb"][str(MANY)] - found["resident_mb"][str(FULL)] < GROWTH_MB_MAX, found
