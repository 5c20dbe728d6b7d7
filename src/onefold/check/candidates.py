"""Finds the files to read: those that were named; in directories, possible templates, and Python that uses queues.

Terraform's files are found by their directories, as they are read together: directories that no other calls as a module, and
that have no plan beside them.

Files that git ignores are left out; without git, so are hidden folders and installed packages. Tests are left out unless
they are named, because they do on purpose what rules report.
Never here: parsing. Invariant: the number of files, and the part of each that is searched, are bounded.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from onefold.check.hcl_files import is_hcl
from onefold.check.inputs import is_assembly
from onefold.check.python_modules import FOLDERS_MAX, above
from onefold.errors import UsageError

TEMPLATES: Final = frozenset({".yaml", ".yml", ".json", ".template"})
PYTHON: Final = ".py"
FILES_MAX: Final = 20_000
_BYTES_LOOKED_AT: Final = 1_048_576
_TEMPLATE_MARK: Final = re.compile(rb'Resources|"planned_values"')
_PLAN_MARK: Final = re.compile(rb'"planned_values"')
_PYTHON_MARK: Final = re.compile(
    rb"boto3|aws_lambda_powertools|aws_durable_execution|batchItemFailures|Records|onefold|apply_async|transport_options"
    rb"|send_message|delete_message|receive_message|[iI]dempotency"
)
_TERRAFORM_MARK: Final = re.compile(rb"aws_(?:sqs|sns|lambda|cloudwatch|scheduler|sfn|dynamodb)_")
_CALLS: Final = re.compile(rb'"?source"?\s{0,99}[=:]\s{0,99}"(\.\.?/[^"\n]{0,255})"')
_LEFT_OUT: Final = frozenset({"node_modules", "site-packages", "venv", "__pycache__", "build", "dist"})
_OF_TESTS: Final = re.compile(r"^(?:test_.*|.*_test|conftest)\.py$")


class Candidate(Struct, frozen=True):
    """A file to read, or a directory of Terraform's files.

    `root`: imports are not followed above it. `is_named`: it was named itself, not its directory.
    """

    path: Path
    root: Path
    is_named: bool

    is_terraform: bool = False

    @property
    def is_python(self) -> bool:
        """Whether its name ends in .py."""
        return self.path.suffix == PYTHON and not self.is_terraform


def candidates(paths: Sequence[Path]) -> Iterator[Candidate]:
    """The files under some paths, each once.

    Raises:
        UsageError: a path is not there, or a directory has more than 20,000 candidates.
    """
    seen: set[Path] = set()
    for path in paths:
        if not os.path.exists(path):  # False also for a name that is too long
            raise UsageError(
                f"There is no {path}.", todo="Name a template, a Python file, or a directory that has some."
            )
        if path.is_dir():
            found = list(_inside(path))
        elif is_hcl(path.name):
            found = [Candidate(path.parent, path.parent, True, True)]
        else:
            found = [Candidate(path, _package_root(path), True)]
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
    """The files to read in a directory. A link that leads out of it is not followed: --fix writes what was read."""
    if is_assembly(directory):
        for path in sorted(directory.rglob("*.template.json")):
            if is_assembly(path.parent):
                yield Candidate(path, directory, False)
        return
    names = _known_to_git(directory)
    if not names:  # even if git ignores the directory, as it was named
        names = []
        for folder, folders, inside in os.walk(directory):
            folders[:] = [one for one in folders if not one.startswith(".") and one not in _LEFT_OUT]
            names += [os.path.join(folder, one) for one in inside]
            if len(names) > 50 * FILES_MAX:
                break
    kinds, real = {*TEMPLATES, PYTHON}, directory.resolve()
    paths = sorted(
        one
        for one in map(Path, names)
        if (one.suffix in kinds or is_hcl(one.name)) and one.is_file() and one.resolve().is_relative_to(real)
    )
    for root in _terraform([one for one in paths if is_hcl(one.name)]):
        if not any(one.parent == root and one.suffix == ".json" and _mentions(one, _PLAN_MARK) for one in paths):
            yield Candidate(root, directory, False, True)
    for path in paths:
        if is_hcl(path.name):
            continue
        mark = _TEMPLATE_MARK if path.suffix in TEMPLATES else _PYTHON_MARK if path.suffix == PYTHON else None
        if mark is not None and not _is_of_tests(path, directory) and _mentions(path, mark):
            yield Candidate(path, directory, False)


def _is_of_tests(path: Path, directory: Path) -> bool:
    if path.suffix != PYTHON:
        return False
    folders = path.relative_to(directory).parts[:-1] if path.is_relative_to(directory) else ()
    return _OF_TESTS.match(path.name) is not None or not {"tests", "test"}.isdisjoint(folders)


def _known_to_git(directory: Path) -> list[str] | None:
    """The files that git does not ignore; None if there is no git, or no repository.

    The repository may be a stranger's, and its configuration can name programs: none of them is run. A bare repository
    inside a directory is not taken for one, because a clone carries such a folder like any other.
    """
    settings = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "safe.bareRepository=explicit")
    command = [
        "git", *(word for setting in settings for word in ("-c", setting)), "-C", str(directory),
        "ls-files", "-z", "--cached", "--others", "--exclude-standard",
    ]  # fmt: skip
    elsewhere = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # a hook has them, for its own repository
    environment = {name: value for name, value in os.environ.items() if name not in elsewhere}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}
    try:
        answer = subprocess.run(command, capture_output=True, check=False, timeout=30, env=environment)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    return [str(directory / os.fsdecode(one)) for one in answer.stdout.split(b"\0") if one]


def _terraform(paths: Sequence[Path]) -> Iterator[Path]:
    """The directories of Terraform's files that no other calls as a module, and that lead to a resource for a queue."""
    calls: dict[Path, set[Path]] = {}
    marked: set[Path] = set()
    for path in paths:
        found = calls.setdefault(path.parent, set())
        try:
            with path.open("rb") as file:
                text = file.read(_BYTES_LOOKED_AT)
        except OSError:
            continue
        found |= {Path(os.path.normpath(path.parent / os.fsdecode(one))) for one in _CALLS.findall(text)}
        if _TERRAFORM_MARK.search(text):
            marked.add(path.parent)
    called = {other for folder, others in calls.items() for other in others if other != folder}
    for folder in sorted(calls.keys() - called):
        if not marked.isdisjoint(_reached(folder, calls)):
            yield folder


def _reached(folder: Path, calls: Mapping[Path, set[Path]]) -> set[Path]:
    reached, level = {folder}, [folder]
    while level:
        level = [one for each in level for one in calls.get(each, ()) if one not in reached]
        reached |= set(level)
    return reached


def _mentions(path: Path, mark: re.Pattern[bytes]) -> bool:
    try:
        with path.open("rb") as file:
            return mark.search(file.read(_BYTES_LOOKED_AT)) is not None
    except OSError:
        return False
