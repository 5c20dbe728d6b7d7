"""Reading the answers to claims, for tests of stores."""

from __future__ import annotations

from collections.abc import Sequence

from onefold.contracts.store import Claimed, Hold


def claimed(answers: Sequence[object]) -> list[Hold]:
    """The holds of claims that all succeeded."""
    assert all(isinstance(answer, Claimed) for answer in answers), answers
    return [answer.hold for answer in answers if isinstance(answer, Claimed)]
