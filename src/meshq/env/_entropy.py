"""Randomness from the operating system."""

from __future__ import annotations

import os
import random

from meshq.abc import Entropy

#: Enough that two generators of one process never start alike.
SEED_BYTES = 16


class SystemEntropy(Entropy):
    """Tokens straight from the kernel; generators seeded from it."""

    __slots__ = ()

    def token(self, size: int) -> bytes:
        return os.urandom(size)

    def generator(self) -> random.Random:
        return random.Random(int.from_bytes(os.urandom(SEED_BYTES), "big"))
