"""Which files belong to a function: the app's own modules, found by a simple rule, and onefold's own.

The rule: the app's module (a package with its whole folder), every module or package next to it that these import,
directly or indirectly, and the files named on the command line. Imports are read from the text; nothing is run. Folders
called `tests` or `__pycache__`, hidden files and bytecode are always left out.

Never here: dependencies, the archive. Invariant: the same files on disk give the same answer, in whatever order the
disk lists them.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from onefold import errors

IN_RUNTIME: Final = frozenset(
    {"boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six", "awslambdaric"}
)
"""Import names that Lambda's Python runtimes include (Lambda developer guide, "Runtime dependencies in Python")."""

_LEFT_OUT_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "tests"})
_LEFT_OUT_SUFFIXES: Final = (".pyc", ".pyo")
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
# Rooms of onefold that no function needs: commands, the page, local servers, test suites, deployment.
LEFT_OUT_ROOMS: Final = frozenset(
    {"__main__.py", "admin", "agents", "check", "cli", "demo", "deploy", "local", "testing", "web"}
)


class Sources(Struct, frozen=True, kw_only=True):
    """Files of one kind.

    Args:
        files: path in the archive (with `/`) to the file on disk.
        modules: top-level modules and packages of the app, its own first.
        outside: import names that are neither these nor Python's own, each with a file that imports it.
    """

    files: Mapping[str, Path]
    modules: tuple[str, ...]
    outside: Mapping[str, str]


def app_sources(module: str, root: Path, include: Iterable[str] = ()) -> Sources:
    """The files of an app.

    Args:
        module: dotted name of the app's module, for example `shop` or `shop.jobs`.
        root: the folder with the first part of that name.
        include: further files or folders below `root`, such as modules imported by a computed name, or data.

    Raises:
        NotFoundError: the module or one of `include` is not below `root`.
        UsageError: a file to include is outside `root`, is not a regular file, or is Python that cannot be parsed.
    """
    own = module.partition(".")[0]
    found: dict[str, Path] = {}
    modules: list[str] = []
    outside: dict[str, str] = {}
    for named in sorted(set(include)):
        found.update(_named(root, named))
    unread = dict(found)
    waiting = [own]
    alone = root.name in _INSTALLED
    while waiting:
        name = waiting.pop(0)
        if name in modules:
            continue
        files = _module_files(root, name)
        if not files:
            raise errors.NotFoundError(
                f"There is no module {name!r} in {root}.", todo="Run the command in the folder that contains it."
            )
        modules.append(name)
        found.update(files)
        unread.update(files)
        for imported, path in sorted(_imports(unread)):
            if imported in modules or imported in waiting or imported in sys.stdlib_module_names:
                continue
            if not alone and _module_files(root, imported):
                waiting.append(imported)
            else:
                outside.setdefault(imported, path)
        unread = {}
    outside.pop("onefold", None)
    return Sources(files=dict(sorted(found.items())), modules=tuple(modules), outside=dict(sorted(outside.items())))


def onefold_sources() -> dict[str, Path]:
    """The files of the running onefold, without the rooms that no function needs."""
    home = Path(__file__).parents[1]
    return {f"onefold/{name}": path for name, path in _tree(home, home) if name.partition("/")[0] not in LEFT_OUT_ROOMS}


def installed_files(target: Path) -> dict[str, Path]:
    """The files of a folder into which pip installed, without those that depend on this machine or this run.

    pip writes there by whom and for whom it installed (RECORD also lists the bytecode); scripts contain the path of an
    interpreter. None of these files is needed for imports.
    """
    noise = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    return {
        name: path
        for name, path in _tree(target, target)
        if not (path.name in noise and path.parent.suffix == ".dist-info") and name.partition("/")[0] != "bin"
    }


def root_of(module: str, file: str | None, folders: Iterable[str] = ()) -> Path:
    """The folder with the first part of an imported module's name.

    Args:
        module: dotted name. file: its `__file__`. folders: its `__path__`, if it has no file.

    Raises:
        UsageError: the module is not on disk.
    """
    path = Path(file) if file is not None else next((Path(folder) / "__init__.py" for folder in folders), None)
    if path is None:
        raise errors.UsageError(f"The module {module} has no file.", todo="Declare the app in a module on disk.")
    above = module.count(".") + (path.name == "__init__.py")
    return path.resolve().parents[above]


# -- files -----------------------------------------------------------------------------------------------------------


def _module_files(root: Path, name: str) -> dict[str, Path]:
    folder, file = root / name, root / f"{name}.py"
    if folder.is_dir() and name.isidentifier():
        found = dict(_tree(folder, root))
        if any(path.suffix == ".py" for path in found.values()):
            return found
    return {file.name: file} if file.is_file() else {}


def _named(root: Path, named: str) -> dict[str, Path]:
    path = root / named
    if not path.resolve().is_relative_to(root.resolve()):
        raise errors.UsageError(
            f"--include {named} is outside {root}.",
            meaning="Its path in the archive would be unknown.",
            todo="Name a path below the folder of the app.",
        )
    if path.is_dir():
        return dict(_tree(path, root))
    if not path.is_file():
        raise errors.NotFoundError(f"--include {named}: there is no such file in {root}.", todo="Correct the path.")
    return {Path(os.path.normpath(named)).as_posix(): path}


def _tree(folder: Path, root: Path) -> Iterator[tuple[str, Path]]:
    """Every file below `folder` with its path from `root`; links are followed, each real folder once."""
    seen: set[str] = set()
    for directory, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(directory)
        folders[:] = [] if real in seen else sorted(name for name in folders if not _is_left_out(name))
        if real in seen:
            continue
        seen.add(real)
        for name in sorted(files):
            path = Path(directory, name)
            if name.startswith(".") or name.endswith(_LEFT_OUT_SUFFIXES):
                continue
            if not path.is_file():
                raise errors.UsageError(
                    f"{path} is not a regular file.",
                    meaning="A broken link, a socket or a pipe cannot be packed.",
                    todo="Remove it from the folder.",
                )
            yield path.relative_to(root).as_posix(), path


def _is_left_out(folder: str) -> bool:
    return folder in _LEFT_OUT_FOLDERS or folder.startswith(".") or folder.endswith(".egg-info")


# -- imports ---------------------------------------------------------------------------------------------------------


def _imports(files: Mapping[str, Path]) -> set[tuple[str, str]]:
    """The first parts of names that Python files import absolutely, each with the importing file."""
    first: dict[str, str] = {}
    for name, path in sorted(files.items()):
        if path.suffix != ".py":
            continue
        for imported in _imported_by(path):
            first.setdefault(imported, name)
    return set(first.items())


def _imported_by(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise errors.UsageError(
            f"{path} is not Python that this interpreter can read: {error}",
            todo="Correct it, or move it out of the package.",
        ) from None
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found
