"""A sender of more messages at a time than the nodes of a simulated mesh have memory for."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import attrs
import trio

from meshq.client import Client
from meshq.errors import MeshqError
from meshq.message import Message
from meshq.testing.history._history import body_of
from qa.simulation.workload import Actor, Dial, Scene

#: A burst is more than half of the memory that a node may have, and what a link may have under way, ten times.
BURST: Final = 40
BURST_BYTES: Final = 15_000
ADDRESS: Final = "shared"
#: Bursts a second, about: a burst costs as much as a minute of a node that has nothing to do.
BURSTS_PACE: Final = 0.1


@attrs.frozen(kw_only=True)
class Burst:
    """Messages that are sent at a time to one queue."""

    address: str = attrs.field(kw_only=False)
    size: int = BURST
    body_bytes: int = BURST_BYTES
    #: How many of the bursts are durable.
    durable_share: float = 0.7
    #: The delays of messages, which follow from their numbers; empty: none waits.
    delays_s: tuple[float, ...] = ()
    #: The groups of messages, which follow from their numbers; empty: they have none.
    groups: tuple[str, ...] = ()

    def delay_s(self, uid: int) -> float:
        """How long a message waits, in seconds."""
        return self.delays_s[uid % len(self.delays_s)] if self.delays_s else 0.0


#: Seconds between two bursts at most: whoever rests has to come to an end when all others do.
PAUSE_S_MAX: Final = 40.0
#: Large messages, which go to the disk, or wait, or are refused.
LARGE: Final = Burst(ADDRESS)


class Flood(Actor):
    """Sends bursts of messages to one queue."""

    def __init__(
        self,
        scene: Scene,
        name: str,
        rng: random.Random,
        dial: Dial,
        burst: Burst = LARGE,
        *,
        may_send: Callable[[], bool] | None = None,
    ) -> None:
        """``may_send``: whether it is time to send; None: it is."""
        super().__init__(scene, name, rng, dial)
        self._burst = burst
        self._may_send = may_send

    async def use(self, client: Client) -> None:
        """Some bursts.  Checkpoint: always.  Cancellation: ends it.  Raises: nothing."""
        for _ in range(self.rng.randrange(1, 10)):
            if self.finished:
                return
            if self._may_send is None or self._may_send():
                await self._send(client)
            await trio.sleep(min(self.rng.expovariate(BURSTS_PACE), PAUSE_S_MAX))

    async def _send(self, client: Client) -> None:
        burst = self._burst
        history, ops, messages = self.history, list[int](), list[Message]()
        durable = self.rng.random() < burst.durable_share
        for _ in range(burst.size):
            uid = self.scene.uid()
            delay_s = burst.delay_s(uid)
            body = body_of(uid, burst.body_bytes)
            extras: dict[str, Any] = {"delay": delay_s} if burst.delays_s else {}
            if burst.groups:
                extras["group"] = burst.groups[uid % len(burst.groups)]
            messages.append(Message(body, duplicate_id=f"d{uid}", durable=durable, **extras))
            op = history.sent(
                self.name,
                burst.address,
                uid,
                producer=f"{self.name}/{self.clients}",
                duplicate_id=f"d{uid}",
                durable=durable,
                node=self.node,
                delay_s=delay_s,
            )
            ops.append(op)
        try:
            await client.send_many(burst.address, messages)
        except MeshqError as error:
            self.history.note(f"{self.name}: {error!r}")
            for op in ops:
                history.send_failed(op, "unknown")
        else:
            for op in ops:
                history.send_ok(op)
            self.scene.confirmed += burst.size
