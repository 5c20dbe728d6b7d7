"""The only source of random numbers: identifiers and jitter.

`SystemEntropy` draws from the operating system; `SeededEntropy` gives the same sequence for the same seed, so that a
demo or a test can be repeated: its ids are not secret, and no two processes may share a seed. No other module may draw
a random number or make an id. Private: may change with any release.
"""

from __future__ import annotations

import random
import secrets


class SystemEntropy:
    """Random numbers from the operating system."""

    def __init__(self) -> None:
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 - jitter is not secret; ids come from token()

    def token(self) -> str:
        """64 random bits as 16 hexadecimal characters."""
        return secrets.token_hex(8)

    def fraction(self) -> float:
        """A float from [0, 1)."""
        return self._random.random()


class SeededEntropy:
    """Random numbers that can be repeated.

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
