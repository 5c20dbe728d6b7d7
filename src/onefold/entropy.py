"""Chance comes in through here and nowhere else: identifiers and jitter.

`SystemEntropy` draws from the operating system; the `SeededEntropy` of `seeded_entropy.py` repeats itself for one seed, so
that a simulation or a test can be run again. No other module may draw a random number or make an id.
"""

from __future__ import annotations

import random
import secrets


class SystemEntropy:
    """Chance from the operating system."""

    def __init__(self) -> None:
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 - jitter is no secret; ids come from token()

    def token(self) -> str:
        """64 random bits as 16 hexadecimal characters."""
        return secrets.token_hex(8)

    def fraction(self) -> float:
        """A float from [0, 1)."""
        return self._random.random()
