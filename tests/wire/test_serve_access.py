"""Who may ask `onefold serve` for what: names pointed here, keys on every path, what is not said, how many at once."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

import onefold.testing
from onefold import errors
from onefold.clock import SystemClock
from onefold.entropy import SystemEntropy
from onefold.local import serving
from onefold.local.connection import Bounds
from onefold.local.containers import environment
from onefold.local.http_server import HttpServer
from onefold.local.serving import ServeSettings, Serving
from onefold.local.settings import FunctionSettings

KEYS = {"access_key": "AKIDEXAMPLE", "secret_key": "wJalrXUtnFEMI"}
JSON = "application/x-amz-json-1.0"


def ask(
    port: int, method: str, path: str, headers: dict[str, str] | None = None, body: str | bytes = ""
) -> tuple[int, dict[str, Any]]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, {"text": text.decode()}
    finally:
        connection.close()


def with_server(use: Callable[[int], None], tmp_path: Path | None = None, **settings: Any) -> None:
    async def body() -> None:
        one = Serving(ServeSettings(port=0, data=None, **settings), clock=SystemClock(), entropy=SystemEntropy())
        await one.start()
        try:
            await asyncio.get_running_loop().run_in_executor(None, use, one.port)
        finally:
            await one.stop()

    with asyncio.Runner(loop_factory=serving.new_loop) as runner:
        runner.run(body())


def signed(port: int, method: str, path: str, body: str = "", **headers: str) -> dict[str, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = AWSRequest(method, f"http://127.0.0.1:{port}{path}", data=body, headers=named)
    SigV4Auth(Credentials(KEYS["access_key"], KEYS["secret_key"]), "sqs", "us-east-1").add_auth(request)
    return dict(request.headers.items())


# ------------------------------------------------------------------------------------------------ names pointed at us


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "x"}, {"Authorization": "AWS4-HMAC-SHA256 Credential=a/b"}])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.1.5", ""])
def test_a_name_that_was_pointed_here_gets_nothing(method: str, headers: dict[str, str], host: str) -> None:
    """A page under such a name may set any header, and its GET has no Origin."""
    with onefold.testing.sqs() as endpoint:
        path, port = "/000000000000/q?Action=ReceiveMessage", endpoint.port
        assert ask(port, method, path, {**headers, "Host": host})[0] == 403
        assert ask(port, method, "/2015-03-31/event-source-mappings", {**headers, "Host": host})[0] == 403


@pytest.mark.parametrize("host", ["localhost:9324", "127.0.0.1", "127.1.2.3:1", "[::1]:9324", "sqs.localhost"])
def test_names_of_this_machine_are_answered(host: str) -> None:
    with onefold.testing.sqs() as endpoint:
        assert ask(endpoint.port, "GET", "/?Action=ListQueues", {"Host": host})[0] == 200


def test_a_server_for_others_is_asked_under_any_name_but_not_by_get_of_a_page() -> None:
    with onefold.testing.sqs(host="0.0.0.0") as endpoint:
        form = {"Host": "sqs:9324", "Content-Type": "application/x-www-form-urlencoded"}
        assert ask(endpoint.port, "POST", "/", form, "Action=ListQueues")[0] == 200
        headers = {"Host": "sqs:9324", "Authorization": "x"}
        assert ask(endpoint.port, "GET", "/?Action=ListQueues", headers)[0] == 403


# ------------------------------------------------------------------------------------------------------------ with keys


def test_keys_protect_every_path_administration_included() -> None:
    ours = [
        ("GET", "/_onefold/queues"), ("GET", "/_onefold/history"), ("GET", "/_onefold"), ("GET", "/_onefold/faults"),
        ("PUT", "/_onefold/faults"), ("DELETE", "/_onefold/faults"), ("POST", "/_onefold/reset"),
        ("POST", "/_onefold/health"),
    ]  # fmt: skip

    def use(port: int) -> None:
        for method, path in ours:
            typed = {"Content-Type": "application/json"}
            assert ask(port, method, path, typed, "[]")[0] == 401, (method, path)
            assert ask(port, method, path, {**typed, "Authorization": "Bearer wrong"}, "[]")[0] == 401
            wrong = b64encode(f"{KEYS['access_key']}:wrong".encode()).decode()
            assert ask(port, method, path, {**typed, "Authorization": f"Basic {wrong}"}, "[]")[0] == 401
        for path in ("/", "/?Action=ListQueues", "/2015-03-31/event-source-mappings", "/x"):
            assert ask(port, "GET", path)[0] == 403
        assert ask(port, "GET", "/_onefold/queues", signed(port, "GET", "/_onefold/queues")) == (200, {"queues": []})
        basic = b64encode(f"{KEYS['access_key']}:{KEYS['secret_key']}".encode()).decode()
        assert ask(port, "GET", "/_onefold/queues", {"Authorization": f"Basic {basic}"})[0] == 200
        assert ask(port, "GET", "/_onefold/health") == (200, {"status": "ok"})

    with_server(use, **KEYS)


def test_the_operation_of_a_signed_request_cannot_be_changed() -> None:
    def use(port: int) -> None:
        headers = signed(port, "POST", "/", "{}", Content_Type=JSON)  # as if it had named none
        for target in ("AmazonSQS.ListQueues", "AmazonSQS.PurgeQueue"):
            status, answer = ask(port, "POST", "/", {**headers, "X-Amz-Target": target}, "{}")
            assert (status, answer["__type"]) == (403, "com.amazon.coral.service#InvalidSignatureException")
        whole = signed(port, "POST", "/", "{}", Content_Type=JSON, X_Amz_Target="AmazonSQS.ListQueues")
        assert ask(port, "POST", "/", whole, "{}")[0] == 200

    with_server(use, **KEYS)


def test_health_tells_a_path_to_nobody_who_may_not_ask(tmp_path: Path) -> None:
    async def body() -> None:
        settings = ServeSettings(port=0, data=str(tmp_path / "q.db"))
        one = Serving(settings, clock=SystemClock(), entropy=SystemEntropy())
        await one.start()
        try:
            call = asyncio.get_running_loop().run_in_executor
            foreign = {"Host": "evil.example"}
            assert await call(None, ask, one.port, "GET", "/_onefold/health", foreign) == (200, {"status": "ok"})
            _, mine = await call(None, ask, one.port, "GET", "/_onefold/health")
            assert mine["data"] == str(tmp_path / "q.db")
        finally:
            await one.stop()

    with asyncio.Runner(loop_factory=serving.new_loop) as runner:
        runner.run(body())


# -------------------------------------------------------------------------------------------------- what functions get


def test_a_function_does_not_inherit_the_servers_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONEFOLD_ADMIN_TOKEN", "ONEFOLD_SECRET_KEY", "ONEFOLD_ACCESS_KEY"):
        monkeypatch.setenv(name, "s3cr3t")
    monkeypatch.setenv("TABLE", "t")
    found = environment(FunctionSettings(name="f", handler="a.b", code_dir="/"), "stream")
    assert "s3cr3t" not in found.values()
    assert found["TABLE"] == "t"
    assert found["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("name", ["../outside", "/outside", "a/b", "..", "a.b"])
def test_a_templates_logical_id_writes_nothing_outside_its_folder(tmp_path: Path, name: str) -> None:
    function = {
        "Type": "AWS::Lambda::Function",
        "Properties": {
            "Runtime": "python3.12", "Handler": "index.handler", "Role": "arn:aws:iam::000000000000:role/r",
            "Code": {"ZipFile": "def handler(event, context):\n    return 1\n"},
        },
    }  # fmt: skip
    template = tmp_path / "template.json"
    template.write_text(json.dumps({"Resources": {name: function}}))
    before = sorted(tmp_path.rglob("*"))

    async def body() -> None:
        settings = ServeSettings(port=0, data=None, template=str(template))
        one = Serving(settings, clock=SystemClock(), entropy=SystemEntropy())
        with pytest.raises(errors.UsageError, match="logical id"):
            await one.start()

    with asyncio.Runner(loop_factory=serving.new_loop) as runner:
        runner.run(body())
    assert sorted(tmp_path.rglob("*")) == before


# ------------------------------------------------------------------------------------------------------- how many at once


class _Answers:
    async def handle(self, request: Any) -> Any:
        raise AssertionError(request)

    def refused(self, status: int, why: str) -> Any:
        raise AssertionError((status, why))

    def failed(self, request: Any, error: Exception) -> Any:
        raise AssertionError((request, error))


def test_one_client_more_than_the_bound_is_hung_up_on() -> None:
    async def body() -> None:
        bounds = Bounds(connections=3)
        server = HttpServer(_Answers(), host="127.0.0.1", port=0, clock=SystemClock(), bounds=bounds)
        await server.start()
        loop = asyncio.get_running_loop()
        held: list[socket.socket] = []
        try:
            for _ in range(3):
                one = socket.create_connection(("127.0.0.1", server.port))
                one.setblocking(False)
                held.append(one)
            more = socket.create_connection(("127.0.0.1", server.port))
            more.setblocking(False)
            held.append(more)
            with suppress(ConnectionResetError):
                assert await loop.sock_recv(more, 1) == b""
            assert server.connections == 3
        finally:
            for one in held:
                one.close()
            await server.stop(grace_s=5)

    asyncio.run(body())
