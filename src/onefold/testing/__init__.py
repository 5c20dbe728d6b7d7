"""For tests: jobs run `inline`, a local SQS (`sqs`, with the extra `serve`), and the contract suites of backends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onefold.testing.inline import World, inline

if TYPE_CHECKING:
    from onefold.testing.endpoint import Endpoint, sqs

__all__ = ["Endpoint", "World", "inline", "sqs"]


def __getattr__(name: str) -> Any:
    if name not in ("Endpoint", "sqs"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from onefold.testing import endpoint  # here, so that tests of jobs do not need the extra `serve`

    return getattr(endpoint, name)
