"""The fast tests on each Python that onefold says it supports, each in an environment of its own from the same lock.

    make matrix                     # every version that this machine has; one that it has not is said to be missing
    make matrix ARGS="3.13 3.14"    # these; missing ones end it with an error

An interpreter is looked for on the PATH, among pyenv's, and by `uv python find`. None is downloaded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "matrix"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the fast tests on each version and print how it ended."""
    parser = argparse.ArgumentParser(description="The fast tests on each supported Python.")
    parser.add_argument("versions", nargs="*", help=f"of Python; unless given, {' '.join(VERSIONS)}")
    asked = parser.parse_args(arguments).versions
    said = {version: tested(version) for version in asked or VERSIONS}
    print("\n" + "\n".join(f"{version}  {how}" for version, how in said.items()))
    if any(how.startswith("failed") or (asked and how.startswith("missing")) for how in said.values()):
        raise SystemExit(1)
    if not any(how.startswith("passed") for how in said.values()):
        raise SystemExit("No version was tested.")


def tested(version: str) -> str:
    """How the fast tests ended on a version of Python, in a line."""
    python = found(version)
    if python is None:
        return "missing: no interpreter on the PATH, of pyenv or of uv"
    folder = ENVIRONMENTS / version
    inside = str(folder / "bin" / "python")
    exact = subprocess.run(
        [python, "-c", "import platform; print(platform.python_version())"], capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"-- {exact} --", flush=True)
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    steps = (
        [python, "-m", "venv", "--clear", str(folder)],
        [*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", "constraints.txt"],
        [*pip, "--no-build-isolation", "--no-index", "--editable", "."],
        [
            inside,
            "-m",
            "pytest",
            "-q",
            "-n",
            os.environ.get("JOBS", "2"),
            "--dist",
            "worksteal",
            "-m",
            "not slow",
            "tests",
        ],
    )
    for step in steps:
        if subprocess.run(step, cwd=ROOT, check=False).returncode != 0:
            return f"failed: {' '.join(step)} ({exact})"
    return f"passed ({exact})"


def found(version: str) -> str | None:
    """An interpreter of that version, which can make environments; None where there is none."""
    for candidate in candidates(version):
        check = f"import ensurepip, sys; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
        if subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def candidates(version: str) -> Iterator[str]:
    """Where an interpreter of that version may be, the best first."""
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from (str(one) for one in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True))
    uv = shutil.which("uv")
    if uv is not None:
        answer = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", version], capture_output=True, text=True, check=False
        )
        if answer.returncode == 0:
            yield answer.stdout.strip()


if __name__ == "__main__":
    main()
