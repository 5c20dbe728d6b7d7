"""Chance that can be run again: the `Entropy` of simulations, demos and tests.

It makes what `entropy.py` makes, identifiers and fractions, from a seed that its user chooses and can print.

Never here: the operating system's chance; ids of one seed are no secret and no two processes may share one.
Invariant: the same seed gives the same ids and fractions in the same order.
"""

from __future__ import annotations

import random


class SeededEntropy:
    """Chance that repeats itself.

    Args:
        seed: any integer; the same seed gives the same ids and fractions in the same order.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose

    def token(self) -> str:
        """The next identifier of this seed, 16 hexadecimal characters."""
        return f"{self._random.getrandbits(64):016x}"

    def fraction(self) -> float:
        """The next fraction of this seed."""
        return self._random.random()
