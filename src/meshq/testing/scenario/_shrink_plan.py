"""The search for the faults that a failure needs: fewer and fewer of them, as long as the failure stays.

Invariant: no single fault of the answer can be left out, unless the tries are used up; the answer is in the old order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
#: So many runs are worth a short list.
TRIES_MAX: Final = 60


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
