"""What a rule has found: which rule, where, the arithmetic, and the smallest change that removes it.

Never here: rules, how a finding is printed. Invariants: a finding names a position in a file that was read; its fingerprint
depends on the rule, the file's name, the resource and the property, and not on lines, so that a change elsewhere keeps it.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path, PurePath
from typing import Literal

from msgspec import Struct

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")  # the worst first


def is_remote(file: str) -> bool:
    """Whether a document is an account (`aws://eu-west-1`) and not a file."""
    return "://" in file


def below(file: str, root: Path) -> str | None:
    """A document's path from a directory, with `/`; an account's name; None if the document is not below the directory."""
    if is_remote(file):
        return file
    path, above = Path(file).resolve(), root.resolve()
    return path.relative_to(above).as_posix() if path.is_relative_to(above) else None


class FindingSource(Struct, frozen=True):
    """A piece of a file: lines and columns from 1, `end_column` one past the last character."""

    file: str
    start_line: int
    start_column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        """`template.yaml:12:7`, the form that editors and terminals open; for an account, its name."""
        return self.file if is_remote(self.file) else f"{self.file}:{self.start_line}:{self.start_column}"


class Related(Struct, frozen=True):
    """The other side of a comparison: where it is, of which resource, and what it says there."""

    source: FindingSource
    resource: str
    text: str


class FindingEdit(Struct, frozen=True):
    """Replace a piece of a file with a text; a piece of no length inserts."""

    source: FindingSource
    text: str


class Fix(Struct, frozen=True):
    """The smallest change that removes a finding. `safe`: it only reduces harm; `unsafe`: it may change what you meant."""

    description: str
    safety: Literal["safe", "unsafe"]
    edits: tuple[FindingEdit, ...] = ()


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that a rule has found.

    Attributes:
        rule: its id, `DUP002`. message: one sentence with the values. arithmetic: one line for each step.
        source, resource, property_path: where; a resource is its logical id. related: the other sides.
        fix: None if there is no single right value. suppressed: the reason written beside it; None if it is not.
        is_preview: it may still be wrong, and is reported only when asked for. is_known: it is in the baseline.
        condition_scenario: in which worlds of the template it holds, `Production is false`; "": in all. The message says it.
    """

    rule: str
    severity: Severity
    message: str
    source: FindingSource
    resource: str
    property_path: str = ""
    arithmetic: tuple[str, ...] = ()
    related: tuple[Related, ...] = ()
    fix: Fix | None = None
    suppressed: str | None = None
    is_preview: bool = False
    is_known: bool = False
    condition_scenario: str = ""

    @property
    def status(self) -> Literal["new", "baseline", "suppressed"]:
        """Whether it counts, or why it does not."""
        return "suppressed" if self.suppressed is not None else "baseline" if self.is_known else "new"

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, the same as long as rule, file name, resource and property are."""
        parts = (self.rule, PurePath(self.source.file).name, self.resource, self.property_path)
        return sha256("\n".join(parts).encode()).hexdigest()[:32]
