"""Every public error as a person sees it: what happened, what it means, what to do; no class is forgotten."""

from __future__ import annotations

import inspect

import pytest

from onefold import errors
from onefold.cli.main import text_of

ALL = sorted(
    (value for value in vars(errors).values() if inspect.isclass(value) and issubclass(value, errors.OnefoldError)),
    key=lambda one: one.__name__,
)


@pytest.mark.parametrize("kind", ALL)
def test_each_is_drawn_in_three_parts(kind: type[errors.OnefoldError]) -> None:
    error = kind("Order 'o-1' has no city.", meaning="Nothing was sent.", todo="Give it one.")
    assert text_of(error) == ("error: Order 'o-1' has no city.\n  meaning: Nothing was sent.\n  to do: Give it one.")
    assert str(error) == "Order 'o-1' has no city. Nothing was sent. Give it one."


@pytest.mark.parametrize("kind", ALL)
def test_each_has_a_code_of_its_own_and_is_exported(kind: type[errors.OnefoldError]) -> None:
    assert [other for other in ALL if other.code == kind.code] == [kind]
    assert kind.__name__ in errors.__all__
    assert kind.__doc__


def test_parts_that_are_empty_are_left_out() -> None:
    assert text_of(errors.UsageError("No.")) == "error: No."
    assert text_of(errors.UsageError("No.", todo="Try yes.")) == "error: No.\n  to do: Try yes."
