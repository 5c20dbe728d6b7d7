"""The app of `test_tiny_disk.py`, and a disk that only pretends to be small: by what `statvfs` reports for one folder.

FOLDER and DISK_BYTES in the environment: the folder's files count as the only ones on a disk of that size. Without
DISK_BYTES the disk is the real one.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onefold

real_statvfs = os.statvfs


def used_bytes(folder: str) -> int:
    """The space that the files of a folder take."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def agreed_statvfs(path: Any) -> Any:
    """As `os.statvfs`, for the small disk."""
    folder, size = os.environ["FOLDER"], int(os.environ["DISK_BYTES"])
    assert str(path).startswith(folder)
    return SimpleNamespace(f_frsize=1, f_bavail=max(size - used_bytes(folder), 0))


if "DISK_BYTES" in os.environ:
    os.statvfs = agreed_statvfs  # type: ignore[assignment]

app = onefold.App("tiny", url=f"sqlite:///{os.environ.get('FOLDER', '')}/tiny.db")
parcels = app.queue("parcels")


@app.job(parcels, key="{id}")
def ship(order: dict[str, str]) -> None:
    """Records that it ran, on another disk."""
    file = os.open(os.environ["SHIPPED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{order['id']} {len(order['body'])}\n".encode())
    os.close(file)


lists, labels = app.queue("lists"), app.queue("labels")


@app.job(lists, key="{id}")
def pick(order: dict[str, str]) -> str:
    """Leaves more than it removes: a record with its body, and another message as large."""
    label.send(order)
    return order["body"]


@app.job(labels, key="{id}")
def label(order: dict[str, str]) -> None:
    """Leaves a record."""
