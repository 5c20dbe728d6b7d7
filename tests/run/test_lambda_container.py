"""A container's pool goes from one invocation to the next; none is left behind, and a broken one is not used again."""

from __future__ import annotations

from typing import cast

import pytest

from onefold.runner.lambda_invocation import ExecutorPool, ExecutorPools


class Hands:
    """A pool that only remembers what becomes of it."""

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.broken = False
        self.ended = 0

    def end(self) -> None:
        self.ended += 1


def pools(made: list[Hands]) -> ExecutorPools:
    def make(lease_ms: int) -> ExecutorPool:
        made.append(Hands(lease_ms))
        return cast(ExecutorPool, made[-1])

    return ExecutorPools(make, 1_000)


def test_a_crew_is_made_once_and_used_again() -> None:
    made: list[Hands] = []
    kept = pools(made)
    for remaining_ms in (20_000, 5_000):
        with kept.take(remaining_ms) as pool:
            assert pool is cast(ExecutorPool, made[0])
    assert [(one.lease_ms, one.ended) for one in made] == [(21_000, 0)]


def test_a_crew_that_was_broken_ends_and_the_next_invocation_has_another() -> None:
    made: list[Hands] = []
    kept = pools(made)
    with pytest.raises(KeyError), kept.take(1):
        raise KeyError
    with kept.take(1) as pool:
        pool.broken = True
    with kept.take(1):
        pass
    assert [one.ended for one in made] == [1, 1, 0]


def test_who_comes_while_it_is_out_gets_another_and_one_of_them_is_kept() -> None:
    made: list[Hands] = []
    kept = pools(made)
    with kept.take(1) as one, kept.take(1) as other:
        assert one is not other
    with kept.take(1) as again:
        assert again is other
    assert [hands.ended for hands in made] == [1, 0]
