"""Policies whose terms are watched: each moment in which a node acts is seen, with its epoch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import attrs
import trio

from meshq.abc import Activation, ActiveTerm, Disk, HAPolicy, NodeControl, StepBack, TermGuard


class Acts:
    """The acts of all nodes of a pair, in the order in which they came."""

    def __init__(self) -> None:
        #: The highest epoch in which a node has acted.
        self.epoch: int = 0
        #: Acts in an epoch after an act in a later one: when, by whom, in which epoch, and the later one.
        self.stale: list[tuple[float, str, int, int]] = []
        #: The nodes that have acted, by epoch; more than one is a violation, too.
        self.actors: dict[int, set[str]] = {}

    def saw(self, name: str, epoch: int) -> None:
        """Note an act."""
        self.actors.setdefault(epoch, set()).add(name)
        if epoch < self.epoch:
            self.stale.append((trio.current_time(), name, epoch, self.epoch))
        self.epoch = max(self.epoch, epoch)


class WatchedGuard(TermGuard):
    """The bounds of a term, with each permission noted as an act."""

    def __init__(self, inner: TermGuard, acts: Acts, name: str, epoch: int) -> None:
        self._inner = inner
        self._acts = acts
        self._name = name
        self._epoch = epoch

    def may_act(self) -> bool:
        """Whether the node may act; if it may, it does."""
        allowed = self._inner.may_act()
        if allowed:
            self._acts.saw(self._name, self._epoch)
        return allowed

    def disk(self, disk: Disk) -> Disk:
        """The disk of the term."""
        return self._inner.disk(disk)

    @property
    def over(self) -> StepBack | None:
        """The order that a failure stands for."""
        return self._inner.over


class WatchedActivation(Activation):
    """The activation of another policy, whose terms are watched."""

    def __init__(self, inner: Activation, acts: Acts, name: str, epoch_of: Callable[[ActiveTerm], int]) -> None:
        self._inner = inner
        self._acts = acts
        self._name = name
        self._epoch_of = epoch_of

    async def wait(self) -> ActiveTerm:
        """Wait as the other one does."""
        term = await self._inner.wait()
        assert term.guard is not None
        return attrs.evolve(term, guard=WatchedGuard(term.guard, self._acts, self._name, self._epoch_of(term)))

    async def lost(self) -> StepBack:
        """Wait for an order."""
        return await self._inner.lost()

    async def release(self, *, failover: bool) -> None:
        """Give the role up."""
        await self._inner.release(failover=failover)

    def served(self) -> None:
        """Note that clients are served."""
        self._inner.served()

    async def leaves(self) -> None:
        """Prepare for the end of the term."""
        await self._inner.leaves()

    def scales_down(self) -> None:
        """Note that the node hands its store over."""
        self._inner.scales_down()

    async def keeps(self) -> None:
        """Wait for a primary that is back."""
        await self._inner.keeps()

    def finds_no_target(self) -> None:
        """Note that no other node takes the store."""
        self._inner.finds_no_target()

    def scaled_down(self) -> None:
        """Note that the store is empty."""
        self._inner.scaled_down()

    def order(self, *, back: bool, force: bool) -> int:
        """Order a change of role."""
        return self._inner.order(back=back, force=force)

    async def hand_over(self, *, back: bool, force: bool) -> None:
        """Order a change of role."""
        await self._inner.hand_over(back=back, force=force)


def epoch_of_shared_store(term: ActiveTerm) -> int:
    """Return the epoch of a term over a shared store, from its directory."""
    assert term.data_dir is not None
    return int(term.data_dir.rpartition("-")[2])


class WatchedPolicy(HAPolicy):
    """Another policy, whose terms are watched."""

    def __init__(
        self, inner: HAPolicy, acts: Acts, epoch_of: Callable[[ActiveTerm], int] = epoch_of_shared_store
    ) -> None:
        self.wait_for_activation = inner.wait_for_activation
        self._epoch_of = epoch_of
        self._inner = inner
        self._acts = acts

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Join the competition as the other policy does."""
        return self._joined(control)

    @asynccontextmanager
    async def _joined(self, control: NodeControl) -> AsyncIterator[Activation]:
        async with self._inner.activation(control) as activation:
            yield WatchedActivation(activation, self._acts, control.name, self._epoch_of)
