"""The page about PostgreSQL, as a reader would: its commands, its programs, and what it says they print."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import errors
from onefold.contracts.store import Claimed
from onefold.engines.postgres.backend import PostgresBackend
from onefold.testing.records import NOW, ask, complete
from tests.docs.test_local_sqs import serving
from tests.docs.test_pages import ROOT, blocks, shell
from tests.emulators import servers

pytestmark = pytest.mark.slow

PAGE = "docs/how-to/store-on-postgresql.md"


def block(word: str) -> str:
    """The one block of the page with this word in it."""
    (text,) = [text for _, _, text in blocks(PAGE) if word in text]
    return text


@contextmanager
def reader(folder: Path) -> Iterator[str]:
    """A server with the page's tables, and the page's programs in a folder; the owner's URL of the database."""
    with servers.postgres(fsync="off") as url:
        host = url.partition("@")[2].partition("/")[0]
        name, _, port = host.partition(":")

        def moved(text: str) -> str:
            return text.replace("@localhost/", f"@{host}/").replace("-h localhost", f"-h {name} -p {port}")

        shell(moved(block("createdb")), folder)
        for language, title, text in blocks(PAGE):
            if language == "python" and title:
                (folder / title).write_text(moved(text), encoding="utf-8")
        (folder / "run.sh").write_text(moved(block("python charge.py")), encoding="utf-8")
        yield f"postgresql://postgres@{host}/shop"


def test_the_guard_charges_once(tmp_path: Path) -> None:
    with reader(tmp_path) as url:
        said = shell("bash -euo pipefail run.sh", tmp_path)
        assert said.count("charging i-1") == 1
        assert said.count("receipt of i-1") == 4
        assert re.search(r"charge\s*\|\s*i-1\s*\|\s*completed\s*\|\s*1\s*\|\s*1", said)
        store = PostgresBackend(url.replace("postgres@", "worker@"))
        assert [text.split()[0] for text in store.check()] == ["fsync"]  # off in this test
        store.close()
        looker = url.replace("postgres@", "looker@")
        assert "Done at" in shell(f"onefold why i-1 {looker}", tmp_path)
        store = PostgresBackend(looker)
        with pytest.raises(errors.StorageError, match=r"to read, as status and why do, GRANT SELECT ON ALL TABLES IN"):
            store.store.claim([ask()], NOW)
        store.close()


def test_a_transactional_job_books_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reader(tmp_path) as url, serving(tmp_path) as sqs:
        program = tmp_path / "shop.py"
        text = program.read_text(encoding="utf-8")
        program.write_text(text.replace("aws://eu-west-1?", f"aws://eu-west-1?create=yes&sqs={sqs}&"), encoding="utf-8")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
        (tmp_path / "send.py").write_text(
            "import shop\nfor _ in range(2):\n    shop.book.send({'id': 'o-1', 'pence': 500})\n", encoding="utf-8"
        )
        shell("python send.py && onefold worker shop:app --until-empty", tmp_path)
        with psycopg.connect(url) as link:
            assert link.execute("SELECT order_id, pence FROM booking").fetchall() == [("o-1", 500)]
            assert link.execute("SELECT status, attempts FROM onefold.record").fetchall() == [("completed", 1)]
        assert "completed" in shell("onefold why o-1 shop:app", tmp_path)


def test_the_statement_for_upkeep_removes_what_expired() -> None:
    with servers.postgres(fsync="off") as url:
        store = PostgresBackend(url, create=True)
        store.store.claim([ask("old", at_ms=NOW), ask("young", at_ms=2 * NOW)], NOW)
        with psycopg.connect(url, autocommit=True) as link:
            link.execute("UPDATE onefold.record SET status = 'failed'")
            link.execute(block("DELETE FROM").encode())
        assert [record.key.key for record in store.records.scan()] == ["young"]
        store.close()


def test_ten_new_records_are_two_calls_as_the_page_about_stores_says(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/how-to/choose-a-store.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| calls for 10 new records \|(.*)\|$", page, re.MULTILINE)
    asked: list[object] = []
    execute = psycopg.Cursor.execute

    def counted(cursor: psycopg.Cursor[Any], query: Any, *more: Any, **options: Any) -> psycopg.Cursor[Any]:
        asked.append(query)
        return execute(cursor, query, *more, **options)

    with servers.postgres(fsync="off") as url:
        store = PostgresBackend(url, create=True)
        store.store.claim([ask("the connection is open")], NOW)
        monkeypatch.setattr(psycopg.Cursor, "execute", counted)
        answers = store.store.claim([ask(f"key-{number}") for number in range(10)], NOW)
        holds = [answer.hold for answer in answers if isinstance(answer, Claimed)]
        assert store.store.write([(hold, complete()) for hold in holds], NOW) == [True] * 10
        store.close()
    assert len(asked) == int(row.split("|")[2]) == 2
