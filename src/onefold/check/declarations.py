"""Finds where an app and its queues are declared: the calls `onefold.App("shop")` and `app.queue("orders")`.

Only the text of the files is read; the caller has imported the app.
Never here: the meaning of a declaration. Invariant: a queue that is not found has the place of the app.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from onefold.check.findings import FindingSource
from onefold.check.python_modules import Modules
from onefold.check.python_values import Values
from onefold.errors import UsageError


class Declarations(Struct, frozen=True):
    """The place of the app, and the places of its queues by name."""

    app: FindingSource
    queues: dict[str, FindingSource]


def declarations_in(files: Iterable[Path], root: Path, names: Iterable[str]) -> Declarations:
    """Find the declarations.

    Args:
        files: modules of the app, its own first. root: imports are not followed above it. names: the names of the queues.
    """
    modules, names = Modules(), frozenset(names)
    values = Values(modules)
    files = list(files)
    app, queues = FindingSource(str(files[0]), 1, 1, 1, 1), dict[str, FindingSource]()
    is_found = False
    for path in files:
        try:
            module = modules.read(path, root)
        except UsageError:
            continue
        for node in module.parents:
            if not isinstance(node, ast.Call):
                continue
            if not is_found and values.dotted(node.func, module) in {"onefold.App", "onefold.app.App"}:
                app, is_found = module.source(node), True
            first = node.args[0] if node.args else None
            is_queue = isinstance(node.func, ast.Attribute) and node.func.attr == "queue"
            name = values.of(first, module).of if is_queue and first is not None else None
            for full in (name, f"{name}.fifo") if isinstance(name, str) else ():
                if full in names:
                    queues.setdefault(full, module.source(node))
    return Declarations(app, queues)
