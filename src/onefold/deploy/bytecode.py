"""Bytecode for an archive: compiled by this interpreter, valid by hash, so that it says nothing of this machine or moment.

Lambda's folder is read-only, so a function without bytecode compiles every module at every cold start. Files with the hash
of their source instead of its time (PEP 552, unchecked: the archive holds both and nobody edits one) are the same wherever
the same Python compiles the same text. They fit one Python only.

Never here: which files there are. Invariant: what cannot be compiled stays as text; the archive works without bytecode.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onefold import errors

TASK_FOLDER: Final = "/var/task"  # Lambda developer guide: where the archive is unpacked; what tracebacks show


def compiled(sources: Mapping[str, bytes], python: str, stage: Path) -> dict[str, bytes]:
    """The bytecode of Python files.

    Args:
        sources: path in the archive to text. python: the function's version, for example "3.13".
        stage: a folder to work in; emptied.

    Raises:
        UsageError: this interpreter is of another version.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != python:
        raise errors.UsageError(
            f"Bytecode for Python {python} cannot be made by Python {here}.",
            meaning="Each version reads its own only.",
            todo=f"Package with Python {python}, give the functions runtime='python{here}', or leave --bytecode out.",
        )
    if stage.exists():
        shutil.rmtree(stage)
    for name, content in sources.items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    command = [
        sys.executable, "-I", "-S", "-m", "compileall", "-qq", "-j", "1", "--invalidation-mode", "unchecked-hash",
        "-s", str(stage), "-p", TASK_FOLDER, str(stage),
    ]  # fmt: skip
    # Its exit code says only that some file cannot be compiled, as templates of code in some distributions cannot.
    subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own interpreter
    found = {path.relative_to(stage).as_posix(): path.read_bytes() for path in stage.rglob("*.pyc")}
    shutil.rmtree(stage)
    return dict(sorted(found.items()))
