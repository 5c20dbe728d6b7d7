"""`onefold package`: the zip that the functions of an app run from.

Drawing only; what is in it and how is `deploy/package.py`'s. Never here: AWS.
Invariant: the hash that is printed is that of the file that is there.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from msgspec import Struct

from onefold.app import App
from onefold.cli import render, target
from onefold.cli.program import Answer, declared
from onefold.deploy import package as packing
from onefold.deploy.package import Built, PackageSettings
from onefold.deploy.sources import root_of
from onefold.deploy.stack import stack_of
from onefold.errors import UsageError

BUILD_DIR = ".onefold/build"

F = TypeVar("F", bound=Callable[..., Any])


class Wanted(Struct, frozen=True, kw_only=True):
    """What a command line says about a package; see `PackageSettings`."""

    include: tuple[str, ...]
    requirements: str | None
    bytecode: bool


def packing_options(function: F) -> F:
    """Add the options that say what goes into a package; the function gets them as `wanted`."""

    @functools.wraps(function)
    def collected(*args: Any, include: tuple[str, ...], requirements: str | None, bytecode: bool, **kwargs: Any) -> Any:
        wanted = Wanted(include=include, requirements=requirements, bytecode=bytecode)
        return function(*args, wanted=wanted, **kwargs)

    made: Any = collected
    for option in (
        click.option(
            "--bytecode", is_flag=True, help="Compile too, for faster cold starts; needs the functions' Python."
        ),
        click.option("-r", "--requirements", metavar="FILE", help="The app's own dependencies, for pip."),
        click.option("--include", multiple=True, metavar="PATH", help="A file or folder beside the app; repeatable."),
    ):
        made = option(made)
    result: F = made
    return result


@declared(
    "package", example="onefold package shop:app\nonefold package shop:app -r requirements.txt --include templates"
)
@click.argument("app", required=False)
@click.option("-o", "--output", metavar="FILE", help="Where to; .onefold/build/<app>.zip unless given.")
@click.option(
    "--extra", "extras", multiple=True, type=click.Choice(sorted(packing.EXTRAS)), help="A record store's client."
)
@packing_options
def command(app: str | None, output: str | None, extras: tuple[str, ...], wanted: Wanted) -> Answer:
    """Pack the functions' zip: the app, onefold, and pinned dependencies for Lambda's platform.

    In it are the app's module (a package with its whole folder), every module beside it that these import, what --include
    names, onefold itself, msgspec as installed here, and --requirements as pip resolves them. boto3 comes with Lambda.
    Folders called tests and hidden files stay out. Same input, same bytes.
    """
    word = app or os.environ.get("ONEFOLD_APP")
    if word is None:
        raise click.UsageError("Name the app as module:attribute, for example shop:app, or set ONEFOLD_APP.")
    built = build(word, output, wanted, extras)
    return Answer(built, draw=lambda: _draw(built))


def build(
    word: str, output: str | None, wanted: Wanted, extras: tuple[str, ...] = (), records: str | None = None
) -> Built:
    """Pack an app, reporting each step on standard error.

    Args:
        word: `module:attribute`. records: URL of a store beside DynamoDB; the app's own URL says it unless given.
    """
    found = target.load(word)
    module = word.partition(":")[0]
    loaded: Any = sys.modules[module]
    python, architecture = _platform(found)
    settings = PackageSettings(
        module=module,
        root=root_of(module, getattr(loaded, "__file__", None), getattr(loaded, "__path__", ())),
        output=Path(output or f"{BUILD_DIR}/{found.name}.zip"),
        build_dir=Path(BUILD_DIR),
        include=wanted.include,
        requirements=Path(wanted.requirements) if wanted.requirements is not None else None,
        bytecode=wanted.bytecode,
        extras=tuple(sorted({*extras, *_store(records or stack_of(found.url).records or "")})),
        python=python,
        architecture=architecture,  # type: ignore[arg-type]  # the options of a function know the same two
    )
    return packing.build(settings, render.note)


def _platform(app: App) -> tuple[str, str]:
    """Python and processor that the app's functions share; one zip serves them all."""
    platforms = {
        (queue.function.runtime.removeprefix("python"), queue.function.architecture)
        for queue in app.queues.values()
        if queue.function is not None
    }
    if len(platforms) > 1:
        raise UsageError(
            "The app's functions have different platforms: "
            + ", ".join(f"Python {python} on {architecture}" for python, architecture in sorted(platforms)) + ".",
            meaning="They share one package, whose dependencies are built for one.",
            todo="Give all of them the same runtime and architecture.",
        )  # fmt: skip
    if not platforms:
        raise UsageError(
            f"App {app.name} has no function.",
            meaning="All its queues were declared with function=None: workers run its jobs.",
            todo="Start onefold worker where they are to run; there is nothing to package.",
        )
    return platforms.pop()


def _store(records: str) -> tuple[str, ...]:
    return tuple(
        extra for scheme, extra in (("redis", "redis"), ("postgres", "postgres")) if records.startswith(scheme)
    )


def _draw(built: Built) -> None:
    render.line(f"{built.path}   {megabytes(built.zipped_bytes)} ({megabytes(built.unzipped_bytes)} unzipped)", "bold")
    render.line(f"  sha256   {built.sha256}")
    render.line(f"  app      {', '.join(built.modules)}")
    render.line(f"  pinned   {', '.join(built.pinned)}")
    render.line(f"  files    {render.number(built.files)}")
    for warning in built.warnings:
        render.line(f"! {warning}", "yellow")


def megabytes(count: int) -> str:
    """A size as people compare it with Lambda's limits."""
    return f"{count / 1024 / 1024:.2f} MB"
