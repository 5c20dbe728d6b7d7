"""From paths to findings: which files are templates, what the rules find in each, and what was suppressed beside it.

A finding is suppressed by a comment on its line, or alone on the line above, or by the resource's metadata:

    VisibilityTimeout: 30   # onefold: ignore[DUP002] the function is bounded to 2 s, until=2027-03-01
    Metadata: {onefold: {ignore: [{id: DUP002, reason: the function is bounded to 2 s}]}}

Never here: rules. Invariants: a file that was named and cannot be read is reported; one that was found in a directory and is
no template is passed over. A suppression needs a reason, and one whose day is over suppresses nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from onefold.check.collect_template import collect_template
from onefold.check.findings import SEVERITIES, Finding, Severity
from onefold.check.model import Model, model_of
from onefold.check.rules import Rule
from onefold.errors import OnefoldError, UsageError

SUFFIXES: Final = frozenset({".yaml", ".yml", ".json", ".template"})
FILES_MAX: Final = 20_000
_ACCOUNT: Final = "123456789012"
_REGION: Final = "us-east-1"
_MARK: Final = re.compile(r"Resources")
_COMMENT: Final = re.compile(r"#\s*onefold:\s*ignore\[([A-Z0-9, ]{1,200})\]([^#\n]{0,500})")


class Unread(Struct, frozen=True):
    """A file that was named and could not be checked, and why."""

    file: str
    why: str
    todo: str


class Checked(Struct, frozen=True, kw_only=True):
    """The result. `findings` in the order of files and lines; those that are suppressed carry the reason."""

    files: tuple[str, ...]
    findings: tuple[Finding, ...]
    unread: tuple[Unread, ...] = ()
    left_out: Mapping[str, Sequence[str]] = {}

    @property
    def open(self) -> list[Finding]:
        """Those that are not suppressed."""
        return [one for one in self.findings if one.suppressed is None]

    def reach(self, severity: Severity) -> list[Finding]:
        """The open ones that are at least as severe."""
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return [one for one in self.open if one.severity in worst]


def check(
    paths: Sequence[Path], rules: Iterable[Rule], today: date, parameters: Mapping[str, str] | None = None
) -> Checked:
    """What the rules find in the templates under some paths.

    Args:
        paths: files, or directories, in which CloudFormation and SAM templates are looked for; what git ignores is left out.
        today: for suppressions with an end.
        parameters: of the templates, over their defaults.

    Raises:
        UsageError: a path that is not there; a directory with more than 20,000 candidates.
    """
    rules = list(rules)
    files: list[str] = []
    findings: list[Finding] = []
    unread: list[Unread] = []
    left_out: dict[str, Sequence[str]] = {}
    for path, is_named in _candidates(paths):
        if not is_named and not _mentions_resources(path):
            continue
        try:
            facts = collect_template(
                path, parameters=parameters or {}, account=_ACCOUNT, region=_REGION, everything=True
            )
        except OnefoldError as error:
            if is_named:
                unread.append(Unread(str(path), error.what, error.todo))
            continue
        files.append(str(path))
        model = model_of(facts)
        found = [one for rule in rules for one in rule.find(model)]
        findings += sorted(_suppressed(found, model, today), key=lambda one: (one.source.start_line, one.rule))
        left_out[str(path)] = [f"{one.location}: {one.type}: {one.why}" for one in facts.left_out]
    return Checked(files=tuple(files), findings=tuple(findings), unread=tuple(unread), left_out=left_out)


def _candidates(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Files with whether each was named itself, each once."""
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(f"There is no {path}.", todo="Name a template, or a directory that has some.")
        found = [(path, True)] if not path.is_dir() else [(one, False) for one in _inside(path)]
        for one, is_named in found:
            if one not in seen:
                seen.add(one)
                yield one, is_named
        if len(seen) > FILES_MAX:
            raise UsageError(f"{path} has more than {FILES_MAX:,} YAML and JSON files.", todo="Name a part of it.")


def _inside(directory: Path) -> list[Path]:
    names = _known_to_git(directory)
    if names is None:
        names = []
        for folder, folders, inside in os.walk(directory):
            folders[:] = [one for one in folders if not one.startswith(".") and one != "node_modules"]
            names += [os.path.join(folder, one) for one in inside]
            if len(names) > 50 * FILES_MAX:
                break
    return sorted(Path(one) for one in names if Path(one).suffix in SUFFIXES and Path(one).is_file())


def _known_to_git(directory: Path) -> list[str] | None:
    """The files that git does not ignore; None where there is no git, or no repository."""
    command = ("git", "-C", str(directory), "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    try:
        answer = subprocess.run(command, capture_output=True, check=False, timeout=30)  # noqa: S603 - of constants and a path
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return [str(directory / os.fsdecode(one)) for one in answer.stdout.split(b"\0") if one]


def _mentions_resources(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return _MARK.search(file.read(1_048_576)) is not None
    except OSError:
        return False


# -- suppressions ----------------------------------------------------------------------------------------------------------


def _suppressed(found: Iterable[Finding], model: Model, today: date) -> Iterator[Finding]:
    lines = model.document.text.splitlines()
    for one in found:
        reason = _beside(one, lines, today) or _in_metadata(one, model.document.data, today)
        yield one if reason is None else replace(one, suppressed=reason)


def _beside(finding: Finding, lines: Sequence[str], today: date) -> str | None:
    number = finding.source.start_line
    for place in (number, number - 1):
        line = lines[place - 1] if 1 <= place <= len(lines) else ""
        if place == number or line.lstrip().startswith("#"):
            for ids, rest in _COMMENT.findall(line):
                if finding.rule in [part.strip() for part in ids.split(",")]:
                    reason, has_end, until = rest.partition("until=")
                    return _valid(reason.rstrip(" ,"), until.strip() if has_end else None, today)
    return None


def _in_metadata(finding: Finding, template: Mapping[str, Any], today: date) -> str | None:
    found: Any = template
    for part in ("Resources", finding.resource, "Metadata", "onefold", "ignore"):
        found = found.get(part) if isinstance(found, dict) else None
    for one in found if isinstance(found, list) else ():
        if isinstance(one, dict) and one.get("id") == finding.rule:
            return _valid(str(one.get("reason") or ""), one.get("until"), today)
    return None


def _valid(reason: str, until: Any, today: date) -> str | None:
    """The reason, if there is one and its day is not over."""
    if until is not None:
        try:
            if date.fromisoformat(str(until)) < today:
                return None
        except ValueError:
            return None
    return reason.strip() or None
