"""What an app on AWS has besides its jobs: the Lambda function that runs them, and its handler.

The engine's URL (`aws://...`) names the queues, the table and the rest; the output of `onefold synth` creates them.
Both public names are loaded when they are first used. Never here: any code but that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.aws.lambda_function import LambdaHandler
    from onefold.options import Function

__all__ = ["Function", "LambdaHandler"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__, {"Function": "onefold.options", "LambdaHandler": "onefold.aws.lambda_function"}
)
