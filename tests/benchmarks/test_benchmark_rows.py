"""The benchmark's own arithmetic, and that its raw program does the whole work it is a reference for. Nothing is timed."""

from __future__ import annotations

import json
import sqlite3
from argparse import Namespace
from datetime import date
from pathlib import Path

import pytest

from benchmarks import raw, report
from benchmarks.aws import rows as aws_rows
from benchmarks.batches import rows as batches_rows
from benchmarks.checking import rows as checking_rows
from benchmarks.checking import templates
from benchmarks.harness import run_pair
from benchmarks.peers import environment
from benchmarks.rows import Bench, Pair, Planned, above, below, pairs, ratio_at_least, ratio_at_most
from benchmarks.serving import rows as serving_rows
from benchmarks.trials import Figures, TrialFailed
from benchmarks.watching import rows as watching_rows
from onefold.check.checking import check
from onefold.check.rules import RULES


def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, tmp_path, quick=True)


def figures_of(*values: float):
    """A measure that answers one value after the other."""
    rest = iter(values)
    return lambda _: {"us": next(rest)}


def fails(_: Bench) -> Figures:
    raise TrialFailed("no server\nmore about it")


def test_names_are_unique_and_every_reference_is_measured() -> None:
    planned = [(pair, row) for pair in [*pairs(), *serving_rows.pairs(), *checking_rows.pairs()] for row in pair.rows]
    names = [row.name for _, row in planned]
    assert len(set(names)) == len(names)
    assert all(row.reference in pair.references for pair, row in planned if row.reference)
    assert all(row.reference for _, row in planned if row.goal is not None and row.goal.of == "ratio")


def test_explanations_are_of_rows_that_exist() -> None:
    every = [
        *pairs(),
        *serving_rows.pairs(),
        *aws_rows.pairs(),
        *batches_rows.pairs(),
        *watching_rows.pairs(),
        *checking_rows.pairs(),
    ]
    assert report.explanations().keys() <= {row.name for pair in every for row in pair.rows}


@pytest.mark.parametrize(
    ("goal", "kept", "missed"),
    [
        (below(17, "us"), 16.9, 17),
        (above(50_000, "messages/s"), 50_001, 50_000),
        (ratio_at_least(0.5), 0.5, 0.49),
        (ratio_at_most(1.3), 1.3, 1.31),
    ],
)
def test_goals_at_their_limits(goal, kept: float, missed: float) -> None:
    assert goal.met(kept)
    assert not goal.met(missed)


def test_a_ratio_is_the_median_over_the_pairs_not_of_the_medians(tmp_path: Path) -> None:
    pair = Pair(
        figures_of(10, 40, 30),
        (Planned("a row", "us", "us", ratio_at_most(2), "raw"),),
        {"raw": figures_of(10, 10, 60)},
    )
    (row,) = run_pair(pair, bench(tmp_path), runs=3)
    assert (row.median, row.min, row.max, row.n) == (30, 10, 40, 3)
    assert (row.reference_median, row.ratio, row.passed) == (10, 1, True)


def test_a_missing_reference_leaves_the_figure_and_no_verdict(tmp_path: Path) -> None:
    pair = Pair(figures_of(10), (Planned("a row", "us", "us", ratio_at_most(2), "raw"),), {"raw": fails})
    (row,) = run_pair(pair, bench(tmp_path), runs=1)
    assert (row.median, row.ratio, row.passed, row.note) == (10, None, None, "No reference: no server.")


def test_a_subject_that_fails_misses_its_goal(tmp_path: Path) -> None:
    pair = Pair(fails, (Planned("a row", "us", "us", below(2, "us")),))
    (row,) = run_pair(pair, bench(tmp_path), runs=3)
    assert (row.median, row.passed, row.note) == (None, False, "Not measured: no server")
    assert "| not measured |" in report.table_of_rows([row])
    assert "**FAIL**" in report.table_of_rows([row])


@pytest.mark.parametrize("groups", [0, 3])
def test_raw_program_completes_a_record_for_each_message_and_leaves_none(tmp_path: Path, groups: int) -> None:
    options = Namespace(file=tmp_path / "raw.db", count=50, first=0, batch=7, groups=groups)
    assert raw.figure_load(options)["done"] == 50
    assert raw.figure_drain(options)["done"] == 50
    connection = sqlite3.connect(options.file)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    assert connection.execute("SELECT status, result, count(*) FROM records GROUP BY 1, 2").fetchall() == [
        (2, "null", 50)
    ]
    assert connection.execute("SELECT count(*) FROM groups").fetchone() == (0,)
    connection.close()


def test_raw_backlog_stays_as_deep_as_it_was(tmp_path: Path) -> None:
    options = Namespace(file=tmp_path / "raw.db", count=30, first=0, batch=10, groups=0)
    raw.figure_history(options)
    raw.figure_load(Namespace(**{**vars(options), "first": 30}))
    assert raw.figure_backlog(Namespace(**{**vars(options), "first": 60}))["done"] == 30
    connection = sqlite3.connect(options.file)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (30,)
    assert connection.execute("SELECT count(*) FROM records WHERE status = 2").fetchone() == (60,)
    connection.close()


def test_raw_sender_and_drainer_do_the_whole_work_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "raw.db"
    monkeypatch.setattr("sys.argv", ["raw", "stream", "--file", str(file), "--count", "60", "--batch", "7"])
    raw.main()
    connection = sqlite3.connect(file)
    assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM records WHERE status = 2").fetchone() == (60,)
    connection.close()


def test_bodies_are_200_bytes_of_json() -> None:
    for key, body in raw.bodies(2, first=999_999):
        assert len(body) == 200
        assert json.loads(body)["order_id"] == key


def test_the_other_queues_are_installed_from_a_lock_with_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(environment, "VENV", tmp_path)
    monkeypatch.setattr(environment, "redis_program", lambda: "redis-server")

    def run(command: list[str], *, check: bool) -> None:
        assert check
        ran.append(command)

    monkeypatch.setattr(environment.subprocess, "run", run)
    environment.install()
    (installs,) = [command for command in ran if "install" in command]
    assert installs[-6:] == [
        "--require-hashes", "--no-deps", "--only-binary", ":all:", "--requirement", str(environment.CONSTRAINTS),
    ]  # fmt: skip
    environment.install()
    assert len(ran) == 2, "what is installed is not installed again"


def test_the_templates_that_are_timed_keep_to_limits_and_have_nothing_wrong(tmp_path: Path) -> None:
    text = templates.of_lines(checking_rows.LINES)
    assert abs(text.count("\n") - checking_rows.LINES) < 100
    assert text.count("Type: AWS::") <= 500
    assert len(text) < 1_000_000
    templates.write_many(tmp_path, 2)
    checked = check([tmp_path], RULES, date(2026, 11, 28))
    assert len(checked.files) == 2
    assert checked.findings == ()
