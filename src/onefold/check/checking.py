"""From paths to findings: read templates and Python, apply the rules, and mark suppressed findings.

Never here: rules, suppressions (suppressions.py), searching directories (candidates.py). Invariants: a named file that
cannot be read is reported. A file found in a directory is reported if it is Python, or names AWS's types, and cannot be
parsed; any other that is not a template is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from onefold.check.candidates import Candidate, candidates
from onefold.check.code_facts import CodeHandler
from onefold.check.collect_python import HandlerEntry, collect_python
from onefold.check.collect_template import collect
from onefold.check.documents import FILE_BYTES_MAX, read_document, unknown_functions
from onefold.check.facts import Document, TemplateFacts
from onefold.check.findings import SEVERITIES, Finding, Severity, is_remote
from onefold.check.hcl_files import can_read_hcl, has_hcl
from onefold.check.inputs import Input, read_input
from onefold.check.joined import Joined, entries_of
from onefold.check.model import model_of
from onefold.check.python_modules import BrokenModule
from onefold.check.rules import RULES, CheckRule
from onefold.check.suppressions import UNUSED, WITHOUT_REASON, Suppression, Suppressions
from onefold.check.worlds import World, Worlds, worlds_of
from onefold.errors import OnefoldError, UsageError

_ACCOUNT: Final = "123456789012"
_REGION: Final = "us-east-1"


class Unread(Struct, frozen=True):
    """A file that could not be checked, and why. `is_named`: it was named, and not found in a directory."""

    file: str
    why: str
    todo: str
    is_named: bool = True

    @classmethod
    def of(cls, file: str, error: OnefoldError | BrokenModule, *, is_named: bool = True) -> Unread:
        """A file that an error was about."""
        why = " ".join(part for part in (error.what, error.meaning) if part)
        return cls(file, why, error.todo, is_named)


class CheckedInput(Struct, frozen=True, kw_only=True):
    """The result. `findings`: in the order of files and lines; those that are suppressed carry the reason.

    `files`: templates and plans. `apps`, `accounts`: documents from the caller. `python_files`: including those
    found through templates and imports. `not_looked_at`: by file, possible worlds (worlds.py) and unknown functions.
    """

    files: tuple[str, ...]
    apps: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    python_files: tuple[str, ...] = ()
    findings: tuple[Finding, ...]
    unread: tuple[Unread, ...] = ()
    not_looked_at: Mapping[str, Sequence[str]] = {}

    @property
    def open(self) -> list[Finding]:
        """The findings that are neither suppressed nor in the baseline."""
        return [one for one in self.findings if one.status == "new"]

    def beside(self, known: Collection[str]) -> CheckedInput:
        """The same result, in which findings with known fingerprints are marked."""
        findings = (replace(one, is_known=one.fingerprint in known) for one in self.findings)
        return replace(self, findings=tuple(findings))

    def reach(self, severity: Severity) -> list[Finding]:
        """The open ones that are at least as severe."""
        worst = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return [one for one in self.open if one.severity in worst]


def check(
    paths: Sequence[Path],
    rules: Iterable[CheckRule],
    today: date,
    parameters: Mapping[str, str] | None = None,
    *,
    documents: Mapping[str, Input] | None = None,
    texts: Mapping[Path, str] | None = None,
    preview: bool = False,
    suppressions: Iterable[Suppression] = (),
    report_unused: bool = False,
) -> CheckedInput:
    """Apply rules to the templates and Python files under some paths.

    Args:
        paths: files, or directories, which are searched for CloudFormation and SAM templates and Python files, except
            those that git ignores. The handlers that a template names, and the files that these import, are read too.
        today: for suppressions with an end.
        parameters: values of the templates' parameters, over their defaults.
        documents: resources that the caller has read, by name, such as `shop:app` for an app, or `aws://eu-west-1`.
        texts: contents of templates to use instead of their files.
        preview: also report findings that may still be wrong.
        suppressions: in addition to those that are written in the files.
        report_unused: also report suppressions that suppress nothing any more.

    Raises:
        UsageError: a path does not exist, or a directory has too many candidates.
    """
    checking = _Checking(
        list(rules), Suppressions(today, suppressions), preview=preview, report_unused=report_unused
    )  # fmt: skip
    sources: list[tuple[Path, Path]] = []
    named: set[str] = set()
    terraform: list[Candidate] = []
    for candidate in candidates(paths):
        if candidate.is_named:
            named.add(str(candidate.path))
        if candidate.is_python:
            sources.append((candidate.path, candidate.root))
        elif candidate.is_terraform and not can_read_hcl() and has_hcl(candidate.path):
            terraform.append(candidate)
        else:
            checking.read(candidate, parameters or {}, (texts or {}).get(candidate.path))
    if terraform:
        checking.leave_out(terraform)
    for name, one in (documents or {}).items():
        if one.document.data["Resources"]:
            checking.documents[name] = _Read.of(one, {})
    return checking.checked(sources, named)


class _Read(Struct, frozen=True):
    """An input that was read: its worlds, its facts in the first of them, and its handlers in each."""

    input: Input
    parameters: Mapping[str, str]
    worlds: Worlds
    facts: TemplateFacts
    entries: tuple[Mapping[str, HandlerEntry], ...]

    @classmethod
    def of(cls, one: Input, parameters: Mapping[str, str]) -> _Read:
        """Read it in each of its worlds, but keep only the handlers of all but the first: templates can be many and large.

        Raises:
            UsageError: it cannot be read by its defaults; see `collect_template.collect`.
        """
        given = parameters if one.takes_parameters else {}
        worlds = worlds_of(one.document, given, account=one.account or _ACCOUNT, region=one.region or _REGION)
        facts = _in_world(one, given, worlds.looked_at[0])
        entries = {0: entries_of(facts)}
        for number, world in enumerate(worlds.looked_at[1:], 1):
            with suppress(UsageError):  # in this world its functions produce more than is allowed
                entries[number] = entries_of(_in_world(one, given, world))
        return cls(one, given, worlds.only(entries), facts, tuple(entries.values()))

    def in_worlds(self) -> Iterator[tuple[TemplateFacts, Mapping[str, HandlerEntry]]]:
        """The facts and the handlers in each world."""
        for world, entries in zip(self.worlds.looked_at, self.entries, strict=True):
            is_first = world is self.worlds.looked_at[0]
            yield self.facts if is_first else _in_world(self.input, self.parameters, world), entries


def _in_world(one: Input, parameters: Mapping[str, str], world: World) -> TemplateFacts:
    return collect(
        one.document, parameters=parameters, account=one.account or _ACCOUNT, region=one.region or _REGION,
        everything=True, values=world.values,
    )  # fmt: skip


def _is_broken(path: Path) -> bool:
    """Whether a file names AWS's resource types, as a template does, but cannot be read as one."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX or b"AWS::" not in raw:
            return False
        read_document(path)
    except OSError:
        return False
    except OnefoldError:
        return True
    return False


def _text_of(file: str) -> str:
    """The text of the file to which positions refer; "" if it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


class _Checking:
    def __init__(
        self, rules: Sequence[CheckRule], suppressions: Suppressions, *, preview: bool, report_unused: bool
    ) -> None:  # fmt: skip
        self._rules = rules
        self._suppressions = suppressions
        self._preview = preview
        self._report_unused = report_unused
        self._unread: list[Unread] = []
        self.templates: dict[str, list[_Read]] = {}
        self.documents: dict[str, _Read] = {}

    def read(self, candidate: Candidate, parameters: Mapping[str, str], text: str | None) -> None:
        path = candidate.path
        try:
            self.templates[str(path)] = [_Read.of(one, parameters) for one in read_input(path, text)]
        except OnefoldError as error:
            if candidate.is_named or candidate.is_terraform or _is_broken(path):
                self._unread.append(Unread.of(str(path), error, is_named=candidate.is_named))

    def leave_out(self, terraform: Sequence[Candidate]) -> None:
        """Report directories of Terraform's files, once for all: what reads them is not installed."""
        more = f" and {len(terraform) - 1} more with Terraform's files" if len(terraform) > 1 else ""
        self._unread.append(
            Unread(
                f"{terraform[0].path}{more}",
                "Terraform's own files need the extra check-hcl, which is not installed.",
                "Run pip install 'onefold[check-hcl]', or check a plan: terraform show -json plan > plan.json.",
                any(one.is_named for one in terraform),
            )
        )

    def checked(self, sources: Sequence[tuple[Path, Path]], named: Collection[str]) -> CheckedInput:
        inputs = [*(one for found in self.templates.values() for one in found), *self.documents.values()]
        read = [one.facts for one in inputs]
        entries = dict.fromkeys(entry for one in inputs for found in one.entries for entry in found.values())
        collected = collect_python(sources, list(entries))
        for file, error in collected.broken.items():
            self._unread.append(Unread.of(file, error, is_named=file in named))
        findings: dict[tuple[object, ...], Finding] = {}
        texts = {
            **{facts.document.file: facts.document.text for facts in read},
            **collected.code.texts,
        }
        for file in {span.file for facts in read for span in facts.document.spans.values()} - {"", *texts}:
            texts[file] = _text_of(file)
        for file, text in texts.items():
            self._suppressions.add_text(file, text)
        for facts in read:
            self._suppressions.add_metadata(facts.document)
        not_looked_at: dict[str, tuple[str, ...]] = {}
        for one in inputs:
            if said := (*one.worlds.not_looked_at, *unknown_functions(one.input.document)):
                not_looked_at[one.facts.file] = said
            findings |= self._in_order(self._in_worlds(one, collected.of_entries))
        found = [one for rule in self._rules if rule.in_code is not None for one in rule.in_code(collected.code)]
        findings |= self._in_order(found)
        findings = {key: self._suppressions.applied(one) for key, one in findings.items()}
        findings |= self._in_order(self._of_suppressions())
        return CheckedInput(
            files=tuple(self.templates),
            apps=tuple(one for one in self.documents if not is_remote(one)),
            accounts=tuple(one for one in self.documents if is_remote(one)),
            python_files=tuple(collected.code.texts),
            findings=tuple(findings.values()),
            unread=tuple(self._unread),
            not_looked_at=not_looked_at,
        )

    def _of_suppressions(self) -> Iterator[Finding]:
        ids = {one.id for one in self._rules}
        if WITHOUT_REASON in ids:
            yield from self._suppressions.faults({one.id for one in RULES})
        if self._report_unused and UNUSED in ids:
            yield from self._suppressions.unused({one.id for one in self._rules if self._preview or not one.preview})

    def _in_worlds(self, one: _Read, handlers: Mapping[HandlerEntry, CodeHandler]) -> Iterator[Finding]:
        """The findings of all worlds of a template, each once, with the worlds it is found in."""
        found: dict[tuple[object, ...], tuple[Finding, set[int]]] = {}
        for number, (facts, entries) in enumerate(one.in_worlds()):
            here = {name: handlers[entry] for name, entry in entries.items() if entry in handlers}
            for finding in self._in_template(Joined(model=model_of(facts), handlers=here)):
                _, where = found.setdefault(_same(finding), (self._worded(finding, facts.document), set()))
                where.add(number)
        scenarios = one.worlds.scenarios()
        for finding, where in found.values():
            said = scenarios.of(where)
            yield (
                replace(finding, message=f"If {said}: {finding.message}", condition_scenario=said) if said else finding
            )

    def _in_template(self, joined: Joined) -> Iterator[Finding]:
        for rule in self._rules:
            if rule.find is not None:
                yield from rule.find(joined.model)
            if rule.joined is not None:
                yield from rule.joined(joined)

    def _worded(self, finding: Finding, document: Document) -> Finding:
        """The finding with the names for properties that the document's source has, and without edits of generated files."""
        fix = finding.fix
        if fix is not None and document.is_generated:
            fix = replace(fix, edits=())
            finding = replace(finding, fix=fix)
        said = [f"{name} is {word}" for name, word in document.words.items() if fix and name in fix.description]
        if fix is None or not said:
            return finding
        return replace(finding, fix=replace(fix, description=f"{fix.description} Here {', '.join(said)}."))

    def _in_order(self, findings: Iterable[Finding]) -> dict[tuple[object, ...], Finding]:
        """The findings by file and line, without duplicates."""
        kept = [one for one in findings if self._preview or not one.is_preview]
        kept.sort(key=lambda one: (one.source.file, one.source.start_line, one.rule))
        return {_same(one): one for one in kept}


def _same(one: Finding) -> tuple[object, ...]:
    return one.rule, one.source, one.message
