"""A process whose log was moved or removed ends, while others have begun another log on the same file.

The process that closes a SQLite file last writes its log into the file and removes the log by name. Here the pages
would be old, and the log would belong to others, who would lose all that they have sent, while nothing would look
damaged.
"""

from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from onefold import errors
from onefold.clock import SystemClock
from onefold.engines.sqlite.database import Database

PATIENCE_S = 60.0
SENDER = """
import gc, os, sys
import onefold

app = onefold.App("ends", url=sys.argv[1])

@app.job(app.queue("parcels"), key="{id}")
def ship(order: dict) -> None: ...

for line in sys.stdin:
    word = line.strip()
    try:
        if word == "close":
            app.close()
        elif word == "forget":
            app = ship = None
            gc.collect()
        elif word == "fork":
            if (child := os.fork()) == 0:
                os._exit(0)
            os.waitpid(child, 0)
        else:
            ship.send({"id": word})
    except onefold.errors.OnefoldError as error:
        print("refused", error, flush=True)
    else:
        print("done", flush=True)
"""


class Sender:
    """A process that carries out commands, one word at a time."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SENDER, f"sqlite:///{path}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def do(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        _, said = self._process.communicate(timeout=PATIENCE_S)
        assert (self._process.returncode, said) == (0, "")


def sent(path: Path, like: str) -> int:
    with closing(sqlite3.connect(path)) as found:
        assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        count: int = found.execute(
            "SELECT count(*) FROM onefold_message WHERE CAST(body AS TEXT) LIKE ?", (f"%{like}-%",)
        ).fetchone()[0]
        return count


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["end", "close", "forget", "fork"])
@pytest.mark.parametrize("how", ["moved and back, seen", "removed", "removed, seen"])
def test_the_end_of_a_process_on_an_old_log_takes_nothing_from_others(tmp_path: Path, how: str, ending: str) -> None:
    path, away = tmp_path / "live.db", tmp_path / "away.db"
    old = Sender(path)
    for number in range(5):
        assert old.do(f"old-{number}") == "done"
    if how.startswith("moved"):
        path.rename(away)
    else:
        Path(f"{path}-wal").unlink()
        Path(f"{path}-shm").unlink()
    if how.endswith("seen"):
        assert old.do("refused").startswith("refused")
    if how.startswith("moved"):
        away.rename(path)
    new = Sender(path)
    for number in range(20):
        assert new.do(f"new-{number}") == "done"
    new.end()
    if ending == "fork":
        assert old.do("fork") == "done"
        assert "Restart this process" in old.do("refused again") or "Restart every process" in old.do("refused again")
    elif ending != "end":
        assert old.do(ending) == "done"
    old.end()
    assert sent(path, "new") == 20


@pytest.mark.slow
def test_the_end_of_a_process_whose_log_nobody_has_begun_anew_saves_what_it_sent(tmp_path: Path) -> None:
    path, away = tmp_path / "live.db", tmp_path / "away.db"
    old = Sender(path)
    for number in range(5):
        assert old.do(f"old-{number}") == "done"
    path.rename(away)
    assert old.do("refused").startswith("refused")
    away.rename(path)
    old.end()
    assert sent(path, "old") == 5


class OldLog:
    """A database of this process whose log was removed, and another process that has begun a new one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = Database(str(path), SystemClock())
        self.database.write(lambda writer: writer.execute("CREATE TABLE one (number)"))
        self.database.write(lambda writer: writer.execute("PRAGMA application_id=0x6F6E6566"))
        self.database.write(lambda writer: writer.executemany("INSERT INTO one VALUES (?)", [(n,) for n in range(500)]))

    def begin_another(self) -> None:
        """Do what happens when somebody removes the log while processes run, and another process is started."""
        run(self.path, "SELECT 1")  # what is in the log is in the file
        Path(f"{self.path}-wal").unlink()
        Path(f"{self.path}-shm").unlink()
        run(self.path, "UPDATE one SET number = -1")

    def kept(self) -> str:
        return run(self.path, "SELECT min(number), max(number), count(*) FROM one")


def run(path: Path, statement: str) -> str:
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('PRAGMA wal_checkpoint(PASSIVE)');"
        "print(c.execute(sys.argv[2]).fetchall())"
    )
    ran = subprocess.run([sys.executable, "-c", code, path, statement], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.fixture
def old_log(tmp_path: Path) -> OldLog:
    return OldLog(tmp_path / "live.db")


AS_NEW = "[(-1, -1, 500)]"


@pytest.mark.parametrize("way", ["close", "drop"])
def test_a_database_on_an_old_log_is_closed_or_dropped_and_others_keep_what_they_wrote(
    old_log: OldLog, way: str
) -> None:
    old_log.begin_another()
    if way == "close":
        old_log.database.close()
        old_log.database.close()
    held: list[object] = [old_log.database]
    held.append(held)  # only the garbage collector finds it
    del old_log.database, held
    gc.collect()
    assert old_log.kept() == AS_NEW


def test_a_process_does_not_open_a_file_again_of_which_it_has_an_old_log(old_log: OldLog) -> None:
    old_log.begin_another()
    with pytest.raises(errors.StorageError, match="was moved or removed"):
        Database(str(old_log.path), SystemClock())
    old_log.database.close()
    with pytest.raises(errors.StorageError, match="Restart this process"):
        Database(str(old_log.path), SystemClock())
    assert old_log.kept() == AS_NEW


@pytest.mark.parametrize("way", ["make_room", "shorten_log"])
def test_an_old_log_is_not_written_into_the_file_for_space(
    old_log: OldLog, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_log.begin_another()
    space = old_log.database._space
    monkeypatch.setattr("onefold.engines.sqlite.file._size", lambda _: 2**60)
    getattr(space, way)()
    old_log.database.close()
    assert old_log.kept() == AS_NEW


def test_a_long_transaction_is_refused_at_its_commit_where_the_log_went_meanwhile(old_log: OldLog) -> None:
    writer = old_log.database.begin_exclusive()
    writer.execute("INSERT INTO one VALUES (7777)")
    old_log.begin_another()
    with pytest.raises(errors.StorageError, match="was removed or replaced"):
        old_log.database.end_exclusive(commit=True)
    old_log.database.close()
    assert old_log.kept() == AS_NEW
