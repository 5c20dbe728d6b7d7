"""What every test shares: how Hypothesis draws examples. pyproject.toml makes warnings errors.

The gate draws the same examples each time, so that one commit has one verdict; the soak draws more of them, always new,
and prints how to repeat a failure. Neither has a deadline: a busy machine is not a defect.

Files of tests are kept in memory where the system offers that: some shared machines sync a disk only 250 times a
second. A killed process loses nothing either way; what a power cut does is up to the disk, and no test can show it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import conformance

MEMORY = Path("/dev/shm")  # pytest makes a private folder in it
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("soak", parent=settings.get_profile("gate"), derandomize=False, max_examples=2_000)
settings.load_profile("soak" if os.environ.get("ONEFOLD_SOAK") == "1" else "gate")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", action="store_true", help="write docs/conformance.md from the tests that ran")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--conformance") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(conformance.Collector())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for row in conformance.rows_of(item):
            item.user_properties.append((conformance.PROPERTY, json.dumps(row)))
