"""Every command that a page types is there, with its options; every option that a page names belongs to a command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from onefold.cli.program import program
from tests.docs.test_pages import ROOT

PAGES = ["README.md", *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md")))]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`]+)`")
TYPED = re.compile(r"(?:^|&&|\|\||[;(])[ ]*onefold ([^|&;)#\n]+)", re.MULTILINE)
OTHERS = {"--endpoint-url", "--resources-to-skip", "--strict"}  # of the AWS CLI and MkDocs


def typed(text: str) -> Iterator[list[str]]:
    """The words after `onefold`, of every call in a text; its blocks for a shell and its code spans."""
    whole = [block.replace("\\\n", " ") for block in SHELL.findall(text)]
    spans = [re.sub(r"\s+", " ", span) for span in SPAN.findall(FENCE.sub("", text))]
    for code in (*whole, *(span for span in spans if span.startswith("onefold "))):
        quoted = re.sub(r"'[^']*'|\"[^\"]*\"|\$\([^)]*\)", "VALUE", code)
        for call in TYPED.findall(quoted):
            yield shlex.split(call)


def meant(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and the words behind it."""
    at: click.Command = program
    while isinstance(at, click.Group) and words and not words[0].startswith("-"):
        below = at.get_command(click.Context(at), words[0])
        assert below is not None, f"there is no command {words[0]!r} in {at.name}"
        at, words = below, words[1:]
    return at, words


def options(command: click.Command) -> set[str]:
    context = click.Context(command, help_option_names=["-h", "--help"])
    return {name for one in command.get_params(context) for name in (*one.opts, *one.secondary_opts)}


def everything(command: click.Command = program) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from everything(below)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_types_is_there(page: str) -> None:
    for words in typed((ROOT / page).read_text(encoding="utf-8")):
        command, rest = meant(words)
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert given <= options(command), f"onefold {' '.join(words)}"


@pytest.mark.parametrize("page", PAGES)
def test_an_option_that_a_page_names_belongs_to_a_command(page: str) -> None:
    known = set().union(*map(options, everything())) | OTHERS
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    named = {word for span in SPAN.findall(text) for word in re.findall(r"^--[a-z][a-z-]+", span)}
    assert named - known == set()


def test_what_is_typed_is_found() -> None:
    text = "```sh\nonefold serve &  # x\nA=1 && onefold dlq list \\\n  --all | wc\n```\nor `onefold runs\nwatch RUN`.\n"
    assert list(typed(text)) == [["serve"], ["dlq", "list", "--all"], ["runs", "watch", "RUN"]]
