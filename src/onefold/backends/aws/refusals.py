"""What AWS answers when it does not do what was asked, as our errors: told apart by code, and by status.

Never here: what to do about one, and calls that got no answer (`session.aws_errors`). Invariant: a refusal that may pass is
a TransientError, and no other is.

Sources: DynamoDB developer guide, "Error handling"; SQS API reference, "Common errors"; botocore, retries/standard.py.
"""

from __future__ import annotations

from typing import Final

from botocore.exceptions import ClientError

from onefold import errors

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
    """One answer of AWS as our error; see `session.aws_errors`."""
    code = code_of(error)
    said = str(error.response.get("Error", {}).get("Message", "")).strip() or "(no message)"
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code in _DENIED:
        return errors.UsageError(
            f"AWS does not allow {action} on {resource}: {said}",
            meaning="The role or user of this process lacks the permission, or a policy of the resource denies it.",
            todo=f"Add the action {action} on {resource} to its policy.",
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
