"""Public names of a package that are imported when they are first used, so that nobody pays for a feature they do not use.

Only for the `__init__` of a package (PEP 562). Invariant: a name is what its module has; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attributes(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: its name. modules: name -> module that has it.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name]), name)

    return get
