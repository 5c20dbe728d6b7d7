"""AWS clients of one process, made once and shared, and the translation of AWS's errors into onefold's.

Time-outs and retries are set on purpose (docs/how-to/deploy-to-aws.md repeats them for users):

- Retry mode `standard`: botocore itself makes at most 3 tries for a call that failed in transit. That is enough for a
  dropped connection, and short enough that the worker's own policy decides soon. Any later retry is the runner's.
- 5 s to connect and 10 s to read, to which the caller adds the wait of a long poll (`waits_s`): a call must end before
  the lease of the operation for which it is made.
- Connections are kept alive; there are as many as threads use.

Errors are classified by code and by HTTP status.
Never here: what a call means, queues, tables, what to do about an error. Invariant: no credential is read before a
client is asked for; no error of botocore leaves a backend; an error is a TransientError if and only if it may pass.

Sources: DynamoDB developer guide, "Error handling"; SQS API reference, "Common errors"; botocore, retries/standard.py.
"""

from __future__ import annotations

import errno
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import boto3
import botocore.exceptions as failures
from botocore.client import BaseClient
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import ClientError

from onefold import errors, forks
from onefold.interrupts import let_through

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


CONNECT_S: Final = 5
READ_S: Final = 10
TRIES: Final = 3
CONNECTIONS_MAX: Final = 50
_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # transient: others will release what they hold

Service = str
"""`sqs`, `dynamodb`, `s3`, `cloudformation`, `lambda`, ...: boto3's name."""


class Session:
    """One region's clients.

    Args:
        region: for example `eu-west-1`.
        endpoints: from service name to endpoint URL, for emulators; the name `*` is for all services that are not
            named.
        session: a boto3 session with the user's own credentials and profile; boto3's default chain unless given.
        tries: how often botocore sends one call in all, 1 or more; tests that count calls pass 1.
        read_s: longest wait for an answer in seconds, not counting the time of a long poll.

    Clients are safe to share between threads (boto3 guide, "Clients: multithreading").
    """

    def __init__(
        self,
        region: str,
        endpoints: Mapping[Service, str] | None = None,
        *,
        session: boto3.session.Session | None = None,
        tries: int = TRIES,
        read_s: float = READ_S,
    ) -> None:
        self.region = region
        self.endpoints = dict(endpoints or {})
        self._session = session
        self._tries = tries
        self._read_s = read_s
        self._clients: dict[tuple[Service, float], Any] = {}
        self._lock = threading.Lock()
        self._given = session
        forks.in_child(self._start_anew)

    def _start_anew(self) -> None:
        """In a forked child: use new clients, as two processes on one connection would read each other's answers."""
        forks.keep_for_ever(self._clients)
        self._clients, self._session, self._lock = {}, self._given, threading.Lock()

    def client(self, service: Service, *, waits_s: float = 0.0) -> Any:
        """The client of a service; the same object at every call with the same arguments.

        Args:
            service: boto3's name for it.
            waits_s: how long a call may wait on purpose (a long poll), in seconds; added to the read time-out.

        Raises:
            UsageError: the region is not a region, or the endpoint is not a URL.
            TransientError: there is no file descriptor or memory left to read botocore's descriptions of services.
        """
        with self._lock:
            found = self._clients.get((service, waits_s))
            if found is None:
                found = self._clients[service, waits_s] = self._make(service, waits_s)
            return found

    def _make(self, service: Service, waits_s: float) -> Any:
        # boto3's session is not safe to share while it makes clients, so the lock of `client` is held here.
        self._session = self._session or boto3.session.Session()
        config = Config(
            region_name=self.region,
            retries={"mode": "standard", "total_max_attempts": self._tries},
            connect_timeout=CONNECT_S,
            read_timeout=self._read_s + waits_s,
            max_pool_connections=CONNECTIONS_MAX,
            tcp_keepalive=True,
            user_agent_extra="onefold",
            # The store builds these requests itself, and DynamoDB checks them: checking twice costs 0.4 ms for ten records.
            parameter_validation=service != "dynamodb",
            s3={"addressing_style": "path"} if self._endpoint("s3") else {},
        )
        try:
            client = self._session.client(service, endpoint_url=self._endpoint(service), config=config)
        except (ValueError, failures.BotoCoreError) as error:
            raise errors.UsageError(
                f"No client for {service} in region {self.region!r}: {error}",
                todo="Check the region and the endpoint in the engine's URL.",
            ) from error
        except OSError as error:
            let_through(error)
            if error.errno not in _SCARCE:
                raise
            raise errors.TransientError(
                f"No client for {service} for now: {error}",
                todo="Close what handlers open, run fewer at once, or raise the limit (`ulimit -n`).",
            ) from error
        client.meta.events.register("needs-retry", _not_of_a_signal)  # botocore takes any exception for a network error
        return client

    def _endpoint(self, service: Service) -> str | None:
        return self.endpoints.get(service) or self.endpoints.get("*")

    def close(self) -> None:
        """Close all connections. Idempotent."""
        with self._lock:
            clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            client.close()


def _not_of_a_signal(caught_exception: BaseException | None = None, **_: object) -> None:
    """Before botocore tries again: pass an exception that a signal handler has raised on to the caller."""
    if caught_exception is not None:
        let_through(caught_exception)


@contextmanager
def aws_errors(action: str, resource: str) -> Iterator[None]:
    """Raise AWS's errors as ours.

    Args:
        action: the IAM action of the calls inside, for example `sqs:SendMessage`.
        resource: what they act on, as a person would name it: an ARN, a queue's URL, `table onefold`.

    Raises:
        NotFoundError: the resource does not exist in this region and account.
        UsageError: not allowed (names action and resource), no or unknown credentials, or an input that AWS refuses.
        TransientError: throttled, timed out, unreachable, 5xx, or the credentials could not be renewed this time. The
            call may have been carried out nevertheless.
    """
    try:
        yield
    except (failures.BotoCoreError, failures.ClientError, OSError, RuntimeError) as error:
        ours = _ours(error, action, resource)
        if ours is None:
            raise
        raise ours from error


def _ours(error: Exception, action: str, resource: str) -> errors.OnefoldError | None:
    """See `aws_errors`; None for an error that does not come from AWS."""
    if _is_of_renewal(error):
        let_through(error)
        return errors.TransientError(
            f"The AWS credentials for {action} could not be renewed: {error}",
            meaning="The credentials of this process have expired or are about to; the next call asks for new ones.",
            todo="If it lasts, check their source: the host's metadata service, credential_process, STS or SSO.",
        )
    match error:
        case failures.ClientError():
            return translated(error, action, resource)
        case failures.NoCredentialsError() | failures.PartialCredentialsError() | failures.CredentialRetrievalError():
            return errors.UsageError(
                f"There are no AWS credentials for {action}: {error}",
                todo="Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this host a role.",
            )
        case failures.EndpointConnectionError():
            return errors.TransientError(
                f"{action} on {resource}: {error}", todo="Check the region and endpoint of the URL, and the network."
            )
        case failures.HTTPClientError() | failures.ConnectionError() | failures.IncompleteReadError():
            return errors.TransientError(
                f"{action} on {resource} got no answer: {error}", meaning="It may have been carried out nevertheless."
            )
        case failures.BotoCoreError():
            return errors.UsageError(f"{action} on {resource}: {error}", todo="Change what was asked for.")
        case _:
            return None


def _is_of_renewal(error: Exception) -> bool:
    """Whether an error, of whatever kind, came while botocore was replacing credentials that it had."""
    return any(
        isinstance(one, RefreshableCredentials) and getattr(one, "_access_key", None) is not None
        for one in _objects_on_the_way(error)
    )


def _objects_on_the_way(error: Exception) -> Iterator[object]:
    """The objects through whose methods an error came."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next


def _has_renewable_credentials(error: ClientError) -> bool:
    return any(
        isinstance(one, BaseClient) and isinstance(one._get_credentials(), RefreshableCredentials)  # noqa: SLF001
        for one in _objects_on_the_way(error)
    )


_PASSING: Final = frozenset(
    {
        "InternalError", "InternalFailure", "InternalServerError", "KmsThrottled", "KMS.ThrottlingException",
        "LimitExceededException", "OverLimit", "PriorRequestNotComplete", "ProvisionedThroughputExceededException",
        "ProvisionedThroughputExceeded", "ReplicatedWriteConflictException", "RequestLimitExceeded", "RequestThrottled",
        "RequestTimeout", "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingError",
        "ThrottlingException", "TooManyRequestsException", "TransactionConflict", "TransactionConflictException",
        "TransactionInProgressException",
    }
)  # fmt: skip
_DENIED: Final = frozenset(
    {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AccessDeniedFault", "KMS.AccessDeniedException"}
)
_EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException"})
_UNKNOWN_CALLER: Final = frozenset(
    {"InvalidClientTokenId", "UnrecognizedClientException", "ExpiredToken", "ExpiredTokenException",
     "InvalidSignatureException",
     "SignatureDoesNotMatch", "InvalidAccessKeyId", "MissingAuthenticationToken", "IncompleteSignature"}
)  # fmt: skip
_ABSENT: Final = frozenset(
    {"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException", "ResourceNotFound",
     "NoSuchBucket", "NoSuchKey", "404"}
)  # fmt: skip


def code_of(error: ClientError) -> str:
    """The error's code, as the service names it."""
    return str(error.response.get("Error", {}).get("Code", ""))


def translated(error: ClientError, action: str, resource: str) -> errors.OnefoldError:
    """One error answer of AWS as ours; see `aws_errors`."""
    code = code_of(error)
    said = str(error.response.get("Error", {}).get("Message", "")).strip() or "(no message)"
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _DENIED:
        return errors.UsageError(
            f"AWS does not allow {action} on {resource}: {said}",
            meaning="The role or user of this process lacks the permission, or a policy of the resource denies it.",
            todo=f"Add the action {action} on {resource} to its policy.",
        )
    if code in _EXPIRED and _has_renewable_credentials(error):
        return errors.TransientError(
            f"AWS does not accept the credentials for {action} on {resource} any more ({code}): {said}",
            meaning="They have expired, and this process has not received new ones in time.",
            todo="If it lasts, check where they come from, and this machine's clock.",
        )
    if code in _UNKNOWN_CALLER:
        return errors.UsageError(
            f"AWS does not accept the credentials for {action} on {resource} ({code}): {said}",
            todo="Renew them; if they are right, check region, endpoint and this machine's clock.",
        )
    if code in _ABSENT:
        return errors.NotFoundError(
            f"{resource} does not exist ({action}: {code}).",
            meaning=said,
            todo="Check name, region and account; deploy it first (onefold deploy), or add create=yes to the URL of an"
            " emulator.",
        )
    if code in _PASSING or status >= 500 or status == 429:
        return errors.TransientError(
            f"{action} on {resource} failed for now ({code or status}): {said}",
            todo="Try again in a moment; if it lasts, see the service's quotas and health.",
        )
    return errors.UsageError(f"{action} on {resource} was refused ({code}): {said}", todo="Change what was asked for.")
