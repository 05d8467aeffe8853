"""A fair scheduler for costly filters: one step in each round, in rotation among users, then among a user's keys.

Work that costs no more than a step is done at once, as long as its user has not spent a whole step in this round.  Work
without cost never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final, NamedTuple

from meshq import limits
from meshq.abc import no_failpoint

#: Role and user that the work is done for.
Owner = tuple[str, str]
#: The owner of the node's own work.
NODE: Final[Owner] = ("node", "")


class CostlyScan(NamedTuple):
    """Filters to be asked in steps, and the amount of work, in small messages."""

    steps: Iterator[None]
    work: float


class ScheduledWork:
    """Work in the scheduler, and the function to call after its last step."""

    __slots__ = ("alive", "key", "owner", "steps", "then", "work")

    def __init__(
        self,
        owner: Owner,
        key: Hashable,
        costly: CostlyScan,
        then: Callable[[], None],
        alive: Callable[[], bool],
    ) -> None:
        self.owner: Owner = owner
        self.key: Hashable = key
        self.steps: Iterator[None] = costly.steps
        self.work: float = costly.work
        self.then: Callable[[], None] = then
        self.alive: Callable[[], bool] = alive


class FairScheduler:
    """Schedules costly work in rotation among owners.

    ``wake`` has ``step`` called soon, after other tasks have run.  It returns False if ``step`` would not be called:
    then all work is done at once.  With ``failpoint`` cheap work waits, too, and for longer.
    """

    __slots__ = ("_asked", "_by_owner", "_failpoint", "_spent", "_wake")

    def __init__(self, wake: Callable[[], bool], failpoint: Callable[[str], bool] = no_failpoint) -> None:
        self._wake = wake
        self._failpoint = failpoint
        # By owner, and then by key: work in the order in which it came.  Who is first in each is next.
        self._by_owner: dict[Owner, dict[Hashable, deque[ScheduledWork]]] = {}
        # What each owner has had in this round, and whether the next one was asked for.
        self._spent: dict[Owner, float] = {}
        self._asked = False

    def __len__(self) -> int:
        return sum(len(line) for keys in self._by_owner.values() for line in keys.values())

    def afford(self, owner: Owner, work: float) -> bool:
        """Whether so much work may be done at once; otherwise it is to be done by ``begin``."""
        spent = self._spent.get(owner, 0) + work
        if spent > limits.SCAN_MESSAGES_MAX or self._failpoint("broker.costly"):
            return not self._next_round()
        self._spent[owner] = spent
        if spent > limits.SCAN_MESSAGES_MAX / 2 and not self._next_round():
            self._spent.clear()
        return True

    def _next_round(self) -> bool:
        if not self._asked:
            self._asked = self._wake()
        return self._asked

    def begin(
        self,
        owner: Owner,
        key: Hashable,
        costly: CostlyScan,
        then: Callable[[], None],
        alive: Callable[[], bool] | None = None,
        *,
        first: bool = False,
    ) -> ScheduledWork:
        """Do costly work, and call ``then`` after its last step, or as soon as it is not ``alive`` any more.

        What has the same ``key`` is done one after the other; ``first``: before what waits already.  ``then`` is not
        called before this returns, unless nobody would call ``step``.
        """
        work = ScheduledWork(owner, key, costly, then, alive or _always)
        if not self._next_round():
            for _ in costly.steps:
                pass
            then()
            return work
        line = self._by_owner.setdefault(owner, {}).setdefault(key, deque())
        if first:
            line.appendleft(work)
        else:
            line.append(work)
        return work

    def cancel(self, work: ScheduledWork) -> None:
        """Remove work: no further step is done, and ``then`` is not called."""
        keys = self._by_owner.get(work.owner, {})
        line = keys.get(work.key)
        if line is None or work not in line:
            return
        line.remove(work)
        if not line:
            del keys[work.key]
        if not keys:
            del self._by_owner[work.owner]

    def step(self, *, ending: bool) -> None:
        """Do one round: a step of the next owner's work, or smaller work of several owners.

        ``ending``: the node ends; no step is done, and every ``then`` is called.
        """
        self._spent.clear()
        self._asked = False
        if ending:
            by_owner, self._by_owner = self._by_owner, {}
            for work in [work for keys in by_owner.values() for line in keys.values() for work in line]:
                work.then()
            return
        late = bool(self._by_owner) and self._failpoint("broker.late_step")
        left: float = 0 if late else limits.SCAN_MESSAGES_MAX
        while self._by_owner and left > 0:
            owner = next(iter(self._by_owner))
            keys = self._by_owner.pop(owner)
            key = next(iter(keys))
            line = keys.pop(key)
            work = line[0]
            alive = work.alive()
            if alive and left < min(work.work, limits.SCAN_MESSAGES_MAX):
                # What is left of the step is too little for it.
                left = 0
                self._by_owner = {owner: {key: line, **keys}, **self._by_owner}
                break
            left -= work.work if alive else 0
            ended = not alive or next(work.steps, _ENDED) is _ENDED
            if ended:
                line.popleft()
            if line:
                keys[key] = line
            if keys:
                self._by_owner[owner] = keys
            if ended:
                work.then()
        if self._by_owner:
            self._next_round()


#: What comes after the last step.
_ENDED: Final = object()


def _always() -> bool:
    return True
