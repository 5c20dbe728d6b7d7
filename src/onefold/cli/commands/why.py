"""`onefold why`: what happened to a key, or what a schedule did on a date. It only prints.

What happened to a key and what decided each step comes from `observe/timeline.py`; what a schedule did in a year, a month
or on a day from `admin/days.py`. One run of a schedule is shown in full; several get one line each, and those that have a
problem follow in full. Never here: finding what is known, or putting it into words.
Invariants: the answer about an unknown key says what that can mean, and ends with exit code 0. Instants of a key
are in the reader's own zone, those of a schedule in the schedule's zone; --json has them in UTC.
"""

from __future__ import annotations

import click

from onefold import redact
from onefold.admin import days, why
from onefold.admin.days import Day, DayRun, is_right
from onefold.cli import options, render, target
from onefold.cli.outcomes import VERDICTS, draw_examples
from onefold.cli.program import Answer, declared
from onefold.cli.render import Column, line
from onefold.errors import UsageError
from onefold.observe.wording import age, counted, instant, with_target

_RESULT_CHARACTERS = 200


@declared(
    "why",
    read_only=True,
    example="onefold why o-17 shop:app\nonefold why 2026-11/acme --job charge --json\n"
    "onefold why monthly-billing 2026-06 shop:app",
)
@click.argument("words", metavar="KEY | SCHEDULE DATE [APP]", nargs=-1)
@target.by_store_url
@options.operation
@click.option(
    "--receive",
    is_flag=True,
    help="On SQS, also search the working queues for the key's message. That receives their messages: each search counts "
    "towards their dead-letter queues, and hides what it sees from workers for up to a minute.",
)
def command(words: tuple[str, ...], url: str | None, job: str | None, tenant: str | None, receive: bool) -> Answer:
    """What happened to a key, step by step, and the rule or number that decided each step.

    KEY is the business key, or a message id. Shown: sent, claimed, run, failed, retried, taken over, answered from the
    record, completed, held, dead-lettered, changed, sent back; and what it can mean that a key was never seen.

    SCHEDULE DATE asks about a schedule, a dispatcher or a map job in 2026, 2026-06, on 2026-06-01, or at an instant: did it
    fire, when, how many times; what was dispatched; what took effect once; what did not, where its payload is, and who owns
    the fix. Exit code 1 then means that something is not as it should be.
    """
    if sum(not target.is_app(word) for word in words) == 2:
        return _of_day(words, url, job, tenant)
    app, (key,) = target.split(words, 1, names="KEY", url=url)
    found = target.find(app, url, records=True)
    say = instant if render.is_quiet() else render.local
    schedules = found.app.schedules if found.app is not None else ()
    answer = why.explain(found.session, key, job=job, tenant=tenant, schedules=schedules, say=say, receive=receive)
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
        alone = with_target(redact.command("onefold why", name), app or f"--url {url}")
        raise UsageError(error.what, todo=f"{error.todo} Of a key alone: {alone}") from None
    found = target.find(app, url)
    answer = days.explain(found.session, found.app.schedules if found.app is not None else {}, name, text)
    return Answer(answer, draw=lambda: _draw_day(answer, found.words), code=int(not answer.is_right))


def _draw(answer: why.WhyAnswer, words: str) -> None:
    for index, story in enumerate(answer.stories):
        if index:
            line()
        _draw_story(story, words)
    if not answer.stories:
        _draw_unseen(answer, words)


def _draw_story(story: why.Explanation, words: str) -> None:
    tenant = f"   tenant {story.tenant}" if story.tenant else ""
    line(f"{story.job} {story.key}{tenant}", "bold")
    render.sentence(story.text, "  ", "  ", "green" if story.state == "done" else "yellow")
    if story.result is not None and story.result != "null":
        cut = story.result[:_RESULT_CHARACTERS]
        line(f"  result: {cut}{'...' if len(story.result) > len(cut) else ''}")
    line()
    render.draw_steps(story.lines)
    if story.left_out:
        line()
        render.sentence(story.left_out, "  ", "  ", "dim")
    if story.todo:
        line()
        line("Next:")
        render.todo(story.todo, words)


def _draw_unseen(answer: why.WhyAnswer, words: str) -> None:
    if answer.instead is not None:
        line(answer.instead.text, "bold")
        render.todo(answer.instead.todo, words)
        return
    if answer.is_of_others:
        for meaning in answer.meanings:
            line(meaning, "bold")
        render.todo([redact.command("onefold why", answer.key)], words)
        return
    if answer.not_asked:
        line(f"{answer.key!r} is not known in {answer.url}.", "bold")
        line("  No record and no history of it.")
        line(f"  {answer.not_asked}")
        line("  If none waits, that can mean:")
    else:
        line(f"{answer.key!r} has never been seen in {answer.url}.", "bold")
        line("  No message, no record and no history of it. That can mean:")
    for meaning in answer.meanings:
        render.sentence(meaning, "  - ", "    ")
    if answer.near:
        line()
        line("Keys that look like it:")
        render.todo([redact.command("onefold why", key) for key in answer.near], words)


_TROUBLES_MAX = 3  # runs shown in full if there are several
_OTHERS_MAX = 5  # other runs that are named
_DEAD_MAX = 2  # dead letters that are named; if there are more, a command lists them
_PLACES = (
    ("done", "took effect once"),
    ("twice", "completed twice"),
    ("doubtful", "in doubt"),
    ("running", "running"),
    ("waiting", "waiting"),
    ("stuck", "stuck"),
    ("dead", "dead-lettered"),
    ("held", "held"),
    ("missing", "missing"),
)
_UNFIRED = {"ahead": "not yet", "before": "no", "not-fired": "NO"}


# -- a schedule and a date -------------------------------------------------------------------------------------------


def _draw_day(day: Day, words: str) -> None:
    """Print the answer.

    Args:
        words: the target's form on a command line.
    """
    about = [day.expression, day.range.zone, f"owner {day.owner}" if day.owner else None]
    line(f"{day.schedule}   {'   '.join(one for one in about if one)}", "bold")
    if day.runs and all(_is_map(one) for one in day.runs):
        line("  A map job: its runs are started by name, none is planned. Times are in UTC.", "dim")
    elif not day.declared:
        line("  Not declared by an app that was named: what should have fired is not known; times are in UTC.", "dim")
    if not day.runs:
        line(f"  {day.range.text}: nothing was planned, and nothing began.")
        return
    if len(day.runs) == 1 and not day.not_shown and day.runs[0].count == 1:
        _draw_run(day.runs[0], words)
        return
    _draw_table(day)
    troubles = [one for one in day.runs if one.fired == "fired" and not is_right(one)]
    for one in troubles[:_TROUBLES_MAX]:
        line()
        line(one.run, "bold")
        _draw_run(one, words)
    if len(troubles) > _TROUBLES_MAX:
        line()
        line("The others:")
        others = troubles[_TROUBLES_MAX:]
        render.todo([_why_of_day(day, one) for one in others[:_OTHERS_MAX]], words)
        if len(others) > _OTHERS_MAX:
            line(f"  and {len(others) - _OTHERS_MAX:,} more")


def _why_of_day(day: Day, one: DayRun) -> str:
    """The command that shows one run of several in full."""
    if _is_map(one):
        return f"onefold runs show {one.run}"  # a person chose its name, which contains no instant
    return f"onefold why {day.schedule} {one.run.rpartition('/')[2]}"


def _is_map(one: DayRun) -> bool:
    return one.state is not None and one.state.kind == "map"


def _draw_table(day: Day) -> None:
    columns = [
        Column("run" if any(_is_map(one) for one in day.runs) else "planned", folds=any(one.until for one in day.runs)),
        Column("fired"),
        Column("dispatched", right=True),
        Column("once", right=True),
        Column("else", folds=True),
    ]
    rows = [
        (
            one.run if _is_map(one) else _planned(one),
            _fired_word(one),
            render.number(one.dispatched) if one.state is not None else None,
            render.number(one.counts.get("done", 0)) if one.state is not None else None,
            _others(one) or (_unfired(one) if one.fired != "fired" else None) or None,
        )
        for one in day.runs
    ]
    render.draw(render.table(columns, rows))
    if right := day.not_shown - day.wrong_not_shown - day.unjudged:
        line(f"  and {right:,} more that are as they should be")
    if day.wrong_not_shown:
        line(f"  and {day.wrong_not_shown:,} more that are NOT as they should be; ask about a shorter time.", "red")
    if day.unjudged:
        line(f"  {day.unjudged:,} more were not examined; ask about a shorter time.", "red")


def _planned(one: DayRun) -> str | None:
    """One instant, or the first and the last of several, with the zone or day twice if they differ."""
    if one.planned is None or one.until is None:
        return one.planned or one.began
    first, last = one.planned.split(), one.until.split()
    end = last[1:] if first[0] == last[0] else last
    return f"{' '.join(first if first[2] != last[2] else first[:2])} to {' '.join(end)}"


def _unfired(one: DayRun) -> str:
    return f"{one.count:,} ticks{': ' if one.tick else ''}{one.tick}" if one.count > 1 else one.tick


def _fired_word(one: DayRun) -> str:
    if one.fired != "fired":
        return _UNFIRED[one.fired]
    times = f" {one.times} times" if one.times is not None and one.times > 1 else ""
    return f"yes{times}{_late(one)}"


def _late(one: DayRun) -> str:
    if one.planned_at_ms is None or one.began_at_ms is None or one.began_at_ms - one.planned_at_ms < 1_000:
        return ""
    return f", {age(one.began_at_ms - one.planned_at_ms)} late"


def _others(one: DayRun) -> str:
    parts = [f"{one.counts[state]:,} {word}" for state, word in _PLACES if state != "done" and one.counts.get(state)]
    if one.state is not None and one.state.failure is not None:
        parts.insert(0, "dispatch failed")
    elif one.state is not None and one.state.expected is None:
        parts.insert(0, "still dispatching")
    return ", ".join(parts)


def _draw_run(one: DayRun, words: str) -> None:
    _say("planned", one.planned or "not fired: begun manually")
    if one.fired != "fired":
        _say("fired", f"{_UNFIRED[one.fired]}: {one.tick or 'its time has not come'}")
        return
    times = f", {one.times} times" if one.times is not None and one.times != 1 else ", once" if one.times else ""
    _say("fired", f"{one.began}{times}{_late(one)}{f', {one.by_hand}' if one.by_hand else ''}")
    if one.tick:
        _say("its tick", one.tick)
    state = one.state
    assert state is not None
    nothing = False
    if state.kind != "tick":
        open_ended = state.expected is None and state.failure is None
        so_far = " so far: its dispatch has not ended" if open_ended else ""
        nothing = open_ended and not one.dispatched
        _say("dispatched", "nothing yet" if nothing else f"{counted(one.dispatched, 'operation')}{so_far}")
    if state.failure is not None:
        _say("", f"the dispatch failed: {state.failure}")
    done = one.counts.get("done", 0) - one.counts.get("twice", 0) - one.counts.get("doubtful", 0)
    whole = 0 < done == one.dispatched and state.failure is None
    if not nothing:
        _say("once", "all of it took effect once" if whole else f"{done:,} took effect once")
    if not nothing and (others := _others(one)):
        _say("otherwise", others)
    if one.reconciled is not None:
        text = VERDICTS[one.reconciled.verdict][0]
        own = one.reconciled.own
        found = f"; your own check found {own.found:,}, expected {own.expected:,} {own.what}" if own is not None else ""
        when = render.local(one.reconciled.at_ms)
        _say("reconciled", f"{when}: {text}{found}")
    if one.left:
        line()
        draw_examples(one.left, one.others)
    _draw_next(one, words)


def _say(what: str, text: str) -> None:
    render.fold(text, f"  {what:<11} ", " " * 14)


def _draw_next(one: DayRun, words: str) -> None:
    steps = [step for step in one.todo if step]
    if one.counts.get("missing") or any(left.state == "stuck" and left.message_id is None for left in one.left):
        steps.append(f"onefold reconcile {one.run} --repair   (what would be sent again)")
    dead = [left for left in one.left if left.state == "dead" and left.message_id is not None]
    steps += [f"onefold dlq show {left.message_id}" for left in dead[:_DEAD_MAX]]
    if one.counts.get("dead", 0) > _DEAD_MAX and _is_map(one):
        steps.append(f"onefold map redrive {one.run}   (fix the cause first)")
    elif one.counts.get("dead", 0) > _DEAD_MAX:
        steps.append("onefold dlq list   (all of them by reason; fix the cause, then onefold dlq redrive)")
    if _is_map(one) and not is_right(one):
        steps.append(f"onefold map show {one.run}   (what ended it; onefold map redrive does the rest)")
    steps += [redact.command("onefold held show", left.key) for left in one.left if left.state == "held"][:2]
    if one.reconciled is not None and one.reconciled.verdict != "agrees":
        steps.append(f"onefold reconcile {one.run}   (look again)")
    if steps:
        line()
        line("Next:")
        render.todo(dict.fromkeys(steps), words)
