"""How many frames of a traceback are left out, and that this is said of those alone."""

from __future__ import annotations

import types

import pytest

from onefold.record.error_text import trace_of

WRAP = """
def wrap(call):
    call()
"""


def failing(depth: int) -> None:
    if depth > 1:
        failing(depth - 1)
    raise LookupError("deep")


def trace(own: int) -> str:
    """Of so many frames of the user's, and one more, under one of onefold's."""
    module = types.ModuleType("onefold.fake")
    exec(WRAP, vars(module))

    def call() -> None:
        failing(own)

    with pytest.raises(LookupError) as caught:
        module.wrap(call)
    error = caught.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without this function's own
    return trace_of(error, str).text


@pytest.mark.parametrize(
    ("own", "said"), [(22, None), (23, None), (24, "... 1 frame is left out"), (30, "... 7 frames are left out")]
)
def test_only_what_was_left_out_is_said_to_be(own: int, said: str | None) -> None:
    rows = [row.strip() for row in trace(own).splitlines()]
    assert [row for row in rows if "left out" in row] == ([said] if said is not None else [])
    assert sum(row.startswith("File") for row in rows) == min(own + 1, 24)  # `call`, too
