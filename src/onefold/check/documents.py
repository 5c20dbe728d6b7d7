"""A template file as plain data: YAML with CloudFormation's short tags, or JSON, and the position of every value.

Only reading lives here, nothing about resources. `!Ref x` comes out as {"Ref": "x"}, `!GetAtt a.b` as
{"Fn::GetAtt": ["a", "b"]}, any other `!F v` as {"Fn::F": v}, so that both notations look alike from here on. Aliases
and merge keys are followed, which CloudFormation itself refuses but tools before it (SAM, `aws cloudformation package`)
resolve. Keys, dates and numbers with leading zeros stay text, as an account id must.
Invariant: size, depth, number and text of what an alias expands to are bounded, and every refusal names file and line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from onefold.check.facts import Document, PropertyPath, Span
from onefold.check.files import contents
from onefold.errors import NotFoundError, UsageError

FILE_BYTES_MAX: Final = 1_048_576  # CloudFormation quotas: template body in S3, 1 MB
DEPTH_MAX: Final = 100  # ours; the deepest real templates have about 25
VALUES_MAX: Final = 200_000  # ours, after aliases; a template of 1 MB without aliases stays under it
CHARS_MAX: Final = 8 * FILE_BYTES_MAX  # ours, after aliases
FUNCTIONS: Final = frozenset(
    {
        *("And", "Base64", "Cidr", "Condition", "Contains", "EachMemberEquals", "EachMemberIn", "Equals", "FindInMap"),
        *("GetAtt", "GetAZs", "GetStackOutput", "If", "ImportValue", "Join", "Length", "Not", "Or", "Ref", "RefAll"),
        *("Select", "Split", "Sub", "ToJsonString", "Transform", "ValueOf", "ValueOfAll"),
    }
)
_PLAIN_INT: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_PLAIN_FLOAT: Final = re.compile(r"-?(0|[1-9][0-9]{0,17})\.[0-9]{1,18}")
_YAML: Final = "tag:yaml.org,2002:"
_TRUE: Final = frozenset({"yes", "true", "on"})


def read_document(path: Path, text: str | None = None) -> Document:
    """Read a template.

    Args:
        text: the content, if it was read before, or other content to check in its place.

    Raises:
        NotFoundError: the file does not exist.
        UsageError: larger than 1 MiB, not UTF-8, neither YAML nor JSON, a key twice in one mapping, a tag that templates
            do not have, aliases that expand to more than the bounds above, or no mapping at the top.
        StorageError: the file cannot be read.
    """
    text = _text(path) if text is None else text.removeprefix("\ufeff")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _bound_depth(path, yaml.parse(text, Loader=loader))
        root = yaml.compose(text, Loader=loader)
    except (yaml.YAMLError, RecursionError) as error:
        if text.lstrip().startswith("{"):  # JSON that is not YAML 1.1: tabs, surrogate pairs
            return Document(str(path), _mapping(_from_json(path, text), str(path)), {}, {}, text)
        raise _no_yaml(path, error) from None
    reader = _Reader(str(path))
    data = reader.value(root, (), 0) if root is not None else None
    return Document(str(path), _mapping(data, str(path)), reader.lines, reader.spans, text)


def unknown_functions(document: Document) -> Iterator[str]:
    """Phrases for the functions that CloudFormation does not have, each with its line if that is known."""
    level: list[tuple[PropertyPath, Any]] = [((), document.data)]
    while level:
        path, one = level.pop()
        if isinstance(one, dict):
            for key in one:
                name = key.removeprefix("Fn::") if isinstance(key, str) and key.startswith("Fn::") else "Ref"
                if name not in FUNCTIONS and not name.startswith("ForEach::"):
                    line = document.line((*path, key))
                    yield f"the unknown function Fn::{name:.80} in {f'line {line}' if line else path[-1] if path else 'it'}"
            level += reversed([((*path, key), inner) for key, inner in one.items()])
        elif isinstance(one, list):
            level += reversed([((*path, at), inner) for at, inner in enumerate(one)])


def _bound_depth(path: Path, events: Iterable[yaml.Event]) -> None:
    """Look through the file before it is composed: libyaml composes recursively, in C, until the stack ends."""
    depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > DEPTH_MAX:
            line = event.start_mark.line + 1
            raise UsageError(f"{path}:{line} is nested deeper than {DEPTH_MAX} levels.", todo="Nest less.")


def _text(path: Path) -> str:
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.", todo="Name a CloudFormation or SAM template, YAML or JSON.")
    raw = contents(
        path,
        FILE_BYTES_MAX,
        meaning="CloudFormation accepts no larger template.",
        todo="Split it, or name the template itself and not an archive.",
    )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}:{line} is not UTF-8 text.", todo="Save it as UTF-8.") from None


def _mapping(data: Any, file: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise UsageError(
            f"{file} is not a template: its top level is not a mapping.",
            todo="A template has the sections Resources, Parameters and so on at the top.",
        )
    return data


def _no_yaml(path: Path, error: yaml.YAMLError | RecursionError) -> UsageError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
    said = getattr(error, "problem", None) or ("nested too deeply" if isinstance(error, RecursionError) else str(error))
    return UsageError(f"{where} is not YAML: {' '.join(said.split())}.", todo="Correct the line; nothing was read.")


def json_of(text: Any) -> Any:
    """The value of JSON that is a text in a document: a policy, a pattern, a definition.

    Raises:
        ValueError: it is not JSON, or is nested deeper than a document may be.
    """
    try:
        data = json.loads(text)
    except (RecursionError, TypeError) as error:
        raise ValueError(str(error)) from None
    if _is_too_deep(data):
        raise ValueError("it is nested too deep")
    return data


def _is_too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(DEPTH_MAX):
        level = [inner for item in level for inner in _inside(item)]
        if not level:
            return False
    return True


def _from_json(path: Path, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UsageError(f"{path} has the key {key!r} twice in one object.", todo="Remove one of them.")
            found[key] = value
        return found

    try:
        data = json.loads(text, object_pairs_hook=once)
        json.dumps(data, ensure_ascii=False).encode()  # half a surrogate pair is a ValueError here, and nowhere later
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno} is not JSON: {error.msg}.", todo="Correct the line.") from None
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{path} is not a template: {error}.", todo="Nest less; write long numbers as text.") from None
    if _is_too_deep(data):
        raise UsageError(f"{path} is nested deeper than {DEPTH_MAX} levels.", todo="Nest less.")
    return data


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class _Reader:
    """Turns YAML nodes into plain data and notes lines; counts what it makes, aliases included."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[PropertyPath, int] = {}
        self.spans: dict[PropertyPath, Span] = {}
        self._values = 0
        self._chars = 0

    def value(self, node: yaml.Node, path: PropertyPath, depth: int) -> Any:
        self._count(node, depth)
        begins, ends = node.start_mark, node.end_mark
        self.lines.setdefault(path, begins.line + 1)
        self.spans.setdefault(path, Span(begins.line + 1, begins.column + 1, ends.line + 1, ends.column + 1))
        if node.tag.startswith("!") and node.tag != "!":
            return self._tagged(node, path, depth)
        return self._untagged(node, path, depth)

    def _untagged(self, node: yaml.Node, path: PropertyPath, depth: int) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        plain = node.tag in {"!", "", f"{_YAML}map", f"{_YAML}seq"} or node.tag.startswith("!")
        if not plain:
            raise self._refused(node, f"has the tag {node.tag.replace(_YAML, '!!')}, which templates do not have")
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, number), depth + 1) for number, item in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, item in self._pairs(node, depth):
            found[key] = self.value(item, (*path, key), depth + 1)
        return found

    def _tagged(self, node: yaml.Node, path: PropertyPath, depth: int) -> Any:
        name = node.tag[1:]
        key = name if name in {"Ref", "Condition"} else f"Fn::{name}"
        inner = node.value if isinstance(node, yaml.ScalarNode) else self._untagged(node, (*path, key), depth + 1)
        if name == "GetAtt" and isinstance(inner, str):
            inner = inner.split(".", 1)
        return {key: inner}

    def _pairs(self, node: yaml.Node, depth: int) -> Iterator[tuple[str, yaml.Node]]:
        """The pairs of a mapping: its own, and the pairs of its merge keys that it lacks."""
        own: dict[str, yaml.Node] = {}
        merged: list[yaml.Node] = []
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._refused(key, "has a key that is not text")
            if key.tag == f"{_YAML}merge":
                merged += item.value if isinstance(item, yaml.SequenceNode) else [item]
            elif key.value in own:
                first = own[key.value].start_mark.line + 1
                raise self._refused(key, f"has the key {key.value!r} again (first: line {first})")
            else:
                own[key.value] = item
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                raise self._refused(source, "merges something that is not a mapping")
            self._count(source, depth)
            self._values += len(source.value)
            for key, item in self._pairs(source, depth + 1):
                own.setdefault(key, item)
        yield from own.items()

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text: str = node.value
        match node.tag.removeprefix(_YAML):
            case "null":
                return None
            case "bool":
                return text.lower() in _TRUE
            case "int" if _PLAIN_INT.fullmatch(text):
                return int(text)
            case "float" if _PLAIN_FLOAT.fullmatch(text):
                return float(text)
            case "binary":
                raise self._refused(node, "has the tag !!binary, which templates do not have")
            case _:
                return text

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._values += 1
        self._chars += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        if depth > DEPTH_MAX:
            raise self._refused(node, f"is nested deeper than {DEPTH_MAX} levels")
        if self._values > VALUES_MAX or self._chars > CHARS_MAX:
            raise self._refused(node, f"expands to more than {VALUES_MAX} values or {CHARS_MAX} characters")

    def _refused(self, node: yaml.Node, what: str) -> UsageError:
        return UsageError(f"{self.file}:{node.start_mark.line + 1} {what}.", todo="Correct it; nothing was read.")
