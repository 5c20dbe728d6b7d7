"""The catalogue of errors: names and statuses as in the service model, in recordings of AWS, and fit for headers."""

from __future__ import annotations

import pytest

from onefold.local import aws_errors
from onefold.local.aws_errors import AwsError
from tests.wire import aws_side

SAMPLES: dict[str, AwsError] = {
    error.shape + error.message[:20]: error
    for error in (
        aws_errors.queue_does_not_exist(),
        aws_errors.queue_does_not_exist(query=True),
        aws_errors.queue_name_exists("DelaySeconds"),
        aws_errors.queue_deleted_recently(),
        aws_errors.purge_queue_in_progress("q"),
        aws_errors.invalid_attribute_name("x"),
        aws_errors.invalid_attribute_value("x", "No."),
        aws_errors.resource_not_found("x"),
        aws_errors.unsupported_operation("x"),
        aws_errors.over_limit("x"),
        aws_errors.invalid_message_contents("x"),
        aws_errors.receipt_handle_is_invalid("x"),
        aws_errors.receipt_handle_expired(),
        aws_errors.empty_batch_request("x"),
        aws_errors.too_many_entries(11),
        aws_errors.batch_entry_ids_not_distinct("x"),
        aws_errors.invalid_batch_entry_id(),
        aws_errors.batch_request_too_long(2, 1),
        aws_errors.invalid_parameter_value("x"),
        aws_errors.missing_parameter("x"),
        aws_errors.malformed_input("x"),
        aws_errors.unknown_operation("x"),
        aws_errors.unknown_operation(""),
        aws_errors.malformed_query_string("x"),
        aws_errors.access_denied("x"),
        aws_errors.invalid_client_token_id(),
        aws_errors.signature_does_not_match("x"),
        aws_errors.incomplete_signature("x"),
        aws_errors.request_expired("x"),
        aws_errors.request_throttled(),
        aws_errors.internal_failure(),
        aws_errors.service_unavailable(),
    )
}


@pytest.mark.parametrize(
    ("error", "kind", "code", "status"),
    [
        (aws_errors.queue_does_not_exist(), "com.amazonaws.sqs#QueueDoesNotExist",
         "AWS.SimpleQueueService.NonExistentQueue", 400),
        (aws_errors.queue_name_exists("x"), "com.amazonaws.sqs#QueueNameExists", "QueueAlreadyExists", 400),
        (aws_errors.purge_queue_in_progress("q"), "com.amazonaws.sqs#PurgeQueueInProgress",
         "AWS.SimpleQueueService.PurgeQueueInProgress", 403),
        (aws_errors.over_limit("x"), "com.amazonaws.sqs#OverLimit", "OverLimit", 403),
        (aws_errors.receipt_handle_is_invalid("x"), "com.amazonaws.sqs#ReceiptHandleIsInvalid",
         "ReceiptHandleIsInvalid", 404),
        (aws_errors.resource_not_found("x"), "com.amazonaws.sqs#ResourceNotFoundException",
         "ResourceNotFoundException", 404),
        (aws_errors.invalid_parameter_value("x"), "com.amazon.coral.service#InvalidParameterValueException",
         "InvalidParameterValue", 400),
        (aws_errors.missing_parameter("x"), "com.amazon.coral.service#MissingRequiredParameterException",
         "MissingParameter", 400),
        (aws_errors.malformed_input("x"), "com.amazon.coral.service#SerializationException", "MalformedInput", 400),
        (aws_errors.unknown_operation("x"), "com.amazon.coral.service#UnknownOperationException", "InvalidAction", 400),
        (aws_errors.access_denied("x"), "com.amazon.coral.service#AccessDeniedException", "AccessDenied", 403),
        (aws_errors.invalid_client_token_id(), "com.amazon.coral.service#UnrecognizedClientException",
         "InvalidClientTokenId", 403),
        (aws_errors.signature_does_not_match("x"), "com.amazon.coral.service#InvalidSignatureException",
         "SignatureDoesNotMatch", 403),
        (aws_errors.incomplete_signature("x"), "com.amazon.coral.service#IncompleteSignatureException",
         "IncompleteSignature", 400),
    ],
)  # fmt: skip
@pytest.mark.conformance(
    operation="Errors", case="JSON shape, legacy code and HTTP status of each error", source="1.2 errors [O]"
)
def test_names_and_statuses_recorded_from_aws(error, kind, code, status):
    assert (error.type, error.code, error.status) == (kind, code, status)


@pytest.mark.parametrize("error", SAMPLES.values(), ids=SAMPLES)
def test_what_claims_to_be_modelled_is(error):
    exceptions = {name for name, shape in aws_side.raw_model()["shapes"].items() if shape.get("exception")}
    assert (error.shape in exceptions) == error.type.startswith("com.amazonaws.sqs#")


@pytest.mark.parametrize("error", SAMPLES.values(), ids=SAMPLES)
def test_names_fit_into_a_header_and_say_who_must_act(error):
    assert error.code.replace(".", "").isalnum()
    assert error.code.isascii()
    assert error.fault == ("Receiver" if error.status >= 500 else "Sender")
    assert str(error) == error.message != ""


@pytest.mark.conformance(operation="Errors", case="texts of errors", source="1.3 messages [O]")
def test_texts_recorded_from_aws():
    assert aws_errors.queue_does_not_exist().message == "The specified queue does not exist."
    assert aws_errors.queue_does_not_exist(query=True).message == (
        "The specified queue does not exist for this wsdl version."
    )
    assert aws_errors.invalid_value(11, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.").message == (
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
    )
    assert aws_errors.batch_request_too_long(1_048_577, 1_048_576).message == (
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    )
    assert aws_errors.receipt_handle_is_invalid("garbage").message == (
        'The input receipt handle "garbage" is not a valid receipt handle.'
    )
    assert aws_errors.invalid_attribute_name("FifoQueue").message == "Unknown Attribute FifoQueue."
    assert aws_errors.invalid_attribute_value("FifoQueue", "Modifying queue type is not supported.").message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )
    assert aws_errors.invalid_attribute_value("FifoQueue").message == "Invalid value for the parameter FifoQueue."


def test_the_failure_of_one_entry_of_a_batch():
    assert aws_errors.receipt_handle_expired().entry("a") == {
        "Id": "a",
        "SenderFault": True,
        "Code": "ReceiptHandleIsInvalid",
        "Message": "The receipt handle has expired",
    }
    assert aws_errors.internal_failure().entry("b")["SenderFault"] is False
