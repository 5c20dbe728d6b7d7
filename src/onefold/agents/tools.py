"""The tools of `onefold mcp`: what an agent can ask, and the two changes it can make, each with a plan and a reason.

Each tool is a method; its docstring is what the agent reads. Planning changes nothing and is always offered. `redrive`
and `settle` are offered only if the server was started with `--allow-changes`; they take the digest of a plan that this
server made, and refuse if the plan no longer describes what would happen.
Never here: the protocol (`server.py`), rules (`admin/`). Invariant: nothing is changed without a digest and a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from onefold import errors
from onefold.admin.api import Admin
from onefold.admin.dead_letters import Select
from onefold.admin.redrive import RedrivePlan
from onefold.admin.settling import HeldSelect, SettlePlan
from onefold.agents.answers import ITEMS_MAX, Answers

LOOKS: Final = (
    "status", "why", "dead_letter_groups", "dead_letters", "dead_letter", "held", "runs", "run", "stuck", "alarms", "queues",
    "check_payloads", "plan_redrive", "plan_settle",
)  # fmt: skip
CHANGES: Final = ("redrive", "settle")
_PLANS_MAX: Final = 50  # plans that the server remembers

_MINUTES_MAX: Final = 10 * 366 * 24 * 60

Minutes = float | None


def _ms(minutes: Minutes) -> int | None:
    if minutes is None:
        return None
    if not 0 <= minutes <= _MINUTES_MAX:  # nor NaN
        raise errors.UsageError(
            f"older_minutes is {minutes}.", todo=f"Give a number of minutes from 0 to {_MINUTES_MAX:,}."
        )
    return int(minutes * 60_000)


class Tools:
    """The tools for one app.

    Args:
        admin: acts in the name of the person who started the server. answers: bounds answers and hides payloads.
    """

    def __init__(self, admin: Admin, answers: Answers) -> None:
        self._admin = admin
        self._answers = answers
        self._plans: dict[str, RedrivePlan | SettlePlan] = {}

    def named(self, names: tuple[str, ...]) -> list[Callable[..., dict[str, Any]]]:
        """The tools with these names."""
        return [getattr(self, name) for name in names]

    def status(self) -> dict[str, Any]:
        """What waits in each queue, how fast it is processed, and the warnings that need a person. Ask this first."""
        return self._answers.of(self._admin.status())

    def why(self, key: str, job: str | None = None, tenant: str | None = None) -> dict[str, Any]:
        """What happened to one operation, and which rule decided each step. `key`: its business key or message id."""
        return self._answers.of(self._admin.why(key, job=job, tenant=tenant))

    def dead_letter_groups(self, by_text: bool = False) -> dict[str, Any]:
        """Dead letters grouped by how they failed, with counts and when the first expires. `by_text`: with fingerprints."""
        return self._answers.of(self._admin.failures(by_text=by_text)[:ITEMS_MAX])

    def dead_letters(
        self,
        job: str | None = None,
        queue: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        run: str | None = None,
        fingerprint: str | None = None,
        older_minutes: Minutes = None,
        limit: int = 50,
    ) -> dict[str, Any]:
        """Single dead letters without their bodies. error, key, tenant and run may have * and ?. At most 200."""
        select = Select(
            job=job, queue=queue, reason=reason, error=error, key=key, tenant=tenant, run=run, fingerprint=fingerprint,
            older_ms=_ms(older_minutes),
        )  # fmt: skip
        return self._answers.of(self._admin.dead_letters(select, limit=max(1, min(limit, ITEMS_MAX))))

    def dead_letter(self, message_id: str) -> dict[str, Any]:
        """One dead letter: its record, its history, and what a redrive would do. Its payload is hidden unless allowed."""
        return self._answers.of(self._admin.dead_letter(message_id))

    def held(
        self,
        job: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        run: str | None = None,
        error: str | None = None,
        fingerprint: str | None = None,
        older_minutes: Minutes = None,
    ) -> dict[str, Any]:
        """Operations whose outcome is unknown: a person must find out whether their effect happened."""
        return self._answers.of(self._admin.held(_held(job, key, tenant, run, error, fingerprint, older_minutes)))

    def runs(self, title: str | None = None, unfinished: bool = False) -> dict[str, Any]:
        """Runs of schedules and maps, latest first, with how many of their operations are done, failed or missing."""
        return self._answers.of(self._admin.runs(title, unfinished=unfinished))

    def run(self, name: str) -> dict[str, Any]:
        """One run, and which of its operations are open or failed."""
        return self._answers.of(self._admin.run(name))

    def stuck(self) -> dict[str, Any]:
        """Runs whose worker died, or that take too long, and what happens to each next."""
        return self._answers.of(self._admin.stuck())

    def alarms(self) -> dict[str, Any]:
        """Alarms that are on or pending, with what each means and the first command to type."""
        return self._answers.of(self._admin.alarms())

    def queues(self) -> dict[str, Any]:
        """All queues with their settings, what they are for, and how many messages they hold."""
        return self._answers.of(self._admin.queues())

    def check_payloads(self, limit: int = 10_000) -> dict[str, Any]:
        """Messages that this release of the app could not run: no such job, or a field does not fit. No values."""
        return self._answers.of(self._admin.check_payloads(limit=max(1, min(limit, 100_000))))

    # -- plans -------------------------------------------------------------------------------------------------------

    def plan_redrive(
        self,
        message_ids: list[str] | None = None,
        job: str | None = None,
        queue: str | None = None,
        reason: str | None = None,
        error: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        run: str | None = None,
        fingerprint: str | None = None,
        older_minutes: Minutes = None,
    ) -> dict[str, Any]:
        """What sending dead letters back would do: each runs, is answered from its record, comes back... Changes nothing.

        Give message ids, or at least one condition. Show the person the counts; `redrive` takes the digest.
        """
        select = Select(
            ids=tuple(message_ids or ()), job=job, queue=queue, reason=reason, error=error, key=key, tenant=tenant, run=run,
            fingerprint=fingerprint, older_ms=_ms(older_minutes),
        )  # fmt: skip
        if select.is_empty():
            raise errors.UsageError("No condition says which dead letters are meant.", todo="Give ids or a condition.")
        plan = self._admin.plan_redrive(select)
        self._remember(plan)
        return self._answers.of(plan)

    def plan_settle(
        self,
        done: bool,
        result: str | None = None,
        job: str | None = None,
        key: str | None = None,
        tenant: str | None = None,
        run: str | None = None,
        error: str | None = None,
        fingerprint: str | None = None,
        older_minutes: Minutes = None,
    ) -> dict[str, Any]:
        """What settling held operations would do. Changes nothing. Give at least one condition.

        done: true if a person found that the effects happened; false if they did not, and the operations run again.
        Never guess which: ask the person who can check the other system. result: JSON that answers duplicates, only
        with done.
        """
        select = _held(job, key, tenant, run, error, fingerprint, older_minutes)
        if select.is_empty():
            raise errors.UsageError(
                "No condition says which operations are meant.", todo="Give a job, a key or another."
            )
        plan = self._admin.plan_settle(select, done=done, result=result)
        self._remember(plan)
        return self._answers.of(plan)

    def _remember(self, plan: RedrivePlan | SettlePlan) -> None:
        self._plans.pop(plan.digest, None)
        self._plans[plan.digest] = plan
        while len(self._plans) > _PLANS_MAX:
            del self._plans[next(iter(self._plans))]

    # -- changes -----------------------------------------------------------------------------------------------------

    def redrive(self, digest: str, reason: str) -> dict[str, Any]:
        """Send back the dead letters of a plan. Only after a person has seen the plan and agreed.

        Refused if anything in the plan has changed since. reason: why, in the person's words; kept in the history.
        """
        plan = self._planned(digest, "redrive")
        assert isinstance(plan, RedrivePlan)
        return self._answers.of(self._admin.redrive(plan, reason=reason))

    def settle(self, digest: str, reason: str) -> dict[str, Any]:
        """Settle the held operations of a plan. Only after a person has said whether their effects happened.

        Operations that ran or were settled since are left alone. reason: how the person knows; kept in the history.
        """
        plan = self._planned(digest, "settle")
        assert isinstance(plan, SettlePlan)
        return self._answers.of(self._admin.settle_all(plan, reason=reason))

    def _planned(self, digest: str, kind: Literal["redrive", "settle"]) -> RedrivePlan | SettlePlan:
        plan = self._plans.get(digest)
        if plan is None or isinstance(plan, RedrivePlan) != (kind == "redrive"):
            raise errors.NotFoundError(
                f"This server has made no plan {digest!r:.40} to {kind}.",
                meaning="Nothing was changed.",
                todo=f"Call plan_{kind}, show it to the person, and give the digest that it returns.",
            )
        return plan


def _held(
    job: str | None,
    key: str | None,
    tenant: str | None,
    run: str | None,
    error: str | None,
    fingerprint: str | None,
    older_minutes: Minutes,
) -> HeldSelect:
    return HeldSelect(
        job=job, key=key, tenant=tenant, run=run, error=error, fingerprint=fingerprint, older_ms=_ms(older_minutes)
    )
