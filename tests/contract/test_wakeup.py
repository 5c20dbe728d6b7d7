"""Waking idle receivers: threads and processes, nothing lost, dead sockets removed, and the fallback where they fail."""

from __future__ import annotations

import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from onefold.engines.sqlite.processes import LocalWaiter, SocketWaiter, Wakeup
from onefold.entropy import SystemEntropy

SOON_S = 60.0  # far longer than any wake-up takes; a lost one fails the test instead of slowing it down
CHILD = """
import sys
from onefold.engines.sqlite.processes import Wakeup
from onefold.entropy import SystemEntropy
wakeup = Wakeup(sys.argv[1], SystemEntropy())
waiter = wakeup.waiter()
print("waiting", flush=True)
for _ in range(int(sys.argv[2])):
    print(waiter.wait(60.0), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def short_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The paths of sockets are limited to 108 bytes; pytest's own folders are too deep."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


@pytest.fixture(params=["file", ":memory:"])
def wakeup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Wakeup]:
    path = request.param if request.param == ":memory:" else str(tmp_path / "shop.db")
    wakeup = Wakeup(path, SystemEntropy())
    assert wakeup.polls is None
    yield wakeup
    wakeup.close()


def spawn(path: Path, waits: int) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(waits)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert line(child) == "waiting"
    return child


def line(child: subprocess.Popen[bytes]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().decode().strip()


def sockets(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("onefold-*/*/*"))


def test_nobody_wakes_without_a_reason(wakeup: Wakeup) -> None:
    waiter = wakeup.waiter()
    assert not waiter.wait(0)
    assert not waiter.wait(0.001)
    waiter.close()


def test_a_notice_before_the_wait_is_not_lost(wakeup: Wakeup) -> None:
    waiter = wakeup.waiter()
    wakeup.notify()
    assert waiter.wait(SOON_S)
    assert not waiter.wait(0)
    waiter.close()


def test_many_notices_wake_once_and_the_next_wakes_again(wakeup: Wakeup) -> None:
    waiter = wakeup.waiter()
    for _ in range(10_000):  # far more than a socket holds
        wakeup.notify()
    assert waiter.wait(SOON_S)
    assert not waiter.wait(0)
    wakeup.notify()
    assert waiter.wait(SOON_S)
    waiter.close()


def test_a_notice_reaches_every_waiter(wakeup: Wakeup) -> None:
    waiters = [wakeup.waiter() for _ in range(5)]
    wakeup.notify()
    assert [waiter.wait(SOON_S) for waiter in waiters] == [True] * 5
    for waiter in waiters:
        waiter.close()


def test_who_listens_to_others_does_not_hear_its_own_process(tmp_path: Path, wakeup: Wakeup) -> None:
    deaf, hears = wakeup.waiter(foreign=True), wakeup.waiter()
    wakeup.notify()
    assert hears.wait(SOON_S)
    assert not deaf.wait(0)
    deaf.wake()
    assert deaf.wait(SOON_S)
    for waiter in (deaf, hears):
        waiter.close()


def test_wake_is_for_one_waiter_only(wakeup: Wakeup) -> None:
    first, second = wakeup.waiter(), wakeup.waiter()
    for _ in range(1000):
        first.wake()
    assert (first.wait(SOON_S), second.wait(0)) == (True, False)
    assert not first.wait(0)
    first.close()
    second.close()


@pytest.mark.parametrize("by", ["notify", "wake"])
def test_a_thread_that_waits_is_woken(wakeup: Wakeup, by: str) -> None:
    waiter = wakeup.waiter()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(waiter.wait(SOON_S)))
    thread.start()
    (wakeup.notify if by == "notify" else waiter.wake)()
    thread.join()
    assert answers == [True]
    waiter.close()


def test_nothing_is_lost_between_looking_and_waiting(wakeup: Wakeup) -> None:
    """A receiver that makes its waiter, looks, and only then waits sees every item that was put before its notice."""
    items: list[int] = []
    seen: list[int] = []

    def receive() -> None:
        waiter = wakeup.waiter()
        ready.set()
        while len(seen) < 2000:
            if items:
                seen.append(items.pop(0))
            else:
                assert waiter.wait(SOON_S), "a wake-up was lost"
        waiter.close()

    ready = threading.Event()
    thread = threading.Thread(target=receive)
    thread.start()
    ready.wait()
    for number in range(2000):
        items.append(number)
        wakeup.notify()
    thread.join()
    assert seen == list(range(2000))


def test_notices_without_waiters_and_after_closing_do_nothing(wakeup: Wakeup) -> None:
    wakeup.notify()
    wakeup.waiter().close()
    wakeup.notify()
    wakeup.close()
    wakeup.notify()
    wakeup.close()


# -- processes -----------------------------------------------------------------------------------------------------------


def test_processes_are_woken_by_processes(tmp_path: Path) -> None:
    wakeup = Wakeup(str(tmp_path / "shop.db"), SystemEntropy())
    children = [spawn(tmp_path / "shop.db", 2) for _ in range(2)]
    for _ in range(2):
        wakeup.notify()
        assert [line(child) for child in children] == ["True", "True"]
    for child in children:
        child.communicate()
    wakeup.close()


def test_other_databases_are_not_woken(tmp_path: Path) -> None:
    one, other = (Wakeup(str(tmp_path / name), SystemEntropy()) for name in ("one.db", "other.db"))
    waiter = one.waiter()
    other.notify()
    assert not waiter.wait(0)
    waiter.close()
    one.close()
    other.close()


def test_one_database_has_one_bell_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    one, other = (
        Wakeup(str(tmp_path / "shop.db"), SystemEntropy()),
        Wakeup(str(tmp_path / "link/shop.db"), SystemEntropy()),
    )
    waiter = one.waiter()
    other.notify()
    assert waiter.wait(SOON_S)
    waiter.close()
    one.close()
    other.close()


def test_the_socket_of_a_killed_process_is_removed(tmp_path: Path, short_temporary_folder: Path) -> None:
    wakeup = Wakeup(str(tmp_path / "shop.db"), SystemEntropy())
    waiter = wakeup.waiter()
    child = spawn(tmp_path / "shop.db", 1)
    assert len(sockets(short_temporary_folder)) == 2
    child.kill()
    child.communicate()
    wakeup.notify()
    assert len(sockets(short_temporary_folder)) == 1
    assert waiter.wait(SOON_S)
    waiter.close()
    assert sockets(short_temporary_folder) == []
    wakeup.close()


def test_a_socket_that_is_being_made_is_left_alone(tmp_path: Path, short_temporary_folder: Path) -> None:
    wakeup = Wakeup(str(tmp_path / "shop.db"), SystemEntropy())
    (folder,) = short_temporary_folder.glob("onefold-*/*")
    half = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    half.bind(str(folder / ".half"))
    half.close()
    wakeup.notify()
    assert os.listdir(folder) == [".half"]
    wakeup.close()


# -- the fallback --------------------------------------------------------------------------------------------------------


def test_the_folder_is_private(tmp_path: Path, short_temporary_folder: Path) -> None:
    Wakeup(str(tmp_path / "shop.db"), SystemEntropy()).close()
    (outer,) = short_temporary_folder.iterdir()
    assert stat.S_IMODE(outer.stat().st_mode) == 0o700
    assert outer.stat().st_uid == os.getuid()


@pytest.mark.parametrize("place", ["open to others", "a link", "a file", "too deep", "no sockets"])
def test_waiters_look_again_where_they_cannot_be_woken(
    tmp_path: Path, short_temporary_folder: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    outer = short_temporary_folder / f"onefold-{os.getuid()}"
    if place == "open to others":
        outer.mkdir()
        outer.chmod(0o777)
    elif place == "a link":
        outer.symlink_to(tmp_path)
    elif place == "a file":
        outer.write_text("")
    elif place == "too deep":
        deep = short_temporary_folder / ("d" * 100)
        deep.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
    else:
        monkeypatch.delattr(socket, "AF_UNIX")
    wakeup = Wakeup(str(tmp_path / "shop.db"), SystemEntropy())
    assert wakeup.polls
    waiter = wakeup.waiter()
    assert isinstance(waiter, LocalWaiter)
    assert not waiter.wait(0)
    assert waiter.wait(SOON_S)  # after 50 ms: there may be something to do
    wakeup.notify()
    assert waiter.wait(0)  # threads of this process still wake it at once
    waiter.close()
    wakeup.close()


def test_files_are_waited_on_by_sockets(tmp_path: Path) -> None:
    wakeup = Wakeup(str(tmp_path / "shop.db"), SystemEntropy())
    waiter = wakeup.waiter()
    assert isinstance(waiter, SocketWaiter)
    waiter.close()
    wakeup.close()


def test_the_folder_goes_with_the_last_one_and_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    first, second = Wakeup(path, SystemEntropy()), Wakeup(path, SystemEntropy())
    assert first._directory is not None
    first.close()
    assert not first._directory.exists()
    waiter = second.waiter()
    second.notify()
    assert waiter.wait(SOON_S)
    waiter.close()
    second.close()
    assert not first._directory.exists()


def test_without_free_descriptors_whoever_was_there_before_is_woken(tmp_path: Path) -> None:
    wakeup = Wakeup(str(tmp_path / "shop.db"), SystemEntropy())
    waiter = wakeup.waiter()
    wakeup.notify()
    assert waiter.wait(SOON_S)
    before, taken = resource.getrlimit(resource.RLIMIT_NOFILE), []
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            os.listdir(tmp_path)
        wakeup.notify()  # behind the commit of a send: it must not fail
    finally:
        for one in taken:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert waiter.wait(SOON_S)
    waiter.close()
    wakeup.close()


@pytest.mark.parametrize("fails", [PermissionError, NotADirectoryError, OSError])
def test_a_folder_that_cannot_be_listed_fails_no_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: type[OSError]
) -> None:
    wakeup = Wakeup(str(tmp_path / "shop.db"), SystemEntropy())

    def listdir(path: object) -> list[str]:
        raise fails(13, "no", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", listdir)
        wakeup.notify()
    wakeup.close()
