"""The lease keeper: one task of a client that renews the leases of its cursors in time."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

from meshq.concurrency import Wakeup


class Lease:
    """A lease that has to be renewed.  ``renew`` renews it, or notes that it is lost, and sets ``renew_at`` anew."""

    __slots__ = ("renew", "renew_at")

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self.renew: Callable[[], Awaitable[None]] = renew
        #: When it is to be renewed; seconds of trio's clock.
        self.renew_at: float = math.inf


class LeaseKeeper:
    """Renews the leases of one client.  Its task sleeps while there are none."""

    __slots__ = ("_leases", "_wakeup")

    def __init__(self) -> None:
        self._leases: dict[Lease, None] = {}
        self._wakeup = Wakeup()

    def add(self, lease: Lease) -> None:
        """Renew a lease from now on."""
        self._leases[lease] = None
        self._wakeup.wake()

    def drop(self, lease: Lease) -> None:
        """Renew a lease no more."""
        self._leases.pop(lease, None)

    async def run(self) -> None:
        """Renew each lease when it is due.

        Checkpoint: always.  Cancellation: nothing is renewed any more.
        """
        while True:
            soonest = min((lease.renew_at for lease in self._leases), default=math.inf)
            with trio.move_on_at(soonest):
                await self._wakeup.wait()
            self._wakeup.clear()
            now = trio.current_time()
            due = [lease for lease in self._leases if lease.renew_at <= now]
            # Side by side: where one waits for an answer, the leases of the others go on.
            async with trio.open_nursery() as nursery:
                for lease in due:
                    nursery.start_soon(lease.renew)
