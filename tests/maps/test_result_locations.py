"""Folders of results: a file appears whole, also when two drivers of one run write it at once, or one of them fails."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from onefold.maps.sources import FolderResults


def test_two_that_write_one_file_at_once_leave_a_whole_one(tmp_path: Path) -> None:
    inside, go_on = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def slow() -> None:
        try:
            with FolderResults(str(tmp_path)).writing("SUCCEEDED_0.json") as file:
                file.write(b"[1,")
                file.flush()
                inside.set()
                assert go_on.wait(60)
                file.write(b"2]")
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failed.append(error)

    thread = threading.Thread(target=slow)
    thread.start()
    assert inside.wait(60)
    with FolderResults(str(tmp_path)).writing("SUCCEEDED_0.json") as file:
        file.write(b"[1,2]")
    assert (tmp_path / "SUCCEEDED_0.json").read_bytes() == b"[1,2]"
    go_on.set()
    thread.join(60)
    assert failed == []
    assert [file.name for file in tmp_path.iterdir()] == ["SUCCEEDED_0.json"]
    assert (tmp_path / "SUCCEEDED_0.json").read_bytes() == b"[1,2]"


def test_a_file_that_is_not_finished_does_not_appear(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), FolderResults(str(tmp_path)).writing("FAILED_0.json"):
        raise OSError("full")
    assert list(tmp_path.iterdir()) == []
