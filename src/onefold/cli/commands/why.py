"""`onefold why`: the story of a key, drawn; what happened and what decided is `watch/timeline.py`'s.

Instants are in the reader's own zone; --json has them in UTC. Never here: finding or wording anything.
Invariant: the answer about a key that nobody knows says what that can mean, and ends with exit code 0.
"""

from __future__ import annotations

import shlex

import click

from onefold.cli import options, render, steps, target
from onefold.cli.program import Answer, declared
from onefold.cli.render import line
from onefold.service import stories
from onefold.watch.wording import instant

_RESULT_CHARACTERS = 200


@declared("why", example="onefold why o-17 shop:app\nonefold why 2026-11/acme --job charge --json")
@click.argument("words", metavar="KEY [APP]", nargs=-1)
@target.by_url
@options.operation
def command(words: tuple[str, ...], url: str | None, job: str | None, tenant: str | None) -> Answer:
    """What happened to a key, step by step, and the rule or number that decided each step.

    KEY is the business key, or a message id. Told are: sent, claimed, run, failed, retried, taken over, answered from the
    record, completed, held, dead-lettered, changed, sent back; and what it can mean that a key was never seen.
    """
    app, (key,) = target.split(words, 1, names="KEY")
    found = target.find(app, url)
    say = instant if render.is_quiet() else render.local
    answer = stories.why(found.desk, key, job=job, tenant=tenant, say=say)
    return Answer(answer, draw=lambda: _draw(answer, found.words))


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
