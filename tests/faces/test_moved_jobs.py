"""What the commands say of messages whose job was renamed, or has the name of another app's job."""

from __future__ import annotations

import sys

import pytest

from onefold.observe.wording import with_target
from tests.faces.conftest import Shell
from tests.faces.test_suggested_commands import work

BOOK = """\
import onefold
app = onefold.App("{app}", url="sqlite:///shared.db")
@app.job(app.queue("{queue}"), key="{{id}}"{name})
def {function}(order: dict) -> None: ...
"""


def write(shell: Shell, app: str, function: str, name: str = "", queue: str = "orders") -> None:
    (shell.folder / f"{app}.py").write_text(BOOK.format(app=app, queue=queue, function=function, name=name))
    sys.modules.pop(app, None)


@pytest.mark.slow
def test_a_renamed_job_is_thought_of(shell: Shell) -> None:
    write(shell, "moved", "book")
    shell("send", "moved:app", "book", '{"id": "1"}')
    work(shell, "moved:app")
    for key in ("1", "2"):
        shell("send", "moved:app", "book", f'{{"id": "{key}"}}')
    (shell.folder / "moved.py").unlink()
    write(shell, "moved", "book_courier")
    work(shell, "moved:app")

    advice = "If the job was renamed, declare aliases=['book'] or give it this name again. Else start a worker"
    for shown in (shell("status", "moved:app"), shell("stuck", "moved:app")):
        assert advice in " ".join(shown.split())
    waiting = shell("why", "2", "moved:app")
    assert "Waiting for a worker that declares the job book: this app does not" in waiting
    assert advice in waiting
    done = shell("why", "1", "moved:app")
    assert (
        "1 duplicate still waiting; answered from the record when delivered to a worker that declares the job book"
        in done
    )
    assert advice in done
    write(shell, "moved", "book_courier", ', aliases=["book"]')
    assert advice not in shell("why", "2", "moved:app")
    work(shell, "moved:app")
    assert "Done" in shell("why", "2", "moved:app")
    assert shell.json("status", "moved:app")["warnings"] == []
    shell("names", "list", "moved:app")


@pytest.mark.slow
def test_a_worker_warns_once_of_a_job_that_may_have_been_renamed(shell: Shell) -> None:
    write(shell, "moved", "pay")
    shell("send", "moved:app", "pay", '{"id": "1"}')
    assert "has worked here" not in work(shell, "moved:app")
    write(shell, "moved", "pay_invoice", ', aliases=["pay"]')
    shell("worker", "moved:app", "--dry-run")
    write(shell, "moved", "pay_invoice")
    shell("worker", "moved:app", "--dry-run", code=1)
    assert "App moved has worked here as pay, which it does not declare now, and pay_invoice is new here." in work(
        shell, "moved:app"
    )
    assert "has worked here" not in work(shell, "moved:app")


@pytest.mark.slow
def test_a_worker_that_would_be_refused_is_not_advised(shell: Shell) -> None:
    write(shell, "one", "ship")
    write(shell, "two", "ship")
    for app in ("one", "two"):
        shell("send", f"{app}:app", "ship", '{"id": "1"}')
    work(shell, "one:app")
    (warning,) = [one for one in shell.json("status", "two:app")["warnings"] if one["code"] == "no-job"]
    assert "its name belongs to the app 'one' on this store: a worker of this app is refused" in warning["text"]
    assert "onefold worker" not in warning["todo"]
    command = with_target(warning["todo"], "two:app").partition("If the job moved: onefold ")[2].split()
    assert shell(*command) == "ship belongs to two.\n"
    (warning,) = [one for one in shell.json("status", "two:app")["warnings"] if one["code"] == "no-job"]
    assert "Start a worker: onefold worker <module>:<app>" in warning["todo"]


def test_names_are_given_with_the_app_last(shell: Shell) -> None:
    write(shell, "one", "ship")
    shell("send", "one:app", "ship", '{"id": "1"}')
    assert "No name of the app 'one' is known here" in shell.fails(
        "names", "give", "--of", "one", "--to", "two", "one:app"
    )
    said = shell.fails("names", "give", "--to", "two", "one:app", code=2)
    assert "Give names, or --of APP for all names of an app; neither was given." in said
