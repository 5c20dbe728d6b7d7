"""A file of findings that are known, so that only new ones fail a run: `--write-baseline` once, `--baseline` from then on.

Never here: what a fingerprint is made from. Invariant: a file in another form is refused, not treated as an empty one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from onefold.check.files import contents
from onefold.check.findings import Finding, below
from onefold.errors import NotFoundError, StorageError, UsageError

FILE_BYTES_MAX: Final = 33_554_432


class KnownFindings(Struct, frozen=True):
    """A finding of the file; everything besides the fingerprint is for people who read it."""

    fingerprint: str
    rule: str = ""
    file: str = ""
    resource: str = ""


class Baseline(Struct, frozen=True):
    """The file."""

    version: Literal[1]
    findings: list[KnownFindings]


def read_baseline(path: Path) -> frozenset[str]:
    """The fingerprints of the findings that are known.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        UsageError: it is too large, or is not a baseline.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no baseline {path}.", todo="Write it: onefold check ... --write-baseline FILE")
    raw = contents(path, FILE_BYTES_MAX, todo="Check a part by itself.")
    try:
        found = msgspec.json.decode(raw, type=Baseline)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a baseline: {error!s:.200}.", todo="Write it again: onefold check ... --write-baseline FILE"
        ) from None
    return frozenset(one.fingerprint for one in found.findings)


def write_baseline(path: Path, findings: Iterable[Finding], root: Path) -> int:
    """Write the file, replacing an existing one; returns how many findings it has.

    Args:
        root: the directory to which the paths in it are relative.

    Raises:
        StorageError: it cannot be written; it is then unchanged.
    """
    known = {
        one.fingerprint: KnownFindings(
            one.fingerprint, one.rule, below(one.source.file, root) or one.source.file, one.resource
        )
        for one in findings
    }
    listed = sorted(known.values(), key=lambda one: (one.file, one.rule, one.resource, one.fingerprint))
    text = msgspec.json.format(msgspec.json.encode(Baseline(1, listed)), indent=2) + b"\n"
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(f"{path} cannot be written: {error.strerror}.", todo="Name another place.") from error
    return len(listed)
