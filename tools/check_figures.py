"""How many of the faults in the tests' cases `onefold check` finds, and what else it reports, from a run of all rules.

A case is a file or directory of `tests/check/corpus` (templates in YAML and in JSON) or `tests/check/code` (Python, alone
and with a template). Its first line, or the metadata of JSON, says what has to be found: `# finds: DUP002 error, LOS001
error`, or `nothing`. A file in `tests/check/hcl` (Terraform's own) has many cases, each below such a line. To each belong
the blocks of `shared.tf` and those above the first case of its file; a block replaces the one of that name before it. The
right ones are directories in `right`. The same rule with the same severity is the same finding.
Never here: whether figures are good enough; tests compare each case. Invariant: a case that could not be read is an error.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec import Struct

from onefold.check.checking import check
from onefold.check.rules import RULES
from onefold.errors import UsageError

CASES: Final = Path(__file__).resolve().parents[1] / "tests" / "check"
KINDS: Final = ("corpus", "code")
_CASE: Final = re.compile(r"^# finds: (.*)$", re.MULTILINE)
_BLOCK: Final = re.compile(r'^(?:resource|data) "[^"]+" "[^"]+"', re.MULTILINE)
TODAY: Final = date(2026, 11, 23)  # suppressions in the cases have last days


class CaseFigures(Struct, frozen=True):
    """What a run over all cases gave. `right`, `wrong`: how many there are; a template in two languages is two.

    `alarmed`: right ones in which something was reported. `complete`: wrong ones in which exactly what is wrong was.
    By rule: `expected`, findings that there have to be; `reported`, those that there were; `met`, those that are both.
    """

    right: int
    alarmed: int
    wrong: int
    complete: int
    expected: Counter[str]
    reported: Counter[str]
    met: Counter[str]

    def precision(self, rule: str) -> str:
        """Of what a rule reported, how much is wrong indeed: `1.00 (14/14)`; `-` where it reported nothing."""
        return _ratio(self.met[rule], self.reported[rule])

    def recall(self, rule: str) -> str:
        """Of what a rule has to report, how much it did: `1.00 (14/14)`; `-` where it has to report nothing."""
        return _ratio(self.met[rule], self.expected[rule])


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f} ({part}/{whole})" if whole else "-"


def cases(which: str, folder: Path) -> Iterator[Path]:
    """The files and directories of the cases that are `right` or `wrong`; wrong ones of Terraform go to a folder."""
    for kind in KINDS:
        yield from sorted((CASES / kind / which).iterdir())
    hcl = CASES / "hcl"
    if which == "right":
        yield from sorted((hcl / "right").iterdir()) if hcl.is_dir() else ()
        return
    for name, finds, text in terraform_cases(hcl):
        case = folder / name
        case.mkdir()
        (case / "main.tf").write_text(f"# finds: {finds}\n{text}", encoding="utf-8")
        yield case


def terraform_cases(folder: Path) -> Iterator[tuple[str, str, str]]:
    """The wrong cases of Terraform in the files of a folder: a name, what each finds, and its whole text."""
    texts = {file.stem: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.tf"))}
    shared = _blocks(texts.pop("shared", ""))
    for name, whole in texts.items():
        above, *rest = _CASE.split(whole)
        for at, (finds, text) in enumerate(zip(rest[::2], rest[1::2], strict=True)):
            yield f"{name}-{at}", finds, "".join({**shared, **_blocks(above), **_blocks(text)}.values())


def _blocks(text: str) -> dict[str, str]:
    """A text of HCL by its resources and data sources; what is above them is under ""."""
    starts = [match.start() for match in _BLOCK.finditer(text)]
    found = {"": text[: starts[0]] if starts else text}
    for begins, ends in pairwise([*starts, len(text)]):
        found[text[begins:ends].partition(" {")[0]] = text[begins:ends]
    return found


def expected(case: Path) -> list[str]:
    """What has to be found in a case, `DUP002 error` and the like, in order."""
    file = next((one for one in (case / "template.yaml", case / "main.tf") if one.is_file()), case)
    if case.is_dir() and not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return sorted(json.loads(text)["Metadata"]["finds"])
    head = text.split("\n", 1)[0].removeprefix("# finds: ")
    if head == "nothing" or (file.suffix == ".tf" and not text.startswith("# finds: ")):
        return []
    return sorted(head.split(", "))


def reported(case: Path) -> list[str]:
    """What all rules report in a case, those in preview too.

    Raises:
        UsageError: something of it could not be read.
    """
    checked = check([case], RULES, TODAY, preview=True, report_unused=True)
    if checked.unread:
        raise UsageError(f"{checked.unread[0].file} was not read: {checked.unread[0].why}", todo="Correct the case.")
    return sorted(f"{one.rule} {one.severity}{' preview' if one.is_preview else ''}" for one in checked.open)


def figures() -> CaseFigures:
    """Run all rules over all cases, which takes some seconds.

    Raises:
        UsageError: see `reported`.
    """
    wanted, had, met = Counter[str](), Counter[str](), Counter[str]()
    counted = {"right": 0, "wrong": 0}
    exact = {"right": 0, "wrong": 0}
    with tempfile.TemporaryDirectory() as folder:
        for which in counted:
            for case in cases(which, Path(folder)):
                must, did = Counter(expected(case)), Counter(reported(case))
                counted[which] += 1
                exact[which] += must == did
                for total, some in ((wanted, must), (had, did), (met, must & did)):
                    for finding, count in some.items():
                        total[finding.split()[0]] += count
    return CaseFigures(
        right=counted["right"],
        alarmed=counted["right"] - exact["right"],
        wrong=counted["wrong"],
        complete=exact["wrong"],
        expected=wanted,
        reported=had,
        met=met,
    )
