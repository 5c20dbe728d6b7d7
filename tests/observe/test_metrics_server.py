"""The server of a worker's metrics under clients that are many, slow, greedy, or gone."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import onefold
from onefold import errors
from onefold.cli.measuring import Measures
from onefold.clock import Never, SystemClock
from onefold.observe import prometheus
from onefold.observe.metrics import METRICS, Sample
from onefold.observe.prometheus import CLIENTS_MAX, MetricsServer
from onefold.observe.readings import Reader
from onefold.runner.worker_numbers import WorkerSnapshot
from onefold.runtime.events import Event

GET = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n"


class Scraped:
    """A server, and what its answers wait for."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.server = MetricsServer(("127.0.0.1", 0), self.samples, lambda: None)
        self.port = int(self.server.url.rpartition(":")[2])

    def samples(self) -> list[Sample]:
        self.asked.set()
        assert self.go.wait(60)
        return [Sample(METRICS["onefold.worker.progress.age"], (), number) for number in range(50_000)]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    made = Scraped()
    yield made
    made.go.set()
    made.server.close()


def status_of(connection: socket.socket) -> bytes:
    """The status of an answer that is read to its end; nothing when the server says nothing."""
    found = b""
    while some := connection.recv(65_536):
        found += some
    return found[:12]


def until(condition: Callable[[], bool]) -> None:
    clock, pause = SystemClock(), Never()
    ends_ms = clock.monotonic_ms() + 60_000
    while not condition():
        assert clock.monotonic_ms() < ends_ms, "not within a minute"
        clock.wait(pause, 10)


def nobody_is_served() -> bool:
    return not any("process_request_thread" in one.name for one in threading.enumerate())


def test_clients_beyond_the_bound_are_refused_at_once_and_served_when_others_went(
    scraped: Scraped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "_REQUEST_MS", 600_000)
    with ExitStack() as stack:
        for _ in range(CLIENTS_MAX):
            stack.enter_context(scraped.connect())  # and says nothing
        with scraped.connect() as refused:
            assert status_of(refused) == b"HTTP/1.0 503"
    until(nobody_is_served)
    with scraped.connect() as served:
        served.sendall(GET)
        assert status_of(served) == b"HTTP/1.0 200"


@pytest.mark.slow
def test_a_request_that_drips_is_left_when_its_time_is_over(scraped: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "_REQUEST_MS", 400)
    with scraped.connect() as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\nX-Long: ")
        slow.settimeout(0.05)
        for _ in range(400):
            try:
                slow.sendall(b"x")
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("served for as long as it liked")


@pytest.mark.parametrize("many", [b"X-Long: " + b"x" * 20_000, b"X-A: b\r\n" * 5_000])
def test_headers_beyond_the_bound_are_refused(scraped: Scraped, many: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with scraped.connect() as greedy:
        greedy.sendall(b"GET /metrics HTTP/1.0\r\n" + many)
        with suppress(ConnectionResetError):  # what was not read may be in the way of the answer
            assert status_of(greedy) == b"HTTP/1.0 431"
    assert not scraped.asked.is_set()
    until(nobody_is_served)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("when", ["before", "while asked", "in the middle"])
def test_a_client_that_goes_away_is_not_written_about(
    scraped: Scraped, when: str, capfd: pytest.CaptureFixture[str]
) -> None:
    scraped.go.clear()
    with scraped.connect() as gone:
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        gone.sendall(GET[:20] if when == "before" else GET)
        if when == "in the middle":
            scraped.go.set()
            assert gone.recv(1) == b"H"
        elif when == "while asked":
            assert scraped.asked.wait(60)
    scraped.go.set()
    until(nobody_is_served)
    assert capfd.readouterr().err == ""
    with scraped.connect() as served:
        served.sendall(GET)
        assert status_of(served) == b"HTTP/1.0 200"


# -- a worker whose engine fails -------------------------------------------------------------------------------------

NUMBERS = WorkerSnapshot(
    received=0, started=0, completed=0, duplicates=0, retried=0, dead_lettered=0, held=0, given_back=0, lost=0, in_hand=0,
    running=0, per_second=0.0, engine_failing_ms=120_000, engine_failure="transient",
)  # fmt: skip


class Failing:
    """A worker, as far as it is measured."""

    def snapshot(self) -> WorkerSnapshot:
        return NUMBERS


def test_while_the_engine_fails_its_gauges_are_missing_and_everything_else_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole answer was a 503: of a worker that cannot work, nothing was known at all."""
    app = onefold.App("shop", url=f"sqlite:///{tmp_path / 'shop.db'}")
    app.job(app.queue("orders"), key="{id}", name="ship")(lambda order: None)

    def refuse(_: Reader) -> None:
        raise errors.TransientError("The credentials are over.")

    monkeypatch.setattr(Reader, "read", refuse)
    measures = Measures(app, ["orders"], address=":0", emf=False)
    measures.sinks[0].emit(Event(at_ms=0, name="engine-unreachable"))
    with measures.of(Failing()):  # type: ignore[arg-type]
        (url,) = [word for word in capsys.readouterr().err.split() if word.startswith("http://")]
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url.replace("/metrics", "/readyz"), timeout=60)
    app.close()
    assert "onefold_engine_failing_age_seconds 120.0" in text
    assert "onefold_worker_progress_age_seconds 0.0" in text
    assert "onefold_queue_messages" not in text
    with caught.value as answer:
        assert (answer.code, answer.read()) == (
            503, b"the engine has not answered for 2m (transient); the log says more\n",
        )  # fmt: skip
