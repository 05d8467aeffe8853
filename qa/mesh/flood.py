"""A sender of more messages at a time than the nodes of a simulated mesh have memory for."""

from __future__ import annotations

from typing import Any, Final

import trio

from meshq.client import Client
from meshq.errors import MeshqError
from meshq.message import Message
from qa.checkers.history import body_of
from qa.simulation.workload import Actor

#: A burst is more than half of the memory that a node may have, and what a link may have under way, ten times.
BURST: Final = 40
BURST_BYTES: Final = 15_000
ADDRESS: Final = "shared"


class Flood(Actor):
    """Sends bursts of large messages to one queue, which go to the disk, or wait, or are refused."""

    address = ADDRESS
    burst = BURST
    burst_bytes = BURST_BYTES
    #: How many of the bursts are durable.
    durable_share = 0.7

    def extras(self, uid: int) -> dict[str, Any]:
        """Return the options of a message."""
        return {}

    async def use(self, client: Client) -> None:
        """Some bursts.  Checkpoint: always.  Cancellation: ends it.  Raises: nothing."""
        for _ in range(self.rng.randrange(1, 10)):
            if self.finished:
                return
            await self._burst(client)
            await trio.sleep(self.rng.expovariate(0.3))

    async def _burst(self, client: Client) -> None:
        history, ops, messages = self.history, list[int](), list[Message]()
        durable = self.rng.random() < self.durable_share
        for _ in range(self.burst):
            uid = self.scene.uid()
            extras = self.extras(uid)
            body = body_of(uid, self.burst_bytes)
            messages.append(Message(body, duplicate_id=f"d{uid}", durable=durable, **extras))
            op = history.sent(
                self.name,
                self.address,
                uid,
                producer=f"{self.name}/{self.clients}",
                duplicate_id=f"d{uid}",
                durable=durable,
                node=self.node,
                delay_s=extras.get("delay", 0.0),
            )
            ops.append(op)
        try:
            await client.send_many(self.address, messages)
        except MeshqError as error:
            self.history.note(f"{self.name}: {error!r}")
            for op in ops:
                history.send_failed(op, "unknown")
        else:
            for op in ops:
                history.send_ok(op)
            self.scene.confirmed += self.burst
