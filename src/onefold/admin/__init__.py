"""What an operator can do, in plain values. What `app.admin` is made of is public; everything else may change.

The names here are loaded when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.admin.api import Admin
    from onefold.admin.dead_letters import DeadLetterView, Detail, FailureGroup, Select
    from onefold.admin.held import HeldOperation, SettledOperation
    from onefold.admin.payloads import PayloadSurvey, UnfitMessage
    from onefold.admin.redrive import Foreseen, RedrivePlan, Tally
    from onefold.admin.settling import HeldSelect, NotSettled, SettledMany, SettlePlan

__all__ = [
    "Admin",
    "DeadLetterView",
    "Detail",
    "FailureGroup",
    "Foreseen",
    "HeldOperation",
    "HeldSelect",
    "NotSettled",
    "PayloadSurvey",
    "RedrivePlan",
    "Select",
    "SettlePlan",
    "SettledMany",
    "SettledOperation",
    "Tally",
    "UnfitMessage",
]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "Admin": "onefold.admin.api",
        "DeadLetterView": "onefold.admin.dead_letters",
        "Detail": "onefold.admin.dead_letters",
        "FailureGroup": "onefold.admin.dead_letters",
        "Foreseen": "onefold.admin.redrive",
        "HeldOperation": "onefold.admin.held",
        "HeldSelect": "onefold.admin.settling",
        "NotSettled": "onefold.admin.settling",
        "PayloadSurvey": "onefold.admin.payloads",
        "RedrivePlan": "onefold.admin.redrive",
        "Select": "onefold.admin.dead_letters",
        "SettlePlan": "onefold.admin.settling",
        "SettledMany": "onefold.admin.settling",
        "SettledOperation": "onefold.admin.held",
        "Tally": "onefold.admin.redrive",
        "UnfitMessage": "onefold.admin.payloads",
    },
)
