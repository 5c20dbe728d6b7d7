"""`onefold web` as a process, and the page mounted in FastAPI and Django: it answers there, and it is closed there."""

from __future__ import annotations

import asyncio
import json
import resource
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from onefold import errors, web
from tests.faces.conftest import SHOP
from tests.faces.office import Office
from tests.faces.processes import PATIENCE_S, Commands
from tests.web.browsing import Reader


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    shutil.copy(SHOP, tmp_path)
    (tmp_path / "down").touch()
    found = Commands(tmp_path)
    yield found
    found.end()


def asked(url: str, token: str = "") -> tuple[int, str]:
    """Status and text of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urlopen(Request(url, headers=headers), timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.slow
def test_the_command_serves_the_page_until_it_is_stopped(commands: Commands) -> None:
    commands.run("send", "shop:app", "book", '{"order_id": "o-1"}')
    commands.environment["ONEFOLD_WEB_TOKEN"] = "a-token-of-the-environment"
    process = commands.start("web", "shop:app", "--port", "0", "--json")
    assert process.stdout is not None
    said = json.loads(process.stdout.readline())
    assert said["open"].endswith("/?token=a-token-of-the-environment")
    assert asked(said["url"])[0] == 401
    status, text = asked(f"{said['url']}api/status", "a-token-of-the-environment")
    assert (status, json.loads(text)["queues"][2]["visible"]) == (200, 1)
    assert asked(f"{said['url']}healthz") == (200, '{"status": "ok"}\n')
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_page_that_a_signal_ends_says_which(commands: Commands, name: str) -> None:
    commands.run("send", "shop:app", "book", '{"order_id": "o-1"}')
    process = commands.start("web", "shop:app", "--port", "0")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Open")
    process.send_signal(getattr(signal, name))
    assert (process.wait(PATIENCE_S), process.communicate()[1].strip()) == (0, f"ended by {name}")


@pytest.mark.slow
def test_a_signal_that_its_starter_ignores_does_not_end_it(commands: Commands) -> None:
    """As `nohup`, and a shell that runs it in the background: there a Ctrl-C is meant for something else."""
    commands.run("send", "shop:app", "book", '{"order_id": "o-1"}')
    process = commands.start(
        "web", "shop:app", "--port", "0", "--json", through=["sh", "-c", 'trap "" INT HUP; exec "$@"', "-"]
    )
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGHUP)
    for _ in range(3):
        assert asked(f"{url}healthz")[0] == 200
    process.send_signal(signal.SIGTERM)
    assert (process.wait(PATIENCE_S), process.communicate()[1].strip()) == (0, "ended by SIGTERM")


SLOW_CLIENTS = 990  # ten fewer than the page takes
OTHER_FILES = 150  # that each of the two processes may have open beside


@pytest.fixture
def slow_clients() -> Iterator[int]:
    """How many connections there may be at one time, here and in the page's process, which inherits the limit."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SLOW_CLIENTS + OTHER_FILES
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, limit), most))
    yield min(SLOW_CLIENTS, max(before, limit) - OTHER_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@pytest.mark.slow
def test_a_thousand_slow_clients_are_let_go_and_others_are_answered(commands: Commands, slow_clients: int) -> None:
    commands.run("send", "shop:app", "book", '{"order_id": "o-1"}')
    process = commands.start("web", "shop:app", "--port", "0", "--json")
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    with ExitStack() as stack:
        place = ("127.0.0.1", urlsplit(url).port or 0)
        clients = [stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(slow_clients)]
        for client in clients:
            client.sendall(b"POST /held/settle HTTP/1.1\r\nHost: localhost\r\nContent-Le")
        assert asked(f"{url}healthz")[0] == 200
        assert b" 200 " not in clients[-1].recv(4_096)  # comes when its time is over: an error, or the end
        assert asked(f"{url}readyz")[0] == 200
    assert process.poll() is None


@pytest.mark.slow
def test_an_engine_that_is_not_there_is_said_to_be(commands: Commands) -> None:
    done = commands.run("web", "--url", "sqlite:///none.db")
    assert (done.returncode, "There is no file" in done.stderr) == (1, True)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    made = Office()
    made.app.url = f"sqlite:///{tmp_path / 'office.db'}"
    return made


def signed_in(scope: Any) -> str | None:
    """How an application might know its users."""
    return dict(scope["headers"]).get(b"x-session", b"").decode() or None


def test_mounted_in_fastapi(office: Office) -> None:
    from fastapi import FastAPI

    api = FastAPI()
    api.mount("/onefold", web.page(office.app, identify=signed_in, hosts=("*",)))
    check_mounted(api)
    office.app.close()


def test_mounted_beside_django(office: Office) -> None:
    from django.conf import settings
    from django.core.asgi import get_asgi_application

    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="for-this-test", USE_TZ=True)
    django = get_asgi_application()
    page = web.page(office.app, identify=signed_in, hosts=("*",), base_path="/onefold")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await (page if scope["path"].startswith("/onefold") else django)(scope, receive, send)

    check_mounted(application)
    office.app.close()


urlpatterns: list[Any] = []  # of Django


def check_mounted(application: Callable[..., Any]) -> None:
    """The page answers below its path to whom the application knows, with addresses below its path."""
    reader = Reader(application, {"host": "shop.example", "authorization": "", "x-session": "grace"})  # type: ignore[arg-type]
    got = reader.get("/onefold/")
    assert got.status == 200
    assert 'href="/onefold/dead"' in got.text
    assert 'href="/onefold/static/page.css"' in got.text
    assert reader.get("/onefold/api/status").json()["queues"][0]["queue"] == "careful"
    assert reader.get("/onefold/", x_session="").status == 401


def test_a_server_that_says_when_it_starts_is_answered(office: Office) -> None:
    page = web.page(office.app, token="a-token-of-this-test")
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[str] = []

    async def receive() -> Any:
        return events.pop(0)

    async def send(event: Any) -> None:
        sent.append(event["type"])

    async def live() -> None:
        await page({"type": "lifespan"}, receive, send)

    asyncio.run(live())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    office.app.close()


def test_an_app_without_a_way_to_know_who_asks_is_refused(office: Office) -> None:
    with pytest.raises(errors.UsageError, match="neither a token"):
        web.page(office.app)
    assert "onefold.web" in sys.modules
