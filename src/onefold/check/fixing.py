"""Applies the fixes of findings to a file's text: numbers replaced, lines inserted, everything else kept as it is.

Never here: which change is right; the rules say that. Invariants: of two edits that touch the same piece only the first is
made, and the next pass makes the rest; a file is written only if the result can be read and has no new finding.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

from msgspec import Struct

from onefold import redact
from onefold.check.checking import check
from onefold.check.findings import Finding, FindingEdit
from onefold.check.rules import CheckRule
from onefold.check.suppressions import Suppression
from onefold.errors import InvariantBroken, StorageError

PASSES_MAX: Final = 10


class Fixed(Struct, frozen=True):
    """A file after its fixes. `diff`: unified, as `patch` accepts it; empty if nothing can be fixed."""

    file: str
    diff: str
    text: str
    left: tuple[Finding, ...]


def fixed(
    path: Path, rules: Sequence[CheckRule], today: date, parameters: Mapping[str, str] | None = None, *, unsafe: bool,
    suppressions: Sequence[Suppression] = (),
) -> Fixed:  # fmt: skip
    """The file with all fixes made, pass after pass until none is left. Nothing is written.

    Args:
        rules, today, parameters, suppressions: see `checking.check`.
        unsafe: also make fixes that may change what was meant.
    """
    before = text = _text(path)
    found = check([path], rules, today, parameters, suppressions=suppressions).open
    known = {one.fingerprint for one in found}
    for _ in range(PASSES_MAX):
        edits = [one for one in _edits(found, unsafe=unsafe) if one.source.file == str(path)]
        if not edits:
            break
        text = applied(text, edits)
        again = check([path], rules, today, parameters, texts={path: text}, suppressions=suppressions)
        found = again.open
        if any(one.is_named for one in again.unread):
            raise _worse(path)
    if {one.fingerprint for one in found} - known:
        raise _worse(path)
    names = (redact.one_line(str(path)),) * 2
    diff = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(before.splitlines(keepends=True), text.splitlines(keepends=True), *names)
    )
    return Fixed(str(path), diff, text, tuple(found))


def _worse(path: Path) -> InvariantBroken:
    return InvariantBroken(
        f"The fixes for {path} would have made it worse, so nothing was written.",
        todo="Report it with the file; make the changes by hand meanwhile.",
    )


def _text(path: Path) -> str:
    """The file as it is, with its line ends; a byte order mark stays its first character."""
    with path.open(encoding="utf-8", newline="") as file:
        return file.read()


def _edits(found: Iterable[Finding], *, unsafe: bool) -> list[FindingEdit]:
    return [
        edit for one in found if one.fix is not None and (unsafe or one.fix.safety == "safe") for edit in one.fix.edits
    ]


def applied(text: str, edits: Iterable[FindingEdit]) -> str:
    """The text with the edits made; one that begins before the end of another is not made."""
    starts = [1 if text.startswith("\ufeff") else 0]  # a byte order mark is not counted as a column
    for line in text.removeprefix("\ufeff").split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    pieces: list[tuple[int, int, str]] = []
    for edit in edits:
        at = edit.source
        begin = starts[at.start_line - 1] + at.start_column - 1
        end = starts[at.end_line - 1] + at.end_column - 1
        if all(end <= other or begin >= until for other, until, _ in pieces) and (begin, end) not in [
            (other, until) for other, until, _ in pieces
        ]:
            pieces.append((begin, end, edit.text))
    for begin, end, new in sorted(pieces, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def write(one: Fixed) -> None:
    """Put a file's new text in its place, at once and with its permissions.

    Raises:
        StorageError: it cannot be written; it is then unchanged.
    """
    path = Path(one.file)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("x", encoding="utf-8", newline="") as file:
            file.write(one.text)
        part.chmod(path.stat().st_mode & 0o7777)
        part.replace(path.resolve())
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(
            f"{path} cannot be written: {error.strerror}.", todo="Make it and its directory writable."
        ) from error
