"""Public names of a package that are imported when they are first used, so that an unused feature costs no import time.

Only for the `__init__` of a package (PEP 562). Invariant: a name always has the value that its module has; nothing is
stored here.
Private: may change with any release.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def attributes(
    package: str,
    modules: Mapping[str, str],
    *,
    rooms: Collection[str] = (),
    moved: Mapping[str, str] | None = None,
    frames: int = 1,
) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name. modules: name -> module that has it.
        rooms: modules below the package that `import package` alone makes available.
        moved: name that was here -> public module that has it now; it is still found, with a DeprecationWarning.
        frames: how many calls are between this function and the line that uses the name.
    """

    def get(name: str) -> Any:
        if name in modules:
            return getattr(import_module(modules[name]), name)
        if name in rooms:
            return import_module(f"{package}.{name}")
        if moved is not None and name in moved:
            text = f"{package}.{name} is {moved[name]}.{name} now; version 1.0 removes the old name."
            warnings.warn(text, DeprecationWarning, stacklevel=1 + frames)
            return getattr(import_module(moved[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get
