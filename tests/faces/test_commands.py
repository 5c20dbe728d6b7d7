"""Every command as a person and as a program see it: help, example, --json, drawings, errors, exit codes."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from decimal import Decimal

import click
import pytest
from click.testing import CliRunner

import onefold
from onefold.admin.reading import ExpectedOutcome
from onefold.cli import selection
from onefold.cli.commands import dlq
from onefold.cli.program import COMMANDS, program
from onefold.clock import SystemClock
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy
from onefold.observe.wording import counted_runs, with_target
from tests.faces.conftest import Shell


def every_command() -> list[tuple[str, ...]]:
    """The words of every command that is not a group."""
    found: list[tuple[str, ...]] = []

    def walk(command: click.Command, words: tuple[str, ...]) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                walk(inner, (*words, name))
        else:
            found.append(words)

    walk(program, ())
    return found


# -- all commands ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_command_has_help_an_example_and_json(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(program, [*words, "--help"], prog_name="onefold")
    assert result.exit_code == 0
    assert f"Usage: onefold {' '.join(words)}" in result.output
    assert "--json" in result.output
    assert "Exit codes: 0" in result.output
    if words[0] != "demo":  # whose options all have defaults: the command itself is the example
        assert f"  onefold {' '.join(words)}" in result.output.partition("Example")[2]


def test_help_breaks_no_option_and_no_value_at_a_hyphen() -> None:
    for words in (["dlq", "redrive"], ["serve"], ["lambda"]):
        helped = CliRunner().invoke(program, [*words, "--help"], prog_name="onefold", terminal_width=80).output
        assert not [line for line in helped.splitlines() if re.search(r"\w-$", line)], helped
        assert "\u2011" not in helped
    helped = CliRunner().invoke(program, ["calendar", "--help"], prog_name="onefold", terminal_width=80).output
    assert "`onefold runs`" in helped
    assert "\u00a0" not in helped


def test_the_list_of_commands_is_what_their_own_help_says() -> None:
    result = CliRunner().invoke(program, ["--help"], prog_name="onefold")
    assert result.exit_code == 0
    for name, (_, _, text) in COMMANDS.items():
        assert f"{name} " in result.output
        assert text.endswith(".")


def test_without_words_it_shows_help(shell: Shell) -> None:
    assert "Usage: onefold" in shell.fails(code=2)
    assert "Usage: onefold dlq" in shell.fails("dlq", code=2)
    assert shell("--version").startswith("onefold ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("wrker",), "There is no command 'wrker'. Did you mean 'worker'?"),
        (("dlq", "lst"), "There is no command 'lst'. Did you mean 'list'?"),
        (("xyzzy",), "There is no command 'xyzzy'. There are: worker, "),
        (("status", "--wach"), "No such option '--wach'"),
        (("status", "a", "b"), "at most an app"),
        (("why",), "KEY is missing. Write: onefold why KEY [APP]"),
        (("worker",), "Name the app as module:attribute"),
        (("worker", "shop:app", "--lease", "30"), "Invalid value for '--lease': '30' is not a duration."),
        (
            ("alarms", "silence", "oldest", "--for", "2", "--reason", "x"),
            "Invalid value for '--for': '2' is not a duration.",
        ),
        (("dlq", "list", "--where", "older=1x"), "--where: older='1x' is not a duration."),
        (("worker", "shop:app", "--threads", "x"), "'x' is not a whole number of at least 1."),
        (("serve", "--port", "abc"), "'abc' is not a whole number from 0 to 65535."),
        (("serve", "--port", "70000"), "'70000' is not a whole number from 0 to 65535."),
        (("status", "--colour"), "error: No such option '--colour'.\n"),
        (("why", "-5u", "shop:app"), "A KEY that begins with - stands behind two of them: onefold why -- KEY"),
        (("held", "settle", "-5u", "--done"), "onefold held settle -- KEY"),
        (("dlq", "show", "--x"), "onefold dlq show -- ID"),
        (("status", "--wtch"), "Did you mean '--watch'?"),
        (("dlq", "redrive", "--all", "--rate", "fast"), "'fast' is not a rate"),
        (("dlq", "redrive", "--all", "--rate", "501/s"), "out of range: 1 to 500"),
        (("dlq", "redrive"), "Say which dead letters"),
        (("dlq", "show"), "Say which message"),
        (("dlq", "show", "a:b", "c:d"), "More than one app was given"),
        (("held", "settle", "k", "--url", "sqlite:///x.db"), "--done or --not-done"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else None,
)
def test_wrong_usage_says_what_was_meant(shell: Shell, words: tuple[str, ...], said: str) -> None:
    if words[0] == "held":
        sqlite3.connect("x.db").close()
    text = shell.fails(*words, code=2)
    assert text.startswith("error: ")
    assert said in text
    assert "--help`" in text


# -- which engine ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("shop", ("'shop' is neither an app (module:attribute)", "Did you mean shop:app?")),
        ("shpo:app", ("There is no module 'shpo'", "Did you mean shop:app?")),
        (
            "nowhere.inside:app",
            ("There is no module 'nowhere' (of nowhere.inside:app)", "folder of the module"),
        ),
        ("shop:ap", ("The module shop has no attribute 'ap'", "Apps in shop: app", "Did you mean shop:app?")),
        ("shop:orders", ("shop:orders is a Queue, not an onefold.App", "Did you mean shop:app?")),
        ("other:app", ("other has no attribute 'app'", "other declares no app", "app = onefold.App(...)")),
        ("broken:app", ("cannot be imported: ZeroDivisionError", "broken.py, line 2: 1 / 0")),
        ("missing:app", ("cannot be imported: ModuleNotFoundError: No module named 'not_there'",)),
        ("syntax:app", ("cannot be imported: SyntaxError", "syntax.py, line 1")),
        ("leaving:app", ("cannot be imported: SystemExit: 3",)),
        (
            "refused:app",
            ("queue() has no option 'visiblity'", "Did you mean 'visibility'?", "refused.py, line 3"),
        ),
    ],
)
def test_an_app_that_cannot_be_had_says_which_part_failed(shell: Shell, target: str, parts: tuple[str, ...]) -> None:
    (shell.folder / "other.py").write_text("thing = 1\n")
    (shell.folder / "broken.py").write_text("x = 1\n1 / 0\n")
    (shell.folder / "missing.py").write_text("import not_there\n")
    (shell.folder / "syntax.py").write_text("def :\n")
    (shell.folder / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    (shell.folder / "refused.py").write_text("import onefold\napp = onefold.App('x')\napp.queue('q', visiblity='3s')\n")
    text = shell.fails("worker", target)
    assert "Traceback" not in text
    for part in parts:
        assert part in text


def test_without_a_target_the_only_database_here_is_meant(shell: Shell) -> None:
    text = shell.fails("status")
    assert "Which engine?" in text
    assert "There is no database in ./.onefold" in text
    assert not (shell.folder / ".onefold").exists()
    shell.send("a")
    assert shell.json("status")["url"] == f"sqlite:///{shell.folder}/.onefold/shop.db"
    shutil.copy(".onefold/shop.db", ".onefold/other.db")
    assert "./.onefold holds other.db, shop.db" in shell.fails("status")


def test_the_environment_names_a_target(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFOLD_APP", "shop:app")
    assert shell.json("send", "book", '{"order_id": "a"}')["key"] == "a"
    monkeypatch.delenv("ONEFOLD_APP")
    monkeypatch.setenv("ONEFOLD_URL", "sqlite:///.onefold/shop.db")
    assert shell.json("status")["queues"][2]["visible"] == 1


def test_targets_that_cannot_be(shell: Shell) -> None:
    assert "Give one of them" in shell.fails("status", "shop:app", "--url", "sqlite:///x.db")
    assert f"There is no file {shell.folder}/nowhere.db yet." in shell.fails("status", "--url", "sqlite:///nowhere.db")
    assert not (shell.folder / "nowhere.db").exists()
    assert "lives inside one process" in shell.fails("status", "--url", "sqlite://:memory:")
    assert "there is no engine or store 'kafka'" in shell.fails("status", "--url", "kafka://x")
    assert "has no queues" in shell.fails("dlq", "list", "--url", "redis://x")


def test_a_key_that_looks_like_an_app_is_a_key(shell: Shell) -> None:
    shell.send("order:a")
    assert shell.json("why", "order:a")["stories"][0]["key"] == "order:a"
    for words in (("order:a", "shop:app"), ("shop:app", "order:a")):
        assert shell.json("why", *words)["stories"][0]["key"] == "order:a"


# -- a day of work ---------------------------------------------------------------------------------------------------


def test_send_takes_json_from_words_files_and_a_pipe(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shell("send", "shop:app", "book", '{"order_id": "a"}').startswith("sent: book a as message ")
    (shell.folder / "b.json").write_text('{"order_id": "b"}')
    assert shell.json("send", "shop:app", "book", "@b.json")["key"] == "b"
    monkeypatch.setattr("sys.stdin", io.StringIO('{"order_id": "c"}'))
    assert shell.json("send", "shop:app", "book", "-", "--key", "c", "--delay", "10m")["key"] == "c"
    assert shell.json("why", "c")["stories"][0]["text"].startswith("Waiting: not before")
    shell("send", "shop:app", "book", '{"order_id": "d"}', "--run-at", "2099-12-24T06:00:00+01:00")
    assert "not before 2099-12-24T05:00:00.000Z" in shell.json("why", "d")["stories"][0]["text"]


UNIQUE = """
from dataclasses import dataclass
import onefold

app = onefold.App("uni")

@dataclass
class Parcel:
    id: str
    weight: int = 1

@app.job(app.queue("parcels"), key="{id}", unique=True)
def ship(parcel: Parcel) -> None: ...
"""


def test_a_message_without_its_defaults_is_the_message_with_them(shell: Shell) -> None:
    (shell.folder / "uni.py").write_text(UNIQUE)
    assert shell.json("send", "uni:app", "ship", '{"id": "a", "weight": 1}')["found"] == "new"
    assert shell.json("send", "uni:app", "ship", '{"id": "a"}')["found"] == "waiting"
    assert "is known with another payload" in shell.fails("send", "uni:app", "ship", '{"id": "a", "weight": 2}')


def test_a_payload_that_was_forgotten_is_asked_for(shell: Shell) -> None:
    assert "PAYLOAD is missing: JSON, - for standard input, or @FILE." in shell.fails(
        "send", "shop:app", "book", code=2
    )


def test_what_is_only_reserved_was_claimed_by_nobody(shell: Shell) -> None:
    (shell.folder / "uni.py").write_text(UNIQUE)
    shell("send", "uni:app", "ship", '{"id": "a"}', "--delay", "10m")
    lines = shell.json("why", "a", "uni:app")["stories"][0]["lines"]
    assert [(line["event"], line["text"]) for line in lines] == [
        ("reserved", "reserved by send"),
        ("sent", "sent to parcels"),
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("book", "{"), "is not JSON"),
        (("book", "{'order_id':'a'}"), "JSON has names and texts in double quotes"),
        (("book", '{"order_id": 3}'), "The field $.order_id does not fit Order"),
        (("bok", '{"order_id": "a"}'), "has no job 'bok'"),
        (("book", '{"order_id": "a", "citty": "Paris"}'), "Order has no field citty."),
        (("book", "@nowhere.json"), "The file nowhere.json cannot be read: No such file or directory."),
        (("book", '{"order_id": "a"}', "--run-at", "tomorrow"), "'tomorrow' is not a valid instant"),
        (("book", '{"order_id": "a"}', "--run-at", "2099-01-01T00:00:00"), "without a time zone"),
        (("book", '{"order_id": "a"}', "--delay", "10"), "is not a duration"),
    ],
)
def test_what_cannot_be_sent_is_not_sent(shell: Shell, words: tuple[str, ...], said: str) -> None:
    shell.send("before")
    assert said in shell.fails("send", "shop:app", *words)
    assert shell.json("status", "--queue", "orders")["queues"][0]["visible"] == 1


def test_a_dead_letter_whose_owner_is_no_text_hides_no_other(shell: Shell) -> None:
    for order_id in ("a", "b"):
        shell.send(order_id, "Atlantis")
    shell.work()
    (file,) = shell.folder.rglob("*.db")
    stored = sqlite3.connect(file)
    changed = stored.execute(
        "UPDATE onefold_message SET meta = replace(meta, '\"owner\":\"fulfilment\"', '\"owner\":3') WHERE key = 'a'"
    ).rowcount
    stored.commit()
    stored.close()
    assert changed == 1
    letters = {one["key"]: one for one in shell.json("dlq", "list", "--all")["letters"]}
    assert letters.keys() == {"a", "b"}
    assert (letters["a"]["reason"], letters["a"]["error"]) == (letters["b"]["reason"], letters["b"]["error"])
    assert "there is no such city" in shell("dlq", "show", "shop:app", "--key", "a")
    assert shell.json("status")["queues"]
    assert "1 dead letter deleted" in shell("dlq", "purge", "shop:app", "--key", "a", "--yes")


def test_failures_of_one_class_with_several_texts_say_so(shell: Shell) -> None:
    for order_id in ("a", "b", "c"):
        shell.send(order_id, "Atlantis")
    shell.work()
    assert "different texts" not in shell("dlq", "list", "shop:app")
    (file,) = shell.folder.rglob("*.db")
    stored = sqlite3.connect(file)
    changed = stored.execute(
        "UPDATE onefold_message SET meta = replace(meta, 'there is no such city', 'the card was declined') WHERE key = 'a'"
    ).rowcount
    stored.commit()
    stored.close()
    assert changed == 1
    assert "(the newest of 2 different texts; onefold dlq list --by-text has each)" in shell("dlq", "list", "shop:app")
    (failure,) = shell.json("dlq", "list")["failures"]
    assert (failure["count"], failure["texts"]) == (3, 2)
    letters = shell.json("dlq", "list", "--all")["letters"]
    assert sorted(one["summary"] for one in letters) == [
        "the card was declined", "there is no such city", "there is no such city",
    ]  # fmt: skip


def test_a_dead_letter_from_failure_to_done(shell: Shell) -> None:
    for order_id in ("a", "b", "c"):
        shell.send(order_id, "Atlantis")
    shell.work()
    listed = shell("dlq", "list", "shop:app")
    assert "    3  permanent  PermanentError  book" in listed
    assert "fulfilment" in listed
    assert "PermanentError: there is no such city" in listed
    assert "onefold dlq redrive --reason permanent --dry-run shop:app" in listed
    shown = shell("dlq", "show", "shop:app", "--key", "a")
    assert '"city": "Atlantis"' in shown
    assert "would run." in shown
    (failure,) = shell.json("dlq", "list")["failures"]
    assert (failure["count"], failure["job"], failure["owner"]) == (3, "book", "fulfilment")
    letters = shell.json("dlq", "list", "--all", "--key", "a")["letters"]
    assert [one["key"] for one in letters] == ["a"]
    assert letters[0]["message_id"] in shell("dlq", "list", "--all")

    edited = shell("dlq", "edit", "shop:app", "--key", "a", "--set", "city=Paris", "--reason-text", "typo")
    assert "changed city" in edited
    assert "key: a, as before" in edited
    (shell.folder / "b.json").write_text('{"order_id": "b", "city": "Rome"}')
    assert shell.json("dlq", "edit", "shop:app", "--key", "b", "--body", "@b.json", "--dry-run")["written"] is False
    foreseen = shell("dlq", "redrive", "shop:app", "--all", "--dry-run")
    assert "3 messages: 3 would run. Nothing was sent." in foreseen
    assert shell.json("dlq", "redrive", "--all", "--dry-run")["counts"] == {"run": 3}
    assert "1 of 1 dead letter sent back." in shell("dlq", "redrive", "shop:app", "--key", "a", "--no-watch")
    (shell.folder / "down").unlink()
    tally = shell.json("dlq", "redrive", "shop:app", "--key", "b", "--no-watch")
    assert (tally["sent"], tally["end"]) == (1, "done")
    shell.work()
    assert sorted((shell.folder / "booked").read_text().split()) == ["a", "b"]
    story = shell("why", "a", "shop:app")
    for part in (
        "Done at",
        "payload changed in the dead-letter queue (city)",
        "by ada; reason given: typo",
        "sent back to",
    ):
        assert part in story
    assert shell.json("dlq", "purge", "--all", "--yes") == {"removed": 1}
    assert shell("dlq", "list") == "No dead letters.\n"
    assert "No dead letter matches" in shell.fails("dlq", "purge", "--all", "--yes")


def test_a_redrive_without_a_worker_ends_with_an_error_code(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from onefold.admin import redrive

    shell.send("a", "Atlantis")
    shell.work()
    monkeypatch.setattr(redrive, "_NO_WORKER_MS", 1)
    out = shell("dlq", "redrive", "--all", code=1)
    assert "none of them has been received. Is a worker running" in out
    assert "1 not received yet" in out


def test_nothing_is_deleted_without_a_yes(shell: Shell) -> None:
    shell.send("a", "Atlantis")
    shell.work()
    result = CliRunner().invoke(program, ["dlq", "purge", "--all"], input="n\n")
    assert "Delete 1 message of orders-dead for good?" in result.output
    result = CliRunner().invoke(program, ["queue", "purge", "orders-dead"], input="n\n")
    assert "Delete 1 message of orders-dead for good?" in result.output
    assert len(shell.json("dlq", "list", "--all")["letters"]) == 1
    result = CliRunner().invoke(program, ["queue", "purge", "orders-dead"], input="y\n")
    assert "1 message of orders-dead deleted." in result.output
    assert shell.json("dlq", "list", "--all")["letters"] == []


def test_a_purge_says_which_unique_keys_stay_known(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.admin.queues.kept_keys", lambda _session, queue: f"the keys of {queue} stay known")
    shell.send("a", "Atlantis")
    shell.work()
    result = CliRunner().invoke(program, ["queue", "purge", "orders-dead", "--yes"])
    assert result.output == "1 message of orders-dead deleted.\nthe keys of orders-dead stay known\n"


def test_where_nobody_can_answer_the_question_says_so(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.send("a", "Atlantis")
    shell.work()
    for words in (("dlq", "purge", "shop:app", "--key", "a"), ("queue", "purge", "orders-dead", "shop:app")):
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        said = shell.fails(*words, code=2)
        assert "Nobody can answer here" in said
        assert "Nothing was changed. Add --yes." in said
        assert "interrupted" not in said
    assert len(shell.json("dlq", "list", "--all")["letters"]) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert "1 dead letter deleted" in shell("dlq", "purge", "shop:app", "--key", "a")


def test_an_edit_in_the_editor(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.send("a", "Atlantis")
    shell.work()
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.delenv("EDITOR", raising=False)
    assert "set EDITOR" in shell.fails("dlq", "edit", "--key", "a", code=2)
    monkeypatch.setenv("EDITOR", "sed -i s/Atlantis/Oslo/")
    assert "changed city" in shell("dlq", "edit", "shop:app", "--key", "a")
    assert '"city": "Oslo"' in shell("dlq", "show", "shop:app", "--key", "a")
    monkeypatch.setenv("EDITOR", "true")
    assert "closed without saving" in shell.fails("dlq", "edit", "shop:app", "--key", "a")


def test_a_held_outcome_from_doubt_to_settled(shell: Shell) -> None:
    for _ in range(3):
        shell.send("p", "Nowhere", job="charge")
    shell.work()
    listed = shell("held", "list", "shop:app")
    assert "OutcomeUnknown: the" in listed
    assert max(len(line) for line in listed.splitlines()) <= 80
    assert "onefold held settle KEY --done --result JSON shop:app" in listed
    (one,) = shell.json("held", "list")["held"]
    assert (one["key"], one["owner"], len(one["message_ids"])) == ("p", "billing", 3)
    shown = shell("held", "show", "p", "shop:app")
    assert shown.count('"city":"Nowhere"') == 3
    assert len(shell.json("held", "show", "p")["bodies"]) == 3
    settled = shell("held", "settle", "p", "shop:app", "--done", "--reason-text", "called them")
    assert "settled as done" in settled
    assert "3 held messages deleted" in settled
    assert shell("held", "list") == "Nothing is held.\n"
    assert "Nothing with the key 'p' is held" in shell.fails("held", "settle", "p", "--done")
    assert "Nothing with the key 'p' is held" in shell.fails("held", "show", "p")
    assert "settled as done" in shell("why", "p")


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        """As a terminal says."""
        return True


def test_settling_is_of_the_hold_that_was_looked_at(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.send("p", "Nowhere", job="charge")
    shell.work()
    (seen,) = shell.json("held", "list")["held"]
    assert f"onefold held settle p --not-done --hold {seen['hold']} shop:app" in shell("held", "show", "p", "shop:app")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    said = shell.fails("held", "settle", "p", "shop:app", "--not-done", code=1)
    assert "Nothing was changed." in said
    assert "OutcomeUnknown: the" in said
    assert "Settle it as not done?" in said
    monkeypatch.setattr(sys, "stdin", Terminal(""))
    assert f"Add --hold {seen['hold']}." in shell.fails("held", "settle", "p", "shop:app", "--not-done", code=2)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "settled as not done" in shell("held", "settle", "p", "shop:app", "--not-done")
    shell.work()
    said = shell.fails("held", "settle", "p", "shop:app", "--done", "--hold", seen["hold"])
    assert "it is held as" in said
    (later,) = shell.json("held", "list")["held"]
    assert "settled as done" in shell("held", "settle", "p", "shop:app", "--done", "--hold", later["hold"])


def test_settling_without_a_result_says_that_it_is_missing(shell: Shell) -> None:
    module = shell.folder / "shop.py"
    module.write_text(module.read_text("utf-8").replace("charge(order: Order) -> None", "charge(order: Order) -> str"))
    shell.send("p", "Nowhere", job="charge")
    shell.work()
    assert "Its result is null, which is not what the job returns." in shell(
        "held", "settle", "p", "shop:app", "--done"
    )
    again = shell("held", "settle", "p", "shop:app", "--done", "--result", '"c-1"')
    assert "It was: null" in again
    assert "Its result is null" not in again


def test_a_held_call_that_took_effect_is_not_offered_to_run_again(shell: Shell) -> None:
    url = "sqlite:///calls.db"
    opened = SqliteEngine("calls.db", clock=SystemClock(), entropy=SystemEntropy(), owner="caller", url=url)
    with contextlib.closing(opened) as engine:

        @onefold.once(key="{order}", name="bank", store=engine.store)
        def pay(order: str) -> object:
            return Decimal("5.00")

        with pytest.raises(onefold.errors.PayloadError):
            pay("k-1")
    for words in (("held", "list"), ("held", "show", "k-1"), ("why", "k-1")):
        drawn = " ".join(shell(*words, "--url", url).split())
        assert "effect happened" in drawn, words
        assert "could not be recorded" in drawn, words
        assert "--done --result JSON" in drawn, words
        assert "--not-done" not in drawn, words
        assert "whether the effect happened" not in drawn, words
    assert shell.json("held", "list", "--url", url)["held"][0]["took_effect"] is True
    refused = shell.fails("held", "settle", "k-1", "--not-done", "--url", url)
    assert "take effect a second time. Nothing was changed." in " ".join(refused.split())


def test_status_says_what_needs_a_person(shell: Shell) -> None:
    shell.send("a")
    shell.send("p", "Nowhere", job="charge")
    shell.send("l", "Atlantis", job="pick")
    shell.work()
    drawn = shell("status", "shop:app")
    assert "! 1 operation of careful held" in drawn
    assert "  onefold held list shop:app" in drawn
    assert "! Group Atlantis of lines.fifo is stopped" in drawn
    assert max(len(line) for line in drawn.splitlines()[1:]) <= 80  # the file's whole path is never broken
    document = shell.json("status", "shop:app")
    assert {one["code"] for one in document["warnings"]} == {"held", "group-stopped", "dead-letters"}
    assert [one["done_last_hour"] for one in document["jobs"] if one["job"] == "book"] == [1]


def test_why_answers_for_a_key_that_was_never_seen(shell: Shell) -> None:
    shell.send("order-17")
    drawn = shell("why", "ordr-17", "shop:app")
    assert f"'ordr-17' has never been seen in sqlite:///{shell.folder}/.onefold/shop.db." in drawn
    assert "  onefold why order-17 shop:app" in drawn
    assert shell.json("why", "ordr-17")["near"] == ["order-17"]


def test_queues_are_listed_looked_at_and_moved(shell: Shell) -> None:
    shell.send("a", "Atlantis")
    shell.send("l", "Atlantis", job="pick")
    listed = shell("queue", "list", "shop:app")
    assert "  orders-dead" in listed
    assert max(len(line) for line in listed.splitlines()) <= 80
    assert shell.json("queue", "list")["queues"][0]["settings"]["name"] == "careful"
    peeked = shell("queue", "peek", "orders", "shop:app", "--bodies")
    assert "waiting" in peeked
    assert '"city":"Atlantis"' in peeked
    assert "body" in shell.json("queue", "peek", "orders")["messages"][0]
    assert shell("queue", "peek", "careful") == "No messages.\n"
    assert "There is no queue 'x'" in shell.fails("queue", "peek", "x")
    shell.work()
    assert shell("queue", "move", "list") == "No moves.\n"
    moved = shell.json("queue", "move", "start", "orders-dead", "--rate", "10/s")
    assert (moved["status"], moved["moved"]) == ("COMPLETED", 1)
    assert "COMPLETED" in shell("queue", "move", "list")
    assert "of lines.fifo, which is stopped" in shell.fails("queue", "move", "start", "lines-dead.fifo")
    shell.work()
    begun = shell.json("queue", "move", "start", "orders-dead", "--no-wait", "--rate", "60/m")
    assert begun["status"] == "RUNNING"
    assert shell.json("queue", "move", "cancel", begun["handle"])["status"] == "CANCELLED"


def test_a_misspelt_reason_is_no_empty_queue(shell: Shell) -> None:
    shell.send("a")
    for words in ("list", "redrive", "purge --yes"):
        said = shell.fails("dlq", *words.split(), "--reason", "permanant", "shop:app", code=2)
        assert "There is no reason 'permanant'. Did you mean permanent? There are: permanent, attempts" in said
    assert shell("dlq", "list", "--reason", "permanent", "shop:app") == "No dead letters.\n"


def test_declared_settings_are_applied(shell: Shell) -> None:
    shell.send("a")
    text = (shell.folder / "shop.py").read_text()
    (shell.folder / "shop.py").write_text(text.replace('app.queue("orders")', 'app.queue("orders", visibility="90s")'))
    sys.modules.pop("shop", None)
    said = "! Queue orders differs from its declaration: visibility is 30s, declared 1m30s."
    assert said in " ".join(shell("status", "shop:app").split())
    looks = ("why a", "dlq list", "held list", "stuck", "runs list", "queue list", "queue peek orders")
    for words in looks:
        shell(*words.split(), "shop:app")
        assert said in shell.said
        assert "onefold queue apply shop:app" in shell.said
    assert shell.json("queue", "apply", "shop:app", "--yes")["changed"][0]["queue"] == "orders"
    assert shell("queue", "apply", "shop:app") == "All queues are as declared.\n"
    shell("status", "shop:app")


def test_small_commands(shell: Shell) -> None:
    shell.send("a")
    assert shell("stuck") == "Nothing is stuck.\n"
    assert shell.json("stuck") == {"stuck": [], "no_job": []}
    assert "was not paused" in shell("resume", "book")
    assert shell.json("resume", "book", "shop:app") == {"job": "book", "resumed": False}


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_completion_for_each_shell(shell: Shell, kind: str) -> None:
    script = shell("completion", kind)
    assert "_ONEFOLD_COMPLETE" in script
    assert shell.json("completion", kind)["script"].strip() == script.strip()


def test_words_for_every_fate_and_end() -> None:
    fates = set(ExpectedOutcome.__args__)  # type: ignore[attr-defined]
    assert selection.OUTCOMES.keys() == dlq._WOULD.keys() == fates


def test_commands_are_given_the_target_they_were_asked_with() -> None:
    assert with_target("onefold held list", "shop:app") == "onefold held list shop:app"
    assert with_target("onefold held list", "") == "onefold held list"
    assert with_target("Is a worker running?", "shop:app") == "Is a worker running?"
    assert with_target("onefold dlq edit 1 --set a=b   (if wrong)", "shop:app") == (
        "onefold dlq edit 1 --set a=b shop:app   (if wrong)"
    )


# -- errors ----------------------------------------------------------------------------------------------------------


def test_with_json_an_error_is_the_document(shell: Shell) -> None:
    document = shell.json("queue", "peek", "x", "--url", "sqlite:///nowhere.db", code=1)
    assert document["error"]["code"] == "not-found"
    assert document["error"]["what"] == f"There is no file {shell.folder}/nowhere.db yet."
    assert document["error"]["todo"]
    assert shell.json("status", "--wach", code=2)["error"]["code"] == "usage"


def broken(name: str) -> Callable[..., None]:
    def run(*_: object, **__: object) -> None:
        raise {"type": TypeError("odd"), "interrupt": KeyboardInterrupt(), "pipe": BrokenPipeError()}[name]

    return run


def test_a_defect_is_called_one(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.send("a")
    monkeypatch.setattr("onefold.admin.status.status", broken("type"))
    text = shell.fails("status")
    assert text.startswith("error: TypeError: odd at test_commands.py:")
    assert "meaning: This is a defect of onefold, not of your input." in text
    assert "ONEFOLD_DEBUG=1" in text
    assert "Traceback" not in text
    monkeypatch.setenv("ONEFOLD_DEBUG", "1")
    assert "Traceback (most recent call last)" in shell.fails("status")
    assert shell.json("status", code=1)["error"]["code"] == "invariant"


def test_an_interrupt_is_no_defect(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.send("a")
    monkeypatch.setattr("onefold.admin.status.status", broken("interrupt"))
    assert shell.fails("status", code=130).strip() == "interrupted"


def test_the_missing_extra_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    text = shell.fails("status")
    assert "The command line needs the package rich" in text
    assert "pip install 'onefold[cli]'" in text


def test_times_name_the_readers_zone(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.send("a", "Atlantis")
    shell.send("p", "Nowhere", job="charge")
    shell.work()
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        said = {
            words: shell(*words.split(), "shop:app")
            for words in ("status", "dlq show --key a", "why p", "alarms silence oldest --for 1h --reason x")
        }
    finally:
        monkeypatch.setenv("TZ", "UTC")
        time.tzset()
    for words, text in said.items():
        assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d E[SD]T", " ".join(text.split())), (words, text)


def test_the_commands_list_and_give(shell: Shell) -> None:
    shell.send("a")
    shell.work()
    assert "book" in shell("names", "list", "shop:app")
    assert shell.json("names", "list", "shop:app")["names"][0]["apps"] == ["shop"]
    assert shell("names", "give", "book", "--to", "shop2", "--share", "--app", "shop:app") == (
        "book belongs to shop and shop2.\n"
        "No worker of an app 'shop2' has run here yet; apps that have: shop.\n"
        "If that is a slip: onefold names give book --to NAME, before workers are started again.\n"
    )
    assert shell("names", "give", "--of", "shop2", "--to", "shop", "shop:app").startswith("book belongs to shop.\n")
    assert "slip" not in shell("names", "give", "book", "--to", "shop", "--app", "shop:app")
    assert "Give names, or --of APP" in shell.fails("names", "give", "--to", "shop2", "--app", "shop:app", code=2)


def test_a_stopped_group_without_dead_letters_goes_on_by_a_redrive_of_it(shell: Shell) -> None:
    shell("send", "shop:app", "pick", '{"order_id": "o-1", "city": "Rome"}')
    with contextlib.closing(sqlite3.connect(shell.folder / ".onefold" / "shop.db")) as file, file:
        flag = ("stopped/lines.fifo/Rome", b"0000000000000000-9")
        file.execute("INSERT INTO onefold_state (name, version, value) VALUES (?, 1, ?)", flag)
    assert "onefold dlq redrive --group Rome" in shell("status", "shop:app")
    assert "No dead letter matches" in shell.fails("dlq", "redrive", "--group", "Rome", "--dry-run", "shop:app")
    assert shell("dlq", "redrive", "--group", "Rome", "shop:app") == (
        "Group Rome of lines.fifo continues: none of its dead letters is left.\n"
    )
    assert "No dead letter matches" in shell.fails("dlq", "redrive", "--group", "Rome", "shop:app")
    shell.work()
    assert "completed" in shell("why", "o-1", "shop:app")


@pytest.mark.parametrize(
    ("count", "died", "said"),
    [
        (1, 0, "1 run"),
        (1, 1, "1 run, which died with its process"),
        (3, 1, "3 runs, 1 of which died with its process"),
        (3, 2, "3 runs, 2 of which died with their processes"),
    ],
)
def test_runs_and_how_many_of_them_died(count: int, died: int, said: str) -> None:
    assert counted_runs(count, died) == said
