"""A disk that fills up: what was accepted is worked off, with no more space than the disk has, and then there is room.

On a real disk of 8 MB where one may be mounted; everywhere on a disk that pretends to be small (`tiny_disk_app.py`),
where the files are compared with its size after every send.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
DISK_BYTES = 8 * 1024 * 1024
FILL = """
import os, sys
from onefold import errors
from tests.crash import tiny_disk_app as tiny
least, most, seed = map(int, sys.argv[1:])
from onefold.entropy import SeededEntropy
sizes = SeededEntropy(seed)
accepted, refused, number = [], 0, 0
while refused < 20:
    size, number = least + int(sizes.fraction() * (most - least)), number + 1
    try:
        tiny.ship.send({"id": f"o-{seed}-{number}", "body": "x" * size})
    except errors.StorageBusy:
        refused += 1
    else:
        accepted.append(f"o-{seed}-{number} {size}")
        assert refused < 20
    if "DISK_BYTES" in os.environ:
        used = tiny.used_bytes(os.environ["FOLDER"])
        assert used <= int(os.environ["DISK_BYTES"]), (used, number)
tiny.app.close()
print("\\n".join(accepted))
"""

FILL_WITH_SMALL = """
from onefold import errors
from tests.crash import tiny_disk_app as tiny
number = refused = 0
while refused < 20:
    orders = [{"id": f"o-{number}-{place}", "body": "x" * 150} for place in range(10)]
    try:
        tiny.pick.send_many(orders)
    except errors.StorageBusy:
        refused += 1
    else:
        number += 1
tiny.app.close()
print(number * 10)
"""
READ = "SELECT job, status, count(*) FROM onefold_record GROUP BY 1, 2 ORDER BY 1"


class Disk:
    """A folder on a small disk, and the processes that work there."""

    def __init__(self, folder: Path, outside: Path, disk_bytes: int | None) -> None:
        self.folder, self.shipped_path = folder, outside / "shipped"
        self._environment = {**os.environ, "FOLDER": str(folder), "SHIPPED": str(self.shipped_path)}
        if disk_bytes is not None:
            self._environment["DISK_BYTES"] = str(disk_bytes)

    def _run(self, code: str, *arguments: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=ROOT, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran.stdout

    def fill(self, least: int, most: int, seed: int) -> list[str]:
        """Send until twenty messages were refused; returns what was accepted."""
        return self._run(FILL, str(least), str(most), str(seed)).split("\n")[:-1]

    def fill_with_small(self) -> int:
        """Send small messages until twenty calls were refused; returns how many were accepted."""
        return int(self._run(FILL_WITH_SMALL))

    def drain(self) -> None:
        """Run a worker, as a user starts it, until nothing is left."""
        code = "from onefold.cli.main import main; main()"
        self._run(code, "worker", "tests.crash.tiny_disk_app:app", "--no-progress", "--until-empty")

    def shipped(self) -> list[str]:
        return self.shipped_path.read_text().splitlines()


@pytest.fixture(params=["mounted", "agreed"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = False
    if request.param == "mounted":
        order = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
        mounted = os.geteuid() == 0 and subprocess.run(order, capture_output=True, check=False).returncode == 0
    # Where nothing may be mounted, the pretended disk is tried with another seed of sizes.
    yield Disk(folder, tmp_path, None if mounted else DISK_BYTES)
    if mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("least", "most", "share"),
    [(10, 60_000, 0.4), (2_000, 5_000, 0.2), (400_000, 700_000, 0.3)],
    ids=["mixed", "small", "large"],
)
def test_a_full_disk_is_worked_off_and_filled_again(disk: Disk, least: int, most: int, share: float) -> None:
    accepted: list[str] = []
    for seed in (1, 2):
        new = disk.fill(least, most, seed)
        assert sum(int(one.split()[1]) for one in new) > DISK_BYTES * share, "it refused too early"
        accepted += new
        disk.drain()
        assert sorted(disk.shipped()) == sorted(accepted)
    with closing(sqlite3.connect(disk.folder / "tiny.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM onefold_message").fetchone() == (0,)


@pytest.mark.slow
def test_small_messages_whose_records_take_more_than_they_did_are_all_finished(disk: Disk) -> None:
    accepted = disk.fill_with_small()
    assert accepted > 3_000, "it refused too early"  # some 500 bytes each, which is a fifth of the disk
    disk.drain()
    with closing(sqlite3.connect(disk.folder / "tiny.db")) as connection:
        assert connection.execute(READ).fetchall() == [("label", 1, accepted), ("pick", 1, accepted)]
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*) FROM onefold_message").fetchone() == (0,)
