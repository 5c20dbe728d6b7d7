"""The few calls of Lambda's API that set up and monitor a mapping, so that code written for AWS runs unchanged.

Event source mappings: create, get, update, delete, list. Functions: get, list, their configuration, invoke; they are
registered when the server starts, so nothing here creates one.
Never here: what a mapping does. Invariant: a refusal has Lambda's form: a type in a header, and a text.

Source: Lambda API reference, the operation that each function is named after; texts as recorded from AWS.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import msgspec

from onefold import errors, limits
from onefold.local import outcomes, signing
from onefold.local.connection import HttpRequest, Response
from onefold.local.functions import ServedFunction
from onefold.local.outcomes import Answered, Throttled
from onefold.local.registry import FunctionRegistry, MappingEntry
from onefold.local.settings import CONCURRENCY_DEFAULT, EVENT_BYTES_MAX
from onefold.local.sqs_service import SqsService
from onefold.local.timers import Timers

ROOT: Final = "/2015-03-31/"
ASYNC_BYTES_MAX: Final = 1_048_576  # Lambda developer guide, "Lambda quotas": 1 MB for an asynchronous invocation
WAITING_BYTES_MAX: Final = 256 * 1024 * 1024  # of all events that wait for their invocation; our limit
LOG_BYTES_MAX: Final = 4_096  # Lambda Invoke, LogType Tail: the last 4 KB of the log
LIST_MAX: Final = 100  # Lambda ListEventSourceMappings, MaxItems: at most 100 in one answer
_REPORTS: Final = "ReportBatchItemFailures"
_USED: Final = frozenset(
    (
        "BatchSize", "Enabled", "EventSourceArn", "FilterCriteria", "FunctionName", "FunctionResponseTypes",
        "MaximumBatchingWindowInSeconds", "ProvisionedPollerConfig", "ScalingConfig", "UUID",
    )
)  # fmt: skip
_WITHOUT_EFFECT: Final = frozenset(("KMSKeyArn", "LoggingConfig", "MetricsConfig", "Tags"))
# Lambda API, CreateEventSourceMapping: members that only streams, Kafka, MQ and DocumentDB have.
_OF_OTHERS: Final = frozenset(
    (
        "AmazonManagedKafkaEventSourceConfig", "BisectBatchOnFunctionError", "DestinationConfig",
        "DocumentDBEventSourceConfig", "MaximumRecordAgeInSeconds", "MaximumRetryAttempts", "ParallelizationFactor",
        "Queues", "SelfManagedEventSource", "SelfManagedKafkaEventSourceConfig", "SourceAccessConfigurations",
        "StartingPosition", "StartingPositionTimestamp", "Topics", "TumblingWindowInSeconds",
    )
)  # fmt: skip
_POLLERS: Final = {
    "MinimumPollers": (2, 200),
    "MaximumPollers": (2, 10_000),
}  # Lambda API, ProvisionedPollerConfig, for SQS
_JSON = ((b"content-type", b"application/json"),)
_INTEGER_BITS = 31  # of Lambda's integers, without the sign


class _Refused(Exception):
    """An error answer."""

    def __init__(self, status: int, kind: str, message: str, **more: str) -> None:
        super().__init__(message)
        self.more = more
        self.status = status
        self.kind = kind
        self.message = message


class LambdaApi:
    """Answers Lambda's paths.

    Args:
        registry: functions and mappings.
        sqs: resolves queue names in each region.
        timers: has the event loop on which asynchronous invocations run.
        running: the asynchronous invocations in progress, each with the size of its event in bytes.
    """

    def __init__(
        self, registry: FunctionRegistry, sqs: SqsService, timers: Timers, running: dict[Any, int] | None = None
    ) -> None:
        self._registry = registry
        self._sqs = sqs
        self._addresses = sqs.addresses
        self._timers = timers
        self._running: dict[Any, int] = {} if running is None else running

    async def handle(self, request: HttpRequest, request_id: str) -> Response:
        """The answer to one request below `/2015-03-31/`."""
        parts = [unquote(part) for part in request.path.removeprefix(ROOT).strip("/").split("/")]
        try:
            answer = await self._in_region(signing.region_of(request.headers, request.query)).route(request, parts)
        except _Refused as refused:
            return _error(refused, request_id)
        except errors.ConflictError as error:
            return _error(_Refused(409, "ResourceConflictException", error.what), request_id)
        except errors.NotFoundError as error:
            return _error(_Refused(404, "ResourceNotFoundException", error.what), request_id)
        except errors.UsageError as error:
            kind = "ValidationException" if "validation error" in error.what else "InvalidParameterValueException"
            return _error(_Refused(400, kind, error.what), request_id)
        except errors.TransientError as error:
            return _error(_Refused(500, "ServiceException", error.what), request_id)
        if isinstance(answer, Response):
            return Response(answer.status, answer.body, answer.headers, request_id)
        status, value = answer
        return Response(status, msgspec.json.encode(value), _JSON, request_id)

    def _in_region(self, region: str) -> LambdaApi:
        """The same API for clients of another region: its queues, and all functions, which belong to no region here."""
        sqs = self._sqs.in_region(region)
        return self if sqs is self._sqs else LambdaApi(self._registry, sqs, self._timers, self._running)

    async def route(self, request: HttpRequest, parts: list[str]) -> tuple[int, Any] | Response:
        """The answer to a request with these parts of its path."""
        query = {name: values[-1] for name, values in parse_qs(request.query).items()}
        routes: Mapping[tuple[str, str, int], Callable[[], Awaitable[tuple[int, Any] | Response]]] = {
            ("POST", "event-source-mappings", 1): lambda: self._create(_body(request)),
            ("GET", "event-source-mappings", 1): lambda: self._list(query),
            ("GET", "event-source-mappings", 2): lambda: self._get(parts[1]),
            ("PUT", "event-source-mappings", 2): lambda: self._update(parts[1], _body(request)),
            ("DELETE", "event-source-mappings", 2): lambda: self._delete(parts[1]),
            ("GET", "functions", 1): self._functions,
            ("GET", "functions", 2): lambda: self._function(parts[1]),
        }
        found = routes.get((request.method, parts[0], len(parts)))
        if found is not None:
            return await found()
        if parts[0] == "functions" and len(parts) == 3:
            if request.method == "GET" and parts[2] == "configuration":
                return 200, self._configuration(self._named(parts[1]))
            if request.method == "POST" and parts[2] == "invocations":
                return await self._invoke(parts[1], request)
        raise _Refused(
            404, "UnknownOperationException", f"{request.method} {request.path} is not a call that this server knows."
        )

    # -- mappings ------------------------------------------------------------------------------------------------------

    async def _create(self, given: dict[str, Any]) -> tuple[int, Any]:
        function, arn = given.get("FunctionName"), given.get("EventSourceArn")
        if not isinstance(function, str) or not function:
            raise _missing("functionName")
        if not isinstance(arn, str) or not arn:
            raise _Refused(400, "InvalidParameterValueException", "Unrecognized event source.")  # recorded
        queue = self._addresses.name_of_arn(arn)
        if queue is None:
            raise _Refused(400, "InvalidParameterValueException", f"Unrecognized event source: {arn}")
        settings = _settings(given)
        _check_scaling(settings.get("concurrency_max"), settings.get("provisioned"))
        entry = await self._registry.create(self._known(function), queue, **settings)
        return 202, self._shown(entry)

    def _known(self, text: str) -> str:
        """The name of the function to be mapped; Lambda has a different text here for an unknown one."""
        name = _name(text)
        if name not in self._registry.functions:
            raise _Refused(400, "InvalidParameterValueException", "Function does not exist")
        return name

    async def _list(self, query: Mapping[str, str]) -> tuple[int, Any]:
        function = _name(query["FunctionName"]) if "FunctionName" in query else None
        queue = None
        if "EventSourceArn" in query:
            queue = self._addresses.name_of_arn(query["EventSourceArn"]) or ""
        entries = [one for one in self._registry.entries(queue=queue, function=function) if self._is_here(one)]
        marker = query.get("Marker", "")
        left = [one for one in entries if one.settings.uuid > marker]
        page = left[: _items_max(query.get("MaxItems", str(LIST_MAX)))]
        found: dict[str, Any] = {"EventSourceMappings": [self._shown(one) for one in page]}
        if len(page) < len(left):
            found["NextMarker"] = page[-1].settings.uuid
        return 200, found

    def _is_here(self, entry: MappingEntry) -> bool:
        """Whether a mapping's queue belongs to this region."""
        return self._sqs.queue(entry.settings.queue) == entry.settings.queue

    async def _get(self, uuid: str) -> tuple[int, Any]:
        return 200, self._shown(self._registry.entry(uuid))

    async def _update(self, uuid: str, given: dict[str, Any]) -> tuple[int, Any]:
        changes = _settings(given)
        before = self._registry.entry(uuid).settings
        _check_scaling(
            changes.get("concurrency_max", before.concurrency_max), changes.get("provisioned", before.provisioned)
        )
        if isinstance(given.get("FunctionName"), str):
            changes["function"] = self._known(given["FunctionName"])
        return 202, self._shown(await self._registry.update(uuid, **changes))

    async def _delete(self, uuid: str) -> tuple[int, Any]:
        return 202, self._shown(await self._registry.delete(uuid))

    def _shown(self, entry: MappingEntry) -> dict[str, Any]:
        settings = entry.settings
        address = self._addresses
        shown: dict[str, Any] = {
            "UUID": settings.uuid,
            "EventSourceMappingArn": (
                f"arn:aws:lambda:{address.region}:{address.account}:event-source-mapping:{settings.uuid}"
            ),
            "EventSourceArn": address.arn(settings.queue),
            "FunctionArn": f"arn:aws:lambda:{address.region}:{address.account}:function:{settings.function}",
            "BatchSize": settings.batch_size,
            "MaximumBatchingWindowInSeconds": settings.window_ms // limits.SECOND_MS,
            "LastModified": entry.changed_at_ms / limits.SECOND_MS,
            "State": entry.state,
            "StateTransitionReason": "USER_INITIATED",
            "FunctionResponseTypes": [_REPORTS] if settings.reports_failures else [],
        }
        if settings.filters:
            shown["FilterCriteria"] = {"Filters": [{"Pattern": text} for text in settings.filters]}
        if settings.concurrency_max is not None:
            shown["ScalingConfig"] = {"MaximumConcurrency": settings.concurrency_max}
        if settings.provisioned is not None:
            shown["ProvisionedPollerConfig"] = dict(settings.provisioned)
        return shown

    # -- functions -----------------------------------------------------------------------------------------------------

    async def _functions(self) -> tuple[int, Any]:
        return 200, {"Functions": [self._configuration(one) for _, one in sorted(self._registry.functions.items())]}

    async def _function(self, name: str) -> tuple[int, Any]:
        function = self._named(name)
        code = {"RepositoryType": "local", "Location": function.settings.code_dir}
        return 200, {"Configuration": self._configuration(function), "Code": code, "Tags": {}}

    def _named(self, text: str) -> ServedFunction:
        """The function that a name, ARN or partial ARN names."""
        found = self._registry.functions.get(_name(text))
        if found is None:
            arn = f"arn:aws:lambda:{self._addresses.region}:{self._addresses.account}:function:{_name(text)}"
            raise _Refused(404, "ResourceNotFoundException", f"Function not found: {arn}")
        return found

    def _configuration(self, function: ServedFunction) -> dict[str, Any]:
        settings = function.settings
        return {
            "FunctionName": settings.name,
            "FunctionArn": settings.arn,
            "Handler": settings.handler,
            "Runtime": "python3",
            "Timeout": settings.timeout_ms // limits.SECOND_MS,
            "MemorySize": settings.memory_mib,
            "Environment": {"Variables": dict(settings.env)},
            "State": "Active",
            "LastUpdateStatus": "Successful",
            "LastModified": datetime.fromtimestamp(self._timers.now_ms() / 1000, tz=UTC).isoformat(
                timespec="milliseconds"
            ),
            "PackageType": "Zip",
            "Version": "$LATEST",
        }

    async def _invoke(self, name: str, request: HttpRequest) -> Response:
        function = self._named(name)
        kind = request.header(b"x-amz-invocation-type") or "RequestResponse"
        if kind == "DryRun":
            return Response(204, b"")
        if kind not in ("RequestResponse", "Event"):
            raise _Refused(400, "InvalidParameterValueException", f"{kind} is not an invocation type.")
        event = request.body or b"null"
        bytes_max = ASYNC_BYTES_MAX if kind == "Event" else EVENT_BYTES_MAX
        if len(event) > bytes_max:
            raise _Refused(
                413, "RequestTooLargeException", f"Request must be smaller than {bytes_max} bytes for the InvokeFunction "
                "operation",
            )  # fmt: skip
        try:
            msgspec.json.decode(event)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            text = f"Could not parse request body into json: {error}"
            raise _Refused(400, "InvalidRequestContentException", text) from error
        if kind == "Event":
            if sum(self._running.values()) + len(event) > WAITING_BYTES_MAX:
                text = f"The events that wait for their invocation hold {WAITING_BYTES_MAX >> 20} MiB, the limit here."
                raise _Refused(429, "TooManyRequestsException", text, Reason="ConcurrentInvocationLimitExceeded")
            task = self._timers.loop.create_task(function.invoke(event, kill=self._registry.fault()))
            self._running[task] = len(event)
            task.add_done_callback(self._running.pop)
            return Response(202, b"")
        return await self._answer(function, event, tail=request.header(b"x-amz-log-type") == "Tail")

    async def _answer(self, function: ServedFunction, event: bytes, *, tail: bool) -> Response:
        request_id = function.new_request_id()
        lines = self._registry.listen(request_id) if tail else []
        try:
            outcome = await function.invoke(event, request_id=request_id, kill=self._registry.fault())
        finally:
            self._registry.hush(request_id)
        if isinstance(outcome, Throttled):
            reserved = "ReservedFunction" if outcome.limit < CONCURRENCY_DEFAULT else ""
            raise _Refused(
                429, "TooManyRequestsException", outcomes.message_of(outcome),
                Reason=f"{reserved}ConcurrentInvocationLimitExceeded",
            )  # fmt: skip
        headers = [*_JSON, (b"x-amz-executed-version", b"$LATEST")]
        if tail:
            log = "\n".join(lines).encode()[-LOG_BYTES_MAX:]
            headers.append((b"x-amz-log-result", b64encode(log)))
        if isinstance(outcome, Answered):
            return Response(200, outcome.payload, tuple(headers))
        headers.append((b"x-amz-function-error", b"Unhandled"))
        return Response(200, outcomes.error_payload(outcome, request_id) or b"", tuple(headers))


# -- requests and answers ----------------------------------------------------------------------------------------------


def _name(text: str) -> str:
    """A function's name from a name, an ARN or a partial ARN, with or without a qualifier."""
    _, _, after = text.rpartition("function:")
    return after.partition(":")[0]


def _body(request: HttpRequest) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(request.body or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise _Refused(400, "InvalidRequestContentException", "Could not parse request body into json.")
    return given


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a mapping's settings that a body contains."""
    found: dict[str, Any] = {}
    _check_members(given)
    for name, member, per in (
        ("BatchSize", "batch_size", 1),
        ("MaximumBatchingWindowInSeconds", "window_ms", limits.SECOND_MS),
    ):
        if given.get(name) is not None:
            found[member] = _whole(name, given[name]) * per
    if given.get("Enabled") is not None:
        if not isinstance(given["Enabled"], bool):
            raise _refused_value("enabled", given["Enabled"], "true or false")
        found["enabled"] = given["Enabled"]
    if given.get("FunctionResponseTypes") is not None:
        types = given["FunctionResponseTypes"]
        if not isinstance(types, list) or any(one != _REPORTS for one in types):
            raise _refused_value("functionResponseTypes", types, f"[{_REPORTS}]")
        found["reports_failures"] = bool(types)
    if given.get("FilterCriteria") is not None:
        criteria = given["FilterCriteria"]
        filters = (
            criteria.get("Filters") or [] if isinstance(criteria, dict) and not criteria.keys() - {"Filters"} else None
        )
        if not isinstance(filters, list) or not all(isinstance(one, dict) for one in filters):
            raise _refused_value("filterCriteria", criteria, "an object with Filters")
        found["filters"] = tuple(str(one.get("Pattern")) for one in filters)
    if given.get("ScalingConfig") is not None:
        scaling = given["ScalingConfig"]
        if not isinstance(scaling, dict) or scaling.keys() - {"MaximumConcurrency"}:
            raise _refused_value("scalingConfig", scaling, "an object with MaximumConcurrency")
        most = scaling.get("MaximumConcurrency")
        found["concurrency_max"] = None if most is None else _whole("MaximumConcurrency", most)
    if given.get("ProvisionedPollerConfig") is not None:
        found["provisioned"] = _pollers(given["ProvisionedPollerConfig"])
    return found


def _check_members(given: Mapping[str, Any]) -> None:
    """Refuse members that do not apply to SQS or that no version of the call has, instead of ignoring them silently."""
    for name, value in given.items():
        if name in _OF_OTHERS and value is not None:
            text = (
                f"Unsupported {name} parameter for given event source mapping type."  # recorded for DestinationConfig
            )
            raise _Refused(400, "InvalidParameterValueException", text)
        if name not in _USED and name not in _WITHOUT_EFFECT and name not in _OF_OTHERS:
            known = ", ".join(sorted(_USED | _WITHOUT_EFFECT))
            raise _Refused(
                400,
                "InvalidParameterValueException",
                f"{name[:64]!r} is not a parameter of this call. It takes: {known}.",
            )


def _pollers(given: Any) -> dict[str, int] | None:
    """A ProvisionedPollerConfig; None if it is empty, which ends the provisioned mode."""
    if not isinstance(given, dict) or given.keys() - _POLLERS.keys():
        raise _refused_value("provisionedPollerConfig", given, "an object with MinimumPollers and MaximumPollers")
    found = {name: _whole(name, value) for name, value in given.items() if value is not None}
    for name, value in found.items():
        least, most = _POLLERS[name]
        if not least <= value <= most:
            raise _refused_value(name[0].lower() + name[1:], value, f"{least} to {most}")
    if found.get("MinimumPollers", 2) > found.get("MaximumPollers", 200):
        text = "MinimumPollers must be less than or equal to MaximumPollers."
        raise _Refused(400, "InvalidParameterValueException", text)
    return found or None


def _check_scaling(concurrency_max: int | None, provisioned: Mapping[str, int] | None) -> None:
    if concurrency_max is not None and provisioned is not None:
        text = "MaximumConcurrency and ProvisionedPollerConfig exclude each other: a mapping can have only one of them."
        raise _Refused(400, "InvalidParameterValueException", text)


def _items_max(asked: str) -> int:
    """How many mappings one answer has: at most 100, even if more are requested, as on Lambda."""
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10 and int(asked)):
        raise _refused_value("maxItems", asked[:32], "a whole number from 1 to 10000")
    return min(LIST_MAX, int(asked))


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value.bit_length() > _INTEGER_BITS:
        raise _refused_value(name[0].lower() + name[1:], value, f"a whole number of {_INTEGER_BITS + 1} bits")
    return value


def _refused_value(name: str, value: Any, wanted: str) -> _Refused:
    return _Refused(
        400,
        "ValidationException",
        f"1 validation error detected: Value '{value}' at '{name}' failed to satisfy constraint: Member must be {wanted}",
    )


def _missing(name: str) -> _Refused:
    return _Refused(
        400,
        "ValidationException",
        f"1 validation error detected: Value null at '{name}' failed to satisfy constraint: Member must not be null",
    )


def _error(refused: _Refused, request_id: str) -> Response:
    body = {
        "Type": "User" if refused.status < 500 else "Service",
        "Message": refused.message,
        "message": refused.message,
        **refused.more,
    }
    headers = (*_JSON, (b"x-amzn-errortype", refused.kind.encode()))
    return Response(refused.status, msgspec.json.encode(body), headers, request_id)
