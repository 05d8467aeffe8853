"""Balancers of a broker, as threads ask them: in the program of the broker, and over a connection."""

from __future__ import annotations

from meshq import client as trio_client
from meshq.abc import BalancerTarget
from meshq.blocking._loop_thread import ThreadCall, ThreadLoop
from meshq.lb import balancer as trio_balancer
from meshq.node import BalancerFigures
from meshq.statistics import BalancerRoute, BalancerStatistics


class BrokerBalancer(BalancerFigures):
    """A balancer of a broker, returned by ``broker.balancer``.

    What a broker is given as a service is ``meshq.BrokerBalancer``.
    """

    def __init__(self, inner: trio_balancer.BrokerBalancer, loop: ThreadLoop) -> None:
        super().__init__(inner, loop)
        self._call = loop.call_active

    def target(self, key: str) -> BalancerTarget | None:
        """Return the target of a key, as for a client that has it; None after ``quorum_timeout`` if there is none.

        Interrupted: nothing is left.
        Raises:
            SettingsError: the key is no text.
            NotActiveError: the broker isn't active.
        """
        return self._call(self._inner.target, key)


class ClientBalancer:
    """A balancer of the broker that a client is connected to, returned by ``client.balancer``."""

    def __init__(self, call: ThreadCall, inner: trio_client.ClientBalancer) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._call = call

    def __repr__(self) -> str:
        return repr(self._inner)

    def target(self, key: str) -> BalancerTarget | None:
        """Return the target of a key, as for a client that has it; None after ``quorum_timeout`` if there is none.

        Interrupted: the key may have its target.
        Raises:
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.target, key)

    def explain_route(self, key: str) -> BalancerRoute:
        """Explain where a client with a key would go now, and why; nothing changes.

        Interrupted: nothing has changed.
        Raises:
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.explain_route, key)

    def statistics(self) -> BalancerStatistics:
        """Return the state, the counters and the targets of the balancer.

        Interrupted: nothing has changed.
        Raises:
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.statistics)

    def set_local_target_filter(self, text: str | None) -> None:
        """Set the filter of the keys that stay at the broker, for connections from now on, until it is restarted.

        Interrupted: it may hold afterwards or not.
        Raises:
            SettingsError: it is no expression, or one that could take long.
            NotFoundError: the broker has no such balancer.
            UsageError: it is None, and the balancer has no pool.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.set_local_target_filter, text)

    def set_target_key_filter(self, text: str | None) -> None:
        """Set the filter of keys, for connections from now on, until the broker is restarted; no key is remembered.

        Interrupted: it may hold afterwards or not.
        Raises:
            SettingsError: it is no expression, or one that could take long.
            NotFoundError: the broker has no such balancer.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.set_target_key_filter, text)
