"""The errors of SQS's API: every response that is not a success, with the names, statuses and texts AWS uses.

An error has two names. JSON clients see the shape (`__type`), query clients and `x-amzn-query-error` the older code from
before the JSON protocol; SDKs show their users one or the other. The pairs and statuses come from the service model and
from answers recorded from AWS; texts are AWS's if known.

Never here: which error a request deserves (the operations), how it is written (`json_protocol`, `query_protocol`).
Invariant: names are constants, never parts of a request, so nothing can be injected into a header made from them.
"""

from __future__ import annotations

_SERVICE = "com.amazonaws.sqs#"
_FRAMEWORK = "com.amazon.coral.service#"  # recorded from AWS for errors that the service model does not list


class AwsError(Exception):
    """An error response.

    Args:
        shape: name in JSON, such as `QueueDoesNotExist`.
        code: name in the query protocol and in the header, such as `AWS.SimpleQueueService.NonExistentQueue`;
            by default the shape.
        message: the text for a person.
        status: HTTP status.
        sender_fault: True if the caller must change something, False if a retry may help.
        modelled: False for errors of AWS's framework, which carry another prefix in JSON.
    """

    def __init__(
        self,
        shape: str,
        message: str,
        *,
        code: str = "",
        status: int = 400,
        sender_fault: bool = True,
        modelled: bool = True,
    ) -> None:
        self.shape = shape
        self.code = code or shape
        self.message = message
        self.status = status
        self.sender_fault = sender_fault
        self.type = (_SERVICE if modelled else _FRAMEWORK) + shape
        super().__init__(message)

    @property
    def fault(self) -> str:
        """Who must act: `Sender` or `Receiver`."""
        return "Sender" if self.sender_fault else "Receiver"

    def entry(self, entry_id: str) -> dict[str, object]:
        """This error as the failure of one entry of a batch (BatchResultErrorEntry)."""
        return {"Id": entry_id, "SenderFault": self.sender_fault, "Code": self.code, "Message": self.message}


def _legacy(shape: str, message: str, *, code: str = "", status: int = 400) -> AwsError:
    return AwsError(shape, message, code=f"AWS.SimpleQueueService.{code or shape}", status=status)


def _framework(shape: str, message: str, *, code: str = "", status: int = 400, sender_fault: bool = True) -> AwsError:
    code = code or shape.removesuffix("Exception")
    return AwsError(shape, message, code=code, status=status, sender_fault=sender_fault, modelled=False)


# ---------------------------------------------------------------------------------------------------- queues


def queue_does_not_exist(*, query: bool = False) -> AwsError:
    """No such queue. The text differs between the protocols (recorded)."""
    text = "The specified queue does not exist"
    return _legacy(
        "QueueDoesNotExist", f"{text} for this wsdl version." if query else f"{text}.", code="NonExistentQueue"
    )


def queue_name_exists(attribute: str) -> AwsError:
    """CreateQueue: the name is taken by a queue whose `attribute` differs."""
    return AwsError(
        "QueueNameExists",
        f"A queue already exists with the same name and a different value for attribute {attribute}",
        code="QueueAlreadyExists",
    )


def queue_deleted_recently() -> AwsError:
    """CreateQueue within 60 s of DeleteQueue."""
    return _legacy(
        "QueueDeletedRecently",
        "You must wait 60 seconds after deleting a queue before you can create another with the same name.",
    )


def purge_queue_in_progress(queue: str) -> AwsError:
    """A second PurgeQueue within 60 s."""
    return _legacy(
        "PurgeQueueInProgress",
        f"Only one PurgeQueue operation on {queue} is allowed every 60 seconds.",
        status=403,
    )


def invalid_attribute_name(name: str) -> AwsError:
    """A queue attribute that does not exist, or not for this kind of queue."""
    return AwsError("InvalidAttributeName", f"Unknown Attribute {name}.")


def fifo_only(name: str) -> AwsError:
    """An attribute of FIFO queues on a standard queue; AWS has two texts for it (recorded)."""
    if name in ("DeduplicationScope", "FifoThroughputLimit"):
        return AwsError("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true.")
    return invalid_attribute_name(name)


def one_encryption() -> AwsError:
    """A KMS key and SQS's own encryption at the same time (recorded)."""
    return AwsError(
        "InvalidAttributeName",
        "You can use one type of server-side encryption (SSE) at one time. You can either enable KMS SSE or SQS SSE.",
    )


def invalid_attribute_value(name: str, reason: str = "") -> AwsError:
    """A queue attribute whose value is refused; `reason` is a sentence with its full stop."""
    text = f"Invalid value for the parameter {name}."
    return AwsError("InvalidAttributeValue", f"{text} Reason: {reason}" if reason else text)


def resource_not_found(message: str) -> AwsError:
    """Message move tasks: a queue or task that does not exist."""
    return AwsError("ResourceNotFoundException", message, status=404)


def unsupported_operation(message: str) -> AwsError:
    """Not possible on this kind of queue."""
    return _legacy("UnsupportedOperation", message)


def invalid_address(url: str) -> AwsError:
    """A URL of a queue in a different region than the request's."""
    return AwsError("InvalidAddress", f"The address {url} is not valid for this endpoint.", status=404)


# ------------------------------------------------------------------------------------------- messages, handles


def over_limit(message: str) -> AwsError:
    """Too many messages in flight, permissions or tasks."""
    return AwsError("OverLimit", message, status=403)


def invalid_message_contents(message: str) -> AwsError:
    """The body has characters that SQS does not allow."""
    return AwsError("InvalidMessageContents", message)


def receipt_handle_is_invalid(handle: str) -> AwsError:
    """The text sent as a receipt handle is not one."""
    return AwsError(
        "ReceiptHandleIsInvalid", f'The input receipt handle "{handle}" is not a valid receipt handle.', status=404
    )


def receipt_handle_expired() -> AwsError:
    """A batch entry on a FIFO queue whose visibility has ended (recorded). Single calls get `invalid_value`."""
    return AwsError("ReceiptHandleIsInvalid", "The receipt handle has expired", status=404)


# ----------------------------------------------------------------------------------------------------- batches


def empty_batch_request(entry: str) -> AwsError:
    """A batch without entries; `entry` is the type of one, such as `SendMessageBatchRequestEntry`."""
    return _legacy("EmptyBatchRequest", f"There should be at least one {entry} in the request.")


def too_many_entries(count: int) -> AwsError:
    """More than 10 entries."""
    return _legacy(
        "TooManyEntriesInBatchRequest", f"Maximum number of entries per request are 10. You have sent {count}."
    )


def batch_entry_ids_not_distinct(entry_id: str) -> AwsError:
    """Two entries with one id."""
    return _legacy("BatchEntryIdsNotDistinct", f"Id {entry_id} repeated.")


def invalid_batch_entry_id() -> AwsError:
    """An entry id with characters that are not allowed, or longer than 80."""
    return _legacy(
        "InvalidBatchEntryId",
        "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
        "It can be at most 80 letters long.",
    )


def batch_request_too_long(sent_bytes: int, limit_bytes: int) -> AwsError:
    """The entries of a SendMessageBatch together are too large."""
    text = f"Batch requests cannot be longer than {limit_bytes} bytes. You have sent {sent_bytes} bytes."
    return _legacy("BatchRequestTooLong", text)


# -------------------------------------------------------------------------------------------------- parameters


def invalid_parameter_value(message: str) -> AwsError:
    """A value that is refused; the caller gives the whole text."""
    return _framework("InvalidParameterValueException", message)


def invalid_value(value: object, parameter: str, reason: str) -> AwsError:
    """A value that is refused; `reason` is a sentence with its full stop."""
    return invalid_parameter_value(f"Value {value} for parameter {parameter} is invalid. Reason: {reason}")


def missing_parameter(parameter: str) -> AwsError:
    """A required parameter is absent or empty."""
    return _framework(
        "MissingRequiredParameterException",
        f"The request must contain the parameter {parameter}.",
        code="MissingParameter",
    )


def malformed_input(message: str) -> AwsError:
    """A request that does not fit its operation: not JSON, or a member of the wrong type (recorded)."""
    return _framework("SerializationException", message, code="MalformedInput")


def unknown_operation(name: str) -> AwsError:
    """No operation has that name; an empty name means that none was given (JSON)."""
    text = f"The action {name} is not valid for this endpoint." if name else "The request names no operation."
    return _framework("UnknownOperationException", text, code="InvalidAction")


def malformed_query_string(message: str) -> AwsError:
    """A form or query string that cannot be read."""
    return _framework("MalformedQueryString", message)


# ------------------------------------------------------------------------------------------------ authentication


def access_denied(message: str) -> AwsError:
    """The caller may not do this, or did not sign."""
    return _framework("AccessDeniedException", message, status=403)


def invalid_client_token_id() -> AwsError:
    """An access key that is not known."""
    return _framework(
        "UnrecognizedClientException",
        "The security token included in the request is invalid.",
        code="InvalidClientTokenId",
        status=403,
    )


def signature_does_not_match(message: str) -> AwsError:
    """The signature was made for another request, with another secret key, or at another time (recorded for each)."""
    return _framework("InvalidSignatureException", message, code="SignatureDoesNotMatch", status=403)


def incomplete_signature(message: str) -> AwsError:
    """An `Authorization` header or signing parameter that cannot be read."""
    return _framework("IncompleteSignatureException", message)


def request_expired(message: str) -> AwsError:
    """A presigned URL that has expired."""
    return _framework("RequestExpired", message)


# ------------------------------------------------------------------------------------------------- the server


def request_throttled() -> AwsError:
    """Too many requests; SDKs wait and try again."""
    return AwsError("RequestThrottled", "Rate exceeded", status=403)


def internal_failure(message: str = "The request processing has failed because of an unknown error.") -> AwsError:
    """The server failed; SDKs try again."""
    return _framework("InternalFailure", message, status=500, sender_fault=False)


def service_unavailable(message: str = "The request has failed due to a temporary failure of the server.") -> AwsError:
    """The server cannot answer now; SDKs try again."""
    return _framework("ServiceUnavailable", message, status=503, sender_fault=False)
