"""The search for the faults that a failure needs: fewer and shorter ones, as long as the failure stays.

Invariant: no single fault of the answer can be left out, and none can last half as long, unless the tries are used up;
the answer is in the old order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
#: So many runs are worth a short list.
TRIES_MAX: Final = 60
#: Parts of its time for which a fault is tried, the shortest first.
PARTS: Final = (1 / 64, 1 / 8, 1 / 2)
#: Seconds that are short enough.
SHORT_S: Final = 0.01


def shrunk(items: Sequence[T], fails: Callable[[list[T]], bool], tries_max: int = TRIES_MAX) -> list[T]:
    """Return the items that ``fails`` needs to be true; it is asked ``tries_max`` times at most.

    None at all is tried first, then larger pieces before smaller ones are left out.
    """
    kept, tries = list(items), 0
    size = len(kept)
    while size and kept:
        start, progress = 0, False
        while start < len(kept):
            if tries >= tries_max:
                return kept
            tries += 1
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept, progress = fewer, True
            else:
                start += size
        # Once a single one is gone, another one may have become superfluous.
        if size > 1:
            size = max(1, min(size // 2, len(kept)))
        elif not progress:
            break
    return kept


def shorter_times(seconds: float) -> list[float]:
    """Return shorter times to try, the shortest first; none below ``SHORT_S``."""
    times = dict.fromkeys(float(f"{max(SHORT_S, seconds * part):.2g}") for part in PARTS)
    return [time for time in times if time < seconds]


def shortened(
    items: Sequence[T],
    shorter: Callable[[T], Iterable[T]],
    fails: Callable[[list[T]], bool],
    tries_max: int = TRIES_MAX,
) -> list[T]:
    """Return the items, each as short as ``fails`` can bear; it is asked ``tries_max`` times at most.

    ``shorter`` gives the shorter ones of an item, the shortest first.
    """
    kept, tries = list(items), 0
    for index in range(len(kept)):
        progress = True
        while progress:
            progress = False
            for item in shorter(kept[index]):
                if tries >= tries_max:
                    return kept
                tries += 1
                if fails([*kept[:index], item, *kept[index + 1 :]]):
                    kept[index], progress = item, True
                    break
    return kept
