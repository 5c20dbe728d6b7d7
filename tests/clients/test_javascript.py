"""The JavaScript SDK v3 in Node: one process runs all scenarios, and each is a test."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.serving import environment

FOLDER = Path(__file__).parent / "js"
NAMES = re.findall(r'^  async "([^"]+)"', (FOLDER / "scenarios.mjs").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def outcomes(server: str) -> dict[str, str | None]:
    assert (FOLDER / "node_modules").is_dir(), "the SDK is not installed: run make setup"
    done = subprocess.run(
        ["node", "scenarios.mjs", server],
        cwd=FOLDER, env=environment(), text=True, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {one["name"]: one["error"] for one in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.conformance(
    operation="Walk-through",
    case="seven scenarios, bodies checked by the SDK's own MD5",
    source="clients: JavaScript SDK v3",
)
def test_scenario(outcomes: dict[str, str | None], name: str) -> None:
    assert outcomes[name] is None, outcomes[name]


def test_there_are_scenarios() -> None:
    assert len(NAMES) == 7
