"""Finds the files to read: the files that were named, and in directories possible templates and Python that uses queues.

Files that git ignores are left out; without git, so are hidden folders and installed packages. Tests are left out unless
they are named, because they do on purpose what rules report.
Never here: parsing. Invariant: the number of files, and the part of each that is searched, are bounded.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from onefold.check.inputs import is_assembly
from onefold.check.python_modules import FOLDERS_MAX, above
from onefold.errors import UsageError

TEMPLATES: Final = frozenset({".yaml", ".yml", ".json", ".template"})
PYTHON: Final = ".py"
FILES_MAX: Final = 20_000
_BYTES_LOOKED_AT: Final = 1_048_576
_TEMPLATE_MARK: Final = re.compile(rb'Resources|"planned_values"')
_PYTHON_MARK: Final = re.compile(
    rb"boto3|aws_lambda_powertools|aws_durable_execution|batchItemFailures|Records|onefold|apply_async|transport_options"
    rb"|send_message|delete_message|receive_message|[iI]dempotency"
)
_LEFT_OUT: Final = frozenset({"node_modules", "site-packages", "venv", "__pycache__", "build", "dist"})
_OF_TESTS: Final = re.compile(r"^(?:test_.*|.*_test|conftest)\.py$")


class Candidate(Struct, frozen=True):
    """A file to read. `root`: imports are not followed above it. `is_named`: it was named itself, not its directory."""

    path: Path
    root: Path
    is_named: bool

    @property
    def is_python(self) -> bool:
        """Whether its name ends in .py."""
        return self.path.suffix == PYTHON


def candidates(paths: Sequence[Path]) -> Iterator[Candidate]:
    """The files under some paths, each once.

    Raises:
        UsageError: a path is not there, or a directory has more than 20,000 candidates.
    """
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"There is no {path}.", todo="Name a template, a Python file, or a directory that has some."
            )
        found = [Candidate(path, _package_root(path), True)] if not path.is_dir() else list(_inside(path))
        for one in found:
            if one.path not in seen:
                seen.add(one.path)
                yield one
        if len(seen) > FILES_MAX:
            raise UsageError(
                f"{path} has more than {FILES_MAX:,} YAML, JSON and Python files.", todo="Name a part of it."
            )


def _package_root(path: Path) -> Path:
    """The folder where a file's absolute imports start: the one above its packages."""
    folder = path.parent
    for _ in range(FOLDERS_MAX):
        if not (folder / "__init__.py").is_file():
            break
        folder = above(folder)
    return folder


def _inside(directory: Path) -> Iterator[Candidate]:
    if is_assembly(directory):
        for path in sorted(directory.rglob("*.template.json")):
            if is_assembly(path.parent):
                yield Candidate(path, directory, False)
        return
    names = _known_to_git(directory)
    if not names:  # also where git ignores the directory, as it was named
        names = []
        for folder, folders, inside in os.walk(directory):
            folders[:] = [one for one in folders if not one.startswith(".") and one not in _LEFT_OUT]
            names += [os.path.join(folder, one) for one in inside]
            if len(names) > 50 * FILES_MAX:
                break
    for path in sorted(Path(one) for one in names):
        mark = _TEMPLATE_MARK if path.suffix in TEMPLATES else _PYTHON_MARK if path.suffix == PYTHON else None
        if mark is not None and path.is_file() and not _is_of_tests(path, directory) and _mentions(path, mark):
            yield Candidate(path, directory, False)


def _is_of_tests(path: Path, directory: Path) -> bool:
    if path.suffix != PYTHON:
        return False
    folders = path.relative_to(directory).parts[:-1] if path.is_relative_to(directory) else ()
    return _OF_TESTS.match(path.name) is not None or not {"tests", "test"}.isdisjoint(folders)


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


def _mentions(path: Path, mark: re.Pattern[bytes]) -> bool:
    try:
        with path.open("rb") as file:
            return mark.search(file.read(_BYTES_LOOKED_AT)) is not None
    except OSError:
        return False
