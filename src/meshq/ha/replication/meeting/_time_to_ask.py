"""The time that a node with nothing to confirm gives to a replica that it has lost, so that the replica asks first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from meshq.ha.replication.meeting._asking import PAUSE_S, PAUSE_S_MAX, Answer
from meshq.ha.replication.meeting._standpoints import CLAIMED


async def is_known_in_time(
    ask: Callable[[], Awaitable[Answer]], instance: bytes, busy: Callable[[], Awaitable[None]], seconds: float
) -> bool:
    """Ask a lost replica again and again; return whether an answer tells that its life is over, or takes no role.

    False: ``busy`` has returned before, since there is something to confirm, or the seconds are over.

    Checkpoint: always.
    Cancellation: the question is dropped.
    """
    known = False
    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:

            async def look() -> None:
                nonlocal known
                pause_s = PAUSE_S
                while not known:
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
                    answer = await ask()
                    log = answer.log
                    known = answer.gone or (log is not None and (log.instance != instance or log.epoch != CLAIMED))
                nursery.cancel_scope.cancel()

            nursery.start_soon(look)
            await busy()
            nursery.cancel_scope.cancel()
    return known
