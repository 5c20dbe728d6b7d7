"""What a project has decided about `onefold check`: `[tool.onefold.check]` in pyproject.toml, or `[check]` in .onefold.toml.

The nearest of them counts, from the working directory up to the root of the repository. `configuration.schema.json` beside
this file describes the table for editors.
Never here: what an option means for a run. Invariant: a name or value that is not known is refused, with the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from onefold.check.files import contents
from onefold.check.findings import FindingSource, Severity
from onefold.check.suppressions import Suppression
from onefold.errors import UsageError

FILE_BYTES_MAX: Final = 1_048_576
_FOLDERS_MAX: Final = 64

Prefix = Annotated[
    str, Meta(pattern="^[A-Z]{1,3}[0-9]{0,3}$", description="The beginning of a rule's id, such as DUP.")
]


class Ignored(Struct, frozen=True, forbid_unknown_fields=True):
    """Findings of one rule that are accepted."""

    rule: Annotated[str, Meta(pattern="^[A-Z]{3}[0-9]{3}$", description="The rule's id.")]
    reason: Annotated[str, Meta(min_length=1, description="Why they are accepted.")]
    resource: Annotated[str, Meta(description="The resource whose findings they are; * matches any characters.")] = "*"
    until: Annotated[date | None, Meta(description="The last day on which they are suppressed.")] = None


class Configuration(Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """The table. Options on the command line take precedence; `ignore` and `extend-select` add up."""

    select: Annotated[list[Prefix], Meta(description="Only these rules.")] = []
    extend_select: Annotated[
        list[Prefix], Meta(description="These rules too, even in preview if it is a whole id.")
    ] = []
    ignore: Annotated[
        list[Prefix | Ignored], Meta(description="Rules not to run, or findings of theirs to suppress.")
    ] = []
    preview: Annotated[bool, Meta(description="Also run rules whose findings may still be wrong.")] = False
    fail_on: Annotated[Severity, Meta(description="The least severe finding that fails a run.")] = "error"
    baseline: Annotated[str | None, Meta(description="A file of findings that are known, beside this one.")] = None
    report_unused: Annotated[bool, Meta(description="Report suppressions that suppress nothing any more.")] = False
    parameters: Annotated[dict[str, str], Meta(description="Values of the parameters of templates.")] = {}


class Configured(Struct, frozen=True):
    """The configuration and the file that it is in; None if there is none."""

    options: Configuration
    file: Path | None = None

    @property
    def ignored(self) -> list[str]:
        """The beginnings of the ids of rules that do not run."""
        return [one for one in self.options.ignore if isinstance(one, str)]

    @property
    def suppressions(self) -> Iterator[Suppression]:
        """The findings that are accepted."""
        source = FindingSource(str(self.file), 1, 1, 1, 1)
        for one in self.options.ignore:
            if isinstance(one, Ignored):
                until = None if one.until is None else one.until.isoformat()
                yield Suppression(
                    rule=one.rule, reason=one.reason, until=until, source=source, resource=one.resource
                )  # fmt: skip

    @property
    def baseline(self) -> Path | None:
        """The file of known findings."""
        if self.options.baseline is None or self.file is None:
            return None
        return self.file.parent / self.options.baseline


def configured(directory: Path, file: Path | None = None) -> Configured:
    """The configuration for a run.

    Args:
        directory: where to begin to look. file: this one instead.

    Raises:
        StorageError: the file cannot be read.
        UsageError: it is not TOML, or has a setting that is not known.
    """
    if file is not None:
        table = _table(file)
        return Configured(Configuration() if table is None else _converted(table, file), file)
    folder = directory.resolve()
    for _ in range(_FOLDERS_MAX):
        for name in (".onefold.toml", "pyproject.toml"):
            found = folder / name
            table = _table(found) if found.is_file() else None
            if table is not None:
                return Configured(_converted(table, found), found)
        if (folder / ".git").exists() or folder.parent == folder:
            break
        folder = folder.parent
    return Configured(Configuration())


def _table(file: Path) -> Any:
    """What a file says about this command; None if it says nothing."""
    raw = contents(file, FILE_BYTES_MAX, todo="Name another file: --config FILE.")
    try:
        found: Any = tomllib.loads(raw.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is not TOML: {error!s:.200}.", todo="Correct it; nothing was checked.") from None
    for part in ("tool", "onefold", "check") if file.name == "pyproject.toml" else ("check",):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _converted(table: Any, file: Path) -> Configuration:
    try:
        return msgspec.convert(table, Configuration)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{file}: the table of onefold check is wrong: {error!s:.300}.",
            todo="Correct it; the page Check a template lists its settings.",
        ) from None


def schema() -> dict[str, Any]:
    """The table as JSON Schema, draft 2020-12, for editors."""
    (made,), parts = msgspec.json.schema_components([Configuration], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "onefold check: [tool.onefold.check] in pyproject.toml, [check] in .onefold.toml",
        **made,
        "$defs": parts,
    }
