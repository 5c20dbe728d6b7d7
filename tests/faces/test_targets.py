"""Words that a command takes for an app, a URL, a key or a date: what is wrong is named, with what was probably meant."""

from __future__ import annotations

import pytest

from tests.faces.conftest import Shell

WRONG = [
    (("why", "x", "mysql://me:secret@host/shop"), 1, "'mysql://host...': there is no engine or store 'mysql'"),
    (("why", "redis://me:secret"), 2, "KEY is missing: redis://... is the URL"),
    (("why", "x", "mysql://host/shop"), 1, "redis://HOST/0"),
    (("why", "x", "records.db"), 1, "Did you mean sqlite:///records.db?"),
    (("why", "x", "shop"), 1, "'shop' is neither an app (module:attribute) nor the URL of an engine or store, nor a date."),
    (("why", "x", "shop"), 1, "Did you mean shop:app?"),
    (("why", "x", "redis"), 1, "'redis' is neither an app"),
    (("why", "x", "extra", "shop:app"), 1, "Of a key alone: onefold why x shop:app"),
    (("worker", "--url", "sqlite:///a.db"), 2, "onefold worker takes no --url: it needs an app (module:attribute)"),
    (("completion", "--url", "sqlite:///a.db"), 2, "No such option '--url'."),
    (("counts",), 2, "DATE is missing (2026, 2026-11 or 2026-11-23). Write: onefold counts DATE [APP]"),
    (("counts", "shop:app"), 2, "DATE is missing (2026, 2026-11 or 2026-11-23): shop:app is an app"),
    (("why", "shop:app"), 2, "KEY is missing: shop:app is an app. Write: onefold why KEY shop:app"),
    (("why", "redis://h/0"), 2, "KEY is missing: redis://h/0 is the URL of an engine or store."),
    (("held", "show", "redis://h/0"), 2, "Write: onefold held show KEY redis://h/0"),
    (("held", "show", "k", "records.db"), 1, "Did you mean sqlite:///records.db?"),
    (("queue", "peek", "redis://h/0"), 2, "QUEUE is missing"),
    (("reconcile", "redis://h/0"), 2, "RUN is missing: redis://h/0 is the URL of an engine or store."),
    (("reconcile", "shop:app"), 2, "RUN is missing: shop:app is an app."),
    (("resume", "sqlite:///.onefold/shop.db"), 2, "JOB is missing"),
    (("status", "mysql://x/y"), 1, "there is no engine or store 'mysql'"),
    (("status", "--url", "mysql://x/y"), 1, "there is no engine or store 'mysql'"),
    (("status", "--url", "records.db"), 1, "Did you mean sqlite:///records.db?"),
    (("dlq", "list", "records.db"), 1, "Did you mean sqlite:///records.db?"),
    (("worker", "shop.py"), 1, "Did you mean shop:app?"),
    (("worker", "lib/shop.py:shop"), 1, "Did you mean lib.shop:shop?"),
    *[
        ((*command.split(), url), 2 if command == "diff" else 1, f"onefold {command} needs an app, and {url} is the URL of")
        for url in ("sqlite:///.onefold/shop.db", "redis://h/0")
        for command in (
            "worker", "scheduler", "queue apply", "events rules", "events undelivered", "calendar", "synth",
            "package", "diff", "cost",
        )
    ],
    (("map", "start", "MAP", "sqlite:///.onefold/shop.db", "--name", "r"), 1, "onefold map start needs an app"),
    (("map", "list", "redis://h/0"), 1, "'redis://h/0' is a store for records; it has no queues."),
    (("map", "show", "RUN", "sqlite:///.onefold/shop.db"), 1, "There is no map run 'RUN'."),
    (("send", "book", "{}", "sqlite:///.onefold/shop.db"), 1, "onefold send needs an app"),
    (("resume", "bok", "shop:app"), 1, "Did you mean 'book'?"),
    (("held", "settle", "k", "shop:app", "--done", "--not-done"), 2, "--done and --not-done exclude each other."),
    (("held", "settle", "k", "shop:app", "--not-done", "--done"), 2, "Nothing was changed."),
    (("held", "settle", "shop:app", "--done"), 2, "KEY is missing: shop:app is an app."),
]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "said"), WRONG, ids=lambda one: " ".join(one) if isinstance(one, tuple) else ""
)
def test_a_wrong_target_is_named_with_what_was_meant(
    shell: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    shell.send("o-1")  # there is one database that must not answer instead
    (shell.folder / "records.db").touch()
    assert said in " ".join(shell.fails(*words, code=code).split())


def test_map_runs_are_listed_by_url(shell: Shell) -> None:
    shell.send("o-1")
    assert "No map run." in shell("map", "list", "sqlite:///.onefold/shop.db")


def test_a_key_may_look_like_an_app(shell: Shell) -> None:
    shell.send("o-1")
    assert "'email:ada' has never been seen" in shell("why", "email:ada")
    assert "'shop:app' has never been seen" in shell("why", "shop:app", "--url", "sqlite:///.onefold/shop.db")
    assert "'shop:app' has never been seen" in shell("why", "shop:app", "shop:app")


def test_the_environment_may_name_a_url_where_an_app_stands(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.send("o-1")
    monkeypatch.setenv("ONEFOLD_APP", "sqlite:///.onefold/shop.db")
    assert shell.json("status")["queues"]
    assert "needs an app" in shell.fails("worker")


def test_resuming_by_url_says_what_it_cannot_know(shell: Shell) -> None:
    shell.send("o-1")
    assert "Only the app knows whether there is such a job" in shell(
        "resume", "nope", "--url", "sqlite:///.onefold/shop.db"
    )
    assert shell("resume", "book", "shop:app") == "book was not paused; nothing was changed.\n"
