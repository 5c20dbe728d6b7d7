"""A call whose process is killed while its probe is asked counts as one that died: the key is held at last.

Otherwise a caller that tries again kills its process again and again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, sys
import onefold

store = onefold.store("sqlite:///r.db")

def probe(order):
    os.write(1, b"asked ")
    os.kill(os.getpid(), 9)

@onefold.once(key="{order}", name="charge", store=store, on_unknown=probe, crashes=3)
def charge(order: str) -> str:
    os.write(1, b"charged ")
    os.kill(os.getpid(), 9)
    return "never"

@onefold.once(key="{order}", name="acharge", store=store, on_unknown=probe, crashes=3)
async def acharge(order: str) -> str:
    return charge.__wrapped__(order)

try:
    if sys.argv[1] == "plain":
        charge("o-1")
    else:
        import asyncio
        asyncio.run(acharge("o-1"))
except onefold.OutcomeUnknown as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_key_whose_probe_kills_its_process_is_held_in_the_end(tmp_path: Path, kind: str) -> None:
    said: list[str] = []
    logged = ""
    for _ in range(5):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, kind], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        said.append(ran.stdout)
        logged += ran.stderr
    assert said[:3] == ["charged ", "asked ", "asked "]
    for one in said[3:]:
        assert "It is unknown whether" in one
        assert "3 earlier calls ended without a recorded outcome, and crashes is 3." in one
    assert "(1 of at most 3)" in logged
    assert "(3 of at most 3)" in logged
