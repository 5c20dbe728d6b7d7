"""The public surface as text: every exported name, and what is public on it, with signatures.

To accept a change on purpose, and show it in the diff for review:

    .venv/bin/python -m tests.architecture.public_names
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

# Everything else is private: it may change with any release.
PUBLIC_MODULES = (
    "onefold",
    "onefold.admin",
    "onefold.aws",
    "onefold.celery",
    "onefold.django",
    "onefold.errors",
    "onefold.events",
    "onefold.maps",
    "onefold.observe",
    "onefold.powertools",
    "onefold.reconcile",
    "onefold.schedules",
    "onefold.sqlalchemy",
    "onefold.testing",
    "onefold.web",
)

FROZEN = Path(__file__).with_suffix(".txt")

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class _Plain(str):
    """An annotation as it was written: inspect would put quotes around it."""

    __slots__ = ()
    __repr__ = str.__str__


def signature(thing: Callable[..., object]) -> str:
    """The call signature, or nothing where Python knows none."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return ""
    parameters = [
        each.replace(annotation=_Plain(each.annotation) if isinstance(each.annotation, str) else each.annotation)
        for each in found.parameters.values()
    ]
    returns = found.return_annotation
    found = found.replace(
        parameters=parameters, return_annotation=_Plain(returns) if isinstance(returns, str) else returns
    )
    return _ADDRESS.sub("", str(found))


def members(owner: type) -> Iterator[str]:
    """The public attributes that onefold itself defines on a class or on its parents, sorted."""
    for attribute in inspect.classify_class_attrs(owner):
        ours = attribute.defining_class.__module__.partition(".")[0] == "onefold"
        if attribute.name.startswith("_") or not ours:
            continue
        is_method = attribute.kind in {"method", "class method", "static method"}
        yield attribute.name + (signature(getattr(owner, attribute.name)) if is_method else "")


def surface() -> str:
    """One line per public name or attribute; those of `onefold` itself come first, without its name."""
    lines = []
    for module in map(import_module, PUBLIC_MODULES):
        room = module.__name__.partition(".")[2]
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            path = f"{room}.{name}" if room else name
            if room and name in import_module("onefold").__all__:
                lines.append(f"{path} = {name}")
                continue
            lines.append(path + (signature(thing) if callable(thing) else ""))
            if inspect.isclass(thing):
                lines.extend(f"{path}.{member}" for member in members(thing))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FROZEN.write_text(surface())
