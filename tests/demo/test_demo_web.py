"""`onefold demo web`: the page answers at the printed address, an alarm begins and ends in it, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import Request, urlopen

import pytest

from onefold.clock import SystemClock
from onefold.demo import web

BEGINS_S, ENDS_S = 60, 180


@pytest.fixture
def demonstration(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {name: text for name, text in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    process = subprocess.Popen(
        [sys.executable, "-m", "onefold", "demo", "web", "--quick", "--json", "--keep", str(tmp_path / "shop")],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def processes_in(folder: Path) -> list[str]:
    """Commands of the processes that know this folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            known = str(folder) in (place / "environ").read_bytes().decode(errors="replace")
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if known and int(place.name) != os.getpid():
            found.append(command)
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_page_answers_and_an_alarm_begins_and_ends(demonstration: subprocess.Popen[str], tmp_path: Path) -> None:
    assert demonstration.stdout is not None
    opens = json.loads(demonstration.stdout.readline())["open"]
    token = parse_qs(urlsplit(opens).query)["token"][0]
    with urlopen(opens, timeout=30) as answer:
        assert answer.status == 200

    def asked(path: str) -> Any:
        request = Request(opens.partition("?")[0] + path, headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=30) as found:
            return json.load(found)

    def reported(kind: str, at_most_s: int) -> list[str]:
        """Alarms of which that is in the history, once there is one for dead letters."""
        until_ms = SystemClock().monotonic_ms() + at_most_s * 1_000
        while SystemClock().monotonic_ms() < until_ms:
            found = [one["alarm"] for one in asked("api/alarms")["reports"] if one["kind"] == kind]
            if "dlq-not-empty" in found:
                return found
            threading.Event().wait(0.5)
        raise AssertionError(f"{kind}: {asked('api/alarms')}")

    reported("began", BEGINS_S)
    assert {one["alarm"] for one in asked("api/status")["alarms"]} >= {"dlq-not-empty"}
    assert len(asked("api/workers")["workers"]) >= 1
    reported("ended", ENDS_S)
    (reason,) = {one["reason"] for one in asked("api/audit")["deeds"] if one["event"] == "redrive"}
    assert "is a return" in reason
    demonstration.send_signal(signal.SIGINT)
    said, problems = demonstration.communicate(timeout=60)
    assert (demonstration.returncode, problems) == (0, "")
    found = json.loads(said.splitlines()[-1])
    assert found["corrected"] >= 1
    assert found["kills"] >= 1
    assert found["ended"] >= 1
    assert processes_in(tmp_path) == []


def test_a_browser_is_opened_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert web.has_display() == (sys.platform in ("darwin", "win32"))
    monkeypatch.setenv("DISPLAY", ":0")
    assert web.has_display()
