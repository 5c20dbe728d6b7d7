"""SAM's shorthands on plain data: what Globals add to every function, and names of what SAM makes of events.

Never here: evaluating functions; Globals are merged as they are written, as SAM does before CloudFormation sees them.
Source: SAM developer guide, Globals section: single values are replaced, mappings merged, lists joined, Globals first.
"""

from __future__ import annotations

from typing import Any

from onefold.check.scope import Scope


def with_globals(scope: Scope, raw: Any) -> Any:
    """A function's properties on top of Globals.Function."""
    shared = scope.section("Globals").get("Function")
    return _merged(shared, raw if raw is not None else {}) if isinstance(shared, dict) else raw


def _merged(below: Any, above: Any) -> Any:
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    if isinstance(below, dict) and isinstance(above, dict) and not (_is_function(below) or _is_function(above)):
        return below | {key: _merged(below[key], item) if key in below else item for key, item in above.items()}
    return above


def _is_function(value: dict[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith(("Fn::", "Ref"))
