"""The clients that wait for the quorum of a pool, each until its own time is up."""

from __future__ import annotations

from collections.abc import Callable

import trio

from meshq.concurrency import Wakeup
from meshq.lb import BalancerDecision


class WaitingClient:
    """A client that waits.  ``decide``: decides anew; ``answer``: takes the decision."""

    __slots__ = ("answer", "deadline", "decide")

    def __init__(
        self, decide: Callable[[], BalancerDecision], answer: Callable[[BalancerDecision], None], deadline: float
    ) -> None:
        self.decide = decide
        self.answer = answer
        self.deadline = deadline


class WaitingClients:
    """All clients that wait, in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: dict[WaitingClient, None] = {}
        self._wakeup = Wakeup()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, client: WaitingClient) -> None:
        """Have a client wait."""
        self._waiting[client] = None
        self._wakeup.wake()

    def withdraw(self, client: WaitingClient) -> None:
        """Forget a client.  Twice is silent."""
        self._waiting.pop(client, None)

    def look(self) -> None:
        """Decide anew about all waiting clients; the pool has changed, or a time is up."""
        now = trio.current_time()
        for client in [*self._waiting]:
            if client not in self._waiting:
                continue
            decision = client.decide()
            if not decision.waits or client.deadline <= now:
                del self._waiting[client]
                client.answer(decision)

    async def keep_time(self) -> None:
        """Answer each client when its time is up, until cancelled.

        Checkpoint: always.
        Cancellation: those that wait are not answered.
        """
        while True:
            self._wakeup.clear()
            soonest = min((client.deadline for client in self._waiting), default=float("inf"))
            with trio.move_on_at(soonest):
                await self._wakeup.wait()
            self.look()
