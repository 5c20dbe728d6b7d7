"""Small things that a first use trips over: each says what to write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import onefold
from onefold.admin import editing, status
from onefold.admin.dead_letters import Select, one_of
from onefold.cli import render
from onefold.cli.commands.status import picture
from onefold.cli.program import program
from onefold.manual_clock import ManualClock
from onefold.observe.timeline import Line
from onefold.testing import inline
from tests.faces.conftest import Shell
from tests.faces.office import Office


def test_a_time_zone_is_called_tz() -> None:
    app = onefold.App("shop")
    wrong: Any = {"timezone": "UTC"}
    with pytest.raises(onefold.errors.UsageError, match=r"has no option 'timezone'\. Did you mean 'tz'\?"):
        app.schedule("rate(1 day)", **wrong)


def test_the_world_takes_an_app_and_its_clock_milliseconds() -> None:
    name: Any = "shop:app"
    with (
        pytest.raises(
            onefold.errors.UsageError, match=r"given 'shop:app', which is not an onefold\.App\. Import the app"
        ),
        inline(name),
    ):
        pass
    clock = ManualClock(0)
    text: Any = "30m"
    with pytest.raises(TypeError, match=r"advance\('30m'\): it takes milliseconds; 30 minutes are 30 \* 60_000"):
        clock.advance(text)


def test_a_long_event_keeps_the_column_of_texts(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [
        Line(
            at_ms=0, at="", event=event, text="text of it", rule="a rule", message_id=None, actor=None, source="ledger"
        )
        for event in ("sent", "running-elsewhere")
    ]  # fmt: skip
    render.draw_steps(steps)
    drawn = capsys.readouterr().out.splitlines()[1:]
    assert {line.index("text of" if "text of" in line else "a rule") for line in drawn} == {35}


def test_where_two_messages_of_a_key_alternate_each_step_names_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    events = [("sent", "m-1"), ("sent", "m-2"), ("received", "m-1"), ("started", "m-1"), ("received", "m-1")]
    steps = [
        Line(at_ms=0, at="", event=event, text="text", rule="", message_id=one, actor=None, source="ledger")
        for event, one in events
    ]
    render.draw_steps(steps)
    told = capsys.readouterr().out
    assert [told.count(f"message {one}") for one in ("m-1", "m-2")] == [3, 1]
    render.draw_steps([steps[0], steps[2]])
    assert "message" not in capsys.readouterr().out, "one message needs no name"


def test_errors_of_a_file_have_its_whole_path(shell: Shell) -> None:
    (shell.folder / "bad.db").write_text("no database at all, and long enough for a header" * 10)
    (shell.folder / "folder.db").mkdir()
    assert f"error: {shell.folder}/bad.db is not a usable database" in shell.fails(
        "status", "--url", "sqlite:///bad.db"
    )
    said = shell.fails("status", "--url", "sqlite:///folder.db")
    assert f"error: {shell.folder}/folder.db cannot be opened: it is a folder." in said


def test_a_key_of_another_job_is_not_called_unseen(shell: Shell) -> None:
    shell.send("o-1")
    shown = shell("why", "o-1", "shop:app", "--job", "nope")
    assert shown == "The key is known, but not for job nope: it belongs to book.\n  onefold why o-1 shop:app\n"


def test_a_usage_error_is_one_line(shell: Shell) -> None:
    said = shell.fails("completion", code=2)
    assert said.splitlines()[0].startswith("error: Missing argument")
    assert "bash, zsh, fish" in said.splitlines()[0]


def test_an_edit_names_the_inner_field_that_it_set() -> None:
    office = Office()
    with office.opened() as there:
        there.send_foreign("orders", '{"order_id": "a", "city": {"name": 5}}')
        there.world.run()
        letter = one_of(there.without_app(), Select())
        edited = editing.edit(there.without_app(), letter, assignments=["city.name=Rome", "order_id=a"], dry_run=True)
    assert edited.changed == ("city.name",)


def test_a_null_result_given_without_the_app_is_said_on_the_command_line(shell: Shell) -> None:
    shell.send("p-1", city="Nowhere", job="charge")
    shell.work()
    said = shell("held", "settle", "p-1", "--done")
    assert "Its result is null. What the job returns is not known without its app" in said.replace("\n", " ")


def test_dead_letters_of_one_reason_are_told_apart_by_their_class(shell: Shell) -> None:
    shell.send("o-1", city="Atlantis")
    shell.work()
    assert shell("dlq", "list", "shop:app").split()[:4] == ["count", "reason", "error", "job"]
    assert "PermanentError" in shell("dlq", "list", "shop:app").splitlines()[2]


def test_what_was_not_sent_is_not_said_to_be_unchanged(shell: Shell) -> None:
    said = shell.fails("send", "shop:app", "book", '{"order_id": "o-1", "town": "Rome"}')
    assert "Nothing was sent." in said
    assert "Nothing was changed." not in said


def test_a_url_with_too_few_slashes_is_proposed_whole(shell: Shell) -> None:
    assert "Did you mean sqlite:///.onefold/shop.db?" in shell.fails("status", "--url", "sqlite:.onefold/shop.db")


@pytest.mark.parametrize(("words", "is_store"), [(("dlq", "list"), False), (("counts",), False), (("why",), True)])
def test_url_proposes_a_store_only_where_one_is_taken(shell: Shell, words: tuple[str, ...], is_store: bool) -> None:
    assert ("redis://" in shell(*words, "--help")) == is_store


def test_the_commands_that_an_error_names_can_be_copied(shell: Shell) -> None:
    shell.send("o-1")
    assert "`onefold held list shop:app` and `onefold why o-9 shop:app`" in shell.fails(
        "held", "show", "o-9", "shop:app"
    )
    assert "`onefold dlq list --all --url sqlite:///.onefold/shop.db`" in shell.fails(
        "dlq", "purge", "5-5", "--url", "sqlite:///.onefold/shop.db"
    )
    assert "See `onefold why --help`." in shell.fails("why", code=2)
    assert "KEY is missing. Write: onefold why KEY [APP]" in shell.said


def test_what_is_to_be_deleted_is_listed_before_it_is_asked(shell: Shell) -> None:
    for order_id in ("o-1", "o-2"):
        shell.send(order_id, city="Atlantis")
    shell.work()
    said = CliRunner().invoke(program, ["dlq", "purge", "--all", "shop:app"], input="n\n").output
    assert [line.split()[1] for line in said.splitlines()[:2]] == ["o-1", "o-2"]
    assert "Delete 2 messages of orders-dead for good?" in said


def test_reports_of_an_app_without_targets_go_to_nobody_and_that_is_said(shell: Shell) -> None:
    shell.send("o-1")
    shell("watch", "shop:app", "--once")
    assert "the app has no app.alarms(...)" in shell.said


def test_a_key_function_that_returns_the_call_is_told_what_it_gets() -> None:
    @onefold.once(key=lambda call: call, name="pay", store=onefold.memory_store())
    def pay(invoice: str) -> None: ...

    with pytest.raises(onefold.errors.PayloadError, match=r"given the arguments as a dict"):
        pay("i-1")


def test_a_store_of_records_that_nothing_used_is_not_a_quiet_one() -> None:
    quiet = status.Status(url="redis://h/0", at_ms=0, queues=(), jobs=(), warnings=(), has_queues=False)
    with render.console().capture() as unused:
        render.console().print(picture(msgspec.structs.replace(quiet, has_records=False)))
    with render.console().capture() as used:
        render.console().print(picture(quiet))
    assert "It contains no records" in " ".join(unused.get().split())
    assert "No call was completed within the last hour." in " ".join(used.get().split())
