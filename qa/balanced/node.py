"""A broker of the simulated balancers."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import trio

from meshq.errors import MeshqError
from meshq.lb.balancer import BrokerBalancer, StaticPool
from meshq.node import Broker
from meshq.testing import SimNode
from qa.balanced.shape import CHECK_S, CLIENT_PORT, PORT, QUORUM_S, TARGETS, BalancedShape
from qa.simulation.broker import STOP_S

#: Seconds in which what nothing holds up has come to its end.
PATIENCE_S: Final = 30.0


class BalancedNode:
    """A broker over all its lives; it has nothing on a disk, and the same id in each."""

    def __init__(self, node: SimNode, shape: BalancedShape) -> None:
        self.node = node
        self.name: str = node.name
        self._shape = shape
        #: Whether the other brokers can't reach it, by the network's doing.
        self.apart = False
        self.broker: Broker = self._make()
        node.spawn(self._run, self.broker)

    def _make(self) -> Broker:
        urls = [f"tcp://{self.name}:{PORT}?insecure=true"]
        services = []
        if self.name in self._shape.fronts:
            pool = StaticPool(
                [f"tcp://{name}:{PORT}" for name in TARGETS],
                insecure=True,
                check_period=CHECK_S,
                quorum_size=self._shape.quorum,
                quorum_timeout=QUORUM_S,
                local_target_enabled=self._shape.symmetric,
            )
            services.append(BrokerBalancer("lb", pool=pool, **self._shape.balancer()))
            urls.append(f"tcp://{self.name}:{CLIENT_PORT}?insecure=true&redirect_to=lb")
        return Broker(
            self.name,
            data_dir=None,
            node_id=self.name.encode().ljust(16, b"-"),
            acceptors=urls,
            services=services,
            stop_timeout=STOP_S,
            env=self.node.env,
        )

    async def _run(self, broker: Broker) -> None:
        with suppress(MeshqError):
            await broker.run()

    def up(self) -> None:
        """Begin a new life if the last one is over."""
        self.node.resume()
        if self.node.state == "dead":
            self.node.start()
            self.broker = self._make()
            self.node.spawn(self._run, self.broker)

    async def stop(self) -> None:
        """End this life in peace."""
        if not self.running:
            return
        self.node.spawn(self.broker.stop)
        with trio.move_on_after(2 * STOP_S):
            while self.broker.state != "stopped":  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.1)
        self.node.kill()

    @property
    def running(self) -> bool:
        """Whether it is active, and not held."""
        return self.node.state == "running" and self.broker.state == "active"

    @property
    def clients(self) -> int:
        """The clients that are connected now."""
        serving = self.broker._node
        return serving.sessions.clients if serving is not None else 0

    @property
    def balancer(self) -> BrokerBalancer:
        """Its balancer in this life."""
        return self.broker.balancer("lb")

    def ready(self) -> set[str]:
        """The names of the ready targets, as its balancer knows them."""
        return {row.node_name for row in self.balancer.statistics().targets if row.state == "ready"}
