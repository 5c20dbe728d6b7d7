"""What an app would do with the messages in its queues: which have no job, and which do not fit their payload's type.

Before a release that renames a job or changes a payload is deployed, this checks the messages that wait, that are held
and that are in dead-letter queues. Each is read as a worker of that release would read it: upgraded, validated, its key
made. Names under which this app has worked before, and which it no longer declares, are listed too.
Never here: output. Invariants: nothing is written, and no handler runs; a finding names fields and types, never values.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Struct

from onefold import errors, redact
from onefold.admin import reading
from onefold.contracts.admin import Peeked, roles
from onefold.record.key_identity import changed
from onefold.runner.versions import version_of
from onefold.runtime import names
from onefold.runtime.runtime import rules_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onefold.admin.session import AdminSession
    from onefold.runner.handlers import Job

Place = Literal["waiting", "dead", "held"]

LOOKED_AT: Final = 100_000  # messages, unless a caller says otherwise
SHOWN: Final = 100  # unfit messages that are named
_SAID = re.compile(  # error texts of msgspec that do not quote a value
    r"(?:Expected `[^`]*`(?:, got `[^`]*`)?|Object missing required field `[^`]*`|Object contains unknown field `[^`]*`"
    r"|Invalid (?:enum value|UUID|RFC3339 encoded (?:datetime|date|time)|base64 encoded string))"
)


class UnfitMessage(Struct, frozen=True, kw_only=True):
    """A message that no job of the app could run.

    Args:
        queue, place, message_id: where the message is.
        job: the one it is for, if it names one. key: the key of its operation, if it is known without reading the body.
        version: the version of its payload; None if its attribute is not a version.
        kind: `no-job`, `later-version` (a later release has sent it), or `malformed`.
        why: one line, with the field; no value.
    """

    queue: str
    place: Place
    message_id: str
    job: str | None
    key: str | None
    version: int | None
    kind: Literal["no-job", "later-version", "malformed"]
    why: str


class JobMessages(Struct, frozen=True, kw_only=True):
    """The messages of one job name in one place.

    Args:
        job: the name that they carry; None if none. declared: the name of the job that takes them, or None.
        queue, place: where they are.
        count: how many. upgraded: how many of them are upgraded first. unfit: how many would not run.
    """

    job: str | None
    declared: str | None
    queue: str
    place: Place
    count: int
    upgraded: int
    unfit: int


class PayloadSurvey(Struct, frozen=True, kw_only=True):
    """What a release would do with the messages in the queues.

    Args:
        looked_at: how many messages were read. is_whole: False if there are more.
        unread: queues that were not read, because that would receive their messages (SQS).
        jobs: by name and place. unfit: messages that would not run, at most a hundred. unfit_count: all of them.
        stranded: names under which the app has worked and that none of its jobs has any more.
        rekeyed: a sentence for each job whose key rule differs from the one that its last worker had.
    """

    looked_at: int
    is_whole: bool
    unread: tuple[str, ...]
    jobs: tuple[JobMessages, ...]
    unfit: tuple[UnfitMessage, ...]
    unfit_count: int
    stranded: tuple[str, ...]
    rekeyed: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every message that was read would run, and no name is stranded."""
        return not self.unfit_count and not self.stranded


def survey(session: AdminSession, *, limit: int = LOOKED_AT) -> PayloadSurvey:
    """Read all messages of an engine's queues as the app's jobs would; writes nothing.

    Args:
        session: with the app's jobs. limit: how many messages to read at most, of all queues together.

    Raises:
        UsageError: the session has no app.
    """
    if session.jobs is None:
        raise errors.UsageError(
            "Only an app knows what its payloads are.", todo="Name it as module:attribute, for example shop:app."
        )
    counts: Counter[tuple[str | None, str | None, str, Place]] = Counter()
    upgraded: Counter[tuple[str | None, str | None, str, Place]] = Counter()
    unfit: Counter[tuple[str | None, str | None, str, Place]] = Counter()
    shown: list[UnfitMessage] = []
    unread = session.closed_queues() if session.has_queues else ()
    looked_at, is_whole = 0, True
    for queue, place in _queues(session, unread):
        for message in session.every(queue):
            if looked_at >= limit:
                is_whole = False
                break
            looked_at += 1
            named = reading.carried_job(message)
            job, found = _read(session, message, queue, place, named)
            where = (named, job.name if job is not None else None, queue, place)
            counts[where] += 1
            if found is not None:
                unfit[where] += 1
                shown += [found] if len(shown) < SHOWN else []
            elif job is not None and job.versions is not None:
                upgraded[where] += version_of(message.attributes) < job.versions.present
    return PayloadSurvey(
        looked_at=looked_at,
        is_whole=is_whole,
        unread=unread,
        jobs=tuple(
            JobMessages(
                job=where[0], declared=where[1], queue=where[2], place=where[3],
                count=count, upgraded=upgraded[where], unfit=unfit[where],
            )
            for where, count in sorted(counts.items(), key=lambda one: tuple(map(str, one[0])))
        ),
        unfit=tuple(shown),
        unfit_count=unfit.total(),
        stranded=stranded_names(session),
        rekeyed=rekeyed(session),
    )  # fmt: skip


def _queues(session: AdminSession, unread: tuple[str, ...]) -> list[tuple[str, Place]]:
    """The queues of the app, or all queues of the engine if it declares none, and what each is for."""
    assert session.jobs is not None
    settings = session.settings() if session.has_queues else {}
    own = {one.name for one in session.jobs.queues}
    kinds = roles({name: one for name, one in settings.items() if name in own} if own else settings)
    found: list[tuple[str, Place]] = [(name, "waiting") for name in sorted(kinds.sources) if name not in unread]
    return found + [(name, "dead") for name in sorted(kinds.dead)] + [(name, "held") for name in sorted(kinds.held)]


def _read(
    session: AdminSession, message: Peeked, queue: str, place: Place, named: str | None
) -> tuple[Job[Any, Any] | None, UnfitMessage | None]:
    """The job that takes a message, and why it would not run it; None if it would."""
    job = session.job(named)
    try:
        version: int | None = version_of(message.attributes)
    except errors.PayloadError:
        version = None
    known, problem = reading.read(session, message), ""
    kind: Literal["no-job", "later-version", "malformed"] = "malformed"
    if known.outcome == "no-job":
        present = 1 if job is None or job.versions is None else job.versions.present
        late = job is not None and version is not None and version > present
        kind = "later-version" if late else "no-job"
        problem = (
            f"Its payload has version {version}, and {job.name} takes version {present}."
            if late and job is not None
            else f"No job is declared as {named!r:.140}."
            if named is not None and job is None
            else "No job of this app takes it from its queue."
        )
    elif known.outcome == "malformed":
        problem = _without_values(session, message, known.job)
    if not problem:
        return session.job(known.job), None
    return job, UnfitMessage(
        queue=queue, place=place, message_id=message.message_id, job=named, version=version,
        key=message.key or (message.reason.key if message.reason is not None else None), kind=kind, why=problem,
    )  # fmt: skip


def _without_values(session: AdminSession, message: Peeked, named: str | None) -> str:
    """Why a message cannot be read: the field and what its type requires, without its value."""
    job = session.job(named)
    if job is None:
        return "It cannot be read."
    error = job.read(reading.delivery_of(message))[1]
    if not isinstance(error, errors.PayloadError):
        return (
            "Its attributes claim something that its body does not say."
            if error is None
            else f"Reading it raised {_name(error)}."
        )
    place, _, said = error.what.partition(" does not fit ")
    if not said:
        text = re.sub(r"the boolean \w+", "a boolean", error.what)
        return text if text.startswith("The ") else "The key that it was given cannot be used."
    found = _SAID.search(said)
    return f"{place} does not fit {job.rules.payload.name}{f': {found[0]}' if found is not None else ''}."


def _name(error: object) -> str:
    return type(error).__name__


def renamed(session: AdminSession) -> list[str]:
    """Stranded names, in a sentence, if a job of the app is new on this engine: it may be one of them, renamed.

    Once a worker with the new job has started, its name is known here, and nothing is reported any more.
    """
    assert session.jobs is not None
    try:
        gone = stranded_names(session)
        names_of = [(job.name, names.state_name_of(job.name)) for job in session.jobs.named.values()] if gone else []
        known = session.engine.state.get([place for _, place in names_of])
    except errors.UsageError:  # a role may lack permission to list names
        return []
    new = [name for (name, _), one in zip(names_of, known, strict=True) if one is None]
    if not new:
        return []
    text = (
        f"App {session.jobs.app} has worked here as {_some(gone)}, which it does not declare now, and {_some(new)} is new"
        " here. If that is a rename, earlier records do not answer duplicates, and their effects happen again: stop, and"
        f" declare the old name, aliases=[{gone[0]!r:.200}]"
    )
    return [text]


def _some(found: Sequence[str]) -> str:
    shown = ", ".join(redact.one_line(f"{name:.100}") for name in found[:_NAMES_SHOWN])
    return f"{shown} and {len(found) - _NAMES_SHOWN} more" if len(found) > _NAMES_SHOWN else shown


_NAMES_SHOWN = 5


def stranded_names(session: AdminSession) -> tuple[str, ...]:
    """Names under which the app has worked on this engine and that none of its jobs has any more."""
    assert session.jobs is not None
    declared = {name for job in session.jobs.named.values() for name in job.names}
    state = session.engine.state
    places = state.names(names.PREFIX)
    found = [names.decoded(one.value) for one in (state.get(places) if places else ()) if one is not None]
    return tuple(
        sorted(
            one.name
            for one in found
            if one is not None and one.kind == "job" and one.apps == (session.jobs.app,) and one.name not in declared
        )
    )


def rekeyed(session: AdminSession) -> tuple[str, ...]:
    """A sentence for each job of the app whose key rule differs from the one that its last worker here had."""
    assert session.jobs is not None
    rules = rules_of(session.jobs.named.values())
    stored = session.engine.state.get([names.state_name_of(name) for name in rules])
    found = []
    for (name, rule), one in zip(rules.items(), stored, strict=True):
        taken = names.decoded(one.value) if one is not None else None
        if taken is not None and taken.rule is not None and taken.rule.differs(rule):
            found.append(changed(name, taken.rule, rule))
    return tuple(found)
