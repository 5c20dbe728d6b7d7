"""Where resources and their arguments are written in Terraform's files; a plan does not say that.

The files are those beside the plan and, for local modules, those in the directories of their calls. A redrive policy that a
plan does not know, because it has the ARN of a new queue in it, is read here when it is written out.
Never here: evaluating expressions. Invariant: what is not certainly understood is left out; the plan is then read
without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from onefold.check.facts import Span

FILE_BYTES_MAX: Final = 1_048_576
FILES_MAX: Final = 500
_WORDS_MAX: Final = 8  # before a brace; a block has at most three
_TOKEN: Final = re.compile(
    r"(?P<skip>\#[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<heredoc><<-?[ \t]*(?P<mark>\w+)\n.*?(?:\n[ \t]*(?P=mark)\b|\Z))"
    r'|(?P<string>"(?:\\.|[^"\\\n])*+"?)'  # to the end of the line if it is not closed, or each quote would search again
    r"|(?P<open>[{\[(])|(?P<close>[}\])])|(?P<newline>\n)|(?P<name>[A-Za-z_][\w-]*)|(?P<equals>=(?!=|>))"
    r"|(?P<other>[^\s])",
    re.DOTALL,
)
_REDRIVE: Final = re.compile(r"jsonencode\(\s*\{(?P<body>[^{}]*)\}\s*\)", re.DOTALL)


class Written(Struct, frozen=True):
    """A resource or argument: where it is, the text of its expression, "" for a resource, and what is inside it."""

    span: Span
    text: str = ""
    inside: Mapping[str, Written] = {}


class _Token(Struct, frozen=True):
    kind: str
    text: str
    begins: int
    ends: int


def written_in(folder: Path) -> dict[str, dict[str, Written]]:
    """The resources in the files of a directory, `aws_sqs_queue.orders`, each with its arguments; itself is under ""."""
    found: dict[str, dict[str, Written]] = {}
    try:
        files = sorted(one for one in folder.glob("*.tf") if one.is_file())[:FILES_MAX]
        for file in files:
            if file.stat().st_size <= FILE_BYTES_MAX:
                found |= _resources(str(file), file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError):
        return found
    return found


def redrive_of(text: str) -> tuple[str, int] | None:
    """The reference and the maximum of a redrive policy that is written out with `jsonencode`; None for any other text."""
    match = _REDRIVE.fullmatch(text.strip())
    pairs: dict[str, str] = {}
    for line in match["body"].replace(",", "\n").split("\n") if match else ():
        if line.strip():
            name, _, value = line.partition("=" if "=" in line else ":")
            pairs[name.strip().strip('"')] = value.strip()
    count = pairs.get("maxReceiveCount", "").strip('"')
    if pairs.keys() != {"deadLetterTargetArn", "maxReceiveCount"} or not count.isdecimal() or len(count) > 9:
        return None
    return pairs["deadLetterTargetArn"], int(count)


def _resources(file: str, text: str) -> dict[str, dict[str, Written]]:
    starts = [0, *(match.end() for match in re.finditer(r"\n", text))]
    found: dict[str, dict[str, Written]] = {}

    def span(begins: int, ends: int) -> Span:
        first, last = _line(starts, begins), _line(starts, ends)
        return Span(first, begins - starts[first - 1] + 1, last, ends - starts[last - 1] + 1, file)

    for head, body in _blocks([one for one in _tokens(text) if one.kind != "skip"]):
        if head[0].text == "resource" and len(head) == 3:
            address = ".".join(one.text.strip('"') for one in head[1:])
            arguments = {name: Written(span(a, b), text[a:b]) for name, a, b in _arguments(body)}
            found[address] = {"": Written(span(head[0].begins, head[-1].ends)), **arguments}
    return found


def _line(starts: list[int], place: int) -> int:
    low, high = 0, len(starts)
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (middle, high) if starts[middle] <= place else (low, middle)
    return low + 1


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        yield _Token(match.lastgroup or "mark", match[0], match.start(), match.end())


def _blocks(tokens: list[_Token]) -> Iterator[tuple[list[_Token], list[_Token]]]:
    """The blocks at the outermost level: the words before the brace, and what is inside."""
    head: list[_Token] = []
    depth = begins = 0
    for number, one in enumerate(tokens):
        if one.kind == "open":
            begins = number + 1 if depth == 0 else begins
            depth += 1
        elif one.kind == "close":
            depth -= 1
            if depth == 0 and head:
                yield head, tokens[begins:number]
                head = []
        elif depth == 0:
            head = [] if one.kind == "newline" else [*head[:_WORDS_MAX], one]


def _arguments(body: list[_Token]) -> Iterator[tuple[str, int, int]]:
    """The arguments at the outermost level of a block: name, and where its expression begins and ends."""
    depth, at = 0, 0
    while at < len(body):
        one = body[at]
        depth += {"open": 1, "close": -1}.get(one.kind, 0)
        if depth == 0 and one.kind == "name" and at + 1 < len(body) and body[at + 1].kind == "equals":
            first = last = at + 2
            inner = 0
            while last < len(body) and not (inner == 0 and body[last].kind == "newline"):
                inner += {"open": 1, "close": -1}.get(body[last].kind, 0)
                last += 1
            if first < last:
                yield one.text, body[first].begins, body[last - 1].ends
            at = last
            continue
        at += 1
