"""One turn of a node as the active one, from the opening of the store to the end of the turn."""

from __future__ import annotations

import trio

from meshq.abc import Activation, ActiveTerm, StepBack
from meshq.errors import UsageError
from meshq.node._node import Node


class StartReport:
    """The report that a broker has started, made once in all turns of the broker."""

    def __init__(self, task_status: trio.TaskStatus[None]) -> None:
        self._task_status = task_status
        self._made = False

    def make(self) -> None:
        """Report that the broker has started; later calls are silent."""
        if not self._made:
            self._made = True
            self._task_status.started()


class Turn:
    """A turn, which ends when the broker is stopped or the node has to step back."""

    def __init__(self, over: trio.Event) -> None:
        #: Set when the turn is over.
        self.over: trio.Event = over
        #: Around everything that the node does in the turn; cancelled if the node has to step back at once, or before
        #: it is active.
        self.scope: trio.CancelScope = trio.CancelScope()
        #: The node, as soon as it is active.
        self.node: Node | None = None
        #: Why the node has to step back; None: the broker was stopped, or the turn is not over.
        self.step_back: StepBack | None = None

    def watch(self, activation: Activation, stop: trio.Event, nursery: trio.Nursery) -> None:
        """End the turn when the activation is lost or the broker is stopped, with tasks in ``nursery``."""
        nursery.start_soon(self._watch_activation, activation)
        nursery.start_soon(self._watch_stop, stop)

    async def _watch_activation(self, activation: Activation) -> None:
        last: StepBack | None = None
        while True:
            order = checked_order(await activation.lost())
            if not self.over.is_set():
                self.step_back = order
                self.over.set()
            # Also a node that is stopping, or steps back already, may have to go at once.
            if order.at_once and self.node is not None:
                self.node.abandon(order.reason)
            if order.at_once or self.node is None:
                self.scope.cancel()
                return
            if order == last:
                return
            last = order

    async def _watch_stop(self, stop: trio.Event) -> None:
        await stop.wait()
        self.over.set()


def checked_term(term: object) -> ActiveTerm:
    """Return the term that a policy has given.

    Raises:
        UsageError: it is no term.
    """
    if type(term) is not ActiveTerm or not (term.data_dir is None or type(term.data_dir) is str):
        raise UsageError(f"the activation's wait() returned {term!r}; allowed is an ActiveTerm with a path, or without")
    return term


def checked_order(order: object) -> StepBack:
    """Return the order that a policy has given.

    Raises:
        UsageError: it is no order to step back.
    """
    if type(order) is not StepBack:
        raise UsageError(f"the activation's lost() returned {order!r}; allowed is a StepBack")
    return order
