"""Balancers of a broker, as tasks of asyncio ask them: in the program of the broker, and over a connection."""

from __future__ import annotations

from typing import Final

from meshq import client as trio_client
from meshq.aio._loop_thread import TaskCall, TaskLoop, forwarded
from meshq.lb import balancer as trio_balancer
from meshq.node import BalancerFigures


class BrokerBalancer(BalancerFigures):
    """A balancer of a broker, returned by ``broker.balancer``.

    What a broker is given as a service is ``meshq.BrokerBalancer``.
    """

    def __init__(self, inner: trio_balancer.BrokerBalancer, loop: TaskLoop) -> None:
        super().__init__(inner, loop)
        self._call = loop.call_active

    target: Final = forwarded(trio_balancer.BrokerBalancer.target)


class ClientBalancer:
    """A balancer of the broker that a client is connected to, returned by ``client.balancer``."""

    def __init__(self, call: TaskCall, inner: trio_client.ClientBalancer) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._call = call

    def __repr__(self) -> str:
        return repr(self._inner)

    target: Final = forwarded(trio_client.ClientBalancer.target)
    explain_route: Final = forwarded(trio_client.ClientBalancer.explain_route)
    statistics: Final = forwarded(trio_client.ClientBalancer.statistics)
    set_local_target_filter: Final = forwarded(trio_client.ClientBalancer.set_local_target_filter)
    set_target_key_filter: Final = forwarded(trio_client.ClientBalancer.set_target_key_filter)
