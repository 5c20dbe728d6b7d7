"""Small things that a first use trips over: each says what to write."""

from __future__ import annotations

from typing import Any

import pytest

import onefold
from onefold.admin import editing
from onefold.admin.dead_letters import Select, one_of
from onefold.cli import render
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
            at_ms=0, at="", event=event, text="text of it", rule="a rule", message_id=None, actor=None, told_by="ledger"
        )
        for event in ("sent", "running-elsewhere")
    ]  # fmt: skip
    render.draw_steps(steps)
    drawn = capsys.readouterr().out.splitlines()[1:]
    assert {line.index("text of" if "text of" in line else "a rule") for line in drawn} == {35}


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
