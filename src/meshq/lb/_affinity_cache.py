"""The targets that keys have had last."""

from __future__ import annotations

from typing import Final

#: Keys that are remembered; those that were used longest ago go first.
KEYS_MAX: Final = 100_000


class AffinityCache:
    """The places of the targets of keys, each until its key was not asked for during ``timeout_s`` seconds.

    ``timeout_s``: infinite for as long as there is room; 0: nothing is remembered.
    """

    def __init__(self, timeout_s: float, *, keys_max: int = KEYS_MAX) -> None:
        self._timeout_s = timeout_s
        self._keys_max = keys_max
        # By key the target's place, the id of its node, and when it was used last, the oldest use first.
        self._kept: dict[str, tuple[str, str, float]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str, now: float) -> tuple[str, str]:
        """Return the place of a key's target, and the id of its node; empty: none is remembered, or it is unknown."""
        place, node_id, used = self._kept.get(key, ("", "", 0.0))
        return (place, node_id) if now - used < self._timeout_s else ("", "")

    def put(self, key: str, place: str, now: float, node_id: str = "") -> None:
        """Remember a key's target, used now; the entries whose time is up go."""
        if not self._timeout_s:
            return
        self._kept.pop(key, None)
        self._kept[key] = place, node_id, now
        while len(self._kept) > self._keys_max:
            del self._kept[next(iter(self._kept))]
        self.expire(now)

    def expire(self, now: float) -> None:
        """Forget the entries whose time is up."""
        while self._kept:
            oldest = next(iter(self._kept))
            if now - self._kept[oldest][2] < self._timeout_s:
                break
            del self._kept[oldest]

    def by_target(self) -> dict[str, int]:
        """Return how many keys each target has."""
        counts: dict[str, int] = {}
        for place, _, _ in self._kept.values():
            counts[place] = counts.get(place, 0) + 1
        return counts

    def clear(self) -> None:
        """Forget all keys."""
        self._kept.clear()
