"""The log's way out: what a reader that is slow, stands still or leaves does to whoever writes."""

from __future__ import annotations

import os
import threading

import pytest

from onefold.local import outcomes as log_output
from onefold.local.outcomes import LogOutput

LINE = "x" * 1_000
FULL = 65_536  # what a pipe holds on Linux


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()


def _rest(reading: int) -> bytes:
    os.set_blocking(reading, False)
    taken = b""
    while True:
        try:
            part = os.read(reading, 1 << 20)
        except BlockingIOError:
            return taken
        if not part:
            return taken
        taken += part


def test_lines_come_as_they_were_said(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1])
    for text in ("one", "", "größer", "\ud800"):
        output.say(text)
    assert _rest(pipe[0]) == "one\n\ngrößer\n\\ud800\n".encode()


def test_a_reader_that_stands_still_holds_up_nobody_and_learns_what_it_missed(pipe: tuple[int, int]) -> None:
    output = LogOutput(pipe[1], patience_ms=1)
    for _ in range(200):
        output.say(LINE)  # returns, though nobody reads
    stood = _rest(pipe[0])
    assert FULL // 2 < len(stood) <= FULL
    output.say("after")
    text = _rest(pipe[0]).decode()
    whole = stood.count(b"\n")
    assert text == f"\n... {200 - whole} lines of the log were dropped: nobody read them\nafter\n"


def test_a_reader_that_is_slow_misses_nothing(pipe: tuple[int, int]) -> None:
    taken: list[bytes] = []

    def read() -> None:
        while part := os.read(pipe[0], 5_000):
            taken.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    output = LogOutput(pipe[1], patience_ms=10_000)
    for number in range(50):
        output.say(f"{number} {LINE * 20}")  # a line is longer than what is written at a time
    os.close(pipe[1])
    reader.join(60)
    lines = b"".join(taken).decode().splitlines()
    assert [line.split()[0] for line in lines] == [str(number) for number in range(50)]
    assert {len(line.split()[1]) for line in lines} == {20_000}


def test_a_reader_that_has_left_ends_nothing(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    output = LogOutput(pipe[1])
    output.say("one")
    output.say("two")
    os.close(pipe[1])


def test_a_descriptor_that_does_not_block_drops_too(pipe: tuple[int, int]) -> None:
    os.set_blocking(pipe[1], False)
    output = LogOutput(pipe[1], patience_ms=1)
    for _ in range(200):
        output.say(LINE)
    _rest(pipe[0])
    output.say("after")
    assert _rest(pipe[0]).endswith(b"nobody read them\nafter\n")


def test_without_a_descriptor_the_other_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("sys.stderr", None)
    log_output.to_standard_error(said.append)("one")
    assert said == ["one"]
    assert not log_output.is_terminal()
