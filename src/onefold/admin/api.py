"""`app.admin`: what an operator can do, for programs: the calls that the command line and the page are made of.

One thin class; each method is one function of this package. Many things at once are changed in two calls: one makes a
plan, which changes nothing and can be shown or stored; the other carries the plan out, with a reason.
Never here: rules, drawing. Invariant: whatever changes something writes who did it, and why, to the history.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from onefold.admin import alarms, dead_letters, held, payloads, queues, redrive, runs, settling, status, stuck, why
from onefold.admin.alarms import AlarmsNow
from onefold.admin.dead_letters import DeadLetterView, Detail, FailureGroup, Select
from onefold.admin.held import HeldOperation, SettledOperation
from onefold.admin.payloads import PayloadSurvey
from onefold.admin.queues import QueueView
from onefold.admin.redrive import RedrivePlan, Tally
from onefold.admin.runs import RunDetail, RunPage
from onefold.admin.session import AdminSession, jobs_of
from onefold.admin.settling import HeldSelect, SettledMany, SettlePlan
from onefold.admin.status import Status
from onefold.admin.stuck import StuckRun
from onefold.admin.why import WhyAnswer

if TYPE_CHECKING:
    from onefold.app import App

_EVERY = Select()
_EVERY_HELD = HeldSelect()


class Admin:
    """What an operator can do with an app's engine. Made by `app.admin`; it can be used from any thread.

        for one in app.admin.held(HeldSelect(job="charge", older_ms=3_600_000)):
            print(one.key, one.summary)

    Methods raise the errors of `onefold.errors`: NotFoundError for what does not exist, UsageError and ConflictError
    for what cannot be done, TransientError if the engine cannot be used now.
    """

    def __init__(self, opened: Callable[[], AdminSession]) -> None:
        self._opened = opened

    def acting_as(self, person: str) -> Admin:
        """The same calls, with a person's name in the history instead of the app's.

        Args:
            person: a login or an address, without spaces.
        """
        return Admin(lambda: self._opened().acting_as(f"person:{person}"))

    # -- looking -----------------------------------------------------------------------------------------------------

    def status(self, queue: str | None = None) -> Status:
        """What waits, how fast messages are processed, and what needs a person.

        Args:
            queue: only this one.
        """
        return status.status(self._opened(), queue)

    def queues(self) -> list[QueueView]:
        """All queues of the engine, with what they are for and what they hold."""
        return queues.views(self._opened())

    def why(self, key: str, *, job: str | None = None, tenant: str | None = None) -> WhyAnswer:
        """What happened to an operation, and what decided each step.

        Args:
            key: the business key, or a message id. job, tenant: only operations of that job, that tenant.
        """
        return why.explain(self._opened(), key, job=job, tenant=tenant)

    def runs(
        self, title: str | None = None, *, unfinished: bool = False, limit: int = runs.PAGE, after: str | None = None
    ) -> RunPage:
        """A page of runs of schedules and maps, the latest first.

        Args:
            title: only those of this schedule or map. unfinished: only those that have not ended.
            limit: runs on the page. after: the last name on the previous page.
        """
        return runs.listed(self._opened(), title, unfinished=unfinished, limit=limit, after=after)

    def run(self, name: str) -> RunDetail:
        """One run, and which of its operations are open or have failed.

        Args:
            name: the name of the run, or its beginning if no other run begins like that.
        """
        session = self._opened()
        return runs.show(session, runs.find_run(session, name))

    def stuck(self) -> list[StuckRun]:
        """Runs whose worker died, or that take too long, with what happens next."""
        return stuck.runs(self._opened())

    def alarms(self) -> AlarmsNow:
        """The alarms that are on, wait, or were on a moment ago."""
        return alarms.now(self._opened())

    def check_payloads(self, *, limit: int = payloads.LOOKED_AT) -> PayloadSurvey:
        """Which of the stored messages this release could not run; nothing is written.

        Args:
            limit: how many messages to read at most.
        """
        return payloads.survey(self._opened(), limit=limit)

    # -- dead letters ------------------------------------------------------------------------------------------------

    def failures(self, select: Select = _EVERY, *, by_text: bool = False) -> list[FailureGroup]:
        """Dead letters grouped by how they failed, the most numerous first.

        Args:
            select: which. by_text: also separate them by the texts of their errors, each group with its fingerprint.
        """
        return dead_letters.failures(self._opened(), select, by_text=by_text)

    def dead_letters(self, select: Select = _EVERY, *, limit: int = 100) -> list[DeadLetterView]:
        """Dead letters without their bodies, the oldest of each queue first.

        Args:
            select: which. limit: how many at most.
        """
        session = self._opened()
        return [dead_letters.letter(session, one) for one in islice(dead_letters.find(session, select), limit)]

    def dead_letter(self, message_id: str) -> Detail:
        """One dead letter with its body, its record, its history and what a redrive would do.

        Args:
            message_id: the id, or at least its first four characters.
        """
        session = self._opened()
        return dead_letters.show(session, dead_letters.one_of(session, Select(ids=(message_id,))))

    def plan_redrive(self, select: Select, *, idle: bool = False) -> RedrivePlan:
        """What sending dead letters back would do to each; nothing is changed.

        Args:
            select: which.
            idle: for stopped groups on SQS: confirms that nothing sends to their queue or receives from it.
        """
        return redrive.plan(self._opened(), select, idle=idle)

    def redrive(
        self,
        plan: RedrivePlan,
        *,
        reason: str,
        per_second: int = redrive.PER_SECOND_DEFAULT,
        watch: bool = False,
        stop_after: int = redrive.STOP_AFTER_DEFAULT,
        idle: bool = False,
    ) -> Tally:
        """Send back what a plan names. If anything about it has changed since, nothing is sent.

        Args:
            reason: why, for the history.
            per_second: the highest speed, 1 to 500; it is reached gradually.
            watch: wait for their outcome, which needs running workers, and stop after `stop_after` failures (0: never).
            idle: as for the plan.

        Raises:
            ConflictError: sending would not do any more what the plan says.
        """
        return redrive.carry_out(
            self._opened(),
            plan,
            reason_text=reason,
            per_second=per_second,
            watch=watch,
            stop_after=stop_after,
            idle=idle,
        )

    def delete(self, select: Select, *, reason: str) -> int:
        """Delete dead letters for good; returns how many.

        Args:
            select: which; at least one condition. reason: why, for the history.

        Raises:
            UsageError: the selection is empty.
        """
        session = self._opened()
        dead_letters.check_named(select)
        return dead_letters.remove(session, list(dead_letters.find(session, select)), reason_text=reason)

    # -- held operations ---------------------------------------------------------------------------------------------

    def held(self, select: HeldSelect = _EVERY_HELD) -> list[HeldOperation]:
        """Operations whose outcome is unknown and that wait for a person, longest first; at most 1,000 are read.

        Args:
            select: which.
        """
        return settling.selected(self._opened(), select)

    def settle(
        self,
        key: str,
        *,
        done: bool,
        reason: str,
        result: str | None = None,
        job: str | None = None,
        tenant: str | None = None,
        hold: str | None = None,
        idle: bool = False,
    ) -> SettledOperation:
        """Settle one held operation.

        Args:
            key, job, tenant: which; job and tenant if several operations have the key.
            done: whether its effect happened. If not, it runs again.
            reason: why, for the history.
            result: JSON that answers duplicates from now on; only with done.
            hold: the `HeldOperation.hold` that was judged; if it is no longer held under it, nothing is changed.
            idle: for a group that it stopped on SQS: confirms that nothing sends to its queue or receives from it.

        Raises:
            ConflictError: it was settled before, or ran again.
        """
        return held.settle(
            self._opened(),
            key,
            done=done,
            result=result,
            job=job,
            tenant=tenant,
            hold=hold,
            reason_text=reason,
            idle=idle,
        )

    def plan_settle(self, select: HeldSelect, *, done: bool, result: str | None = None) -> SettlePlan:
        """What settling many would do; nothing is changed. Arguments as `settle`.

        Args:
            select: which.
        """
        return settling.plan(self._opened(), select, done=done, result=result)

    def settle_all(self, plan: SettlePlan, *, reason: str, idle: bool = False) -> SettledMany:
        """Settle what a plan names. What has run again or was settled since is left alone and reported.

        Args:
            reason: why, for the history of each. idle: as `settle`.
        """
        return settling.carry_out(self._opened(), plan, reason_text=reason, idle=idle)


def admin_of(app: App) -> Admin:
    """The calls for an app, which act in its name; its engine is opened when one is used."""
    return Admin(lambda: AdminSession(app.runtime(), actor=f"program:{app.name}", jobs=jobs_of(app)))
