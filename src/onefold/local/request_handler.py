"""From a request to its answer: its protocol, its signature, injected faults, the operation that runs, and every error.

SQS requests come as JSON (`X-Amz-Target`) or in the older query protocol (a form, or the query string); Lambda's paths
begin with the date of its API; onefold's own paths are under `/_onefold`. Every error is one of AWS's. Any other
exception is a bug in onefold: the response is InternalFailure, and the traceback goes to standard error.

Never here: what an operation does (`message_operations`, `queue_operations`), sockets (`connection.py`).
Invariants: an operation runs only for a request that is signed as this server requires; a page of another site in the
user's browser cannot make a request; `OPERATIONS` has exactly the operations of botocore's model.
"""

from __future__ import annotations

import asyncio
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from onefold import errors
from onefold.local import (
    aws_errors,
    json_protocol,
    message_operations,
    query_protocol,
    queue_operations,
    signing,
    sns_api,
)
from onefold.local.aws_errors import AwsError
from onefold.local.connection import HttpRequest, Response
from onefold.local.fault_rules import OnRequest
from onefold.local.identifiers import region_of_url
from onefold.local.sqs_model import SqsModel, SqsOperation
from onefold.local.sqs_service import SqsCaller, SqsService

if TYPE_CHECKING:
    from onefold.outside import Entropy


Perform = Callable[[SqsService, Any, SqsCaller], Awaitable[dict[str, Any] | None]]

OPERATIONS: Final[Mapping[str, Perform]] = {
    "AddPermission": queue_operations.add_permission,
    "CancelMessageMoveTask": queue_operations.cancel_message_move_task,
    "ChangeMessageVisibility": message_operations.change_message_visibility,
    "ChangeMessageVisibilityBatch": message_operations.change_message_visibility_batch,
    "CreateQueue": queue_operations.create_queue,
    "DeleteMessage": message_operations.delete_message,
    "DeleteMessageBatch": message_operations.delete_message_batch,
    "DeleteQueue": queue_operations.delete_queue,
    "GetQueueAttributes": queue_operations.get_queue_attributes,
    "GetQueueUrl": queue_operations.get_queue_url,
    "ListDeadLetterSourceQueues": queue_operations.list_dead_letter_source_queues,
    "ListMessageMoveTasks": queue_operations.list_message_move_tasks,
    "ListQueueTags": queue_operations.list_queue_tags,
    "ListQueues": queue_operations.list_queues,
    "PurgeQueue": queue_operations.purge_queue,
    "ReceiveMessage": message_operations.receive_message,
    "RemovePermission": queue_operations.remove_permission,
    "SendMessage": message_operations.send_message,
    "SendMessageBatch": message_operations.send_message_batch,
    "SetQueueAttributes": queue_operations.set_queue_attributes,
    "StartMessageMoveTask": queue_operations.start_message_move_task,
    "TagQueue": queue_operations.tag_queue,
    "UntagQueue": queue_operations.untag_queue,
}


OURS = "/_onefold"
LAMBDA = "/2015-03-31/"  # the version of Lambda's API, with which its paths begin
SNS = sns_api.VERSION  # names a part that has no path of its own: its requests name this version

_JSON = ((b"content-type", json_protocol.CONTENT_TYPE),)
_XML = ((b"content-type", query_protocol.CONTENT_TYPE),)
_QUERY_JSON = ((b"content-type", query_protocol.JSON_TYPE),)
_DOCKER = ".docker.internal"  # containers use such names for the machine on which they run
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_VIA = "sqs"
_NAME = re.compile(
    r"(?:[a-z0-9-]{1,32}/)?[A-Za-z0-9_-]{1,80}(?:\.fifo)?"
)  # in the engine, with its region if that is another
_SENDS = frozenset({"SendMessage", "SendMessageBatch"})
_TRACE_CHARS_MAX = 1_024  # our limit; X-Ray's own headers are shorter than 300
_WAITS = "ReceiveMessage"  # the only operation that waits for something to happen

Part = Callable[[HttpRequest, str], Awaitable[Response]]


class RequestHandler:
    """Answers all requests of one server.

    Args:
        sqs: the queues and everything else that operations need.
        model: SQS's operations.
        key: the key with which requests must be signed; None: any request is accepted.
        parts: functions that answer what is not SQS's: `LAMBDA` and `OURS`, the start of a path, and `SNS`; called with
            the request and its id.
        entropy: gives the random part of request ids.
        is_open: other machines can reach this server, under names that are not known here.
    """

    def __init__(
        self,
        sqs: SqsService,
        model: SqsModel,
        *,
        key: signing.AccessKey | None,
        parts: Mapping[str, Part],
        entropy: Entropy,
        is_open: bool = False,
    ) -> None:
        self._sqs = sqs
        self._model = model
        self._key = key
        self._parts = parts
        self._is_open = is_open
        self._stopping = asyncio.Event()
        self._count = 0
        token = entropy.token()
        self._ids = f"{token[:8]}-{token[8:12]}-4{token[12:15]}-8{entropy.token()[:3]}-"

    def stop(self) -> None:
        """Send responses that a fault delays, and end long polls, because the server stops."""
        self._stopping.set()

    # ------------------------------------------------------------------------------------------------ one request

    async def handle(self, request: HttpRequest) -> Response | None:
        """The answer to a request; None closes the connection without one, which only a fault does."""
        request_id = self._request_id()
        path = request.path
        if path.startswith(OURS):
            return await self._parts[OURS](request, request_id)
        target = request.headers.get(b"x-amz-target")
        try:
            self._check_origin(request)
            if self._key is not None:
                self._check_signature(request, self._key)
            else:
                self._check_host(request)
            if path.startswith(LAMBDA):
                return await self._parts[LAMBDA](request, request_id)
            if target is None and SNS in self._parts and sns_api.is_for_sns(request):
                return await self._parts[SNS](request, request_id)
            if target is not None:
                operation, params = self._json(request, target)
            else:
                operation, params = self._query(request)
            return await self._perform(operation, params, request, request_id)
        except query_protocol.NoAction as nothing:
            return Response(nothing.status, nothing.BODY, _XML, request_id)
        except AwsError as error:
            as_json = target is None and query_protocol.wants_json(request.headers.get(b"accept", b""))
            return _error(error, query=target is None, as_json=as_json, request_id=request_id)

    def _json(self, request: HttpRequest, target: bytes) -> tuple[SqsOperation, Any]:
        if request.method != "POST":
            raise _method(request.method, "POST")
        operation = json_protocol.operation_of(self._model, target.decode("latin-1"))
        if not request.headers.get(b"content-type", b"").startswith(b"application/x-amz-json-1."):
            said = request.header(b"content-type")
            raise aws_errors.malformed_input(f"Content-Type is {said!r}; it must be application/x-amz-json-1.0.")
        return operation, json_protocol.decode(operation, request.body)

    def _query(self, request: HttpRequest) -> tuple[SqsOperation, Any]:
        if request.method not in ("POST", "GET"):
            raise _method(request.method, "POST or GET")
        if request.headers.get(b"content-type", b"").startswith(b"application/x-amz-json"):
            raise aws_errors.unknown_operation("")
        path = unquote(request.path, errors="replace")
        return query_protocol.decode(self._model, request.body, path, request.query.encode("latin-1"))

    # -------------------------------------------------------------------------------------------- one operation

    async def _perform(
        self, operation: SqsOperation, params: Any, request: HttpRequest, request_id: str
    ) -> Response | None:
        name = operation.name
        query = b"x-amz-target" not in request.headers
        region = signing.region_of(request.headers, request.query)
        sqs = self._in_region(region, getattr(params, "QueueUrl", None))
        plan = self._plan(sqs, name, params) if sqs.queues.faults.active else None
        if plan is not None and plan.before is not None:
            raise aws_errors.internal_failure() if plan.before == "error" else aws_errors.request_throttled()
        gone = trace = None
        if name == _WAITS:
            request.abandoned = True
            gone = self._gone_of(request)
        elif name in _SENDS:
            trace = _trace(request.headers.get(b"x-amzn-trace-id"))
        caller = SqsCaller(query=query, host=request.header(b"host"), gone=gone, trace=trace, region=region)
        try:
            result = await OPERATIONS[name](sqs, params, caller)
        except errors.OnefoldError as error:
            raise aws_error(error, query=query) from error
        if plan is not None:
            await self._hold(plan, request)
            if plan.after == "drop":
                return None
            if plan.after == "error":
                raise aws_errors.internal_failure()
        if query:
            if query_protocol.wants_json(request.headers.get(b"accept", b"")):
                return Response(200, query_protocol.encode_json(operation, result, request_id), _QUERY_JSON, request_id)
            return Response(200, query_protocol.encode(operation, result, request_id), _XML, request_id)
        return Response(200, json_protocol.encode(result), _JSON, request_id)

    def _in_region(self, region: str, url: str | None) -> SqsService:
        """SQS in the region of a request: its signature's, or the queue URL's if it is unsigned."""
        named = region_of_url(url) if url else ""
        if named and region and named != region:
            raise aws_errors.invalid_address(str(url))
        return self._sqs.in_region(region or named)

    def _gone_of(self, request: HttpRequest) -> Callable[[], bool]:
        return lambda: request.gone or self._stopping.is_set()

    def _plan(self, sqs: SqsService, name: str, params: Any) -> OnRequest | None:
        """What faults do to this request; recorded in the history."""
        url = getattr(params, "QueueUrl", None) or getattr(params, "QueueName", None) or ""
        queue = sqs.queue(url) if url else ""
        plan = sqs.queues.faults.requested(name, queue)
        if plan is not None:
            named = queue if _NAME.fullmatch(queue) else ""  # a request may name anything, of any length
            sqs.queues.history.record(
                named, "", "fault", at_ms=sqs.queues.timers.now_ms(), why=plan.why, via=_VIA, operation=name
            )
        return plan

    async def _hold(self, plan: OnRequest, request: HttpRequest) -> None:
        if not plan.hold_ms:
            return
        request.abandoned = True
        timers = self._sqs.queues.timers
        over = asyncio.ensure_future(timers.sleep_until(timers.now_ms() + plan.hold_ms))
        stops = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((over, stops), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            stops.cancel()

    # ------------------------------------------------------------------------------------------- access

    def _check_signature(self, request: HttpRequest, key: signing.AccessKey) -> None:
        signing.verify(request, key, self._sqs.queues.timers.now_ms())

    def _check_origin(self, request: HttpRequest) -> None:
        """Refuse requests that another site's page makes the user's browser send; deleting a queue may need no key."""
        origin = request.headers.get(b"origin")
        site = request.headers.get(b"sec-fetch-site")
        if site == b"cross-site" or (origin is not None and not is_local(origin.decode("latin-1"))):
            raise aws_errors.access_denied("Requests of web pages from other sites are refused.")

    def _check_host(self, request: HttpRequest) -> None:
        """If no signature is required, refuse a host name that a page may have pointed at this machine.

        For the browser, such a page is the same site: it can set any header, and its GET has no Origin.
        """
        if self._is_open and request.method != "GET":
            return  # others may know this machine under any name, and a page that POSTs sends an Origin
        host = host_of(request.header(b"host"))
        if not (is_loopback(host) or (host.lower().endswith(_DOCKER) and request.method != "GET")):
            raise aws_errors.access_denied(
                f"{'GET requests' if self._is_open else 'Requests'} without a signature are answered under a name of this "
                "machine only, such as localhost. Start the server with --access-key and --secret-key to use another."
            )

    # ---------------------------------------------------------------------------------------------- refusals and bugs

    def refused(self, status: int, why: str) -> Response:
        """The answer to bytes that are not a request, or to a request that is too large or too slow."""
        shape = {408: "RequestTimeout", 413: "RequestEntityTooLarge"}.get(status, "InvalidRequest")
        return _error(AwsError(shape, why, status=status, modelled=False), query=False, request_id=self._request_id())

    def failed(self, request: HttpRequest, error: Exception) -> Response:
        """The answer to a request whose handling raised: a bug; its traceback goes to standard error."""
        request_id = self._request_id()
        trace = "".join(traceback.format_exception(error))
        sys.stderr.write(f"onefold: InternalFailure, request {request_id}: a bug in onefold, please report it\n{trace}")
        return _error(
            aws_errors.internal_failure(), query=b"x-amz-target" not in request.headers, request_id=request_id
        )

    def _request_id(self) -> str:
        self._count += 1
        return f"{self._ids}{self._count:012x}"


def _trace(header: bytes | None) -> str | None:
    """The trace header of a request; an invalid one is ignored, because senders do not write it on purpose."""
    if header is None or not 0 < len(header) <= _TRACE_CHARS_MAX:
        return None
    text = header.decode("latin-1")
    return text if text.isascii() and text.isprintable() else None


def is_local(origin: str) -> bool:
    """Whether an Origin, or a URL, names this machine."""
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    return is_loopback(host)


def host_of(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def is_loopback(host: str) -> bool:
    """Whether a host name, without its port, can only mean this machine; case is ignored."""
    host = host.lower()
    return host in _LOOPBACK or host.endswith(".localhost") or _is_in_127(host)


def _is_in_127(host: str) -> bool:
    parts = host.split(".")
    return len(parts) == 4 and parts[0] == "127" and all(part.isascii() and part.isdigit() for part in parts)


def aws_error(error: errors.OnefoldError, *, query: bool) -> AwsError:
    """The AWS error for an error of onefold, unless an operation chooses a better one.

    Raises:
        OnefoldError: `error` itself, if it is a bug in onefold.
    """
    if isinstance(error, errors.NotFoundError):
        return aws_errors.queue_does_not_exist(query=query)
    if isinstance(error, errors.OverLimitError):
        return aws_errors.over_limit(error.what)
    if isinstance(error, errors.StorageBusy | errors.StorageError):
        return aws_errors.service_unavailable(str(error))
    if isinstance(error, errors.UsageError):
        return aws_errors.invalid_parameter_value(str(error))
    raise error


def _method(got: str, wanted: str) -> AwsError:
    text = f"The method {got} is not allowed here; it must be {wanted}."
    return AwsError("MethodNotAllowed", text, status=405, modelled=False)


def _error(error: AwsError, *, query: bool, request_id: str, as_json: bool = False) -> Response:
    encode = query_protocol.encode_error if query else json_protocol.encode_error
    if as_json:
        encode = query_protocol.encode_json_error
    status, headers, body = encode(error, request_id)
    return Response(status, body, tuple(headers))
