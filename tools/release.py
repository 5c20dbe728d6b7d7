"""Build the sdist and the wheel, look into both, and use the wheel where nothing else is installed.

    make release            # into dist/; publishing them is a step of its own, by a person
    python -m tools.release --types     # only the last of these checks; part of `make check`

What it holds the files to: the metadata renders (twine), the type marker and every data file are in, tests and paths of the
machine that built them are not; the wheel alone, with its locked dependencies, runs the README's ten lines and a small
demo; every public name has a complete type (pyright --verifytypes). Standard library only: it runs in the environment that
constraints-release.txt makes, which has no onefold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.architecture.public_names import PUBLIC_MODULES

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LOCK = "constraints-wheel.txt"  # what the wheel needs beside itself, for its extra `demo`
DEMO_ROWS = 200

# What a wheel is for: the package and its metadata. Tests stay in the repository, environments and caches on the machine.
_STRANGE = re.compile(r"(^|/)(tests?|benchmarks|tools|docs|site|__pycache__|\.[^/]+)(/|$)|\.(pyc|db|log)$")
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)


# Run where the wheel is installed: each public name as its own module calls it.
_PUBLIC_NAMES = """
import importlib, sys
for module in map(importlib.import_module, sys.argv[1:]):
    for name in module.__all__:
        thing = getattr(module, name)
        print(f"{module.__name__}.{name}")
        if hasattr(thing, "__qualname__"):
            print(f"{thing.__module__}.{thing.__qualname__}")
"""


class Refused(SystemExit):
    """The release cannot be made; the text says why."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Everything `make release` does, in order; the first fault ends it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=DEMO_ROWS, help="invoices of the demo that the wheel runs")
    parser.add_argument("--types", action="store_true", help="only look at the types of the public names, in this tree")
    asked = parser.parse_args(arguments)
    if asked.types:
        with tempfile.TemporaryDirectory(prefix="onefold-types-") as folder:
            check_types(tree_as_installed(Path(folder)))
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wheel, sdist = build(project["version"])
    run([sys.executable, "-m", "twine", "--no-color", "check", "--strict", str(wheel), str(sdist)])
    refuse(check_wheel(wheel) + check_sdist(sdist))
    with tempfile.TemporaryDirectory(prefix="onefold-release-") as folder:
        use(wheel, Path(folder), project["dependencies"], asked.rows)
    print(f"\n{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} are good.")
    if any(".example/" in url for url in project["urls"].values()):
        print("[project.urls] in pyproject.toml still has addresses under .example: set them before you publish.")


def build(version: str) -> tuple[Path, Path]:
    """The wheel, made from the sdist as an index would have it, and the sdist."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # setuptools would pack a module that is deleted by now
    when = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    dated = {"SOURCE_DATE_EPOCH": when.stdout.strip()} if when.returncode == 0 else {}
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)], quiet=True, more=dated)
    return DIST / f"onefold-{version}-py3-none-any.whl", DIST / f"onefold-{version}.tar.gz"


def check_wheel(wheel: Path) -> list[str]:
    """What is wrong with the wheel's contents, a line each."""
    with zipfile.ZipFile(wheel) as archive:
        files = {one.filename: archive.read(one) for one in archive.infolist() if not one.is_dir()}
    wrong = [f"{name} is neither the package nor its metadata" for name in files if not name.startswith("onefold")]
    return wrong + check_package({name: data for name, data in files.items() if name.startswith("onefold/")}, files)


def check_sdist(sdist: Path) -> list[str]:
    """What is wrong with the sdist's contents, a line each."""
    with tarfile.open(sdist) as archive:
        files = {
            one.name.partition("/")[2]: archive.extractfile(one).read()  # type: ignore[union-attr]  # of a file, not None
            for one in archive.getmembers()
            if one.isfile()
        }
    wrong = [f"the sdist lacks {name}" for name in ("LICENSE", "README.md", "pyproject.toml") if name not in files]
    package = {name.removeprefix("src/"): data for name, data in files.items() if name.startswith("src/onefold/")}
    return wrong + check_package(package, files)


def check_package(package: Mapping[str, bytes], everything: Mapping[str, bytes]) -> list[str]:
    """What is wrong with the package's files, and with what the archive says of the machine that built it.

    Args:
        package: the files below `onefold/`, by their path from there. everything: all files of the archive.
    """
    source = ROOT / "src"
    asked = {
        str(one.relative_to(source))
        for one in (source / "onefold").rglob("*")
        if one.is_file() and "__pycache__" not in one.parts
    }
    wrong = [f"{name} is missing" for name in sorted(asked - package.keys())]
    wrong += [f"{name} is not in the source tree" for name in sorted(package.keys() - asked)]
    wrong += [f"{name} does not belong in an archive" for name in sorted(everything) if _STRANGE.search(name)]
    here = [str(path).encode() for path in {ROOT, Path.home(), Path(sys.prefix)} if len(path.parts) > 1]
    wrong += [
        f"{name} names {place.decode()}" for name, data in sorted(everything.items()) for place in here if place in data
    ]
    return wrong


def use(wheel: Path, folder: Path, dependencies: Sequence[str], rows: int) -> None:
    """Install the wheel into an empty environment and do there what the README says."""
    environment = folder / "empty"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    shop = folder / "shop"
    shop.mkdir()
    for title, text in readme_files().items():
        (shop / title).write_text(text, encoding="utf-8")
    needed = [entry for entry in locked(LOCK) if entry.partition("==")[0] in {name_of(one) for one in dependencies}]
    install(python, folder, needed, wheel)
    alone = {"PATH": f"{environment / 'bin'}{os.pathsep}/usr/bin:/bin", "HOME": str(folder), "COLUMNS": "100"}
    guarded = run([python, "-I", "charges.py"], cwd=shop, only=alone)
    if guarded != "charged 995 for i-1\n" * 2:
        raise Refused(f"charges.py, with nothing but {', '.join(dependencies)} installed, printed: {guarded}")
    install(python, folder, locked(LOCK), wheel)
    run([python, "-m", "pip", "--disable-pip-version-check", "check"])
    said = {command: run(["bash", "-euc", command], cwd=shop, only=alone) for command in readme_commands()}
    story = next(text for command, text in said.items() if command.startswith("onefold why"))
    if "completed" not in story:
        raise Refused(f"The README's `onefold why` does not say that the job completed:\n{story}")
    run(["bash", "-euc", f"onefold demo --rows {rows}"], cwd=shop, only=alone)
    check_types(python)


def install(python: str, folder: Path, entries: Sequence[str], wheel: Path) -> None:
    """Install exactly these entries of a lock, by their hashes, and the wheel."""
    pip = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    named = folder / "locked.txt"
    named.write_text("\n".join(entries) + "\n")
    run([*pip, "--require-hashes", "--requirement", str(named)])
    run([*pip, "--no-index", "--force-reinstall", str(wheel)])


def tree_as_installed(folder: Path) -> str:
    """An interpreter for which this tree is installed as a wheel would be, beside the packages of `.venv`.

    Pyright takes no notice of an editable install.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(ROOT / "src" / "onefold", site / "onefold", ignore=shutil.ignore_patterns("__pycache__"))
    (packages,) = (ROOT / ".venv").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return str(folder / "bin" / "python")


def check_types(python: str) -> None:
    """Refuse a public name whose type is not complete, as a type checker sees the installed wheel."""
    listed = run([python, "-I", "-c", _PUBLIC_NAMES, *PUBLIC_MODULES], quiet=True).split()
    said = subprocess.run(
        [sys.executable, "-m", "pyright", "--verifytypes", "onefold", "--ignoreexternal", "--outputjson"],
        capture_output=True, text=True, check=False, cwd=Path(python).parent,  # no configuration of this repository
        env=os.environ | {"PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    known, unknown = type_completeness(json.loads(said.stdout), listed)
    print(f"public names with a complete type: {len(known)} of {len(known) + len(unknown)}")
    refuse([f"{name} has no complete type: {why}" for name, why in unknown.items()])
    if not known:
        raise Refused(f"pyright found no public name at all.\n{said.stderr}")


def type_completeness(report: Mapping[str, Any], listed: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The public names, and what is public on them, with a complete type, and those without one, with the reason.

    Args:
        report: pyright's JSON. listed: the public names where they are defined: `onefold.app.App`.
    """
    ours = [
        one
        for one in report["typeCompleteness"]["symbols"]
        if one["isExported"] and any(f"{one['name']}.".startswith(f"{name}.") for name in listed)
    ]
    known = [one["name"] for one in ours if one["isTypeKnown"] and not one["isTypeAmbiguous"]]
    return known, {
        one["name"]: "; ".join(each["message"].splitlines()[0] for each in one["diagnostics"])
        or "by what it is made of"
        for one in ours
        if not one["isTypeKnown"] or one["isTypeAmbiguous"]
    }


def locked(lock: str) -> list[str]:
    """The entries of a lock, each with its hashes."""
    return (ROOT / lock).read_text().replace(" \\\n   ", "").splitlines()


def readme_files() -> dict[str, str]:
    """The README's Python files by their titles."""
    return {title: text for language, title, text in _readme_blocks() if language == "python" and title}


def readme_commands() -> list[str]:
    """What the README says to type for its first app, `shop`, in order."""
    lines = [line for language, _, text in _readme_blocks() if language == "sh" for line in text.splitlines()]
    wanted = re.compile(r"^(python shop\.py|onefold (worker|why|dlq list) .*\bshop:app\b)")
    commands = [line.partition("  #")[0].strip() for line in lines if wanted.search(line)]
    return commands[: next((n for n, one in enumerate(commands) if one.startswith("onefold dlq")), len(commands)) + 1]


def _readme_blocks() -> Iterator[tuple[str, str, str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return ((found[1], found[2], found[3]) for found in _BLOCK.finditer(text))


def name_of(requirement: str) -> str:
    """The name of a requirement, without its extras, versions and markers."""
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower()


def run(
    command: Sequence[str], *, cwd: Path = ROOT, only: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None, quiet: bool = False,
) -> str:  # fmt: skip
    """Run a program and show what it prints; its output.

    Args:
        only: its whole environment; the one of this process unless given. more: added to it.
        quiet: show what it prints only when it fails.

    Raises:
        Refused: it failed.
    """
    print("+", *(one.strip().partition("\n")[0] for one in command), flush=True)
    done = subprocess.run(
        command, cwd=cwd, env=dict(os.environ if only is None else only) | dict(more or {}),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    if not quiet or done.returncode != 0:
        print(done.stdout, end="", flush=True)
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)} ended with {done.returncode}.")
    return done.stdout


def refuse(wrong: Sequence[str]) -> None:
    """End here when something is wrong."""
    if wrong:
        raise Refused("\n".join(["The release is not good:", *wrong]))


if __name__ == "__main__":
    main()
