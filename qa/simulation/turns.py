"""Turns of the simulated broker: it has to step back from time to time, waits, and is active again in the same life."""

from __future__ import annotations

from typing import Final

import trio

from meshq.testing import MemoryRole, Swarm
from qa.simulation.broker import BrokerNode

#: Seconds between two orders to step back, and seconds for which the broker waits then.
PAUSE_S: Final = (2.0, 8.0)
WAIT_S: Final = (0.05, 3.0)
#: Seconds between two looks at a broker that has to close its store first.
LOOK_S: Final = 0.01


class Turns:
    """The orders to step back, as the seed decides."""

    def __init__(self, broker: BrokerNode, swarm: Swarm) -> None:
        self._broker = broker
        self._swarm = swarm
        self._rng = swarm.rng("turns")
        # The role that the broker has to give up; None: no order is open.
        self._ordered: MemoryRole | None = None
        swarm.count("fault.step_back", 0)
        swarm.count("seen.waiting", 0)

    async def run(self) -> None:
        """Let the broker take turns until cancelled.

        Checkpoint: always.  Cancellation: the broker may wait still; ``finish`` ends that.
        """
        while True:
            await trio.sleep(self._rng.uniform(*PAUSE_S))
            role = self._broker.role
            if role is None or not self._broker.active:
                continue
            self._swarm.count("fault.step_back")
            at_once = self._rng.random() < 0.5
            self._broker.history.note(f"the broker steps back{' at once' if at_once else ''}")
            role.take_back("drill", at_once=at_once)
            self._ordered = role
            await trio.sleep(self._rng.uniform(*WAIT_S))
            await self.finish()

    async def finish(self) -> None:
        """Let the broker be active again, once the store is closed; the next turn begins with an empty memory.

        Checkpoint: if the broker still steps back.  Cancellation: the order stays open.
        """
        role = self._ordered
        if role is None:
            return
        while self._broker.role is role and self._broker.stepping_back:  # noqa: ASYNC110
            await trio.sleep(LOOK_S)
        if self._broker.role is role:
            self._broker.look_at_waiting()
        role.open()
        self._ordered = None
