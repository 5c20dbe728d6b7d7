"""What onefold adds to AWS's API, under `/_onefold`: reading messages without receiving them, the history, the faults.

Access: with the admin token, if one is set; otherwise with the server's keys, if it has some, by a signature or as HTTP
Basic; otherwise for anybody on this machine: the Host header must name it, which a web page that rebinds its name to
127.0.0.1 cannot fake. A server that other machines can reach requires one of the first two. `health` answers anyone,
but only with "ok".
Never here: how the history is drawn (`history_page.py`), what a fault does. Invariant: a GET changes nothing, and nothing
here counts as a receive.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct, structs

from onefold import errors, redact
from onefold.contracts.admin import Peeked
from onefold.local import history_page, signing
from onefold.local.aws_errors import AwsError
from onefold.local.connection import HttpRequest, Response
from onefold.local.fault_rules import Faults
from onefold.local.identifiers import message_id_of, message_uuid
from onefold.local.queue_operations import OWN_DEAD_LETTERS
from onefold.local.queues import LocalQueues
from onefold.local.request_handler import OURS, host_of, is_local, is_loopback

_JSON = (
    (b"content-type", b"application/json"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
)
_PAGE_DEFAULT = 100
_PAGE_MAX = 1_000
_PAGE_BYTES = 4 * 1024 * 1024  # bytes of bodies: a page ends early at this size, and `next` says where to continue
_SCAN_MAX = 20_000  # messages read for one page of messages in one state
_SCAN_BYTES = 64 * 1024 * 1024  # bytes of their bodies
_LOOK = 10  # messages in the first read of a queue; later reads depend on the size of the messages
_REALM = (b"www-authenticate", b'Basic realm="onefold: the admin token as password, or both keys"')


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What a server reports about itself.

    Args:
        data: the data file; None if the queues are in memory.
        started_at_ms: by the server's clock.
        admin_token: the token that clients must send; None if they need none.
        is_open: other machines can reach this server.
        key: requests must be signed with it; None if they need no signature.
    """

    data: str | None
    started_at_ms: int
    admin_token: str | None = None
    is_open: bool = False
    key: signing.AccessKey | None = None


class _Refusal(Exception):
    def __init__(self, status: int, what: str, todo: str = "") -> None:
        self.status, self.what, self.todo = status, what, todo
        super().__init__(what)


class AdminApi:
    """Answers everything under `/_onefold`.

    Args:
        queues: the queues that are shown.
        facts: what this server reports about itself.
        mappings: returns functions and event source mappings as JSON.
        reset: forgets every queue; None if they are in a file.
    """

    def __init__(
        self,
        queues: LocalQueues,
        facts: ServerFacts,
        *,
        mappings: Callable[[], Mapping[str, object]],
        reset: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._queues = queues
        self._facts = facts
        self._mappings = mappings
        self._reset = reset
        self._gets: Mapping[str, Callable[[Mapping[str, str]], object]] = {
            "": lambda _: {"paths": [f"{OURS}/{name}" for name in (*self._gets, "health", "history") if name]},
            "queues": self._all_queues,
            "messages": lambda query: self._messages(query, None),
            "in-flight": lambda query: self._messages(query, "in_flight"),
            "delayed": lambda query: self._messages(query, "delayed"),
            "dedup": self._dedup,
            "waiting": lambda _: {"waiting": dict(self._queues.waiting())},
            "faults": lambda _: self._queues.faults.report(),
            "mappings": lambda _: self._mappings(),
        }

    async def handle(self, request: HttpRequest, request_id: str) -> Response:
        """The answer to one request."""
        try:
            name = request.path.removeprefix(OURS).strip("/")
            self._check(request, name)
            query = dict(parse_qsl(request.query, keep_blank_values=True, max_num_fields=50))
            if request.method in ("GET", "HEAD"):
                return self._get(name, query, request, request_id)
            return _json(await self._change(name, request), request_id)
        except _Refusal as refusal:
            said = {"what": refusal.what, "meaning": "", "todo": refusal.todo}
            return _json({"error": said}, request_id, refusal.status)
        except errors.OnefoldError as error:
            status = 404 if isinstance(error, errors.NotFoundError) else 400
            status = 503 if isinstance(error, errors.StorageBusy) else status
            said = {"what": error.what, "meaning": error.meaning, "todo": error.todo}
            return _json({"error": said}, request_id, status)
        except ValueError:
            return _json({"error": {"what": "The query string cannot be read."}}, request_id, 400)

    # ----------------------------------------------------------------------------------------------------- access

    def _check(self, request: HttpRequest, name: str) -> None:
        origin = request.header(b"origin")
        if origin and not is_local(origin):
            raise _Refusal(403, f"Pages of {origin} may not call this server.")
        if request.header(b"sec-fetch-site") == "cross-site":  # an image or a frame of another site sends no Origin
            raise _Refusal(403, "Pages of other sites may not call this server.", "Open the address itself.")
        if name == "health" and request.method in ("GET", "HEAD"):
            return
        self._admit(request)
        if request.method == "POST" and not request.header(b"content-type").startswith("application/json"):
            # PUT and DELETE from another site's page are stopped by the browser: its preflight request is refused here.
            raise _Refusal(415, "Content-Type must be application/json.")

    def _admit(self, request: HttpRequest) -> None:
        facts = self._facts
        if facts.admin_token is not None:
            if not _has_token(request.header(b"authorization"), facts.admin_token):
                raise _Refusal(401, "The admin token is missing or wrong.", "Send it: Authorization: Bearer TOKEN.")
        elif facts.key is not None:
            self._check_key(request, facts.key)
        elif facts.is_open:
            raise _Refusal(403, "Other machines can reach this server.", f"Start it with --admin-token to use {OURS}.")
        elif not is_loopback(host_of(request.header(b"host"))):
            raise _Refusal(403, f"{OURS} answers to 127.0.0.1 and localhost only.", "Or start with --admin-token.")

    def _check_key(self, request: HttpRequest, key: signing.AccessKey) -> None:
        said = _basic(request.header(b"authorization")).encode("latin-1", "replace")
        if said and hmac.compare_digest(said, f"{key.access_key}:{key.secret_key}".encode()):
            return
        try:
            signing.verify(request, key, self._queues.timers.now_ms())
        except AwsError as error:
            raise _Refusal(
                401, f"This server has keys: {error.message}", "Sign the request, or send both keys as HTTP Basic."
            ) from None

    # ------------------------------------------------------------------------------------------------------------- GET

    def _get(self, name: str, query: Mapping[str, str], request: HttpRequest, request_id: str) -> Response:
        if name == "history":
            return self._history(query, request, request_id)
        if name == "health":
            return _json(self._health(request), request_id)
        found = self._gets.get(name)
        if found is None:
            raise _Refusal(404, f"There is no {OURS}/{name}.", f"GET {OURS} lists what there is.")
        return _json(found(query), request_id)

    def _health(self, request: HttpRequest) -> dict[str, object]:
        try:
            self._admit(request)
        except _Refusal:
            return {"status": "ok"}  # what runs here, where and since when is not for everybody
        from importlib.metadata import version  # here: needed only for this answer, not at every start

        facts = self._facts
        return {
            "status": "ok",
            "version": version("onefold"),
            **({} if facts.is_open else {"data": facts.data}),  # paths are not shown to other machines
            "queues": len(self._queues.engine.queues.settings()),
            "uptime_ms": self._queues.timers.now_ms() - facts.started_at_ms,
        }

    def _all_queues(self, _: Mapping[str, str]) -> dict[str, object]:
        admin, waiting = self._queues.engine.queues, self._queues.waiting()
        return {
            "queues": [
                {
                    **structs.asdict(settings),
                    **structs.asdict(admin.depth(settings.name)),
                    "receivers_waiting": waiting.get(settings.name, 0),
                    **({"warning": OWN_DEAD_LETTERS} if settings.dead_letter == settings.name else {}),
                }
                for settings in admin.settings()
            ]
        }

    def _messages(self, query: Mapping[str, str], state: str | None) -> dict[str, object]:
        queue, limit, after = _queue(query), _limit(query), query.get("after")
        self._queues.engine.queues.open(queue)  # raises if there is none
        found, following = self._page(queue, state, limit, message_id_of(after) if after else None)
        return {"messages": [_shown(one) for one in found], "next": following and message_uuid(following)}

    def _page(self, queue: str, state: str | None, limit: int, cursor: str | None) -> tuple[list[Peeked], str | None]:
        """Messages in one state, or all, after the cursor; and the cursor for the next page.

        Both the answer and the scan are bounded in number and in bytes, because all other requests wait meanwhile.
        """
        found: list[Peeked] = []
        found_bytes = scanned = scanned_bytes = 0
        while True:
            room = _PAGE_BYTES * scanned // max(scanned_bytes, 1) if scanned else _LOOK
            count = max(1, min(room, _PAGE_MAX if state else limit - len(found)))
            some = self._queues.engine.queues.peek(queue, limit=count, after=cursor)
            for one in some:
                size = len(one.body) + sum(len(each.value) for each in one.attributes.values())
                if state is None or one.state == state:
                    if len(found) == limit or (found and found_bytes + size > _PAGE_BYTES):
                        return found, cursor
                    found.append(one)
                    found_bytes += size
                cursor = one.message_id
                scanned, scanned_bytes = scanned + 1, scanned_bytes + size
            if len(some) < count:
                return found, None
            if scanned >= _SCAN_MAX or scanned_bytes >= _SCAN_BYTES:
                return found, cursor

    def _dedup(self, query: Mapping[str, str]) -> dict[str, object]:
        admin, queue = self._queues.engine.queues, _queue(query)
        admin.open(queue)
        found = admin.dedup_memory(queue, limit=_limit(query))
        return {"remembered": [{**structs.asdict(one), "message_id": message_uuid(one.message_id)} for one in found]}

    def _history(self, query: Mapping[str, str], request: HttpRequest, request_id: str) -> Response:
        page = history_page.render(
            self._queues.history,
            history_page.asked_from(query, message_id_of),
            history_page.format_for(query.get("format"), request.header(b"accept")),
            now_ms=self._queues.timers.now_ms(),
            name_of=message_uuid,
            path=f"{OURS}/history",
        )
        headers = tuple((name.lower().encode(), value.encode()) for name, value in page.headers.items())
        return Response(200, page.body, headers, request_id)

    # --------------------------------------------------------------------------------------------------------- changes

    async def _change(self, name: str, request: HttpRequest) -> object:
        if (request.method, name) == ("PUT", "faults"):
            try:
                value = msgspec.json.decode(request.body)
            except (msgspec.DecodeError, RecursionError):
                raise _Refusal(400, "The body is not JSON.", 'Send {"faults": ["lose-ack=0.1"], "seed": 7}.') from None
            self._queues.faults.set(Faults.from_json(value))
            return self._queues.faults.report()
        if (request.method, name) == ("DELETE", "faults"):
            self._queues.faults.clear()
            return self._queues.faults.report()
        if (request.method, name) == ("POST", "reset"):
            if self._reset is None:
                raise _Refusal(
                    409, "The queues are in a file.", "Stop the server and remove the file; or use --memory."
                )
            await self._reset()
            return {}
        raise _Refusal(405, f"{request.method} {OURS}/{name} does nothing.", f"GET {OURS} lists what there is.")


# -------------------------------------------------------------------------------------------------------------- reading


def _queue(query: Mapping[str, str]) -> str:
    name = query.get("queue")
    if not name:
        raise _Refusal(400, "Which queue?", "Add ?queue=NAME.")
    return name


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(_PAGE_DEFAULT))
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= _PAGE_MAX):
        raise _Refusal(400, f"limit={text!r} is out of range.", f"It is 1 to {_PAGE_MAX}.")
    return int(text)


def _has_token(header: str, token: str) -> bool:
    scheme, _, said = header.partition(" ")
    if scheme.lower() == "basic":
        said = _basic(header).partition(":")[2]
    return hmac.compare_digest(said.encode("latin-1", "replace"), token.encode())


def _basic(header: str) -> str:
    """User and password of a Basic header, separated by a colon; empty if it is not a Basic header."""
    scheme, _, said = header.partition(" ")
    try:
        return b64decode(said, validate=True).decode("latin-1") if scheme.lower() == "basic" else ""
    except ValueError:
        return ""


# -------------------------------------------------------------------------------------------------------------- showing


def _shown(one: Peeked) -> dict[str, Any]:
    shown = structs.asdict(one)
    shown["message_id"] = message_uuid(one.message_id)
    return {name: value for name, value in shown.items() if value is not None}


def _json(value: object, request_id: str, status: int = 200) -> Response:
    headers = (*_JSON, _REALM) if status == 401 else _JSON
    text = redact.printable_json(
        msgspec.json.encode(value).decode()
    )  # it may be read in a terminal, and the bodies may come from anyone
    return Response(status, text.encode() + b"\n", headers, request_id)
