"""The table of rules: their ids, what each is about in a few words, and the functions that look for it.

A new rule is a function beside similar ones, a line here, a page in `pages/`, and one right and two wrong templates in
`tests/check/corpus`; tests find whatever was left out. Ids are never used again.
Never here: comparisons. Invariant: every id has a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from onefold.check import (
    blind_rules,
    clog_rules,
    code_clog_rules,
    code_duplicate_rules,
    code_loss_rules,
    delivery_rules,
    duplicate_rules,
    loss_rules,
)
from onefold.check.code_facts import Code
from onefold.check.findings import Finding
from onefold.check.joined import Joined
from onefold.check.model import Model
from onefold.errors import UsageError

HARMS: Final = {
    "DUP": "work is done twice", "LOS": "messages are lost", "CLG": "work stops", "BLD": "nobody is notified",
    "SUP": "a suppression does nothing",
}  # fmt: skip


class CheckRule(Struct, frozen=True):
    """One rule. `title` completes "a template or handler with ...".

    `find` looks at a template, `joined` at a template with the code of its handlers, `in_code` at Python files. `preview`:
    what `find` reports may still be wrong, so it runs only on request; other findings say this themselves.
    """

    id: str
    title: str
    find: Callable[[Model], Iterator[Finding]] | None = None
    joined: Callable[[Joined], Iterator[Finding]] | None = None
    in_code: Callable[[Code], Iterator[Finding]] | None = None
    preview: bool = False

    @property
    def is_preview(self) -> bool:
        """Whether it runs only on request."""
        return self.preview and self.joined is None and self.in_code is None

    @property
    def page(self) -> str:
        """Its page, Markdown: what it does, why it hurts, what to write instead."""
        return files("onefold.check").joinpath("pages", f"{self.id}.md").read_text(encoding="utf-8")


RULES: Final = (
    CheckRule("DUP001", "visibility timeout below the function's timeout", duplicate_rules.visibility_below_timeout),
    CheckRule(
        "DUP002", "visibility timeout below six function timeouts", duplicate_rules.visibility_below_six_timeouts
    ),
    CheckRule("DUP003", "whole batch comes back on a time-out", duplicate_rules.batch_returns_on_timeout),
    CheckRule("DUP004", "no partial answer for a batch", joined=code_duplicate_rules.no_partial_answer),
    CheckRule("DUP005", "failed messages requested but never reported", joined=code_duplicate_rules.never_answers),
    CheckRule("DUP006", "failed messages reported but ignored", joined=code_duplicate_rules.nobody_reads_answer),
    CheckRule(
        "DUP007", "idempotency key that changes with each delivery", in_code=code_duplicate_rules.key_of_a_delivery
    ),
    CheckRule(
        "DUP008", "idempotency record that expires before its message", joined=code_duplicate_rules.records_expire_early
    ),
    CheckRule("DUP009", "claim that is never released", in_code=code_duplicate_rules.claim_is_never_released),
    CheckRule(
        "DUP010", "idempotency record that stays in progress", in_code=code_duplicate_rules.idempotency_without_context
    ),
    CheckRule("DUP011", "two functions on one queue", duplicate_rules.two_consumers),
    CheckRule(
        "DUP012",
        "record table claimed in two regions, or lock that only a TTL releases",
        duplicate_rules.claimed_in_two_regions,
        in_code=code_duplicate_rules.lock_ends_by_ttl,
        preview=True,
    ),
    CheckRule(
        "DUP013",
        "deduplication id that changes",
        joined=code_duplicate_rules.content_that_changes,
        in_code=code_duplicate_rules.random_deduplication,
    ),
    CheckRule("DUP014", "execution without a name", in_code=code_duplicate_rules.executions_without_name),
    CheckRule("DUP015", "ticks that all look alike", delivery_rules.ticks_without_a_key, preview=True),
    CheckRule("DUP016", "idempotency around a durable execution", in_code=code_duplicate_rules.durable_and_idempotent),
    CheckRule("DUP017", "rule and subscriber with one target", delivery_rules.both_generations, preview=True),
    CheckRule(
        "DUP018",
        "SDK that times out and calls again",
        joined=code_duplicate_rules.slow_invocations,
        in_code=code_duplicate_rules.impatient_sends,
    ),
    CheckRule("LOS001", "no dead-letter queue", loss_rules.no_dead_letter_queue),
    CheckRule("LOS002", "dead letters expire early", loss_rules.dead_letters_expire_early),
    CheckRule("LOS003", "given up after few receives", loss_rules.few_receives),
    CheckRule("LOS004", "expires before the dead-letter queue", loss_rules.expires_before_dead_letter_queue),
    CheckRule("LOS005", "dead-letter queue of another kind", loss_rules.unlike_dead_letter_queue),
    CheckRule("LOS006", "dead-letter queue that refuses its source", loss_rules.source_not_allowed),
    CheckRule(
        "LOS007", "schedule or rule without a dead-letter queue", delivery_rules.no_dead_letter_queue_of_a_target
    ),
    CheckRule("LOS008", "queue that refuses what sends to it", delivery_rules.refused_by_the_queue),
    CheckRule("LOS009", "filters beside another mapping", loss_rules.filters_beside_another),
    CheckRule("LOS010", "reserved concurrency below what queues use", loss_rules.reserved_below_concurrency),
    CheckRule("LOS011", "failure destination of a queue's mapping", loss_rules.destination_of_a_queue),
    CheckRule("LOS012", "durable function that outlasts its mapping", loss_rules.durable_longer_than_a_mapping_waits),
    CheckRule("LOS013", "subscriber without a destination for failures", delivery_rules.no_destination_of_a_subscriber),
    CheckRule(
        "LOS014",
        "subscriber with the short default retries",
        delivery_rules.short_retries_of_a_subscriber,
        preview=True,
    ),
    CheckRule(
        "LOS015",
        "queue that takes less than is sent",
        delivery_rules.body_over_the_queue_limit,
        joined=code_loss_rules.body_over_queue_limit,
        in_code=code_loss_rules.body_over_limit,
        preview=True,
    ),
    CheckRule("LOS016", "message deleted without being processed", in_code=code_loss_rules.lost_on_failure),
    CheckRule("LOS017", "failed items of a map that nobody lists", loss_rules.tolerated_items_without_a_manifest),
    CheckRule(
        "CLG001",
        "batch, window or group that a FIFO queue cannot use",
        clog_rules.batch_of_fifo_queue,
        in_code=code_clog_rules.one_group_for_all,
    ),
    CheckRule("CLG002", "message that holds its group for long", clog_rules.group_held_up),
    CheckRule("CLG003", "visibility timeout over 12 hours", clog_rules.visibility_over_the_limit),
    CheckRule(
        "CLG004",
        "crash that waits for a long timeout",
        clog_rules.crash_waits_for_visibility,
        in_code=code_clog_rules.long_and_silent,
        preview=True,
    ),
    CheckRule("CLG005", "more in flight than SQS gives out", clog_rules.in_flight_over_the_limit),
    CheckRule("CLG006", "backlog that grows for ever", clog_rules.backlog_grows),
    CheckRule("CLG007", "maximum concurrency and provisioned pollers", clog_rules.concurrency_and_pollers),
    CheckRule(
        "CLG008",
        "function that sends to its own queue",
        clog_rules.sends_to_its_own_queue,
        joined=code_clog_rules.sends_to_own_queue,
        preview=True,
    ),
    CheckRule("CLG009", "delay longer than SQS or the broker allows", in_code=code_clog_rules.delay_over_the_limit),
    CheckRule("CLG010", "durable wait behind a mapping", in_code=code_clog_rules.durable_waits_behind_mapping),
    CheckRule("CLG011", "ordered subscriber that stops its group", delivery_rules.subscriber_stops_its_group),
    CheckRule("CLG012", "large batch without a window", clog_rules.batch_without_window),
    CheckRule("BLD001", "dead letters without an alarm", blind_rules.no_alarm_on_dead_letters),
    CheckRule("BLD002", "alarm that never fires", blind_rules.alarm_that_never_fires),
    CheckRule("BLD003", "alarm that misreads a queue's metrics", blind_rules.missing_data_and_wrong_sums),
    CheckRule("BLD004", "alarm without an action", blind_rules.alarm_without_action),
    CheckRule("BLD005", "schedules in the default group", blind_rules.schedules_share_a_group, preview=True),
    CheckRule("BLD006", "tenant isolation behind a mapping", blind_rules.tenant_behind_a_mapping),
    CheckRule("SUP001", "suppression without a reason, or past its date"),  # suppressions.py looks for these two
    CheckRule("SUP002", "suppression that suppresses nothing any more (--report-unused)"),
)


def chosen(
    select: Iterable[str], ignore: Iterable[str], *, extend: Iterable[str] = (), preview: bool = False
) -> list[CheckRule]:  # fmt: skip
    """The rules whose id begins with one of `select` (none given: all) and with none of `ignore`.

    Args:
        extend: these too. preview: include rules in preview; otherwise only those whose whole id is selected.

    Raises:
        UsageError: a prefix that begins no id.
    """
    select, ignore, extend = tuple(select), tuple(ignore), tuple(extend)
    for prefix in (*select, *ignore, *extend):
        if not any(one.id.startswith(prefix) for one in RULES):
            raise UsageError(f"No rule's id begins with {prefix!r:.40}.", todo="List them: onefold check --list-rules")
    found = [
        one
        for one in RULES
        if (not select or one.id.startswith((*select, *extend))) and not (ignore and one.id.startswith(ignore))
    ]
    return [
        one if preview or not one.preview or one.id in (*select, *extend) else replace(one, find=None) for one in found
    ]


def rule_named(rule_id: str) -> CheckRule:
    """One rule.

    Raises:
        UsageError: there is none with this id.
    """
    for one in RULES:
        if one.id == rule_id.upper():
            return one
    raise UsageError(f"There is no rule {rule_id!r:.40}.", todo="List them: onefold check --list-rules")
