"""`onefold check`: what would duplicate, lose or stop work in templates and Python code. It prints and handles files.

The rules (`check/rules.py`) say what is wrong. Invariant: nothing is written without --fix, and AWS is called only for an
account that was named, to read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import click
from msgspec import Struct
from msgspec.structs import replace

from onefold import extras, redact
from onefold.cli import render
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, Style, line
from onefold.clock import SystemClock
from onefold.errors import OnefoldError, UsageError

with extras.needed("Reading templates", "check"):
    from onefold.check import configuration, formats
    from onefold.check.baseline import read_baseline
    from onefold.check.baseline import write_baseline as write_baseline_file
    from onefold.check.checking import CheckedInput, Unread, check
    from onefold.check.findings import SEVERITIES, Finding, FindingSource, Severity
    from onefold.check.fixing import Fixed, fixed, write
    from onefold.check.inputs import Input
    from onefold.check.rules import RULES, CheckRule, chosen, rule_named
    from onefold.check.suppressions import Suppression

UNREAD_CODE = 2
_ACCOUNT: Final = re.compile(r"aws://[a-z0-9-]+(?:\?|$)")
_TRIES: Final = 8  # with pauses that double: a list of a thousand queues is slowed down by AWS, not refused
_LINE_CHARS_MAX: Final = 1_000  # a longer one was not written by a person
_STYLES: dict[str, Style] = {"error": "red", "warning": "yellow", "info": "cyan"}


@contextmanager
def _as_usage() -> Iterator[None]:
    """Whatever is wrong with what was asked for ends with 2: 1 says that there is a finding."""
    try:
        yield
    except UsageError as error:
        raise click.UsageError(" ".join(part for part in (error.what, error.meaning, error.todo) if part)) from None


@declared(
    "check",
    example="onefold check template.yaml\nonefold check infra/ --format sarif > check.sarif\n"
    "onefold check template.yaml --fix\nonefold check shop:app\nonefold check aws://eu-west-1\n"
    "onefold check --explain DUP002",
)
@click.argument("words", metavar="[PATHS]...", nargs=-1)
@click.option("--select", multiple=True, metavar="PREFIX", help="Only rules whose id begins with this, such as DUP.")
@click.option("--extend-select", multiple=True, metavar="PREFIX", help="These rules too.")
@click.option("--ignore", multiple=True, metavar="PREFIX", help="Not these rules.")
@click.option("--preview", is_flag=True, help="Also run rules whose findings may still be wrong.")
@click.option("--parameter", "parameters", multiple=True, metavar="NAME=VALUE", help="A template parameter's value.")
@click.option(
    "--format", "form", type=click.Choice(["full", *formats.FORMATS]), default="full", show_default=True,
    help="full is for people.",
)  # fmt: skip
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES),
    help="Exit with 1 if there is a finding at least this severe; by default error.",
)  # fmt: skip
@click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Findings in this file do not count.")
@click.option(
    "--write-baseline", type=click.Path(path_type=Path), metavar="FILE", help="Write what is found to this file."
)
@click.option("--report-unused", is_flag=True, help="Report suppressions that suppress nothing any more.")
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE",
    help="The configuration; by default the nearest pyproject.toml or .onefold.toml that has one.",
)  # fmt: skip
@click.option("--fix", is_flag=True, help="Write the safe fixes into the files, after showing them.")
@click.option("--diff", is_flag=True, help="Show what --fix would write, and write nothing.")
@click.option("--unsafe", is_flag=True, help="With --fix or --diff: also fixes that may change what you meant.")
@click.option("--explain", metavar="ID", help="Print the page of a rule.")
@click.option("--list-rules", is_flag=True, help="List the rules.")
@click.option("--lsp", is_flag=True, help="Talk to an editor: Language Server Protocol on standard input and output.")
@_as_usage()
def command(
    words: tuple[str, ...], explain: str | None, list_rules: bool, lsp: bool, form: str, fix: bool, diff: bool, unsafe: bool,
    write_baseline: Path | None, **given: Any,
) -> Answer:  # fmt: skip
    """Find what makes queues and functions work twice, lose messages or stop.

    PATHS are CloudFormation or SAM templates, plans of Terraform (terraform show -json), Python files, or directories that
    contain some, or Terraform's own files; the handlers that a template names are read with it. An app of onefold, as
    module:attribute, is imported, and what it declares is checked. aws://REGION is a region of your account, read with your
    credentials. Exit code 1: a finding as severe as --fail-on. 2: something that was named could not be read or written.
    """
    if explain is not None or list_rules:
        return _about_rules(explain)
    if lsp:
        return _served(given, is_lone=not (words or fix or diff or write_baseline))
    _refuse(words, fix=fix, diff=diff)
    choices = _choices(**given)
    apps = [one for one in words if _is_app(one)]
    accounts = [one for one in words if _ACCOUNT.match(one)]
    documents, modules, broken = _apps(apps)
    found, denied = _accounts(accounts)
    documents |= found
    broken += denied
    files = [Path(one) for one in words if one not in (*apps, *accounts)]
    missing = [one for one in files if not os.path.exists(one)]
    broken += [Unread(str(one), "There is no such file or directory.", "Name one.") for one in missing]
    paths = (*(one for one in files if one not in missing), *modules)

    def looked() -> CheckedInput:
        found = check(
            paths, choices.rules, choices.today, choices.parameters, documents=documents, preview=choices.preview,
            suppressions=choices.suppressions, report_unused=choices.report_unused,
        )  # fmt: skip
        return replace(found, unread=(*broken, *found.unread)).beside(choices.known)

    checked = looked()
    changed = _fixed_files(checked, choices, unsafe=unsafe) if fix or diff else []
    if fix:
        for one in changed:
            write(one)
        checked = looked()
    if write_baseline is not None:
        return _with_baseline(write_baseline, checked)
    is_unread = any(one.is_named for one in checked.unread)
    code = UNREAD_CODE if is_unread else int(bool(checked.reach(choices.fail_on)))
    if form != "full":
        text = formats.FORMATS[form](checked, Path.cwd())
        return Answer({}, draw=lambda: click.echo(redact.printable_json(text), nl=False), code=code)

    def draw() -> None:
        for one in changed:
            click.echo(redact.printable(one.diff), nl=False)
        if diff:
            line(f"--fix would change {len(changed)} file{'s' if len(changed) != 1 else ''}.")
        else:
            _draw(checked, offers=not fix)

    return Answer(_value(checked, changed), draw=draw, code=code)


def _refuse(words: Sequence[str], *, fix: bool, diff: bool) -> None:
    if not words:
        raise click.UsageError("Name a template, a Python file, a directory that contains some, an app, or an account.")
    if fix and diff:
        raise click.UsageError("--fix writes and --diff does not: give one of them.")


def _served(given: dict[str, Any], *, is_lone: bool) -> Answer:
    """Serve an editor until it ends the session. `is_lone`: nothing else was asked for."""
    if not is_lone:
        raise click.UsageError("--lsp takes no paths, and writes nothing: the editor says which files it has open.")
    if sys.stdin.isatty():
        raise click.UsageError("--lsp is for an editor, which starts it and talks to it over standard input.")
    from onefold.check.language_server import LanguageServer  # no other use of the command needs it

    def look(path: Path, texts: Mapping[Path, str]) -> CheckedInput:
        choices = _choices(**given)  # the configuration may have changed
        return check(
            [path], choices.rules, choices.today, choices.parameters, texts=texts, preview=choices.preview,
            suppressions=choices.suppressions, report_unused=choices.report_unused,
        ).beside(choices.known)  # fmt: skip

    code = LanguageServer(look, sys.stdin.buffer, sys.stdout.buffer).serve()
    return Answer({}, draw=lambda: None, code=code)


class _Choices(Struct, frozen=True):
    """What is to be done, by the command line and the configuration below it."""

    rules: list[CheckRule]
    today: date
    fail_on: Severity
    preview: bool
    report_unused: bool
    parameters: dict[str, str]
    suppressions: tuple[Suppression, ...]
    known: frozenset[str]


def _choices(
    select: tuple[str, ...], extend_select: tuple[str, ...], ignore: tuple[str, ...], preview: bool,
    parameters: tuple[str, ...], fail_on: Severity | None, baseline: Path | None, report_unused: bool, config: Path | None,
) -> _Choices:  # fmt: skip
    configured = configuration.configured(Path.cwd(), config)
    below = configured.options
    preview = preview or below.preview
    known = baseline or configured.baseline
    return _Choices(
        rules=chosen(
            select or below.select, (*ignore, *configured.ignored), extend=(*extend_select, *below.extend_select),
            preview=preview,
        ),
        today=datetime.fromtimestamp(SystemClock().now_ms() / 1_000, UTC).date(),
        fail_on=fail_on or below.fail_on,
        preview=preview,
        report_unused=report_unused or below.report_unused,
        parameters={**below.parameters, **_parsed(parameters)},
        suppressions=tuple(configured.suppressions),
        known=frozenset() if known is None else read_baseline(known),
    )  # fmt: skip


def _fixed_files(checked: CheckedInput, choices: _Choices, *, unsafe: bool) -> list[Fixed]:
    """The files that fixes change."""
    can_be = {one.source.file for one in checked.open if one.fix is not None and one.fix.edits}
    found = [
        fixed(
            Path(file), choices.rules, choices.today, choices.parameters,
            unsafe=unsafe, suppressions=choices.suppressions,
        )
        for file in checked.files
        if file in can_be
    ]  # fmt: skip
    return [one for one in found if one.diff]


def _with_baseline(path: Path, checked: CheckedInput) -> Answer:
    """Write what is found to a file, which it is from then on compared with."""
    found = [one for one in checked.findings if one.suppressed is None]
    number = write_baseline_file(path, found, Path.cwd())
    for unread in checked.unread:
        line(f"{unread.file} was not checked: {unread.why}", "red")
    code = UNREAD_CODE if any(one.is_named for one in checked.unread) else 0
    said = f"{_count(number, 'finding')} written to {path}. From now on: --baseline {path}"
    return Answer({"baseline": str(path), "findings": number}, draw=lambda: line(said), code=code)


def _about_rules(explain: str | None) -> Answer:
    """The page of a rule, or the list of all."""
    if explain is not None:
        rule = rule_named(explain)
        return Answer(
            {"id": rule.id, "title": rule.title, "page": rule.page}, draw=lambda: click.echo(rule.page, nl=False)
        )
    listed = [{"id": one.id, "title": one.title, "preview": one.is_preview} for one in RULES]
    return Answer(listed, draw=_draw_rules)


def _is_app(word: str) -> bool:
    """Whether an argument is `module:attribute`, and no file is called that."""
    if os.path.exists(word):
        return False
    from onefold.cli import target  # templates need none of what opens apps

    return target.is_app(word) and not target.is_url(word)


def _accounts(words: Sequence[str]) -> tuple[dict[str, Input], list[Unread]]:
    """What is in accounts, and the calls that were not answered."""
    documents: dict[str, Input] = {}
    broken: list[Unread] = []
    for word in words:
        name, _, query = word.partition("?")
        region, endpoint = name.partition("://")[2], dict(parse_qsl(query)).get("endpoint")
        with extras.needed("Reading an account", "aws"):
            from onefold.check.account import read_account
            from onefold.engines.aws.session import Session
        try:
            one = read_account(Session(region, {"*": endpoint} if endpoint else None, tries=_TRIES), name)
        except OnefoldError as error:
            broken.append(Unread.of(name, error))
            continue
        if one.denied and not one.document.data["Resources"]:
            broken.append(Unread(name, one.denied[0].why, one.denied[0].todo))
            continue
        documents[name] = Input(document=one.document, account=one.account, region=one.region)
        broken += [Unread(name, each.why, each.todo, is_named=False) for each in one.denied]
    return documents, broken


def _apps(words: Sequence[str]) -> tuple[dict[str, Input], list[Path], list[Unread]]:
    """The resources of apps, the files of their modules, and the apps that cannot be imported or have no queue."""
    documents: dict[str, Input] = {}
    modules: list[Path] = []
    broken: list[Unread] = []
    for word in words:
        from onefold.cli.stack_options import planned_document  # templates need none of what deploys an app

        try:
            document, files = planned_document(word)
        except OnefoldError as error:
            broken.append(Unread.of(word, error))
        else:
            documents[word] = Input(document=document)
            modules += [one for one in files if one not in modules]
    return documents, modules, broken


def _parsed(parameters: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in parameters:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise UsageError(f"--parameter {one!r:.80} is not NAME=VALUE.", todo="Write --parameter Stage=prod")
        found[name] = value
    return found


def _value(checked: CheckedInput, changed: Sequence[Fixed]) -> object:
    return {
        "files": checked.files,
        "apps": checked.apps,
        "accounts": checked.accounts,
        "python_files": checked.python_files,
        "findings": checked.findings,
        "unread": checked.unread,
        "not_looked_at": checked.not_looked_at,
        "fixed": [{"file": one.file, "diff": one.diff} for one in changed],
    }


def _draw_rules() -> None:
    rows = [(one.id, f"{one.title} (preview)" if one.is_preview else one.title) for one in RULES]
    render.draw(render.table([Column("id"), Column("a template or handler with", folds=True)], rows))


def _draw(checked: CheckedInput, *, offers: bool) -> None:
    for one in checked.open:
        _draw_finding(one)
    for unread in checked.unread:
        without = "was checked without an answer" if unread.file in checked.accounts else "was not checked"
        line(f"{unread.file} {without}: {unread.why}", "red")
        render.todo([unread.todo])
    for file, said in checked.not_looked_at.items():
        line(f"{file}: {formats.not_looked_at(said)}", "dim")
    if any(not one.startswith("the unknown function ") for said in checked.not_looked_at.values() for one in said):
        render.todo(["Name a case to look at it: --parameter NAME=VALUE"])
    statuses = [one.status for one in checked.findings]
    suppressed, known = statuses.count("suppressed"), statuses.count("baseline")
    beside = f", {suppressed} suppressed" if suppressed else ""
    beside += f", {known} in the baseline" if known else ""
    counts = (
        (checked.files, "template"),
        (checked.apps, "app"),
        (checked.accounts, "account"),
        (checked.python_files, "Python file"),
    )
    files = " and ".join(_count(len(found), name) for found, name in counts if found)
    if not files:
        nothing = "No CloudFormation or SAM template, no Terraform and no Python that uses queues was found there."
        line("Nothing was checked." if checked.unread else nothing, "yellow")
        return
    line(f"{files} checked: {formats.counted(checked.open)} found{beside}.", "bold" if checked.open else "green")
    if offers and any(one.fix is not None and one.fix.safety == "safe" and one.fix.edits for one in checked.open):
        line("Some can be fixed: add --diff to see how, --fix to write it.")


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' if number != 1 else ''}"


def _draw_finding(one: Finding) -> None:
    line(f"{one.severity}[{one.rule}] {one.message}", _STYLES[one.severity])
    _draw_frame(one.source, "", one.resource)
    for related in one.related:
        _draw_frame(related.source, related.text, related.resource)
    for step in one.arithmetic:
        render.fold(step, "  = ", "    ")
    if one.fix is not None:
        by_mark = {"unsafe": one.fix.safety == "unsafe", "by hand": not one.fix.edits}
        marks = ", ".join(mark for mark, applies in by_mark.items() if applies)
        render.fold(f"{one.fix.description} ({marks})" if marks else one.fix.description, "  fix: ", "       ")
    line(f"  why: onefold check --explain {one.rule}", "dim")
    line()


def _draw_frame(source: FindingSource, text: str, resource: str) -> None:
    """Draw the line of a finding, and below it a mark with the finding's text."""
    line(f"  --> {source}  {resource}", "dim")
    try:
        lines = Path(source.file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    if not 1 <= source.start_line <= len(lines) or len(lines[source.start_line - 1]) > _LINE_CHARS_MAX:
        return
    number = str(source.start_line)
    shown = lines[source.start_line - 1][:200]
    line(f"  {number} | {shown}")
    width = max(1, min(source.end_column, len(shown) + 1) - source.start_column)
    line(f"  {' ' * len(number)} | {' ' * (source.start_column - 1)}{'^' * width} {text}".rstrip(), "cyan")
