"""Commands that onefold suggests do what they say whatever key a stranger chose: none of it is an option of the command."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from onefold.observe.wording import with_target
from onefold.redact import command
from tests.faces.conftest import Shell

APP = """\
import onefold
app = onefold.App("odd", url="sqlite:///odd.db")
queue = app.queue("q")
@app.job(queue, key="{key}", retry=onefold.Retry(attempts=1))
def fails(order: dict) -> str:
    raise RuntimeError("as asked")
@app.job(queue, key="{key}", on_unknown="hold")
def unknown(order: dict) -> str:
    raise onefold.OutcomeUnknown("nobody answered")
"""
KEYS = ["--url=redis://evil.example/0", "-x", "--help", "it's", "\u202egnp.exe", "a\u00a0b\\'c", "o-17"]


def words_of(text: str) -> list[str]:
    """The words of a command as bash reads them."""
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {text}"], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    )
    return said.stdout.decode().split("\0")[:-1]


def suggested(shown: str, beginning: str) -> list[list[str]]:
    lines = [line.strip().partition("   (")[0] for line in shown.splitlines() if line.strip().startswith(beginning)]
    return [words_of(line)[1:] for line in lines]


def test_a_placeholder_is_the_app_that_was_asked_about() -> None:
    assert with_target("onefold queue apply MODULE:APP", "shop:app") == "onefold queue apply shop:app"
    assert "MODULE:APP" in with_target("onefold queue apply MODULE:APP", "--url sqlite:///a.db")
    both = "Is a worker running? onefold worker <module>:<app>, or onefold relay <module>:<app>"
    assert with_target(both, "shop:app") == "Is a worker running? onefold worker shop:app, or onefold relay shop:app"


def test_a_worker_names_its_app_where_its_queues_differ(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    text = "import onefold\napp = onefold.App('odd')\nqueue = app.queue('q', visibility='{}')\n"
    text += "@app.job(queue, key='{{id}}')\ndef do(order: dict) -> None: ...\n"
    logger = logging.getLogger("onefold")
    for name, visibility in (("other", "1m"), ("broken", "2m")):
        (shell.folder / f"{name}.py").write_text(text.format(visibility))
        logger.addHandler(caplog.handler)  # itself: after the first worker of a process it does not propagate
        try:
            shell("worker", f"{name}:app", "--until-empty")
        finally:
            logger.removeHandler(caplog.handler)
    assert "To change them: onefold queue apply broken:app" in caplog.text


@pytest.mark.slow
def test_what_is_suggested_for_odd_keys_can_be_pasted(shell: Shell) -> None:
    (shell.folder / "odd.py").write_text(APP)
    for key in KEYS:
        for job in ("fails", "unknown"):
            shell("send", "odd:app", job, json.dumps({"key": f"{key}{job[0]}"}))
    work = [sys.executable, "-m", "onefold", "worker", "odd:app", "--until-empty", "--no-progress"]
    subprocess.run(work, cwd=shell.folder, capture_output=True, timeout=60, check=True)
    for letter in shell.json("dlq", "list", "odd:app", "--all")["letters"]:
        (why,) = suggested(shell("dlq", "show", letter["message_id"], "odd:app"), "onefold why")
        assert letter["message_id"] in shell(*why)
    for key in KEYS:
        settles = suggested(shell("held", "show", "odd:app", "--", f"{key}u"), "onefold held settle")
        shell("why", "--", f"{key}u", "odd:app")
        shell(*[word.replace("JSON", '"done"') for word in settles[0]])
        assert len(settles) == 2
    assert shell.json("held", "list", "odd:app")["held"] == []


def test_a_url_comes_before_the_key_that_looks_like_an_option() -> None:
    why = command("onefold why", "--json")
    assert with_target(why, "shop:app") == "onefold why -- --json shop:app"
    assert with_target(why, "--url sqlite:///shop.db") == "onefold why --url sqlite:///shop.db -- --json"
    settle = command("onefold held settle", "o-1", "--not-done")
    assert with_target(settle, "--url URL") == "onefold held settle o-1 --not-done --url URL"


def test_commands_inside_a_sentence_and_of_a_worker_get_the_app_too() -> None:
    resume = "Fix the dependency. To try at once: onefold resume charge"
    assert with_target(resume, "pay:app") == f"{resume} pay:app"
    worker = "Is a worker running? Start one: onefold worker <module>:<app>"
    assert with_target(worker, "pay:app") == "Is a worker running? Start one: onefold worker pay:app"
    assert with_target(worker, "--url URL") == worker


TWINS = """\
import onefold
app = onefold.App("twins", url="sqlite:///twins.db")
@app.job(app.queue("q"), key="{key}", on_unknown="hold")
def one(order: dict) -> None:
    raise onefold.OutcomeUnknown("nobody answered")
@app.job(app.queue("q2"), key="{key}", on_unknown="hold")
def other(order: dict) -> None:
    raise onefold.OutcomeUnknown("nobody answered")
@app.job(app.queue("q3"), key="{key}")
def strict(order: dict) -> None: ...
"""


def work(shell: Shell, app: str) -> str:
    """Run a worker until nothing is left, as a process of its own; what it reported, on one line."""
    words = [sys.executable, "-m", "onefold", "worker", app, "--until-empty", "--no-progress"]
    done = subprocess.run(words, cwd=shell.folder, capture_output=True, timeout=60, check=True, text=True)
    return " ".join(done.stderr.split())


@pytest.mark.slow
def test_what_is_suggested_is_not_refused(shell: Shell) -> None:
    (shell.folder / "twins.py").write_text(TWINS)
    for job in ("one", "other"):
        shell("send", "twins:app", job, '{"key": "both"}')
    for amount in (1, 2):
        shell("send", "twins:app", "strict", json.dumps({"key": "c", "amount": amount}))
    work(shell, "twins:app")

    settles: list[list[str]] = []
    for shown in (shell("why", "both", "twins:app"), shell("held", "show", "both", "twins:app")):
        settles = suggested(shown, "onefold held settle")
        assert sorted(words[words.index("--job") + 1] for words in settles) == ["one", "one", "other", "other"]
    shell(*next(words for words in settles if "--not-done" in words))
    (left, _) = suggested(shell("held", "show", "both", "twins:app"), "onefold held settle")
    assert "--job" not in left

    (letter,) = shell.json("dlq", "list", "twins:app", "--all")["letters"]
    assert letter["reason"] == "conflict"
    shown = shell("dlq", "show", letter["message_id"], "twins:app")
    assert "would fail again" in shown
    assert not suggested(shown, "onefold dlq redrive")
    assert [words[-2:] for words in suggested(shown, "onefold dlq edit")] == [["--new-key", "twins:app"]]
    assert suggested(shown, "onefold dlq purge") == [["dlq", "purge", letter["message_id"], "twins:app"]]


@pytest.mark.slow
def test_the_next_step_of_an_error_names_the_app_that_was_asked_about(shell: Shell) -> None:
    (shell.folder / "twins.py").write_text(TWINS)
    shell("send", "twins:app", "one", '{"key": "k"}')
    work(shell, "twins:app")
    said = shell.fails("held", "settle", "k", "--done", "--hold", "1@5", "twins:app")
    assert "`onefold held show k twins:app` and `onefold why k twins:app`" in said


def test_empty_lists_name_the_app_that_was_asked_about(shell: Shell) -> None:
    (shell.folder / "one.py").write_text(BOOK_ONE)
    shell("send", "one:app", "ship", '{"id": "1"}')
    assert "No worker is running. Start one: onefold worker one:app" in shell("workers", "list", "one:app")
    assert "or onefold watch one:app" in " ".join(shell("alarms", "list", "one:app").split())


BOOK_ONE = """\
import onefold
app = onefold.App("one", url="sqlite:///one.db")
@app.job(app.queue("orders"), key="{id}")
def ship(order: dict) -> None: ...
"""
