"""The exported names and their signatures are a promise: a change is made on purpose, and seen in review."""

from __future__ import annotations

import difflib
import inspect
from importlib import import_module

import pytest

import onefold
from tests.architecture import public_names


def test_the_surface_is_as_frozen() -> None:
    frozen, found = public_names.FROZEN.read_text(), public_names.surface()
    difference = difflib.unified_diff(frozen.splitlines(), found.splitlines(), "frozen", "found", lineterm="", n=0)
    assert frozen == found, "\n".join(
        ["If this is meant, run: .venv/bin/python -m tests.architecture.public_names", *difference]
    )


def test_every_export_is_listed_and_documented() -> None:
    assert len(set(onefold.__all__)) == len(onefold.__all__)
    assert set(onefold.__all__) <= set(dir(onefold)), "dir(onefold) and editors must show every exported name"
    exported = [getattr(onefold, name) for name in onefold.__all__]
    silent = [
        thing for thing in exported if (inspect.isclass(thing) or inspect.isfunction(thing)) and not thing.__doc__
    ]
    assert not silent


@pytest.mark.parametrize("room", ["events", "maps", "observe", "reconcile", "schedules"])
def test_the_names_of_a_feature_can_be_loaded(room: str) -> None:
    package = import_module(f"onefold.{room}")
    assert [getattr(package, name).__doc__ is not None for name in package.__all__] == [True] * len(package.__all__)
    with pytest.raises(AttributeError, match=f"module 'onefold.{room}' has no attribute 'nothing'"):
        _ = package.nothing


def test_a_change_would_be_seen() -> None:
    class Planted:
        """A sample."""

        def hold(self, lease_ms: int = 5) -> bool: ...

    Planted.__module__ = "onefold.planted"
    assert list(public_names.members(Planted)) == ["hold(self, lease_ms: int = 5) -> bool"]
