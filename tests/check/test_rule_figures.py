"""The figures of the rules page count what a run missed and what it reported beside, not what should have been."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.errors import UsageError
from tests.check.test_check import CORPUS
from tools import check_figures


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cases of which one is right, one is as it says, and one is not."""
    for kind in check_figures.KINDS:
        for which in ("right", "wrong"):
            (tmp_path / kind / which).mkdir(parents=True)
    published = (CORPUS / "wrong" / "published.yaml").read_text().split("\n", 1)[1]
    right, wrong = tmp_path / "corpus" / "right", tmp_path / "corpus" / "wrong"
    (right / "plain.yaml").write_text((CORPUS / "right" / "plain.yaml").read_text())
    (wrong / "same.yaml").write_text(f"# finds: DUP002 error, DUP003 error, LOS004 error\n{published}")
    (wrong / "other.yaml").write_text(f"# finds: DUP002 error, LOS001 error\n{published}")
    monkeypatch.setattr(check_figures, "CASES", tmp_path)
    return tmp_path


def test_a_case_that_is_not_as_it_says_lowers_the_figures_of_its_rules(folder: Path) -> None:
    run = check_figures.figures()
    assert (run.right, run.alarmed, run.wrong, run.complete) == (1, 0, 2, 1)
    assert (run.precision("DUP002"), run.recall("DUP002")) == ("1.00 (2/2)", "1.00 (2/2)")
    assert (run.precision("DUP003"), run.recall("DUP003")) == ("0.50 (1/2)", "1.00 (1/1)")
    assert (run.precision("LOS001"), run.recall("LOS001")) == ("-", "0.00 (0/1)")


def test_a_finding_in_a_right_case_is_a_false_alarm(folder: Path) -> None:
    text = (folder / "corpus" / "wrong" / "same.yaml").read_text().split("\n", 1)[1]
    (folder / "corpus" / "right" / "alarm.yaml").write_text(f"# finds: nothing\n{text}")
    run = check_figures.figures()
    assert (run.right, run.alarmed) == (2, 1)
    assert run.precision("DUP002") == "0.67 (2/3)"


def test_a_case_that_cannot_be_read_is_an_error(folder: Path) -> None:
    (folder / "code" / "wrong" / "broken.py").write_text("# finds: DUP007 error\ndef (")
    with pytest.raises(UsageError, match=r"broken\.py was not read"):
        check_figures.figures()
