"""A service of a broker whose loop runs in another thread, as the program around the broker asks it."""

from __future__ import annotations

from meshq.abc import Controllable, Service
from meshq.errors import UsageError
from meshq.portal import LoopThread
from meshq.statistics import BridgeStatistics


class ServiceInThread:
    """A service of a broker in another thread, returned by the broker's ``service``.

    Each call runs in the broker's loop.  A cluster connection has more calls: ``broker.cluster`` returns them.
    """

    def __init__(self, inner: Service, loop: LoopThread) -> None:
        self.name: str = inner.name
        self.kind: str = inner.kind
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    def statistics(self) -> BridgeStatistics:
        """Return the state and counters of the service.

        Raises:
            UsageError: the service has no counters.
        """
        return self._loop.run_sync_if_open(self._controllable().statistics)

    def pause(self) -> None:
        """Pause the service until ``resume``; twice is silent.

        Raises:
            UsageError: the service can't be paused.
        """
        self._loop.run_sync_if_open(self._controllable().pause)

    def resume(self) -> None:
        """Resume the service; twice is silent.

        Raises:
            UsageError: the service can't be paused.
        """
        self._loop.run_sync_if_open(self._controllable().resume)

    def _controllable(self) -> Controllable:
        if not isinstance(self._inner, Controllable):
            raise UsageError(f"the service {self.name!r} of the kind {self.kind!r} has no counters and no pause")
        return self._inner
