"""The pictures in the README and the docs are of this version: what they show is made again, and compared."""

from __future__ import annotations

import html
import re
import struct
from pathlib import Path

import pytest

from tests.docs.test_pages import ROOT
from tools import pictures


@pytest.mark.slow
def test_the_story_of_a_crash_is_the_one_that_is_printed(tmp_path: Path) -> None:
    now = pictures.without_ids(pictures.why_now(tmp_path))
    assert now == pictures.without_ids(pictures.why_printed()), "make pictures ARGS=why, and read what it changed"
    steps = re.findall(r"^  hh:mm:ss\.mmm  (\S+)", now, re.MULTILINE)
    assert steps == ["sent", "claimed", "started", "takeover", "unknown", "held"]


@pytest.mark.slow
def test_the_picture_of_the_demo_has_the_lines_of_the_demo() -> None:
    drawn = " ".join(words(svg("demo")))
    printed = re.sub(r"\x1b\[[0-9;]*m", "", pictures.demo_now("--rows", "50"))
    table = printed.partition("1  The partner")[2].partition("Passed")[0].splitlines()[1:]
    names = [re.match(r"[a-z ]*[a-z]", line) for line in table if line.strip()]
    assert len(names) > 10
    for name in names:
        assert name is not None
        assert name[0] in drawn, "make pictures ARGS=demo"
    for name in ("twice", "never"):
        assert re.search(rf"{name} +0 ", drawn)


@pytest.mark.slow
def test_the_picture_of_a_check_is_what_it_prints(tmp_path: Path) -> None:
    printed = re.sub(r"\x1b\[[0-9;]*m", "", pictures.check_now(tmp_path))
    drawn = "".join(words(svg("check")))
    assert "".join(printed.split()) in "".join(drawn.split()), "make pictures ARGS=check"
    assert len(re.findall("error\\[", drawn)) == 3


@pytest.mark.parametrize("name", ["delivery", "window", "script", "record", "logo", "demo", "check"])
def test_a_drawing_takes_nothing_from_elsewhere(name: str) -> None:
    text = svg(name)
    assert re.findall(r"(?:href=|url\()[\"']?(?!#)[^)\"']+", text) == []
    assert "<script" not in text
    assert len(text) < 30_000


def test_the_picture_of_the_history_page_is_small() -> None:
    data = (ROOT / "docs/assets/history.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == pictures.PAGE_SIZE
    assert len(data) < 150_000


def test_the_table_of_others_names_its_sources() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## Compared with what people use today")[2].partition("\n## ")[0]
    used = set(re.findall(r"\]\[([a-z]-[a-z]+)\]", table))
    given = dict(re.findall(r"^\[([a-z]-[a-z]+)\]: (https://\S+)$", table, re.MULTILINE))
    assert used == set(given)
    assert {name[0] for name in used} == {"c", "p", "d", "t"}, "a source for each of the four"


def words(drawing: str) -> list[str]:
    """The texts of a drawing, in order."""
    return [html.unescape(text).replace("\xa0", " ") for text in re.findall(r">([^<>]+)</text>", drawing)]


def svg(name: str) -> str:
    return (ROOT / "docs/assets" / f"{name}.svg").read_text(encoding="utf-8")


def test_the_pictures_of_the_page_are_those_that_are_made_and_shown() -> None:
    text = (ROOT / "docs/page.md").read_text()
    for name in pictures.PAGES:
        data = (ROOT / f"docs/assets/page-{name}.png").read_bytes()
        size = pictures.PHONE if name.endswith("phone") else pictures.PAGE_OF_WEB
        assert struct.unpack(">II", data[16:24]) == size, "make pictures ARGS=page"
        assert f"assets/page-{name}.png" in text
