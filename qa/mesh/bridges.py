"""The bridges of a simulated mesh: a ring, in which messages go round, a bridge whose target is full most of the time,
and a bridge whose target soon forgets ids.

In the *ring* each node has a queue and a bridge to the next one.  A transformer counts the hops; after two laps no
bridge takes a message any more, and it is received where it was sent.  Two senders at two nodes use the same duplicate
ids for different messages, so a bridge that had its target judge these would lose some.

*Outward* is a queue here and another one there, which may hold a few messages only and says no to all others; what it
refuses must come in the end, once, and none of it must be a dead letter.

*Brief* is a queue here and another one there, which remembers the ids of a few messages only, while a bridge may have
many more under way: what is sent again must come once all the same.
"""

from __future__ import annotations

import random
from typing import Final

import attrs

from meshq.bridge import Bridge
from meshq.client import Delivery
from meshq.message import Message
from meshq.settings import AddressSettings
from meshq.testing import Swarm
from meshq.testing.history._history import History, place_of
from qa.mesh.bursts.flood import Burst, Flood
from qa.simulation.workload import SETTINGS, Actor, Batch, Dial, Scene, Sender, Traffic
from qa.simulation.workload_receive import Queues, Receiver

#: The queues as the history knows them; ``outward`` is also the name of the one on the near side.
RING: Final = "ring"
OUTWARD: Final = "outward"
#: The queue on the far side, and where what is refused must never go, with the place by which the history knows it.
NARROW: Final = "narrow"
DEAD: Final = "outward.dead"
DEAD_PLACE: Final = "dead"
#: A queue on the near side, and on the far side one whose address remembers few ids.
BRIEF: Final = "brief"
FORGETFUL: Final = "forgetful"
#: So many; and the messages that are sent at a time, which are several times as many.
REMEMBERED: Final = (1, 2, 3)
BURST: Final = 30
LAPS: Final = 2
HOPS: Final = "hops"
RETRY_S: Final = 0.3
#: What a seed may have of bridges, and what they may come upon.
BRIDGE_SIGHTS: Final = (
    "bridge_broken",
    "bridge_refused",
    "bridge_waiting",
    "bridged",
    "forgetful_target",
    "full_target",
    "ring",
)


@attrs.frozen
class Way:
    """A bridge: from a queue of a node to an address of another node."""

    node: str
    queue: str
    there: str
    address: str
    #: So many hops a message makes in all; 0: it is not counted.
    hops: int = 0
    #: As many messages may be under way as in a bridge of which nobody says how many; otherwise the seed does.
    default_window: bool = False


def _hop(message: Message) -> Message:
    """The message, one hop further."""
    properties = dict(message.properties or {})
    properties[HOPS] = int(properties.get(HOPS) or 0) + 1
    return attrs.evolve(message, properties=properties)


class MeshBridges:
    """The bridges of one seed: which nodes are in the ring, and which two have the full target."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...]) -> None:
        self._swarm = swarm
        rng = swarm.rng("mesh/bridges")
        order = rng.sample(names, len(names))
        self.ring = tuple(order[: rng.choice((2, 2, 3))]) if swarm.on("mesh.ring") else ()
        self.outward = tuple(rng.sample(names, 2)) if swarm.on("mesh.full_target") else ()
        self._narrow = AddressSettings(
            full_policy="fail",
            max_size_messages=rng.choice((1, 5, 30)),
            duplicate_id_cache_size=rng.choice((20, 100, 2_000)),
        )
        self._window = rng.choice((5, 2_000))
        brief = swarm.rng("mesh/brief")
        self.brief = tuple(brief.sample(names, 2)) if swarm.on("mesh.forgetful_target") else ()
        self._forgetful = AddressSettings(auto_create_queues=False, duplicate_id_cache_size=brief.choice(REMEMBERED))
        #: A node that is gone for good; empty: all come back.
        self.gone = ""
        for sight in BRIDGE_SIGHTS:
            swarm.count(f"seen.{sight}", 0)
        swarm.count("seen.ring", int(bool(self.ring)))
        swarm.count("seen.full_target", int(bool(self.outward)))
        swarm.count("seen.forgetful_target", int(bool(self.brief)))

    @property
    def hops(self) -> int:
        """How many a message of the ring makes."""
        return LAPS * len(self.ring)

    @property
    def drained(self) -> list[str]:
        """The queues, by their names in the history, that are empty in the end."""
        ways = {RING: self.ring, OUTWARD: self.outward, BRIEF: self.brief}
        return [queue for queue, nodes in ways.items() if nodes and self.gone not in nodes]

    def ways(self, node: str) -> list[Way]:
        """The bridges of a node."""
        found = []
        if node in self.ring:
            after = self.ring[(self.ring.index(node) + 1) % len(self.ring)]
            found.append(Way(node, ring_queue(node), after, ring_queue(after), self.hops))
        if self.outward[:1] == (node,):
            found.append(Way(node, OUTWARD, self.outward[1], NARROW))
        if self.brief[:1] == (node,):
            found.append(Way(node, BRIEF, self.brief[1], FORGETFUL, default_window=True))
        return found

    def make(self, node: str) -> list[Bridge]:
        """The bridges of a node's life."""
        links = {key: value for key, value in SETTINGS.items() if key not in ("insecure", "retry_interval")}
        return [
            Bridge(
                f"{way.queue} to {way.there}",
                queue=way.queue,
                target=way.there,
                forwarding_address=way.address,
                filter=f"{HOPS} IS NULL OR {HOPS} < {way.hops}" if way.hops else None,
                transformer=_hop if way.hops else None,
                retry_interval=RETRY_S,
                **(links if way.default_window else {**links, "window": self._window}),
            )
            for way in self.ways(node)
        ]

    def queues(self, node: str) -> list[str]:
        """The queues that bridges need at a node."""
        found = [ring_queue(node)] if node in self.ring else []
        found += [OUTWARD, DEAD] if self.outward[:1] == (node,) else []
        found += [NARROW] if self.outward[1:] == (node,) else []
        found += [BRIEF] if self.brief[:1] == (node,) else []
        return found + ([FORGETFUL] if self.brief[1:] == (node,) else [])

    def settings(self, node: str) -> dict[str, AddressSettings]:
        """How the addresses of these behave; none of them comes into being where it is not."""
        patterns = ("ring-*", OUTWARD, DEAD, NARROW, BRIEF, FORGETFUL)
        found = {pattern: AddressSettings(auto_create_queues=False) for pattern in patterns}
        if self.outward[:1] == (node,):
            found[OUTWARD] = AddressSettings(
                auto_create_queues=False, dead_letter_address=DEAD, max_delivery_attempts=3
            )
        if self.outward[1:] == (node,):
            found[NARROW] = attrs.evolve(self._narrow, auto_create_queues=False)
        if self.brief[1:] == (node,):
            found[FORGETFUL] = self._forgetful
        return found

    def known(self, history: History) -> None:
        """Tell the history the moves between queues, and the queues that must stay empty."""
        if self.ring:
            history.expected.moves(RING)
        if self.outward:
            history.expected.moves(OUTWARD)
            dead = place_of(OUTWARD, f"{self.outward[0]}.{DEAD_PLACE}")
            history.expected.spares(dead, "its target says no")
        if self.brief:
            history.expected.moves(BRIEF)
            history.expected.forgets(BRIEF, self.brief[0], self._forgetful.duplicate_id_cache_size)

    def parted(self, history: History, node: str) -> None:
        """Tell the history that a node is gone for good.

        Even one that stops in peace may have answered over a connection that was lost on the way, and be gone before
        the next one is there.
        """
        if node in self.ring:
            history.expected.parts(place_of(RING, self.ring[self.ring.index(node) - 1]))
            history.expected.parts(place_of(RING, node))
            if history.expected.handed_over is not None:
                # Its queue stands there, and no bridge goes on with it.
                history.expected.parts(place(ring_queue(node), history.expected.handed_over[1]))

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the senders into bridges at a node, and the receivers of their messages."""
        actors: list[Actor] = []

        def about(role: str) -> tuple[Scene, str, random.Random, Dial]:
            name = f"{role}-{node}"
            return scene, name, self._swarm.rng(f"actor/{name}"), dial

        if node in self.ring[:2]:
            actors.append(Sender(*about("ring-sender"), RingTraffic(node)))
            actors.append(Receiver(*about("ring-receiver"), RingQueues(scene.history, node, self.hops)))
        if self.outward[:1] == (node,):
            actors.append(Sender(*about("outward-sender"), OutwardTraffic()))
        if self.outward[1:] == (node,):
            actors.append(Receiver(*about("narrow-receiver"), FarQueues((NARROW,), node)))
        if self.brief[:1] == (node,):
            actors.append(Flood(*about("brief-sender"), BRIEF_BURST))
        if self.brief[1:] == (node,):
            actors.append(Receiver(*about("forgetful-receiver"), FarQueues((FORGETFUL,), node)))
        return actors

    def look(self, bridges: list[Bridge]) -> None:
        """Count the incidents of the bridges of a life."""
        for bridge in bridges:
            seen = bridge.statistics()
            self._swarm.count("seen.bridged", int(seen.carried > 0))
            self._swarm.count("seen.bridge_refused", int(seen.refused > 0))
            self._swarm.count("seen.bridge_waiting", int(seen.state == "waiting"))
            self._swarm.count("seen.bridge_broken", int(seen.state == "connecting"))


def ring_queue(node: str) -> str:
    """The queue of a node in the ring."""
    return f"{RING}-{node}"


@attrs.frozen
class RingBatch(Batch):
    """Messages with duplicate ids that are each sender's own count, and so the same at two nodes."""

    first: int

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue of the ring."""
        return (RING,)

    def duplicate_id(self, uid: int) -> str | None:
        """The sender's count of a message."""
        return f"ring{self.first + self.uids.index(uid)}" if self.with_id else None


class RingTraffic(Traffic):
    """Durable messages into the ring, which have to come all the way round."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._count = 0

    def address(self, rng: random.Random) -> str:
        """The queue of the node in the ring."""
        return ring_queue(self._node)

    def batch(self, address: str, uids: tuple[int, ...], *, with_id: bool, durable: bool) -> Batch:
        """A batch of messages that are numbered here."""
        batch = RingBatch(address, uids, with_id, True, self._count)
        self._count += len(uids)
        return batch

    def known_id(self, batch: Batch, uid: int) -> str | None:
        """An id stands for one message at each node where it is sent."""
        sent = batch.duplicate_id(uid)
        return None if sent is None else f"{sent}@{self._node}"


class RingQueues(Queues):
    """The queue of a node in the ring, of which only messages are taken that have been all the way round."""

    def __init__(self, history: History, node: str, hops: int) -> None:
        super().__init__((RING,), node, only=f"{HOPS} >= {hops}")
        self._history = history
        self._hops = hops

    def opened(self, queue: str) -> str:
        """The queue of its node."""
        return ring_queue(self.node)

    def handed(self, delivery: Delivery, number: int) -> None:
        """Write down how far a message has come, and its sender's id."""
        found = delivery.duplicate_id
        known = None if found is None else f"{found.decode()}@{self.node}"
        self._history.carried(number, int((delivery.properties or {})[HOPS]), self._hops, known)


class OutwardBatch(Batch):
    """Messages for the other side."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue at both sides of the bridge."""
        return (OUTWARD,)


class OutwardTraffic(Traffic):
    """Durable messages to the near side."""

    def address(self, rng: random.Random) -> str:
        """The queue on the near side."""
        return OUTWARD

    def batch(self, address: str, uids: tuple[int, ...], *, with_id: bool, durable: bool) -> Batch:
        """A batch of messages for the other side."""
        return OutwardBatch(address, uids, with_id, True)


#: Small messages to the near side.
BRIEF_BURST: Final = Burst(BRIEF, size=BURST, body_bytes=0, durable_share=1.0)


class FarQueues(Queues):
    """Queues on the far side of bridges."""

    def place(self, queue: str) -> tuple[str, str]:
        """The queue and the place by which the history knows it."""
        known = logical(queue)
        assert known is not None
        return known, self.node


def logical(queue: str) -> str | None:
    """The queue as the history knows it; None: it has nothing to do with bridges."""
    if queue.startswith(f"{RING}-"):
        return RING
    if queue in (BRIEF, FORGETFUL):
        return BRIEF
    return OUTWARD if queue in (OUTWARD, DEAD, NARROW) else None


def place(queue: str, node: str) -> str:
    """The place of a queue of a bridge on a node.

    A node to which another one has handed over has queues of two nodes, whose numbers are their own.
    """
    known = logical(queue)
    assert known is not None
    near = {OUTWARD: "near", BRIEF: "near", DEAD: DEAD_PLACE}.get(queue, "")
    if known == RING and queue != ring_queue(node):
        near = queue
    return place_of(known, f"{node}.{near}" if near else node)
