"""A queue that was renamed while messages waited in it: no worker receives them, and everything that looks says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

import onefold
from onefold.admin import status, status_warnings, why
from onefold.admin.session import AdminSession, jobs_of, open_session
from onefold.observe.operation_state import QUEUE_RENAMED
from tests.faces.processes import Commands


@dataclass
class Payout:
    payout_id: str


def app_of(queue: str, url: str, *, fifo: bool = False) -> onefold.App:
    app = onefold.App("pay", url=url)

    @app.job(app.queue(queue, fifo=fifo), key="{payout_id}", name="pay", group="{payout_id}" if fifo else None)
    def pay(payout: Payout) -> None: ...

    return app


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def after(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AdminSession]:
    """One payout was sent; then the queue got another name."""
    url = f"sqlite:///{tmp_path / 'pay.db'}"
    before = app_of("payouts", url, fifo=request.param)
    before.jobs["pay"].send(Payout("p-1"))
    before.close()
    with closing(open_session(url, actor="person:ada", jobs=jobs_of(app_of("transfers", url)))) as session:
        yield session


def test_status_and_stuck_name_the_queue_the_job_and_what_to_do(after: AdminSession) -> None:
    (queue,) = [name for name in after.settings() if name.startswith("payouts") and "-" not in name]
    (warning,) = status.status(after).warnings
    assert (warning.code, warning.queue, warning.todo) == ("no-receiver", queue, QUEUE_RENAMED)
    assert warning.text == (
        f"1 message for pay is in queue {queue}, on which this app declares no job: its workers do not receive from it. "
        "It is deleted in 3d23h."
    )
    assert status_warnings.waiting_in_vain(after) == [warning]


def test_why_says_that_nobody_receives_it(after: AdminSession) -> None:
    (story,) = why.explain(after, "p-1").stories
    assert story.text.startswith(
        "Waiting, and no worker of this app receives it: the app declares the job on another queue; message "
    )
    assert story.todo == (QUEUE_RENAMED,)


def test_messages_of_other_apps_and_of_nobody_are_left_out(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'pay.db'}"
    other = onefold.App("books", url=url)
    other.job(other.queue("entries"), key="{payout_id}", name="enter")(enter)
    other.jobs["enter"].send(Payout("p-1"))
    other.close()
    with closing(open_session(url, actor="person:ada", jobs=jobs_of(app_of("transfers", url)))) as session:
        assert status_warnings.waiting_in_vain(session) == []
    with closing(open_session(url, actor="person:ada")) as bare:
        assert status_warnings.left_behind(bare) == [], "without the app nobody knows"


def enter(payout: Payout) -> None: ...


def test_dead_letters_of_the_old_queue_are_not_messages_that_wait(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'pay.db'}"
    before = app_of("payouts", url)
    before.jobs["pay"].send(Payout("p-1"))
    before.close()
    with closing(open_session(url, actor="person:ada", jobs=jobs_of(app_of("transfers", url)))) as session:
        (message,) = session.engine.queues.peek("payouts", limit=1)
        session.engine.queues.move([(message.message_id, "payouts-dead", None)])
        assert status_warnings.left_behind(session) == []


APP = """
import onefold

app = onefold.App("shop")


@app.job(app.queue("{queue}"), key="{{id}}")
def book(order: dict[str, str]) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.mark.slow
def test_a_worker_says_it_when_it_starts(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.format(queue="orders"))
    assert commands.run("send", "shop:app", "book", '{"id": "o-1"}').returncode == 0
    (tmp_path / "shop.py").write_text(APP.format(queue="parcels"))
    text = "1 message for book is in queue orders, on which this app declares no job"
    assert text in commands.run("stuck", "shop:app").stdout.replace("\n    ", " ")
    said = commands.run("worker", "shop:app", "--until-empty").stderr
    assert f"warning: {text}" in said
    assert QUEUE_RENAMED in said
