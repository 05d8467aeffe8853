"""The simulated chain: three to five brokers of which each is linked to its neighbours only, in a chain or a ring.

``run_chain_seed`` is one seed.  Nobody consumes while nodes die and links break, so that at the end each message that
was confirmed has to stand in exactly one queue; then it is looked at who knows which queues, how messages are dealt
that are sent in peace, how many links they cross, and whether stranded ones come to where they are consumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import trio

from meshq.client import Client, connect
from meshq.errors import MeshqError
from meshq.testing import MemoryNetwork, Simulation, SimulationResult
from meshq.testing.history._delivery import Violation
from meshq.testing.history._end import HistoryError
from meshq.testing.history._history import History
from qa.chain.explained import explain
from qa.chain.node import PATIENCE_S, QUEUE, HopNode
from qa.chain.shape import KINDS, Shape
from qa.chain.stranded import STRANDED, ChainStranded
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome
from qa.simulation.workload import CLIENT_SETTINGS

#: Simulated seconds of faults, and by which a seed must be done.
DURATION_S: Final = 20.0
LIMIT_S: Final = 600.0
#: A queue of one node, which is deleted while the others may not see it.
RETIRED: Final = "retired"
#: A queue of the same node, which is deleted in peace: then no new session tells anybody what there is.
PARTING: Final = "parting"
#: Messages that are sent from each node in peace.
PEACEFUL: Final = 24


class Chain:
    """The nodes and the clients of a seed, and the violations that were found."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.shape = Shape(simulation)
        self.rng = simulation.swarm.rng("hops")
        self.history = History(trio.current_time)
        self.violations: list[Violation] = []
        self.clients = {name: simulation.node(f"client-{name}") for name in self.shape.names}
        self.stranded = ChainStranded(self.shape, simulation.swarm.rng("hops/stranded"), self._client)
        settings = self.stranded.address_settings()
        self.nodes = {
            name: HopNode(simulation.node(name), self.shape, (QUEUE, STRANDED), settings) for name in self.shape.names
        }
        self.confirmed: dict[str, list[bytes]] = {QUEUE: [], STRANDED: []}
        self.faults = 0
        self.closing = False
        self.left = 0

    def wrong(self, checker: str, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(Violation(checker, what))

    # -- clients

    def start(self) -> None:
        """Start clients that send at some nodes, and clients that consume at the nodes with the queue."""
        senders = [name for name in self.shape.names if self.reached(name)]
        for name in self.rng.sample(senders, min(2, len(senders))):
            self.left += 1
            self.clients[name].spawn(self._send, name)
        if self.shape.mode == "on_demand":
            for name in self.shape.owners:
                self.clients[name].spawn(self._ask, name)
        self.simulation.node("roamer").spawn(self.stranded.roam, lambda: self.closing)

    def reached(self, name: str) -> dict[str, int]:
        """The nodes with the queue that messages of a node reach, and how far away these are."""
        return {there: away for there, away in self.shape.distances(name).items() if there in self.shape.owners}

    def _client(self, name: str) -> Client:
        """Connect to a node, and stay with it: the other nodes do not know which ids it has taken."""
        env = self.clients[name].env
        return connect(f"tcp://{name}:5000", env=env, use_topology=False, **CLIENT_SETTINGS)

    async def _send(self, name: str) -> None:
        number, pause = 0, self.rng.choice((0.05, 0.2))
        while not self.closing:
            # Where nobody consumes a queue of another node, messages stay in one of this node.
            queue = STRANDED if number % 3 == 0 and name in self.shape.owners else QUEUE
            await self._send_one(name, b"%s-%d" % (name.encode(), number), queue)
            number += 1
            await trio.sleep(pause)
        self.left -= 1

    async def _send_one(self, name: str, body: bytes, queue: str = QUEUE) -> None:
        """Send a message until it is confirmed: it is one message, however often it is sent."""
        while True:
            try:
                async with self._client(name) as client:
                    await client.send(queue, body, duplicate_id=body)
            except MeshqError:
                await trio.sleep(0.5)
            else:
                self.confirmed[queue].append(body)
                return

    async def _ask(self, name: str) -> None:
        """Consume without acknowledging anything: a node that asks for messages, and keeps them."""
        while not self.closing:
            with suppress(MeshqError):
                async with (
                    self._client(name) as client,
                    client.consumer(QUEUE),
                ):
                    await self._until_closing()
            await trio.sleep(0.2)

    async def _until_closing(self) -> None:
        while not self.closing:  # noqa: ASYNC110 - looking costs nothing here
            await trio.sleep(0.2)

    # -- faults

    async def suffer(self) -> None:
        """Go through the faults of a seed."""
        end = trio.current_time() + DURATION_S
        retired = trio.current_time() + self.rng.uniform(0.2, 0.8) * DURATION_S
        while trio.current_time() < end:
            await trio.sleep(self.rng.uniform(0.1, 3.0))
            kind = self.rng.choice(KINDS)
            await self._happens(kind, self.rng.choice(self.shape.names))
            await trio.sleep(self.rng.choice((0.1, 1.0, 6.0)))
            if trio.current_time() > retired:
                retired = end * 2
                if self.rng.random() < 0.5:
                    # Then no session tells of the end: the next one has the queue no more.
                    self.nodes[self.shape.retiring].node.kill()
                await self._delete(RETIRED)
            self.mend()
        self.mend()

    async def _happens(self, kind: str, name: str) -> None:
        fabric, node = self._network, self.nodes[name].node
        other = self.rng.choice([one for one in self.shape.names if one != name])
        self.faults += 1
        self.simulation.swarm.count(f"fault.{kind}")
        self.history.note(f"{kind} at {name}, with {other}")
        if kind in ("kill", "both"):
            node.kill()
        if kind == "both":
            self.nodes[other].node.power_off()
        if kind == "power":
            node.power_off()
        elif kind == "pause":
            node.pause()
        elif kind == "cut":
            fabric.partition([name], [other])
        elif kind == "isolated":
            fabric.partition([name], [one for one in self.shape.names if one != name])
        elif kind == "reset":
            fabric.reset(name, other)
        elif kind == "left":
            # A node between begins anew while one behind it is not there, and has said goodbye.
            await self.nodes[name].stop()
            self.simulation.swarm.count("seen.left")
            self.nodes[other].node.kill()
            await trio.sleep(self.rng.choice((0.1, 1.0)))
            self.nodes[other].up()

    @property
    def _network(self) -> MemoryNetwork:
        fabric = self.simulation.fabric
        assert isinstance(fabric, MemoryNetwork)
        return fabric

    def mend(self) -> None:
        """End the faults, and start the nodes that are down."""
        self._network.heal()
        for node in self.nodes.values():
            node.up()

    async def _delete(self, queue: str) -> None:
        """Delete a queue of a node, which may be apart from the others."""
        node = self.nodes[self.shape.retiring]
        node.up()
        await node.active()
        with suppress(MeshqError):
            async with node.broker.client() as client:
                if queue in await client.queues():
                    await client.delete_queue(queue)
                    self.simulation.swarm.count("seen.retired", int(queue == RETIRED))
                    self.history.note(f"{queue} is deleted at {node.name}")

    # -- the end

    async def furnish(self) -> None:
        """Make the queues that will go."""
        node = self.nodes[self.shape.retiring]
        await node.active()
        async with node.broker.client() as client:
            for queue in (RETIRED, PARTING):
                await client.create_queue(queue)

    async def settle(self, what: str) -> None:
        """Wait until all links are there and no message is on its way."""
        quiet = 0
        with trio.move_on_after(PATIENCE_S):
            while quiet < 10:
                await trio.sleep(0.2)
                quiet = quiet + 1 if all(node.peaceful() for node in self.nodes.values()) else 0
            return
        peers = {name: [(p.state, p.waiting) for p in node.cluster.peers()] for name, node in self.nodes.items()}
        self.wrong("H1", f"{what}: not done after {PATIENCE_S:g} s: {peers}")

    async def part(self) -> None:
        """Delete a queue in peace."""
        await self._delete(PARTING)
        await self.settle(f"after the end of {PARTING}")

    async def know(self) -> None:
        """Check that each node knows exactly the queues that messages of it can reach, and how far away these are."""
        there = {}
        for name, node in self.nodes.items():
            async with node.broker.client() as client:
                there[name] = await client.queues()
        for name, node in self.nodes.items():
            wanted = {
                (other, queue): away
                for other, away in self.shape.distances(name).items()
                for queue in there[other]
                if away and not queue.startswith("$")
            }
            found = node.known()
            if found != wanted:
                self.wrong("H2", f"{name} knows {found}; its links lead to {wanted} within {self.shape.hops} hops")

    async def share(self) -> None:
        """Check how messages are dealt that are sent in peace from each node, and how many links they cross."""
        for name in self.shape.names:
            reached = self.reached(name)
            if not reached or self.shape.mode != "strict":
                continue
            before, crossed = await self.counts(), self.crossed()
            for number in range(PEACEFUL):
                await self._send_one(name, b"%s+%d" % (name.encode(), number))
            await self.settle(f"from {name}")
            after, crossed = await self.counts(), self.crossed() - crossed
            got = {there: after[there] - before[there] for there in self.shape.owners}
            if sum(got.values()) != PEACEFUL or any(
                (there not in reached and count) or (there in reached and abs(count - PEACEFUL / len(reached)) > 1)
                for there, count in got.items()
            ):
                self.wrong("H3", f"of {PEACEFUL} messages from {name} to {reached} each node got {got}")
            links = sum(count * reached.get(there, 0) for there, count in got.items())
            if crossed != links:
                self.wrong("H4", f"{PEACEFUL} from {name}, dealt as {got}, crossed {crossed} links, not {links}")

    async def explain(self) -> None:
        """Check that each node names the cause that keeps its messages from a client which consumes at one node."""
        shape, owners = self.shape, self.shape.owners

        def causes(name: str, place: str) -> tuple[str, ...]:
            if place in self.reached(name):
                # The address has no redistribution_delay.
                return ("no_redistribution",)
            if place not in shape.distances(name, len(shape.names)):
                return ()
            # Where links lead one way, who is linked to a node need not be who can ask it.
            return ("hop_limit",) if shape.both else ("hop_limit", "")

        far = [place for place in owners if any(causes(name, place) == ("hop_limit",) for name in owners)]
        place = self.rng.choice(far or owners)
        others = [self.nodes[name] for name in owners if name != place]
        async with self._client(place) as client:
            found, wrong = await explain(QUEUE, others, client.consumer(QUEUE), lambda node: causes(node.name, place))
        for sight, number in found.items():
            self.simulation.swarm.count(f"seen.{sight}", number)
        for what in wrong:
            self.wrong("H6", what)

    async def counts(self) -> dict[str, int]:
        """The messages in the queue of each node."""
        found = {}
        for name in self.shape.owners:
            async with self.nodes[name].broker.client() as client:
                statistics = await client.queue(QUEUE)
                found[name] = statistics.ready + statistics.delivering
        return found

    def crossed(self) -> int:
        """Messages that have crossed a link, counted at each link, in the present lives."""
        return sum(node.carried for node in self.nodes.values())

    async def rescue(self) -> None:
        """Check that stranded messages come to the one node where they are consumed."""
        await self.settle("before the rescue")
        for what in await self.stranded.rescue(self.nodes, self.crossed):
            self.wrong("H7", what)
        for sight, number in self.stranded.sights.items():
            self.simulation.swarm.count(f"seen.{sight}", number)

    async def count(self, queue: str, before: Counter[bytes]) -> None:
        """Check that each message is in one queue of one node.  ``before``: those that were received already."""
        found = Counter(before)
        for name in self.shape.owners:
            async with self.nodes[name].broker.client() as client, client.consumer(queue) as consumer:
                while batch := await consumer.receive_many(500, timeout=1.0):
                    found.update(delivery.body for delivery in batch)
                    await consumer.ack(*batch, confirm=True)
        confirmed = self.confirmed[queue]
        lost = [body for body in confirmed if body not in found]
        if lost:
            self.wrong("H1", f"{len(lost)} of {len(confirmed)} confirmed messages are nowhere: {lost[:5]}")
        twice = [body for body, number in found.items() if number > 1]
        if twice:
            self.wrong("H5", f"{len(twice)} messages are there more than once: {twice[:5]}")


async def chain_scenario(simulation: Simulation) -> Outcome:
    """Run the faults of one seed, and check its accounts.

    Checkpoint: always.  Cancellation: the simulation ends.
    Raises: HistoryError for a promise that was broken.
    """
    chain = Chain(simulation)
    await chain.furnish()
    chain.start()
    await chain.suffer()
    chain.closing = True
    while chain.left:  # noqa: ASYNC110 - looking costs nothing here
        await trio.sleep(0.5)
    chain.history.healed()
    simulation.swarm.force("chaos.broker.drop_connection", False)
    await chain.settle("after the faults")
    await chain.part()
    await chain.know()
    await chain.share()
    await chain.explain()
    await chain.rescue()
    await chain.count(QUEUE, Counter())
    await chain.count(STRANDED, chain.stranded.rescued)
    _check(chain.violations, chain.history)
    return Outcome(chain.history, chain.faults, sum(map(len, chain.confirmed.values())))


def _check(violations: Sequence[Violation], history: History) -> None:
    if violations:
        raise HistoryError(violations, "\n".join(f"{at_s:10.4f} {what}" for at_s, what in history.notes))


def run_chain_seed(seed: int) -> SimulationResult:
    """Run one seed; the result has the failure, if any."""
    return run_scenario(seed, chain_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
