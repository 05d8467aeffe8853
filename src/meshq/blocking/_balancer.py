"""Balancers of a broker, as threads ask them in the program of the broker."""

from __future__ import annotations

from meshq.abc import BalancerTarget
from meshq.blocking._loop_thread import ThreadLoop
from meshq.lb import balancer as trio_balancer
from meshq.node import BalancerFigures


class BrokerBalancer(BalancerFigures):
    """A balancer of a broker, returned by ``broker.balancer``.

    What a broker is given as a service is ``meshq.BrokerBalancer``.
    """

    def __init__(self, inner: trio_balancer.BrokerBalancer, loop: ThreadLoop) -> None:
        super().__init__(inner, loop)
        self._call = loop.call

    def target(self, key: str) -> BalancerTarget | None:
        """Return the target of a key, as for a client that has it; None after ``quorum_timeout`` if there is none.

        Interrupted: nothing is left.
        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._call(self._inner.target, key)
