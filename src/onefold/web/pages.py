"""What each page shows: values from `admin/`, a template, and what only the drawing needs.

The value is the same as the command line prints with `--json`; the page draws it, `/api` returns it as JSON.
Lists are shown in pages of bounded length, by key. Never here: changes (`changes.py`), markup (`templates/`).
Invariant: opening a page changes nothing and receives no message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace

from onefold import duration, errors, limits
from onefold.admin import (
    activity,
    alarms,
    calendars,
    dead_letters,
    queues,
    reconcile,
    runs,
    status,
    status_warnings,
    stuck,
)
from onefold.admin import held as holding
from onefold.admin import schedules as planned
from onefold.admin import why as whys
from onefold.admin.dead_letters import Detail, Select
from onefold.admin.queues import MessageView
from onefold.admin.reconcile import Repair
from onefold.contracts.admin import roles
from onefold.contracts.queue import REASONS
from onefold.observe import incidents
from onefold.schedules.fire_times import Timing
from onefold.web import drawings
from onefold.web.view import Redirect, Shown, View

LETTERS: Final = 50  # dead letters on a page
_MESSAGES: Final = 50
_TICKS: Final = 30
_COUNT_DIGITS_MAX: Final = 16  # digits of a number in an address
_SAID_BY_WARNINGS: Final = ("dlq-not-empty", "dlq-expiring", "held-not-empty")  # the status warns of them too
_DRAWN_TICKS: Final = 2_000
_CALENDAR_MS: Final = 7 * limits.DAY_MS


# -- what needs a person, queues -------------------------------------------------------------------------------------


def overview(view: View) -> Shown:
    """What needs a person now, and every queue."""
    found = status.status(view.session)
    on = [one for one in alarms.now(view.session).alarms if one.phase == "on" and one.silenced_until_ms is None]
    rates = activity.rates(view.session)
    by_queue: dict[str, list[int]] = {}
    for one in rates:
        if one.queue is not None:
            before = by_queue.get(one.queue, [0] * len(one.per_minute))
            by_queue[one.queue] = [a + b for a, b in zip(before, one.per_minute, strict=True)]
    sparks = {name: drawings.sparkline(values, "completed a minute") for name, values in by_queue.items()}
    minute = {one.job: one.done_last_minute for one in found.jobs}
    job_sparks = {one.job: drawings.sparkline(one.per_minute, "completed a minute") for one in rates}
    more = {
        "sparks": sparks,
        "job_sparks": job_sparks,
        "rates": {
            name: sum(minute[one.job] for one in found.jobs if one.queue == name)
            for name in (q.queue for q in found.queues)
        },
        "on": [one for one in on if one.alarm not in _SAID_BY_WARNINGS],
        "ways": [_way(view, one) for one in found.warnings],
        "dead_of": {one.name: one.dead_letter for one in view.session.settings().values()},
    }
    return Shown(
        template="overview.html",
        title="Now",
        value={**asdict(found), "alarms": on, "rates": rates},
        more=more,
        refreshes=True,
    )


def _way(view: View, one: status_warnings.Warning) -> tuple[str, str] | None:
    """The page on which a warning is dealt with: its address and the text of the link."""
    if one.code in ("held", "held-calls", "held-expires-soon", "held-message-gone"):
        return view.link("held"), "held operations"
    if one.code in ("expires-soon", "dead-letters", "group-stopped"):
        return view.link("dead"), "dead letters"
    return None


def queue(view: View, name: str) -> Shown:
    """One queue: its numbers, its settings, and the messages that wait, without receiving any."""
    view.session.engine.queues.setting(name)  # raises the error that lists the queues
    (found,) = queues.views(view.session, name)
    closed = name in view.session.closed_queues()
    messages: list[MessageView] = []
    if not closed:
        messages = queues.look(view.session, name, limit=_MESSAGES, bodies=not view.hiding.payloads)
        messages = [one if one.body is None else replace(one, body=view.hiding.body(one.body)) for one in messages]
    value = {"queue": found, "messages": messages}
    return Shown(
        template="queue.html", title=name, value=value, more={"closed": closed, "most": _MESSAGES}, refreshes=True
    )


# -- dead letters ----------------------------------------------------------------------------------------------------


def dead_queues(view: View) -> Shown:
    """Every dead-letter queue with how many it holds."""
    kinds = roles(view.session.settings())
    found = [
        {"queue": name, "serves": serves, "count": queues.count(view.session, name)}
        for name, serves in sorted(kinds.dead.items())
    ]
    return Shown(template="dead_queues.html", title="Dead letters", value={"queues": found}, refreshes=True)


def selected(view: View, queue: str) -> Select:
    """The dead letters that a query or a form names.

    Raises:
        UsageError: an age cannot be read; or a search in payloads that are hidden, which could be guessed by searching.
    """
    request = view.request
    given = {**request.query, **request.form}
    if view.hiding.any and given.get("contains"):
        raise errors.UsageError(
            "Payloads are hidden on this page, and are not searched.", todo="Choose by key, error or job instead."
        )
    ids = request.many.get("id") or ((given["id"],) if given.get("id") else ())
    return Select(
        ids=ids,
        queue=queue,
        reason=given.get("reason") or None,
        error=given.get("error") or None,
        job=given.get("job") or None,
        key=given.get("key") or None,
        group=given.get("group") or None,
        contains=given.get("contains") or None,
        older_ms=_age_of(given, "older"),
        newer_ms=_age_of(given, "newer"),
    )


def _age_of(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    return duration.to_ms(text, name, least_ms=0, most_ms=20 * 365 * limits.DAY_MS) if text else None


def is_filtered(select: Select) -> bool:
    """Whether it selects less than the whole queue."""
    return not replace(select, queue=None).is_empty()


def dead(view: View, queue: str) -> Shown | Redirect:
    """The dead letters of one queue: grouped by how they failed, and one page of single dead letters."""
    if elsewhere := of_its_queue(view, queue):
        return elsewhere
    select = selected(view, queue)
    count = queues.count(view.session, queue)
    page = dead_letters.page(view.session, queue, select, limit=LETTERS, after=view.request.query.get("after") or None)
    value = {"queue": queue, "count": count, "failures": page.failures, "letters": page.letters, "after": page.after}
    more = {
        "select": select, "reasons": (*REASONS, "none"), "grouped": page.grouped, "filtered": is_filtered(select),
        "query": {name: text for name, text in view.request.query.items() if name != "after" and text},
    }  # fmt: skip
    return Shown(template="dead.html", title=f"Dead letters of {queue}", value=value, more=more, refreshes=True)


def of_its_queue(view: View, queue: str) -> Redirect | None:
    """A redirect to the same page of this queue's dead-letter queue; None if the queue is a dead-letter queue itself.

    Raises:
        NotFoundError: there is no such queue, or it has no dead-letter queue.
    """
    settings = view.session.engine.queues.setting(queue)
    if queue in roles(view.session.settings()).dead:
        return None
    if settings.dead_letter in (None, queue):  # SQS lets a queue be its own dead-letter queue
        raise errors.NotFoundError(
            f"{queue} is not a dead-letter queue, and has none of its own.",
            meaning="This page shows dead letters only.",
            todo=f"See its messages at {view.link('queues', queue)}, held operations at {view.link('held')}.",
        )
    asked = view.request.segments
    request = replace(view.request, segments=(asked[0], str(settings.dead_letter), *asked[2:]))
    return Redirect(request.with_query())


def letter(view: View, queue: str, message_id: str) -> Shown:
    """One dead letter with its body, its reason, its record, and what a redrive would do."""
    detail = shown_detail(view, queue, message_id)
    return Shown(
        template="letter.html", title=f"Dead letter {message_id}", value=detail,
        more={"line": drawings.timeline(detail.history), "queue": queue},
    )  # fmt: skip


def shown_detail(view: View, queue: str, message_id: str) -> Detail:
    """One dead letter as this page may show it.

    Raises:
        NotFoundError: it is not in this queue, or no longer.
    """
    message = dead_letters.one_of(view.session, Select(ids=(message_id,), queue=queue))
    detail = dead_letters.show(view.session, message)
    if view.hiding.any:
        detail = replace(
            detail, body=view.hiding.body(detail.body), attributes=view.hiding.attributes(detail.attributes)
        )
    return detail


# -- held, why -------------------------------------------------------------------------------------------------------


def held(view: View) -> Shown:
    """Operations whose outcome a person must find out."""
    found = holding.listed(view.session)
    bodies = {}
    if not view.hiding.payloads:
        every = [pair for one in found[:LETTERS] for pair in holding.bodies(view.session, one)]
        bodies = {name: view.hiding.body(body) for name, body in every}
    return Shown(
        template="held.html",
        title="Held",
        value={"held": found},
        more={"bodies": bodies, "names": [name_of(one) for one in found]},
        refreshes=True,
    )


def name_of(one: holding.HeldOperation) -> str:
    """The name of a held operation in a form: job, tenant, key and hold as JSON in ASCII."""
    return json.dumps((one.job, one.tenant, one.key, one.hold))


def search(view: View) -> Shown | Redirect:
    """Look a key up in all jobs."""
    key = view.request.query.get("key", "").strip()
    if not key:
        return Shown(template="search.html", title="Why", value={"key": ""})
    return _story(view, key, job=view.request.query.get("job") or None)


def why(view: View, job: str, key: str) -> Shown:
    """What happened to one operation."""
    return _story(view, key, job=job)


def _story(view: View, key: str, job: str | None) -> Shown:
    schedules = view.app.schedules if view.app is not None else ()
    tenant = view.request.query.get("tenant") or None
    found = whys.explain(view.session, key, job=job, tenant=tenant, schedules=schedules)
    if view.hiding.any:
        shown = view.hiding.body
        stories = tuple(
            replace(one, result=shown(one.result) if one.result is not None else None) for one in found.stories
        )
        found = replace(found, stories=stories)
    pictures = [drawings.timeline(one.lines) for one in found.stories]
    return Shown(
        template="why.html", title=f"Why {key}", value=found, more={"pictures": pictures},
        status=200 if found.stories else 404, refreshes=bool(found.stories),
    )  # fmt: skip


# -- alarms ----------------------------------------------------------------------------------------------------------


def alarm_list(view: View) -> Shown:
    """The alarms that are on, what each means and what to do first; the silences; the latest reports."""
    now = alarms.now(view.session)
    reports = incidents.history(view.session.engine.state)
    value = {**asdict(now), "reports": reports}
    return Shown(template="alarms.html", title="Alarms", value=value, more={"on": now.alarms}, refreshes=True)


# -- runs, schedules -------------------------------------------------------------------------------------------------


def run_list(view: View) -> Shown:
    """Runs of schedules and map jobs, latest first."""
    query = view.request.query
    page = runs.listed(view.session, query.get("title") or None, after=query.get("after") or None)
    bars = {one.run: _bar(one) for one in page.runs}
    return Shown(template="runs.html", title="Runs", value=page, more={"bars": bars}, refreshes=True)


def _bar(one: runs.RunView) -> object:
    return drawings.bar(
        [("done", one.done), ("failed", one.failed), ("dead", one.dead), ("unknown", one.unknown)], one.expected
    )


def run(view: View, name: str) -> Shown:
    """One run: its progress and speed, what is left, and what a repair would send again."""
    given = view.request.query.get("after", "")
    after = int(given) if given.isdecimal() and len(given) < _COUNT_DIGITS_MAX else 0
    found = runs.show(view.session, name, limit=LETTERS, after=after)
    value: dict[str, Any] = {**asdict(found), "per_second": None, "eta_ms": None, "repair": None}
    one = found.run
    passed_ms = view.session.now_ms() - one.started_at_ms
    if not one.is_over and one.settled and passed_ms > 0:
        value["per_second"] = one.settled * limits.SECOND_MS / passed_ms
        value["eta_ms"] = round((one.expected - one.settled) / value["per_second"] * limits.SECOND_MS)
    problem = ""
    if "repair" in view.request.query:
        value["repair"], problem = _plan(view, one.run)
    more = {"bar": _bar(one), "problem": problem, "passed": after, "most": LETTERS}
    return Shown(template="run.html", title=one.run, value=value, more=more, refreshes=not one.is_over)


def _plan(view: View, name: str) -> tuple[reconcile.RepairPlan | None, str]:
    if view.app is None:
        return None, "A repair needs the app, whose dispatcher makes the messages. Start the page with the app."
    try:
        return Repair(view.session, view.app, name).plan, ""
    except errors.OnefoldError as error:
        return None, str(error)


def schedules(view: View) -> Shown:
    """What each schedule has sent and will send next, and all ticks of the next seven days."""
    if view.app is None:
        return Shown(template="schedules.html", title="Schedules", value=None)
    found = planned.views(view.session, view.app)
    declared = {one.name: one for one in view.app.schedules.values()}
    now_ms = view.session.now_ms()
    timings: dict[str | None, Timing] = {name: one.timing for name, one in declared.items()}
    comes = calendars.calendar(
        timings, now_ms, now_ms + _CALENDAR_MS, rows_max=_DRAWN_TICKS,
        states=calendars.states_of(view.session, declared),
    )  # fmt: skip
    dots = [(one.at_ms, f"{one.key or one.schedule}", one.fires) for one in comes.rows]
    more = {"week": drawings.week(dots, now_ms), "most": _TICKS}
    value = {"schedules": found, **asdict(comes)}
    return Shown(template="schedules.html", title="Schedules", value=value, more=more, refreshes=True)


# -- workers, audit --------------------------------------------------------------------------------------------------


def workers(view: View) -> Shown:
    """Processes that have claimed operations, and runs that went silent."""
    found = activity.workers(view.session)
    silent = stuck.runs(view.session)
    return Shown(template="workers.html", title="Workers", value={**asdict(found), "stuck": silent}, refreshes=True)


def audit(view: View) -> Shown:
    """Who did what."""
    return Shown(template="audit.html", title="Audit", value=activity.audit(view.session))
