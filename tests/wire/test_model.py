"""The service model as types: all operations are there, cheap to compile, and botocore is read, not imported."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from onefold.errors import UsageError
from onefold.local import query_protocol
from onefold.local import sqs_model as wire_model
from onefold.local.aws_errors import AwsError
from onefold.local.sqs_model import Shape
from tests.wire import aws_side

MODEL = wire_model.load()


def test_has_every_operation_of_the_service_model_with_its_members():
    raw = aws_side.raw_model()
    assert set(MODEL) == set(raw["operations"])
    assert len(MODEL) >= 23
    for name, operation in MODEL.items():
        expected = raw["shapes"][raw["operations"][name]["input"]["shape"]]
        assert tuple(operation.input.members) == tuple(expected["members"])
        assert list(operation.input.required) == expected.get("required", [])
        assert operation.input_type.__struct_fields__ == tuple(expected["members"])
        assert (operation.output is None) == ("output" not in raw["operations"][name])
    assert MODEL["SendMessage"].name == "SendMessage"
    assert "sendmessage" not in MODEL


def test_an_ask_is_empty_by_default():
    for operation in MODEL.values():
        assert set(msgspec.structs.asdict(operation.input_type()).values()) <= {None}


def test_types_are_those_of_the_model():
    ask = MODEL["SendMessage"].decoder.decode(
        b'{"DelaySeconds": 5, "MessageAttributes": {"a": {"DataType": "Binary", "BinaryValue": "AAE="}}}'
    )
    assert ask.DelaySeconds == 5
    assert ask.MessageAttributes["a"].BinaryValue == b"\x00\x01"
    assert ask.MessageAttributes["a"].StringValue is None
    entries = MODEL["SendMessageBatch"].decoder.decode(b'{"Entries": [{"Id": "1"}]}').Entries
    assert type(entries[0]).__name__ == "SendMessageBatchRequestEntry"


def test_loading_imports_nothing_of_botocore():
    code = "import sys; from onefold.local import sqs_model; sqs_model.load(); sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def _shapes(shape: Shape) -> list[Shape]:
    inner = [*shape.members.values(), *([shape.item] if shape.item else [])]
    return [shape, *(deep for each in inner for deep in _shapes(each))]


def test_every_list_and_map_has_names_in_the_query_protocol():
    shapes = [
        each
        for operation in MODEL.values()
        for root in (operation.input, operation.output)
        if root
        for each in _shapes(root)
    ]
    assert {shape.name for shape in shapes if shape.kind == "list"} == set(query_protocol.LISTS)
    assert {shape.name for shape in shapes if shape.kind == "map"} == set(query_protocol.MAPS)
    assert query_protocol.element_of("NewList") == "member"
    assert query_protocol.pair_of("NewMap").element == "entry"


# ------------------------------------------------------------------------------------------ what is required


def _refused(operation: str, **members: object) -> AwsError:
    known = MODEL[operation]
    with pytest.raises(AwsError) as caught:
        known.check(known.input_type(**members))
    return caught.value


@pytest.mark.conformance(
    operation="Errors", case="a missing required member: MissingParameter with its name", source="1.3 messages [O]"
)
def test_a_missing_member_is_named():
    error = _refused("DeleteMessage", QueueUrl="q")
    assert (error.shape, error.code, error.status) == ("MissingRequiredParameterException", "MissingParameter", 400)
    assert error.message == "The request must contain the parameter ReceiptHandle."


@pytest.mark.conformance(
    operation="Errors",
    case="no QueueUrl: QueueDoesNotExist; no QueueName: InvalidParameterValue",
    source="1.2 errors [O]",
    protocol="json",
)
def test_a_missing_queue_url_or_name_is_answered_as_aws_does():
    assert _refused("SendMessage", MessageBody="x").shape == "QueueDoesNotExist"
    error = _refused("CreateQueue")
    assert error.code == "InvalidParameterValue"
    assert error.message == "Value for parameter QueueName is invalid. Reason: Must specify a queue name."


@pytest.mark.conformance(
    operation="SetQueueAttributes",
    case="no attribute: MissingParameter Attribute.Name",
    source="1.2 errors [O]",
    protocol="query",
)
def test_set_queue_attributes_without_any():
    known = MODEL["SetQueueAttributes"]
    with pytest.raises(AwsError, match=r"contain the parameter Attribute\.Name\.$"):
        known.check(known.input_type(QueueUrl="q"), query=True)
    assert _refused("SetQueueAttributes", QueueUrl="q").message.endswith("parameter Attributes.")


@pytest.mark.parametrize("entries", [None, []])
@pytest.mark.conformance(operation="Errors", case="a batch without entries: EmptyBatchRequest", source="1.2 errors [O]")
def test_a_batch_without_entries_is_empty(entries):
    error = _refused("DeleteMessageBatch", QueueUrl="q", Entries=entries)
    assert error.shape == "EmptyBatchRequest"
    assert error.message == "There should be at least one DeleteMessageBatchRequestEntry in the request."


def test_a_missing_member_of_an_entry_is_named_with_its_number():
    batch = MODEL["SendMessageBatch"]
    ask = batch.decoder.decode(b'{"QueueUrl":"q","Entries":[{"Id":"1","MessageBody":"x"},{"Id":"2"}]}')
    with pytest.raises(AwsError) as caught:
        batch.check(ask)
    assert caught.value.message == (
        "The request must contain the parameter SendMessageBatchRequestEntry.2.MessageBody."
    )


def test_what_is_complete_passes():
    send = MODEL["SendMessage"]
    send.check(send.input_type(QueueUrl="q", MessageBody=""))  # empty is for the operation to judge
    MODEL["ListQueues"].check(MODEL["ListQueues"].input_type())


# ------------------------------------------------------------------------------------------------- the file


def _botocore_at(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = folder / "botocore"
    data = package / "data" / "sqs" / "2012-11-05"
    data.mkdir(parents=True)
    (package / "__init__.py").touch()

    class Spec:
        origin = str(package / "__init__.py")

    monkeypatch.setattr(wire_model, "find_spec", lambda name: Spec)
    return data


def test_reads_a_plain_and_a_packed_model(tmp_path, monkeypatch):
    text = msgspec.json.encode(aws_side.raw_model())
    data = _botocore_at(tmp_path, monkeypatch)
    (data / "service-2.json").write_bytes(text)
    assert set(wire_model.load()) == set(MODEL)
    (data / "service-2.json").unlink()
    (data / "service-2.json.gz").write_bytes(gzip.compress(text))
    assert set(wire_model.load()) == set(MODEL)


def test_says_what_to_do_without_botocore(monkeypatch):
    monkeypatch.setattr(wire_model, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'onefold\[serve\]'"):
        wire_model.load()


def test_says_what_to_do_without_the_model(tmp_path, monkeypatch):
    _botocore_at(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="No SQS service model in"):
        wire_model.load()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"{}",
        b'{"operations": {"A": {"input": {"shape": "Gone"}}}, "shapes": {}}',
        b'{"operations": {"A": {"input": {"shape": "L"}}}, "shapes": {"L": {"type": "list"}}}',
        b'{"operations": {"A": {"input": {"shape": "S"}}}, "shapes": {"S": {"type": "struct"}}}',
        b'{"operations":{"A":{"input":{"shape":"S"}}},"shapes":{"S":{"type":"structure","members":{"s":{"shape":"S"}}}}}',
    ],
)
def test_refuses_what_is_no_service_model(data):
    with pytest.raises(UsageError, match="service model cannot be read"):
        wire_model.compile_model(data)


def test_refuses_a_damaged_file(tmp_path, monkeypatch):
    data = _botocore_at(tmp_path, monkeypatch)
    (data / "service-2.json.gz").write_bytes(b"\x1f\x8b damaged")
    with pytest.raises(UsageError, match="service model cannot be read"):
        wire_model.load()
