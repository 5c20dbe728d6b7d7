"""The operations of SQS as types, compiled from the service model in botocore.

The model lists the members that an operation takes and returns, with their types; every structure becomes a msgspec
struct, so that a request is parsed and checked in one pass. Members are always optional (None): whether required ones
are there is checked afterwards (`SqsOperation.check`), because AWS has another error for that. botocore is only a
source of data here: importing its modules would take longer than the rest of the start.

Never here: ranges and rules of values (`queue_operations`, `message_operations`), protocols.
Invariant: the struct of a request has exactly the members of the model, under the model's names.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from onefold.errors import UsageError
from onefold.extras import missing
from onefold.local import aws_errors

Kind = Literal["structure", "list", "map", "string", "integer", "long", "boolean", "blob"]

_ENTRIES = "Entries"  # the member of a batch request that AWS reports as empty, not as missing
_GZIP = 31  # zlib: 32 KiB window, with gzip's header


class Shape(Struct, frozen=True):
    """A type of the model.

    Args:
        name: its name in the model, such as `MessageBodyAttributeMap`.
        kind: its kind in the model.
        members: the members of a structure, by name.
        required: the members that a structure must have.
        item: the type of a list's elements, or of a map's values (keys are strings).
        type: the Python type of its values; for a structure, a struct with the shape's name.
    """

    name: str
    kind: Kind
    members: Mapping[str, Shape] = {}
    required: tuple[str, ...] = ()
    item: Shape | None = None
    type: Any = None


class SqsOperation(Struct, frozen=True):
    """One operation.

    Args:
        name: for example `SendMessage`.
        input: the structure of a request.
        output: the structure of the answer; None if a success has no result.
        input_type: a struct with the members of `input`, all optional.
        decoder: reads JSON into `input_type`.
    """

    name: str
    input: Shape
    output: Shape | None
    input_type: type[Struct]
    decoder: msgspec.json.Decoder[Any]

    def check(self, params: Struct, *, query: bool = False) -> None:
        """Refuse a request that lacks a required member, or that has a batch entry lacking one.

        Args:
            params: an `input_type`.
            query: the request uses the query protocol, for which some texts differ.

        Raises:
            AwsError: QueueDoesNotExist without a queue's URL, InvalidParameterValue without a queue's name (both
                recorded), EmptyBatchRequest without entries, MissingParameter for any other member.
        """
        for name in self.input.required:
            value = getattr(params, name)
            if value is None:
                raise _missing(name, self.input.members[name], query=query)
            if name == _ENTRIES:
                _check_entries(value, self.input.members[name])


def _missing(name: str, shape: Shape, *, query: bool) -> aws_errors.AwsError:
    if name == "QueueUrl":
        return aws_errors.queue_does_not_exist(query=query)
    if name == "QueueName":
        return aws_errors.invalid_parameter_value(
            "Value for parameter QueueName is invalid. Reason: Must specify a queue name."
        )
    if name == _ENTRIES and shape.item is not None:
        return aws_errors.empty_batch_request(shape.item.name)
    return aws_errors.missing_parameter("Attribute.Name" if query and name == "Attributes" else name)


def _check_entries(entries: list[Struct], shape: Shape) -> None:
    entry_shape = shape.item
    assert entry_shape is not None
    if not entries:
        raise aws_errors.empty_batch_request(entry_shape.name)
    for number, entry in enumerate(entries, 1):
        for name in entry_shape.required:
            if getattr(entry, name) is None:
                raise aws_errors.missing_parameter(f"{entry_shape.name}.{number}.{name}")


SqsModel = Mapping[str, SqsOperation]  # by the operation's name


# ---------------------------------------------------------------------------------------------- the model's file


class _Ref(Struct):
    shape: str


class _RawShape(Struct):
    type: Kind
    members: dict[str, _Ref] = {}
    required: tuple[str, ...] = ()
    member: _Ref | None = None
    value: _Ref | None = None


class _RawOperation(Struct):
    input: _Ref
    output: _Ref | None = None


class _File(Struct):
    operations: dict[str, _RawOperation]
    shapes: dict[str, _RawShape]


def load() -> SqsModel:
    """The model in the installed botocore.

    Raises:
        UsageError: botocore is not installed, or its SQS model is not in the usual place.
    """
    spec = find_spec("botocore")  # finds it without importing it
    if spec is None or spec.origin is None:
        raise missing("The local SQS, which reads its operations from botocore's service model,", "botocore", "serve")
    folder = Path(spec.origin).parent / "data" / "sqs" / "2012-11-05"
    for name in ("service-2.json.gz", "service-2.json"):
        try:
            data = (folder / name).read_bytes()
        except FileNotFoundError:
            continue
        return compile_model(data)
    raise UsageError(
        f"No SQS service model in {folder}.",
        meaning="This botocore is incomplete, or lays out its data in a new way.",
        todo="Reinstall botocore; `pip install 'botocore>=1.40'` is known to work.",
    )


def compile_model(data: bytes) -> SqsModel:
    """The operations of a service model in JSON, gzipped or not.

    Raises:
        UsageError: it is not a service model that this code understands.
    """
    try:
        text = zlib.decompress(data, _GZIP) if data.startswith(b"\x1f\x8b") else data
        file = msgspec.json.decode(text, type=_File)
        compiler = _Compiler(file.shapes)
        return {name: compiler.operation(name, raw) for name, raw in file.operations.items()}
    except (zlib.error, msgspec.MsgspecError, KeyError, RecursionError) as error:
        raise UsageError(
            f"The SQS service model cannot be read: {error}.",
            meaning="It has another form than the models known so far.",
            todo="Install another botocore, for instance with: pip install 'botocore>=1.40'",
        ) from None


class _Compiler:
    """Turns the shapes in a file into shapes with types, each once."""

    def __init__(self, raw: Mapping[str, _RawShape]) -> None:
        self._raw = raw
        self._shapes: dict[str, Shape] = {}

    def operation(self, name: str, raw: _RawOperation) -> SqsOperation:
        taken = self._shape(raw.input.shape)
        return SqsOperation(
            name=name,
            input=taken,
            output=self._shape(raw.output.shape) if raw.output else None,
            input_type=taken.type,
            decoder=msgspec.json.Decoder(taken.type),
        )

    def _shape(self, name: str) -> Shape:
        if name not in self._shapes:
            raw = self._raw[name]
            members = {member: self._shape(ref.shape) for member, ref in raw.members.items()}
            ref = raw.member or raw.value
            item = self._shape(ref.shape) if ref else None
            self._shapes[name] = Shape(
                name=name,
                kind=raw.type,
                members=members,
                required=raw.required,
                item=item,
                type=_struct(name, members) if raw.type == "structure" else _plain(raw.type, item),
            )
        return self._shapes[name]


def _struct(name: str, members: Mapping[str, Shape]) -> type[Struct]:
    fields = [(member, shape.type | None, None) for member, shape in members.items()]
    return msgspec.defstruct(name, fields, frozen=True, gc=False, module=__name__)


def _plain(kind: Kind, item: Shape | None) -> Any:
    if item is None:
        return _SCALARS[kind]
    return list[item.type] if kind == "list" else dict[str, item.type]  # type: ignore[name-defined]  # made at run time


_SCALARS: Mapping[Kind, Any] = {
    "string": str,
    "integer": Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)],  # 32 bits in the model's language
    "long": Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)],
    "boolean": bool,
    "blob": bytes,
}
