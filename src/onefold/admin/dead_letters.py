"""Dead letters for an operator: select, inspect, delete. Editing is in `editing.py`, sending back in `redrive.py`.

Dead letters are listed by their failure (reason, error class, job), because at night the question is "what is wrong",
not "which messages are there". Bodies are shown only if a person asks for one message.
Never here: receiving messages, output. Invariant: a message that no selection named is not touched.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

from msgspec import Struct

from onefold import errors, redact
from onefold.admin import groups, reading, why
from onefold.admin.reading import Forecast, Reading
from onefold.admin.session import AdminSession
from onefold.codec import digest, encode
from onefold.contracts.admin import Peeked, roles
from onefold.contracts.ledger import Row
from onefold.contracts.store import Ask, Claimed, Record, RecordKey, Release
from onefold.observe.timeline import Line, alone
from onefold.observe.wording import counted, instant
from onefold.runner.handlers import run_of

_ROWS_SHOWN = 12
_PAGE = 1_000  # messages of one page, and of one transaction that deletes them
_PAGES_MAX = 5  # pages that are read for one result if a selection matches few messages


class Select(Struct, frozen=True, kw_only=True):
    """Which dead letters are meant; all conditions must hold.

    Args:
        ids: message ids, or the number at their end, or any beginning that only one message has.
        queue: a dead-letter queue, or a queue whose dead letters are meant.
        reason: the kind of reason (`permanent`, `attempts`, `conflict` ...); `none` for messages without one.
        error: class name of the exception; `*` and `?` match anything.
        job: its name. key, group: with `*` and `?`.
        older_ms, newer_ms: it failed at least, or at most, this long ago.
        contains: a piece of its body, compared exactly.
        run: the run that it belongs to; tenant: the scope of its operation; both with `*` and `?`.
        fingerprint: the fingerprint of its failure, as `fingerprint_of` makes it, or at least its first 4 characters.
    """

    ids: tuple[str, ...] = ()
    queue: str | None = None
    reason: str | None = None
    error: str | None = None
    job: str | None = None
    key: str | None = None
    group: str | None = None
    older_ms: int | None = None
    newer_ms: int | None = None
    contains: str | None = None
    run: str | None = None
    tenant: str | None = None
    fingerprint: str | None = None

    def is_empty(self) -> bool:
        """Whether it selects everything."""
        return self == Select()


class DeadLetterView(Struct, frozen=True, kw_only=True):
    """One dead letter, without its body.

    Args:
        message_id, queue, source, group: where it is and where it came from.
        job, key: the operation, if known.
        reason, error, summary, attempts, crashes, owner: why it is here; `none` if it carries no reason.
        receive_count: the receive count of the message.
        first_at_ms, failed_at_ms: first and last time its operation was tried.
        expires_in_ms: until its retention ends and it is gone.
        run: the run that it belongs to, or None. fingerprint: the fingerprint of its failure.
    """

    message_id: str
    queue: str
    source: str | None
    group: str | None
    job: str | None
    key: str | None
    reason: str
    error: str | None
    summary: str
    attempts: int
    crashes: int
    owner: str | None
    receive_count: int
    first_at_ms: int | None
    failed_at_ms: int
    expires_in_ms: int
    run: str | None = None
    fingerprint: str = ""


class FailureGroup(Struct, frozen=True, kw_only=True):
    """Dead letters that failed in the same way.

    Args:
        queue, reason, error, job, owner: what they share.
        count: how many.
        oldest_at_ms, newest_at_ms: when the first and the last of them failed.
        expires_in_ms: until the first of them is gone.
        summary, message_id: those of the newest.
        texts: how many different summaries they have.
        redrive: the command that sends them back, or what has to be done first.
        fingerprint: the fingerprint of all of them; None if they were grouped without it and have several.
    """

    queue: str
    reason: str
    error: str | None
    job: str | None
    owner: str | None
    count: int
    oldest_at_ms: int
    newest_at_ms: int
    expires_in_ms: int
    summary: str
    message_id: str
    texts: int
    redrive: str
    fingerprint: str | None = None


class Detail(Struct, frozen=True, kw_only=True):
    """One dead letter with everything a person needs before acting on it.

    Args:
        letter: as listed.
        body: the payload as sent. attributes: name -> value.
        record: state of its operation's record in a few words; `why` has its figures.
        forecast: what a redrive would do now.
        history: the last dozen rows of its operation in the ledger, oldest first.
        redrive: the command that sends it back, or what has to be done first.
        trace: where the last run's exception was raised, frames without locals; None if not known.
    """

    letter: DeadLetterView
    redrive: str
    body: str
    attributes: dict[str, str]
    record: str
    forecast: Forecast
    history: tuple[Line, ...]
    trace: str | None = None


# -- looking ---------------------------------------------------------------------------------------------------------


def find(session: AdminSession, select: Select) -> Iterator[Peeked]:
    """The dead letters that a selection names, queue by queue, oldest first; on FIFO queues in their groups' order.

    Raises:
        NotFoundError: the queue does not exist or is not a dead-letter queue; no dead letter has an id that was given.
        UsageError: the beginning of an id fits several.
    """
    names = _queues(session, select.queue)
    if select.ids:
        yield from _by_ids(session, names, select)
        return
    settings = session.settings()
    for name in names:
        messages: Iterator[Peeked] | list[Peeked] = session.every(name)
        if settings[name].fifo:
            messages = sorted(messages, key=lambda message: message.sequence or "")
        yield from (message for message in messages if fits(session, message, select))


def _queues(session: AdminSession, named: str | None) -> list[str]:
    kinds = roles(session.settings())
    if named is None:
        return sorted(kinds.dead)
    if named in kinds.dead:
        return [named]
    source = kinds.sources.get(named)
    if source is not None and source.dead_letter is not None:
        return [source.dead_letter]
    raise errors.NotFoundError(
        f"{named!r} is neither a dead-letter queue nor a queue that has one.",
        meaning=f"Dead-letter queues here: {', '.join(sorted(kinds.dead)) or 'none'}.",
        todo="See `onefold queue list`.",
    )


def _by_ids(session: AdminSession, names: Sequence[str], select: Select) -> Iterator[Peeked]:
    found: dict[str, list[Peeked]] = {wanted: [] for wanted in select.ids}
    if session.engine.commit is not None:  # elsewhere a message cannot be found by its id
        for wanted, message in zip(select.ids, session.engine.queues.find(select.ids), strict=True):
            if message is not None and message.queue in names:
                found[wanted].append(message)
    for name in names if not all(found.values()) else ():
        for message in session.every(name):
            for wanted in select.ids:
                if names_message(wanted, message.message_id) and message not in found[wanted]:
                    found[wanted].append(message)
    for wanted, fitting in found.items():
        # A whole id is also the beginning of others: run-1 and run-11.
        messages = [one for one in fitting if one.message_id == wanted] or fitting
        if len(messages) > 1:
            raise errors.UsageError(
                f"{wanted!r} fits {len(messages)} dead letters: {', '.join(one.message_id for one in messages[:3])} ...",
                meaning="Nothing was changed.",
                todo="Write more of the id.",
            )
        if not messages:
            raise errors.NotFoundError(
                f"There is no dead letter {wanted!r}.",
                meaning="It may have been sent back, deleted, or have expired. Nothing was changed.",
                todo="See `onefold dlq list --all`; `onefold why KEY` shows what happened to an operation.",
            )
        if fits(session, messages[0], select):
            yield messages[0]


def names_message(wanted: str, message_id: str) -> bool:
    """Whether `wanted` matches this message: its id, the number at the end of it, or its beginning."""
    return (
        message_id == wanted
        or message_id.rpartition("-")[2] == wanted
        or (len(wanted) >= _BEGINNING_CHARACTERS and message_id.startswith(wanted))
    )


_BEGINNING_CHARACTERS = 4


def fits_pattern(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern in which only * and ? are special: a key may contain brackets."""
    return text == pattern or fnmatchcase(text, pattern.replace("[", "[[]"))


def fits(session: AdminSession, message: Peeked, select: Select) -> bool:
    """Whether a dead letter matches a selection, apart from its queue."""
    if select.ids and not any(names_message(wanted, message.message_id) for wanted in select.ids):
        return False
    reason, age_ms = message.reason, session.now_ms() - _failed_at_ms(message)
    patterns = (
        (select.error, reason.error if reason is not None else None),
        (select.group, message.group),
        (select.run, run_of(message)),
    )
    return (
        select.reason in (None, reason.kind if reason is not None else "none")
        and all(pattern is None or fits_pattern(text or "", pattern) for pattern, text in patterns)
        and (select.older_ms is None or age_ms >= select.older_ms)
        and (select.newer_ms is None or age_ms <= select.newer_ms)
        and (select.contains is None or select.contains in message.body)
        and _operation_fits(session, message, select)
    )


def _operation_fits(session: AdminSession, message: Peeked, select: Select) -> bool:
    """Whether a dead letter meets the conditions for which its message may have to be read."""
    if select.job is not None or select.key is not None:
        job, key = operation(session, message)
        if select.job not in (None, job) or (select.key is not None and not fits_pattern(key or "", select.key)):
            return False
    if select.fingerprint is not None and not _failure_of(session, message).startswith(select.fingerprint):
        return False
    if select.tenant is None:
        return True
    known = reading.read(session, message).key
    return known is not None and fits_pattern(known.scope, select.tenant)


def fingerprint_of(job: str | None, kind: str, error: str | None, summary: str) -> str:
    """Eight characters that failures of one cause share, made from their job, kind, class and text.

    What varies is left out of the text: numbers, quoted parts and long hexadecimal ids.
    """
    shape = re.sub(_VARYING, "#", summary).lower()
    return digest(encode([job, kind, error, shape]))[:FINGERPRINT_CHARS]


_VARYING = r"'[^']*'|\"[^\"]*\"|`[^`]*`|\b[0-9a-fA-F]{8}[0-9a-fA-F-]*\b|\d+(?:[.,:]\d+)*"
FINGERPRINT_CHARS = 8


def _failure_of(session: AdminSession, message: Peeked) -> str:
    reason = message.reason
    if reason is None:
        return fingerprint_of(operation(session, message)[0], "none", None, _without_reason(message))
    return fingerprint_of(operation(session, message)[0], reason.kind, reason.error, reason.summary)


def _failed_at_ms(message: Peeked) -> int:
    return (message.reason.last_at_ms if message.reason is not None else None) or message.sent_at_ms


def operation(session: AdminSession, message: Peeked) -> tuple[str | None, str | None]:
    """Job and key of a message, if known."""
    reason = message.reason
    key = message.key or (reason.key if reason is not None else None)
    job = reading.carried_job(message)
    if (key is None or job is None) and session.jobs is not None:
        known = reading.read(session, message)
        return job or known.job, key or (known.key.key if known.key is not None else None)
    return job, key


def letter(session: AdminSession, message: Peeked) -> DeadLetterView:
    """A dead letter as a list shows it."""
    reason = message.reason
    job, key = operation(session, message)
    return DeadLetterView(
        message_id=message.message_id,
        queue=message.queue,
        source=message.source,
        group=message.group,
        job=job,
        key=key,
        reason=reason.kind if reason is not None else "none",
        error=reason.error if reason is not None else of_scheduler(message, "ERROR_CODE"),
        summary=reason.summary if reason is not None else _without_reason(message),
        attempts=reason.attempts if reason is not None else 0,
        crashes=reason.crashes if reason is not None else 0,
        owner=_owner(session, message, job),
        receive_count=message.receive_count,
        first_at_ms=reason.first_at_ms if reason is not None else None,
        failed_at_ms=_failed_at_ms(message),
        expires_in_ms=message.expires_at_ms - session.now_ms(),
        run=run_of(message),
        fingerprint=_failure_of(session, message),
    )


def of_scheduler(message: Peeked, name: str) -> str | None:
    """An attribute of a tick that a scheduler (ours, or EventBridge Scheduler) could not send; None for other messages."""
    found = message.attributes.get(name) if "SCHEDULE_ARN" in message.attributes else None
    return str(found.value) if found is not None else None


def _without_reason(message: Peeked) -> str:
    known = of_scheduler(message, "ERROR_MESSAGE")
    if known is not None:
        return f"A scheduler could not send it: {known}"
    return "onefold did not dead-letter it: no reason travels with it."


def _owner(session: AdminSession, message: Peeked, job: str | None) -> str | None:
    if message.reason is not None and message.reason.owner is not None:
        return message.reason.owner
    declared = session.job(job)
    return declared.policy.owner if declared is not None else None


class LetterPage(Struct, frozen=True, kw_only=True):
    """Some dead letters of one queue, the oldest first.

    Args:
        letters: the selected ones. after: where the next page begins; None if this is the last.
        failures: how these failed, and others that were read to find them. grouped: how many messages that is.
    """

    letters: tuple[DeadLetterView, ...]
    after: str | None
    failures: tuple[FailureGroup, ...]
    grouped: int


def page(session: AdminSession, queue: str, select: Select, *, limit: int = 50, after: str | None = None) -> LetterPage:
    """A page of one queue's dead letters, and how the first 1,000 from there on failed.

    At most 5,000 messages are read, so a page can be short if the selection fits few messages.

    Raises:
        NotFoundError: the queue is not a dead-letter queue and has none.
    """
    (name,) = _queues(session, queue)
    fitting: list[Peeked] = []
    behind = after
    for _ in range(_PAGES_MAX):
        found = session.engine.queues.peek(name, limit=_PAGE, after=behind)
        behind = found[-1].message_id if len(found) == _PAGE else None
        fitting += [one for one in found if fits(session, one, select)]
        if len(fitting) > limit or behind is None:
            break
    letters = tuple(letter(session, one) for one in fitting[:limit])
    return LetterPage(
        letters=letters,
        after=letters[-1].message_id if len(fitting) > limit else behind,
        failures=tuple(_by_failure(session, fitting)),
        grouped=len(fitting),
    )


def failures(session: AdminSession, select: Select, *, by_text: bool = False) -> list[FailureGroup]:
    """The selected dead letters grouped by how they failed, the most numerous first; those of stopped groups come last.

    Args:
        by_text: also separate them by their texts, as far as their fingerprints differ.
    """
    return _by_failure(session, find(session, select), by_text=by_text)


_Failure = tuple[str, str, str | None, str | None, str]  # queue, reason, class of the error, job, fingerprint


def _by_failure(session: AdminSession, messages: Iterable[Peeked], *, by_text: bool = False) -> list[FailureGroup]:
    grouped: dict[_Failure, list[DeadLetterView]] = {}
    way_back = groups.ways_back(session)
    ways: dict[_Failure, str] = {}  # the command, if it has to be another one: for a stopped group or a map run
    for message in messages:
        one = letter(session, message)
        kind = (one.queue, one.reason, one.error, one.job, one.fingerprint if by_text else "")
        if (way := way_back(message)) != alone(message):
            ways[kind] = way
        grouped.setdefault(kind, []).append(one)
    found = []
    for kind, letters in grouped.items():
        queue, reason, error, job, _ = kind
        fingerprints = {one.fingerprint for one in letters}
        newest = max(letters, key=lambda one: one.failed_at_ms)
        found.append(
            FailureGroup(
                queue=queue,
                reason=reason,
                error=error,
                job=job,
                owner=newest.owner,
                count=len(letters),
                oldest_at_ms=min(one.failed_at_ms for one in letters),
                newest_at_ms=newest.failed_at_ms,
                expires_in_ms=min(one.expires_in_ms for one in letters),
                summary=newest.summary,
                message_id=newest.message_id,
                texts=len({one.summary for one in letters}),
                redrive=ways.get(kind) or _redrive(kind, list(grouped)),
                fingerprint=fingerprints.pop() if len(fingerprints) == 1 else None,
            )
        )
    return sorted(
        found, key=lambda one: (one.reason == "group-stopped", -one.count, one.queue, one.reason, one.error or "")
    )


def _redrive(one: _Failure, every: Sequence[_Failure]) -> str:
    """The command that sends back the dead letters of one kind only, if an option can select them."""
    queue, reason, error, job, fingerprint = one
    if fingerprint:
        return f"onefold dlq redrive --fingerprint {fingerprint} --queue {queue}"
    others = [other for other in every if other != one and other[1] == reason]
    command = f"onefold dlq redrive --reason {reason}"
    if error is not None and any(other[2] != error for other in others):
        command += f" --error {redact.shell_word(error)}"
        others = [other for other in others if other[2] == error]
    if job is not None and any(other[3] != job for other in others):
        command += f" --job {redact.shell_word(job)}"
        others = [other for other in others if other[3] == job]
    return command + (f" --queue {queue}" if others else "")


def show(session: AdminSession, message: Peeked, say: Callable[[int], str] = instant) -> Detail:
    """One dead letter with its body, its record's state, its history and what a redrive would do.

    Args:
        say: formats instants inside sentences.
    """
    known = reading.read(session, message)
    record = reading.record_of(session, known)
    return Detail(
        letter=letter(session, message),
        redrive=groups.ways_back(session)(message),
        body=message.body,
        attributes={
            name: one.value if isinstance(one.value, str) else f"({len(one.value)} bytes)"
            for name, one in message.attributes.items()
        },
        record=_record_text(known, record),
        forecast=reading.foresee(session, known, record),
        history=tuple(why.history(session, known.key, say)[-_ROWS_SHOWN:]) if known.key is not None else (),
        trace=message.reason.trace if message.reason is not None else None,
    )


def one_of(session: AdminSession, select: Select) -> Peeked:
    """The one dead letter that a selection names.

    Raises:
        NotFoundError: none fits. UsageError: several do; errors of `find`.
    """
    found = list(find(session, select))
    if not found:
        raise errors.NotFoundError("No dead letter matches.", todo="See `onefold dlq list --all`.")
    if len(found) > 1:
        ids = ", ".join(one.message_id for one in found[:3])
        raise errors.UsageError(
            f"{len(found)} dead letters fit: {ids}{' ...' if len(found) > 3 else ''}.",
            meaning="Only one can be chosen here. Nothing was changed.",
            todo="Name it by its id.",
        )
    return found[0]


def _record_text(known: Reading, record: Record | None) -> str:
    if known.key is None:
        return "not looked up: the job's key rule cannot be applied to this payload"
    if record is None:
        return "none: nothing is recorded under its key"
    doubt = ", outcome in doubt" if record.doubt and record.status != "completed" else ""
    parked = ", held for a person" if record.parked else ""
    return f"{record.status}{doubt}{parked}, {counted(record.attempts_total, 'run')} in all, fence {record.fence}"


def check_named(select: Select) -> None:
    """Refuse a selection of everything.

    Raises:
        UsageError: it has no condition.
    """
    if select.is_empty():
        raise errors.UsageError(
            "No condition says which dead letters are meant.",
            meaning="Nothing was changed.",
            todo="Name a queue, or ids.",
        )


# -- deleting --------------------------------------------------------------------------------------------------------


def remove(session: AdminSession, messages: Sequence[Peeked], *, reason_text: str | None = None) -> int:
    """Delete dead letters permanently; returns how many. A group without dead letters is restarted.

    What was edited, redriven or deleted since it was read is left alone. Each thousand is a transaction.

    Args:
        messages: from `find`.
        reason_text: why, for the ledger.
    """
    rows: list[Row] = []
    for first in range(0, len(messages), _PAGE):
        some = messages[first : first + _PAGE]
        readings = [reading.read(session, message) for message in some]
        rows += session.together(partial(_remove, session, some, readings, reason_text))
    if session.engine.commit is None:
        _free(session, {row.key for row in rows if row.key is not None})
    for source in sorted({message.source for message in messages if message.source is not None and message.group}):
        groups.let_go_of_empty(session, source)
    return len(rows)


def _remove(
    session: AdminSession, messages: Sequence[Peeked], readings: Sequence[Reading], reason_text: str | None
) -> list[Row]:
    answers = reading.remove_unchanged(session, messages)
    rows = [
        session.row("removed", key=known.key, message=message, reason_text=reason_text)
        for message, known, removed in zip(messages, readings, answers, strict=True)
        if removed
    ]
    session.engine.ledger.append(rows)
    return rows


def _free(session: AdminSession, keys: Collection[RecordKey]) -> None:
    """Free `unique` keys whose dead letters were deleted, on engines where a send cannot see that a message is gone.

    A key whose outcome is in doubt, or that runs, is not freed.
    """
    unique = [key for key in keys if (job := session.job(key.job)) is not None and job.unique]
    store, now_ms = session.engine.store, session.now_ms()
    asks = [
        Ask(
            key=record.key, fingerprint=record.fingerprint, owner=session.actor, lease_until_ms=now_ms, start=False,
            expires_at_ms=now_ms,
        )
        for record in store.read(unique, now_ms)
        if record is not None and record.status in ("released", "failed") and not record.doubt
    ]  # fmt: skip
    holds = [answer.hold for answer in store.claim(asks, now_ms) if isinstance(answer, Claimed)]
    store.write([(hold, Release(expires_at_ms=now_ms)) for hold in holds], now_ms)


def counts(messages: Sequence[Peeked]) -> dict[str, int]:
    """How many messages of each queue a selection has, for the question before deleting."""
    return dict(Counter(message.queue for message in messages))
