"""`onefold calendar`: what will fire, as a person and as a program see it."""

from __future__ import annotations

import importlib
import json
import re
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from onefold.admin import calendars
from onefold.cli import main
from onefold.errors import UsageError
from onefold.schedules.fire_times import Timing, between, parse

APP = """
from datetime import UTC, datetime
import onefold

app = onefold.App("office", url="sqlite://:memory:")
empty = onefold.App("empty")

@app.schedule("cron(0 3 1 * ? *)", tz="Europe/London", name="monthly-billing")
def bill(tick): ...

@app.schedule("cron(30 2 * * ? *)", tz="America/Los_Angeles", window="15m")
def nightly(tick): ...

@app.schedule("cron(0/30 2 * 3 ? *)", tz="America/Los_Angeles", dst="next-valid", name="march")
def march(tick): ...

@app.schedule("rate(10 days)", name="report", end=datetime(2027, 3, 20, tzinfo=UTC))
def report(tick): ...

@app.schedule("at(2030-01-01T00:00:00)")
def once(tick): ...
"""


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.said = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        found = main.run(["calendar", *words])
        out, self.said = self._capsys.readouterr()
        assert found == code, out + self.said
        return out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    (tmp_path / "calendar_office.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "calendar_office", raising=False)
    monkeypatch.delenv("ONEFOLD_APP", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return Shell(capsys)


TARGET = "calendar_office:app"


def test_an_apps_ticks_come_in_order_with_local_time_utc_and_key(shell: Shell) -> None:
    found = shell.json(TARGET, "--from", "2027-03-31", "--to", "2027-04-02T09:00Z")
    rows = [(row["local"], row["abbreviation"], row["utc"], row["key"]) for row in found["rows"]]
    assert rows == [
        ("2027-03-31T02:00:00-07:00", "PDT", "2027-03-31T09:00:00Z", "march/2027-03-31T09:00:00Z"),
        ("2027-03-31T02:30:00-07:00", "PDT", "2027-03-31T09:30:00Z", "nightly/2027-03-31T09:30:00Z"),
        ("2027-03-31T02:30:00-07:00", "PDT", "2027-03-31T09:30:00Z", "march/2027-03-31T09:30:00Z"),
        ("2027-04-01T03:00:00+01:00", "BST", "2027-04-01T02:00:00Z", "monthly-billing/2027-04-01T02:00:00Z"),
        ("2027-04-01T02:30:00-07:00", "PDT", "2027-04-01T09:30:00Z", "nightly/2027-04-01T09:30:00Z"),
    ]
    assert found["silent"] == [
        {"schedule": "report", "next_utc": None},
        {"schedule": "once", "next_utc": "2030-01-01T00:00:00Z"},
    ]
    assert (found["assumed"], found["more_from"]) == (["report"], None)


def test_what_the_clocks_skip_is_told_or_moved(shell: Shell) -> None:
    found = shell.json(TARGET, "--from", "2027-03-14T08:00Z", "--to", "2027-03-14T12:00Z")
    rows = [(row["schedule"], row["utc"], row["local"], row["fires"], row["note"]) for row in found["rows"]]
    assert rows == [
        ("report", "2027-03-14T08:00:00Z", "2027-03-14T08:00:00+00:00", True, ""),
        ("nightly", "2027-03-14T10:00:00Z", "2027-03-14T02:30", False, "02:30 is skipped: the clocks go forward"),
        (
            "march",
            "2027-03-14T10:00:00Z",
            "2027-03-14T03:00:00-07:00",
            True,
            "for 02:00 to 02:30, which the clocks skip",
        ),
    ]
    drawn = shell(TARGET, "--from", "2027-03-14T08:00Z", "--to", "2027-03-14T12:00Z")
    assert re.search(r"Sun 2027-03-14 02:30 +- +nightly: 02:30 is skipped", drawn)


def test_what_is_skipped_comes_before_what_fires_at_that_instant(shell: Shell) -> None:
    words = (
        "--expression",
        "cron(*/30 1-2 28 3 ? 2027)",
        "--tz",
        "Europe/London",
        "--from",
        "2027-03-28",
        "--to",
        "1d",
    )
    rows = [(row["local"][11:16], row["fires"]) for row in shell.json(*words)["rows"]]
    assert rows == [("01:00", False), ("02:00", True), ("02:30", True)]


def test_a_time_that_comes_twice_says_which_one_fires(shell: Shell) -> None:
    words = ("--tz", "Europe/London", "--from", "2027-10-31", "--to", "4h")
    hourly = shell.json("--expression", "cron(30 * * * ? *)", *words)["rows"]
    assert [(row["utc"][11:16], row["note"]) for row in hourly] == [
        ("23:30", ""), ("00:30", "01:30 comes twice; fires the first time"), ("02:30", ""),
    ]  # fmt: skip
    elapsed = shell.json("--expression", "rate(1 hour)", *words)["rows"]
    assert [(row["local"][11:], row["note"]) for row in elapsed] == [
        ("00:00:00+01:00", ""), ("01:00:00+01:00", ""), ("01:00:00+00:00", ""), ("02:00:00+00:00", ""),
    ]  # fmt: skip


def test_the_table_fits_eighty_columns_and_says_what_it_leaves_out(shell: Shell) -> None:
    drawn = shell(TARGET, "--from", "2027-03-01", "--to", "60d", "--rows", "5")
    lines = [line.rstrip() for line in drawn.splitlines()]
    assert lines[0].split() == ["local", "time", "UTC", "key"]
    assert lines[2] == "Mon 2027-03-01 00:00 UTC  00:00  report/2027-03-01T00:00:00Z"
    assert all(len(line) <= 80 for line in lines[:7])
    assert "…" not in drawn  # folded, not cut
    assert "(within" in drawn
    assert "report has no start: counted from 2027-03-01T00:00:00Z here" in drawn
    assert "More follows from 2027-03-02T10:00:00Z on: raise --rows, or begin there with --from." in drawn
    quiet = shell(TARGET, "--from", "2029-01-01", "--to", "1h")
    assert "once has no tick from 2029-01-01T00:00:00Z to 2029-01-01T01:00:00Z; the next is at 2030-01-01" in quiet
    assert "report has no tick" in quiet
    assert "and none is left until the end of 2199" in quiet


def test_all_local_times_in_one_zone(shell: Shell) -> None:
    found = shell.json(TARGET, "--from", "2027-04-01T00:00", "--to", "2027-04-01T12:00", "--tz", "Asia/Tokyo")
    assert found["from_utc"] == "2027-03-31T15:00:00Z"  # what has no offset is read there, too
    (billing,) = found["rows"]
    assert (billing["local"], billing["zone"]) == ("2027-04-01T11:00:00+09:00", "Asia/Tokyo")


def test_a_bare_expression(shell: Shell) -> None:
    words = ("--expression", "cron(0 3 1 * ? *)", "--tz", "Europe/London", "--from", "2027-03-01", "--to", "2027-04-02")
    assert [(row["utc"], row["key"]) for row in shell.json(*words)["rows"]] == [
        ("2027-03-01T03:00:00Z", None),
        ("2027-04-01T02:00:00Z", None),
    ]
    assert shell(*words).splitlines()[2:] == [
        "Mon 2027-03-01 03:00 GMT  03:00   ",
        "Thu 2027-04-01 03:00 BST  02:00   ",
    ]
    half_hour = (
        "--expression",
        "cron(30 2 14 3 ? *)",
        "--tz",
        "America/Los_Angeles",
        "--from",
        "2027-03-14",
        "--to",
        "1d",
    )
    assert [row["utc"] for row in shell.json(*half_hour, "--dst", "next-valid")["rows"]] == ["2027-03-14T10:00:00Z"]
    seconds = shell("--expression", "at(2027-03-01T03:04:05)", "--from", "2027-03-01", "--to", "1d")
    assert "Mon 2027-03-01 03:04:05 UTC  03:04:05" in seconds
    early = shell("--expression", "cron(0 3 1 * ? *)", "--tz", "Asia/Tokyo", "--from", "2027-03-01", "--to", "1d")
    assert "Mon 2027-03-01 03:00 JST  28 Feb 18:00" in early


def test_from_now_for_a_month_unless_said_otherwise(shell: Shell) -> None:
    before = datetime.now(UTC)  # noqa: TID251 - the command reads the machine's clock
    found = shell.json("--expression", "rate(1 day)")
    begin, end = (datetime.fromisoformat(found[name]) for name in ("from_utc", "to_utc"))
    assert abs((begin - before).total_seconds()) < 60
    assert (end - begin).days == 31
    assert len(found["rows"]) == 31


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--expression", "cron(0 24 * * ? *)"], 1, "hours is out of range (column 8). Midnight is hour 0"),
        (["--expression", "rate(1 day)", "--tz", "Lodnon"], 1, "Did you mean Europe/London?"),
        (
            ["--expression", "rate(1 day)", "--from", "soon"],
            1,
            "--from 'soon' is not a valid instant from 1970 to 2199.",
        ),
        (["--expression", "rate(1 day)", "--to", "1969-12-31"], 1, "is not a valid instant from 1970 to 2199."),
        (["--expression", "rate(1 day)", "--to", "9" * 30 + "d"], 1, "is out of range"),
        (["--expression", "rate(1 day)", "--to", "2w"], 1, "is not a duration"),
        (["--expression", "rate(1 day)", "--from", "2027-01-02", "--to", "2027-01-02"], 1, "Put the end (--to) after"),
        (["--expression", "rate(1 day)", "--rows", "0"], 2, "--rows"),
        ([TARGET, "--expression", "rate(1 day)"], 1, "Give one of them."),
        ([TARGET, "--dst", "next-valid"], 1, "An app's schedules declare theirs."),
        (["calendar_office:apps"], 1, "Did you mean calendar_office:app?"),
        ([], 2, "or give --expression"),
    ],
)
def test_what_is_refused(shell: Shell, words: list[str], code: int, said: str) -> None:
    assert shell(*words, code=code) == ""
    told = " ".join(shell.said.split())
    for part in said.split(" (column 8). "):
        assert part in told
    assert "Traceback" not in shell.said


def test_an_app_without_schedules_says_so_and_the_environment_names_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shell("calendar_office:empty") == "The app declares no schedules.\n"
    monkeypatch.setenv("ONEFOLD_APP", TARGET)
    assert [row["schedule"] for row in shell.json("--from", "2027-04-01", "--to", "3h")["rows"]] == ["monthly-billing"]
    assert not list(Path().glob(".onefold"))  # no engine was made


def test_the_rows_are_what_the_scheduler_asks_for() -> None:
    timing = Timing(parse("cron(0/20 1-3 ? * SUN *)"), zone="Europe/London")
    begin_ms, end_ms = (round(datetime(2027, month, 1, tzinfo=UTC).timestamp()) * 1_000 for month in (3, 5))
    found = calendars.calendar({"a": timing, "b": timing}, begin_ms, end_ms, rows_max=1_000)
    for name in ("a", "b"):
        wanted = list(islice(between(timing, begin_ms, end_ms, anchor_ms=begin_ms), 1_000))
        assert [row.at_ms for row in found.rows if row.schedule == name and row.fires] == wanted
    assert [row.at_ms for row in found.rows] == sorted(row.at_ms for row in found.rows)
    with pytest.raises(UsageError, match="Put the end"):
        calendars.calendar({"a": timing}, end_ms, begin_ms)


RATED = """
import onefold

app = onefold.App("rated", url="sqlite:///rated.db")

@app.schedule("rate(7 minutes)")
def settle(tick): ...
"""


def test_a_rate_that_a_scheduler_has_seen_counts_from_then(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def declare(text: str) -> None:
        (tmp_path / "calendar_rated.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, "calendar_rated", raising=False)
        importlib.invalidate_caches()

    asked = ("calendar_rated:app", "--from", "2027-03-01", "--to", "30m")
    declare(RATED)
    assert shell.json(*asked)["assumed"] == ["settle"]
    assert not (tmp_path / "rated.db").exists(), "looking makes no file"
    assert main.run(["scheduler", "calendar_rated:app", "--once"]) == 0
    capsys.readouterr()
    found = shell.json(*asked)
    with closing(sqlite3.connect(tmp_path / "rated.db")) as file:
        ((value,),) = file.execute("SELECT value FROM onefold_state WHERE name = 'schedule/settle'").fetchall()
    period_ms, anchor_ms = 7 * 60_000, json.loads(value)["anchor_ms"]
    first_ms = int(datetime(2027, 3, 1, tzinfo=UTC).timestamp() * 1_000)
    first_ms += (anchor_ms - first_ms) % period_ms
    end_ms = int(datetime(2027, 3, 1, 0, 30, tzinfo=UTC).timestamp() * 1_000)
    assert [row["at_ms"] for row in found["rows"]] == list(range(first_ms, end_ms, period_ms))
    assert found["assumed"] == []
    assert "no start" not in shell(*asked)
    declare(RATED.replace("7 minutes", "8 minutes"))  # which counts from when a scheduler sees that it was changed
    assert shell.json(*asked)["assumed"] == ["settle"]
