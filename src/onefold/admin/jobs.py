"""Jobs for an operator: send a message, list paused jobs, resume one, show which app owns a job name, transfer a name.

Never here: running jobs, queues, what a process does about a name that it does not own (`runtime/names.py`).
Invariant: a job is resumed, and a name transferred, only if the stored value is still the one that was read.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterable
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.admin import editing, reading
from onefold.admin.session import AdminSession
from onefold.contracts.admin import roles
from onefold.contracts.documents import change
from onefold.contracts.store import RecordKey
from onefold.record import breaker
from onefold.record.breaker import Breaker
from onefold.record.failures import is_named
from onefold.runner.admission import breaker_name, breaker_of
from onefold.runner.handlers import Job
from onefold.runtime.names import PREFIX, Taken, decoded, state_name_of
from onefold.runtime.outgoing import Receipt

if TYPE_CHECKING:
    from onefold.app import App


class Paused(Struct, frozen=True, kw_only=True):
    """A job that its circuit breaker has paused.

    Args:
        job: its name. until_ms: when one delivery is tried again. pauses: how many in a row.
        summary: the dependency's last error.
    """

    job: str
    until_ms: int
    pauses: int
    summary: str


def send_text(
    job: Job[Any, Any],
    text: str,
    *,
    delay: str | None = None,
    run_at: str | None = None,
    key: str | None = None,
) -> Receipt:
    """Send one message to a job from JSON text, checked against the job's payload type.

    Args:
        delay: how long to wait before it runs, for example `10m`. run_at: an ISO 8601 instant with a zone.
        key: used instead of the job's key rule.

    Raises:
        PayloadError: it does not fit; nothing was sent. UsageError: a time that cannot be read.
    """
    at = None
    if run_at is not None:
        try:
            at = datetime.fromisoformat(run_at)
        except ValueError as error:
            raise errors.UsageError(
                f"run_at={run_at!r} is not a valid instant.",
                todo="Write it as 2026-12-24T06:00:00+01:00, with its zone.",
            ) from error
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        raise errors.PayloadError(
            f"The payload is not JSON: {error}.",
            meaning=f"It begins with {text[:60]!r}. Nothing was sent." if text else "It is empty. Nothing was sent.",
            todo="""JSON has names and texts in double quotes; put the whole in single ones: '{"id": "7"}'""",
        ) from None
    payload = job.rules.payload.decode(text)
    editing.check_fields(job, text, so_far="Nothing was sent.")
    return job.send(payload, delay=delay, run_at=at, key=key)


def paused(session: AdminSession) -> list[Paused]:
    """The jobs that are paused now, by name."""
    prefix = breaker_name("")
    names = session.engine.state.names(prefix)
    found = []
    for name, stored in zip(names, session.engine.state.get(names), strict=True):
        value = breaker_of(stored.value) if stored is not None else breaker.CLOSED
        if value.is_open:
            job = name.removeprefix(prefix)
            found.append(Paused(job=job, until_ms=value.until_ms, pauses=value.pauses, summary=value.summary))
    return found


def no_job(named: Iterable[str], job: str) -> errors.NotFoundError:
    """The error for a job that the app does not declare, with the one that was probably meant."""
    names = list(named)
    near = difflib.get_close_matches(job, names, n=1)
    return errors.NotFoundError(
        f"The app has no job {job!r}.",
        meaning=f"Its jobs are: {', '.join(names) or 'none'}.",
        todo=f"Did you mean {near[0]!r}?" if near else "Check the name.",
    )


def resume(session: AdminSession, job: str, *, reason_text: str | None = None) -> bool:
    """Resume a paused job; False if it was not paused. On the embedded engine its hidden messages become visible.

    Raises:
        NotFoundError: the app declares no job of that name. TransientError: workers kept changing its breaker; try again.
    """
    if session.jobs is not None and job not in session.jobs.named:
        raise no_job(session.jobs.named, job)

    def decide(before: Breaker) -> tuple[Breaker, bool]:
        resumed = breaker.resume(before)
        return resumed.breaker if resumed.event is not None else before, resumed.event is not None

    _, done = change(session.engine.state, breaker_name(job), breaker_of, breaker.CLOSED, decide)
    if done is None:
        raise errors.TransientError(
            f"The circuit breaker of {job} is being changed by workers.", todo="Run it again now."
        )
    if done:
        session.record("resumed", job=job, reason_text=reason_text)
        if session.engine.commit is not None:  # elsewhere a message cannot be made visible without its receipt
            _wake(session, job)
        session.engine.notify()
    return done


def _wake(session: AdminSession, job: str) -> None:
    """Make visible the messages of a job that its pause or a retry has hidden and that are not being run."""
    kinds, declared = roles(session.settings()), session.job(job)
    closed = session.closed_queues()  # there, reading receives visible messages, and hidden ones cannot be made visible
    for queue in [declared.policy.queue] if declared is not None else sorted(kinds.sources):
        if queue in closed:
            continue
        hidden: dict[str, RecordKey | None] = {}
        for message in session.every(queue):
            if message.visible_at_ms > session.now_ms() and message.owner is None:
                known = reading.read(session, message)
                if known.job == job:
                    hidden[message.message_id] = known.key
        keys = [key for key in hidden.values() if key is not None]
        found = session.engine.store.read(keys, session.now_ms())
        running = {one.key for one in found if one is not None and one.status == "in_progress"}
        session.engine.queues.wake([message_id for message_id, key in hidden.items() if key not in running])


def taken_names(session: AdminSession) -> list[Taken]:
    """All names that are taken on this store, by name."""
    state = session.engine.state
    found = (decoded(one.value if one is not None else None) for one in state.get(state.names(PREFIX)))
    return sorted((one for one in found if one is not None), key=lambda one: one.name)


def who_has_name(session: AdminSession, job: Job[Any, Any]) -> str:
    """Who else owns the name of an app's job on this store, so that its worker is refused; empty if nobody does."""
    found = session.engine.state.get([state_name_of(job.name)])[0]
    taken = decoded(found.value) if found is not None else None
    if taken is None or job.app in taken.apps:
        return ""
    return f"the app {' and '.join(map(repr, taken.apps))}" if taken.apps else "a function under @once"


def give_names(
    session: AdminSession,
    names: Collection[str],
    app: str,
    *,
    of: str | None = None,
    shared: bool = False,
    reason_text: str | None = None,
) -> list[Taken]:
    """Give names to the jobs of an app from now on; returns what was changed.

    Args:
        of: give all names of that app, instead of `names`.
        shared: the apps that have the names keep them too. The apps then answer each other's duplicates: meant for an
            app that is being renamed, and for apps that never use the same keys.

    Raises:
        NotFoundError: no app has that name. TransientError: other processes keep changing it.
    """
    known = {one.name: one for one in taken_names(session)}
    wanted = names if of is None else [name for name, one in known.items() if of in one.apps]
    missing = next((name for name in wanted if name not in known), None if wanted else of)
    if missing is not None:
        raise errors.NotFoundError(
            f"No {'name of the app' if of is not None else 'operation'} {missing!r:.200} is known here.",
            meaning=f"Known are {', '.join(known) or 'none'}. Nothing was changed.",
            todo="A name is taken when a worker of its app starts; see `onefold names list`.",
        )
    return [_give(session, name, app, shared=shared, reason_text=reason_text) for name in wanted]


def _give(session: AdminSession, name: str, app: str, *, shared: bool, reason_text: str | None) -> Taken:
    def decide(before: Taken | None) -> tuple[Taken | None, tuple[str, ...]]:
        had = before.apps if before is not None else ()
        apps = tuple(dict.fromkeys((*(had if shared else ()), app)))
        rule = before.rule if before is not None else None
        return Taken(name=name, kind="job", apps=apps, since_ms=session.now_ms(), rule=rule), had

    after, had = change(session.engine.state, state_name_of(name), decoded, None, decide)
    if after is None or had is None:
        raise errors.TransientError(f"The name {name!r:.200} is being changed by others.", todo="Run it again now.")
    session.record("name-given", job=name, to=", ".join(after.apps), of=", ".join(had) or None, reason_text=reason_text)
    return after


# -- names that match nothing ------------------------------------------------------------------------------------------


def unmatched(app: App) -> list[str]:
    """Names in an app's declarations that match nothing, each in a sentence: a typo there would not show otherwise.

    These are names of schedules or maps in reconciliations, and of exception classes. Only modules already imported are
    searched for a class.
    """
    titles = [*app.schedules, *app.maps]
    found = [
        f"{one.name} is for {one.of!r}, which is neither a schedule nor a map of the app {app.name}: it only checks a map"
        f" run that is started under exactly this name.{_meant(one.of, titles)}"
        for one in app.reconcilers.values()
        if one.of not in titles and one.of.partition("/")[0] not in titles
    ]
    for job in app.jobs.values():
        for kind, classes in job.classes.items():
            for named in classes:
                problem = _unmatched_class(named) if isinstance(named, str) and "." in named else ""
                if problem:
                    found.append(f"{kind}= of {job.name} has {named!r}, which matches no exception: {problem}")
    return found


def _unmatched_class(dotted: str) -> str:
    """Why no class fits a dotted name; empty if one does, or if that is not known yet."""
    module, _, name = dotted.rpartition(".")
    loaded = sys.modules.get(module)
    if loaded is None:
        top, parent = module.partition(".")[0], module.rpartition(".")[0]
        try:  # finding a module imports its parents
            there = find_spec(module if parent in sys.modules else top) is not None
        except (ImportError, ValueError):
            there = False
        return "" if there else f"there is no module {module} here."
    inside = [one for at, one in list(sys.modules.items()) if f"{at}.".startswith(f"{module}.")]
    if any(isinstance(one := getattr(each, name, None), type) and is_named(one, dotted) for each in inside):
        return ""
    other = getattr(loaded, name, None)
    if isinstance(other, type) and issubclass(other, BaseException):
        return f"it is {other.__module__}.{other.__qualname__}; name that."
    names = [key for key, one in vars(loaded).items() if isinstance(one, type) and issubclass(one, BaseException)]
    return f"{module} has no exception class {name}.{_meant(name, names)}"


def _meant(name: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(sorted(names)[:10]) or 'none'}."
