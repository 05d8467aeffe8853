"""The votes about one loss: the first one at once, and others after pauses, until one is won."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from meshq.ha.quorum import MajorityVote


async def elected(
    policy: MajorityVote, hold: Callable[[], Awaitable[bool]], until: Callable[[float], Awaitable[bool]]
) -> bool:
    """Hold votes until one is won; False: all were lost, or no vote is needed any more.

    ``until``: waits until a moment, and returns whether a vote is still needed then.

    Checkpoint: always.
    Cancellation: that of the vote that is held.
    """
    schedule = policy.schedule(now=trio.current_time())
    while schedule.next_at is not None:
        if not await until(schedule.next_at):
            return False
        if await hold():
            return True
        schedule.lost(trio.current_time())
    return False
