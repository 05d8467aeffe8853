"""One turn of a node as the active one, from the opening of the store to the end of the turn."""

from __future__ import annotations

import trio

from meshq.abc import Activation, StepBack


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
        #: Around everything that the node does in the turn; cancelled if the node has to step back before it is active.
        self.scope: trio.CancelScope = trio.CancelScope()
        #: Whether the node is active.
        self.active: bool = False
        #: Why the node has to step back; None: the broker was stopped, or the turn is not over.
        self.step_back: StepBack | None = None

    def watch(self, activation: Activation, stop: trio.Event, nursery: trio.Nursery) -> None:
        """End the turn when the activation is lost or the broker is stopped, with tasks in ``nursery``."""
        nursery.start_soon(self._watch_activation, activation)
        nursery.start_soon(self._watch_stop, stop)

    async def _watch_activation(self, activation: Activation) -> None:
        step_back = await activation.lost()
        if not self.over.is_set():
            self.step_back = step_back
            self.over.set()
            if not self.active:
                self.scope.cancel()

    async def _watch_stop(self, stop: trio.Event) -> None:
        await stop.wait()
        self.over.set()
