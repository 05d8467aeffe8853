"""Clients of a node that drains, in the simulated mesh: with sends that have no answer, and messages that they hold."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

import attrs
import trio

from meshq import ClientFactory, FailedOver, MeshqError, ScaledDown
from meshq.broker import inventory
from meshq.client import Client, ConnectionEvent, Consumer, watch
from meshq.testing import SimNode, Simulation
from meshq.testing.history._history import body_of
from qa.mesh.node import MeshNode
from qa.simulation.workload import CLIENT_SETTINGS, Scene

#: The queue to which they send, and the one whose messages they hold: ``UNACKED_MESSAGES`` of them.
OPEN: Final = "drained.open"
UNACKED: Final = "drained.unacked"
UNACKED_MESSAGES: Final = 40
#: Sends at a time, and seconds between two of one sender, at most; and sends in all.
SENDERS: Final = 4
PAUSE_S: Final = 0.2
SENDS_MAX: Final = 400
#: Seconds in which a client has its first messages, in which it comes to its end, and after which a queue has no more.
BEGUN_S: Final = 10.0
ENDED_S: Final = 30.0
QUIET_S: Final = 2.0
SENT_AWAY_SIGHTS: Final = (
    "sent_away",
    "sent_away_held_back",
    "sent_away_let_in",
    "sent_away_redelivered",
    "sent_away_sent_again",
)


class SentAway:
    """The machine of a client of the node that leaves, which is told where to go and is let in there at the end."""

    def __init__(self, simulation: Simulation, scene: Scene) -> None:
        self.node: SimNode = simulation.node("sent-away")
        self._scene = scene
        self._swarm = simulation.swarm
        self._rng = simulation.swarm.rng("mesh/sent away")
        self._leaving: MeshNode | None = None
        # What was confirmed, what has no answer yet, and what may be there twice: it was sent again to a node to which
        # no other one has sent the client.
        self._confirmed: list[int] = []
        self._open: dict[int, None] = {}
        self._doubtful: dict[int, None] = {}
        # The messages that were held, and how many of these came again unmarked.
        self._held: dict[bytes, str] = {}
        self._unmarked = 0
        # The client was sent away, and is not back; who served it last; and how often it was let in too early.
        self._away = False
        self._served_by = ""
        self._early = 0
        self._begun = trio.Event()
        self._over = trio.Event()
        self._ended = trio.Event()
        for sight in SENT_AWAY_SIGHTS:
            self._count(sight, 0)

    def _count(self, sight: str, number: int = 1) -> None:
        self._swarm.count(f"seen.{sight}", number)

    async def begin(self, node: MeshNode) -> None:
        """Start the client at the node that leaves, and wait until it holds messages.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        self._leaving = node
        self.node.spawn(self._run, name="sent away")
        with trio.move_on_after(BEGUN_S):
            await self._begun.wait()

    @property
    def told(self) -> bool:
        """Whether the client was sent away, and has no node yet."""
        return self._away

    # -- the client

    async def _run(self) -> None:
        assert self._leaving is not None
        factory = ClientFactory(
            f"tcp://{self._leaving.place}:5000",
            env=attrs.evolve(self.node.env, local={}),
            client_id="sent-away",
            **CLIENT_SETTINGS,
        )
        async with factory.connect() as client:
            watch(client, self)
            async with client.consumer(UNACKED, window=UNACKED_MESSAGES) as consumer, trio.open_nursery() as nursery:
                nursery.start_soon(self._hold, client, consumer)
                for _ in range(SENDERS):
                    nursery.start_soon(self._send, client)
                await self._over.wait()
                while self._open:  # noqa: ASYNC110 - a sender ends when its send has an answer
                    await trio.sleep(PAUSE_S)
                nursery.cancel_scope.cancel()
        self._ended.set()

    async def _send(self, client: Client) -> None:
        """Send messages under duplicate ids, each until it is confirmed."""
        while not self._over.is_set() and len(self._confirmed) < SENDS_MAX:
            uid = self._scene.uid()
            self._open[uid] = None
            while uid in self._open:
                try:
                    await client.send(OPEN, body_of(uid), duplicate_id=f"sent-{uid}")
                except MeshqError:
                    await trio.sleep(PAUSE_S)
                else:
                    del self._open[uid]
                    self._confirmed.append(uid)
            await trio.sleep(PAUSE_S * self._rng.random())

    async def _hold(self, client: Client, consumer: Consumer) -> None:
        """Receive, and settle nothing."""
        while True:
            with suppress(MeshqError):
                for one in await consumer.receive_many(UNACKED_MESSAGES, timeout=1.0):
                    before, self._held[one.body] = self._held.get(one.body), client.statistics().node_name
                    if before is not None:
                        self._count("sent_away_redelivered")
                        self._unmarked += not one.redelivered
            if len(self._held) == UNACKED_MESSAGES:
                self._begun.set()

    # -- its events

    def put(self, event: ConnectionEvent) -> None:
        """Take an event of the connection."""
        assert self._leaving is not None
        if isinstance(event, ScaledDown):
            self._count("sent_away")
            self._away = True
        elif isinstance(event, FailedOver):
            elsewhere = event.node_name != self._leaving.place
            # What it has sent since to another node, which has died, is handed over by nobody.
            if elsewhere and self._away and self._served_by in ("", self._leaving.place):
                self._count("sent_away_let_in")
                self._count("sent_away_sent_again", int(bool(self._open)))
                self._early += self._is_left()
            elif not event.same_node:
                # As after any failover, the node may know nothing of what another one has stored; and what is routed
                # anew goes where a consumer is.  So it ends.
                self._doubtful.update(self._open)
                self._over.set()
            self._away, self._served_by = False, event.node_name

    def close(self) -> None:
        """Take no event any more."""

    def _is_left(self) -> bool:
        """Whether the node that leaves has something that another one lacks, as far as it can be asked."""
        core = self._leaving.core if self._leaving is not None else None
        return core is not None and core.closing.why is not None and not inventory(core).empty

    # -- judging

    async def judge(self, leaving: MeshNode, nodes: list[MeshNode]) -> None:
        """End the client, and receive all that it has sent, once each.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        self._over.set()
        with trio.move_on_after(ENDED_S):
            await self._ended.wait()
        self.node.kill()
        found: Counter[bytes] = Counter()
        for node in nodes:
            self._count("sent_away_held_back", node.held_back)
            async with node.client() as client, client.consumer(OPEN) as consumer:
                while batch := await consumer.receive_many(50, timeout=QUIET_S):
                    found.update(one.body for one in batch)
                    await consumer.ack(*batch, confirm=True)
        sure = {body_of(uid) for uid in self._confirmed}
        doubtful = {body_of(uid) for uid in self._doubtful}
        doubled = sum(number > 1 for body, number in found.items() if body not in doubtful)
        leaving.left("clients that were sent away and have no end", int(not self._ended.is_set()))
        leaving.left("clients that were let in before everything was there", self._early)
        leaving.left("confirmed sends of clients that were sent away, lost", len(sure - found.keys()))
        leaving.left("sends of clients that were sent away, doubled", doubled)
        leaving.left("messages that clients held before, and that came again unmarked", self._unmarked)
