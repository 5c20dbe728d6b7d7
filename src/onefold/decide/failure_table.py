"""What other libraries' failures mean, by name: exception classes, HTTP statuses, AWS error codes, SQLSTATEs. Data only.

A class is named by its top-level package and its own name, so nothing here imports it; subclasses inherit the meaning of
the nearest listed class. Five meanings:

    transient   nothing was done, or the dependency said "not now": the same call may work later
    sent        the request may have been carried out and the answer was lost (see `failures.py`)
    permanent   the same call fails for ever: the request itself is wrong
    down        the dependency refuses everybody (credentials, certificate, missing table): not this message's fault
    unlisted    anything else

Unlisted on purpose: ValueError, TypeError, KeyError, AttributeError, AssertionError and other errors of plain code. The
same class is raised for a bad payload and for half an answer of a partner (JSONDecodeError is a ValueError; a KeyError, a
None), so the class does not tell; taken as transient it costs a few runs, taken as permanent it empties a queue into the
dead letters on a partner's bad day. A handler that knows better raises PermanentError, or its job says permanent=(...).

Sources: the libraries' own exception trees (httpx 0.28, requests 2.34, urllib3 2.6, aiohttp 3.14, botocore 1.44,
psycopg 3.3, asyncpg 0.31, redis 8.1, SQLAlchemy 2.1), botocore's retry lists, PostgreSQL appendix A.
Never here: code that decides.
"""

from __future__ import annotations

from typing import Final, Literal

Meaning = Literal["transient", "sent", "permanent", "down"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CLASSES: Final[dict[str, dict[Meaning, str]]] = {
    "builtins": {
        "transient": "ConnectionRefusedError BlockingIOError InterruptedError MemoryError",
        "sent": "TimeoutError ConnectionError GeneratorExit",  # the last: a coroutine that was thrown away under way
        "permanent": "NotImplementedError",  # code that says itself that it cannot do this
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
    # Raised into code that runs, by a time limit or a stop: nobody knows where it struck.
    "billiard": {"sent": "SoftTimeLimitExceeded TimeLimitExceeded"},
    "celery": {"sent": "SoftTimeLimitExceeded TimeLimitExceeded"},
    "dramatiq": {"sent": "Interrupt"},
    "eventlet": {"sent": "Timeout"},
    "gevent": {"sent": "Timeout"},
    "greenlet": {"sent": "GreenletExit"},
    "rq": {"sent": "BaseTimeoutException"},
    "sqlite3": {"transient": "OperationalError", "permanent": "IntegrityError DataError"},
    "httpx": {
        "transient": "TransportError RequestError",  # ConnectError, ConnectTimeout, PoolTimeout, ProxyError are these
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
        "transient": "HTTPError ConnectTimeoutError",  # NewConnectionError, NameResolutionError are the second
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
    # Without a SQLSTATE an OperationalError is a connection that broke; in the middle of a commit nobody knows.
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
    # Validation is semantic: what does not fit today does not fit tomorrow.
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

# One class for "could not connect" and for "broke in the middle": the words tell. They are the drivers' own.
NEVER_SENT: Final[dict[tuple[str, str], str]] = {
    ("redis", "ConnectionError"): r"\bconnecting to\b",
    ("psycopg", "OperationalError"): r"connection failed|failed to resolve host",
    ("psycopg2", "OperationalError"): r"connection to server|could not (connect|translate)|timeout expired",
}

# Classes that carry the failure that counts, and where: an attribute, or "args" for the first argument.
WRAPPERS: Final[dict[tuple[str, str], str]] = {
    ("requests", "ConnectionError"): "args",
    ("urllib3", "MaxRetryError"): "reason",
    ("urllib3", "SSLError"): "args",
    ("urllib", "URLError"): "reason",
    ("sqlalchemy", "DBAPIError"): "orig",
}
# These are asked only whether the dependency is down (its certificate); what else it was, the class itself says better.
WRAPPERS_DOWN: Final[dict[tuple[str, str], str]] = {
    ("httpx", "ConnectError"): "__cause__",
    ("httpcore", "ConnectError"): "args",
}

# Methods that by RFC 9110 change nothing: their answer may be lost without a question left open.
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})

HTTP_TRANSIENT: Final = frozenset({408, 425, 429})  # and 5xx (design 11.12)
HTTP_DOWN: Final = frozenset({401, 403, 407})  # 407: the proxy's credentials; all other 4xx are permanent

# botocore/retries/standard.py (throttled and transient codes), and what services answer in the same sense.
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
# Reasons of a TransactionCanceledException that a repetition can cure; any other reason makes it permanent.
AWS_CANCELLED_TRANSIENT: Final = _names(
    "None TransactionConflict ThrottlingError ProvisionedThroughputExceeded RequestLimitExceeded"
)

# PostgreSQL SQLSTATE: whole code before class (the first two characters).
SQLSTATES: Final[dict[str, Meaning]] = {
    "08": "transient",  # no connection could be made
    "08003": "sent",  # asyncpg: the connection was closed in the middle of an operation
    "08006": "sent",  # connection failure after it had been made
    "08007": "sent",  # transaction resolution unknown
    "21": "permanent",  # cardinality
    "22": "permanent",  # data: out of range, malformed
    "23": "permanent",  # constraint: already there, must not be null
    "25006": "transient",  # read-only transaction: a failover is under way
    "28": "down",  # authorization
    "3D": "down",  # no such database
    "3F": "down",  # no such schema
    "40": "transient",  # serialization failure, deadlock
    "40003": "sent",  # statement completion unknown
    "42": "permanent",  # syntax
    "42501": "down",  # insufficient privilege
    "42703": "down",  # no such column: a migration is missing
    "42P01": "down",  # no such table: the same
    "44": "permanent",  # with check option
    "53": "transient",  # out of resources: connections, disk, memory
    "54": "permanent",  # program limit: row too big
    "55": "transient",  # lock not available, object in use
    "57": "transient",  # shutdown, statement timeout
    "58": "transient",  # system error
}
