"""The other changes a person can make on the page: silence an alarm, send a tick, pause a schedule, drain a worker.

Each change is a GET that shows what it would do, and a POST with a reason that does it if nothing has changed since.
`admin/` does the work itself. Never here: dead letters and held operations (`changes.py`), permissions (`safety.py`).
Invariant: a form that is out of date changes nothing.
"""

from __future__ import annotations

from onefold import duration, errors
from onefold.admin import activity, alarms
from onefold.admin import schedules as planned
from onefold.app import App
from onefold.observe import incidents
from onefold.observe.alarms import ALARMS
from onefold.observe.incidents import Silence
from onefold.observe.wording import age, counted
from onefold.web.changes import changed_meanwhile, digest_of, reason_of
from onefold.web.view import Redirect, Shown, View

# -- alarms ----------------------------------------------------------------------------------------------------------


def _silence_of(view: View, name: str) -> Silence | None:
    now_ms = view.session.now_ms()
    return next((one for one in incidents.silences(view.session.engine.state, now_ms) if one.name == name), None)


def _seen(silence: Silence | None) -> str:
    return digest_of([] if silence is None else [silence.by, silence.reason, str(silence.until_ms)])


def silence_preview(view: View) -> Shown:
    """What a silence of one alarm, one subject or all alarms would cover now, and a form that begins or ends it."""
    name = view.request.query.get("name", "")
    if name != incidents.EVERY and name.partition("/")[0] not in ALARMS:
        raise errors.NotFoundError(f"There is no alarm {name!r:.100}.", todo=f"See {view.link('alarms')}.")
    now, now_ms = alarms.now(view.session), view.session.now_ms()
    silence = _silence_of(view, name)
    wanted = Silence(name=name, until_ms=now_ms + 1, reason="", by="", at_ms=now_ms)
    covered = [one for one in now.alarms if one.phase == "on" and wanted.covers(one.alarm, one.subject, now_ms)]
    value = {"name": name, "silence": silence, "alarms": covered}
    more = {"lifts": view.request.query.get("for") == "0s", "seen": _seen(silence)}
    return Shown(template="silence.html", title="Silence", value=value, more=more)


def silence(view: View) -> Redirect:
    """Silence an alarm for a while, or end its silence."""
    form = view.request.form
    name = form.get("name", "")
    if form.get("seen") != _seen(_silence_of(view, name)):
        raise changed_meanwhile(f"The silence of {name!r:.100} has changed.", "Look at the alarms, and try again.")
    for_ms = duration.to_ms(form.get("for", ""), "for", most_ms=incidents.SILENCE_MS_MAX)
    if name == incidents.EVERY:
        view.needs("admin")
    alarms.silence(view.session, name, for_ms, reason_of(view))
    return Redirect(view.link("alarms"))


# -- schedules -------------------------------------------------------------------------------------------------------


def _app(view: View) -> App:
    if view.app is None:
        raise errors.UsageError(
            "This page was started with a URL, and schedules are declared in an app.",
            meaning="Nothing was changed.",
            todo="Start it with the app: onefold web shop:app",
        )
    return view.app


def run_now_preview(view: View, name: str) -> Shown:
    """Which tick would be sent, and a form that sends it."""
    app, at = _app(view), view.request.query.get("tick") or None
    tick = planned.tick_of(view.session, app, name, at)
    schedule, now_ms = planned.declared(app, name), view.session.now_ms()
    when = f"planned in {age(tick.planned_at_ms - now_ms)}" if tick.planned_at_ms > now_ms else "which was skipped"
    says = [
        f"The tick {tick.run}, {when}, would be sent to {tick.queue} now. When its time comes it is not sent again."
    ]
    if schedule.dispatches:
        says.append("It begins a run: its dispatcher sends what belongs to it, each message under its own key.")
    more = {
        "says": says, "fields": [("tick", tick.run.rpartition("/")[2])], "button": "Run it now", "typed": "",
        "back": (view.link("schedules"), "Schedules"),
    }  # fmt: skip
    return Shown(template="confirm.html", title=f"Run {name} now", value=tick, more=more)


def run_now(view: View, name: str) -> Redirect:
    """Send the tick that the form shows."""
    at = view.request.form.get("tick")
    if not at:
        raise errors.UsageError("The form names no tick.", meaning="Nothing was sent.", todo="Open the form again.")
    sent = planned.run_now(view.session, _app(view), name, at, reason_text=reason_of(view))
    return Redirect(view.link("runs", sent.run))


def pause_preview(view: View, name: str) -> Shown:
    """What pausing or resuming a schedule would do, and a form that does it."""
    found = planned.view(view.session, _app(view), name)
    pauses = view.request.segments[-1] == "pause"
    if pauses:
        comes = f" Its next tick would have been {found.next_key}." if found.next_key is not None else ""
        says = [f"{name} sends no ticks until it is resumed. What it has sent is still processed.{comes}"]
    else:
        says = [
            f"{name} resumes with its first tick after now; ticks that were due during the pause are skipped.",
            "Running schedulers notice within ten seconds. A skipped tick can still be sent by itself, by its time.",
        ]
    word = "Pause" if pauses else "Resume"
    more = {
        "says": says, "fields": [("seen", digest_of([found.phase]))], "button": word, "typed": "",
        "back": (view.link("schedules"), "Schedules"),
    }  # fmt: skip
    return Shown(template="confirm.html", title=f"{word} {name}", value=found, more=more)


def pause(view: View, name: str) -> Redirect:
    """Pause a schedule, or resume it."""
    app = _app(view)
    found = planned.view(view.session, app, name)
    if view.request.form.get("seen") != digest_of([found.phase]):
        raise changed_meanwhile(f"{name} is {found.phase} now.", "Look at the schedules, and try again.")
    view.needs("admin")
    change = planned.pause if view.request.segments[-1] == "pause" else planned.resume
    change(view.session, app, name, reason_text=reason_of(view))
    return Redirect(view.link("schedules"))


# -- workers ---------------------------------------------------------------------------------------------------------


def drain_preview(view: View, owner: str) -> Shown:
    """What a worker is running, and a form that asks it to drain."""
    found = next((one for one in activity.workers(view.session).workers if one.owner == owner), None)
    if found is None:
        raise errors.NotFoundError(f"There is no worker {owner!r:.100}.", todo=f"See {view.link('workers')}.")
    runs = counted(len(found.operations), "operation")
    says = [
        f"It finishes the {runs} that it runs, releases what it has not started, and ends. Another may be started then.",
        f"App {found.app}, {found.host}, process {found.pid}." if found.pid is not None else "It takes no requests.",
    ]
    more = {
        "says": says, "fields": [], "button": "Drain it", "typed": "", "back": (view.link("workers"), "Workers"),
    }  # fmt: skip
    return Shown(template="confirm.html", title=f"Drain {owner}", value=found, more=more)


def drain(view: View, owner: str) -> Redirect:
    """Ask a worker to drain."""
    view.needs("admin")
    reason = reason_of(view)
    if not activity.drain(view.session, owner, reason_text=reason):
        raise changed_meanwhile(f"Worker {owner} was asked to drain already.", f"See {view.link('workers')}.")
    return Redirect(view.link("workers"))
