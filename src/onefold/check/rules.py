"""The table of rules: id, what each is about in a few words, and the function that looks.

A new rule is a function beside its like, a line here, a page in `pages/`, and one right and two wrong templates in
`tests/check/corpus`; tests find whatever was left out. Ids are never used again.
Never here: comparisons. Invariant: every id has a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from typing import Final

from msgspec import Struct

from onefold.check import blind_rules, clog_rules, delivery_rules, duplicate_rules, loss_rules
from onefold.check.findings import Finding
from onefold.check.model import Model
from onefold.errors import UsageError

HARMS: Final = {
    "DUP": "work is done twice", "LOS": "messages are lost", "CLG": "work stops", "BLD": "nobody is told",
}  # fmt: skip


class Rule(Struct, frozen=True):
    """One rule. `title` completes "a template with ...". `preview`: it may still be wrong; it looks only when asked to."""

    id: str
    title: str
    find: Callable[[Model], Iterator[Finding]]
    preview: bool = False

    @property
    def page(self) -> str:
        """Its page, Markdown: what it does, why it hurts, what to write instead."""
        return files("onefold.check").joinpath("pages", f"{self.id}.md").read_text(encoding="utf-8")


RULES: Final = (
    Rule("DUP001", "visibility timeout below the function's timeout", duplicate_rules.visibility_below_timeout),
    Rule("DUP002", "visibility timeout below six function timeouts", duplicate_rules.visibility_below_six_timeouts),
    Rule("DUP003", "whole batch comes back on a time-out", duplicate_rules.batch_returns_on_timeout),
    Rule("DUP004", "no partial answer for a batch", duplicate_rules.no_partial_answer),
    Rule("DUP011", "two functions on one queue", duplicate_rules.two_consumers),
    Rule("DUP012", "record table claimed in two regions", duplicate_rules.claimed_in_two_regions, preview=True),
    Rule("DUP015", "ticks that all look alike", delivery_rules.ticks_without_a_key, preview=True),
    Rule("DUP017", "rule and subscriber with one target", delivery_rules.both_generations, preview=True),
    Rule("LOS001", "no dead-letter queue", loss_rules.no_dead_letter_queue),
    Rule("LOS002", "dead letters expire early", loss_rules.dead_letters_expire_early),
    Rule("LOS003", "given up after few receives", loss_rules.few_receives),
    Rule("LOS004", "expires before the dead-letter queue", loss_rules.expires_before_dead_letter_queue),
    Rule("LOS005", "dead-letter queue of another kind", loss_rules.unlike_dead_letter_queue),
    Rule("LOS006", "dead-letter queue that refuses its source", loss_rules.source_not_allowed),
    Rule("LOS007", "schedule or rule without a dead-letter queue", delivery_rules.no_dead_letter_queue_of_a_target),
    Rule("LOS008", "queue that refuses what sends to it", delivery_rules.refused_by_the_queue),
    Rule("LOS009", "filters beside another mapping", loss_rules.filters_beside_another),
    Rule("LOS010", "reserved concurrency below what queues use", loss_rules.reserved_below_concurrency),
    Rule("LOS011", "failure destination of a queue's mapping", loss_rules.destination_of_a_queue),
    Rule("LOS012", "durable function that outlasts its mapping", loss_rules.durable_longer_than_a_mapping_waits),
    Rule("LOS013", "subscriber without a destination for failures", delivery_rules.no_destination_of_a_subscriber),
    Rule(
        "LOS014",
        "subscriber with the short default retries",
        delivery_rules.short_retries_of_a_subscriber,
        preview=True,
    ),
    Rule("LOS015", "queue that takes less than is sent", delivery_rules.body_over_the_queue_limit, preview=True),
    Rule("LOS017", "failed items of a map that nobody lists", loss_rules.tolerated_items_without_a_manifest),
    Rule("CLG001", "batch, window or group that a FIFO queue cannot use", clog_rules.batch_of_fifo_queue),
    Rule("CLG002", "message that holds its group for long", clog_rules.group_held_up),
    Rule("CLG003", "visibility timeout over 12 hours", clog_rules.visibility_over_the_limit),
    Rule("CLG004", "crash that waits for a long timeout", clog_rules.crash_waits_for_visibility, preview=True),
    Rule("CLG005", "more in flight than SQS gives out", clog_rules.in_flight_over_the_limit),
    Rule("CLG006", "backlog that grows for ever", clog_rules.backlog_grows),
    Rule("CLG007", "maximum concurrency and provisioned pollers", clog_rules.concurrency_and_pollers),
    Rule("CLG008", "function that sends to its own queue", clog_rules.sends_to_its_own_queue, preview=True),
    Rule("CLG011", "ordered subscriber that stops its group", delivery_rules.subscriber_stops_its_group),
    Rule("CLG012", "large batch without a window", clog_rules.batch_without_window),
    Rule("BLD001", "dead letters without an alarm", blind_rules.no_alarm_on_dead_letters),
    Rule("BLD002", "alarm that never fires", blind_rules.alarm_that_never_fires),
    Rule("BLD003", "alarm that misreads a queue's metrics", blind_rules.missing_data_and_wrong_sums),
    Rule("BLD004", "alarm without an action", blind_rules.alarm_without_action),
    Rule("BLD005", "schedules in the default group", blind_rules.schedules_share_a_group, preview=True),
    Rule("BLD006", "tenant isolation behind a mapping", blind_rules.tenant_behind_a_mapping),
)


def chosen(select: Iterable[str], ignore: Iterable[str], *, preview: bool = False) -> list[Rule]:
    """The rules whose id begins with one of `select` (none given: all) and with none of `ignore`.

    Args:
        preview: with those that may still be wrong; without it only those whose whole id is selected.

    Raises:
        UsageError: a prefix that begins no id.
    """
    select, ignore = tuple(select), tuple(ignore)
    for prefix in (*select, *ignore):
        if not any(one.id.startswith(prefix) for one in RULES):
            raise UsageError(f"No rule's id begins with {prefix!r:.40}.", todo="List them: onefold check --list-rules")
    return [
        one
        for one in RULES
        if (not select or one.id.startswith(select))
        and not (ignore and one.id.startswith(ignore))
        and (preview or not one.preview or one.id in select)
    ]


def rule_named(rule_id: str) -> Rule:
    """One rule.

    Raises:
        UsageError: there is none with this id.
    """
    for one in RULES:
        if one.id == rule_id.upper():
            return one
    raise UsageError(f"There is no rule {rule_id!r:.40}.", todo="List them: onefold check --list-rules")
