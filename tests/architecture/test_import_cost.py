"""What `import onefold` loads. How long it takes is a row of the benchmark; what it loads is a fact."""

from __future__ import annotations

import subprocess
import sys

# Loaded when first used, never before: each costs a short-lived process milliseconds it may not need.
LATER = {
    "aiohttp",
    "asyncio",
    "boto3",
    "click",
    "concurrent.futures",
    "email",
    "http",
    "importlib.metadata",
    "jmespath",
    "logging",
    "multiprocessing",
    "pydantic",
    "rich",
    "sqlite3",
    "ssl",
    "subprocess",
    "unittest",
    "urllib.request",
}

# msgspec alone brings about 60 (typing, datetime, inspect, uuid ...); json, hashlib and threading another 25. Five are the
# packages of the features (events, maps ...), whose modules are loaded when they are used; a dozen are what opens an engine
# by its URL, which every program that declares an app does before long; five have only the types that public signatures
# name, so that `typing.get_type_hints` finds them. One has the hooks that an app takes, one the error for a missing
# extra, one the names that a job had, one what is known of an operation.
MODULES_MAX = 146


def loaded_by(statement: str) -> set[str]:
    """The modules that `statement` adds to a fresh interpreter."""
    program = f"import sys; before = set(sys.modules); {statement}; print(*sys.modules.keys() - before)"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_import_loads_nothing_heavy() -> None:
    assert not loaded_by("import onefold") & (LATER | {"queue", "urllib.parse"})


def test_import_loads_few_modules() -> None:
    loaded = loaded_by("import onefold")
    assert "onefold" in loaded
    assert len(loaded) <= MODULES_MAX, sorted(loaded)


def test_a_heavy_import_would_be_seen() -> None:
    assert {"asyncio", "logging", "sqlite3"} <= loaded_by("import asyncio, sqlite3") & LATER


def test_every_module_can_be_imported() -> None:
    """Those too that are named in annotations alone: help() and documentation tools import them."""
    every = "[importlib.import_module(one.name) for one in pkgutil.walk_packages(onefold.__path__, 'onefold.')]"
    django = (
        "import django.conf; django.conf.settings.configure(INSTALLED_APPS=['django.contrib.auth',"
        " 'django.contrib.contenttypes', 'django.contrib.admin', 'onefold.django']); django.setup()"
    )  # its modules need one
    loaded = loaded_by(f"import importlib, pkgutil, onefold; {django}; {every}")
    assert {"onefold.aws.lambda_function", "onefold.contracts.verbs", "onefold.outside"} <= loaded
