"""Findings for programs: JSON, SARIF 2.1.0, GitHub's workflow commands, JUnit's XML, Markdown, and one line each.

Sources: OASIS SARIF 2.1.0; GitHub, "SARIF support for code scanning" (`primaryLocationLineHash` is the only fingerprint that
is used; the first sentence of a message is shown by itself) and "Workflow commands" (how values are escaped).
Never here: text for a terminal. Invariant: a path below the directory given is written relative to it, with `/`.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET  # only written with, never parsed with

import msgspec
from msgspec.structs import replace

from onefold import redact
from onefold.check.checking import CheckedInput
from onefold.check.findings import Finding, FindingSource, Related, below
from onefold.check.rules import HARMS, RULES

NAMED_MAX: Final = 5  # ours
ROWS_MAX: Final = 100  # ours; a comment on GitHub may have 65,536 characters
_LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}
_PRECISION: Final = {False: "very-high", True: "medium"}  # of rules in preview


def concise(checked: CheckedInput, root: Path) -> str:
    """`file:line:column: id severity: message`, one line for each open finding; `file: not checked: why`."""
    found = "".join(
        f"{redact.one_line(str(replace(one.source, file=_relative(one.source.file, root))))}:"
        f" {one.rule} {one.severity}: {redact.one_line(one.message)}\n"
        for one in checked.open
    )
    return found + "".join(
        f"{redact.one_line(_relative(one.file, root))}: not checked: {redact.one_line(one.why)}\n"
        for one in checked.unread
    )


def github(checked: CheckedInput, root: Path) -> str:
    """Workflow commands, which GitHub shows beside the lines of a pull request."""
    kinds = {"error": "error", "warning": "warning", "info": "notice"}
    found = "".join(
        f"::{kinds[one.severity]} file={_property(_relative(one.source.file, root))},line={one.source.start_line},"
        f"endLine={one.source.end_line},col={one.source.start_column},endColumn={one.source.end_column},"
        f"title={_property(one.rule)}::{_value(whole(one))}\n"
        for one in checked.open
    )
    return found + "".join(
        f"::{'error' if one.is_named else 'warning'} file={_property(_relative(one.file, root))},title=not checked::"
        f"{_value(f'{one.why} {one.todo}')}\n"
        for one in checked.unread
    )


def rule_address(rule_id: str) -> str:
    """Where the page of a rule is on the documentation site."""
    return f"https://onefold.example/docs/reference/rule-{rule_id}.html"


def whole(one: Finding) -> str:
    """A finding's message, its arithmetic and its fix, a line each."""
    fix = f"\nFix: {one.fix.description}" if one.fix is not None else ""
    return "\n".join((one.message, *one.arithmetic)) + fix


def _value(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _value(text).replace(":", "%3A").replace(",", "%2C")


def as_json(checked: CheckedInput, root: Path) -> str:
    """Everything, suppressed findings too."""
    findings = []
    for one in checked.findings:
        document = msgspec.to_builtins(one)
        document["source"]["file"] = _relative(one.source.file, root)
        for related, written in zip(one.related, document["related"], strict=True):
            written["source"]["file"] = _relative(related.source.file, root)
        document["fingerprint"] = one.fingerprint
        document["status"] = one.status
        findings.append(document)
    found = {
        "files": [_relative(one, root) for one in checked.files],
        "apps": checked.apps,
        "accounts": checked.accounts,
        "python_files": [_relative(one, root) for one in checked.python_files],
        "findings": findings,
        "unread": msgspec.to_builtins(checked.unread),
        "not_looked_at": {_relative(file, root): said for file, said in checked.not_looked_at.items()},
    }
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n"


def sarif(checked: CheckedInput, root: Path) -> str:
    """SARIF 2.1.0, in the form that GitHub's code scanning accepts."""
    numbers = {rule.id: number for number, rule in enumerate(RULES)}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "onefold check",
                        "semanticVersion": version("onefold"),
                        "informationUri": "https://onefold.example/docs/check.html",
                        "rules": [_rule(one.id, one.title, one.page, preview=one.preview) for one in RULES],
                    }
                },
                "automationDetails": {"id": "onefold-check/template/"},
                "invocations": [_invocation(checked, root)],
                "columnKind": "unicodeCodePoints",
                "results": [_result(one, numbers[one.rule], root) for one in checked.findings],
            }
        ],
    }
    return msgspec.json.format(msgspec.json.encode(log), indent=2).decode() + "\n"


def _invocation(checked: CheckedInput, root: Path) -> dict[str, Any]:
    """Whether all that was named could be read, and what could not."""
    return {
        "executionSuccessful": not any(one.is_named for one in checked.unread),
        "toolExecutionNotifications": [
            {
                "level": "error" if one.is_named else "warning",
                "message": {"text": f"{one.why} {one.todo}"},
                "locations": [{"physicalLocation": {"artifactLocation": {"uri": _relative(one.file, root)}}}],
            }
            for one in checked.unread
        ]
        + [
            {
                "level": "note",
                "message": {"text": not_looked_at(said)},
                "locations": [{"physicalLocation": {"artifactLocation": {"uri": _relative(file, root)}}}],
            }
            for file, said in checked.not_looked_at.items()
        ],
    }


def not_looked_at(said: Sequence[str]) -> str:
    """A sentence on what the findings do not cover."""
    more = f", and {len(said) - NAMED_MAX} more" if len(said) > NAMED_MAX else ""
    return f"Not looked at: {', '.join(said[:NAMED_MAX])}{more}."


def junit(checked: CheckedInput, root: Path) -> str:
    """A test suite in the form of JUnit: a case for each file, and one that has failed for each open finding."""
    suite = ET.Element("testsuite", name="onefold check")
    files = [*checked.files, *checked.apps, *checked.accounts, *checked.python_files]
    bad = {one.source.file for one in checked.open} | {one.file for one in checked.unread}
    for file in files:
        if file not in bad:
            ET.SubElement(suite, "testcase", classname=_relative(file, root), name="no finding")
    for one in checked.open:
        name = f"{one.rule} {one.resource}".strip()
        case = ET.SubElement(suite, "testcase", classname=_relative(one.source.file, root), name=_xml(name))
        failure = ET.SubElement(case, "failure", type=one.severity, message=_xml(one.message))
        failure.text = _xml(f"{_relative(one.source.file, root)}:{one.source.start_line}\n{whole(one)}")
    for unread in checked.unread:
        case = ET.SubElement(suite, "testcase", classname=_relative(unread.file, root), name="readable")
        ET.SubElement(case, "error", message=_xml(f"{unread.why} {unread.todo}"))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(checked.open)))
    suite.set("errors", str(len(checked.unread)))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(suites, encoding="unicode")}\n'


def _xml(text: str) -> str:
    """A text without the characters that XML cannot contain."""
    return "".join(one if one in "\t\n\r" or " " <= one <= "\ud7ff" or one >= "\ue000" else "\ufffd" for one in text)


def markdown(checked: CheckedInput, root: Path) -> str:
    """A table for a comment on a pull request; long ones end with how many more there are."""
    lines = [f"**onefold check: {counted(checked.open)} found.**", ""]
    if checked.open:
        lines += ["| | rule | where | finding |", "|---|---|---|---|"]
    for one in checked.open[:ROWS_MAX]:
        place = f"{_relative(one.source.file, root)}:{one.source.start_line}"
        fix = "" if one.fix is None else f" **Fix:** {one.fix.description}"
        said = "; ".join((one.message, *one.arithmetic)) + fix
        lines.append(f"| {one.severity} | {one.rule} | `{_cell(place)}` | {_cell(said)} |")
    if len(checked.open) > ROWS_MAX:
        lines += ["", f"{len(checked.open) - ROWS_MAX:,} more are not shown."]
    lines += [
        "",
        *(f"- `{_cell(_relative(one.file, root))}` was not checked: {_cell(one.why)}" for one in checked.unread),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    """A text that stays in its cell, and in which nothing is markup or a mention of somebody."""
    text = html.escape(" ".join(text.split()), quote=False)
    return text.replace("|", "\\|").replace("`", "'").replace("[", "\\[").replace("@", "&#64;")


def _rule(rule_id: str, title: str, page: str, *, preview: bool) -> dict[str, Any]:
    summary = page.split("## What it does", 1)[1].split("##", 1)[0].strip()
    return {
        "id": rule_id,
        "name": "".join(word.capitalize() for word in title.replace("'", "").replace("-", " ").split()),
        "shortDescription": {"text": title},
        "fullDescription": {"text": " ".join(summary.split())[:1_024]},
        "helpUri": rule_address(rule_id),
        "help": {"text": page, "markdown": page},
        "properties": {
            "tags": [HARMS[rule_id[:3]].replace(" ", "-")], "precision": _PRECISION[preview],
        },
    }  # fmt: skip


def _result(one: Finding, number: int, root: Path) -> dict[str, Any]:
    links = "".join(f" See [{related.resource}]({place})." for place, related in enumerate(one.related, 1))
    result: dict[str, Any] = {
        "ruleId": one.rule,
        "ruleIndex": number,
        "level": _LEVELS[one.severity],
        "message": {"text": " ".join((one.message, *(f"{step}." for step in one.arithmetic))) + links},
        "locations": [{"physicalLocation": _location(one.source, root)}],
        "partialFingerprints": {"primaryLocationLineHash": one.fingerprint},
    }
    if one.related:
        result["relatedLocations"] = [_related(place, related, root) for place, related in enumerate(one.related, 1)]
    if one.is_known:
        result["baselineState"] = "unchanged"
    if one.suppressed is not None:
        result["suppressions"] = [{"kind": "inSource", "justification": one.suppressed}]
    return result


def _related(number: int, one: Related, root: Path) -> dict[str, Any]:
    return {"id": number, "message": {"text": one.text}, "physicalLocation": _location(one.source, root)}


def _location(source: FindingSource, root: Path) -> dict[str, Any]:
    return {
        "artifactLocation": {"uri": _relative(source.file, root)},
        "region": {
            "startLine": source.start_line, "startColumn": source.start_column,
            "endLine": source.end_line, "endColumn": source.end_column,
        },
    }  # fmt: skip


def _relative(file: str, root: Path) -> str:
    return below(file, root) or Path(file).resolve().as_posix()


FORMATS: Final[dict[str, Callable[[CheckedInput, Path], str]]] = {
    "concise": concise, "json": as_json, "sarif": sarif, "github": github, "junit": junit, "markdown": markdown,
}  # fmt: skip


def counted(findings: Iterable[Finding]) -> str:
    """`3 errors and 1 warning`."""
    severities = [one.severity for one in findings]
    parts = [
        f"{count} {name}{'s' if count > 1 else ''}"
        for name in ("error", "warning", "info")
        if (count := severities.count(name))
    ]
    return " and ".join(parts) or "nothing"
