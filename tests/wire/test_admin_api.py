"""Looking under `/_onefold`: nothing is received by it, and only who may look does."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

import onefold
from onefold.contracts.admin import Peeked
from onefold.engines.sqlite.admin import SqliteQueues
from onefold.testing import Endpoint, sqs

PATIENCE_S = 60


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with sqs(clock="virtual") as endpoint:
        yield endpoint


def ask(endpoint: Endpoint, method: str, path: str, body: str = "", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE_S)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, f"/_onefold{path}", body, named)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def get(endpoint: Endpoint, path: str) -> Any:
    status, headers, body = ask(endpoint, "GET", path)
    assert (status, headers["content-type"]) == (200, "application/json"), body
    return json.loads(body)


def call(endpoint: Endpoint, operation: str, **members: object) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE_S)
    headers = {"X-Amz-Target": f"AmazonSQS.{operation}", "Content-Type": "application/x-amz-json-1.0"}
    connection.request("POST", "/", json.dumps(members), headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 200, body
    return json.loads(body or b"{}")


# ------------------------------------------------------------------------------------------------------------ looking


def test_health(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    endpoint.advance("5s")
    assert get(endpoint, "/health") == {
        "status": "ok",
        "version": onefold.__version__,
        "data": None,
        "queues": 1,
        "uptime_ms": 5_000,
    }


def test_the_index_names_every_path(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    paths = get(endpoint, "")["paths"]
    assert {path.removeprefix("/_onefold/") for path in paths} == {
        "health", "queues", "messages", "in-flight", "delayed", "dedup", "waiting", "faults", "mappings", "history"
    }  # fmt: skip
    for path in paths:
        get(endpoint, f"{path.removeprefix('/_onefold')}?queue=orders")


def test_messages_are_seen_in_each_state_and_not_received(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    sent = [
        call(endpoint, "SendMessage", QueueUrl="orders", MessageBody=f"o-{place}", DelaySeconds=0 if place else 60)
        for place in range(4)
    ]
    received = call(endpoint, "ReceiveMessage", QueueUrl="orders")["Messages"][0]
    for _ in range(2):
        shown = get(endpoint, "/messages?queue=orders")
        assert [one["body"] for one in shown["messages"]] == ["o-0", "o-1", "o-2", "o-3"]
        assert [one["message_id"] for one in shown["messages"]] == [one["MessageId"] for one in sent]
        assert shown["next"] is None
        assert [one["message_id"] for one in get(endpoint, "/in-flight?queue=orders")["messages"]] == [
            received["MessageId"]
        ]
        assert [one["body"] for one in get(endpoint, "/delayed?queue=orders")["messages"]] == ["o-0"]
    assert sum(one["receive_count"] for one in shown["messages"]) == 1
    (queue,) = get(endpoint, "/queues")["queues"]
    assert (queue["name"], queue["visible"], queue["in_flight"], queue["delayed"]) == ("orders", 2, 1, 1)


def test_what_a_terminal_would_obey_is_escaped(endpoint: Endpoint) -> None:
    body = "a\u009b31mb\u202ec\u200bd\U000e0041e"
    call(endpoint, "CreateQueue", QueueName="orders")
    call(endpoint, "SendMessage", QueueUrl="orders", MessageBody=body)
    status, _, text = ask(endpoint, "GET", "/messages?queue=orders")
    assert status == 200
    assert text.rstrip("\n").isprintable()
    assert json.loads(text)["messages"][0]["body"] == body


def test_messages_come_in_pages(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    for place in range(7):
        call(endpoint, "SendMessage", QueueUrl="orders", MessageBody=str(place), DelaySeconds=60 * (place % 2))
    for state, wanted in (("messages", "0123456"), ("delayed", "135"), ("in-flight", "")):
        found, after = "", ""
        for _ in range(8):
            page = get(endpoint, f"/{state}?queue=orders&limit=2{after}")
            found += "".join(one["body"] for one in page["messages"])
            after = f"&after={page['next']}"
            if page["next"] is None:
                break
        assert (found, page["next"]) == (wanted, None)


def test_a_page_ends_when_its_bodies_are_many_bytes(endpoint: Endpoint) -> None:
    url = call(endpoint, "CreateQueue", QueueName="orders")["QueueUrl"]
    bodies = [f"{number}" + "\u202e" * 330_000 for number in range(12)]
    for number, body in enumerate(bodies):
        call(endpoint, "SendMessage", QueueUrl=url, MessageBody=body, DelaySeconds=900 * (number % 2))
    for path, expected in (("messages", bodies), ("delayed", bodies[1::2])):
        seen, pages, after = [], 0, ""
        while after is not None:
            page = get(endpoint, f"/{path}?queue=orders&limit=1000{after and f'&after={after}'}")
            assert 0 < sum(len(one["body"]) for one in page["messages"]) <= 4 * 1024 * 1024
            seen += [one["body"] for one in page["messages"]]
            pages, after = pages + 1, page["next"]
        assert seen == expected
        assert pages <= 2


def test_few_of_many_messages_are_found_in_few_looks(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    url = call(endpoint, "CreateQueue", QueueName="orders")["QueueUrl"]
    for _ in range(200):
        entries = [{"Id": str(number), "MessageBody": "x", "DelaySeconds": 900} for number in range(10)]
        call(endpoint, "SendMessageBatch", QueueUrl=url, Entries=entries)
    looks: list[int] = []
    real = SqliteQueues.peek

    def peek(self: SqliteQueues, queue: str, *, limit: int, after: str | None = None) -> list[Peeked]:
        looks.append(limit)
        return list(real(self, queue, limit=limit, after=after))

    monkeypatch.setattr(SqliteQueues, "peek", peek)
    assert get(endpoint, "/in-flight?queue=orders&limit=1") == {"messages": [], "next": None}
    assert looks == [10, 1_000, 1_000]


def test_a_picture_in_a_page_of_another_site_is_refused(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    status, _, body = ask(endpoint, "GET", "/messages?queue=orders", Sec_Fetch_Site="cross-site")
    assert (status, "Pages of other sites may not call this server." in body) == (403, True)
    assert ask(endpoint, "GET", "/messages?queue=orders", Sec_Fetch_Site="none")[0] == 200


def test_the_deduplication_memory(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders.fifo", Attributes={"FifoQueue": "true"})
    sent = call(
        endpoint,
        "SendMessage",
        QueueUrl="orders.fifo",
        MessageBody="x",
        MessageGroupId="g",
        MessageDeduplicationId="d-1",
    )
    (found,) = get(endpoint, "/dedup?queue=orders.fifo")["remembered"]
    assert (found["message_id"], found["dedup_id"]) == (sent["MessageId"], "d-1")
    endpoint.advance("6m")
    assert get(endpoint, "/dedup?queue=orders.fifo")["remembered"] == []


def test_the_history_as_json_text_and_page(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    sent = call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="secret")
    (event,) = get(endpoint, f"/history?message={sent['MessageId']}")["events"]
    assert (event["what"], event["message"]) == ("sent", sent["MessageId"])
    for accept, kind in (("text/html", "text/html; charset=utf-8"), ("text/plain", "text/plain; charset=utf-8")):
        status, headers, body = ask(endpoint, "GET", "/history", Accept=accept)
        assert (status, headers["content-type"]) == (200, kind)
        assert sent["MessageId"] in body
        assert "secret" not in body


# ------------------------------------------------------------------------------------------------------------ changing


def test_faults_are_set_shown_and_cleared(endpoint: Endpoint) -> None:
    status, _, body = ask(endpoint, "PUT", "/faults", '{"faults": ["throttle=1,times=2"], "seed": 7}')
    assert (status, json.loads(body)["seed"]) == (200, 7)
    assert get(endpoint, "/faults")["faults"] == ["throttle=1,times=2"]
    status, _, body = ask(endpoint, "PUT", "/faults", '{"faults": ["throtle=1"]}')
    assert status == 400
    assert "throttle" in json.loads(body)["error"]["todo"]
    assert ask(endpoint, "PUT", "/faults", "{")[0] == 400
    assert get(endpoint, "/faults")["faults"] == ["throttle=1,times=2"]
    assert ask(endpoint, "DELETE", "/faults")[0] == 200
    assert get(endpoint, "/faults")["faults"] == []


def test_a_reset_forgets_everything(endpoint: Endpoint) -> None:
    call(endpoint, "CreateQueue", QueueName="orders", tags={"a": "b"})
    call(endpoint, "SendMessage", QueueUrl="orders", MessageBody="x")
    assert ask(endpoint, "POST", "/reset", "{}", Content_Type="text/plain")[0] == 415
    assert ask(endpoint, "POST", "/reset", "{}", Content_Type="application/json")[0] == 200
    assert get(endpoint, "/queues")["queues"] == []
    assert get(endpoint, "/history")["events"] == []
    call(endpoint, "CreateQueue", QueueName="orders")
    assert call(endpoint, "ListQueueTags", QueueUrl="orders") in ({}, {"Tags": {}})


# -------------------------------------------------------------------------------------------------------- wrong requests


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/messages", 400),
        ("GET", "/messages?queue=none", 404),
        ("GET", "/dedup?queue=none", 404),
        ("GET", "/messages?queue=orders&limit=0", 400),
        ("GET", "/messages?queue=orders&limit=a", 400),
        ("GET", "/messages?queue=orders&after=zz", 400),
        ("GET", "/history?limit=0", 400),
        ("GET", "/history?format=xml", 400),
        ("GET", "/history?" + "a=1&" * 100, 400),
        ("DELETE", "/queues", 405),
        ("PATCH", "/faults", 405),
    ],
)
def test_wrong_requests_are_told_why(endpoint: Endpoint, method: str, path: str, status: int) -> None:
    call(endpoint, "CreateQueue", QueueName="orders")
    found, _, body = ask(endpoint, method, path)
    assert found == status, body
    assert json.loads(body)["error"]["what"]


# --------------------------------------------------------------------------------------------------------- who may look


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9324", "127.0.0.1.evil.example", "", "192.168.1.5"])
def test_other_host_names_are_refused(endpoint: Endpoint, host: str) -> None:
    assert ask(endpoint, "GET", "/queues", Host=host)[0] == 403
    assert ask(endpoint, "GET", "/health", Host=host)[0] == 200


@pytest.mark.parametrize("host", ["localhost:9324", "127.0.0.1", "127.1.2.3:1", "[::1]:9324", "sqs.localhost"])
def test_names_of_this_machine_are_not(endpoint: Endpoint, host: str) -> None:
    assert ask(endpoint, "GET", "/queues", Host=host)[0] == 200


def test_pages_of_other_sites_are_refused(endpoint: Endpoint) -> None:
    assert ask(endpoint, "GET", "/health", Origin="https://evil.example")[0] == 403
    assert ask(endpoint, "PUT", "/faults", "[]", Origin="http://localhost:3000")[0] == 200


def test_a_server_that_others_reach_asks_for_its_token() -> None:
    with sqs(host="0.0.0.0") as endpoint:
        assert ask(endpoint, "GET", "/queues")[0] == 403
    with sqs(host="0.0.0.0", admin_token="t0ken") as endpoint:
        status, headers, _ = ask(endpoint, "GET", "/queues")
        assert (status, "Basic" in headers["www-authenticate"]) == (401, True)
        assert ask(endpoint, "GET", "/queues", Authorization="Bearer wrong")[0] == 401
        assert ask(endpoint, "GET", "/queues", Authorization="Basic !!")[0] == 401
        assert ask(endpoint, "GET", "/queues", Authorization="Bearer t0ken", Host="anything")[0] == 200
        basic = b64encode(b"me:t0ken").decode()
        assert ask(endpoint, "GET", "/queues", Authorization=f"Basic {basic}")[0] == 200
        status, _, health = ask(endpoint, "GET", "/health")
        assert (status, "data" in json.loads(health)) == (200, False)
