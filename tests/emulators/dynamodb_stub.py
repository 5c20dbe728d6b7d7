"""A small DynamoDB server, for what no emulator has: old items in the errors of batches, as AWS's API reference has them.

It knows the operations that records need (ours and those of Powertools' idempotency): PutItem, GetItem, UpdateItem,
DeleteItem, BatchGetItem, BatchWriteItem, BatchExecuteStatement with INSERT and UPDATE, Scan that counts; and CreateTable,
DescribeTable, time to live. Their conditions are really evaluated. Anything else is answered with UnknownOperationException,
and an expression that it does not know with ValidationException: never with a guess. `latency_ms` is added to each call;
`GET /calls` tells how many of each there were. As a process of its own:
python -m tests.emulators.dynamodb_stub PORT [LATENCY_MS]

Sources: API reference (BatchStatementError.Item, ReturnValuesOnConditionCheckFailure), developer guide ("PartiQL insert",
"PartiQL update", "Condition expressions"). Invariant: one call at a time changes items; each condition and its write are
one step.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.emulators import servers
from tests.emulators.dynamodb_expressions import Expression, Item, RefusedError, invalid

Interfere = Callable[[str, dict[str, Any], Callable[[], tuple[int, bytes]]], tuple[int, bytes] | None]
"""Called with operation, request and the way to carry it out; answers status and body, or None to drop the connection."""


class Store:
    """Tables and their items.

    Args:
        old_items: whether errors in batches hold the item that stood there, when asked for.
    """

    def __init__(self, *, old_items: bool = True) -> None:
        self.old_items = old_items
        self.tables: dict[str, dict[str, Any]] = {}
        self._items: dict[str, dict[str, Item]] = {}

    def operate(self, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        known: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "CreateTable": self.create_table,
            "DescribeTable": lambda one: {"Table": self._table(one["TableName"])},
            "UpdateTimeToLive": self.update_ttl,
            "DescribeTimeToLive": lambda one: {"TimeToLiveDescription": self._table(one["TableName"])["Ttl"]},
            "PutItem": self.put_item,
            "GetItem": self.get_item,
            "Scan": self.scan,
            "UpdateItem": self.update_item,
            "DeleteItem": self.delete_item,
            "BatchGetItem": self.batch_get_item,
            "BatchWriteItem": self.batch_write_item,
            "BatchExecuteStatement": self.batch_execute_statement,
        }
        if operation not in known:
            raise RefusedError("UnknownOperationException", f"the stub has no {operation}")
        return known[operation](request)

    # -- tables --------------------------------------------------------------------------------------------------------

    def create_table(self, request: dict[str, Any]) -> dict[str, Any]:
        name = request["TableName"]
        if name in self.tables:
            raise RefusedError("ResourceInUseException", f"Table already exists: {name}")
        self.tables[name] = {**request, "TableStatus": "ACTIVE", "Ttl": {"TimeToLiveStatus": "DISABLED"}}
        self._items[name] = {}
        return {"TableDescription": self.tables[name]}

    def update_ttl(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = request["TimeToLiveSpecification"]
        status = "ENABLED" if asked["Enabled"] else "DISABLED"
        self._table(request["TableName"])["Ttl"] = {"TimeToLiveStatus": status, "AttributeName": asked["AttributeName"]}
        return {"TimeToLiveSpecification": asked}

    def _table(self, name: str) -> dict[str, Any]:
        if name not in self.tables:
            raise RefusedError("ResourceNotFoundException", f"Requested resource not found: Table: {name} not found")
        return self.tables[name]

    def _place(self, name: str, attributes: Mapping[str, Any]) -> str:
        keys = [one["AttributeName"] for one in self._table(name)["KeySchema"]]
        if any(key not in attributes for key in keys):
            raise invalid("The provided key element does not match the schema")
        return json.dumps([attributes[key] for key in keys])

    # -- single items --------------------------------------------------------------------------------------------------

    def put_item(self, request: dict[str, Any]) -> dict[str, Any]:
        name, item = request["TableName"], request["Item"]
        self._conditional(request, self._place(name, item), lambda _: item)
        return {}

    def update_item(self, request: dict[str, Any]) -> dict[str, Any]:
        key = request["Key"]

        def update(before: Item | None) -> Item:
            expression = self._expression(request, "UpdateExpression", before)
            after = {**key, **expression.changes()}
            expression.end()
            return after

        after = self._conditional(request, self._place(request["TableName"], key), update)
        return {"Attributes": after} if request.get("ReturnValues") == "ALL_NEW" else {}

    def delete_item(self, request: dict[str, Any]) -> dict[str, Any]:
        self._conditional(request, self._place(request["TableName"], request["Key"]), lambda _: None)
        return {}

    def get_item(self, request: dict[str, Any]) -> dict[str, Any]:
        found = self._items[request["TableName"]].get(self._place(request["TableName"], request["Key"]))
        return {} if found is None else {"Item": found}

    def scan(self, request: dict[str, Any]) -> dict[str, Any]:
        if request.get("Select") != "COUNT":
            raise invalid("the stub's Scan only counts")
        self._table(request["TableName"])
        return {"Count": min(len(self._items[request["TableName"]]), request["Limit"])}

    def _expression(self, request: dict[str, Any], field: str, item: Item | None) -> Expression:
        return Expression(
            request[field], item,
            names=request.get("ExpressionAttributeNames"), values=request.get("ExpressionAttributeValues"),
        )  # fmt: skip

    def _conditional(
        self, request: dict[str, Any], place: str, change: Callable[[Item | None], Item | None]
    ) -> Item | None:
        items = self._items[request["TableName"]]
        before = items.get(place)
        if "ConditionExpression" in request:
            condition = self._expression(request, "ConditionExpression", before)
            holds = condition.condition()
            condition.end()
            if not holds:
                told = before if request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD" else None
                raise RefusedError("ConditionalCheckFailedException", "The conditional request failed", told)
        after = change(before)
        if after is None:
            items.pop(place, None)
        else:
            items[place] = after
        return after

    # -- batches -------------------------------------------------------------------------------------------------------

    def batch_get_item(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = request["RequestItems"]
        if sum(len(one["Keys"]) for one in asked.values()) > 100:
            raise invalid("Too many items requested for the BatchGetItem call")
        found = {
            name: [item for key in one["Keys"] if (item := self._items[name].get(self._place(name, key))) is not None]
            for name, one in asked.items()
            if self._table(name)
        }
        return {"Responses": found, "UnprocessedKeys": {}}

    def batch_write_item(self, request: dict[str, Any]) -> dict[str, Any]:
        asked = [(name, one) for name, ones in request["RequestItems"].items() for one in ones]
        if not 1 <= len(asked) <= 25:
            raise invalid("Too many items requested for the BatchWriteItem call")
        for name, one in asked:
            verb, single = ("put_item", "PutRequest") if "PutRequest" in one else ("delete_item", "DeleteRequest")
            getattr(self, verb)({"TableName": name, **one[single]})
        return {"UnprocessedItems": {}}

    def batch_execute_statement(self, request: dict[str, Any]) -> dict[str, Any]:
        statements = request["Statements"]
        if not 1 <= len(statements) <= 25:
            raise invalid("Member must have length less than or equal to 25")
        return {"Responses": [self._statement(one) for one in statements]}

    def _statement(self, one: dict[str, Any]) -> dict[str, Any]:
        statement = Expression(one["Statement"], parameters=one.get("Parameters", ()))
        verb = statement.take("INSERT", "UPDATE").upper()
        if verb == "INSERT":
            statement.take("INTO")
        name = statement.path()
        try:
            self._table(name)
            (self._insert if verb == "INSERT" else self._update)(name, statement, one)
        except RefusedError as error:
            code = error.code.removesuffix("Exception")
            code = {"Validation": "ValidationError", "ResourceNotFound": "ResourceNotFound"}.get(code, code)
            told: dict[str, Any] = {"Code": code, "Message": str(error)}
            if error.item and self.old_items and one.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD":
                told["Item"] = error.item
            return {"Error": told, "TableName": name}
        return {"TableName": name}

    def _insert(self, name: str, statement: Expression, _: dict[str, Any]) -> None:
        statement.take("VALUE")
        statement.take("{")
        item: Item = {}
        while not statement.took("}"):
            attribute = statement.path()
            statement.take(":")
            item[attribute] = statement.operand() or {}
            statement.took(",")
        statement.end()
        place = self._place(name, item)
        if (before := self._items[name].get(place)) is not None:
            raise RefusedError("DuplicateItemException", "Duplicate primary key exists in table", before)
        self._items[name][place] = item

    def _update(self, name: str, statement: Expression, one: dict[str, Any]) -> None:
        where = statement.equalities()
        place = self._place(name, where)
        before = self._items[name].get(place)
        statement.item = before or {}
        # A statement whose item is not there has nothing to compute from; its condition on the key fails.
        if before is None:
            raise RefusedError("ConditionalCheckFailedException", "The conditional request failed")
        after = statement.changes()
        statement.take("WHERE")
        holds = statement.condition()
        statement.end()
        if not holds:
            raise RefusedError("ConditionalCheckFailedException", "The conditional request failed", before)
        self._items[name][place] = after


# -- the server --------------------------------------------------------------------------------------------------------


class Stub:
    """A server in a thread of its own. Use `serving`.

    Attributes:
        url: its endpoint.
        calls: how many calls of each operation there were; `clear` it at will.
        interfere: see `Interfere`; None to answer plainly.
        store: the tables.
    """

    def __init__(self, *, latency_ms: float = 0, old_items: bool = True) -> None:
        self.store = Store(old_items=old_items)
        self.calls: Counter[str] = Counter()
        self.latency_ms = latency_ms
        self.interfere: Interfere | None = None
        self.url = ""
        self.loop = asyncio.new_event_loop()
        self.connections: set[asyncio.Transport] = set()

    def answer(self, operation: str, body: bytes) -> tuple[int, bytes] | None:
        """Status and body for one call; None drops the connection."""
        self.calls[operation] += 1
        request: dict[str, Any] = json.loads(body or b"{}")

        def carry_out() -> tuple[int, bytes]:
            return self._carried_out(operation, request)

        return carry_out() if self.interfere is None else self.interfere(operation, request, carry_out)

    def _carried_out(self, operation: str, request: dict[str, Any]) -> tuple[int, bytes]:
        try:
            return 200, json.dumps(self.store.operate(operation, request)).encode()
        except RefusedError as error:
            return 400, error_body(error.code, str(error), error.item)

    async def listen(self, port: int) -> asyncio.Server:
        """Serve on this port of loopback; 0 takes a free one."""
        server = await self.loop.create_server(lambda: _Connection(self), "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server


def error_body(code: str, message: str, item: Item | None = None) -> bytes:
    """An error as DynamoDB words it."""
    told = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": message}
    return json.dumps({**told, "Item": item} if item else told).encode()


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with kept connections; one request at a time, as boto3 sends them."""

    def __init__(self, stub: Stub) -> None:
        self._stub = stub
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._stub.connections.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        self._stub.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(fields.get("content-length", "0"))
        if len(body) < length:
            return
        self._data = body[length:]
        if lines[0].startswith("GET /calls"):
            self._reply((200, json.dumps(self._stub.calls).encode()))
        elif lines[0].startswith("DELETE /calls"):
            self._stub.calls.clear()
            self._reply((200, b"{}"))
        else:
            answer = self._stub.answer(fields.get("x-amz-target", "").rpartition(".")[2], body[:length])
            if self._stub.latency_ms:
                self._stub.loop.call_later(self._stub.latency_ms / 1000, self._reply, answer)
            else:
                self._reply(answer)

    def _reply(self, answer: tuple[int, bytes] | None) -> None:
        assert self._transport is not None
        if answer is None:
            self._transport.abort()
            return
        status, body = answer
        reason = {200: "OK", 400: "Bad Request"}.get(status, "Error")
        head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/x-amz-json-1.0\r\n"
        self._transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


@contextmanager
def serving(*, latency_ms: float = 0, old_items: bool = True) -> Iterator[Stub]:
    """A stub in a thread of this process, ended with the `with`."""
    stub = Stub(latency_ms=latency_ms, old_items=old_items)
    server = stub.loop.run_until_complete(stub.listen(0))
    thread = threading.Thread(target=stub.loop.run_forever, name="dynamodb-stub")
    thread.start()
    try:
        yield stub
    finally:
        stub.loop.call_soon_threadsafe(stub.loop.stop)
        thread.join()
        stub.loop.run_until_complete(_end(stub, server))
        stub.loop.close()


async def _end(stub: Stub, server: asyncio.Server) -> None:
    server.close()
    for transport in tuple(stub.connections):
        transport.abort()
    await server.wait_closed()
    while stub.connections:  # each leaves in a turn of the loop
        turn = stub.loop.create_future()
        stub.loop.call_soon(turn.set_result, None)
        await turn


@contextmanager
def process(*, latency_ms: float = 0) -> Iterator[str]:
    """A stub in a process of its own, for measurements; its URL."""
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tests.emulators.dynamodb_stub", str(port), str(latency_ms)]
    with servers.serving(command, servers.answers(f"{url}/calls"), variables={"PYTHONPATH": str(servers.ROOT)}):
        yield url


def calls_of(url: str) -> dict[str, int]:
    """How many calls of each operation a stub in another process has had."""
    with urllib.request.urlopen(f"{url}/calls", timeout=60) as answer:
        counted: dict[str, int] = json.load(answer)
    return counted


def forget_calls(url: str) -> None:
    """Count from 0 again."""
    urllib.request.urlopen(urllib.request.Request(f"{url}/calls", method="DELETE"), timeout=60).close()


def main(port: int, latency_ms: float) -> None:
    """Serve until killed."""
    stub = Stub(latency_ms=latency_ms)
    stub.loop.run_until_complete(stub.listen(port))
    stub.loop.run_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 0)
