"""The page about Redis, as a reader would: its settings, its program, and what it says the program prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from onefold import errors
from onefold.contracts.store import Claimed
from onefold.engines.redis.backend import RedisBackend
from onefold.entropy import SystemEntropy
from onefold.testing.records import NOW, ask, complete
from tests.docs.test_pages import ROOT, blocks, shell
from tests.emulators import servers

PAGE = "docs/how-to/store-on-redis.md"


def settings() -> dict[str, str]:
    """The page's redis.conf."""
    (text,) = [text for language, _, text in blocks(PAGE) if language == "conf"]
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    return {name.replace("-", "_"): value for name, value in lines.items() if name not in ("port", "bind")}


def commands(word: str, url: str) -> str:
    """The shell block with this word in it, for the server at this URL."""
    (text,) = [text for language, _, text in blocks(PAGE) if language == "sh" and word in text]
    return text.replace("redis-cli", f"redis-cli -u {shlex.quote(url)}")


@pytest.mark.slow
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    ((_, title, program),) = [block for block in blocks(PAGE) if block[0] == "python"]
    with servers.redis(**settings()) as url:
        (tmp_path / str(title)).write_text(program.replace("redis://localhost:6379", url), encoding="utf-8")
        said = shell(commands("charge.py", url), tmp_path)
        assert said.count("charging i-1") == 1
        assert said.count("receipt of i-1") == 5  # the fifth is in the record
        assert '"status":"completed"' in said
        assert re.search(r'\n"receipt of i-1"', said)
        books = RedisBackend.open(f"{url}?prefix=shop:", entropy=SystemEntropy())
        assert books.check() == []
        books.close()
        # A user with the page's permissions can do everything, one of another prefix nothing.
        assert "OK" in shell(commands("ACL SETUSER", url), tmp_path)
        own = url.replace("redis://", "redis://onefold:secret@")
        books = RedisBackend.open(f"{own}?prefix=shop:", entropy=SystemEntropy())
        assert books.check() == []
        assert len(books.records.find("i-1")) == 1
        assert len(books.store.claim([ask()], NOW)) == 1
        books.close()
        # The page's user who looks can look, and change nothing; what is refused names the rights.
        looker = url.replace("redis://", "redis://looker:secret@") + "?prefix=shop:"
        assert "Done at" in shell(f"onefold why i-1 {shlex.quote(looker)}", tmp_path)
        books = RedisBackend.open(looker, entropy=SystemEntropy())
        with pytest.raises(
            errors.StorageError, match=r"to look, as status and why do, \+@read \+@connection; for workers"
        ):
            books.store.claim([ask()], NOW)
        books.close()


def test_the_memory_figure(tmp_path: Path) -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    (told,) = re.findall(r"takes about (\d+) bytes", page)
    with servers.redis(appendonly="no") as url:
        books = RedisBackend.open(url, entropy=SystemEntropy())
        (answer,) = books.store.claim([ask(message_id="m" * 36)], NOW)
        assert isinstance(answer, Claimed)
        assert books.store.write([(answer.hold, complete())], NOW) == [True]
        used = int(shell(f"redis-cli -u {url} MEMORY USAGE '{{of:}}record:tenant|job|key'", tmp_path))
        books.close()
    assert 0.8 * int(told) < used < 1.25 * int(told)
