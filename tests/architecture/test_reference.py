"""The reference pages are what the code says today, and all of it: names, commands, settings, errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import click
import pytest

from onefold import errors, settings
from onefold.cli.program import program
from onefold.engines import urls
from tests.architecture.public_names import PUBLIC_MODULES
from tests.architecture.source import ROOT, SRC
from tools import reference

ONE_PROCESS = re.compile(r"^(src/onefold/(demo|local)/|src/onefold/cli/program)")  # between processes of our own
READ = re.compile(r"""(?:environ(?:\.get\(|\[)|envvar=)["']([A-Z][A-Z_0-9]+)["']|"(ONEFOLD_[A-Z_]+)\"""")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def test_the_pages_are_what_the_code_says(pages: dict[str, str]) -> None:
    written = {one.name: one.read_text(encoding="utf-8") for one in reference.PAGES.glob("*.md")}
    assert written.keys() == pages.keys(), "run `make reference`"
    stale = [name for name, text in pages.items() if written[name] != text]
    assert not stale, f"run `make reference`: {stale} are not what the code says"


def test_every_public_name_has_an_entry_with_a_sentence(pages: dict[str, str]) -> None:
    for module in PUBLIC_MODULES:
        page = pages["errors.md" if module == "onefold.errors" else f"{module.rpartition('.')[2]}.md"]
        for name in import_module(module).__all__:
            assert re.search(rf"^\| \[?`{name}`.* \| .+ \|$|`onefold.errors.{name}`", page, re.MULTILINE), (
                f"{module}.{name}"
            )


def test_every_command_and_option_is_listed(pages: dict[str, str]) -> None:
    page = pages["command-line.md"]
    found = 0
    for path, command in commands(program, click.Context(program, info_name="onefold")):
        assert f"{{ #{path.replace(' ', '-')} }}" in page, path
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                found += 1
                assert option.opts[0] in page
    assert found > 150


def commands(group: click.Group, ctx: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        one = reference.command_of(group, ctx, name)
        below = click.Context(one, info_name=name, parent=ctx)
        yield below.command_path, one
        if isinstance(one, click.Group):
            yield from commands(one, below)


def test_every_variable_that_the_package_reads_is_in_the_table() -> None:
    read = {
        found[1] or found[2]
        for path in (SRC / "onefold").rglob("*.py")
        if not ONE_PROCESS.match(str(path.relative_to(ROOT)))
        for found in READ.finditer(path.read_text())
        if path.name != "settings.py"
    }
    listed = {one.name for one in settings.ENVIRONMENT}
    assert {"ONEFOLD_URL", "ONEFOLD_SECRET", "ONEFOLD_ERROR_TEXT", "AWS_REGION"} <= read
    assert read - listed == set(), "src/onefold/settings.py does not list them"
    mentioned = "".join(path.read_text() for path in (SRC / "onefold").rglob("*.py") if path.name != "settings.py")
    assert [name for name in listed if not re.search(rf"[\"']{name}[\"']", mentioned)] == [], "nothing reads these"


def test_options_of_urls_are_those_of_the_table() -> None:
    for one in settings.AWS_URL:
        with pytest.raises(errors.UsageError, match=f"{one.name} is empty"):
            urls.read_aws(f"aws://eu-west-1?{one.name}=")
    with pytest.raises(errors.UsageError, match="has no option 'tables'"):
        urls.read_aws("aws://eu-west-1?tables=x")
    connection = (SRC / "onefold" / "engines" / "postgres" / "connection.py").read_text()
    own = re.search(r"own, others = \{(.*?)\}", connection)
    assert own is not None
    assert re.findall(r'"(\w+)":', own[1]) == [one.name for one in settings.POSTGRES_URL]


def test_every_error_says_what_it_means_and_what_is_next(pages: dict[str, str]) -> None:
    classes = [one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.OnefoldError)]
    assert sorted(one.__name__ for one in classes) == sorted(errors.__all__)
    codes = [one.code for one in classes]
    assert len(set(codes)) == len(codes)
    for one in classes:
        section = pages["errors.md"].partition(f"{{ #{one.code} }}")[2].partition("\n## ")[0]
        assert "**What it means:** " in section, one.__name__
        assert "**What to do next:** " in section, one.__name__


def test_a_docstring_becomes_lists_with_one_point_for_each_name() -> None:
    said = reference.markdown(
        """Do it.

        More <text>.

        Args:
            one: first. two, three: second
                and more.

        Raises:
            UsageError: wrong. ConflictError: twice.
        """
    )
    assert said == [
        "Do it.", "", "More \\<text>.", "",
        "**Arguments**", "", "- `one`: first.", "- `two`, `three`: second and more.", "",
        "**Raises**", "", "- `UsageError`: wrong.", "- `ConflictError`: twice.",
    ]  # fmt: skip


def test_a_signature_is_shown_as_it_is_called() -> None:
    def short(a: int, *, b: str | None = None) -> bool:
        return str(a) == b

    def long(
        self: object, first_of_all: int, second_of_all: int = 2, *rest: str, key: tuple[int, ...] = (), **more: int
    ) -> None: ...

    assert reference.call_of("short", short) == "short(a: int, *, b: str | None = None) -> bool"
    assert reference.call_of("long", long, bound=True).splitlines() == [
        "long(",
        "    first_of_all: int,",
        "    second_of_all: int = 2,",
        "    *rest: str,",
        "    key: tuple[int, ...] = (),",
        "    **more: int,",
        ") -> None",
    ]
