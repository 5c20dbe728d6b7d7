"""What a rule sends to its target for an event: one part of it, a template filled from it, or a constant.

    input_path       the value at a JSON path: a text arrives with its quotes, an object unchanged
    InputTransformer variables taken by JSON paths, filled into a template where it says <name>
    constant         the same text for every event

In a template a variable outside quotes becomes its JSON, one inside quotes its bare text (AWS does not escape it; an
object loses its quotes). A path that finds nothing inserts the empty text, as "" outside quotes.
Paths support dots, indices and `*`. White space between the values of a template is removed. A pipe's template is the same
but contains its paths directly: <$.body.id>.
Never here: which events match, queues. Invariant: every variable of a compiled template is defined, and a number arrives as
it was sent, digit for digit.

Sources: EventBridge user guide, "Input transformation"; API reference, InputTransformer; recorded answers of AWS.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold import codec
from onefold.errors import UsageError
from onefold.record.envelopes import Envelope, time_text

VARIABLES_MAX: Final = 100  # API reference, InputTransformer
TEMPLATE_CHARS_MAX: Final = 8_192  # API reference, InputTransformer
PATH_CHARS_MAX: Final = 256  # API reference, TargetInputPath
PREDEFINED: Final = (
    "aws.events.rule-arn",
    "aws.events.rule-name",
    "aws.events.event.ingestion-time",
    "aws.events.event",
    "aws.events.event.json",
)
PIPE_NAMES: Final[Mapping[str, str]] = {  # user guide, "EventBridge Pipes input transformation" -> our names
    "aws.pipes.pipe-name": "aws.events.rule-name",
    "aws.pipes.event.ingestion-time": "aws.events.event.ingestion-time",
    "aws.pipes.event.json": "aws.events.event.json",
}
_WHOLE: Final = PREDEFINED[3:]  # these two are filled in as a JSON value, not inside of a string
_STEP: Final = r"\.([A-Za-z0-9_/-]+|\*)|\[([0-9]+|\*)\]"
_PATH: Final = rf"\$(?:{_STEP})*"
_NAME: Final = r"[A-Za-z0-9_-]{1,256}"
_PLACEHOLDER: Final = r"<([A-Za-z0-9_.-]+)>"
_REST_OF_NAME: Final = r'(?:[^"\\]|\\.)*"\s*:'
_NOTHING: Final[object] = object()

_DECODER: Final = msgspec.json.Decoder(float_hook=codec.decimal)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")

Path = tuple[str | int, ...]


class InputTransformer(Struct, frozen=True, kw_only=True):
    """How a rule transforms an event, like EventBridge's InputTransformer.

    Args:
        paths: variable name -> JSON path into the event, at most 100.
        template: JSON, or texts in quotes, with `<name>` where a variable goes; at most 8,192 characters. Besides the
            variables there are `aws.events.rule-arn`, `.rule-name`, `.event.ingestion-time`, `.event` (without the
            detail) and `.event.json`.
    """

    paths: Mapping[str, str] = {}
    template: str


class Rendering(Struct, frozen=True, gc=False):
    """What a template can use besides the event.

    Args:
        rule: the rule's name; arn: its ARN. ingested_at_ms: when the bus took the event, UTC.
    """

    rule: str
    arn: str
    ingested_at_ms: int


class _Hole(Struct, frozen=True, gc=False):
    """A place in a template that a variable fills."""

    name: str
    quoted: bool


class Transformation(Struct, frozen=True, eq=False):
    """A compiled transformation; all None: the event is sent unchanged.

    Args:
        path: the steps of `input_path`. constant: the text. pieces, paths: a template and its variables.
        escaped: text inside quotes is escaped as JSON requires (pipes), not inserted bare (rules).
    """

    path: Path | None = None
    constant: str | None = None
    pieces: tuple[str | _Hole, ...] | None = None
    paths: Mapping[str, Path] = {}
    escaped: bool = False


class NowhereError(Exception):
    """An `input_path` leads to nothing in this event."""


# ---------------------------------------------------------------------------------------------------------- compiling


def compile_transformation(
    input_path: str | None = None, transformer: InputTransformer | None = None, constant: object = None
) -> Transformation:
    """A transformation from a rule's options.

    Args:
        constant: any value with a JSON form; None: no constant.

    Raises:
        UsageError: more than one of them; an invalid path, variable or template.
    """
    if sum(one is not None for one in (input_path, transformer, constant)) > 1:
        raise UsageError(
            "Only one of constant, input_path and input_transformer can define what a target gets.", todo="Give one."
        )
    if input_path is not None:
        return Transformation(path=compile_path(input_path))
    if constant is not None:
        return Transformation(constant=codec.encode(constant).decode())
    if transformer is None:
        return Transformation()
    if len(transformer.paths) > VARIABLES_MAX:
        raise UsageError(f"{len(transformer.paths)} variables are too many.", todo=f"Use at most {VARIABLES_MAX}.")
    for name in transformer.paths:
        if not re.fullmatch(_NAME, name) or name.upper().startswith("AWS"):
            raise UsageError(
                f"{name!r} cannot be the name of a variable.",
                todo="Use 1 to 256 letters, digits, _ and -, not beginning with AWS.",
            )
    paths = {name: compile_path(path) for name, path in transformer.paths.items()}
    return Transformation(pieces=_pieces(transformer.template, paths), paths=paths)


def compile_pipe_template(template: str) -> Transformation:
    """The template of a pipe: it contains the paths themselves, as `<$.body.id>`, and the names in `PIPE_NAMES`.

    What is filled in between quotes is still valid JSON, as EventBridge Pipes promises.

    Raises:
        UsageError: another placeholder, an invalid path or an invalid template.
    """
    paths: dict[str, str] = {}

    def named(match: re.Match[str]) -> str:
        inner = match[1]
        if inner in PIPE_NAMES:
            return f"<{PIPE_NAMES[inner]}>"
        if not inner.startswith("$"):
            raise UsageError(
                f"The template contains the invalid placeholder {inner:.80}.",
                todo=f"Write a path such as <$.body.id>, or one of {', '.join(PIPE_NAMES)}.",
            )
        compile_path(inner)
        name = next((name for name, path in paths.items() if path == inner), f"path{len(paths)}")
        paths[name] = inner
        return f"<{name}>"

    text = re.sub(r"<(\$[^<>]*|[A-Za-z0-9_.-]+)>", named, template)
    made = compile_transformation(transformer=InputTransformer(paths=paths, template=text))
    return msgspec.structs.replace(made, escaped=True)


def compile_path(text: str) -> Path:
    """The steps of a JSON path such as `$.detail.items[0].id`; `*` means every element or field.

    Raises:
        UsageError: another form; EventBridge does not support more of JSON path either.
    """
    if len(text) > PATH_CHARS_MAX or not re.fullmatch(_PATH, text):
        raise UsageError(
            f"{text!r:.120} is not a JSON path that EventBridge understands.",
            todo="Write for example $.detail.order-id or $.resources[0]; at most 256 characters.",
        )
    return tuple(
        int(index) if index.isdigit() else "*" if index else name
        for name, index in (match.groups(default="") for match in re.finditer(_STEP, text))
    )


def _pieces(template: str, paths: Mapping[str, Path]) -> tuple[str | _Hole, ...]:
    if not 1 <= len(template) <= TEMPLATE_CHARS_MAX:
        raise UsageError("An input template has 1 to 8,192 characters.", todo="Shorten it.")
    pieces: list[str | _Hole] = []
    position, quoted = 0, False
    is_json = template.lstrip()[:1] in ("{", "[")
    for match in re.finditer(_PLACEHOLDER, template):
        quoted = _add_text(pieces, template[position : match.start()], quoted, squeezed=is_json)
        name = match[1]
        if name not in paths and name not in PREDEFINED:
            raise UsageError(
                f"The input template contains the invalid placeholder {name}.",
                todo=f"Give it a path, or use one of {', '.join((*paths, *PREDEFINED))}.",
            )
        if quoted and name in _WHOLE:
            raise UsageError(
                f"<{name}> is inside quotes in the input template.",
                meaning="It is JSON and is inserted unchanged.",
                todo=f'Write it without quotes, for example {{"event": <{name}>}}.',
            )
        pieces.append(_Hole(name, quoted))
        position = match.end()
    _add_text(pieces, template[position:], quoted, squeezed=is_json)
    _check_template(pieces)
    return tuple(pieces)


def _add_text(pieces: list[str | _Hole], text: str, quoted: bool, *, squeezed: bool) -> bool:
    """Add the text between two placeholders, without white space outside quotes; returns whether a quote is open."""
    kept, escaped = [], False
    for char in text:
        if not quoted and squeezed and char in " \t\r\n":
            continue
        kept.append(char)
        if escaped:
            escaped = False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
    if kept:
        pieces.append("".join(kept))
    return quoted


def _check_template(pieces: Sequence[str | _Hole]) -> None:
    """Refuse a template that cannot become JSON, whatever is filled in, and a placeholder in the name of a field."""
    sample = "".join(one if isinstance(one, str) else "" if one.quoted else "0" for one in pieces)
    try:
        msgspec.json.decode(sample)
    except (msgspec.DecodeError, RecursionError) as error:
        lines = [line for line in sample.splitlines() if line.strip()]
        if len(lines) > 1 and all(line.strip()[:1] == line.strip()[-1:] == '"' for line in lines):
            return  # one text per line
        raise UsageError(
            f"The input template is not JSON: {error}.",
            meaning="A text needs its quotes, and a variable cannot be the name of a field.",
            todo='Write for example {"order": <order>} or "order <order> was placed".',
        ) from None
    if any(
        isinstance(one, _Hole) and one.quoted and isinstance(after, str) and re.match(_REST_OF_NAME, after)
        for one, after in pairwise(pieces)
    ):
        raise UsageError(
            "There is a placeholder in the name of a field of the input template.",
            todo="Use placeholders in values only.",
        )


# ------------------------------------------------------------------------------------------------------------ applying


def transformed(how: Transformation, event: Envelope, about: Rendering) -> str:
    """What the target receives for an event.

    Raises:
        NowhereError: `input_path` leads to nothing in it.
    """
    if how.constant is not None:
        return how.constant
    if how.path is not None:
        value = at_path(how.path, _exact(event))
        if value is _NOTHING:
            raise NowhereError
        return _json(value)
    if how.pieces is None:
        return event.text
    exact = _exact(event) if how.paths else None
    return "".join(one if isinstance(one, str) else _filled(one, how, event, exact, about) for one in how.pieces)


def text_at(path: Path, event: Envelope) -> str | None:
    """The value at a path as a text, for a message group; None if there is none."""
    value = at_path(path, _exact(event))
    if value is _NOTHING or value is None or value == "":
        return None
    return value if isinstance(value, str) else _json(value)


def at_path(path: Path, value: Any) -> Any:
    """The value at a path; `_NOTHING` if there is none."""
    for position, step in enumerate(path):
        if step == "*":
            below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
            found = [at_path(path[position + 1 :], one) for one in below]
            return [one for one in found if one is not _NOTHING]
        if isinstance(step, int):
            if not isinstance(value, list) or step >= len(value):
                return _NOTHING
            value = value[step]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            return _NOTHING
    return value


def _exact(event: Envelope) -> Any:
    """The event's value with its numbers as written: an amount must not pass through a double."""
    return _DECODER.decode(event.text)


def _filled(hole: _Hole, how: Transformation, event: Envelope, exact: Any, about: Rendering) -> str:
    match hole.name:
        case "aws.events.rule-arn":
            value: Any = about.arn
        case "aws.events.rule-name":
            value = about.rule
        case "aws.events.event.ingestion-time":
            value = time_text(about.ingested_at_ms)
        case "aws.events.event":
            return _json(_without_detail(event.value))
        case "aws.events.event.json":
            return event.text
        case name:
            value = at_path(how.paths[name], exact)
    if value is _NOTHING:
        value = ""
    if not hole.quoted:
        return _json(value)
    if how.escaped:
        return _json(value if isinstance(value, str) else _json(value))[1:-1]
    return value if isinstance(value, str) else _json(value).replace('"', "")


def _without_detail(value: Mapping[str, Any]) -> dict[str, Any]:
    """What AWS fills in for `aws.events.event` (recorded): no detail, and `detailType` for `detail-type`."""
    return {"detailType" if name == "detail-type" else name: one for name, one in value.items() if name != "detail"}


def _json(value: Any) -> str:
    return _ENCODER.encode(value).decode()
