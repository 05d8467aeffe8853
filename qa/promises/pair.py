"""A pair of simulated nodes, or one node alone, and a client that sends all the while."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from typing import Any, Final

import trio

from meshq import MeshqError, Message, connect
from meshq.testing import SimNode, Simulation
from qa.ha.pair import TTL_S, Policies, SimulatedPair, shared_store, voted

QUEUE: Final = "orders"
CLIENT: Final = "client"
#: Seconds between two messages of the client.
PACE_S: Final = 0.3
#: Bodies are not small, so that a full disk is soon noticed.
BODY_BYTES: Final = 4096


class PromisePair(SimulatedPair):
    """The nodes, the client and its accounts."""

    def __init__(self, simulation: Simulation, policies: Policies) -> None:
        super().__init__(simulation, policies, shared=policies is shared_store)
        self.client: SimNode = simulation.node(CLIENT)
        self.sent: int = 0
        #: When each message was confirmed, by its number.
        self.confirmed: dict[int, float] = {}
        self.over: bool = False

    async def form(self) -> None:
        """Start the nodes, and the client when the pair is whole."""
        await super().form()
        self.client.spawn(self._send)

    async def _send(self) -> None:
        places = ",".join(url.partition("?")[0] for url in self.urls.values())
        url = f"({places})?insecure=true" if len(self.urls) > 1 else self.a.url
        # The voters take messages, too, which are looked for at the pair.
        url += "&use_topology=false" if self.policies is voted else ""
        patient: dict[str, Any] = {"initial_connect_attempts": 10_000, "max_retry_interval": 0.5, "call_timeout": 2}
        async with connect(
            url, env=self.client.env, reconnect_attempts=math.inf, retry_interval=0.1, connection_ttl=TTL_S, **patient
        ) as client:
            while not self.over:
                number, self.sent = self.sent, self.sent + 1
                message = Message((b"%d" % number).ljust(BODY_BYTES), duplicate_id=f"order-{number}")
                while not self.over and number not in self.confirmed:
                    with suppress(MeshqError):
                        await client.send(QUEUE, message)
                        self.confirmed[number] = trio.current_time()
                    await trio.sleep(PACE_S)

    def without_service(self, since: float) -> float:
        """The longest time after ``since`` in which no message was confirmed; seconds."""
        moments = [since, *sorted(at for at in self.confirmed.values() if at > since), trio.current_time()]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))

    def recently(self, seconds: float) -> bool:
        """Whether a message was confirmed within the last seconds."""
        return any(at > trio.current_time() - seconds for at in self.confirmed.values())

    async def left(self) -> list[int]:
        """Take all messages out of the queue of each node that serves."""
        found: list[int] = []
        for name in self.serving:
            async with (
                connect(self.nodes[name].url, env=self.client.env, use_topology=False) as client,
                client.consumer(QUEUE) as consumer,
            ):
                while (delivery := await consumer.receive(timeout=2)) is not None:
                    found.append(int(bytes(delivery.body)))
                    await consumer.ack(delivery, confirm=True)
        return found
