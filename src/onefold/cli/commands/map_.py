"""`onefold map`: runs over the items of a file: start, list, show, resume, redrive, stop.

It parses, asks and prints; `admin/maps.py` does the work. Never here: driving a run step by step, reading files.
Invariant: an interrupt does not change the run; the output says how to show it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
import msgspec

from onefold import errors
from onefold.admin import maps as admin
from onefold.admin.maps import MapProgress
from onefold.app import App
from onefold.cli import options, render, target
from onefold.cli.program import Answer, Group, declared
from onefold.cli.render import Column, ago, line, local, number, some
from onefold.maps.state import OtherDriverError
from onefold.observe.wording import age, with_target

if TYPE_CHECKING:
    from onefold.outside import Waiter

command = Group("map", help="Map runs: start, list, show, resume, redrive, stop.", no_args_is_help=True)

_LOOK_MS = 250
_INTERRUPTED = 130
_IDLE_MS = 5_000  # if nothing has begun for this long, perhaps no worker runs

_HERE = click.option("--here", is_flag=True, help="Drive the run in this process; workers still process its items.")
_DETACH = click.option("--detach", is_flag=True, help="Do not wait for its end.")


def _app(words: tuple[str, ...], names: str) -> tuple[App, str, str]:
    """The app, the other argument, and the app's form for another command line."""
    name, rest = target.split(words, 1, names=names)
    found = target.find_app(name)
    assert found.app is not None
    return found.app, rest[0], name or ""


@declared("start", example="onefold map start enrich shop:app --items nightly.csv --name nightly/2026-06-01")
@click.argument("words", metavar="MAP [APP]", nargs=-1)
@click.option("--items", metavar="FILE", help="File, directory or s3:// URL; by default the declared source.")
@click.option("--name", "run", metavar="RUN", required=True, help="Name of the run; keys of its items begin with it.")
@_HERE
@_DETACH
def start(words: tuple[str, ...], items: str | None, run: str, here: bool, detach: bool) -> Answer:
    """Start a run over the items of a file, and watch it.

    Workers of the app process its items, and one of them drives the run; any of them can be killed. The whole file is
    read once before anything is sent, so that an error in the file as a whole is found before anything has changed.
    """
    app, name, again = _app(words, "MAP")

    def begin() -> MapProgress:
        return admin.start(app, name, run=run, items=items, turns=not here)

    return _watched(app, run, again, begin, here=here, detach=detach)


@declared("resume", example="onefold map resume nightly/2026-06-01 shop:app")
@click.argument("words", metavar="RUN [APP]", nargs=-1)
@_HERE
@_DETACH
def resume(words: tuple[str, ...], here: bool, detach: bool) -> Answer:
    """Continue a run that halted, or whose --here process has ended.

    A file that has changed since is refused.
    """
    app, run, again = _app(words, "RUN")
    return _watched(app, run, again, lambda: admin.resume(app, run, turns=not here), here=here, detach=detach)


@declared(
    "redrive",
    example="onefold map redrive nightly/2026-06-01 shop:app\n"
    "onefold map redrive nightly/2026-06-01 shop:app --items nightly-repaired.csv",
)
@click.argument("words", metavar="RUN [APP]", nargs=-1)
@click.option("--items", metavar="FILE", help="The whole file, repaired; by default the run's own.")
@_HERE
@_DETACH
def redrive(words: tuple[str, ...], items: str | None, here: bool, detach: bool) -> Answer:
    """Run again what failed, and send what was not sent; what is done stays done.

    With a repaired file, rows that were malformed become items, and items that failed run with their new contents.
    """
    app, run, again = _app(words, "RUN")

    def begin() -> MapProgress:
        return admin.redrive(app, run, items=items, turns=not here)

    return _watched(app, run, again, begin, here=here, detach=detach)


@declared("list", read_only=True, example="onefold map list shop:app")
@click.argument("words", metavar="[APP]", nargs=-1)
@target.by_url
@click.option("--limit", type=options.WholeType(1), metavar="N", default=20, show_default=True, help="How many.")
def list_runs(words: tuple[str, ...], url: str | None, limit: int) -> Answer:
    """Map runs, the latest first: the state of each, and how many items were done."""
    name, _ = target.split(words, 0, names="", url=url)
    found = target.find(name, url)
    listed = admin.listed(found.session.engine, found.app.maps if found.app is not None else {}, limit)
    return Answer(listed, draw=lambda: _draw_list(listed, found.session.now_ms()))


@declared("show", read_only=True, example="onefold map show nightly/2026-06-01 shop:app --quarantine 5")
@click.argument("words", metavar="RUN [APP]", nargs=-1)
@target.by_url
@click.option(
    "--quarantine", type=options.WholeType(0), default=0, metavar="N", help="Also show N rows that are not items."
)
def show(words: tuple[str, ...], url: str | None, quarantine: int) -> Answer:
    """The state of a run, what ended it, and where its results are."""
    name, (run,) = target.split(words, 1, names="RUN", url=url)
    found = target.find(name, url)
    seen = admin.look(found.session.engine, found.app.maps if found.app is not None else {}, run)
    rows = admin.quarantine(found.session.engine, run, quarantine) if quarantine else []
    value = msgspec.to_builtins(seen) | ({"quarantine": msgspec.to_builtins(rows)} if quarantine else {})
    return Answer(value, draw=lambda: _draw(seen, rows, found.words))


@declared("stop", example="onefold map stop nightly/2026-06-01 shop:app")
@click.argument("words", metavar="RUN [APP]", nargs=-1)
def stop(words: tuple[str, ...]) -> Answer:
    """Send no more items of a run; what was sent can finish. `onefold map redrive` does the rest."""
    app, run, again = _app(words, "RUN")
    found = admin.stop(app, run)
    return Answer(found, draw=lambda: _draw(found, [], again))


for _one in (start, list_runs, show, resume, redrive, stop):
    command.add_command(_one)


# -- watching ----------------------------------------------------------------------------------------------------------


def _watched(app: App, run: str, again: str, begin: Callable[[], MapProgress], *, here: bool, detach: bool) -> Answer:
    """Begin a run and watch it; the answer comes when it has ended, or at once with `detach`."""
    try:
        begin()
        found = admin.progress(app, run)
        if not detach or here:
            with _bar() as report:
                found = _driven(app, run, report) if here else _followed(app, run, report, again)
    except KeyboardInterrupt:
        try:
            found = admin.progress(app, run)
        except errors.NotFoundError:
            raise KeyboardInterrupt from None  # interrupted before it had begun
        if not found.over:
            return Answer(found, draw=lambda: _draw_left(run, again, here=here), code=_INTERRUPTED)
    code = 0 if not found.over or found.status == "succeeded" else 1
    return Answer(found, draw=lambda: _draw(found, [], again), code=code)


def _draw_left(run: str, again: str, *, here: bool) -> None:
    """The last lines after a run was shown or driven."""
    if here:
        line(render.joined(f"{run}: ", "no longer driven here. Items that were sent are still done; no more are sent."))
        steps = [f"onefold map resume {run}   (to continue)"]
    else:
        line(render.joined(f"{run}: ", "no longer watched. It continues, and workers process its items."))
        steps = [f"onefold map show {run}   (to look again)", f"onefold map stop {run}   (to send no more items)"]
    render.todo(steps, again)


def _driven(app: App, run: str, report: Callable[[MapProgress], None]) -> MapProgress:
    try:
        return admin.drive(app, run, report)
    except OtherDriverError:
        raise errors.ConflictError(
            f"Run {run} was changed by another process while it was driven here.",
            meaning="A worker, or another terminal, drives it too, or somebody stopped it.",
            todo=f"See `onefold map show {run}`; `onefold map resume {run}` continues it if nothing else does.",
        ) from None


def _followed(app: App, run: str, report: Callable[[MapProgress], None], again: str) -> MapProgress:
    """Poll until the run ends; if nothing begins for a while, say what it may be waiting for."""
    opened = app.runtime()
    never: Waiter = opened.never()
    first = found = admin.progress(app, run)
    since_ms: int | None = opened.clock.monotonic_ms()
    while True:
        report(found)
        if found.over:
            return found
        if found != first or found.under_way:
            since_ms = None
        elif since_ms is not None and opened.clock.monotonic_ms() - since_ms >= _IDLE_MS:
            since_ms = None
            worker = with_target("onefold worker", again)
            render.note(f"Nothing has begun yet: is a worker of {again or app.name} running? `{worker}` starts one.")
        opened.clock.wait(never, _LOOK_MS)
        found = admin.progress(app, run)


@contextmanager
def _bar() -> Iterator[Callable[[MapProgress], None]]:
    """Draws progress with rate and time left on a terminal; draws nothing elsewhere."""
    console = render.console(stderr=True)
    if render.is_quiet() or not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), TaskProgressColumn(show_speed=False),
        TextColumn("{task.fields[text]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Bar(*columns, console=console, transient=True, speed_estimate_period=10) as bar:
        task = bar.add_task("items", total=None, text="reading")

        def draw(now: MapProgress) -> None:
            over = now.done + now.duplicates + now.failed + now.malformed
            speed = next((one.speed for one in bar.tasks if one.id == task), None) or 0
            parts = [f"{number(over)} of {number(now.total)}", f"{number(speed)}/s"]
            parts += [f"{number(count)} {word}" for count, word in _bad(now) if count]
            bar.update(task, total=now.total, completed=over, text=", ".join(parts))

        yield draw


def _bad(now: MapProgress) -> tuple[tuple[int, str], ...]:
    return ((now.failed, "failed"), (now.malformed, "malformed"))


def _draw_list(found: list[MapProgress], now_ms: int) -> None:
    if not found:
        line("No map run.")
        return
    repeated = any(one.duplicates for one in found)
    heads = ("items", "done", *(["duplicates"] if repeated else []), "failed", "malformed", "not sent", "age")
    columns = [Column("run", folds=True), Column("state"), *(Column(head, right=True) for head in heads)]
    rows = [
        (
            one.run, one.status, number(one.total), number(one.done), *([some(one.duplicates)] if repeated else []),
            some(one.failed), some(one.malformed), some(one.pending), ago(now_ms - one.started_at_ms),
        )
        for one in found
    ]  # fmt: skip
    render.draw(render.table(columns, rows))


def _draw(found: MapProgress, rows: list[admin.Quarantined], words: str) -> None:
    style: render.Style = "" if not found.over else "green" if found.status == "succeeded" else "red"
    again = f", redriven {'once' if found.round == 1 else f'{found.round} times'}" if found.round else ""
    line(render.joined(f"{found.run}: ", f"{found.status}{again}"), style)
    if found.failure:
        render.sentence(found.failure, "  ", "  ", "yellow")
    if found.remark:
        render.sentence(found.remark, "  ", "  ", "yellow")
    counts = {"items": found.total, "done": found.done, "duplicates": found.duplicates, "failed": found.failed}
    counts |= {"malformed": found.malformed, "under way": found.under_way, "not sent": found.pending}
    counts = {head: count for head, count in counts.items() if count or head != "duplicates"}
    render.draw(
        render.table([Column(head, right=True) for head in counts], [[number(count) for count in counts.values()]])
    )
    if found.ended_at_ms is not None:
        took = age(found.ended_at_ms - found.started_at_ms)
        tolerated = f"; tolerated: {found.threshold}" if found.threshold else ""
        line(f"  began {local(found.started_at_ms)}, took {took}{tolerated}")
        line(f"  results: {found.results}")
    elif not found.over:
        line(f"  to show it again: {with_target(f'onefold map show {found.run}', words)}", "dim")
    if rows:
        heads = [Column("line", right=True), Column("reason", folds=True)]
        render.draw(render.table(heads, [(number(row.line), row.reason) for row in rows]))
    if found.status in ("failed", "aborted", "halted"):
        line()
        line("Next:")
        render.todo(_next(found, bool(rows)), words)


def _next(found: MapProgress, rows_shown: bool) -> list[str]:
    """What to do about a run that did not succeed."""
    steps = []
    if found.malformed and not rows_shown:
        steps.append(f"onefold map show {found.run} --quarantine 20   (which rows are not items, and why)")
    if found.failed:
        steps.append("onefold dlq list   (why items failed; they are redriven with their run, below, not one by one)")
    if found.status == "halted":
        steps.append(f"onefold map resume {found.run}   (when its cause is fixed)")
        steps.append(f"onefold map stop {found.run}   (to redrive it instead)")
    else:
        steps.append(f"onefold map redrive {found.run}   (when the cause is fixed; a repaired file: --items FILE)")
    return steps
