"""The server's side of a container's descriptors: frames from a socket and lines from a pipe, read by the event loop.

Both can also be read immediately (`pump`), so that output from before a process's answer or end is never reported after
it. Input is bounded: a frame by its limits, a line by its length, a turn of the loop by a number of reads.
Never here: what frames mean (`containers.py`). Invariant: nothing is read after `close`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec

from onefold.local.settings import ANSWER_BYTES_MAX

CLOSED: Final = "it closed its control channel"
LINE_BYTES_MAX: Final = 256 * 1024  # CloudWatch Logs quotas: an event has 256 KB (the older bound)
_HEAD_BYTES_MAX = 4 * 1024 * 1024
_READ_BYTES = 256 * 1024
_READS_MAX = 16  # reads of one pipe in one turn of the loop


class Channel:
    """Sends frames to the bootstrap and receives its frames.

    Args:
        end: our end of the socket pair.
        framed: called with the head and the payload of each frame.
        broken: called once with the reason when the other end is closed, or writes something that is not a frame.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        end: socket.socket,
        framed: Callable[[dict[str, Any], bytes], None],
        broken: Callable[[str], None],
    ) -> None:
        end.setblocking(False)
        self._loop = loop
        self._end = end
        self._framed = framed
        self._broken = broken
        self._received = bytearray()
        self._unsent = memoryview(b"")
        loop.add_reader(end.fileno(), self.pump)

    def send(self, head: dict[str, Any], payload: bytes = b"") -> None:
        """Write one frame; the rest follows when the socket accepts more."""
        text = msgspec.json.encode(head)
        frame = len(text).to_bytes(4, "big") + len(payload).to_bytes(4, "big") + text + payload
        self._unsent = memoryview(bytes(self._unsent) + frame if self._unsent else frame)
        self._write()

    def _write(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._end.send(self._unsent) :]
        except BlockingIOError:
            self._loop.add_writer(self._end.fileno(), self._write)
            return
        except OSError:  # reading fails too, and reports it
            self._unsent = memoryview(b"")
        self._loop.remove_writer(self._end.fileno())

    def pump(self) -> None:
        """Read what has arrived, and pass on complete frames."""
        while self._end.fileno() >= 0:
            try:
                part = self._end.recv(_READ_BYTES)
            except BlockingIOError:
                return
            except OSError:  # a reset: the process ended with unread input
                part = b""
            if not part:
                self._stop(CLOSED)
                return
            self._received += part
            self._cut()
            if len(part) < _READ_BYTES:
                return

    def _cut(self) -> None:
        received = self._received
        while len(received) >= 8 and self._end.fileno() >= 0:
            head_bytes, payload_bytes = int.from_bytes(received[:4], "big"), int.from_bytes(received[4:8], "big")
            whole = 8 + head_bytes + payload_bytes
            if head_bytes > _HEAD_BYTES_MAX or payload_bytes > ANSWER_BYTES_MAX:
                self._stop("it wrote to its control channel")
                return
            if len(received) < whole:
                return
            try:
                head = msgspec.json.decode(received[8 : 8 + head_bytes], type=dict[str, Any])
            except msgspec.DecodeError:
                self._stop("it wrote to its control channel")
                return
            payload = bytes(received[8 + head_bytes : whole])
            del received[:whole]
            self._framed(head, payload)

    def _stop(self, reason: str) -> None:
        self._received.clear()
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end.fileno())
            self._broken(reason)

    def close(self) -> None:
        """Stop reading; can be called twice."""
        if self._end.fileno() >= 0:
            self._loop.remove_reader(self._end.fileno())
            self._loop.remove_writer(self._end.fileno())
            self._end.close()


class Output:
    """Lines out of one pipe.

    Args:
        descriptor: the reading end; closed by `close`.
        on_line: called with each line as text; bytes that are not UTF-8 are shown as escapes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, on_line: Callable[[str], None]) -> None:
        os.set_blocking(descriptor, False)
        self._loop = loop
        self._fd: int | None = descriptor
        self._on_line = on_line
        self._started = b""
        loop.add_reader(descriptor, self.pump)

    def pump(self) -> None:
        """Read what has arrived, up to a bound, and report complete lines."""
        for _ in range(_READS_MAX):
            if self._fd is None:
                return
            try:
                part = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                return
            if not part:
                self.close()
                return
            self._cut(part)

    def _cut(self, part: bytes) -> None:
        *whole, rest = (self._started + part).split(b"\n")
        for line in whole:
            self._emit(line)
        while len(rest) > LINE_BYTES_MAX:
            self._emit(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        self._started = rest

    def _emit(self, line: bytes) -> None:
        for first in range(0, max(len(line), 1), LINE_BYTES_MAX):
            self._on_line(line[first : first + LINE_BYTES_MAX].decode("utf-8", "backslashreplace").removesuffix("\r"))

    def end(self) -> None:
        """Read what has arrived, and report even an incomplete line: later output belongs to something else."""
        self.pump()
        if self._started:
            started, self._started = self._started, b""
            self._emit(started)

    def close(self) -> None:
        """Stop reading, and report what is left; can be called twice."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None
            self.end()
