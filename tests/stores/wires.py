"""What can go wrong between a client and a Redis server: an answer is lost, or every command gets the same answer.

Both are small TCP servers on loopback, in threads of the test. Does not contain: what a client should do about it.
Invariant: when an answer is lost, the server has carried out the request before the connection ends.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class LossyWire:
    """A wire to a server that can swallow answers.

    Attributes:
        losing: how many of the next answers to scripts are swallowed, each with its connection.
        port: where to connect instead of to the server.
    """

    def __init__(self, port: int) -> None:
        self.losing = 0
        wire = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with socket.create_connection(("127.0.0.1", port)) as server:
                    while request := self.request.recv(1 << 20):
                        server.sendall(request)
                        answer = server.recv(1 << 20)
                        if wire.losing and b"EVALSHA" in request:
                            wire.losing -= 1
                            return
                        self.request.sendall(answer)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def lossy(port: int) -> Iterator[LossyWire]:
    """A wire to the server on this port."""
    wire = LossyWire(port)
    try:
        yield wire
    finally:
        wire.close()


@contextmanager
def answering(line: str) -> Iterator[int]:
    """The port of a server that answers every command with this line."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while header := self.rfile.readline():
                    for _ in range(int(header[1:])):
                        self.rfile.read(int(self.rfile.readline()[1:]) + 2)
                    self.wfile.write(f"{line}\r\n".encode())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()
