"""A task that a test has started on a node, or beside all nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from meshq.errors import ClosedError
from meshq.lifecycle import LifeCycle, Transitions
from meshq.testing.kit._left_open import called

#: ``kill``: the node has died.  ``return``, ``raise``: the function did.  ``cancel``: the task was cancelled.
SPAWNED_TASK_TRANSITIONS: Final[Transitions] = {
    "running": {"kill": "killed", "return": "done", "raise": "failed", "cancel": "cancelled"},
    "killed": {},
    "done": {},
    "failed": {},
    "cancelled": {},
}


class SpawnedTask:
    """A task that ``cluster.spawn`` has started.

    ``node``: its node, which it dies with; None: it is of the test.
    """

    def __init__(self, function: Callable[..., Awaitable[Any]], node: str | None) -> None:
        text = getattr(function, "__qualname__", repr(function))
        self.name: str = text if node is None else f"{text} on {node}"
        self.node: str | None = node
        self._life = LifeCycle(f"the task {self.name}", SPAWNED_TASK_TRANSITIONS, "running")
        self._over = trio.Event()
        self._scope = trio.CancelScope()
        self._value: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<SpawnedTask {self.name} {self.state}>"

    @property
    def state(self) -> str:
        """``running``, ``done``, ``failed``, ``cancelled``, or ``killed`` with its node."""
        return self._life.state

    def cancel(self) -> None:
        """Cancel the task, as a cancel scope does; nothing happens if it has ended."""
        self._scope.cancel()

    async def wait(self) -> Any:
        """Wait until the task has ended, and return the value of its function.

        Checkpoint: always.
        Cancellation: the task goes on.
        Raises:
            ClosedError: the task was cancelled, or has died with its node.
        """
        await self._over.wait()
        if self._error is not None:
            raise self._error
        if self.state != "done":
            raise ClosedError(f"the task {self.name} was {self.state}")
        return self._value

    def killed(self) -> None:
        """End the task with its node."""
        self._end("kill")

    async def run(self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> None:
        """Run the function.  Checkpoint: as the function.  Cancellation: the same.

        Raises: what the function raises.
        """
        try:
            with self._scope:
                self._value = await called(function, arguments, f"the task {self.name}")
                self._end("return")
        except BaseException as error:
            self._error = error
            self._end("raise")
            raise
        self._end("cancel")

    def _end(self, event: str) -> None:
        if self.state == "running":
            self._life.on(event)
            self._over.set()
