"""Map runs: a job for each item of a file or listing, run to its end or until too many items have failed.

Imports `runner` and below. `maps/rules.py` decides what is tried again, tolerated or caught; `maps/results.py` writes
the results. The names here are loaded when they are first used, so that a Lambda function without a map loads no
readers or rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onefold import lazy

if TYPE_CHECKING:
    from onefold.maps.jobs import MapJob
    from onefold.maps.jobs import Options as Options
    from onefold.maps.jobs import declare as declare
    from onefold.maps.lambda_children import StepFunctionsChildren as StepFunctionsChildren
    from onefold.maps.lambda_children import child_of as child_of
    from onefold.maps.mapper import Turns as Turns
    from onefold.maps.rules import ItemBatch, ItemReader
    from onefold.options import ItemCatch, ItemRetry

__all__ = ["ItemBatch", "ItemCatch", "ItemReader", "ItemRetry", "MapJob"]

__getattr__: Callable[[str], Any] = lazy.attributes(
    __name__,
    {
        "MapJob": "onefold.maps.jobs",
        "Options": "onefold.maps.jobs",
        "declare": "onefold.maps.jobs",
        "StepFunctionsChildren": "onefold.maps.lambda_children",
        "child_of": "onefold.maps.lambda_children",
        "ItemBatch": "onefold.maps.rules",
        "ItemReader": "onefold.maps.rules",
        "ItemCatch": "onefold.options",
        "ItemRetry": "onefold.options",
        "Turns": "onefold.maps.mapper",
    },
)
