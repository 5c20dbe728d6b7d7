"""Suppressions of findings that people accept: where they are written, why, until when, and whether they are still used.

A finding is suppressed by a comment on its line, or by itself on the line above; by the resource's metadata, a template's
own or that of cdk-nag; by the configuration; or, in an account, by a tag of the queue:

    VisibilityTimeout: 30   # onefold: ignore[DUP002] the function is bounded to 2 s, until=2027-03-01
    Metadata: {onefold: {ignore: [{id: DUP002, reason: the function is bounded to 2 s}]}}

Never here: rules. Invariant: a suppression without a reason, or past its date, suppresses nothing and is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from fnmatch import fnmatchcase
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from onefold.check.facts import Document
from onefold.check.findings import Finding, FindingSource

WITHOUT_REASON: Final = "SUP001"
UNUSED: Final = "SUP002"
_COMMENT: Final = re.compile(r"#\s*onefold:\s*ignore\[([A-Z0-9, ]{1,200})\]([^#\n]{0,500})")


class Suppression(Struct, frozen=True, kw_only=True):
    """One suppression.

    Attributes:
        rule: the id. reason, until: as written; `until` None: without an end.
        source: where it is. lines: the lines of that file that it is for; () if it is not for lines.
        resource: the resource whose findings it is for; a pattern with `*` in the configuration; "" if it is for lines.
    """

    rule: str
    reason: str
    until: str | None
    source: FindingSource
    lines: tuple[int, ...] = ()
    resource: str = ""

    def places(self) -> Iterator[tuple[Any, ...]]:
        """What it is for: a rule with a file and a line, or with a resource; or a rule alone, if its resource has a star."""
        if self.lines:
            for line in self.lines:
                yield self.rule, self.source.file, line
        elif "*" in self.resource:
            yield (self.rule,)
        else:
            yield self.rule, self.resource

    def matches(self, resource: str) -> bool:
        """Whether its pattern is for this resource; True if it has none."""
        if "*" not in self.resource:
            return True
        pattern = self.resource.replace("[", "[[]").replace(
            "?", "[?]"
        )  # only the star is special; addresses have brackets
        return fnmatchcase(resource, pattern)

    def fault(self, today: date) -> str:
        """Why it suppresses nothing; "" if it does suppress findings."""
        if not self.reason:
            return "gives no reason"
        if self.until is None:
            return ""
        try:
            is_over = date.fromisoformat(self.until) < today
        except ValueError:
            return f"has until={self.until!r:.40}, which is not a date such as 2027-03-01"
        return f"ended with {self.until}" if is_over else ""


class Suppressions:
    """All suppressions of a run, and which of them were used."""

    def __init__(self, today: date, configured: Iterable[Suppression]) -> None:
        self._today = today
        self._all: dict[Suppression, int] = {}  # with their order
        self._at: dict[tuple[Any, ...], list[Suppression]] = {}
        self._used: set[Suppression] = set()
        for one in configured:
            self._add(one)

    def _add(self, one: Suppression) -> None:
        if one not in self._all:
            self._all[one] = len(self._all)
            for place in one.places():
                self._at.setdefault(place, []).append(one)

    def add_text(self, file: str, text: str) -> None:
        """The suppressions in the comments of a file."""
        for number, line in enumerate(text.splitlines(), 1) if "onefold:" in text else ():
            for match in _COMMENT.finditer(line):
                reason, has_end, until = match[2].partition("until=")
                is_alone = line.lstrip().startswith("#")
                for rule in match[1].split(","):
                    one = Suppression(
                        rule=rule.strip(),
                        reason=reason.strip(" ,"),
                        until=until.strip() if has_end else None,
                        source=FindingSource(file, number, match.start() + 1, number, match.end() + 1),
                        lines=(number, number + 1) if is_alone else (number,),
                    )
                    self._add(one)

    def add_metadata(self, document: Document) -> None:
        """The suppressions in the metadata of a document's resources."""
        resources = document.data.get("Resources")
        for name, resource in resources.items() if isinstance(resources, dict) else ():
            metadata = resource.get("Metadata") if isinstance(resource, dict) else None
            if not isinstance(metadata, dict):
                continue
            for place in (("onefold", "ignore"), ("cdk_nag", "rules_to_suppress")):
                written = metadata.get(place[0])
                listed = written.get(place[1]) if isinstance(written, dict) else None
                for number, one in enumerate(listed if isinstance(listed, list) else ()):
                    if isinstance(one, dict):
                        source = document.source(("Resources", name, "Metadata", *place, number))
                        self._add_metadata(one, source, str(name))

    def _add_metadata(self, one: Mapping[str, Any], source: FindingSource, resource: str) -> None:
        if "*" in resource:
            return  # no resource of a template is called so; only the configuration has patterns
        until = one.get("until")
        made = Suppression(
            rule=str(one.get("id")),
            reason=str(one.get("reason") or "").strip(),
            until=None if until is None else str(until),
            source=source,
            resource=resource,
        )
        self._add(made)

    def applied(self, finding: Finding) -> Finding:
        """A finding with the reason of the first suppression that is for it."""
        places = (
            (finding.rule, finding.source.file, finding.source.start_line),
            (finding.rule, finding.resource),
            (finding.rule,),
        )
        for one in sorted((one for place in places for one in self._at.get(place, ())), key=self._all.__getitem__):
            if one.matches(finding.resource) and not one.fault(self._today):
                self._used.add(one)
                return replace(finding, suppressed=one.reason)
        return finding

    def faults(self, known: Collection[str]) -> Iterator[Finding]:
        """A finding for each suppression that has no effect because of how it is written. `known`: the ids of all rules."""
        for one in self._all:
            if one.rule not in known:
                continue  # of cdk-nag, or another tool
            if why := one.fault(self._today):
                yield Finding(
                    rule=WITHOUT_REASON,
                    severity="warning",
                    message=f"The suppression of {one.rule} {why}, so it suppresses nothing.",
                    source=one.source,
                    resource=one.resource,
                    property_path=one.rule,
                )

    def unused(self, run: Collection[str]) -> Iterator[Finding]:
        """A finding for each suppression that no longer has an effect. `run`: the ids of the rules that ran."""
        for one in self._all:
            if one not in self._used and one.rule in run and not one.fault(self._today):
                yield Finding(
                    rule=UNUSED,
                    severity="info",
                    message=f"The suppression of {one.rule} suppresses nothing any more.",
                    source=one.source,
                    resource=one.resource,
                    property_path=one.rule,
                )
