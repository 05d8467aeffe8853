"""A role in memory: brokers of one test compete for it, and the test says who has to step back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from meshq.abc import Activation, ActiveTerm, HAPolicy, NodeControl, ReplicationSink, StepBack


class MemoryRole:
    """The role of the active node, which one broker has at a time; the others wait in line.

    ``vacant=False``: no broker gets the role before ``open``.  ``make_sink``: makes the sink of each term's journal.
    """

    def __init__(self, *, vacant: bool = True, make_sink: Callable[[], ReplicationSink] | None = None) -> None:
        #: The name of the broker that has the role; None: no broker has it.
        self.holder: str | None = None
        #: Whether the last broker that gave the role up was stopped with the order to hand over.
        self.failover: bool = False
        self._vacant = vacant
        self._make_sink = make_sink
        self._line: dict[MemoryActivation, None] = {}
        self._changed = trio.Event()
        # Set for the one who has the role, when the role is lost.
        self._step_back: StepBack | None = None

    def policy(self, *, wait_for_activation: bool = True) -> MemoryHAPolicy:
        """Create the policy of a broker that competes for the role."""
        return MemoryHAPolicy(role=self, wait_for_activation=wait_for_activation)

    def open(self) -> None:
        """Let the first in line have the role as soon as no other broker has it."""
        self._vacant = True
        self._notify()

    def take_back(self, reason: str = "forced", *, at_once: bool = False) -> None:
        """Order the broker that has the role to step back; no broker gets the role before ``open``."""
        self._vacant = False
        self._step_back = StepBack(reason=reason, at_once=at_once)
        self._notify()

    async def acquire(self, activation: MemoryActivation) -> None:
        """Wait in line for the role.

        Checkpoint: always.
        Cancellation: the place in line is given up.
        """
        await trio.lowlevel.checkpoint()
        self._line[activation] = None
        try:
            while not self._vacant or self.holder is not None or next(iter(self._line)) is not activation:
                await self._changed.wait()
            self.holder, self._step_back = activation.name, None
        finally:
            del self._line[activation]
            self._notify()

    def term(self) -> ActiveTerm:
        """Make the term of the broker that has the role."""
        return ActiveTerm(sink=None if self._make_sink is None else self._make_sink())

    async def lost(self, told: StepBack | None = None) -> StepBack:
        """Wait for an order to step back other than the one that was ``told`` before.

        Checkpoint: always.
        Cancellation: nothing has changed.
        """
        await trio.lowlevel.checkpoint()
        while self._step_back is None or self._step_back is told:
            await self._changed.wait()
        return self._step_back

    def release(self) -> None:
        """Give the role up."""
        self.holder = None
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()


@attrs.frozen(kw_only=True)
class MemoryHAPolicy(HAPolicy):
    """The policy of a broker that competes for a ``MemoryRole``."""

    role: MemoryRole
    wait_for_activation: bool = True

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Join the line."""
        return _joined(self.role, control.name)


@asynccontextmanager
async def _joined(role: MemoryRole, name: str) -> AsyncIterator[Activation]:
    activation = MemoryActivation(role, name)
    try:
        yield activation
    finally:
        activation.leave()


class MemoryActivation(Activation):
    """A broker's part in the competition for a ``MemoryRole``."""

    def __init__(self, role: MemoryRole, name: str) -> None:
        #: The name of the broker.
        self.name: str = name
        self._role = role
        self._held = False
        # The last order of this term.
        self._told: StepBack | None = None

    async def wait(self) -> ActiveTerm:
        """Wait in line."""
        await self._role.acquire(self)
        self._held, self._told = True, None
        return self._role.term()

    async def lost(self) -> StepBack:
        """Wait for an order to step back, or for another order after that."""
        self._told = await self._role.lost(self._told)
        return self._told

    async def release(self, *, failover: bool) -> None:
        """Give the role up."""
        self._role.failover = failover
        self.leave()
        await trio.lowlevel.checkpoint()

    def leave(self) -> None:
        """Give up a role that the broker still has."""
        if self._held:
            self._held = False
            self._role.release()
