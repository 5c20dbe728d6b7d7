"""The page about faults names every fault there is, says rightly where it applies, and its examples parse."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from onefold.local.fault_rules import HOLD_MS_DEFAULT, KINDS, REDRIVE_WITHIN_MS_DEFAULT, Faults, parse_faults

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "inject-faults.md").read_text(encoding="utf-8")


def test_the_table_is_the_table_of_the_code() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|.*\| (yes|no) \|$", PAGE, re.MULTILINE)
    assert rows == [(name, "yes" if kind.fifo else "no") for name, kind in KINDS.items()]


def test_the_defaults_are_those_of_the_code() -> None:
    assert f"its answer waits {HOLD_MS_DEFAULT // 1000} s" in PAGE
    assert f"goes back to its source within {REDRIVE_WITHIN_MS_DEFAULT // 1000} s" in PAGE


def test_the_options_parse() -> None:
    commands = [line for line in PAGE.splitlines() if line.startswith("onefold serve --fault")]
    for command in commands:
        options = [word for word in shlex.split(command)[2:] if word != "--fault"]
        assert parse_faults(options).faults
    assert len(commands) == 2


def test_the_json_parses() -> None:
    (body,) = re.findall(r"-d '(.*)'", PAGE)
    assert len(Faults.from_json(json.loads(body)).faults) == 2
    assert Faults.from_json({"throttle": 0.5}).faults[0].rate == 0.5
