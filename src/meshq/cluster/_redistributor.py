"""The redistributor of a cluster connection: moves messages that no consumer here can get to nodes that have one."""

from __future__ import annotations

from collections.abc import Callable

import trio

from meshq.abc import StrandedMessages
from meshq.cluster._redistribution_plan import STEP, RedistributionPlan
from meshq.concurrency import Wakeup
from meshq.errors import MeshqError, NotActiveError


class Redistributor:
    """Moves the messages of queues on the addresses of a cluster connection, when they have waited long enough."""

    def __init__(
        self, stranded: StrandedMessages, takes: Callable[[str], bool], warn: Callable[[str, str, str], None]
    ) -> None:
        self._stranded = stranded
        self._takes = takes
        self._warn = warn
        self._plan = RedistributionPlan()
        self._wakeup = Wakeup()
        # Where the task runs that moves; None: before the beginning, and after the end.
        self._nursery: trio.Nursery | None = None
        self._runs = False

    def begin(self, nursery: trio.Nursery) -> None:
        """Watch from now on, with a task that begins when a queue is stranded for the first time."""
        self._nursery = nursery
        self._stranded.watch(self._look)

    def end(self) -> None:
        """Look at nothing any more."""
        self._nursery = None

    async def _run(self) -> None:
        """Move the messages of each queue that is due, until cancelled, when moved messages stay where they are."""
        while True:
            with trio.move_on_after(self._plan.next_s(trio.current_time())):
                await self._wakeup.wait()
            self._wakeup.clear()
            for name in self._plan.due(trio.current_time()):
                await self._move(name)

    def _look(self, name: str) -> None:
        if self._nursery is None:
            return
        state = self._stranded.stranded(name)
        if state is not None and not self._takes(state.address):
            # Another cluster connection shares that address.
            state = None
        if not self._plan.see(name, state, trio.current_time()):
            return
        self._wakeup.wake()
        if not self._runs:
            self._runs = True
            self._nursery.start_soon(self._run)

    async def _move(self, name: str) -> None:
        """Move messages of a queue that was due; while others were moved it may have got a consumer."""
        if not self._plan.is_due(name, trio.current_time()):
            return
        self._plan.begins(name, trio.current_time())
        try:
            messages = await self._stranded.move(name, STEP)
        except MeshqError as error:
            # A node that stops ends this task soon.
            if not isinstance(error, NotActiveError):
                self._warn("redistribution_failed", f"messages of {name} stay for now: {error}", name)
            self._plan.failed(name, trio.current_time())
        else:
            self._plan.moved(name, messages, trio.current_time())
