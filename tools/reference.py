"""The reference pages, written from the code: public names, commands, settings, errors. `make reference` writes them.

What the pages say is said where the code is: signatures and docstrings, click's own options, the table in
`onefold/settings.py`, the classes in `onefold/errors.py`. A test compares the pages with what this writes, so that they
cannot fall behind. Why not a library: docs/decisions/0026.
"""

from __future__ import annotations

import enum
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct

from onefold import errors, settings
from onefold.check.configuration import schema
from onefold.check.rules import HARMS, RULES
from onefold.cli.program import Command, program
from onefold.observe.log_fields import FIELDS
from onefold.observe.metrics import METRICS
from onefold.runtime.events import EVENTS
from tests.architecture.public_names import PUBLIC_MODULES
from tools import check_figures

PAGES = Path(__file__).resolve().parents[1] / "docs" / "reference"
CHECK_SCHEMA: Final = PAGES.parents[1] / "src" / "onefold" / "check" / "configuration.schema.json"
LINE = 88  # of a signature in one line

_ERRORS_HEAD = """
Every error that onefold raises on purpose is a class of `onefold.errors` with a `code` that stays the same. Its text has
three parts, which are attributes too: `what` happened, with the value; its `meaning`; and what to do next, `todo`. With
`--json` a command answers `{"error": {"code": ..., "what": ..., "meaning": ..., "todo": ...}}`.
"""
_SETTINGS_HEAD = """
Everything that is not written in the code of an app: the environment, and the URL of its engine. What a command takes on its
line is on [its own page](command-line.md).
"""
_COMMANDS_HEAD = """
Comes with the extra `cli`. Every command has `--help` with an example, and `--json` for one JSON document on standard
output. Which engine it is about: the app it names (`module:attribute`), else ONEFOLD_APP, else ONEFOLD_URL, else the one
file in `.onefold`; see [settings](settings.md).
"""

_METRICS_HEAD = """
What a worker counts, and what a look at its engine shows. `onefold worker shop:app --metrics :9400` serves all of it for
Prometheus (extra `prometheus`) at `http://127.0.0.1:9400/metrics`; child processes are included. Beside it are `/healthz`,
which says that the process answers, and `/readyz`, which says 503 when the worker has work and has got on with none of it
for longer than the longest timeout of its jobs and a minute.

Only a host that you name is listened on, `127.0.0.1` otherwise, where requests under another name are refused. Labels are
names of jobs, queues, schedules and maps, outcomes and kinds of failure: never a key, a message or what an exception says.
Gauges of queues and runs are of the whole engine, so with several workers take the maximum over them:
`max by (queue, state) (onefold_queue_messages)`. Counters are of one worker since its start.

A look at the engine takes at most a tenth of the time: where one takes long (many queues on SQS), the gauges are from the
last look. Times that clocks of different machines make negative are counted as 0, and in `onefold_clock_negative_total`.

CloudWatch gets them as lines in the embedded metric format: [dashboards](../dashboards.md#cloudwatch) says how. Dimensions
are job and queue; the outcome or state stands in the name instead of `*`: `TicksSent`, `QueueVisible`, `MessagesDead`,
`Missing`.

An alert for Prometheus, on messages that nobody works on:

    groups:
      - name: onefold
        rules:
          - alert: NobodyWorks
            expr: max by (queue) (onefold_queue_messages{state="visible"}) > 0
              unless on (queue) sum by (queue) (increase(onefold_messages_settled_total[30m])) > 0
            for: 5m
"""

_LOGS_HEAD = """
What a line of `onefold.LogSink()` and of `onefold worker --log json` says: one JSON object for each event, with each field
only where there is something to say. Names are stable: new ones come, none changes its meaning. How to collect lines, and
with which loggers, is on [its own page](../logs.md).
"""

_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields)(?: \(([^)]*)\))?:(.*)$|^Raises(.*):$")
_ENTRY = re.compile(r"(?:^|(?<=[.)] )|(?<=; ))((?:\*{0,2}\w+)(?:, \*{0,2}\w+)*): ")
_ERRORS_TOLD = re.compile(r"^(Means|Next): ", re.MULTILINE)


def pages() -> dict[str, str]:
    """Every reference page: its file's name and its text."""
    found = {f"{_short(module)}.md": module_page(module) for module in PUBLIC_MODULES if module != "onefold.errors"}
    return found | {
        "errors.md": errors_page(),
        "command-line.md": commands_page(),
        "settings.md": settings_page(),
        "metrics.md": metrics_page(),
        "logs.md": logs_page(),
        "rules.md": rules_page(),
        **{f"rule-{one.id}.md": one.page for one in RULES},
    }


def _short(module: str) -> str:
    return module.rpartition(".")[2]


# -- public names ----------------------------------------------------------------------------------------------------


def module_page(module: str) -> str:
    """The public names of a module with their signatures and docstrings."""
    loaded = import_module(module)
    lines = [f"# {module}", "", *markdown(first_paragraph(loaded.__doc__ or "")), ""]
    lines += [_summary_table(loaded), ""]
    for name in loaded.__all__:
        lines += entry(module, name, getattr(loaded, name))
    return _page(lines)


def _summary_table(loaded: Any) -> str:
    rows = [
        f"| [`{name}`](#{name.lower()}) | {_cell(_first_sentence(_own_doc(getattr(loaded, name))))} |"
        for name in loaded.__all__
    ]
    return "\n".join(["| name | |", "|---|---|", *rows])


def entry(module: str, name: str, thing: Any) -> Iterator[str]:
    """A public name, and what is public on it."""
    yield from (f"## {name} {{ #{name.lower()} }}", "")
    if inspect.isclass(thing) and issubclass(thing, errors.OnefoldError):
        yield from (*markdown(first_paragraph(_own_doc(thing))), "")
        yield from (f"[What it means and what to do next](errors.md#{thing.code}).", "")
        return
    if inspect.isclass(thing) or inspect.isfunction(thing) or callable(thing):
        yield from _code(f"{module}.{name}", thing)
    yield from markdown(_own_doc(thing))
    yield ""
    if not inspect.isclass(thing):
        return
    for attribute in members(thing):
        if attribute.kind == "property":
            yield from (f"### {name}.{attribute.name}", "")
            yield from (*markdown(attribute.object.__doc__ or ""), "")
        elif attribute.kind in ("method", "class method", "static method"):
            yield from (f"### {name}.{attribute.name}", "")
            yield from _code(attribute.name, getattr(thing, attribute.name), bound=attribute.kind != "static method")
            yield from (*markdown(_own_doc(getattr(thing, attribute.name))), "")


def members(owner: type) -> list[inspect.Attribute]:
    """The public methods and properties that onefold defines on a class or its parents, in the order of the source."""
    found = {
        one.name: one
        for one in inspect.classify_class_attrs(owner)
        if not one.name.startswith("_")
        and one.defining_class.__module__.partition(".")[0] == "onefold"
        and (one.object.__doc__ if one.kind == "property" else callable(getattr(owner, one.name)))
    }
    order = [name for parent in owner.__mro__ for name in vars(parent) if name in found]
    return [found[name] for name in dict.fromkeys(order)]


def _own_doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def _code(name: str, thing: Any, *, bound: bool = False) -> list[str]:
    text = call_of(name, thing, bound=bound)
    return ["```py", *text.splitlines(), "```", ""] if text else []


def call_of(name: str, thing: Callable[..., Any], *, bound: bool = False) -> str:
    """How something is called: its parameters with types and defaults; each on a line of its own where there are many.

    Args:
        bound: leave the first parameter out.
    """
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = list(found.parameters.values())[1 if bound and not inspect.ismethod(thing) else 0 :]
    said, before = [], None
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and before not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            said.append("*")
        said.append(_parameter(one))
        before = one.kind
    returns = (
        ""
        if inspect.isclass(thing) or found.return_annotation is found.empty
        else f" -> {_type(found.return_annotation)}"
    )
    line = f"{name}({', '.join(said)}){returns}"
    if len(line) <= LINE:
        return line
    return "\n".join([f"{name}(", *(f"    {one}," for one in said), f"){returns}"])


def _parameter(one: inspect.Parameter) -> str:
    text = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(one.kind.name, "") + one.name
    if one.annotation is not one.empty:
        text += f": {_type(one.annotation)}"
    if one.default is not one.empty:
        text += f" = {_default(one.default)}"
    return text


def _type(annotation: Any) -> str:
    text: str = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:onefold|collections|typing|datetime)(?:\.\w+)*\.(?=\w)", "", text)


def _default(value: Any) -> str:
    if hasattr(value, "factory"):  # msgspec's, of a field that is made anew for each
        return repr(value.factory())
    if isinstance(value, Struct):
        fields = zip(type(value).__struct_fields__, _defaults_of(type(value)), strict=True)
        differing = {name: getattr(value, name) for name, default in fields if getattr(value, name) != default}
        return f"{type(value).__name__}({', '.join(f'{name}={_default(one)}' for name, one in differing.items())})"
    if isinstance(value, tuple) and any(isinstance(one, Struct) for one in value):
        return f"({', '.join(map(_default, value))},)"
    if isinstance(value, enum.Enum):
        return str(value)
    return repr(value)


def _defaults_of(kind: type[Struct]) -> Iterator[Any]:
    parameters = inspect.signature(kind).parameters
    return (parameters[name].default for name in kind.__struct_fields__)


# -- docstrings ------------------------------------------------------------------------------------------------------


def markdown(doc: str) -> list[str]:
    """A docstring as Markdown: its prose as it is, and its sections as lists."""
    lines: list[str] = []
    section: list[str] | None = None
    heading = ""
    for line in [*inspect.cleandoc(doc).splitlines(), "."]:  # the full stop ends the last section
        starts = _SECTION.match(line)
        if section is not None and (starts or (line and not line.startswith(" "))):
            lines += [f"**{heading}**", "", *_entries(section), ""]
            section = None
        if starts:
            heading = _heading(starts)
            section = [starts[3]] if starts[3] else []
        elif section is not None:
            section.append(line)
        elif line != ".":
            lines.append(line if line.startswith("    ") else prose(line))
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _heading(found: re.Match[str]) -> str:
    if found[1] is None:
        return f"Raises{found[4]}"
    title = {"Args": "Arguments"}.get(found[1], found[1])
    return f"{title}: {found[2]}" if found[2] else title


def _entries(section: Sequence[str]) -> list[str]:
    """The lines of a section as a list: one point for each name, whatever stands in one line there."""
    points: list[str] = []
    for line in textwrap.dedent("\n".join(section)).splitlines():
        if not line.strip():
            continue
        if line.startswith(" ") and points:
            points[-1] += f" {line.strip()}"
        else:
            points.append(line.strip())
    return [f"- {prose(part)}" for point in points for part in _parts(point)]


def _parts(point: str) -> Iterator[str]:
    found = list(_ENTRY.finditer(point))
    if not found or found[0].start() > 0:
        yield point
        return
    ends = [one.start() for one in found[1:]] + [len(point)]
    for one, end in zip(found, ends, strict=True):
        names = ", ".join(f"`{name}`" for name in one[1].split(", "))
        yield f"{names}: {point[one.end() : end].strip()}"


def prose(text: str) -> str:
    """Text outside of code spans with nothing in it that Markdown takes for a sign of its own."""
    parts = re.split(r"(`[^`]*`|\*\*[^*]+\*\*)", text)
    return "".join(one if n % 2 else re.sub(r"([*<])", r"\\\1", one) for n, one in enumerate(parts))


def first_paragraph(doc: str) -> str:
    """A docstring's first paragraph."""
    return inspect.cleandoc(doc).partition("\n\n")[0]


def _first_sentence(doc: str) -> str:
    text = " ".join(first_paragraph(doc).split())
    return re.split(r"(?<=[.]) (?=[A-Z`])", text, maxsplit=1)[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# -- errors ----------------------------------------------------------------------------------------------------------


def errors_page() -> str:
    """Each class of `onefold.errors`: what happened, what it means, what to do next."""
    lines = [
        "# Errors",
        "",
        *_text(_ERRORS_HEAD),
        "",
        "```text",
        *_drawn_tree(),
        "```",
        "",
        "| code | class | |",
        "|---|---|---|",
    ]  # fmt: skip
    classes = [getattr(errors, name) for name in _in_source_order(errors.__all__)]
    lines += [
        f"| [`{one.code}`](#{one.code}) | `{one.__name__}` | {_cell(_first_sentence(_own_doc(one)))} |"
        for one in classes
    ]
    for one in classes:
        lines += [
            "",
            f"## {one.code} {{ #{one.code} }}",
            "",
            f"`onefold.errors.{one.__name__}`, a `{one.__base__.__name__}`.",
            "",
        ]
        doc = _ERRORS_TOLD.sub(
            lambda found: f"**{ {'Means': 'What it means', 'Next': 'What to do next'}[found[1]] }:** ", _own_doc(one)
        )
        lines += _separated(markdown(doc))
    return _page(lines)


def _drawn_tree() -> list[str]:
    doc = inspect.cleandoc(errors.__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in doc if re.match(r" +(OnefoldError|[|`])", line))).splitlines()


def _in_source_order(names: Sequence[str]) -> list[str]:
    return [name for name in vars(errors) if name in names]


def _separated(lines: Sequence[str]) -> list[str]:
    """Lines in which what it means and what to do next are paragraphs of their own."""
    return [each for line in lines for each in (("", line) if line.startswith("**What") else (line.strip(),))]


# -- settings --------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Environment variables and the options of URLs."""
    lines = [
        "# Settings",
        "",
        *_text(_SETTINGS_HEAD),
        "",
        "## Environment variables",
        "",
        *_settings_table(settings.ENVIRONMENT),
        "",
        "Credentials are never among them: on AWS they come from boto3's own chain, elsewhere from the URL.",
        "",
        "## URLs",
        "",
        "```text",
        *_urls(),
        "```",
        "",
        "A `sqlite://` URL has one option, `adopt=yes`. Options follow a question mark: `aws://eu-west-1?table=shop&prefix=shop-`.",
    ]  # fmt: skip
    for title, table in (
        ("`aws://REGION` and `dynamodb://REGION/TABLE`", settings.AWS_URL),
        ("`redis://` and `rediss://`", settings.REDIS_URL),
        ("`postgresql://`, beside whatever libpq knows", settings.POSTGRES_URL),
    ):
        lines += ["", f"### {title}", "", *_settings_table(table)]
    return _page(lines)


def _urls() -> list[str]:
    doc = inspect.cleandoc(import_module("onefold.engines.urls").__doc__ or "").splitlines()
    return textwrap.dedent("\n".join(line for line in doc if re.match(r" +\w+://", line))).splitlines()


def _settings_table(table: Sequence[settings.Setting]) -> list[str]:
    rows = [f"| `{one.name}` | {_cell(one.meaning)} | {_cell(one.values)} | {_cell(one.default)} |" for one in table]
    return ["| name | what it changes | values | without it |", "|---|---|---|---|", *rows]


# -- command line ----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Every command and option, from click itself."""
    top = click.Context(program, info_name="onefold")
    found = [(name, command_of(program, top, name)) for name in program.list_commands(top)]
    lines = [
        "# Command line",
        "",
        *_text(_COMMANDS_HEAD),
        "",
        "| command | |",
        "|---|---|",
        *(f"| [`onefold {name}`](#onefold-{name}) | {_cell(one.get_short_help_str(limit=300))} |" for name, one in found),
    ]  # fmt: skip
    for name, one in found:
        lines += command(one, click.Context(one, info_name=name, parent=top), level=2)
    return _page(lines)


def command_of(group: click.Group, ctx: click.Context, name: str) -> click.Command:
    """A command of a group."""
    found = group.get_command(ctx, name)
    assert found is not None, name
    return found


def command(one: click.Command, ctx: click.Context, level: int) -> Iterator[str]:
    """A command, and the commands below it."""
    path = ctx.command_path
    yield from ("", f"{'#' * level} {path} {{ #{path.replace(' ', '-')} }}", "")
    yield from (_plain(line) for line in inspect.cleandoc(one.help or "").splitlines())
    yield from ("", "```text", one.get_usage(ctx).removeprefix("Usage: "), "```", "")
    options = [each.get_help_record(ctx) for each in one.params if isinstance(each, click.Option)]
    shown = [each for each in options if each is not None]
    if shown:
        yield from ("| option | |", "|---|---|")
        yield from (f"| `{_cell(form)}` | {_plain(_cell(text))} |" for form, text in shown)
        yield ""
    if isinstance(one, Command):
        yield from ("```text", *(line.strip() for line in one.example.strip().splitlines()), "```")
    if isinstance(one, click.Group):
        for name in one.list_commands(ctx):
            below = command_of(one, ctx, name)
            yield from command(below, click.Context(below, info_name=name, parent=ctx), level + 1)


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([*_<>])", r"\\\1", text.replace("\b", ""))


def _text(text: str) -> list[str]:
    return text.strip().splitlines()


def _page(lines: Sequence[str]) -> str:
    """The page's text: a mark that it is generated, and never two empty lines together."""
    title, *rest = lines
    mark = "<!-- Written by `make reference` from the code: change it there. -->"
    return re.sub(r"\n{3,}", "\n\n", "\n".join([title, "", mark, *rest])).rstrip() + "\n"


def main() -> None:
    """Write all pages, and remove those that are no longer made."""
    written: Mapping[str, str] = pages()
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.md"):
        if old.name not in written:
            old.unlink()
    for name, text in written.items():
        (PAGES / name).write_text(text, encoding="utf-8")
    CHECK_SCHEMA.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")


def metrics_page() -> str:
    """The table of metrics."""
    parts = ["# Metrics", _METRICS_HEAD.strip()]
    for layer, title in (
        ("trigger", "What was triggered"),
        ("transport", "What is travelling"),
        ("business", "What really happened"),
    ):
        rows = [
            "| Prometheus | OpenTelemetry's name | CloudWatch's | kind, unit | labels | |",
            "|---|---|---|---|---|---|",
        ]
        for one in METRICS.values():
            if one.layer == layer:
                labels = ", ".join(f"`{label}`" for label in one.labels)
                kind = f"{one.instrument}, `{one.unit}`"
                emf = f"`{one.emf}`, {one.emf_unit}" if one.emf_unit != "None" else f"`{one.emf}`"
                rows.append(f"| `{one.prometheus}` | `{one.name}` | {emf} | {kind} | {labels} | {one.text} |")
        parts += [f"## {title}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def rules_page() -> str:
    """The index of what `onefold check` looks for, with how well each rule does in a run over the cases of the tests."""
    run = check_figures.figures()
    wanted, met = run.expected.total(), run.met.total()
    false = run.reported.total() - met
    parts = [
        "# Rules of onefold check",
        "",
        "What [onefold check](../check.md) looks for in templates and Python code, by the harm it does.",
        "",
        "## How well they do",
        "",
        "The project's tests have configurations and code that are right, and some that are wrong; `make reference` runs",
        "all rules over them, those in preview too, and writes these figures. A template in YAML and the same in JSON are",
        "two cases; others are directories of Terraform.",
        "",
        "| | number | as they have to be |",
        "|---|---|---|",
        f"| right ones | {run.right} | {run.right - run.alarmed} without a finding, {run.alarmed} with a false alarm |",
        f"| wrong ones | {run.wrong} | {run.complete} with exactly the findings that they have to have |",
        f"| findings | {wanted} | {met} reported, {wanted - met} missed, {false} false |",
        "",
        "Below, *precision* is how many of the findings that a rule reports are right, and *recall* is how many of those it",
        "has to report it does. Both are of cases that were written for these rules. What was found in templates of other",
        "people is in [How sure it is](../check.md#how-sure-it-is).",
    ]
    for prefix, harm in HARMS.items():
        rows = [
            f"| [{one.id}](rule-{one.id}.md) | {one.title}{' (preview)' if one.is_preview else ''} "
            f"| {run.precision(one.id)} | {run.recall(one.id)} |"
            for one in RULES
            if one.id.startswith(prefix)
        ]
        head = "| id | a template or handler with | precision | recall |"
        parts += ["", f"## {prefix}: {harm}", "", head, "|---|---|---|---|", *rows]
    return "\n".join(parts) + "\n"


def logs_page() -> str:
    """The fields of log lines, and the events."""
    fields = [f"| `{name}` | {_cell(text)} |" for name, text in FIELDS.items()]
    events = [f"| `{name}` | {one.severity} | {_cell(one.text)} |" for name, one in EVENTS.items()]
    return _page(
        [
            "# Log fields", "", *_text(_LOGS_HEAD), "", "## Fields", "", "| field | |", "|---|---|", *fields, "",
            "## Events", "", "| event | level | |", "|---|---|---|", *events,
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
