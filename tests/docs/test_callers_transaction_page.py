"""The page about sends in the caller's transaction, as a reader would: its programs and its commands."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.docs.test_pages import blocks, shell, write_files
from tests.emulators import servers

PAGE = "docs/how-to/send-in-your-transaction.md"


@pytest.mark.slow
def test_the_part_about_postgresql_does_what_it_says(tmp_path: Path) -> None:
    with servers.postgres(fsync="off") as url:
        address = url.partition("@")[2].partition("/")[0]
        host, _, port = address.partition(":")

        def moved(text: str) -> str:
            return text.replace("@localhost/", f"@{address}/").replace("-h localhost", f"-h {host} -p {port}")

        with psycopg.connect(url, autocommit=True) as link:
            link.execute("CREATE DATABASE shop")
        for _, title, text in blocks(PAGE):
            if title in ("store.py", "service.py", "ask.py"):
                (tmp_path / title).write_text(moved(text), encoding="utf-8")
        commands = [moved(text) for language, _, text in blocks(PAGE) if language == "sh"]
        created, said, later, asked = (
            shell(text, tmp_path) for text in commands if "outbox" in text or "store" in text
        )
        assert f"onefold_outbox, version 1, is in postgresql://{address}/shop" in created
        assert "outbox   0 waiting" in said
        assert asked == "waiting\nTrue absent\ndone 1 None\n"
        assert later.count("booking o-3") == later.count("booking o-4") == 1
        assert said.count("booking o-1") == said.count("booking o-2") == 1


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    commands = [text for language, _, text in blocks(PAGE) if language == "sh"]
    first, second = (shell(text, tmp_path) for text in commands if "shop.py" in text)
    assert first.count("booking o-1") == 1
    assert "refused: UNIQUE constraint failed" in first
    assert second.count("booking o-2") == 1
    assert "o-1" not in second
    with closing(sqlite3.connect(tmp_path / "shop.db")) as looking:
        assert looking.execute("SELECT * FROM shop_order ORDER BY id").fetchall() == [("o-1", 995), ("o-2", 500)]
