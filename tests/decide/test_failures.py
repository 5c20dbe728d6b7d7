"""What a failure means. Other libraries' exceptions are stood in for by classes of the same module and name.

The shapes (attributes, wrapping, messages) were taken from real exceptions of httpx 0.28, requests 2.34, urllib3 2.6,
aiohttp 3.14, botocore 1.44, psycopg 3.3, psycopg2 2.9, asyncpg 0.31, redis 8.1 and SQLAlchemy 2.1.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sqlite3
import ssl
import subprocess
import urllib.error
from email.message import Message
from types import SimpleNamespace
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold import errors, limits
from onefold.errors import UsageError
from onefold.observe import wording
from onefold.record import failures
from onefold.record.error_text import error_name, summary_of, text_of
from onefold.record.failures import (
    Lists,
    Ruling,
    check_lists,
    classify,
    is_named,
    judge,
)

NOW_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC


def lookalike(dotted: str, *bases: type, **members: Any) -> type[Exception]:
    """A class that calls itself by the module and name of another library's."""
    module, _, name = dotted.rpartition(".")
    return type(name, bases or (Exception,), {"__module__": module, **members})


def ruling(error: BaseException, **options: Any) -> Ruling:
    return judge(error, now_ms=NOW_MS, **options)


# ------------------------------------------------------------------------------------------------- by class and name

HTTPX = lookalike("httpx.HTTPError")
HTTPX_REQUEST = lookalike("httpx.RequestError", HTTPX)
HTTPX_TRANSPORT = lookalike("httpx.TransportError", HTTPX_REQUEST)
HTTPX_TIMEOUT = lookalike("httpx.TimeoutException", HTTPX_TRANSPORT)
HTTPX_NETWORK = lookalike("httpx.NetworkError", HTTPX_TRANSPORT)
HTTPX_PROTOCOL = lookalike("httpx.ProtocolError", HTTPX_TRANSPORT)
REQUESTS = lookalike("requests.exceptions.RequestException", OSError)
REQUESTS_CONNECTION = lookalike("requests.exceptions.ConnectionError", REQUESTS)
REQUESTS_TIMEOUT = lookalike("requests.exceptions.Timeout", REQUESTS)
URLLIB3 = lookalike("urllib3.exceptions.HTTPError")
URLLIB3_TIMEOUT = lookalike("urllib3.exceptions.TimeoutError", URLLIB3)
URLLIB3_CONNECT = lookalike("urllib3.exceptions.ConnectTimeoutError", URLLIB3_TIMEOUT)
AIOHTTP = lookalike("aiohttp.client_exceptions.ClientError")
AIOHTTP_CONNECTION = lookalike("aiohttp.client_exceptions.ClientConnectionError", AIOHTTP)
AIOHTTP_OS = lookalike("aiohttp.client_exceptions.ClientOSError", AIOHTTP_CONNECTION, OSError)
AIOHTTP_CONNECTOR = lookalike("aiohttp.client_exceptions.ClientConnectorError", AIOHTTP_OS)
AIOHTTP_SERVER = lookalike("aiohttp.client_exceptions.ServerConnectionError", AIOHTTP_CONNECTION)
AIOHTTP_TIMEOUT = lookalike("aiohttp.client_exceptions.ServerTimeoutError", AIOHTTP_SERVER, TimeoutError)
BOTO = lookalike("botocore.exceptions.BotoCoreError")
BOTO_CONNECTION = lookalike("botocore.exceptions.ConnectionError", BOTO)
BOTO_HTTP = lookalike("botocore.exceptions.HTTPClientError", BOTO)
PSYCOPG = lookalike("psycopg.Error")
PSYCOPG_DATABASE = lookalike("psycopg.DatabaseError", PSYCOPG)
PSYCOPG_OPERATIONAL = lookalike("psycopg.OperationalError", PSYCOPG_DATABASE)
REDIS = lookalike("redis.exceptions.RedisError")
REDIS_CONNECTION = lookalike("redis.exceptions.ConnectionError", REDIS)
REDIS_RESPONSE = lookalike("redis.exceptions.ResponseError", REDIS)
ALCHEMY = lookalike("sqlalchemy.exc.SQLAlchemyError")
ALCHEMY_DBAPI = lookalike("sqlalchemy.exc.DBAPIError", ALCHEMY)

UNLISTED, TRANSIENT, SENT, PERMANENT, DOWN = "unlisted", "transient", "sent", "permanent", "dependency-down"

BY_CLASS: list[tuple[BaseException, str]] = [
    # plain Python: the class does not tell whether the payload or the world was wrong
    (ValueError("x"), UNLISTED),
    (TypeError("x"), UNLISTED),
    (KeyError("x"), UNLISTED),
    (AttributeError("x"), UNLISTED),
    (AssertionError("x"), UNLISTED),
    (IndexError("x"), UNLISTED),
    (ZeroDivisionError("x"), UNLISTED),
    (RuntimeError("x"), UNLISTED),
    (RecursionError("x"), UNLISTED),
    (Exception("x"), UNLISTED),
    (FileNotFoundError(2, "x"), UNLISTED),
    (PermissionError(13, "x"), UNLISTED),
    (OSError(28, "No space left"), UNLISTED),
    (json.JSONDecodeError("half an answer", "", 0), UNLISTED),
    (NotImplementedError("x"), PERMANENT),
    (MemoryError(), TRANSIENT),
    (ConnectionRefusedError(111, "refused"), TRANSIENT),
    (BlockingIOError(), TRANSIENT),
    (socket.gaierror(-2, "no such host"), TRANSIENT),
    (TimeoutError("timed out"), SENT),
    (ConnectionResetError(104, "reset"), SENT),
    (ConnectionAbortedError(), SENT),
    (BrokenPipeError(), SENT),
    (ConnectionError(), SENT),
    (asyncio.CancelledError(), SENT),
    (KeyboardInterrupt(), SENT),
    (SystemExit(0), SENT),
    (GeneratorExit(), SENT),
    (lookalike("trio.Cancelled", BaseException)("x"), SENT),
    (lookalike("billiard.exceptions.SoftTimeLimitExceeded")("x"), SENT),
    (lookalike("gevent.timeout.Timeout", BaseException)("x"), SENT),
    (lookalike("rq.timeouts.JobTimeoutException", lookalike("rq.timeouts.BaseTimeoutException"))("x"), SENT),
    (lookalike("dramatiq.middleware.threading.Interrupt", BaseException)("x"), SENT),
    (asyncio.IncompleteReadError(b"", 3), SENT),
    (subprocess.TimeoutExpired("cmd", 3), SENT),
    (ssl.SSLError("handshake"), TRANSIENT),
    (ssl.SSLEOFError("eof"), SENT),
    (ssl.SSLCertVerificationError("expired"), DOWN),
    (http.client.RemoteDisconnected("closed"), SENT),
    (http.client.IncompleteRead(b"x"), SENT),
    (http.client.InvalidURL("x"), PERMANENT),
    (http.client.CannotSendRequest(), TRANSIENT),
    (urllib.error.ContentTooShortError("x", None), SENT),  # type: ignore[arg-type]
    (sqlite3.OperationalError("database is locked"), TRANSIENT),
    (sqlite3.IntegrityError("UNIQUE"), PERMANENT),
    # httpx
    (lookalike("httpx.ConnectError", HTTPX_NETWORK)("refused"), TRANSIENT),
    (lookalike("httpx.ConnectTimeout", HTTPX_TIMEOUT)("x"), TRANSIENT),
    (lookalike("httpx.PoolTimeout", HTTPX_TIMEOUT)("x"), TRANSIENT),
    (lookalike("httpx.ProxyError", HTTPX_TRANSPORT)("x"), TRANSIENT),
    (lookalike("httpx.DecodingError", HTTPX_REQUEST)("x"), TRANSIENT),
    (lookalike("httpx.ReadTimeout", HTTPX_TIMEOUT)("x"), SENT),
    (lookalike("httpx.WriteTimeout", HTTPX_TIMEOUT)("x"), SENT),
    (lookalike("httpx.ReadError", HTTPX_NETWORK)("x"), SENT),
    (lookalike("httpx.WriteError", HTTPX_NETWORK)("x"), SENT),
    (lookalike("httpx.CloseError", HTTPX_NETWORK)("x"), SENT),
    (lookalike("httpx.RemoteProtocolError", HTTPX_PROTOCOL)("Server disconnected"), SENT),
    (lookalike("httpx.LocalProtocolError", HTTPX_PROTOCOL)("x"), PERMANENT),
    (lookalike("httpx.UnsupportedProtocol", HTTPX_TRANSPORT)("x"), PERMANENT),
    (lookalike("httpx.InvalidURL")("x"), PERMANENT),
    (lookalike("httpx.TooManyRedirects", HTTPX_REQUEST)("x"), PERMANENT),
    (lookalike("httpx.ResponseNotRead", RuntimeError)("x"), UNLISTED),
    # requests
    (lookalike("requests.exceptions.ConnectTimeout", REQUESTS_CONNECTION, REQUESTS_TIMEOUT)("x"), TRANSIENT),
    (lookalike("requests.exceptions.ProxyError", REQUESTS_CONNECTION)("x"), TRANSIENT),
    (lookalike("requests.exceptions.SSLError", REQUESTS_CONNECTION)("x"), TRANSIENT),
    (lookalike("requests.exceptions.ReadTimeout", REQUESTS_TIMEOUT)("x"), SENT),
    (REQUESTS_CONNECTION("aborted"), SENT),
    (lookalike("requests.exceptions.ChunkedEncodingError", REQUESTS)("x"), SENT),
    (lookalike("requests.exceptions.InvalidURL", REQUESTS, ValueError)("x"), PERMANENT),
    (lookalike("requests.exceptions.MissingSchema", REQUESTS, ValueError)("x"), PERMANENT),
    (lookalike("requests.exceptions.TooManyRedirects", REQUESTS)("x"), PERMANENT),
    # urllib3
    (lookalike("urllib3.exceptions.NewConnectionError", URLLIB3_CONNECT)("x"), TRANSIENT),
    (lookalike("urllib3.exceptions.ReadTimeoutError", URLLIB3_TIMEOUT)("x"), SENT),
    (lookalike("urllib3.exceptions.ProtocolError", URLLIB3)("x"), SENT),
    (lookalike("urllib3.exceptions.DecodeError", URLLIB3)("x"), TRANSIENT),
    # aiohttp
    (lookalike("aiohttp.client_exceptions.ClientConnectorDNSError", AIOHTTP_CONNECTOR)("x"), TRANSIENT),
    (lookalike("aiohttp.client_exceptions.ConnectionTimeoutError", AIOHTTP_TIMEOUT)("x"), TRANSIENT),
    (lookalike("aiohttp.client_exceptions.SocketTimeoutError", AIOHTTP_TIMEOUT)("x"), SENT),
    (lookalike("aiohttp.client_exceptions.ServerDisconnectedError", AIOHTTP_SERVER)("x"), SENT),
    (lookalike("aiohttp.client_exceptions.ClientPayloadError", AIOHTTP)("x"), SENT),
    (AIOHTTP_OS(32, "broken pipe"), SENT),
    (lookalike("aiohttp.client_exceptions.ClientConnectorCertificateError", AIOHTTP_CONNECTOR)("x"), DOWN),
    (lookalike("aiohttp.client_exceptions.InvalidURL", AIOHTTP, ValueError)("x"), PERMANENT),
    # botocore
    (lookalike("botocore.exceptions.EndpointConnectionError", BOTO_CONNECTION)("x"), TRANSIENT),
    (lookalike("botocore.exceptions.ConnectTimeoutError", BOTO_CONNECTION)("x"), TRANSIENT),
    (lookalike("botocore.exceptions.ReadTimeoutError", BOTO_HTTP)("x"), SENT),
    (lookalike("botocore.exceptions.ConnectionClosedError", BOTO_HTTP)("x"), SENT),
    (lookalike("botocore.exceptions.WaiterError", BOTO)("x"), TRANSIENT),
    (lookalike("botocore.exceptions.ParamValidationError", BOTO)("x"), PERMANENT),
    (lookalike("botocore.exceptions.NoCredentialsError", BOTO)("x"), DOWN),
    (lookalike("botocore.exceptions.UnauthorizedSSOTokenError", lookalike("botocore.exceptions.SSOError", BOTO))("x"), DOWN),
    (lookalike("boto3.exceptions.S3UploadFailedError")("x"), TRANSIENT),
    # databases without a SQLSTATE
    (PSYCOPG_OPERATIONAL("consuming input failed: server closed the connection unexpectedly"), SENT),
    (PSYCOPG_OPERATIONAL('connection failed: connection to server at "x", port 1 failed: Connection refused'), TRANSIENT),
    (PSYCOPG_OPERATIONAL("failed to resolve host 'x': Name or service not known"), TRANSIENT),
    (lookalike("psycopg.errors.ConnectionTimeout", PSYCOPG_OPERATIONAL)("connection timeout expired"), TRANSIENT),
    (lookalike("psycopg_pool.PoolTimeout", PSYCOPG_OPERATIONAL)("x"), TRANSIENT),
    (lookalike("psycopg2.OperationalError")('could not translate host name "x"'), TRANSIENT),
    (lookalike("psycopg2.OperationalError")("server closed the connection unexpectedly"), SENT),
    (lookalike("psycopg.IntegrityError", PSYCOPG_DATABASE)("x"), PERMANENT),
    (lookalike("asyncpg.exceptions._base.InterfaceError")("connection is closed"), TRANSIENT),
    (lookalike("sqlalchemy.exc.TimeoutError", ALCHEMY)("QueuePool limit"), TRANSIENT),
    (lookalike("sqlalchemy.orm.exc.StaleDataError", ALCHEMY)("x"), TRANSIENT),
    (lookalike("sqlalchemy.exc.NoResultFound", ALCHEMY)("x"), UNLISTED),
    # redis
    (REDIS_CONNECTION("Error 111 connecting to localhost:1. Connection refused."), TRANSIENT),
    (REDIS_CONNECTION("Connection closed by server."), SENT),
    (lookalike("redis.exceptions.TimeoutError", REDIS)("Timeout reading from socket"), SENT),
    (lookalike("redis.exceptions.BusyLoadingError", REDIS_CONNECTION)("x"), TRANSIENT),
    (lookalike("redis.exceptions.ReadOnlyError", REDIS_RESPONSE)("x"), TRANSIENT),
    (lookalike("redis.exceptions.AuthenticationError", REDIS_CONNECTION)("x"), DOWN),
    (lookalike("redis.exceptions.NoPermissionError", REDIS_RESPONSE)("x"), DOWN),
    (lookalike("redis.exceptions.DataError", REDIS)("x"), PERMANENT),
    (REDIS_RESPONSE("WRONGTYPE"), UNLISTED),
    # validation is semantic
    (lookalike("jsonschema.exceptions.ValidationError")("x"), PERMANENT),
    (lookalike("marshmallow.exceptions.ValidationError", ValueError)("x"), PERMANENT),
    (msgspec.ValidationError("x"), PERMANENT),
    # the same names in a user's own modules mean nothing
    (lookalike("shop.httpx.ReadTimeout")("x"), UNLISTED),
    (lookalike("shop.errors.ConnectionError")("x"), UNLISTED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "meaning"), BY_CLASS, ids=lambda one: one if isinstance(one, str) else error_name(one)
)
def test_a_class_means_what_its_library_means_by_it(error: BaseException, meaning: str) -> None:
    found = ruling(error)
    expected = {
        UNLISTED: ("transient", False, False),
        TRANSIENT: ("transient", True, False),
        SENT: ("unknown", True, True),
        PERMANENT: ("permanent", True, False),
        DOWN: ("dependency-down", True, False),
    }[meaning]
    assert (found.kind, found.listed, found.sent) == expected
    assert found.retry_in_ms is None
    assert classify(error, now_ms=NOW_MS).kind == found.kind


def test_every_row_of_the_class_table_is_reached_by_its_own_class() -> None:
    for (package, name), meaning in failures.CLASSES.items():
        found = ruling(lookalike(f"{package}.inner.{name}")())
        assert found.sent == (meaning == "sent"), (package, name)
        assert found.kind == {"down": "dependency-down", "sent": "unknown"}.get(meaning, meaning), (
            package,
            name,
        )
        assert found.rule.startswith(f"{package}.{name}")


def test_a_class_has_one_meaning() -> None:
    pairs = [
        (package, name)
        for package, meanings in failures._CLASSES.items()
        for names in meanings.values()
        for name in names.split()
    ]
    assert len(pairs) == len(set(pairs)) == len(failures.CLASSES)


# -------------------------------------------------------------------------------- requests that may have been carried out


@pytest.mark.parametrize(
    ("method", "kind"),
    [("GET", "transient"), ("head", "transient"), ("OPTIONS", "transient"), ("POST", "unknown"), ("PUT", "unknown"),
     ("DELETE", "unknown"), ("PATCH", "unknown"), (None, "unknown")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["httpx.ReadTimeout", "requests.exceptions.ReadTimeout"])
def test_a_lost_answer_to_a_method_that_changes_nothing_is_transient(name: str, method: str | None, kind: str) -> None:
    error = lookalike(name)("timed out")
    error.request = SimpleNamespace(method=method)  # type: ignore[attr-defined]
    found = ruling(error)
    assert found.kind == kind
    assert found.sent == (kind == "unknown")


def test_an_httpx_error_without_its_request_is_unknown() -> None:
    def no_request(self: Exception) -> None:
        raise RuntimeError("The .request property has not been set.")

    assert ruling(lookalike("httpx.ReadTimeout", request=property(no_request))("x")).kind == "unknown"


def test_where_a_repetition_is_welcome_a_lost_answer_is_transient() -> None:
    found = ruling(TimeoutError(), sent="transient")
    assert (found.kind, found.sent, found.listed) == ("transient", True, True)


def test_an_unrelated_context_does_not_make_a_lost_answer_safe() -> None:
    error = lookalike("httpx.ReadTimeout")("x")
    error.__context__ = ConnectionRefusedError()
    assert ruling(error).kind == "unknown"


# ------------------------------------------------------------------------------------------------------------- wrappers


def test_requests_tells_refused_from_aborted_by_what_it_wraps() -> None:
    refused = lookalike("urllib3.exceptions.MaxRetryError", URLLIB3)("Max retries exceeded")
    refused.reason = lookalike("urllib3.exceptions.NewConnectionError", URLLIB3_CONNECT)("refused")  # type: ignore[attr-defined]
    assert ruling(REQUESTS_CONNECTION(refused)).kind == "transient"
    aborted = lookalike("urllib3.exceptions.ProtocolError", URLLIB3)("Connection aborted.")
    assert ruling(REQUESTS_CONNECTION(aborted)).kind == "unknown"
    expired = lookalike("urllib3.exceptions.SSLError", URLLIB3)(ssl.SSLCertVerificationError("expired"))
    assert ruling(lookalike("requests.exceptions.SSLError", REQUESTS_CONNECTION)(expired)).kind == "dependency-down"


def test_urllib_tells_by_its_reason() -> None:
    assert ruling(urllib.error.URLError(ConnectionRefusedError())).rule == "builtins.ConnectionRefusedError"
    assert ruling(urllib.error.URLError(TimeoutError())).kind == "unknown"
    assert ruling(urllib.error.URLError(ssl.SSLCertVerificationError())).kind == "dependency-down"
    assert ruling(urllib.error.URLError("unknown url type")).kind == "transient"


def test_httpx_and_httpcore_hide_an_expired_certificate_and_nothing_else() -> None:
    inner = lookalike("httpcore.ConnectError")
    for cause, kind in (
        (inner(ssl.SSLCertVerificationError("expired")), "dependency-down"),
        (inner(ConnectionResetError()), "transient"),
        (inner(TimeoutError()), "transient"),
        (None, "transient"),
    ):
        error = lookalike("httpx.ConnectError", HTTPX_NETWORK)("x")
        error.__cause__ = cause
        assert ruling(error).kind == kind


def test_sqlalchemy_tells_by_the_drivers_error() -> None:
    for orig, kind, rule in (
        (
            lookalike("psycopg.errors.SerializationFailure", sqlstate="40001")("x"),
            "transient",
            "sqlstate 40001",
        ),
        (lookalike("psycopg.errors.UniqueViolation", sqlstate="23505")("x"), "permanent", "sqlstate 23505"),
        (sqlite3.IntegrityError("x"), "permanent", "sqlite3.IntegrityError"),
        (ValueError("not a driver's"), "transient", "sqlalchemy.OperationalError"),
    ):
        error = lookalike("sqlalchemy.exc.OperationalError", ALCHEMY_DBAPI)("x")
        error.orig = orig  # type: ignore[attr-defined]
        found = ruling(error)
        assert (found.kind, found.rule) == (kind, rule)


def test_a_wrapper_around_itself_ends() -> None:
    one, other = urllib.error.URLError("x"), urllib.error.URLError("y")
    one.reason, other.reason = other, one
    assert ruling(one).kind == "transient"


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([ValueError(), TimeoutError()], "unknown"),
        ([errors.DependencyDown("x"), errors.PermanentError("x")], "dependency-down"),
        ([ValueError(), errors.PermanentError("x")], "permanent"),
        ([ValueError(), ConnectionRefusedError()], "transient"),
        ([ExceptionGroup("inner", [TimeoutError()]), ValueError()], "unknown"),
    ],
)
def test_a_group_is_as_bad_as_its_worst_part(parts: list[Exception], kind: str) -> None:
    assert ruling(ExceptionGroup("group", parts)).kind == kind


# ----------------------------------------------------------------------------------------------------------------- HTTP


def with_status(place: str, status: object, headers: Any = None) -> BaseException:
    error = lookalike("partner.ApiError")("x")
    if place.startswith("response."):
        error.response = SimpleNamespace(**{place.partition(".")[2]: status, "headers": headers})  # type: ignore[attr-defined]
    else:
        setattr(error, place, status)
        error.headers = headers  # type: ignore[attr-defined]
    return error


PLACES = ["response.status_code", "response.status", "status_code", "status", "http_status"]


@pytest.mark.parametrize("place", PLACES)
def test_every_http_status_wherever_it_stands(place: str) -> None:
    for status in range(400, 600):
        kind = "permanent"
        if status in (408, 425, 429) or status >= 500:
            kind = "transient"
        elif status in (401, 403, 407):
            kind = "dependency-down"
        assert ruling(with_status(place, status)) == Ruling(kind=kind, rule=f"HTTP {status}")  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [None, 0, 99, 200, 302, 399, 600, 1000, "429", True, object()])
def test_what_is_no_failing_status_is_not_taken_for_one(status: object) -> None:
    assert not ruling(with_status("status", status)).listed
    assert not ruling(with_status("response.status_code", status)).listed


def test_a_response_that_is_false_is_still_read() -> None:
    class Falsy(SimpleNamespace):
        def __bool__(self) -> bool:
            return False  # as requests.Response is for 4xx

    error = lookalike("requests.exceptions.HTTPError", REQUESTS)("x")
    error.response = Falsy(status_code=404, headers={})  # type: ignore[attr-defined]
    assert ruling(error).kind == "permanent"


def test_an_answer_without_a_response_is_told_by_its_class() -> None:
    error = lookalike("requests.exceptions.ReadTimeout", REQUESTS_TIMEOUT)("x")
    error.response = None  # type: ignore[attr-defined]
    assert ruling(error).kind == "unknown"


def test_urllibs_own_http_error() -> None:
    headers = Message()
    headers["Retry-After"] = "3"
    error = urllib.error.HTTPError("http://x", 503, "busy", headers, None)
    found = ruling(error)
    assert (found.kind, found.retry_in_ms) == ("transient", 3_000)
    error.close()


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        ("7", 7_000),
        ("0", 0),
        ("1.5", 1_500),
        ("0.0001", 1),
        (7, 7_000),
        ("999999", limits.VISIBILITY_MS_MAX),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60_000),
        ("Tue, 14 Nov 2023 22:14:20 -0000", 60_000),
        ("Tue, 14 Nov 2023 22:12:20 GMT", 0),  # past
        ("Tue, 14 Nov 2033 22:12:20 GMT", limits.VISIBILITY_MS_MAX),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("1e9", None),
        ("Mon, 01 Jan 30000000000000000000000000000000 00:00:00 GMT", None),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0),
        ("Fri, 31 Dec 9999 23:59:59 -2359", limits.VISIBILITY_MS_MAX),
        ("Tue, 14 Nov 2023 22:14:20 +99999999999999999999", None),
    ],
)
@pytest.mark.parametrize("name", ["Retry-After", "retry-after"])
def test_retry_after_is_honoured_in_both_its_forms(name: str, value: object, wait_ms: int | None) -> None:
    assert ruling(with_status("response.status_code", 429, {name: value})).retry_in_ms == wait_ms
    assert ruling(with_status("status", 503, {name: value})).retry_in_ms == wait_ms
    assert ruling(with_status("status", 403, {name: value})).retry_in_ms == wait_ms
    assert ruling(with_status("status", 404, {name: value})).retry_in_ms is None
    assert [ruling(with_status("status", status, {name: value})).kind for status in (403, 422)] == [DOWN, PERMANENT]


def test_headers_that_are_none_are_no_headers() -> None:
    assert ruling(with_status("status", 429, None)).retry_in_ms is None
    assert ruling(with_status("status", 429, object())).retry_in_ms is None


# ------------------------------------------------------------------------------------------------------------------ AWS


def client_error(code: str, status: int = 400, **more: Any) -> BaseException:
    error = lookalike("botocore.exceptions.ClientError")(f"An error occurred ({code}) when calling PutItem: x")
    error.response = {  # type: ignore[attr-defined]
        "Error": {"Code": code, "Message": "x"},
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": more.pop("headers", {})},
        **more,
    }
    return error


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        (failures.AWS_TRANSIENT, "transient"),
        (failures.AWS_DOWN, "dependency-down"),
        (failures.AWS_PERMANENT, "permanent"),
    ],
)
def test_aws_codes_before_their_status(codes: frozenset[str], kind: str) -> None:
    for code in codes:
        found = ruling(client_error(code))
        assert (found.kind, found.rule) == (kind, f"AWS {code}")


def test_aws_code_sets_do_not_overlap() -> None:
    assert not failures.AWS_TRANSIENT & failures.AWS_DOWN
    assert not (failures.AWS_TRANSIENT | failures.AWS_DOWN) & failures.AWS_PERMANENT


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("SomethingNew", 400, "permanent"),
        ("SomethingNew", 403, "dependency-down"),
        ("SomethingNew", 429, "transient"),
        ("503", 503, "transient"),
        ("InternalServerError", 500, "transient"),
    ],
)
def test_other_aws_codes_by_their_status(code: str, status: int, kind: str) -> None:
    assert ruling(client_error(code, status)).kind == kind


def test_aws_retry_after() -> None:
    assert ruling(client_error("SlowDown", 503, headers={"retry-after": "4"})).retry_in_ms == 4_000
    assert ruling(client_error("Odd", 503, headers={"retry-after": "4"})).retry_in_ms == 4_000


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (["None", "TransactionConflict"], "transient"),
        (["ThrottlingError", "TransactionConflict"], "transient"),
        (["ConditionalCheckFailed", "None"], "permanent"),
        (["TransactionConflict", "ConditionalCheckFailed"], "permanent"),
        (["ValidationError"], "permanent"),
        ([], "permanent"),
    ],
)
def test_a_cancelled_transaction_by_its_reasons(reasons: list[str], kind: str) -> None:
    error = client_error("TransactionCanceledException", CancellationReasons=[{"Code": one} for one in reasons])
    assert ruling(error).kind == kind


@pytest.mark.parametrize("response", [{}, {"Error": "x"}, {"Error": {}}, [], "x"])
def test_what_only_looks_like_an_aws_answer(response: object) -> None:
    error = lookalike("botocore.exceptions.ClientError")("x")
    error.response = response  # type: ignore[attr-defined]
    assert ruling(error) == Ruling(kind="transient", rule="unlisted", listed=False)


# ------------------------------------------------------------------------------------------------------------- SQLSTATE


@pytest.mark.parametrize("attribute", ["sqlstate", "pgcode"])
@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("40001", "transient"),
        ("40P01", "transient"),
        ("40003", "unknown"),
        ("08000", "transient"),
        ("08001", "transient"),
        ("08003", "unknown"),
        ("08006", "unknown"),
        ("08007", "unknown"),
        ("53300", "transient"),
        ("53100", "transient"),
        ("55P03", "transient"),
        ("57P01", "transient"),
        ("57P03", "transient"),
        ("57014", "transient"),
        ("58030", "transient"),
        ("25006", "transient"),
        ("23505", "permanent"),
        ("23502", "permanent"),
        ("22003", "permanent"),
        ("21000", "permanent"),
        ("42601", "permanent"),
        ("54000", "permanent"),
        ("28P01", "dependency-down"),
        ("28000", "dependency-down"),
        ("42501", "dependency-down"),
        ("42P01", "dependency-down"),
        ("42703", "dependency-down"),
        ("3D000", "dependency-down"),
    ],
)
def test_sqlstates_of_any_driver(attribute: str, state: str, kind: str) -> None:
    found = ruling(lookalike("asyncpg.exceptions.Some", **{attribute: state})("x"))
    assert found.kind == kind
    assert found.rule.startswith(f"sqlstate {state}")


@pytest.mark.parametrize("state", ["P0001", "XX000", "", "4000", None, 40001])
def test_other_sqlstates_tell_nothing(state: object) -> None:
    assert not ruling(lookalike("asyncpg.exceptions.Some", sqlstate=state)("x")).listed


# ------------------------------------------------------------------------------------------- onefold's own, a job's own


@pytest.mark.parametrize(
    ("error", "kind", "wait_ms"),
    [
        (errors.TransientError("x"), "transient", None),
        (errors.TransientError("x", retry_in_ms=5), "transient", 5),
        (errors.TransientError("x", retry_in_ms=-5), "transient", 0),
        (errors.OverLimitError("x"), "transient", None),
        (errors.StorageBusy("x", retry_in_ms=7), "transient", 7),
        (errors.PermanentError("x"), "permanent", None),
        (errors.DependencyDown("x", retry_in_ms=10**12), "dependency-down", limits.VISIBILITY_MS_MAX),
        (errors.OutcomeUnknown("x"), "unknown", None),
        (errors.InvariantBroken("x"), "unknown", None),
        (errors.UsageError("x"), "permanent", None),
        (errors.PayloadError("x"), "permanent", None),
        (errors.ConflictError("x"), "permanent", None),
        (errors.NotFoundError("x"), "permanent", None),
        (errors.StorageError("x"), "dependency-down", None),
    ],
    ids=lambda one: type(one).__name__,
)
def test_onefolds_own_errors_say_what_they_mean(error: Exception, kind: str, wait_ms: int | None) -> None:
    found = ruling(error)
    assert (found.kind, found.retry_in_ms, found.listed) == (kind, wait_ms, True)
    assert classify(error, now_ms=NOW_MS).retry_in_ms == wait_ms


def test_a_raised_outcome_unknown_is_unknown_wherever_repeating_is_welcome() -> None:
    assert ruling(errors.OutcomeUnknown("x"), sent="transient").kind == "unknown"


class CardError(Exception):
    pass


class Declined(CardError):
    pass


class Given(errors.PermanentError):
    pass


@pytest.mark.parametrize(
    ("error", "lists", "kind"),
    [
        (CardError(), Lists(permanent=(CardError,)), "permanent"),
        (Declined(), Lists(permanent=(CardError,)), "permanent"),
        (Declined(), Lists(permanent=(CardError,), transient=(Declined,)), "transient"),
        (Declined(), Lists(transient=(CardError,), permanent=(Declined,)), "permanent"),
        (CardError(), Lists(permanent=(Declined,)), "transient"),
        (ValueError(), Lists(permanent=("ValueError",)), "permanent"),
        (UnicodeDecodeError("utf-8", b"", 0, 1, ""), Lists(permanent=("ValueError",)), "permanent"),
        (TimeoutError(), Lists(transient=(TimeoutError,)), "transient"),
        (ConnectionResetError(), Lists(permanent=(OSError,)), "permanent"),
        (KeyError(), Lists(unknown=(LookupError,)), "unknown"),
        (errors.PermanentError("x"), Lists(transient=(Exception,)), "permanent"),
        (Given("x"), Lists(transient=(Given,)), "transient"),
        (Given("x"), Lists(transient=(errors.OnefoldError,)), "permanent"),
    ],
    ids=str,
)
def test_a_jobs_lists_come_first_and_the_nearest_class_wins(error: Exception, lists: Lists, kind: str) -> None:
    assert ruling(error, lists=lists).kind == kind
    found = classify(error, now_ms=NOW_MS, transient=lists.transient, permanent=lists.permanent, unknown=lists.unknown)
    assert found.kind == kind


def test_a_jobs_list_beats_status_and_table() -> None:
    error = lookalike("stripe._error.CardError", http_status=402)("declined")
    assert ruling(error).kind == "permanent"
    assert ruling(error, lists=Lists(transient=("stripe.CardError",))).kind == "transient"


@pytest.mark.parametrize(
    ("dotted", "fits"),
    [
        ("requests.exceptions.ReadTimeout", True),
        ("requests.ReadTimeout", True),
        ("requests.exceptions", False),
        ("request.ReadTimeout", False),
        ("requests.Timeout", False),
        ("ReadTimeout", False),
        ("requests.except.ReadTimeout", False),
    ],
)
def test_a_dotted_name_may_leave_out_inner_modules(dotted: str, fits: bool) -> None:
    assert is_named(lookalike("requests.exceptions.ReadTimeout"), dotted) is fits


def test_lists_are_checked_at_declaration() -> None:
    check_lists(Lists(transient=(ValueError, "stripe.CardError"), permanent=("KeyError",)), "book")
    for lists, said in (
        (Lists(transient=("not a name",)), "'not a name', which is not an exception class"),
        (Lists(permanent=(int,)), "not an exception class"),  # type: ignore[arg-type]
        (Lists(permanent=(5,)), "not an exception class"),  # type: ignore[arg-type]
        (
            Lists(transient=("ValueEror",)),
            "has 'ValueEror', and Python has no exception class of that name. Did you",
        ),
        (Lists(permanent=("CardDeclined",)), "no exception class of that name. Name a class of your own"),
        (Lists(transient=(ValueError,), permanent=(ValueError,)), "is in transient= and in permanent="),
        (Lists(transient=("a.B",), unknown=("a.B",)), "is in transient= and in unknown="),
    ):
        with pytest.raises(errors.UsageError, match=said) as caught:
            check_lists(lists, "book")
        assert "book" in str(caught.value)


# ---------------------------------------------------------------------------------------------------- never raises, words


class Hostile(Exception):
    @property
    def response(self) -> object:
        raise OSError("no")

    def __str__(self) -> str:
        raise OSError("no")


def test_a_strange_exception_object_still_has_an_answer() -> None:
    failed = classify(Hostile(), now_ms=NOW_MS)
    assert (failed.kind, failed.summary) == ("transient", "Hostile")


@given(st.text())
def test_any_message_gives_one_short_line(text: str) -> None:
    summary = summary_of(RuntimeError(text))
    assert 0 < len(summary) <= 500
    assert not set(summary) & set("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")


class Refund(pydantic.BaseModel):
    amount: int


def validation_error() -> Exception:
    try:
        Refund.model_validate({"amount": "secret"})
    except pydantic.ValidationError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (RuntimeError("one\n\n two\n"), "one [+1 line]"),
        (RuntimeError("x" * 600 + "\ntwo\nthree"), "x" * 486 + "... [+2 lines]"),
        (RuntimeError("a\x1b[31m\u202e\x9b b"), r"a\x1b[31m\u202e\x9b b"),
        (RuntimeError("  one \t two  "), "one two"),
        (TimeoutError(), "TimeoutError"),
        (KeyError("name"), "'name'"),
        (RuntimeError("x" * 600), "x" * 497 + "..."),
        (RuntimeError("404 for url: https://user:pw@host/a?token=secret (more)"), "404 for url: https://***@host/a (more)"),
        (RuntimeError("Max retries exceeded with url: /a?token=secret"), "Max retries exceeded with url: /a"),
        (RuntimeError("postgresql://u:pw@host/db failed"), "postgresql://***@host/db failed"),
        (RuntimeError("is it so? yes"), "is it so? yes"),
        (
            lookalike("psycopg.errors.UniqueViolation")('duplicate key "k"\nDETAIL:  Key (mail)=(secret) already exists.'),
            'duplicate key "k" [+1 line]',
        ),
        (lookalike("botocore.exceptions.ParamValidationError")("Parameter failed:\nsecret"), "Parameter failed [+1 line]"),
        (
            validation_error(),
            "1 validation error(s): amount: Input should be a valid integer, unable to parse string as an integer",
        ),
        (ExceptionGroup("g", [ValueError("a"), KeyError("b")]), "g: 2 errors: ValueError: a; KeyError: 'b'"),
        (errors.PermanentError("refused", meaning="by hand", todo="ask"), "refused. by hand. ask"),
        (errors.PayloadError("field $.a", meaning="The value is secret.", todo="Send text."), "field $.a Send text."),
    ],
    ids=str,
)  # fmt: skip
def test_a_summary_is_one_line_without_payload_or_secrets(error: Exception, summary: str) -> None:
    assert summary_of(error) == summary
    assert classify(error, now_ms=NOW_MS).summary == summary


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            lookalike("psycopg.errors.UniqueViolation")('duplicate key "k"\nDETAIL:  Key (id)=(1) already exists.\n'),
            'duplicate key "k"\nDETAIL: Key (id)=(1) already exists.',
        ),
        (
            validation_error(),
            "1 validation error(s):\namount: Input should be a valid integer, unable to parse string as an integer",
        ),
        (RuntimeError("\n".join("abcdefgh")), "a\nb\nc\nd\ne\nf\ng\nh"),
        (RuntimeError("\n".join("abcdefghij")), "a\nb\nc\nd\ne\nf\ng\n... 3 more lines"),
        (RuntimeError("x" * 3_000), "x" * 1_997 + "..."),
        (RuntimeError("one\r\n  two\x1b[2J\n\u2066three\ud800"), "one\n  two\\x1b[2J\n\\u2066three\\ud800"),
        (RuntimeError('at\npassword="first\nsecond" and\nthe end'), 'at\npassword="***" and\nthe end'),
        (
            RuntimeError("no key:\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabcd\n-----END RSA PRIVATE KEY-----\nend"),
            "no key:\n***\nend",
        ),
        (TimeoutError(), "TimeoutError"),
        (Hostile(), "Hostile"),
    ],
)  # fmt: skip
def test_the_whole_text_has_a_few_lines_without_secrets(error: Exception, text: str) -> None:
    assert text_of(error) == text


@given(st.text(), st.integers(0, 3_000))
def test_no_text_is_longer_than_its_bound_or_steers_a_terminal(text: str, count: int) -> None:
    said = text_of(RuntimeError(text * (1 + count // (len(text) + 1))))
    assert 0 < len(said) <= 2_000
    assert len(said.split("\n")) <= 8
    assert said.replace("\n", "").isprintable()


def test_errors_are_named_as_people_look_them_up() -> None:
    assert error_name(TimeoutError()) == "TimeoutError"
    assert error_name(errors.PermanentError("x")) == "PermanentError"
    assert error_name(lookalike("httpx.ReadTimeout")()) == "httpx.ReadTimeout"
    assert error_name(lookalike("requests.exceptions.ReadTimeout")()) == "requests.exceptions.ReadTimeout"
    assert classify(lookalike("httpx.ReadTimeout")(), now_ms=NOW_MS).error == "httpx.ReadTimeout"


def test_an_exit_says_its_code_and_an_error_without_text_its_class_once() -> None:
    assert summary_of(SystemExit(3)) == "exit code 3"
    assert summary_of(SystemExit("no disk")) == "no disk"
    assert (wording.cause("ValueError", summary_of(ValueError())), wording.cause("exit", "exit code 3")) == (
        "ValueError",
        "exit: exit code 3",
    )
    assert (wording.cause(None, "gone"), wording.cause("exit", "exit code 3")) == ("gone", "exit: exit code 3")


def test_parts_of_an_error_end_with_a_full_stop() -> None:
    error = UsageError("3 is odd", meaning="Nothing was done", todo="Write 4")
    assert str(error) == "3 is odd. Nothing was done. Write 4"
    assert str(UsageError("What now?", todo="Nothing.")) == "What now? Nothing."
