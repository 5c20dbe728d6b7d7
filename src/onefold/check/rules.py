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

from onefold.check import clog_rules, duplicate_rules, loss_rules
from onefold.check.findings import Finding
from onefold.check.model import Model
from onefold.errors import UsageError

HARMS: Final = {"DUP": "work is done twice", "LOS": "messages are lost", "CLG": "work stops"}


class Rule(Struct, frozen=True):
    """One rule. `title` completes "a template in which ..."."""

    id: str
    title: str
    find: Callable[[Model], Iterator[Finding]]

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
    Rule("LOS001", "no dead-letter queue", loss_rules.no_dead_letter_queue),
    Rule("LOS002", "dead letters expire early", loss_rules.dead_letters_expire_early),
    Rule("LOS003", "given up after few receives", loss_rules.few_receives),
    Rule("LOS004", "expires before the dead-letter queue", loss_rules.expires_before_dead_letter_queue),
    Rule("LOS005", "dead-letter queue of another kind", loss_rules.unlike_dead_letter_queue),
    Rule("LOS006", "dead-letter queue that refuses its source", loss_rules.source_not_allowed),
    Rule("LOS009", "filters beside another mapping", loss_rules.filters_beside_another),
    Rule("LOS010", "reserved concurrency below what queues use", loss_rules.reserved_below_concurrency),
    Rule("LOS011", "failure destination of a queue's mapping", loss_rules.destination_of_a_queue),
    Rule("CLG001", "batch or window that a FIFO queue has not", clog_rules.batch_of_fifo_queue),
    Rule("CLG003", "visibility timeout over 12 hours", clog_rules.visibility_over_the_limit),
    Rule("CLG005", "more in flight than SQS gives out", clog_rules.in_flight_over_the_limit),
    Rule("CLG007", "maximum concurrency and provisioned pollers", clog_rules.concurrency_and_pollers),
    Rule("CLG012", "large batch without a window", clog_rules.batch_without_window),
)


def chosen(select: Iterable[str], ignore: Iterable[str]) -> list[Rule]:
    """The rules whose id begins with one of `select` (none given: all) and with none of `ignore`.

    Raises:
        UsageError: a prefix that begins no id.
    """
    select, ignore = tuple(select), tuple(ignore)
    for prefix in (*select, *ignore):
        if not any(one.id.startswith(prefix) for one in RULES):
            raise UsageError(f"No rule's id begins with {prefix!r:.40}.", todo="List them: onefold check --list-rules")
    return [
        one for one in RULES if (not select or one.id.startswith(select)) and not (ignore and one.id.startswith(ignore))
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
