"""The archive of a function: the app, onefold, and pinned dependencies for Lambda's platform; same input, same bytes.

Entries are sorted, dated 1980-01-01, and have mode 0644 (0755 if the file is executable). pip installs the dependencies
into a separate folder, only from wheels, for the function's Python and processor, never for those of this machine.

Bytecode is included only on request, because it fits only one version of Python. Lambda's folder is read-only, so a
function without bytecode compiles every module at every cold start. The compiled files contain the hash of their source
instead of its time (PEP 552, unchecked: the archive has both and neither is edited), so they depend on neither machine
nor time and are the same whenever the same Python compiles the same text.

Never here: which files an app consists of (`sources.py`), uploading.
Invariant: nothing is written to the output before the whole archive is complete; then it replaces the old one in one
step. A file that cannot be compiled stays as text; the archive works without bytecode.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from msgspec import Struct

from onefold import errors
from onefold.deploy.sources import IN_RUNTIME, app_sources, installed_files, onefold_sources
from onefold.interrupts import let_through
from onefold.private_files import make_folder, replacing

Architecture = Literal["x86_64", "arm64"]
Report = Callable[[str], None]

ZIPPED_BYTES_MAX: Final = (
    50 * 1024 * 1024
)  # Lambda quotas: deployment package, zipped, uploaded directly; a larger one must go through S3
UNZIPPED_BYTES_MAX: Final = 250 * 1024 * 1024  # Lambda quotas: deployment package, unzipped, including layers
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")  # Lambda runtimes on which onefold runs
EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "redis": ("redis",),
    "postgres": ("psycopg", "psycopg-binary"),
}
"""Further distributions that a record store needs; DynamoDB needs only boto3, which the runtime includes."""

_PINNED: Final = ("msgspec",)  # onefold's own dependencies
_DATED: Final = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format
_MACHINES: Final[Mapping[Architecture, str]] = {"x86_64": "x86_64", "arm64": "aarch64"}
# glibc of Amazon Linux 2 (python3.11) is 2.26, of Amazon Linux 2023 (3.12 and later) 2.34.
_WHEELS: Final = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_26")
_WHEELS_2023: Final = ("manylinux_2_27", "manylinux_2_28", "manylinux_2_31", "manylinux_2_34")
_PINS: Final = re.compile(r"==|@ ")  # in one line: a version, or a file
_BIGGEST: Final = 5  # how many entries the error names if the archive is too large


class PackageSettings(Struct, frozen=True, kw_only=True):
    """What to pack.

    Args:
        module: dotted name of the app's module.
        root: the folder with the first part of that name.
        output: path of the archive.
        build_dir: the folder into which pip installs; created if needed, and emptied of earlier installs.
        include: further files and folders below `root`.
        requirements: a requirements file with the app's own dependencies.
        extras: record stores other than DynamoDB: `redis`, `postgres`.
        python: version of the function, for example "3.13". architecture: the processor's.
        bytecode: compile the Python files, for faster cold starts.
    """

    module: str
    root: Path
    output: Path
    build_dir: Path
    include: tuple[str, ...] = ()
    requirements: Path | None = None
    extras: tuple[str, ...] = ()
    python: str = "3.13"
    architecture: Architecture = "x86_64"
    bytecode: bool = False


class Built(Struct, frozen=True, kw_only=True):
    """An archive.

    Args:
        path: where the file is.
        sha256: the digest of its bytes, hexadecimal.
        zipped_bytes, unzipped_bytes: its size, and that of its files.
        files: how many it contains.
        modules: the app's modules in it.
        pinned: the requirements that pip was given.
        warnings: what may be missing or wrong, each with what to do.
    """

    path: str
    sha256: str
    zipped_bytes: int
    unzipped_bytes: int
    files: int
    modules: tuple[str, ...]
    pinned: tuple[str, ...]
    warnings: tuple[str, ...]


def build(settings: PackageSettings, report: Report) -> Built:
    """Pack a function.

    Args:
        report: called with each step as it begins.

    Raises:
        UsageError: there is no pip, a dependency has no wheel for the platform, two files have one name, the bytecode
            is for another Python, or it exceeds Lambda's 250 MB unzipped (with the biggest entries). The output is
            unchanged.
        NotFoundError: a module or file does not exist.
    """
    _check(settings)
    report(f"reading {settings.module} in {settings.root}")
    own = app_sources(settings.module, settings.root, settings.include)
    pinned = pins(settings.extras)
    report(f"installing {', '.join(pinned)} for Python {settings.python} on {settings.architecture}")
    target = settings.build_dir / f"python{settings.python}-{settings.architecture}"
    _install(pinned, settings, target)
    dependencies = installed_files(target)
    files = _joined({"the app": own.files, "onefold": onefold_sources(), "a dependency": dependencies})
    report(f"packing {len(files):,} files")
    entries = {name: (path.read_bytes(), os.access(path, os.X_OK)) for name, path in files.items()}
    entries |= {name: (content, False) for name, content in _own_metadata().items()}
    if settings.bytecode:
        report(f"compiling for Python {settings.python}")
        sources = {name: content for name, (content, _) in entries.items() if name.endswith(".py")}
        made = compiled(sources, settings.python, settings.build_dir / "bytecode")
        entries |= {name: (content, False) for name, content in made.items()}
    unzipped = sum(len(content) for content, _ in entries.values())
    if unzipped > UNZIPPED_BYTES_MAX:
        raise too_big({name: len(content) for name, (content, _) in entries.items()}, unzipped)
    digest, zipped = write_archive(settings.output, entries)
    warnings = [*_missing(own.outside, dependencies), *_stray(settings)]
    if zipped > ZIPPED_BYTES_MAX:
        warnings.append(
            f"{_mb(zipped)} zipped is more than the {_mb(ZIPPED_BYTES_MAX)} that Lambda accepts directly;"
            " onefold deploy uploads it to S3 instead."
        )
    return Built(
        path=str(settings.output),
        sha256=digest,
        zipped_bytes=zipped,
        unzipped_bytes=unzipped,
        files=len(entries),
        modules=own.modules,
        pinned=pinned,
        warnings=tuple(warnings),
    )


def pins(extras: Iterable[str] = ()) -> tuple[str, ...]:
    """The requirements for pip: the versions that are installed here, with which the app was tested.

    Raises:
        UsageError: an extra is unknown, or its packages are not installed here.
    """
    names = list(_PINNED)
    for extra in extras:
        if extra not in EXTRAS:
            raise errors.UsageError(f"There is no extra {extra!r}.", todo=f"It is one of {', '.join(EXTRAS)}.")
        names += EXTRAS[extra]
    found = []
    for name in names:
        try:
            found.append(f"{name}=={metadata.version(name)}")
        except metadata.PackageNotFoundError:
            raise errors.UsageError(
                f"{name} is not installed here, so its version is not known.",
                todo="Install it: pip install " + " ".join(names),
            ) from None
    return tuple(found)


# -- the archive -----------------------------------------------------------------------------------------------------


def write_archive(output: Path, entries: Mapping[str, tuple[bytes, bool]]) -> tuple[str, int]:
    """Write a zip whose bytes depend only on its entries; returns its SHA-256 and size.

    Args:
        entries: path in the archive to content and whether it is executable.

    The bytes are the same for every Python that was built with the same zlib; another zlib may compress differently.

    Raises:
        UsageError: the output cannot be written.
    """
    try:
        with replacing(output) as file:
            with zipfile.ZipFile(file, "w") as archive:
                for name, (content, executable) in sorted(entries.items()):
                    entry = zipfile.ZipInfo(name, date_time=_DATED)
                    entry.create_system = 3  # Unix, so that the mode below is understood
                    entry.external_attr = (0o100755 if executable else 0o100644) << 16
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, content, compresslevel=9)
            file.seek(0)
            content = file.read()
    except OSError as error:
        let_through(error)
        raise errors.UsageError(
            f"{output} cannot be written: {error.strerror or error}", todo="Give another path with --output."
        ) from error
    return hashlib.sha256(content).hexdigest(), len(content)


def hash_of(package: Path) -> str:
    """The SHA-256 of an archive that was built before, hexadecimal.

    Raises:
        NotFoundError: the file does not exist. UsageError: it is not a zip.
    """
    if not package.is_file():
        raise errors.NotFoundError(f"There is no package {package}.", todo="Build it: onefold package APP -o FILE.")
    if not zipfile.is_zipfile(package):
        raise errors.UsageError(f"{package} is not a zip file.", todo="Build it: onefold package APP -o FILE.")
    return hashlib.sha256(package.read_bytes()).hexdigest()


def too_big(sizes: Mapping[str, int], total: int) -> errors.UsageError:
    """The error of an archive that Lambda would refuse, with the biggest entries."""
    parts: dict[str, int] = {}
    for name, size in sizes.items():
        first = name.partition("/")[0]
        parts[first] = parts.get(first, 0) + size
    biggest = sorted(parts.items(), key=lambda part: (-part[1], part[0]))[:_BIGGEST]
    return errors.UsageError(
        f"The function would be {_mb(total)} unzipped; Lambda allows {_mb(UNZIPPED_BYTES_MAX)}.",
        meaning="The biggest parts: " + ", ".join(f"{name} {_mb(size)}" for name, size in biggest) + ".",
        todo="Remove dependencies the function does not need, or use a container image.",
    )


def _joined(groups: Mapping[str, Mapping[str, Path]]) -> dict[str, Path]:
    joined: dict[str, Path] = {}
    origin: dict[str, str] = {}
    for what, files in groups.items():
        for name, path in files.items():
            if name in joined:
                raise errors.UsageError(
                    f"{name} is in {origin[name]} and in {what}.",
                    meaning="One would hide the other, and it would be chance which one.",
                    todo="Rename your own module, or remove the dependency.",
                )
            joined[name], origin[name] = path, what
    return joined


def _own_metadata() -> dict[str, bytes]:
    """What `onefold.__version__` reads."""
    version = metadata.version("onefold")
    return {
        f"onefold-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: onefold\nVersion: {version}\n".encode()
    }


def _mb(count: int) -> str:
    return f"{count / 1024 / 1024:,.1f} MB"


# -- dependencies ----------------------------------------------------------------------------------------------------


def _check(settings: PackageSettings) -> None:
    if settings.python not in PYTHONS:
        raise errors.UsageError(
            f"Lambda and onefold do not both run on Python {settings.python}.", todo=f"Use one of {', '.join(PYTHONS)}."
        )
    if settings.requirements is not None and not settings.requirements.is_file():
        raise errors.NotFoundError(
            f"There is no requirements file {settings.requirements}.", todo="Correct --requirements."
        )


def platforms(python: str, architecture: Architecture) -> list[str]:
    """The wheel platforms that a runtime can load, by its glibc."""
    names = _WHEELS if python == "3.11" else (*_WHEELS, *_WHEELS_2023)
    return [f"{name}_{_MACHINES[architecture]}" for name in names]


def _install(pinned: Sequence[str], settings: PackageSettings, target: Path) -> None:
    if find_spec("pip") is None:
        raise errors.UsageError(
            f"pip is not installed in this environment ({sys.prefix}).",
            meaning="It fetches the function's dependencies for Lambda's platform.",
            todo="Run: python -m ensurepip",
        )
    _emptied(target)
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-compile",
        "--only-binary=:all:", "--implementation", "cp", "--python-version", settings.python, "--target", str(target),
    ]  # fmt: skip
    for platform in platforms(settings.python, settings.architecture):
        command += ["--platform", platform]
    if settings.requirements is not None:
        command += ["--requirement", str(settings.requirements)]
    command += pinned
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - this interpreter's pip
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR:")] or done.stderr.splitlines()[-3:]
        raise errors.UsageError(
            f"pip could not install {', '.join(pinned)}"
            + (f" and {settings.requirements}" if settings.requirements is not None else "")
            + f" for Python {settings.python} on {settings.architecture}.",
            meaning=" ".join(" ".join(said).split())[:600],
            todo="A package without a wheel for that platform cannot be used; pin a version that has one.",
        )


def _emptied(target: Path) -> None:
    """Remove an earlier install: pip adds to a folder, and what was dropped from the requirements would stay."""
    if target.exists():
        shutil.rmtree(target)
    make_folder(target.parent)


def _missing(outside: Mapping[str, str], dependencies: Iterable[str]) -> list[str]:
    """Warnings about imports of the app that are not in the archive."""
    there = {name.partition("/")[0].partition(".")[0] for name in dependencies} | IN_RUNTIME
    return [
        f"{path} imports {name}, which is not in the package: add its distribution to --requirements."
        for name, path in outside.items()
        if name not in there
    ]


def _stray(settings: PackageSettings) -> list[str]:
    """Warnings about requirements: that none were named, or that they are not pinned."""
    found = settings.root / "requirements.txt"
    if settings.requirements is None:
        if not found.is_file():
            return []
        return [f"{found.name} is in the app's folder but is not used: --requirements {found.name}"]
    lines = [line.partition(" #")[0].strip() for line in settings.requirements.read_text(encoding="utf-8").splitlines()]
    loose = [line for line in lines if line and line[0] not in "#-" and not _PINS.search(line)]
    if not loose:
        return []
    where = settings.requirements.name
    return [f"{', '.join(loose)} in {where} has no exact version, so a later build may differ: pin with ==."]


TASK_FOLDER: Final = "/var/task"  # Lambda developer guide: where the archive is unpacked; tracebacks show it


def compiled(sources: Mapping[str, bytes], python: str, stage: Path) -> dict[str, bytes]:
    """The bytecode of Python files.

    Args:
        sources: path in the archive to text. python: the function's version, for example "3.13".
        stage: a folder to work in, which is emptied.

    Raises:
        UsageError: this interpreter has another version.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != python:
        raise errors.UsageError(
            f"Bytecode for Python {python} cannot be made by Python {here}.",
            meaning="Each version reads only its own.",
            todo=f"Package with Python {python}, give the functions runtime='python{here}', or leave --bytecode out.",
        )
    if stage.exists():
        shutil.rmtree(stage)
    for name, content in sources.items():
        path = stage / name
        make_folder(path.parent)
        path.write_bytes(content)
    command = [
        sys.executable, "-I", "-S", "-m", "compileall", "-qq", "-j", "1", "--invalidation-mode", "unchecked-hash",
        "-s", str(stage), "-p", TASK_FOLDER, str(stage),
    ]  # fmt: skip
    # Its exit code only says that some file cannot be compiled, such as code templates in some distributions.
    subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - this interpreter
    found = {path.relative_to(stage).as_posix(): path.read_bytes() for path in stage.rglob("*.pyc")}
    shutil.rmtree(stage)
    return dict(sorted(found.items()))
