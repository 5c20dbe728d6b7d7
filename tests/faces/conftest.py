"""The office, open on the engine in memory and on a file: every use case is run on both. The command line as processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.cli import main, render
from tests.faces.office import Office, Open, file_url
from tests.faces.processes import Commands

SHOP = Path(__file__).with_name("shop.py")


class Shell:
    """Runs commands in one folder, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.said = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command that ends with this exit code; what it wrote to standard output."""
        self._capsys.readouterr()
        found = main.run(words)
        out, self.said = self._capsys.readouterr()
        assert found == code, f"{words}: {found}\n{out}{self.said}"
        return out

    def json(self, *words: str, code: int = 0) -> Any:
        """Run it with --json; the document."""
        return json.loads(self(*words, "--json", code=code))

    def fails(self, *words: str, code: int = 1) -> str:
        """Run a command that fails; what it said, and nothing on standard output."""
        assert self(*words, code=code) == ""
        return self.said

    def send(self, order_id: str, city: str = "London", job: str = "book") -> None:
        self("send", "shop:app", job, json.dumps({"order_id": order_id, "city": city}))

    def work(self) -> None:
        """Run a worker until nothing is left, as a process of its own."""
        command = [sys.executable, "-m", "onefold", "worker", "shop:app", "--until-empty", "--no-progress"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    for name in ("ONEFOLD_APP", "ONEFOLD_URL", "ONEFOLD_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(SHOP, tmp_path)
    (tmp_path / "down").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setenv("TZ", "UTC")
    for name in ("shop", "broken", "other"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield Shell(tmp_path, capsys)
    for name in ("shop", "broken", "other"):
        sys.modules.pop(name, None)


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture(params=["memory", "file"])
def there(request: pytest.FixtureRequest, office: Office, tmp_path: Path) -> Iterator[Open]:
    url = "sqlite://:memory:" if request.param == "memory" else file_url(tmp_path)
    with office.opened(url) as open_office:
        yield open_office


@pytest.fixture
def commands(folder: Path) -> Iterator[Commands]:
    """The command line as processes, in the folder that a test module lays out."""
    found = Commands(folder)
    yield found
    found.end()


@pytest.fixture(autouse=True)
def own_console() -> Iterator[None]:
    """The console keeps the width of its first drawing: each test has one of its own."""
    render.console.cache_clear()
    yield
    render.console.cache_clear()
