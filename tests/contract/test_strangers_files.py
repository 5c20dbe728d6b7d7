"""Files that another user of the machine has put beside a database are neither used nor believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import onefold
from onefold import errors, private_files
from onefold.engines.sqlite.processes import Presence, are_dead
from onefold.local.serving import DataFileLock

STRANGER = 54_321


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Paths that another user is said to own."""
    owned: set[str] = set()
    lstat = os.lstat

    def said(path: str) -> os.stat_result:
        found = lstat(path)
        if str(path) not in owned:
            return found
        return os.stat_result((*found[:4], STRANGER, *found[5:]))

    monkeypatch.setattr(private_files.os, "lstat", said)
    return owned


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal", ".owners"])
def test_a_database_beside_which_a_stranger_has_put_a_file_is_refused(
    tmp_path: Path, strangers: set[str], end: str
) -> None:
    path = tmp_path / "shop.db"
    Path(f"{path}{end}").mkdir() if end == ".owners" else Path(f"{path}{end}").touch()
    strangers.add(f"{path}{end}")
    with pytest.raises(errors.StorageError, match=f"shop.db{end} belongs to another user"):
        onefold.store(f"sqlite:///{path}")
    assert not path.exists()


def test_where_others_may_write_the_database_their_files_are_used(tmp_path: Path, strangers: set[str]) -> None:
    path = tmp_path / "shop.db"
    path.touch()
    path.chmod(0o660)
    strangers.add(f"{path}-wal")
    private_files.refuse_strangers(str(path))


def test_a_sign_of_life_that_a_stranger_made_says_nothing(tmp_path: Path, strangers: set[str]) -> None:
    path = tmp_path / "shop.db"
    path.touch(mode=0o600)
    folder = Path(f"{path}.owners")
    folder.mkdir()
    (folder / "other").touch()
    assert are_dead(str(path), ["other"]) == {"other"}
    strangers.add(str(folder / "other"))
    assert are_dead(str(path), ["other"]) == frozenset()
    strangers.clear()
    strangers.add(str(folder))
    assert are_dead(str(path), ["other"]) == frozenset()


def test_a_symbolic_link_in_place_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    path, precious = tmp_path / "shop.db", tmp_path / "precious"
    precious.write_text("mine")
    folder = Path(f"{path}.owners")
    folder.mkdir()
    (folder / ".new-me").symlink_to(precious)
    (folder / "dead").symlink_to(precious)
    assert are_dead(str(path), ["dead"]) == frozenset()
    with pytest.raises(errors.StorageError):
        Presence(str(path), "me")
    Path(f"{path}.serve.lock").symlink_to(precious)
    with pytest.raises(errors.StorageError, match=r"serve\.lock cannot be written"):
        DataFileLock(str(path))
    assert precious.read_text() == "mine"
