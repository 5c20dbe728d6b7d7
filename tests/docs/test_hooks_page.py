"""The page about hooks, run as it stands: a pool, a stand-in for Sentry's SDK, and Django itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.docs.test_pages import shell, write_files

PAGE = "docs/how-to/hooks.md"
SENTRY = """
from contextlib import contextmanager

scopes = []

class Scope(dict):
    set_tag = set_extra = dict.__setitem__

@contextmanager
def new_scope():
    scopes.append(Scope())
    yield scopes[-1]
    scopes.pop()

def init(release):
    print("init", release)

def flush(timeout):
    print("flush")

def capture_exception(error):
    print("captured", type(error).__name__, dict(scopes[-1]))
"""
SETTINGS = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""


@pytest.mark.slow
def test_the_pool(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    shell("python shop.py && onefold worker shop:app --until-empty --no-progress", tmp_path)
    rows = sqlite3.connect(tmp_path / "shop.db")
    assert rows.execute("SELECT id FROM orders").fetchall() == [("o-1",)]
    rows.close()


@pytest.mark.slow
def test_what_the_stand_in_for_sentry_is_told(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    (tmp_path / "sentry_sdk.py").write_text(SENTRY)
    said = shell(
        "python reporting.py && onefold worker reporting:app --until-empty --no-progress --threads 1", tmp_path
    ).splitlines()
    told = [line for line in said if line.startswith(("init", "captured", "flush"))]
    assert (told[0], told[-1]) == ("init shop@1.4", "flush")
    assert sorted(told[1:-1]) == [
        "captured PermanentError {'job': 'charge', 'key': 'c-2', 'attempt': 1}",
        "captured TransientError {'job': 'charge', 'key': 'c-1', 'attempt': 2}",
    ]


@pytest.mark.slow
def test_django(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    (tmp_path / "settings.py").write_text(SETTINGS)
    environment = "DJANGO_SETTINGS_MODULE=settings PYTHONPATH=$PWD:${PYTHONPATH:-}"
    shell(
        f"{environment} python -m django migrate >/dev/null\npython jobs.py\n"
        f"onefold worker jobs:app --until-empty --no-progress\n"
        'python -c \'import jobs; jobs.add_user.send({"name": "bo"})\'\n'
        f"onefold worker jobs:app --until-empty --no-progress --processes 1",
        tmp_path,
    )
    rows = sqlite3.connect(tmp_path / "site.db")
    assert rows.execute("SELECT username FROM auth_user").fetchall() == [("ada",), ("bo",)]
    rows.close()
