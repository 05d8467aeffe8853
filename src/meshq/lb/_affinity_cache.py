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
        # By key the target's name and when it was used last, the oldest use first.
        self._kept: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str, now: float) -> str:
        """Return the name of a key's target; empty: none is remembered."""
        name, used = self._kept.get(key, ("", 0.0))
        return name if now - used < self._timeout_s else ""

    def put(self, key: str, name: str, now: float) -> None:
        """Remember a key's target, used now; the entries whose time is up go."""
        if not self._timeout_s:
            return
        self._kept.pop(key, None)
        self._kept[key] = name, now
        while len(self._kept) > self._keys_max:
            del self._kept[next(iter(self._kept))]
        self.expire(now)

    def expire(self, now: float) -> None:
        """Forget the entries whose time is up."""
        while self._kept:
            oldest = next(iter(self._kept))
            if now - self._kept[oldest][1] < self._timeout_s:
                break
            del self._kept[oldest]

    def by_target(self) -> dict[str, int]:
        """Return how many keys each target has."""
        counts: dict[str, int] = {}
        for name, _ in self._kept.values():
            counts[name] = counts.get(name, 0) + 1
        return counts

    def clear(self) -> None:
        """Forget all keys."""
        self._kept.clear()
