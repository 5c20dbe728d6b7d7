"""Classifies failures: from an exception to `Failed`, with the rule that decided.

The rules are tried in this order, and the first that applies decides:

    1  the job's own lists (transient=, permanent=, unknown=), and onefold's errors: nearest class of the MRO
    2  what the exception carries: a wrapped exception, an AWS error code, an HTTP status, a SQLSTATE
    3  the table of other libraries' classes (below), by name along the MRO
    4  anything else is transient: its cause is not known, and the number of attempts is limited

A request that was sent and whose answer was lost (read timeout, connection reset) may have been carried out. It is
`unknown`, not transient, so that a job's on_unknown policy decides: with `rerun` it is tried again with backoff and uses an
attempt, as a transient failure does; with `hold` or a probe it is not repeated without a decision. Where the request is
known and its method changes nothing (GET), a lost answer is transient.

Never here: importing the libraries it knows, clocks, payloads in summaries.
Invariant: every exception is classified, and classifying it never raises.
"""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from onefold import limits
from onefold.errors import (
    DependencyDown,
    InvariantBroken,
    OutcomeUnknown,
    PermanentError,
    StorageError,
    TransientError,
    UsageError,
)
from onefold.record.delivery import Failed
from onefold.record.error_text import error_name, summary_of, text_of, trace_of

# What other libraries' failures mean, by name: exception classes, HTTP statuses, AWS error codes, SQLSTATEs.
#
# A class is named by its top-level package and its own name, so nothing here imports it; subclasses inherit the meaning of
# the nearest listed class. The meanings:
#
#     transient   nothing was done, or the dependency said "not now": the same call may work later
#     sent        the request may have been carried out and the answer was lost
#     permanent   the same call always fails: the request itself is wrong
#     down        the dependency refuses everybody (credentials, certificate, missing table): not this message's fault
#     unlisted    anything else
#
# Unlisted on purpose: ValueError, TypeError, KeyError, AttributeError, AssertionError and other errors of plain code. The
# same class is raised for a bad payload and for a partner's bad answer (JSONDecodeError is a ValueError; a missing
# field is a KeyError), so the class decides nothing. Treated as transient, it costs a few runs; as permanent, it
# empties a queue into the dead letters on a partner's bad day. A handler that knows better raises PermanentError.
#
# Sources: the libraries' own exception trees (httpx 0.28, requests 2.34, urllib3 2.6, aiohttp 3.14, botocore 1.44,
# psycopg 3.3, asyncpg 0.31, redis 8.1, SQLAlchemy 2.1), botocore's retry lists, PostgreSQL appendix A.

Meaning = Literal["transient", "sent", "permanent", "down"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLASSES: Final[dict[str, dict[Meaning, str]]] = {
    "builtins": {
        "transient": "ConnectionRefusedError BlockingIOError InterruptedError MemoryError",
        "sent": "TimeoutError ConnectionError GeneratorExit",  # GeneratorExit: a coroutine was discarded while it ran
        "permanent": "NotImplementedError",  # one of Python's classes: a handler raised it, and trying again cannot help
    },
    "asyncio": {"sent": "CancelledError IncompleteReadError"},
    "socket": {"transient": "gaierror herror"},
    "ssl": {
        "transient": "SSLError",
        "sent": "SSLEOFError SSLZeroReturnError",
        "down": "SSLCertVerificationError",
    },
    "http": {
        "transient": "HTTPException",
        "sent": "RemoteDisconnected BadStatusLine IncompleteRead",
        "permanent": "InvalidURL",
    },
    "urllib": {"transient": "URLError", "sent": "ContentTooShortError"},
    "subprocess": {"sent": "TimeoutExpired"},
    # Raised into running code by a time limit or a stop, at an unknown point of the run.
    "billiard": {"sent": "SoftTimeLimitExceeded TimeLimitExceeded"},
    "celery": {"sent": "SoftTimeLimitExceeded TimeLimitExceeded"},
    "dramatiq": {"sent": "Interrupt"},
    "eventlet": {"sent": "Timeout"},
    "gevent": {"sent": "Timeout"},
    "greenlet": {"sent": "GreenletExit"},
    "rq": {"sent": "BaseTimeoutException"},
    "sqlite3": {"transient": "OperationalError", "permanent": "IntegrityError DataError"},
    "httpx": {
        "transient": "TransportError RequestError",  # and their ConnectError, ConnectTimeout, PoolTimeout, ProxyError
        "sent": "ReadTimeout WriteTimeout ReadError WriteError CloseError RemoteProtocolError",
        "permanent": "InvalidURL UnsupportedProtocol LocalProtocolError TooManyRedirects",
    },
    "httpcore": {
        "transient": "ConnectError ConnectTimeout PoolTimeout ProxyError ConnectionNotAvailable",
        "sent": "TimeoutException NetworkError RemoteProtocolError",
        "permanent": "UnsupportedProtocol LocalProtocolError",
    },
    "requests": {
        "transient": "RequestException ConnectTimeout ProxyError SSLError",
        "sent": "ConnectionError Timeout ReadTimeout ChunkedEncodingError",
        "permanent": "InvalidURL InvalidSchema MissingSchema InvalidHeader URLRequired TooManyRedirects",
    },
    "urllib3": {
        "transient": "HTTPError ConnectTimeoutError",  # the second has NewConnectionError, NameResolutionError
        "sent": "TimeoutError ReadTimeoutError ProtocolError IncompleteRead InvalidChunkLength",
        "permanent": "LocationValueError InvalidHeader",
    },
    "aiohttp": {
        "transient": "ClientError ClientConnectorError ConnectionTimeoutError ClientSSLError",
        "sent": "ServerTimeoutError ServerDisconnectedError ClientOSError ClientPayloadError ClientConnectionResetError",
        "permanent": "InvalidURL NonHttpUrlClientError TooManyRedirects",
        "down": "ClientConnectorCertificateError ServerFingerprintMismatch",
    },
    "botocore": {
        "transient": "BotoCoreError EndpointConnectionError ConnectTimeoutError ProxyConnectionError",
        "sent": "ReadTimeoutError ConnectionClosedError ResponseStreamingError IncompleteReadError",
        "permanent": "ParamValidationError ValidationError",
        "down": (
            "NoCredentialsError PartialCredentialsError CredentialRetrievalError NoRegionError ProfileNotFound "
            "TokenRetrievalError SSOError LoginError NoAuthTokenError UnknownEndpointError"
        ),
    },
    "boto3": {"transient": "S3UploadFailedError S3TransferFailedError RetriesExceededError"},
    "s3transfer": {"transient": "RetriesExceededError S3UploadFailedError S3DownloadFailedError S3CopyFailedError"},
    # Without a SQLSTATE an OperationalError is a broken connection; during a commit the outcome is not known.
    "psycopg": {
        "transient": "InterfaceError ConnectionTimeout",
        "sent": "OperationalError",
        "permanent": "IntegrityError DataError",
    },
    "psycopg2": {
        "transient": "InterfaceError",
        "sent": "OperationalError",
        "permanent": "IntegrityError DataError",
    },
    "psycopg_pool": {"transient": "PoolTimeout PoolClosed TooManyRequests"},
    "asyncpg": {"transient": "InterfaceError"},
    "redis": {
        "transient": (
            "BusyLoadingError MaxConnectionsError ClusterDownError TryAgainError AskError ReadOnlyError OutOfMemoryError "
            "WatchError ExecAbortError LockError SlotNotCoveredError"
        ),
        "sent": "ConnectionError TimeoutError",
        "permanent": "DataError ClusterCrossSlotError CrossSlotTransactionError",
        "down": "AuthenticationError AuthorizationError NoPermissionError ExternalAuthProviderError",
    },
    "sqlalchemy": {
        "transient": "OperationalError InterfaceError DisconnectionError TimeoutError StaleDataError",
        "permanent": "IntegrityError DataError",
    },
    # Validation errors are permanent: the same payload fails again.
    "msgspec": {"permanent": "ValidationError"},
    "pydantic_core": {"permanent": "ValidationError"},
    "jsonschema": {"permanent": "ValidationError"},
    "marshmallow": {"permanent": "ValidationError"},
}

CLASSES: Final[dict[tuple[str, str], Meaning]] = {
    (package, name): meaning
    for package, meanings in _CLASSES.items()
    for meaning, names in meanings.items()
    for name in names.split()
}

# These libraries have one class for "could not connect" and for "broke in the middle"; the driver's text decides.
NEVER_SENT: Final[dict[tuple[str, str], str]] = {
    ("redis", "ConnectionError"): r"\bconnecting to\b",
    ("psycopg", "OperationalError"): r"connection failed|failed to resolve host",
    ("psycopg2", "OperationalError"): r"connection to server|could not (connect|translate)|timeout expired",
}

# Classes that wrap the failure that matters, and where it is: an attribute's name, or "args" for the first argument.
WRAPPERS: Final[dict[tuple[str, str], str]] = {
    ("requests", "ConnectionError"): "args",
    ("urllib3", "MaxRetryError"): "reason",
    ("urllib3", "SSLError"): "args",
    ("urllib", "URLError"): "reason",
    ("sqlalchemy", "DBAPIError"): "orig",
}
# Here the wrapped failure decides only if the dependency is down (its certificate), otherwise the wrapper's class.
WRAPPERS_DOWN: Final[dict[tuple[str, str], str]] = {
    ("httpx", "ConnectError"): "__cause__",
    ("httpcore", "ConnectError"): "args",
}

# Methods that change nothing (RFC 9110): a request whose answer is lost can be repeated.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

HTTP_TRANSIENT: Final = frozenset({408, 425, 429})  # and 5xx
HTTP_DOWN: Final = frozenset({401, 403, 407})  # 407: the proxy's credentials; all other 4xx are permanent

# botocore/retries/standard.py (throttled and transient codes), and other codes of services with the same meaning.
AWS_TRANSIENT: Final = _names(
    """
    Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException TooManyRequestsException
    ProvisionedThroughputExceededException TransactionInProgressException TransactionConflictException RequestLimitExceeded
    BandwidthLimitExceeded LimitExceededException SlowDown PriorRequestNotComplete EC2ThrottledException OverLimit
    RequestTimeout RequestTimeoutException InternalError InternalFailure InternalServerError ServiceUnavailable KmsThrottled
    KMS.ThrottlingException
    """
)
AWS_DOWN: Final = _names(
    """
    AccessDenied AccessDeniedException AuthFailure ExpiredToken ExpiredTokenException IncompleteSignature InvalidAccessKeyId
    InvalidClientTokenId InvalidSignatureException InvalidToken KmsAccessDenied KmsDisabled KmsNotFound
    MissingAuthenticationToken MissingAuthenticationTokenException NoSuchBucket NotAuthorized OptInRequired
    RequestExpired RequestTimeTooSkewed SignatureDoesNotMatch UnauthorizedOperation UnrecognizedClientException
    AWS.SimpleQueueService.NonExistentQueue QueueDoesNotExist
    """
)
AWS_PERMANENT: Final = _names(
    "ValidationException ValidationError ConditionalCheckFailedException InvalidParameterValue MissingParameter"
)
# Reasons of a TransactionCanceledException that another try can overcome; any other reason makes it permanent.
AWS_CANCELLED_TRANSIENT: Final = _names(
    "None TransactionConflict ThrottlingError ProvisionedThroughputExceeded RequestLimitExceeded"
)

# PostgreSQL SQLSTATE: whole code before class (the first two characters).
SQLSTATES: Final[dict[str, Meaning]] = {
    "08": "transient",  # no connection could be made
    "08003": "sent",  # asyncpg: the connection was closed in the middle of an operation
    "08006": "sent",  # connection failure after it was established
    "08007": "sent",  # transaction resolution unknown
    "21": "permanent",  # cardinality
    "22": "permanent",  # data: out of range, malformed
    "23": "permanent",  # constraint: already exists, must not be null
    "25006": "transient",  # read-only transaction: a failover is under way
    "28": "down",  # authorization
    "3D": "down",  # the database does not exist
    "3F": "down",  # the schema does not exist
    "40": "transient",  # serialization failure, deadlock
    "40003": "sent",  # statement completion unknown
    "42": "permanent",  # syntax
    "42501": "down",  # insufficient privilege
    "42703": "down",  # the column does not exist: a migration is missing
    "42P01": "down",  # the table does not exist: a migration is missing
    "44": "permanent",  # with check option
    "53": "transient",  # out of resources: connections, disk, memory
    "54": "permanent",  # program limit: row too big
    "55": "transient",  # lock not available, object in use
    "57": "transient",  # shutdown, statement timeout
    "58": "transient",  # system error
}


Kind = Literal["transient", "permanent", "dependency-down", "unknown"]
Classes = Iterable[type[BaseException] | str]

_OWN: dict[type, Kind] = {
    TransientError: "transient",
    PermanentError: "permanent",
    DependencyDown: "dependency-down",
    OutcomeUnknown: "unknown",
    InvariantBroken: "unknown",
    StorageError: "dependency-down",  # the database file as a whole
    UsageError: "permanent",
}
_KINDS: dict[Meaning, Kind] = {
    "transient": "transient",
    "permanent": "permanent",
    "down": "dependency-down",
}
_AWS: tuple[tuple[frozenset[str], Kind], ...] = (
    (AWS_TRANSIENT, "transient"),
    (AWS_DOWN, "dependency-down"),
    (AWS_PERMANENT, "permanent"),
)
_DOTTED = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_TEXT_CHARS_MAX = 8_192  # of an exception's own text, before anything reads it
_RETRY_AFTER_CHARS_MAX = 100  # an HTTP date has 29
_DEPTH_MAX = 8  # wrapped exceptions that are followed


class Ruling(Struct, frozen=True, kw_only=True):
    """What a failure means, and why.

    Args:
        kind: as in `Failed`.
        rule: the rule that decided, for people: `HTTP 429`, `sqlstate 40001`, `permanent= of the job`, `unlisted`...
        retry_in_ms: how long the dependency asked us to wait, 0 to 12 h; None when it did not ask.
        listed: True: a rule covers this failure; False: it is transient by default.
        sent: the request may have been carried out.
    """

    kind: Kind
    rule: str
    retry_in_ms: int | None = None
    listed: bool = True
    sent: bool = False


class Lists(Struct, frozen=True):
    """A job's own exception classes, by kind of failure; classes or dotted names (`"stripe.CardError"`)."""

    transient: tuple[type[BaseException] | str, ...] = ()
    permanent: tuple[type[BaseException] | str, ...] = ()
    unknown: tuple[type[BaseException] | str, ...] = ()

    def pairs(self) -> tuple[tuple[Kind, tuple[type[BaseException] | str, ...]], ...]:
        """Each kind with its classes."""
        return (("transient", self.transient), ("permanent", self.permanent), ("unknown", self.unknown))


def classify(
    error: BaseException,
    *,
    now_ms: int,
    transient: Classes = (),
    permanent: Classes = (),
    unknown: Classes = (),
    with_text: bool = True,
    interrupted: bool = False,
) -> Failed:
    """The outcome of a run whose handler raised `error`. Never raises.

    Args:
        interrupted: a signal handler raised it (a soft time limit), at any point of the run: it is unknown, whatever
            its class, unless the job's own lists name it.
        with_text: False: the exceptions' own texts are not kept, only their classes and where they were raised.
        error: what was raised.
        now_ms: wall time; a Retry-After may be a date.
        transient, permanent, unknown: the job's own lists; the class nearest to the error's wins.
    """
    lists = Lists(tuple(transient), tuple(permanent), tuple(unknown))
    ruling = _by_lists(error, lists) if interrupted else judge(error, now_ms=now_ms, lists=lists)
    if ruling is None:
        ruling = Ruling(kind="unknown", rule="raised by a signal's handler", sent=True)
    summary = summary_of(error) if with_text else ""
    trace = trace_of(error, text_of if with_text else lambda _: "")
    return Failed(
        kind=ruling.kind,
        error=error_name(error),
        summary=summary or f"(its text is switched off){' at ' + trace.at if trace.at else ''}",
        retry_in_ms=ruling.retry_in_ms,
        at=trace.at,
        trace=trace.text,
    )


def judge(error: BaseException, *, now_ms: int, lists: Lists | None = None, sent: Kind = "unknown") -> Ruling:
    """The kind of a failure, and the rule that decided. Never raises.

    Args:
        error: what was raised.
        now_ms: wall time.
        lists: the job's own.
        sent: the kind to use for a request that may have been carried out.
    """
    try:
        ruling = _judge(error, now_ms, lists or Lists(), 0)
        if ruling.sent:
            if _method(error) in SAFE_METHODS:
                return Ruling(kind="transient", rule=f"{ruling.rule}, and its method changes nothing")
            return Ruling(kind=sent, rule=f"{ruling.rule}, after it was sent", sent=True)
    except Exception:  # noqa: BLE001 - a strange exception object must not hide the failure itself
        return Ruling(kind="transient", rule="unlisted", listed=False)
    return ruling


def check_lists(lists: Lists, job: str) -> None:
    """Refuse an entry that cannot be an exception class.

    Raises:
        UsageError: an entry that is neither an exception class nor a dotted name, or is in two lists.
    """
    seen: dict[object, str] = {}
    for kind, classes in lists.pairs():
        for one in classes:
            fits = re.fullmatch(_DOTTED, one) if isinstance(one, str) else _is_exception_class(one)
            if not fits:
                raise UsageError(
                    f"{kind}= of {job} has {one!r}, which is not an exception class.",
                    todo='Give the class itself, or its dotted name, for example "stripe.CardError".',
                )
            if isinstance(one, str) and "." not in one and not _is_exception_class(getattr(builtins, one, None)):
                from difflib import get_close_matches  # imported only after a misspelling

                known = [name for name in dir(builtins) if _is_exception_class(getattr(builtins, name))]
                near = get_close_matches(one, known, n=1)
                raise UsageError(
                    f"{kind}= of {job} has {one!r}, and Python has no exception class of that name.",
                    todo=(f"Did you mean {near[0]!r}? " if near else "")
                    + "Name a class of your own or of a library with its module, or give the class itself.",
                )
            if one in seen:
                raise UsageError(
                    f"{one!r} of {job} is in {seen[one]}= and in {kind}=.",
                    todo="Leave it in one of them.",
                )
            seen[one] = kind


def _is_exception_class(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, BaseException)


# ------------------------------------------------------------------------------------------------------------- rules


def _judge(error: BaseException, now_ms: int, lists: Lists, depth: int) -> Ruling:
    return (
        _declared(error, lists)
        or _group(error, now_ms, lists, depth)
        or _wrapped(error, now_ms, lists, depth)
        or _aws(error, now_ms)
        or _http(error, now_ms)
        or _sqlstate(error)
        or _by_name(error)
        or _interrupted(error)
        or Ruling(kind="transient", rule="unlisted", listed=False)
    )


def _interrupted(error: BaseException) -> Ruling | None:
    """The ruling for Ctrl-C, `sys.exit()` in a signal handler and so on, which end a run at an unknown point."""
    if isinstance(error, Exception):
        return None
    return Ruling(kind="transient", rule=f"{type(error).__name__} ended it from outside", sent=True)


def _by_lists(error: BaseException, lists: Lists) -> Ruling | None:
    for cls in type(error).__mro__:
        if (found := _listed(cls, error, lists)) is not None:
            return found
    return None


def _listed(cls: type, error: BaseException, lists: Lists) -> Ruling | None:
    for kind, classes in lists.pairs():
        if any(one is cls or (isinstance(one, str) and is_named(cls, one)) for one in classes):
            return Ruling(kind=kind, rule=f"{kind}= of the job", retry_in_ms=_own_retry_ms(error))
    return None


def _declared(error: BaseException, lists: Lists) -> Ruling | None:
    for cls in type(error).__mro__:
        if (found := _listed(cls, error, lists)) is not None:
            return found
        if cls in _OWN:
            return Ruling(kind=_OWN[cls], rule=f"onefold.{cls.__name__}", retry_in_ms=_own_retry_ms(error))
    return None


def _own_retry_ms(error: BaseException) -> int | None:
    wait_ms = getattr(error, "retry_in_ms", None)
    return _clamped_ms(wait_ms) if isinstance(wait_ms, int) else None


def is_named(cls: type, dotted: str) -> bool:
    """Whether a class is the named one: same name, and its module is the named one or inside it.

    `requests.ReadTimeout` names `requests.exceptions.ReadTimeout`; a name without a dot names a builtin.
    """
    module, _, name = dotted.rpartition(".")
    module = module or "builtins"
    return cls.__qualname__ == name and (cls.__module__ == module or cls.__module__.startswith(module + "."))


def _group(error: BaseException, now_ms: int, lists: Lists, depth: int) -> Ruling | None:
    """The ruling for an exception group is that of its worst member: unknown, then down, then permanent."""
    if not isinstance(error, BaseExceptionGroup) or depth >= _DEPTH_MAX:
        return None
    rulings = [_judge(one, now_ms, lists, depth + 1) for one in error.exceptions]
    for found in (
        [one for one in rulings if one.kind == "unknown" or one.sent],
        [one for one in rulings if one.kind == "dependency-down"],
        [one for one in rulings if one.kind == "permanent"],
    ):
        if found:
            return found[0]
    return max(rulings, key=lambda one: (one.listed, one.retry_in_ms or 0))


def _wrapped(error: BaseException, now_ms: int, lists: Lists, depth: int) -> Ruling | None:
    if depth >= _DEPTH_MAX:
        return None
    for cls in type(error).__mro__:
        short = _short(cls)
        attribute = WRAPPERS.get(short) or WRAPPERS_DOWN.get(short)
        if attribute is None:
            continue
        inner = (error.args or (None,))[0] if attribute == "args" else getattr(error, attribute, None)
        if isinstance(inner, BaseException) and inner is not error:
            ruling = _judge(inner, now_ms, lists, depth + 1)
            useful = ruling.listed if short in WRAPPERS else ruling.kind == "dependency-down"
            return ruling if useful else None
    return None


def _aws(error: BaseException, now_ms: int) -> Ruling | None:
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping) or not isinstance(response.get("Error"), Mapping):
        return None
    code = str(response["Error"].get("Code", ""))
    meta = response.get("ResponseMetadata") or {}
    wait_ms = _retry_after_ms(meta.get("HTTPHeaders"), now_ms)
    rule = f"AWS {code}"
    if code == "TransactionCanceledException":
        reasons = {str(one.get("Code", "None")) for one in response.get("CancellationReasons") or ()}
        cured = bool(reasons) and reasons <= AWS_CANCELLED_TRANSIENT
        named = f"{rule} ({', '.join(sorted(reasons - {'None'})) or 'no reason'})"
        return Ruling(kind="transient" if cured else "permanent", rule=named)
    for codes, kind in _AWS:
        if code in codes:
            return Ruling(kind=kind, rule=rule, retry_in_ms=wait_ms)
    status = meta.get("HTTPStatusCode")
    return _by_status(status, f"{rule}, HTTP {status}", wait_ms) if isinstance(status, int) else None


def _http(error: BaseException, now_ms: int) -> Ruling | None:
    response = getattr(error, "response", None)
    for holder in (response, error):
        for attribute in ("status_code", "status", "http_status"):
            status = getattr(holder, attribute, None)
            if isinstance(status, int) and 400 <= status <= 599:
                headers = getattr(response, "headers", None) or getattr(error, "headers", None)
                return _by_status(int(status), f"HTTP {int(status)}", _retry_after_ms(headers, now_ms))
    return None


def _by_status(status: int, rule: str, wait_ms: int | None) -> Ruling | None:
    if status in HTTP_TRANSIENT or 500 <= status <= 599:
        return Ruling(kind="transient", rule=rule, retry_in_ms=wait_ms)
    if status in HTTP_DOWN:
        return Ruling(kind="dependency-down", rule=rule, retry_in_ms=wait_ms)
    return Ruling(kind="permanent", rule=rule) if 400 <= status <= 499 else None


def _retry_after_ms(headers: Any, now_ms: int) -> int | None:
    """Retry-After in milliseconds from now: seconds, or an HTTP date (RFC 9110 section 10.2.3); None when there is none."""
    if headers is None or not hasattr(headers, "get"):
        return None
    value = headers.get("Retry-After") or headers.get("retry-after")
    if value is None:
        return None
    text = str(value)[:_RETRY_AFTER_CHARS_MAX].strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text):
        return _clamped_ms(math.ceil(float(text) * 1000))
    from datetime import UTC
    from email.utils import parsedate_to_datetime  # 10 ms to import; only a date needs it

    try:
        at = parsedate_to_datetime(text)
        at_ms = int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):  # OverflowError: a year or an offset of very many digits
        return None
    return _clamped_ms(at_ms - now_ms)


def _clamped_ms(wait_ms: int) -> int:
    return min(max(wait_ms, 0), limits.VISIBILITY_MS_MAX)


def _sqlstate(error: BaseException) -> Ruling | None:
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if not isinstance(state, str) or len(state) != 5:
        return None
    meaning = SQLSTATES.get(state) or SQLSTATES.get(state[:2])
    return None if meaning is None else _meant(meaning, f"sqlstate {state}")


def _by_name(error: BaseException) -> Ruling | None:
    for cls in type(error).__mro__:
        short = _short(cls)
        meaning = CLASSES.get(short)
        if meaning is not None:
            if short in NEVER_SENT and re.search(NEVER_SENT[short], str(error)[:_TEXT_CHARS_MAX]):
                meaning = "transient"
            return _meant(meaning, ".".join(short))
    return None


def _meant(meaning: Meaning, rule: str) -> Ruling:
    if meaning == "sent":
        return Ruling(kind="unknown", rule=rule, sent=True)
    return Ruling(kind=_KINDS[meaning], rule=rule)


def _short(cls: type) -> tuple[str, str]:
    return cls.__module__.partition(".")[0], cls.__name__


def _method(error: BaseException) -> str | None:
    """The HTTP method of the request that failed, where the exception knows it (httpx, requests)."""
    try:
        method = error.request.method  # type: ignore[attr-defined]  # httpx raises RuntimeError when there is none
    except (AttributeError, RuntimeError):
        return None
    return method.upper() if isinstance(method, str) else None
