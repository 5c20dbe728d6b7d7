"""`onefold reconcile`: check a run by hand, and repair it: send what is missing again, each message under its own key.

A check does what the run's declared reconciliation would do; where the app declares none, dispatched keys are compared with
records alone. Its outcome is stored with the name of the person who ran it. A repair is planned first, then sent.

A missing operation has no message left, and rows and records contain no payload. The payload has to come from where it
was made: the dispatcher's generator, which is run again for the same tick, and only its missing messages are used; the
source of a map run, which must be unchanged; or, for a plain tick, the schedule itself. A key that is not produced again,
or that comes with a payload other than the one its record has seen, is refused and named: sending it would repair nothing.

Dead letters and held outcomes have their payload, their reason and their own commands; they are counted here, not moved.
Never here: how a check is done (`reconcile/reconciler.py`), finding what is missing (`reconcile/survey.py`).
Invariant: a check sends nothing and changes no operation; a repair sends only keys that the run dispatched, so that an
operation that took effect meanwhile is answered from its record.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import closing
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from onefold import errors, payload_defaults
from onefold.admin.session import AdminSession
from onefold.app import App
from onefold.codec import digest
from onefold.contracts.ledger import Row
from onefold.contracts.store import Hold, Record, RecordKey
from onefold.maps import state as map_state
from onefold.maps.checks import check_source
from onefold.maps.children import MapChild, children
from onefold.maps.jobs import MapJob
from onefold.maps.sources import Position, source_of
from onefold.maps.state import MapState
from onefold.reconcile import findings
from onefold.reconcile.findings import ReconcileOutcome
from onefold.reconcile.reconciler import ReconcileMessage, ReconcilePass, Reconciler
from onefold.reconcile.survey import Survey, SurveyedOperation
from onefold.record.error_text import summary_of
from onefold.runner import context, runs
from onefold.runner.context import Context
from onefold.runner.dispatcher import in_run
from onefold.runner.handlers import positional
from onefold.runtime.events import Sinks
from onefold.runtime.outgoing import Outgoing
from onefold.schedules.schedule import Schedule, TickMessage

BY_HAND = 0  # the number of a check that was not started by a message


def reconcile(session: AdminSession, app: App | None, run: str) -> list[ReconcileOutcome]:
    """Check a run now: once for each reconciliation that is declared for it, or once without the user's own count.

    Args:
        app: the app; None if only the engine is known.
        run: its full name.

    Returns:
        An outcome for each reconciliation. They are recorded and reported like the job's own.

    Raises:
        UsageError: the user's own check failed, or its answer has no known form; nothing about that check is recorded.
    """
    found = runs.read(session.engine.state, run)
    title = found.run.title if found is not None else run.partition("/")[0]
    mine = [one for one in app.reconcilers.values() if one.is_for(run, title)] if app is not None else []
    if mine:
        return [_by(one, session, run) for one in mine]
    jobs = session.jobs.named if session.jobs is not None else {}
    look = ReconcilePass(
        session.engine, jobs, ReconcileMessage(run=run, look=BY_HAND), name="", now_ms=session.now_ms()
    )
    look.survey()
    outcome = look.outcome(None)
    findings.record(session.engine, outcome, actor=session.actor, sinks=Sinks(app.sinks if app is not None else ()))
    return [outcome]


def _by(reconciler: Reconciler, session: AdminSession, run: str) -> ReconcileOutcome:
    try:
        return reconciler.reconcile(ReconcileMessage(run=run, look=BY_HAND), actor=session.actor)
    except errors.OnefoldError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise errors.UsageError(
            f"The check of {reconciler.name} failed: {type(error).__name__}: {summary_of(error)}",
            meaning=f"What it would have found for {run} is not known; nothing was recorded.",
            todo="Fix it, and check again.",
        ) from error


MISSING_MAX: Final = 10_000  # operations of one repair, whose messages are in memory; the next repair takes more
_BATCH: Final = 500  # messages of one transaction


class Resend(Struct, frozen=True, kw_only=True):
    """One message that a repair sends.

    Args:
        job, tenant, key: the operation. queue: where it goes.
        why: it is missing.
    """

    job: str
    tenant: str
    key: str
    queue: str
    why: str


class RefusedResend(Struct, frozen=True, kw_only=True):
    """One missing operation that cannot be sent again, and why not."""

    job: str
    tenant: str
    key: str
    why: str


class RepairPlan(Struct, frozen=True, kw_only=True):
    """What a repair would do, or did.

    Args:
        run: its name.
        resend: what is sent, in the order of the dispatch.
        refused: missing operations that cannot be sent again.
        dead, held: operations that have commands of their own.
        more: more operations are missing than one repair takes; repair again.
        sent: how many were sent; 0 if this is only a plan.
    """

    run: str
    resend: tuple[Resend, ...]
    refused: tuple[RefusedResend, ...]
    dead: int
    held: int
    more: bool
    sent: int = 0

    @property
    def whole(self) -> bool:
        """Whether a person has nothing left to do for the run once the plan is carried out."""
        return not (self.refused or self.dead or self.held or self.more) and self.sent == len(self.resend)


class Repair:
    """A repair of one run: planned when it is made, sent by `send`.

    Args:
        app: the declarations. run: the run's full name.

    Raises:
        UsageError: the dispatcher failed when it was run again, or the source of a map run has changed.
        NotFoundError: that source does not exist any more.
    """

    def __init__(self, session: AdminSession, app: App, run: str) -> None:
        self._session = session
        self._app = app
        self._run = run
        survey = Survey(
            session.engine, run, session.now_ms(), {name: job.policy for name, job in _jobs(session).items()}
        )
        wanted = dict(_first((one.key, one) for one in survey.walk() if _is_lost(one)))
        lost = survey.counts.get("missing", 0)
        self._messages, refused = self._payloads(wanted)
        self.plan = RepairPlan(
            run=run,
            resend=tuple(
                Resend(
                    job=one.record.job,
                    tenant=one.record.scope,
                    key=one.record.key,
                    queue=one.queue,
                    why=wanted[one.record].why,
                )
                for one in self._messages
            ),
            refused=tuple(
                RefusedResend(job=key.job, tenant=key.scope, key=key.key, why=why) for key, why in refused.items()
            ),
            dead=survey.counts.get("dead", 0),
            held=survey.counts.get("held", 0),
            more=len(wanted) == MISSING_MAX and lost > MISSING_MAX,
        )

    # -- what it would send ----------------------------------------------------------------------------------------------

    def _payloads(self, wanted: dict[RecordKey, SurveyedOperation]) -> tuple[list[Outgoing], dict[RecordKey, str]]:
        """The messages of the wanted operations, and for the others why they have none."""
        if not wanted:
            return [], {}
        found = runs.read(self._session.engine.state, self._run)
        title = found.run.title if found is not None else self._run.partition("/")[0]
        mapped = map_state.read(self._session.engine.state, self._run)
        if mapped is not None and title in self._app.maps:
            made = self._mapped(self._app.maps[title], mapped.state, set(wanted))
        elif title in self._app.schedules:
            made = self._made(self._app.schedules[title], self._run.rpartition("/")[2], set(wanted))
        else:
            why = f"what made its message is not declared here: the app has no schedule or map {title}"
            return [], dict.fromkeys(wanted, why)
        gone = "its data has changed: its message is no longer produced"
        refused = {key: gone for key in wanted if key not in made}
        keys = list(made)
        for key, record in zip(keys, self._session.engine.store.read(keys, self._session.now_ms()), strict=True):
            if self._is_other(record, made[key]):
                del made[key]
                refused[key] = "its payload would differ from the one that was claimed: the data has changed"
        return list(made.values()), refused

    def _is_other(self, record: Record | None, message: Outgoing) -> bool:
        """Whether the guard would refuse the message because its key was claimed with another payload."""
        if record is None or record.fingerprint in ("", message.fingerprint):
            return False
        job = _jobs(self._session).get(message.record.job)
        if job is None:
            return True
        payload = job.rules.payload.decode(message.entry.body)
        return not payload_defaults.is_same(payload, message.fingerprint, record.fingerprint, job.rules.compared)

    def _mapped(self, mapping: MapJob, state: MapState, wanted: set[RecordKey]) -> dict[RecordKey, Outgoing]:
        """Wanted children of a map run, read again from its source."""
        source = source_of(state.source, self._app.runtime().s3_client)
        check_source(source, state, mapping, wholly=True)
        return _collect(lambda: _outgoing(children(mapping, self._run, source, Position())), wanted)

    def _made(self, schedule: Schedule, scheduled_at: str, wanted: set[RecordKey]) -> dict[RecordKey, Outgoing]:
        if not schedule.dispatches:
            message = schedule.outgoing_at(scheduled_at)
            return {message.record: message} if message.record in wanted else {}
        tick = schedule.tick(TickMessage(schedule=schedule.name, scheduled_at=scheduled_at))
        ctx = self._context(RecordKey("", schedule.job.name, self._run))
        arguments = (tick, ctx) if positional(schedule.function) >= 2 else (tick,)
        token = context.current.set(ctx)  # what else it sends was sent by the run already, and is dropped
        try:
            return _collect(lambda: schedule.function(*arguments), wanted)
        except errors.OnefoldError:
            raise
        except Exception as error:  # the user's own code may raise anything
            raise errors.UsageError(
                f"The dispatcher of {schedule.name} failed when it was run again: "
                f"{type(error).__name__}: {summary_of(error)}",
                meaning="The missing messages are not known; nothing was sent.",
                todo="Fix it, and repair again.",
            ) from error
        finally:
            context.current.reset(token)

    def _context(self, key: RecordKey) -> Context:
        """The context for collecting messages: it has the run's key for partners, and nothing is recorded."""
        return Context(
            Hold(key, self._session.actor, 0), attempt=1, attempts_max=1, message=None,
            clock=self._session.clock, entropy=self._session.entropy, deadline_ms=None,
        )  # fmt: skip

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, reason_text: str | None = None) -> RepairPlan:
        """Send what was planned, each message with a row that names the person; returns the plan with the number sent.

        A batch and its rows are one transaction if the engine has them; otherwise the rows come first.

        Args:
            reason_text: why, kept with the rows.

        Raises:
            PayloadError: a queue refuses one of them. StorageBusy: earlier batches were sent, the rest was not.
        """
        sent = 0
        why = {(one.job, one.tenant, one.key): one.why for one in self.plan.resend}
        for first in range(0, len(self._messages), _BATCH):
            batch = [self._again(one) for one in self._messages[first : first + _BATCH]]
            rows = [self._row(one, why[one.record.job, one.record.scope, one.record.key], reason_text) for one in batch]

            def write(batch: list[Outgoing] = batch, rows: list[Row] = rows) -> None:
                self._session.engine.ledger.append(rows)
                self._app.runtime().send(batch)

            self._session.together(write)
            sent += len(batch)
        self.plan = replace(self.plan, sent=sent)
        return self.plan

    def _again(self, one: Outgoing) -> Outgoing:
        """The message as one of the run; on FIFO with a deduplication id that the queue has not seen."""
        again = in_run(one, self._run)
        if one.entry.dedup_id is None:
            return again
        dedup_id = digest(f"{one.entry.dedup_id} {self._session.now_ms()}".encode())
        return replace(again, entry=replace(again.entry, dedup_id=dedup_id))

    def _row(self, one: Outgoing, why: str, reason_text: str | None) -> Row:
        row = self._session.row("resent", key=one.record, queue=one.queue, why=why, reason_text=reason_text)
        return replace(row, run=self._run)


def _jobs(session: AdminSession) -> dict[str, Any]:
    return dict(session.jobs.named) if session.jobs is not None else {}


def _is_lost(item: SurveyedOperation) -> bool:
    """Whether nothing would ever run the operation: it has no message left, and no run of it is under way."""
    return item.state == "missing" or (item.state == "stuck" and item.message_id is None)


def _first(items: Iterable[tuple[RecordKey, SurveyedOperation]]) -> Iterator[tuple[RecordKey, SurveyedOperation]]:
    """At most as many items as one repair sends; the iteration still runs to its end, so that the counts are right."""
    for count, item in enumerate(items):
        if count < MISSING_MAX:
            yield item


def _outgoing(found: Iterator[MapChild]) -> Iterator[Outgoing]:
    return (child.outgoing for child in found if child.outgoing is not None)


def _collect(begin: Callable[[], Any], wanted: set[RecordKey]) -> dict[RecordKey, Outgoing]:
    """The wanted messages of a generator, which is closed as soon as all of them are found."""
    found: dict[RecordKey, Outgoing] = {}

    def take(one: object) -> bool:
        if isinstance(one, Outgoing) and one.record in wanted:
            found.setdefault(one.record, one)
        return len(found) == len(wanted)

    made = begin()
    if inspect.isasyncgen(made):
        import asyncio  # 36 ms to import, paid only by async dispatchers

        asyncio.run(_take_all(made, take))
        return found
    with closing(made):
        for one in made:
            if take(one):
                break
    return found


async def _take_all(made: AsyncIterator[object], take: Callable[[object], bool]) -> None:
    from contextlib import aclosing

    async with aclosing(made):  # type: ignore[type-var]  # an async generator
        async for one in made:
            if take(one):
                break
