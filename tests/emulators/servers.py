"""Servers that stand for AWS's services and stores in tests: real processes on free ports of loopback, ended with the test.

`ministack` and `moto` are emulators of AWS, each wrong in other places; a test names those on which what it asks is true.
They are installed into `.venv-tools` by `make setup`. A server that is missing or does not answer fails the test with what
it printed; nothing is skipped.
Never here: what a test expects of them. Invariant: no server outlives its `with`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / ".venv-tools" / "bin"
START_S = 60.0
_LOOK_S = 0.02
_FIRST_PORT, _PORTS = 20_000, 12_000

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


class ServerFailedError(AssertionError):
    """A server is not installed, ended, or does not answer."""


_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port of loopback that nobody listens on now, and another one at each call.

    The system gives none of these to a connection or a server by itself (it begins at 32768, unless it was configured
    otherwise), so that nobody takes the port before its server has it, or while that is started again.
    """
    for number in itertools.islice(_ports, _PORTS):
        port = _FIRST_PORT + number % _PORTS
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ServerFailedError("Every port of loopback is taken.")


def answers(url: str) -> Callable[[], bool]:
    """A question for `serving`: whether an HTTP server answers there, whatever it says."""

    def ask() -> bool:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return True
        except OSError:
            return False
        return True

    return ask


@contextmanager
def serving(
    command: Sequence[str | Path],
    ready: Callable[[], bool],
    *,
    variables: Mapping[str, str] | None = None,
    user: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server in a process group of its own until the `with` is left.

    Args:
        command: what to run. ready: asked until it is True, for at most START_S seconds.
        variables: of its environment, beside this process's own.
        user: numeric id of the user it runs as; this one unless given.

    Raises:
        ServerFailedError: no such program, it ended, or it was not ready in time; with the end of what it printed.
    """
    if not Path(command[0]).exists():
        raise ServerFailedError(f"{command[0]} is not there. Run: make setup")
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, start_new_session=True, user=user,
            env={**os.environ, **(variables or {})},
        )  # fmt: skip
        try:
            _until(ready, process, said.fileno())
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(START_S)


def _until(ready: Callable[[], bool], process: subprocess.Popen[bytes], said: int) -> None:
    pause = threading.Event()
    for _ in range(int(START_S / _LOOK_S)):
        if ready():
            return
        if process.poll() is not None:
            break
        pause.wait(_LOOK_S)
    text = os.pread(said, 1 << 20, 0).decode(errors="replace")
    raise ServerFailedError(f"{process.args} is not ready (exit code {process.poll()}):\n{text[-3000:]}")


@contextmanager
def ministack() -> Iterator[str]:
    """A ministack server; its endpoint URL. The same for every service."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="ministack-") as folder:
        variables = {**CREDENTIALS, "GATEWAY_PORT": str(port), "MINISTACK_ACCOUNT_ID": "000000000000", "TMPDIR": folder}
        with serving([TOOLS / "ministack"], answers(f"{url}/_ministack/health"), variables=variables):
            yield url


@contextmanager
def moto() -> Iterator[str]:
    """A moto server whose DynamoDB answers one request at a time (`moto_in_turn.py`); its endpoint URL, for all services."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [TOOLS / "python", Path(__file__).with_name("moto_in_turn.py"), str(port)]
    with serving(command, answers(f"{url}/moto-api/"), variables=CREDENTIALS):
        yield url


@contextmanager
def redis(**settings: str) -> Iterator[str]:
    """A Redis server with its files in a folder of its own; its URL. Settings as for `redis_server`."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="redis-") as folder, redis_server(Path(folder), port, **settings):
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def redis_server(folder: Path, port: int, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Redis server on this port, which reads and keeps its files in this folder.

    Args:
        settings: of redis.conf, `_` for `-`. Unless given: every write synced, no snapshots.
    """
    settings = {"appendonly": "yes", "appendfsync": "always", "save": "", **settings}
    options = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", *value.split(" "))]
    program = shutil.which("redis-server") or shutil.which("valkey-server") or "redis-server"
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, *options]

    def ready() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as asking:
                asking.sendall(b"PING\r\n")
                return asking.recv(100).startswith((b"+PONG", b"-NOAUTH", b"-MASTERDOWN"))
        except OSError:
            return False

    with serving(command, ready) as process:
        yield process


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


@contextmanager
def postgres(**settings: str) -> Iterator[str]:
    """A PostgreSQL server with an empty database; its URL. Settings as for `postgres_server`."""
    port = free_port()
    with postgres_folder() as folder, postgres_server(folder, port, **settings):
        yield postgres_url(port)


def postgres_url(port: int) -> str:
    """The URL of a server of ours, as its superuser."""
    return f"postgresql://postgres@127.0.0.1:{port}/postgres"


@contextmanager
def postgres_folder() -> Iterator[Path]:
    """A data directory as `initdb` makes it, removed at the end. It is made once per process, then copied."""
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        _run_as_postgres("cp", "-a", _postgres_template(), _for_postgres(folder) / "data")
        yield Path(folder) / "data"


@contextmanager
def postgres_server(folder: Path, port: int, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A PostgreSQL server on this port with this data directory; its first process. Ended with what is connected to it.

    Args:
        settings: of postgresql.conf. Unless given: its defaults, so every commit is synced.
    """
    options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "logging_collector": "off", **settings}
    command = [_postgres_program("postgres"), "-D", folder, "-p", str(port)]
    command += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    asking = [_postgres_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]

    def ready() -> bool:
        return subprocess.run(asking, check=False).returncode == 0

    with serving(command, ready, user=_postgres_user()) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)  # ends sessions; SIGTERM would wait for them
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


@functools.cache
def _postgres_template() -> Path:
    folder = tempfile.mkdtemp(prefix="postgres-template-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = _for_postgres(folder) / "data"
    options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    _run_as_postgres(_postgres_program("initdb"), "-D", data, *options)
    return data


def _postgres_program(name: str) -> Path:
    """Debian keeps the server's programs out of the PATH, by version; the newest."""
    found = shutil.which(name) if name == "postgres" else None
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    return Path(found).with_name(name) if found else (folders[-1] if folders else Path("/usr/lib/postgresql")) / name


def _postgres_user() -> int | None:
    """PostgreSQL refuses to run as root: then the package's own user, or nobody."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_uid
    return None


def _for_postgres(folder: str) -> Path:
    user = _postgres_user()
    if user is not None:
        os.chown(folder, user, -1)
    return Path(folder)


def _run_as_postgres(*command: str | Path) -> None:
    if not (shutil.which(str(command[0])) or Path(command[0]).exists()):
        raise ServerFailedError(f"{command[0]} is not there. Run: make setup")
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        user=_postgres_user(),
        check=False,
    )
    if done.returncode != 0:
        raise ServerFailedError(
            f"{command} ended with {done.returncode}:\n{done.stderr.decode(errors='replace')[-3000:]}"
        )


@contextmanager
def redis_cluster() -> Iterator[list[str]]:
    """Two Redis servers that share one cluster's data; their URLs."""
    ports, buses = [free_port(), free_port()], [free_port(), free_port()]
    with contextlib.ExitStack() as running:
        for port, bus in zip(ports, buses, strict=True):
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="redis-")))
            settings = {"cluster_enabled": "yes", "cluster_port": str(bus), "cluster_node_timeout": "2000"}
            running.enter_context(redis_server(folder, port, **settings))
        _redis_says(ports[0], "CLUSTER ADDSLOTSRANGE 0 8191", "+OK")
        _redis_says(ports[1], "CLUSTER ADDSLOTSRANGE 8192 16383", "+OK")
        _redis_says(ports[0], f"CLUSTER MEET 127.0.0.1 {ports[1]} {buses[1]}", "+OK")
        for port in ports:
            _redis_says(port, "CLUSTER INFO", "cluster_state:ok")
        yield [f"redis://127.0.0.1:{port}" for port in ports]


def _redis_says(port: int, command: str, expected: str) -> None:
    """Repeat a command until the answer has this in it."""
    pause, said = threading.Event(), b""
    for _ in range(int(START_S / _LOOK_S)):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as asking:
            asking.sendall(f"{command}\r\n".encode())
            said = asking.recv(4096)
        if expected.encode() in said:
            return
        pause.wait(_LOOK_S)
    raise ServerFailedError(f"{command} on port {port}: {said!r}")
