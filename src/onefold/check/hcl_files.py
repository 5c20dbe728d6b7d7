"""Terraform's own files as blocks: `*.tf` and `*.tf.json` of a directory, and the values in `*.tfvars`, with positions.

HCL is parsed by python-hcl2 (extra `check-hcl`). Only its syntax tree is used, which has the position of every value.
JSON is read like all other JSON here, without the extra.
Never here: what an expression evaluates to (hcl_expressions.py), or how blocks belong together (hcl_modules.py). Invariants:
sizes and depth are bounded; what is refused is refused with file and line.

Source: Terraform documentation, "Files and Configuration Structure", "Override Files" and "JSON Configuration Syntax".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from onefold import extras
from onefold.check.documents import read_document
from onefold.check.facts import Document, PropertyPath, Span
from onefold.check.files import contents
from onefold.check.terraform_sources import FILE_BYTES_MAX, FILES_MAX
from onefold.errors import OnefoldError, StorageError, UsageError

if TYPE_CHECKING:
    from lark import Token, Tree

BYTES_MAX: Final = 8 * FILE_BYTES_MAX  # ours: in all files of a directory
DEPTH_MAX: Final = 200  # ours: levels of a syntax tree; a block or object has three or four
BLANKS_MAX: Final = 500  # ours: in a row; the time that the parser needs grows with their square
LABELS: Final = {"resource": 2, "data": 2, "variable": 1, "module": 1, "output": 1, "provider": 1, "locals": 0}
_BLANKS: Final = re.compile(rf"\s{{{BLANKS_MAX}}}")
_NEWLINE: Final = "new_line_or_comment"
_FIRST_VALUES: Final = ("terraform.tfvars", "terraform.tfvars.json")


class Expression(Struct, frozen=True):
    """A value as it is written: a syntax tree, or JSON's data, and where it is."""

    node: Any
    span: Span
    inside: Mapping[str, Expression] = {}

    @property
    def is_json(self) -> bool:
        """Whether it is JSON's data, and not a syntax tree."""
        return isinstance(self.node, (str, int, float, list, dict, type(None)))


class HclBlock(Struct, frozen=True):
    """`resource "aws_sqs_queue" "orders" {...}`: its type and labels, its arguments, and the blocks in it."""

    type: str
    labels: tuple[str, ...]
    span: Span
    attributes: Mapping[str, Expression]
    blocks: tuple[HclBlock, ...] = ()

    @property
    def name(self) -> str:
        """Type and labels, joined by dots."""
        return ".".join((self.type, *self.labels))


def is_hcl(name: str) -> bool:
    """Whether a file of this name is a part of a directory of Terraform."""
    return name.endswith((".tf", ".tf.json"))


def can_read_hcl() -> bool:
    """Whether python-hcl2 is installed."""
    return find_spec("hcl2") is not None


def has_hcl(folder: Path) -> bool:
    """Whether a directory has files in HCL, not only in JSON."""
    return any(folder.glob("*.tf"))


def blocks_in(folder: Path) -> dict[str, list[HclBlock]]:
    """The blocks in the files of a directory by their names; those of override files replace arguments of others.

    Raises:
        StorageError: a file cannot be read.
        UsageError: a file is not HCL or JSON, or one of the bounds is exceeded; python-hcl2 is not installed.
    """
    found: dict[str, list[HclBlock]] = {}
    size = 0
    for file in sorted(files_in(folder), key=lambda one: (_overrides(one), one.name)):
        size += file.stat().st_size
        if size > BYTES_MAX:
            raise UsageError(f"The files in {folder} are larger than {BYTES_MAX} bytes.", todo="Check a plan of them.")
        for one in _blocks_of_json(file) if file.suffix == ".json" else _blocks_of(file):
            same = found.setdefault(one.name, [])
            if _overrides(file) and same and one.type != "locals":
                same[-1] = _overridden(same[-1], one)
            else:
                same.append(one)
    return found


def files_in(folder: Path) -> list[Path]:
    """The files of a directory that Terraform reads as one.

    Raises:
        StorageError: it cannot be read.
    """
    return [one for one in _listed(folder) if is_hcl(one.name)]


def values_in(folder: Path) -> dict[str, Expression]:
    """The values of variables in `terraform.tfvars` and `*.auto.tfvars`, in HCL or JSON; later files win, as in Terraform.

    Raises:
        StorageError, UsageError: see `blocks_in`.
    """
    always = [one for one in _listed(folder) if _is_read_always(one.name)]
    found: dict[str, Expression] = {}
    for file in sorted(always, key=lambda one: one.name not in _FIRST_VALUES):
        found |= _values_of(file)
    return found


def other_values_in(folder: Path) -> dict[str, list[Expression]]:
    """The values of variables in the other `*.tfvars`, of which `terraform plan -var-file` names some or none.

    They are in the directory itself or in a folder of it without files of Terraform, such as `env/prod.tfvars`. One that
    cannot be read is left out.
    """
    found: dict[str, list[Expression]] = {}
    with suppress(OSError):
        inner = [one for one in sorted(folder.iterdir()) if one.is_dir() and not any(map(is_hcl, os.listdir(one)))]
        files = [one for each in (folder, *inner) for one in sorted(each.glob("*.tfvars*")) if one.is_file()]
        for file in files[:FILES_MAX]:
            if file.parent != folder or not _is_read_always(file.name):
                with suppress(OnefoldError):
                    for name, one in _values_of(file).items():
                        found.setdefault(name, []).append(one)
    return found


def _is_read_always(name: str) -> bool:
    return name in _FIRST_VALUES or name.endswith((".auto.tfvars", ".auto.tfvars.json"))


def nodes(tree: Tree[Token]) -> list[Tree[Token]]:
    """The trees in a tree, without line ends and comments."""
    return [one for one in tree.children if not isinstance(one, str) and one.data != _NEWLINE]


def unwrapped(tree: Tree[Token]) -> Tree[Token]:
    """An expression without parentheses around it."""
    while tree.data == "expr_term" and len(nodes(tree)) == 1:
        tree = nodes(tree)[0]
    return tree


def word(tree: Tree[Token]) -> str:
    """The text of a name, or of a number: its only token."""
    return "".join(str(one) for one in tree.scan_values(lambda _: True))


def expression_of(text: str, file: str) -> Tree[Token]:
    """The syntax tree of an expression that is a part of a text, as in `"${...}"` of JSON.

    Raises:
        UsageError: it is not HCL.
    """
    return nodes(nodes(nodes(_tree(f"x = ({text}\n)", file))[0])[0])[1]


# -- HCL -----------------------------------------------------------------------------------------------------------------


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(one for one in folder.iterdir() if one.is_file())[: FILES_MAX * 10]
    except OSError as error:
        raise StorageError(f"{folder} cannot be read: {error.strerror}.", todo="Make it readable.") from error


def _overrides(file: Path) -> bool:
    stem = file.name.partition(".")[0]
    return stem == "override" or stem.endswith("_override")


def _overridden(block: HclBlock, above: HclBlock) -> HclBlock:
    kinds = {one.type for one in above.blocks}
    kept = tuple(one for one in block.blocks if one.type not in kinds)
    return HclBlock(
        block.type, block.labels, block.span, {**block.attributes, **above.attributes}, (*kept, *above.blocks)
    )


def _values_of(file: Path) -> dict[str, Expression]:
    if file.suffix == ".json":
        document = read_document(file)
        return {name: _of_json(document, value, (name,)) for name, value in document.data.items()}
    lines = _text(file).split("\n")
    body = nodes(_tree("\n".join(lines), str(file)))[0]
    return dict(_attributes(body, str(file), lines))


def _blocks_of(file: Path) -> Iterator[HclBlock]:
    text = _text(file)
    lines = text.split("\n")
    for one in nodes(nodes(_tree(text, str(file)))[0]):
        if one.data == "block":
            block = _block(one, str(file), lines)
            if len(block.labels) == LABELS.get(block.type, -1):
                yield block


def _text(file: Path) -> str:
    raw = contents(file, FILE_BYTES_MAX, todo="Split it, or check a plan.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{file}:{line} is not UTF-8 text.", todo="Save it as UTF-8.") from None
    return "\n".join(
        one.rstrip(" \t\r") for one in text.split("\n")
    )  # the parser accepts no blank after a heredoc's mark


def _tree(text: str, file: str) -> Tree[Token]:
    with extras.needed("Reading Terraform's files", "check-hcl", ", or check a plan: terraform show -json"):
        from hcl2 import parses_to_tree
        from lark.exceptions import LarkError, UnexpectedInput
    if (match := _BLANKS.search(text)) is not None:
        line = text.count("\n", 0, match.start()) + 1
        raise UsageError(f"{file}:{line} begins more than {BLANKS_MAX} spaces or empty lines.", todo="Remove them.")
    try:
        tree = parses_to_tree(text)
    except UnexpectedInput as error:
        line = error.line if error.line > 0 else text.count("\n") + 1
        is_end = "$END" in str(error)[:60]
        said = "it ends in the middle" if is_end else f"column {max(error.column, 1)} is not expected there"
        # The line is not quoted: a link in a stranger's repository can lead to a file with secrets.
        raise UsageError(
            f"{file}:{line} is not HCL: {said}.", todo="Correct it; terraform validate says more."
        ) from None
    except (LarkError, RecursionError) as error:
        raise UsageError(f"{file} is not HCL: {type(error).__name__}.", todo="Run terraform validate.") from None
    level, depth = [tree], 0
    while level:
        level = [inner for one in level for inner in nodes(one)]
        depth += 1
    if depth > DEPTH_MAX:
        raise UsageError(f"{file} is nested deeper than {DEPTH_MAX} levels.", todo="Nest less, or check a plan.")
    return tree


def _block(tree: Tree[Token], file: str, lines: list[str]) -> HclBlock:
    head, body = nodes(tree)[:-1], nodes(tree)[-1]
    words = [word(one).strip('"') for one in head]
    begins, ends = _edges(head[0])[0], _edges(head[-1])[1]
    span = Span(begins[0], begins[1], ends[0], ends[1], file)
    inner = tuple(_block(one, file, lines) for one in nodes(body) if one.data == "block")
    return HclBlock(words[0], tuple(words[1:]), span, dict(_attributes(body, file, lines)), inner)


def _attributes(body: Tree[Token], file: str, lines: list[str]) -> Iterator[tuple[str, Expression]]:
    for one in nodes(body):
        if one.data == "attribute":
            name, value = nodes(one)
            yield word(name), _expression(value, file, lines)


def _expression(tree: Tree[Token], file: str, lines: list[str]) -> Expression:
    """An expression, and those in it that are values of an object, even of one that is encoded as JSON."""
    (line, column), (end_line, end_column) = _edges(tree)
    if end_line != line:
        end_line, end_column = line, max(column + 1, len(lines[line - 1].rstrip()) + 1)
    inner = unwrapped(tree)
    if inner.data == "function_call" and word(nodes(inner)[0]) == "jsonencode" and len(nodes(inner)) == 2:
        return Expression(
            tree, Span(line, column, end_line, end_column, file), _expression(nodes(inner)[1], file, lines).inside
        )
    if inner.data == "arguments" and len(nodes(inner)) == 1:
        return _expression(nodes(inner)[0], file, lines)
    inside: dict[str, Expression] = {}
    if inner.data == "object":
        for one in nodes(inner):
            key, value = nodes(one)
            inside[word(key).strip('"')] = _expression(value, file, lines)
    return Expression(tree, Span(line, column, end_line, end_column, file), inside)


def _edges(tree: Tree[Token]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Line and column of where a tree begins, and of where it ends, without line ends and comments."""
    first: Tree[Token] | Token = tree
    while not isinstance(first, str):
        first = next(one for one in first.children if isinstance(one, str) or one.data != _NEWLINE)
    last: Tree[Token] | Token = tree
    while not isinstance(last, str):
        last = next(one for one in reversed(last.children) if isinstance(one, str) or one.data != _NEWLINE)
    return (int(first.line or 1), int(first.column or 1)), (int(last.end_line or 1), int(last.end_column or 1))


# -- JSON ----------------------------------------------------------------------------------------------------------------


def _blocks_of_json(file: Path) -> Iterator[HclBlock]:
    document = read_document(file)
    for kind, labels in LABELS.items():
        yield from _labelled(document, kind, labels, (), document.data.get(kind), (kind,))


def _labelled(
    document: Document, kind: str, labels: int, found: tuple[str, ...], data: Any, path: PropertyPath
) -> Iterator[HclBlock]:
    if isinstance(data, list):
        for number, one in enumerate(data):
            yield from _labelled(document, kind, labels, found, one, (*path, number))
    elif isinstance(data, dict) and len(found) < labels:
        for name, one in data.items():
            yield from _labelled(document, kind, labels, (*found, name), one, (*path, name))
    elif isinstance(data, dict):
        attributes = {name: _of_json(document, value, (*path, name)) for name, value in data.items()}
        yield HclBlock(kind, found, _span(document, path), attributes)


def _of_json(document: Document, value: Any, path: PropertyPath) -> Expression:
    inside = (
        {name: _of_json(document, one, (*path, name)) for name, one in value.items()} if isinstance(value, dict) else {}
    )
    return Expression(value, _span(document, path), inside)


def _span(document: Document, path: PropertyPath) -> Span:
    place = document.source(path)
    return Span(place.start_line, place.start_column, place.start_line, place.end_column, document.file)
