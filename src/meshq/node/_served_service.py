"""A service that a node serves: its task, its cancellation and its end."""

from __future__ import annotations

import trio

from meshq.abc import LocalBroker, Service
from meshq.errors import UsageError


class ServedService:
    """A service of a node, from its start to its end."""

    def __init__(self, service: Service, broker: LocalBroker) -> None:
        self._service = service
        self._broker = broker
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until ``cancel``.

        Checkpoint: always.
        Cancellation: the service is cancelled.
        Raises:
            UsageError: the service returned without a report that it has started.
        """
        reported = False

        class ServiceStatus:
            def started(self, value: None = None) -> None:
                nonlocal reported
                task_status.started(value)
                reported = True

        try:
            with self._scope:
                await self._service.serve(self._broker, task_status=ServiceStatus())
        finally:
            self._ended.set()
        if not reported:
            # A service may have swallowed the cancellation of the node, which is no mistake of its own.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise UsageError(f"the service {self._service.name!r} returned from serve() and never reported started")

    def cancel(self) -> None:
        """Tell the service to end."""
        self._scope.cancel()

    async def wait_ended(self) -> None:
        """Wait until the service has ended.

        Checkpoint: if it has not.
        Cancellation: the service goes on.
        """
        await self._ended.wait()
