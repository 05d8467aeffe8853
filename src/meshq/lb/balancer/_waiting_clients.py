"""The clients that wait for the quorum of a pool, each until its own time is up."""

from __future__ import annotations

import math
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
    """All clients that wait, in the order in which they came.

    Each waits as long as the others, so that the first one's time is up first.  One that comes costs the others
    nothing: thousands may wait, and more come each moment.
    """

    def __init__(self) -> None:
        self._waiting: dict[WaitingClient, None] = {}
        self._wakeup = Wakeup()
        #: Whether time is kept: without that nobody may wait.
        self.timed: bool = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, client: WaitingClient) -> None:
        """Have a client wait."""
        self._waiting[client] = None
        if len(self._waiting) == 1:
            self._wakeup.wake()

    def withdraw(self, client: WaitingClient) -> None:
        """Forget a client.  Twice is silent."""
        self._waiting.pop(client, None)

    def look(self) -> None:
        """Decide anew about all waiting clients, because the pool or a filter has changed."""
        for client in [*self._waiting]:
            if client not in self._waiting:
                continue
            decision = client.decide()
            if not decision.waits:
                del self._waiting[client]
                client.answer(decision)

    async def keep_time(self) -> None:
        """Answer each client when its time is up, until cancelled.

        Checkpoint: always.
        Cancellation: those that wait are not answered.
        """
        self.timed = True
        try:
            while True:
                self._wakeup.clear()
                first = next(iter(self._waiting), None)
                with trio.move_on_at(math.inf if first is None else first.deadline):
                    await self._wakeup.wait()
                self._answer_late(trio.current_time())
        finally:
            self.timed = False

    def _answer_late(self, now: float) -> None:
        while self._waiting:
            client = next(iter(self._waiting))
            if client.deadline > now:
                break
            del self._waiting[client]
            client.answer(client.decide())
