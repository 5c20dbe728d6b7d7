"""The database file, or its log, is removed or replaced while real processes work on it.

Nothing may be accepted that nobody would find again; the old log must not touch what was put in the file's place;
a process that works on the old file ends with an error, whether it has work or not.
"""

from __future__ import annotations

import os
import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import onefold
from onefold import errors
from onefold.clock import SystemClock
from onefold.engines.sqlite.engine import SqliteEngine
from onefold.entropy import SystemEntropy

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
WORKER = """
import os, sys
import onefold
app = onefold.App("vanish", url=os.environ["ONEFOLD_URL"])
parcels = app.queue("parcels")

@app.job(parcels, key="{id}")
def ship(order: dict) -> None:
    os.write(int(os.environ["PROGRESS"]), order["id"].encode() + b"\\n")

if __name__ == "__main__":
    from onefold.cli.main import main
    main()
"""


class Shop:
    """A file with a worker on it in a process of its own, and a sender in this one."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "live.db"
        (folder / "shop_app.py").write_text(WORKER)
        self.app = onefold.App("vanish", url=f"sqlite:///{self.path}")

        @self.app.job(self.app.queue("parcels"), key="{id}")
        def ship(order: dict[str, str]) -> None:
            """Runs in the worker."""

        self.ship = ship
        self._reading, writing = os.pipe()
        environment = {
            **os.environ,
            "ONEFOLD_URL": f"sqlite:///{self.path}",
            "PROGRESS": str(writing),
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        }
        self.ship.send({"id": "first"})
        code = "from onefold.cli.main import main; main()"
        self.worker = subprocess.Popen(
            [sys.executable, "-c", code, "worker", "shop_app:app", "--no-progress"],
            env=environment, pass_fds=[writing], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        os.close(writing)
        self.await_shipped({"first"})

    def await_shipped(self, wanted: set[str]) -> None:
        """Return when the worker has done all of them, in whatever order its threads did."""
        text = ""
        while not wanted <= set(text.split("\n")[:-1]):  # what is behind the last line break may go on
            ready, _, _ = select.select([self._reading], [], [], PATIENCE_S)
            assert ready, f"nobody works; done: {text.split()[-20:]}"
            text += os.read(self._reading, 65_536).decode()

    def backup(self, path: Path) -> Path:
        """Make a backup with SQLite's own means."""
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(path)) as target:
            source.backup(target)
        return path

    def worker_error(self) -> str:
        """What the worker prints when it ends by itself, as it must, with an error."""
        _, said = self.worker.communicate(timeout=PATIENCE_S)
        assert self.worker.returncode not in (0, None), said
        assert "Traceback" not in said
        return said

    def close(self) -> None:
        if self.worker.poll() is None:
            self.worker.kill()
        self.worker.communicate(timeout=PATIENCE_S)
        os.close(self._reading)
        self.app.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    one = Shop(tmp_path)
    yield one
    one.close()


def found_in(path: Path) -> tuple[str, int]:
    """Whether a file is intact, and how many messages were ever sent into it, as a new process sees it."""
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        "print(c.execute('PRAGMA integrity_check').fetchone()[0]);"
        "print(c.execute('SELECT last_id FROM onefold_file').fetchone()[0])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    health, last_id = ran.stdout.split()
    return health, int(last_id)


@pytest.mark.slow
def test_a_removed_file_ends_workers_and_refuses_sends(shop: Shop) -> None:
    shop.path.unlink()
    with pytest.raises(errors.StorageError, match="was removed"):
        shop.ship.send({"id": "lost"})
    said = shop.worker_error()
    assert str(shop.path) in said
    assert "was removed" in said
    with pytest.raises(errors.StorageError, match="was removed"):
        shop.ship.send({"id": "lost again"})


@pytest.mark.slow
def test_a_backup_renamed_over_the_live_file_stays_as_it_was(shop: Shop, tmp_path: Path) -> None:
    backup = shop.backup(tmp_path / "backup.db")
    before = found_in(backup)
    bytes_before = backup.read_bytes()
    later = [f"later-{number}" for number in range(200)]
    for name in later:  # the old log has pages that the backup must not get
        shop.ship.send({"id": name})
    shop.await_shipped(set(later))
    backup.rename(shop.path)
    assert "is another file now" in shop.worker_error()
    with pytest.raises(errors.StorageError, match="is another file now"):
        shop.ship.send({"id": "lost"})
    assert not Path(f"{shop.path}-wal").exists()
    assert shop.path.read_bytes() == bytes_before
    shop.app.close()
    assert found_in(shop.path) == before
    assert shop.path.read_bytes() == bytes_before
    # A new process works on the file that was put there.
    again = onefold.App("vanish", url=f"sqlite:///{shop.path}")
    assert again.runtime().engine.queues.depth("parcels").visible == 0
    again.close()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["-wal", "-shm"])
def test_a_removed_log_loses_nothing_that_was_accepted(shop: Shop, ending: str) -> None:
    shop.worker.terminate()
    shop.worker.communicate(timeout=PATIENCE_S)
    for number in range(20):
        shop.ship.send({"id": f"accepted-{number}"})
    Path(f"{shop.path}{ending}").unlink()
    with pytest.raises(errors.StorageError, match="what was accepted before is in the file"):
        shop.ship.send({"id": "refused"})
    shop.app.close()
    assert found_in(shop.path) == ("ok", 21)


@pytest.mark.slow
def test_a_file_that_is_emptied_in_place_is_refused_by_workers_and_senders(shop: Shop) -> None:
    os.truncate(shop.path, 0)
    with pytest.raises(errors.StorageError, match="was emptied"):
        shop.ship.send({"id": "refused"})
    assert "was emptied" in shop.worker_error()


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["-wal", "-shm"])
def test_an_idle_worker_notices_a_removed_log(shop: Shop, ending: str) -> None:
    Path(f"{shop.path}{ending}").unlink()
    assert "was removed or replaced" in shop.worker_error()


def test_a_log_that_another_process_has_begun_anew_is_left_alone(tmp_path: Path) -> None:
    app = onefold.App("vanish", url=f"sqlite:///{tmp_path / 'live.db'}")
    app.runtime().engine.queues.settings()
    log = tmp_path / "live.db-wal"
    log.unlink()
    log.write_bytes(b"")
    database = app.runtime().engine.database  # type: ignore[attr-defined]  # the embedded engine's
    with pytest.raises(errors.StorageError, match="may be lost"):
        database.check_file()
    app.close()


def test_a_link_that_is_pointed_elsewhere_is_noticed_and_the_old_file_keeps_its_log(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to(tmp_path / "old")
    app = onefold.App("vanish", url=f"sqlite:///{link}/live.db")

    @app.job(app.queue("parcels"), key="{id}")
    def ship(order: dict[str, str]) -> None:
        """Never."""

    ship.send({"id": "kept"})
    link.unlink()
    link.symlink_to(tmp_path / "new")
    with pytest.raises(errors.StorageError, match="was removed"):
        ship.send({"id": "refused"})
    assert (tmp_path / "old" / "live.db-wal").exists()
    app.close()
    assert found_in(tmp_path / "old" / "live.db")[0] == "ok"


def test_a_process_that_changes_its_folder_stays_on_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = onefold.App("vanish", url="sqlite:///live.db")

    @app.job(app.queue("parcels"), key="{id}")
    def ship(order: dict[str, str]) -> None:
        """Never."""

    ship.send({"id": "before"})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    ship.send({"id": "after"})
    engine = app.runtime().engine
    engine.appear()
    with ThreadPoolExecutor(1) as other:  # its reader is opened only now
        assert other.submit(engine.queues.depth, "parcels").result().visible == 2
    assert os.listdir(elsewhere) == []
    app.close()


def test_after_a_truncated_log_was_noticed_nothing_is_written_and_no_function_is_called(tmp_path: Path) -> None:
    path = tmp_path / "cut.db"
    opened = SqliteEngine(str(path), clock=SystemClock(), entropy=SystemEntropy(), owner="me", url=str(path))
    effects: list[str] = []

    @onefold.once(key="{key}", name="charge", store=opened.store)
    def charge(key: str) -> str:
        effects.append(key)
        return key

    charge("before")
    os.truncate(f"{path}-wal", 0)
    engine = opened.database
    with pytest.raises(errors.StorageError):
        engine.read(
            lambda reader: reader.execute("PRAGMA quick_check").fetchall()
        )  # its own small cache does not have all of it
    for key in ("before", "after", "after"):
        with pytest.raises(errors.StorageError, match="damaged by an earlier call"):
            charge(key)
    with pytest.raises(errors.StorageError, match="damaged by an earlier call"):
        engine.check_file()
    assert effects == ["before"]
    opened.close()
