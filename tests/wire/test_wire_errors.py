"""The catalogue of errors: names and statuses as in the service model, in recordings of AWS, and fit for headers."""

from __future__ import annotations

import pytest

from onefold.wire import errors
from onefold.wire.errors import AwsError
from tests.wire import aws_side

SAMPLES: dict[str, AwsError] = {
    error.shape + error.message[:20]: error
    for error in (
        errors.queue_does_not_exist(),
        errors.queue_does_not_exist(query=True),
        errors.queue_name_exists("DelaySeconds"),
        errors.queue_deleted_recently(),
        errors.purge_queue_in_progress("q"),
        errors.invalid_attribute_name("x"),
        errors.invalid_attribute_value("x", "No."),
        errors.resource_not_found("x"),
        errors.unsupported_operation("x"),
        errors.over_limit("x"),
        errors.invalid_message_contents("x"),
        errors.receipt_handle_is_invalid("x"),
        errors.receipt_handle_expired(),
        errors.message_not_in_flight("x"),
        errors.empty_batch_request("x"),
        errors.too_many_entries(11),
        errors.batch_entry_ids_not_distinct("x"),
        errors.invalid_batch_entry_id(),
        errors.batch_request_too_long(2, 1),
        errors.invalid_parameter_value("x"),
        errors.missing_parameter("x"),
        errors.malformed_input("x"),
        errors.unknown_operation("x"),
        errors.unknown_operation(""),
        errors.malformed_query_string("x"),
        errors.access_denied("x"),
        errors.invalid_client_token_id(),
        errors.signature_does_not_match("x"),
        errors.incomplete_signature("x"),
        errors.request_expired("x"),
        errors.request_throttled(),
        errors.request_entity_too_large(1),
        errors.internal_failure(),
        errors.service_unavailable(),
    )
}


@pytest.mark.parametrize(
    ("error", "kind", "code", "status"),
    [
        (errors.queue_does_not_exist(), "com.amazonaws.sqs#QueueDoesNotExist",
         "AWS.SimpleQueueService.NonExistentQueue", 400),
        (errors.queue_name_exists("x"), "com.amazonaws.sqs#QueueNameExists", "QueueAlreadyExists", 400),
        (errors.purge_queue_in_progress("q"), "com.amazonaws.sqs#PurgeQueueInProgress",
         "AWS.SimpleQueueService.PurgeQueueInProgress", 403),
        (errors.over_limit("x"), "com.amazonaws.sqs#OverLimit", "OverLimit", 403),
        (errors.receipt_handle_is_invalid("x"), "com.amazonaws.sqs#ReceiptHandleIsInvalid",
         "ReceiptHandleIsInvalid", 404),
        (errors.resource_not_found("x"), "com.amazonaws.sqs#ResourceNotFoundException",
         "ResourceNotFoundException", 404),
        (errors.invalid_parameter_value("x"), "com.amazon.coral.service#InvalidParameterValueException",
         "InvalidParameterValue", 400),
        (errors.missing_parameter("x"), "com.amazon.coral.service#MissingRequiredParameterException",
         "MissingParameter", 400),
        (errors.malformed_input("x"), "com.amazon.coral.service#SerializationException", "MalformedInput", 400),
        (errors.unknown_operation("x"), "com.amazon.coral.service#UnknownOperationException", "InvalidAction", 400),
        (errors.access_denied("x"), "com.amazon.coral.service#AccessDeniedException", "AccessDenied", 403),
        (errors.invalid_client_token_id(), "com.amazon.coral.service#UnrecognizedClientException",
         "InvalidClientTokenId", 403),
        (errors.signature_does_not_match("x"), "com.amazon.coral.service#InvalidSignatureException",
         "SignatureDoesNotMatch", 403),
        (errors.incomplete_signature("x"), "com.amazon.coral.service#IncompleteSignatureException",
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
    assert errors.queue_does_not_exist().message == "The specified queue does not exist."
    assert errors.queue_does_not_exist(query=True).message == (
        "The specified queue does not exist for this wsdl version."
    )
    assert errors.invalid_value(11, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.").message == (
        "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."
    )
    assert errors.batch_request_too_long(1_048_577, 1_048_576).message == (
        "Batch requests cannot be longer than 1048576 bytes. You have sent 1048577 bytes."
    )
    assert errors.receipt_handle_is_invalid("garbage").message == (
        'The input receipt handle "garbage" is not a valid receipt handle.'
    )
    assert errors.invalid_attribute_name("FifoQueue").message == "Unknown Attribute FifoQueue."
    assert errors.invalid_attribute_value("FifoQueue", "Modifying queue type is not supported.").message == (
        "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported."
    )
    assert errors.invalid_attribute_value("FifoQueue").message == "Invalid value for the parameter FifoQueue."


def test_the_failure_of_one_entry_of_a_batch():
    assert errors.receipt_handle_expired().entry("a") == {
        "Id": "a",
        "SenderFault": True,
        "Code": "ReceiptHandleIsInvalid",
        "Message": "The receipt handle has expired",
    }
    assert errors.internal_failure().entry("b")["SenderFault"] is False
