"""The policy by which a key keeps its target when other targets come and go."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from meshq.abc import BalancerPolicy, BalancerTarget

#: Enough that two targets never have the same weight for a key.
_WEIGHT_BYTES: Final = 8


class ConsistentHash(BalancerPolicy):
    """A policy that gives a key the same target for as long as that target is there.

    Each target has a weight for the key, made of its node's id (of its URL while the id is not known) and of nothing
    else; the largest weight wins.  So all who know the same targets choose alike, in any order of the list.  A target
    that goes leaves its own keys to the others, evenly, and has just these again when it comes back.
    """

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return the target with the largest weight for the key."""
        if not targets:
            return None
        return max(targets, key=partial(_weight, key.encode(errors="surrogatepass")))


def _weight(key: bytes, target: BalancerTarget) -> tuple[bytes, str]:
    named = (target.node_id or target.url).encode()
    # The length keeps the name and the key apart.
    digest = hashlib.blake2b(len(named).to_bytes(4) + named + key, digest_size=_WEIGHT_BYTES).digest()
    return digest, target.url
