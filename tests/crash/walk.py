"""An exhaustive walk: every choice in every situation, to the end, watched by the judge.

A situation is reached by repeating the choices that led there. Situations that are alike in everything that matters are
walked once, and the number of continuations of each is kept, so that the count of histories is exact. At the end of
each history faults are off and what is left must drain.
Does not contain: what can happen (`world.py`). Invariant: no history within the bounds is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.crash.judge import Violation
from tests.crash.stage import Stage
from tests.crash.world import Bounds, Choice, World


class Walk:
    """Every history within bounds.

    Args:
        stage: database, job and policy. bounds: what may happen.
        merge: walk equal situations only once; False walks every history from its beginning to its end.

    Attributes:
        interleavings: how many histories there are. situations: how many different situations they have.
    """

    def __init__(self, stage: Stage, bounds: Bounds, *, merge: bool = True) -> None:
        self._stage = stage
        self._bounds = bounds
        self._merge = merge
        self._ways: dict[tuple[object, ...], int] = {}
        self.interleavings = self._visit([], stage.world(bounds))
        self.situations = len(self._ways)

    def _visit(self, before: list[Choice], world: World) -> int:
        state = world.state()
        known = self._ways.get(state)
        if known is not None and self._merge:
            return known
        choices = world.choices()
        ways = 0 if choices else self._end(before, world)
        for number, choice in enumerate(choices):
            here = world if number == 0 else replayed(self._stage, self._bounds, before)
            try:
                here.happen(choice)
            except Violation as violation:
                raise _explained(violation, [*before, choice]) from None
            ways += self._visit([*before, choice], here)
        self._ways[state] = ways
        return ways

    def _end(self, before: list[Choice], world: World) -> int:
        try:
            world.drain()
        except Violation as violation:
            raise _explained(violation, before) from None
        return 1


def replayed(stage: Stage, bounds: Bounds, choices: Sequence[Choice]) -> World:
    """The world after these choices."""
    world = stage.world(bounds)
    for choice in choices:
        world.happen(choice, again=True)
    return world


def _explained(violation: Violation, choices: Sequence[Choice]) -> Violation:
    text = str(violation).removeprefix(f"{violation.rule}: ")
    return Violation(violation.rule, f"{text}\n  history: {', '.join(map(str, choices))}")
