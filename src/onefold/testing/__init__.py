"""For tests: jobs run `inline`, a local SQS (`sqs`, with the extra `serve`), clocks and seeded ids, contract suites."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy
from onefold.entropy import SeededEntropy
from onefold.manual_clock import ManualClock
from onefold.testing.inline import World, inline

if TYPE_CHECKING:
    from onefold.testing.endpoint import Endpoint, sqs

__all__ = ["Endpoint", "ManualClock", "SeededEntropy", "World", "inline", "sqs"]

# Loaded when they are first used, so that tests of jobs do not need the extra `serve`.
__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__, {"Endpoint": "onefold.testing.endpoint", "sqs": "onefold.testing.endpoint"}
)
