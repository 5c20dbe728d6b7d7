"""Suppressions: which findings each is for, and that many of both are matched by their places, not pair by pair."""

from __future__ import annotations

from datetime import date

from onefold.check.findings import Finding, FindingSource
from onefold.check.suppressions import Suppression, Suppressions

TODAY = date(2026, 11, 28)


def found(line: int, resource: str = "Queue") -> Finding:
    source = FindingSource("t.yaml", line, 1, line, 2)
    return Finding(rule="DUP002", severity="warning", message="x", source=source, resource=resource)


def configured(resource: str, reason: str, rule: str = "DUP002") -> Suppression:
    source = FindingSource("pyproject.toml", 1, 1, 1, 2)
    return Suppression(rule=rule, reason=reason, until=None, source=source, resource=resource)


def test_the_first_suppression_that_is_for_a_finding_gives_its_reason() -> None:
    given = [
        configured("Other", "another resource"), configured("Queue", "another rule", "DUP001"),
        configured("Que*", "a pattern"), configured("Queue", "its name"),
    ]  # fmt: skip
    known = Suppressions(TODAY, given)
    known.add_text("t.yaml", "a\nb # onefold: ignore[DUP002] its line\n# onefold: ignore[DUP002] the line above\nd\n")
    assert known.applied(found(2)).suppressed == "a pattern"
    assert known.applied(found(2, "Topic")).suppressed == "its line"
    assert known.applied(found(4, "Topic")).suppressed == "the line above"
    assert known.applied(found(1, "Topic")).suppressed is None
    assert known.applied(found(1, "Other")).suppressed == "another resource"


def test_many_findings_are_not_compared_with_many_suppressions() -> None:
    compared: list[str] = []

    class File(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.append("")
            return str.__eq__(self, other) is True

        def __hash__(self) -> int:
            return str.__hash__(self)

    known = Suppressions(TODAY, [])
    known.add_text("m.py", "#onefold:ignore[DUP001,DUP002,DUP003]x\n" * 300)
    for line in range(1, 301):
        source = FindingSource(File("t.yaml"), line, 1, line, 2)
        one = Finding(rule="DUP002", severity="warning", message="x", source=source, resource="Queue")
        assert known.applied(one).suppressed is None
    assert len(compared) < 3_000
