"""SAM's shorthands on plain data: what Globals add to every function, and names of what SAM makes of events.

Never here: evaluating functions; Globals are merged as they are written, as SAM does before CloudFormation sees them.
Source: SAM developer guide, Globals section: single values are replaced, mappings merged, lists joined, Globals first.
"""

from __future__ import annotations

from typing import Any

from onefold.check.intrinsics import is_function
from onefold.check.scope import Scope


def with_globals(scope: Scope, raw: Any) -> Any:
    """A function's properties on top of Globals.Function."""
    shared = scope.section("Globals").get("Function")
    return _merged(shared, raw if raw is not None else {}) if isinstance(shared, dict) else raw


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    if isinstance(below, dict) and isinstance(above, dict) and not (is_function(below) or is_function(above)):
        return below | {key: _merged(below[key], item) if key in below else item for key, item in above.items()}
    return above
