"""`onefold why`: the story of a key, drawn; what happened and what decided is `observe/timeline.py`'s.

With a date behind it, the key is a schedule's name; what that did then is `service/days.py`'s, and drawn in `cli/day.py`.
Instants are in the reader's own zone; --json has them in UTC. Never here: finding or wording anything.
Invariant: the answer about a key that nobody knows says what that can mean, and ends with exit code 0.
"""

from __future__ import annotations

import shlex

import click

from onefold.cli import day, options, render, steps, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import line
from onefold.errors import UsageError
from onefold.observe.wording import instant
from onefold.service import days, stories

_RESULT_CHARACTERS = 200


@declared(
    "why",
    looks=True,
    example="onefold why o-17 shop:app\nonefold why 2026-11/acme --job charge --json\n"
    "onefold why monthly-billing 2026-06 shop:app",
)
@click.argument("words", metavar="KEY | SCHEDULE DATE [APP]", nargs=-1)
@target.by_url
@options.operation
def command(words: tuple[str, ...], url: str | None, job: str | None, tenant: str | None) -> Answer:
    """What happened to a key, step by step, and the rule or number that decided each step.

    KEY is the business key, or a message id. Told are: sent, claimed, run, failed, retried, taken over, answered from the
    record, completed, held, dead-lettered, changed, sent back; and what it can mean that a key was never seen.

    SCHEDULE DATE asks about a schedule, a dispatcher or a map job in 2026, 2026-06, on 2026-06-01, or at an instant: did it
    fire, when, how many times; what was dispatched; what took effect once; what did not, where its payload is, and who owns
    the fix. Exit code 1 then: something of it is not as it should be.
    """
    if sum(not target.is_app(word) for word in words) == 2:
        return _of_day(words, url, job, tenant)
    app, (key,) = target.split(words, 1, names="KEY", url=url)
    found = target.find(app, url, records=True)
    say = instant if render.is_quiet() else render.local
    answer = stories.why(found.desk, key, job=job, tenant=tenant, say=say)
    return Answer(answer, draw=lambda: _draw(answer, found.words))


def _of_day(words: tuple[str, ...], url: str | None, job: str | None, tenant: str | None) -> Answer:
    if job is not None or tenant is not None:
        raise click.UsageError("--job and --tenant go with a KEY, not with a schedule and a date.")
    app, (name, text) = target.split(words, 2, names="SCHEDULE DATE", url=url)
    try:
        days.range_of(text)  # before anything is opened
    except UsageError as error:
        if app is None and url is None:
            raise target.not_a_target(text, nor="a date") from None
        alone = f"onefold why {shlex.quote(name)} {app or f'--url {url}'}"
        raise UsageError(error.what, todo=f"{error.todo} Of a key alone: {alone}") from None
    found = target.find(app, url)
    answer = days.why(found.desk, found.app.schedules if found.app is not None else {}, name, text)
    return Answer(answer, draw=lambda: day.draw(answer, found.words), code=int(not answer.is_right))


def _draw(answer: stories.Answer, words: str) -> None:
    for place, story in enumerate(answer.stories):
        if place:
            line()
        _draw_story(story, words)
    if not answer.stories:
        _draw_unseen(answer, words)


def _draw_story(story: stories.Story, words: str) -> None:
    tenant = f"   tenant {story.tenant}" if story.tenant else ""
    line(f"{story.job} {story.key}{tenant}", "bold")
    line(f"  {story.text}", "green" if story.place == "done" else "yellow")
    if story.result is not None and story.result != "null":
        cut = story.result[:_RESULT_CHARACTERS]
        line(f"  result: {cut}{'...' if len(story.result) > len(cut) else ''}")
    line()
    steps.draw(story.lines)
    if story.left_out:
        line()
        line(f"  {story.left_out}", "dim")
    if story.todo:
        line()
        line("Next:")
        render.todo(story.todo, words)


def _draw_unseen(answer: stories.Answer, words: str) -> None:
    line(f"{answer.key!r} has never been seen in {answer.url}.", "bold")
    line("  No message, no record and no history of it. That can mean:")
    for meaning in answer.meanings:
        line(f"  - {meaning}")
    if answer.near:
        line()
        line("Keys that look like it:")
        render.todo([f"onefold why {shlex.quote(key)}" for key in answer.near], words)
