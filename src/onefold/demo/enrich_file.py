"""The nightly file of the enrich demo: the shipped invoices with some rows damaged, and the same file repaired.

Never here: judging. Invariant: the damage is the same in every run, and only the damaged lines differ between the two files.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Final

from onefold.demo import data

EVERY: Final = 500  # of so many rows one is damaged: 0.2 %
MISSING: Final = "Germany"  # 603 invoices, 2.3 %: with the damaged rows more than the 2 % that are tolerated


def write_nightly(folder: Path, rows: int) -> list[int]:
    """Write `nightly.csv` and `repaired.csv`; the lines of the first that are damaged."""
    with gzip.open(data.INVOICES, "rb") as file:
        lines = file.read().splitlines()[: rows + 1]
    damaged = list(lines)
    places = list(range(EVERY, len(lines), EVERY))
    for number, place in enumerate(places):
        damaged[place] = _damage(lines[place], number)
    (folder / "repaired.csv").write_bytes(b"\n".join(lines) + b"\n")
    (folder / "nightly.csv").write_bytes(b"\n".join(damaged) + b"\n")
    return [place + 1 for place in places]


def _damage(line: bytes, number: int) -> bytes:
    cells = line.split(b",")
    match number % 4:
        case 0:
            return b",".join(cells[:-1])  # a cell too few
        case 1:
            return line + b",,"  # two too many
        case 2:
            return b",".join([*cells[:-2], b"n/a", cells[-1]])  # a quantity that is no number
        case _:
            return line.replace(b",", b"\xa3,", 1)  # no UTF-8


def write_countries(file: Path, *, complete: bool) -> None:
    """Write the table of countries; unless `complete`, one is missing."""
    names = sorted({one.country for one in data.read_invoices()})
    table = {name: f"{name[:2].upper()}{number}" for number, name in enumerate(names) if complete or name != MISSING}
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(table))
    unfinished.replace(file)
