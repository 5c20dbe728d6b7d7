"""No body leaves onefold by a log, a metric, a reason or a list, and no key by a log or a metric, however a message fails.

`marked.py` fails in every way there is; its messages hold the words `BODY` and `KEY`. `Outlets` is the list of everything
that comes out of a real engine with real workers, one of which is killed, and of every command; `FORBIDDEN` says which word
may not be in which outlet. The one exception is what the user's own exception says (`TEXT`), which can be switched off.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from onefold.admin.session import AdminSession, SessionJobs
from onefold.contracts.admin import Roles, roles
from onefold.observe.log_fields import FIELDS
from onefold.runtime.events import EVENTS
from onefold.web.application import Page
from onefold.web.safety import Access
from tests.docs.test_pages import ROOT
from tests.observe import marked
from tests.observe.marked import BODY, KEY, TEXT
from tests.web.browsing import TOKEN, Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

APP = "tests.observe.marked:app"
PATIENCE_S = 90
# What must have been reported before the outlets are read: each way to fail, by job (if it matters) and event.
WAYS: Final = {
    ("good", "completed"), ("good", "duplicate"), ("good", "conflict"),
    ("raising", "retry"), ("raising", "dead-letter"), ("refused", "dead-letter"), ("down", "dead-letter"),
    ("doubtful", "unknown"), ("doubtful", "held"), ("probed", "probe"), ("slow", "dead-letter"),
    ("killer", "quarantine"), ("large", "completed"), ("strange", "held"), ("sending", "completed"),
    ("stopping", "dead-letter"), ("stopping", "group-stopped"), ("dies_once", "takeover"), ("mapped", "dead-letter"),
    ("from_event", "dead-letter"), ("nightly", "dead-letter"), ("", "malformed"), ("", "waits-for-job"), ("", "ticked"),
}  # fmt: skip
LOGS: Final = ("json.log", "plain.log", "fields.log", "worker.txt")
KEYLESS: Final = (*LOGS, "metrics", "emf", "spans", "history", "records", "reasons")  # the history has a column of keys
COMMANDS: Final = (
    "status", "stuck", "runs list", "counts 2026-11", "dlq list", "held list", "alarms list", "alarms history",
    "queue list", "names list", "queue peek work-dead", "events rules", "map list", "map show marked/1 --quarantine 20",
    f"why {KEY}-raising", f"why {KEY}-doubtful", f"held show {KEY}-doubtful" , "status --json", "dlq list --json",
    "held list --json", "dlq redrive --job raising --dry-run",
)  # fmt: skip
PAGES: Final = ("", "status", "dead", "held", "alarms", "runs", "runs/marked%2F1", "schedules", "workers", "audit")


class Stage:
    """A folder in which everything fails.

    Args:
        text: whether what exceptions say is kept.
    """

    def __init__(self, folder: Path, *, text: bool) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/marked.db"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONEFOLD", "PYTEST"))}
        self.environment = kept | {
            "ONEFOLD_URL": self.url,
            "ONEFOLD_ERROR_TEXT": "on" if text else "off",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
        }
        self.metrics = ""
        self.ran: dict[str, str] = {}

    def python(self, *words: str, ends: tuple[int, ...] = (0,)) -> str:
        """A Python program in the folder; all that it says."""
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder, env=self.environment, text=True, capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode in ends, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def run(self) -> None:
        """Send, work until everything has failed, and ask every command."""
        self.python("-m", "tests.observe.marked")
        self.python(
            "-m", "onefold", "map", "start", "mapped", APP, "--items", "rows.csv", "--name", "marked/1", "--detach"
        )
        died = ("-m", "onefold", "worker", APP, "--queues", "dying", "--no-progress")
        self.python(*died, ends=(-signal.SIGKILL,))
        words = ["worker", APP, "--processes", "2", "--schedules", "--metrics", "127.0.0.1:0", "--emf"]
        with (self.folder / "worker.txt").open("w") as output:
            worker = subprocess.Popen(
                [sys.executable, "-m", "onefold", *words],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=output,
            )
            try:
                self._wait(worker)
                (url,) = re.findall(r"metrics: (\S+)", (self.folder / "worker.txt").read_text())
                with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                    self.metrics = answer.read().decode()
            finally:
                worker.send_signal(signal.SIGTERM)
                worker.wait(PATIENCE_S)
        self.ran = {
            words: self.python("-m", "onefold", *words.split(), *_app(words), ends=(0, 1)) for words in COMMANDS
        }
        settle = ("held", "settle", f"{KEY}-doubtful", APP, "--done", "--reason-text", "seen")
        self.ran["held settle"] = self.python("-m", "onefold", *settle)

    def lines(self) -> list[dict[str, Any]]:
        """What the log as JSON says."""
        path = self.folder / "json.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def missing(self) -> set[tuple[str, str]]:
        """The ways to fail that nothing was reported of."""
        lines = self.lines()
        return WAYS - {(one.get("job"), one["event"]) for one in lines} - {("", one["event"]) for one in lines}

    def _wait(self, worker: subprocess.Popen[bytes]) -> None:
        pause = threading.Event()
        for _ in range(PATIENCE_S * 5):
            if not self.missing():
                return
            assert worker.poll() is None, (self.folder / "worker.txt").read_text()
            pause.wait(0.2)
        raise AssertionError(f"never reported: {self.missing()}")

    def outlets(self) -> dict[str, str]:
        """Everything that came out, by its name."""
        found = {name: (self.folder / name).read_text() for name in LOGS}
        found["metrics"] = self.metrics
        found["spans"] = (self.folder / "spans.json").read_text()
        found["emf"] = "\n".join(line for line in found["worker.txt"].splitlines() if "CloudWatchMetrics" in line)
        found |= {f"onefold {words}": text for words, text in self.ran.items()}
        rows = _rows(
            self.folder / "marked.db", "SELECT event, queue, message_id, run, actor, detail FROM onefold_ledger"
        )
        found["history"] = rows
        found["records"] = _rows(self.folder / "marked.db", "SELECT failure FROM onefold_record")
        return found | dict(self._seen())

    def _seen(self) -> Iterator[tuple[str, str]]:
        """Reasons of dead letters, and the page's pages, read by a process as a user's is."""
        script = "import json, sys; from tests.observe.test_marker import seen; json.dump(seen(), sys.stdout)"
        yield from json.loads(self.python("-c", script)).items()


def _app(words: str) -> list[str]:
    return [] if words.startswith("dlq list --json") else [APP]


def _rows(path: Path, query: str) -> str:
    with sqlite3.connect(path) as connection:
        return "\n".join(repr(row) for row in connection.execute(query))


def seen() -> Mapping[str, str]:
    """What dead letters say beside their bodies and keys, and what the page shows; in a process with the engine's URL."""
    app = marked.app
    session = AdminSession(
        app.runtime(), actor="person:ada", jobs=SessionJobs(named=app.jobs, of=app.registry.job_of, history=app.history)
    )
    queues = session.engine.queues
    dead = roles({one.name: one for one in queues.settings()})
    reasons = []
    for one in queues.settings():
        if one.name not in dead.sources:
            for message in queues.peek(one.name, limit=1_000):
                said = msgspec.to_builtins(message.reason)
                reasons.append({name: value for name, value in (said or {}).items() if name != "key"})
    access = Access(token=TOKEN, actor="person:ada")
    pages = {}
    for hidden in (False, True):
        reader = Reader(Page(session, access=access, app=app, hide_payloads=hidden))
        paths = [*PAGES, *(f"api/{path}" for path in PAGES if path)]
        if hidden:
            paths += [f"{_room(one.name, dead)}/{one.name}" for one in queues.settings()]
            paths += [f"why/raising/{KEY}-raising", f"why/doubtful/{KEY}-doubtful"]
        for path in paths:
            got = reader.get(f"/{path}")
            assert got.status == 200, (path, got.words)
            pages[f"page /{path}{' with payloads hidden' if hidden else ''}"] = f"200 of /{path}: {got.text}"
    return {"reasons": json.dumps(reasons), **pages}


def _room(queue: str, known: Roles) -> str:
    return "dead" if queue in known.dead else "queues"


def leaks(outlets: Mapping[str, str], *, text: bool) -> list[str]:
    """Which outlet has which word that may not be in it."""
    found = []
    for name, said in outlets.items():
        forbidden = [BODY]
        if name in KEYLESS:
            forbidden.append(KEY)
        if not text or name in ("metrics", "emf"):
            forbidden.append(TEXT)
        for word in forbidden:
            at = said.find(word)
            if at >= 0:
                found.append(f"{name}: {said[max(at - 200, 0) : at + 100]}")
    return found


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    made = Stage(tmp_path_factory.mktemp("marked"), text=True)
    made.run()
    return made


def test_no_body_and_no_key_is_where_it_may_not_be(stage: Stage) -> None:
    outlets = stage.outlets()
    assert leaks(outlets, text=True) == []
    assert [name for name, said in outlets.items() if len(said) < 20] == [], (
        "an outlet that says nothing proves nothing"
    )
    kept = {name for name, said in outlets.items() if TEXT in said}
    assert {"json.log", "plain.log", "fields.log", "worker.txt", "history", "records", "reasons", "onefold dlq list",
            f"onefold why {KEY}-raising", "page /dead/work-dead with payloads hidden"} <= kept  # fmt: skip


def test_lines_have_the_documented_fields_and_levels(stage: Stage) -> None:
    lines = stage.lines()
    assert {name for one in lines for name in one} <= FIELDS.keys()
    for one in lines:
        assert {"ts", "level", "event", "text", "app"} <= one.keys()
        assert (one["level"], one["app"]) == (EVENTS[one["event"]].severity, "marked")
        assert len(one.get("summary", "")) <= 500
        assert len(one.get("trace", "")) <= 4_000
    raised = [one for one in lines if one["event"] == "dead-letter" and one.get("job") in ("raising", "refused")]
    assert raised
    assert all(one["where"].startswith("marked.py:") and one["trace"].startswith("Traceback") for one in raised)


def test_a_leak_in_any_outlet_is_found(stage: Stage) -> None:
    outlets = stage.outlets()
    for name, said in outlets.items():
        assert leaks({name: f"{said} {BODY}"}, text=True), name
    for name in KEYLESS:
        assert leaks({name: f"{outlets[name]} {KEY}-1"}, text=True), name


def test_what_exceptions_say_is_nowhere_when_it_is_switched_off(tmp_path: Path) -> None:
    made = Stage(tmp_path, text=False)
    made.run()
    assert leaks(made.outlets(), text=False) == []
