"""Moving the records of a DynamoDB table to layout 2. How it works is in `backends/aws/dynamodb/migrating.py`.

Never here: questions to people. Invariant: nothing is written but by `migrate`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onefold.backends import registry
from onefold.clock import SystemClock
from onefold.entropy import SystemEntropy


def survey(url: str, tell: Callable[[str], None]) -> Any:
    """What would be moved, as `migrating.Found`.

    Args:
        url: `dynamodb://REGION/TABLE` or `aws://REGION?table=...`.
        tell: gets a line of text now and then.

    Raises:
        UsageError: the URL names no table, or no permission. NotFoundError: there is none. TransientError: unreachable.
    """
    table, migrating = registry.migrating(url, clock=SystemClock(), entropy=SystemEntropy())
    return migrating.survey(table, tell)


def migrate(url: str, tell: Callable[[str], None]) -> Any:
    """Move them; arguments and errors as `survey`, and UsageError while a run holds a lease."""
    table, migrating = registry.migrating(url, clock=SystemClock(), entropy=SystemEntropy())
    return migrating.migrate(table, tell)
