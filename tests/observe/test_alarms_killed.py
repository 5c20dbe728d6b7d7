"""An alarm is neither lost nor sent twice, wherever the process that evaluates or sends it is killed."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from onefold.clock import SystemClock
from onefold.entropy import SeededEntropy
from onefold.observe.incidents import history
from tests.observe import receivers
from tests.observe.receivers import Mails, SlackApi, Webhook
from tests.observe.watched import make_app

ROOT = Path(__file__).parents[2]
KILLED = -signal.SIGKILL


class Scene:
    """An app with one dead letter, and what its alarms are sent to."""

    def __init__(self, folder: Path, hook: Webhook, mails: Mails) -> None:
        self.folder, self.hook, self.mails = folder, hook, mails
        app = make_app(folder)
        runtime = app.runtime()
        app.jobs["book"].send({"id": "o-1"})
        queues = runtime.engine.queues
        queues.move([(one.message_id, "orders-dead", None) for one in queues.peek("orders")])
        app.close()

    def start(self, kill_at: int = 0, kill_by: str | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.observe.watched", str(self.folder), str(kill_at)]
        environment = {**os.environ, "HOOK": self.hook.url, "ONEFOLD_SMTP_URL": self.mails.url}
        if kill_by == "command":
            (self.folder / "kill").touch()
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        self.kill_by(kill_by, process)
        return process

    def kill_by(self, target: str | None, process: subprocess.Popen[bytes]) -> None:
        """Kill the process when this target has got something, before it answers; None: never."""

        def kill_if(kind: str) -> None:
            if kind == target:
                process.kill()

        self.hook.on_request = lambda: kill_if("slack" if "blocks" in self.hook.documents()[-1] else "webhook")
        self.mails.on_mail = lambda: kill_if("email")

    def run(self, kill_at: int = 0) -> int:
        return self.start(kill_at).wait(60)

    def sent(self) -> dict[str, list[str]]:
        """The names of reports that each target got."""
        ids = self.folder / "ids"
        documents = self.hook.documents()
        return {
            "webhook": [one["id"] for one in documents if "id" in one],
            "slack": [one["blocks"][-1]["elements"][0]["text"] for one in documents if "blocks" in one],
            "email": [str(one["Message-ID"]) for one in self.mails.found],
            "command": ids.read_text().split() if ids.exists() else [],
        }

    def reported(self) -> list[str]:
        app = make_app(self.folder)
        try:
            return [one.id for one in history(app.runtime().engine.state)]
        finally:
            app.close()


@contextmanager
def scene(folder: Path) -> Iterator[Scene]:
    folder.mkdir()
    with receivers.webhook() as hook, receivers.mail_server() as mails:
        yield Scene(folder, hook, mails)


def each_once(there: Scene) -> bool:
    return all(len(names) == len(set(names)) == 1 for names in there.sent().values())


@pytest.mark.slow
@pytest.mark.timeout(400)  # some fifty processes, one after the other
def test_killed_at_any_write_of_a_look_each_target_gets_each_report_once(tmp_path: Path) -> None:
    for kill_at in itertools.count(1):
        with scene(tmp_path / str(kill_at)) as there:
            code = there.run(kill_at)
            if code == 0:
                assert each_once(there)
                break
            assert code == KILLED
            assert there.run() == 0
            assert there.run() == 0  # and nothing comes a second time
            assert each_once(there), (kill_at, there.sent())
            assert len(there.reported()) == 1
    assert kill_at > 10  # the incident, the history, the send and the incident again at least, before and after


TARGETS = ("slack", "webhook", "email", "command")


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_killed_while_a_target_has_it_and_the_record_has_not(tmp_path: Path, target: str) -> None:
    """It is sent there a second time then, under the same name, by which its receiver can drop it; to the others once."""
    with scene(tmp_path / "there") as there:
        process = there.start(kill_by=target)
        assert process.wait(60) == KILLED
        there.kill_by(None, process)
        assert there.run() == 0
        assert there.run() == 0
        sent = there.sent()
        assert {name: len(names) for name, names in sent.items()} == {
            name: 2 if name == target else 1 for name in TARGETS
        }
        assert {len(set(names)) for names in sent.values()} == {1}
        keys = [one["Idempotency-Key"] for one in there.hook.headers if "Idempotency-Key" in one]
        assert len(set(keys)) == 1
        assert len(there.reported()) == 1


@pytest.mark.slow
@pytest.mark.timeout(400)  # some fifty processes, one after the other
def test_killed_at_any_instant_each_receiver_that_knows_the_name_has_each_report_once(tmp_path: Path) -> None:
    """Anywhere in the life of the process that looks and sends; the instants are shares of how long it takes unhindered."""
    with scene(tmp_path / "whole") as there:
        clock = SystemClock()
        started_ms = clock.monotonic_ms()
        assert there.run() == 0
        takes_ms = clock.monotonic_ms() - started_ms
    chance = SeededEntropy(20261123)
    killed = 0
    for number in range(6):
        with scene(tmp_path / str(number)) as there:
            for _ in range(3):  # and whoever goes on is killed as well
                process = there.start()
                try:
                    process.wait((0.2 + 0.8 * chance.fraction()) * takes_ms / 1_000)
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += process.wait(60) == KILLED
            assert there.run() == 0
            assert there.run() == 0
            sent = there.sent()
            assert {name: len(set(names)) for name, names in sent.items()} == dict.fromkeys(TARGETS, 1), sent
            assert len(there.reported()) == 1
    assert killed >= 6


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlackApi]:
    with receivers.slack_api() as made:
        monkeypatch.setenv("SLACK_BOT_TOKEN", "xoxb-1")
        monkeypatch.setenv("ONEFOLD_SLACK_API", made.url)
        yield made


def ids(slack: SlackApi) -> list[str]:
    return [one["metadata"]["event_payload"]["id"] for one in slack.messages]


@pytest.mark.slow
def test_a_channel_that_can_be_asked_has_the_report_once_wherever_its_sender_is_killed(
    tmp_path: Path, slack: SlackApi
) -> None:
    """Killed between Slack's having it and the record: the next process asks the channel, and sends nothing."""
    with scene(tmp_path / "there") as there:
        process = there.start()
        slack.on_post = process.kill
        assert process.wait(60) == KILLED
        slack.on_post = lambda: None
        assert there.run() == 0
        assert there.run() == 0
        assert len(ids(slack)) == len(slack.asked) == 1
        assert ids(slack) == there.reported()
        assert {name: len(names) for name, names in there.sent().items()} == {
            "webhook": 1, "slack": 0, "email": 1, "command": 1,
        }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(400)  # some thirty processes, one after the other
def test_killed_at_any_instant_the_channel_has_each_report_exactly_once(tmp_path: Path, slack: SlackApi) -> None:
    with scene(tmp_path / "whole") as there:
        clock = SystemClock()
        started_ms = clock.monotonic_ms()
        assert there.run() == 0
        takes_ms = clock.monotonic_ms() - started_ms
        expected = there.reported()
    chance = SeededEntropy(20261128)
    for number in range(6):
        with scene(tmp_path / str(number)) as there:
            for _ in range(3):
                process = there.start()
                with suppress(subprocess.TimeoutExpired):
                    process.wait((0.5 + 0.5 * chance.fraction()) * takes_ms / 1_000)
                process.kill()
                process.wait(60)
            assert there.run() == 0
            assert there.run() == 0
            expected += there.reported()
            assert sorted(ids(slack)) == sorted(expected)


@pytest.mark.slow
def test_two_that_look_at_the_same_time_report_once(tmp_path: Path) -> None:
    with scene(tmp_path / "there") as there:
        both = [there.start() for _ in range(2)]
        assert [one.wait(60) for one in both] == [0, 0]
        assert each_once(there), there.sent()
