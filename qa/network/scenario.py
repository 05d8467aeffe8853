"""The simulated network of brokers: producers at each, consumers that move, links that break and brokers that die.

``run_network_seed`` is one seed.  Every confirmed message is consumed or still in a queue (W1), none is consumed twice
unless brokers are killed (W2), and none comes to a broker twice or goes further than it may (W3).  When the faults are
over, what is sent anywhere comes to a consumer anywhere, within ten seconds (W4); and when the last consumer is gone no
network consumer is left (W5).  A message of a topic comes to a subscriber once, by however many ways, and in peace it
comes (W6).  Each confirmed message of a topic comes to a durable subscription that was known before, over
whatever breaks and whoever dies (W7).  A broker tells who reads its advisories of its own consumers, and nobody else
is told (W8).  What nobody accepts comes to rest, and with replay what lost its consumer goes back to where it is
wanted (W9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from typing import Any, Final

import trio

from meshq import Broker, Client, Consumer, Delivery, MeshqError, Message
from meshq.address import NETWORK_KEPT
from meshq.testing import MemoryNetwork, SimNode, Simulation, SimulationResult
from meshq.testing.history._delivery import Violation
from meshq.testing.history._end import HistoryError
from meshq.testing.history._history import History
from qa.network.changing import AdvisoryReader, rewire
from qa.network.dealing import Dealing
from qa.network.lasting import LastingSubscription
from qa.network.returning import Returning
from qa.network.shape import KEPT, LAST, LAST_TOPIC, LASTING, QUEUES, TOPIC, NetworkShape, url
from qa.simulation.broker import STOP_S
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Simulated seconds of faults, and by which a seed must be done.
DURATION_S: Final = 20.0
LIMIT_S: Final = 600.0
#: Seconds in which what is sent comes to a consumer, when nothing breaks any more.
BOUND_S: Final = 10.0
#: Seconds in which links are up again and demand is known.
PATIENCE_S: Final = 40.0
#: Messages that are sent at each broker in peace.
IN_PEACE: Final = 10


class NetworkNode:
    """A broker over all its lives."""

    def __init__(self, stage: SimulatedNetwork, node: SimNode) -> None:
        self.node = node
        self.name: str = node.name
        self._stage = stage
        self.broker: Broker = self._make()
        self._begin()

    def _make(self) -> Broker:
        return Broker(
            self.name,
            data_dir="/data",
            acceptors=[url(self.name)],
            services=self._stage.shape.connectors(self.name),
            stop_timeout=STOP_S,
            env=self.node.env,
        )

    def _begin(self) -> None:
        self.node.spawn(self._run, self.broker)
        self.node.spawn(self._produce, self.broker)

    async def _run(self, broker: Broker) -> None:
        with suppress(MeshqError):
            await broker.run()

    def up(self) -> None:
        """Begin a new life if the last one is over."""
        self.node.resume()
        if self.node.state == "dead":
            self.node.start()
            self.broker = self._make()
            self._begin()

    async def stop(self) -> None:
        """End this life in peace."""
        if self.running:
            self.node.spawn(self.broker.stop)
            with trio.move_on_after(2 * STOP_S):
                while self.broker.state != "stopped":  # noqa: ASYNC110 - looking costs nothing here
                    await trio.sleep(0.1)
            self.node.kill()

    @property
    def running(self) -> bool:
        """Whether it is active."""
        return self.node.state == "running" and self.broker.state == "active"

    async def _produce(self, broker: Broker) -> None:
        """Send messages with duplicate ids, as long as the broker serves."""
        stage = self._stage
        while not stage.closing:
            await trio.sleep(stage.rng.uniform(0.05, 0.6))
            if broker.state != "active":
                continue
            with suppress(MeshqError):
                async with broker.client() as client:
                    await client.create_address(TOPIC, routing="multicast")
                    await client.create_address(LASTING, routing="multicast")
                    while not stage.closing:
                        await self._send(client)
                        await trio.sleep(stage.rng.uniform(0.05, 0.6))

    async def _send(self, client: Client) -> None:
        stage = self._stage
        if stage.lasting.known and stage.lasting.rng.random() < 0.5:
            await stage.lasting.publish(self, client)
        uid = stage.new_uid(self.name)
        if stage.rng.random() < 0.3:
            await client.send(TOPIC, Message(uid.encode()))
            return
        stage.sent.add(uid)
        message = Message(uid.encode(), duplicate_id=uid, properties={"half": len(stage.sent) % 2})
        await client.send(stage.rng.choice(QUEUES), message)
        stage.confirmed.add(uid)


class SimulatedNetwork:
    """The brokers of a seed, the accounts of their users, and the violations that were found."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.shape = NetworkShape(simulation)
        self.rng = simulation.swarm.rng("network")
        self.history = History(trio.current_time)
        self.violations: list[Violation] = []
        self.sent: set[str] = set()
        self.confirmed: set[str] = set()
        #: How often each message was consumed, as far as the broker has confirmed it, or may have been.
        self.consumed: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()
        self.closing = False
        self.faults = 0
        self._uids = 0
        self.nodes = {name: NetworkNode(self, simulation.node(name)) for name in self.shape.names}
        self.lasting = LastingSubscription(self)
        self.advisories = AdvisoryReader(self)
        self.returning = Returning(self)

    def new_uid(self, name: str) -> str:
        """The body of a new message."""
        self._uids += 1
        return f"{name}-{self._uids}"

    def wrong(self, checker: str, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(Violation(checker, what))

    def seen(self, sight: str, number: int = 1) -> None:
        """Count a sight."""
        self.simulation.swarm.count(f"seen.{sight}", number)

    @property
    def _fabric(self) -> MemoryNetwork:
        fabric = self.simulation.fabric
        assert isinstance(fabric, MemoryNetwork)
        return fabric

    # -- consumers

    async def roam(self) -> None:
        """A consumer that is now here, now there."""
        while not self.closing:
            node, queue = self.nodes[self.rng.choice(self.shape.names)], self.rng.choice(QUEUES)
            filter = self.rng.choice((None, None, "half = 1"))
            until = trio.current_time() + self.rng.uniform(0.5, 6.0)
            if node.running:
                self.seen("moved")
                done = trio.Event()
                if self.rng.random() < 0.3:
                    node.node.spawn(self._subscribe, node, until, done)
                else:
                    node.node.spawn(self._consume, node, queue, filter, until, done)
                with trio.move_on_after(until + 2 - trio.current_time()):
                    await done.wait()
            await trio.sleep(self.rng.uniform(0.0, 0.5))

    async def _consume(self, node: NetworkNode, queue: str, filter: str | None, until: float, done: trio.Event) -> None:
        with suppress(MeshqError):
            async with node.broker.client() as client, client.consumer(queue, filter=filter, window=5) as consumer:
                while trio.current_time() < until and not self.closing:
                    delivery = await consumer.receive(timeout=0.3)
                    if delivery is not None:
                        self.judge(node.name, delivery)
                        uid = bytes(delivery.body).decode()
                        self.acknowledged[uid] += 1
                        await consumer.ack(delivery, confirm=True)
                        self.consumed[uid] += 1
        done.set()

    async def _subscribe(self, node: NetworkNode, until: float, done: trio.Event) -> None:
        """Receive the messages of the topic as a subscriber, whose subscription may stay."""
        got: Counter[str] = Counter()
        lasting: dict[str, Any] = self.rng.choice(({}, {}, {"name": KEPT, "durable": True}))
        with suppress(MeshqError):
            async with node.broker.client() as client, client.subscribe(TOPIC, ack="auto", **lasting) as subscriber:
                self.seen("kept", int(bool(lasting)))
                while trio.current_time() < until and not self.closing:
                    for delivery in await subscriber.receive_many(100, timeout=0.3):
                        self.judge(node.name, delivery)
                        self.seen("topics", int(bool(delivery.path)))
                        got[bytes(delivery.body).decode()] += 1
        self._check_copies(node.name, got)
        done.set()

    def _check_copies(self, name: str, got: Counter[str]) -> None:
        twice = [uid for uid, times in got.items() if times > 1]
        if twice and self.shape.conduit:
            self.wrong("W6", f"a subscriber at {name} has {twice[:5]} more than once")

    def judge(self, name: str, delivery: Delivery) -> None:
        """Check the way on which a message has come."""
        path = delivery.path
        uid = bytes(delivery.body).decode()
        if len(set(path)) != len(path) or name in path or len(path) > self.shape.ttl:
            self.wrong("W3", f"{uid} came to {name} over {path}")
        links = {*self.shape.edges, *((other, one) for one, other in self.shape.edges)}
        if not links.issuperset(pairwise((*path, name))):
            self.wrong("W3", f"{uid} came to {name} over {path}, where there are no such links")
        if path and not uid.startswith(f"{path[0]}-"):
            self.wrong("W3", f"{uid} has the path {path}")
        self.seen("forwarded", int(bool(path)))
        self.seen("replayed", int(delivery._broker_path.returns > 0))
        self.seen("three_hops", int(len(path) >= 3))

    # -- faults

    async def suffer(self) -> None:
        """Go through the faults of a seed."""
        end = trio.current_time() + DURATION_S
        while trio.current_time() < end:
            await trio.sleep(self.rng.uniform(0.2, 2.5))
            one, other = self.rng.choice(self.shape.edges)
            await self._happens(self.rng.choice(self.shape.kinds), one, other)
        self.mend()

    async def _happens(self, kind: str, one: str, other: str) -> None:
        fabric, node = self._fabric, self.nodes[self.rng.choice((one, other))]
        self.faults += 1
        self.simulation.swarm.count(f"fault.{kind}")
        self.history.note(f"{kind} between {one} and {other}, or of {node.name}")
        if kind == "reset":
            self.reset(one, other)
        elif kind == "cut":
            fabric.partition([one], [other])
            await trio.sleep(self.rng.choice((0.3, 2.0, 6.0)))
            fabric.heal()
        elif kind == "stall":
            node.node.pause()
            await trio.sleep(self.rng.choice((0.2, 1.5)))
            node.node.resume()
        elif kind == "kill":
            self.seen("killed")
            node.node.kill()
            await trio.sleep(self.rng.uniform(0.0, 2.0))
            node.up()
        elif kind == "restart":
            await node.stop()
            node.up()
        elif kind == "rewire":
            await rewire(self, node)

    def reset(self, one: str, other: str) -> None:
        """Break the connections between two machines."""
        self._fabric.reset(one, other)

    def mend(self) -> None:
        """End the faults, and start the brokers that are down."""
        self._fabric.heal()
        for node in self.nodes.values():
            node.up()

    # -- in peace

    async def peace(self) -> None:
        """Wait until every link is up."""
        with trio.move_on_after(PATIENCE_S):
            while not all(map(self._linked, self.nodes.values())):  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.2)
            return
        states = {
            node.name: [
                (one.name, one.state, one.last_error)
                for connector in self.shape.connectors(node.name)
                if node.running
                for one in node.broker.network(connector.name).bridges()
            ]
            for node in self.nodes.values()
        }
        self.wrong("W4", f"links are not up {PATIENCE_S:g} s after the last fault: {states}")

    def _linked(self, node: NetworkNode) -> bool:
        names = [connector.name for connector in self.shape.connectors(node.name)]
        return node.running and all(
            one.state == "linked" for name in names for one in node.broker.network(name).bridges()
        )

    async def unsubscribe(self) -> None:
        """End the subscriptions that stay."""
        for node in self.nodes.values():
            async with node.broker.client() as client:
                for queue in await client.queues():
                    if queue.endswith(f"::{KEPT}"):
                        await client.delete_queue(queue)

    async def check_nothing_left(self) -> None:
        """Check that without consumers no network consumer is left, and no subscription of another broker known."""
        left: dict[str, int] = {}
        known: dict[str, int] = {}
        with trio.move_on_after(PATIENCE_S):
            while True:
                left = {node.name: node.broker.statistics().consumers for node in self.nodes.values() if node.running}
                known = {node.name: self._subscriptions(node) for node in self.nodes.values() if node.running}
                if not any(left.values()) and not any(known.values()):
                    return
                await trio.sleep(0.5)
        text = f"without any consumer there are network consumers: {left}, and subscriptions are known: {known}"
        self.wrong("W5", text)

    def _subscriptions(self, node: NetworkNode) -> int:
        """The number of subscriptions that the connectors of a broker know of."""
        connectors = self.shape.connectors(node.name)
        return sum(len(node.broker.network(connector.name).subscriptions()) for connector in connectors)

    async def check_arrival(self) -> None:
        """Check that messages from every broker come to a consumer at one of two brokers that are drawn."""
        names, got = self.rng.sample(self.shape.names, 2), Counter[str]()
        wanted = {self.new_uid(name): name for name in self.shape.names for _ in range(IN_PEACE)}
        async with AsyncExitStack() as stack:
            consumers: list[tuple[str, Consumer]] = []
            for name in names:
                client = await stack.enter_async_context(self.nodes[name].broker.client())
                consumers.append((name, await stack.enter_async_context(client.consumer(LAST))))
            for name in self.shape.names:
                async with self.nodes[name].broker.client() as sender:
                    for uid in [uid for uid, one in wanted.items() if one == name]:
                        await sender.send(LAST, Message(uid.encode(), duplicate_id=uid))
            end = trio.current_time() + BOUND_S
            while trio.current_time() < end and got.keys() != wanted.keys():
                for name, consumer in consumers:
                    for delivery in await consumer.receive_many(100, timeout=0.5):
                        self.judge(name, delivery)
                        got[bytes(delivery.body).decode()] += 1
                        await consumer.ack(delivery, confirm=True)
        if set(got) != set(wanted):
            stuck = Counter(name for uid, name in wanted.items() if uid not in got)
            self.wrong("W4", f"to consumers at {names} {dict(stuck)} did not come within {BOUND_S:g} s")
        if max(got.values(), default=1) > 1:
            self.wrong("W2", f"in peace {[uid for uid, times in got.items() if times > 1]} came twice")

    async def check_topic(self) -> None:
        """Check that each message of a topic comes to subscribers at two brokers, once, also to one that comes back."""
        names = self.rng.sample(self.shape.names, 2)
        got: dict[str, Counter[str]] = {name: Counter() for name in names}
        durable: dict[str, Any] = {"name": KEPT, "durable": True}

        async def publish(count: int) -> set[str]:
            sent = {self.new_uid(name): name for name in self.shape.names for _ in range(count)}
            for name in self.shape.names:
                async with self.nodes[name].broker.client() as sender:
                    await sender.create_address(LAST_TOPIC, routing="multicast")
                    for uid in [uid for uid, one in sent.items() if one == name]:
                        await sender.send(LAST_TOPIC, Message(uid.encode()))
            return set(sent)

        async def gather(wanted: Callable[[], bool]) -> bool:
            end = trio.current_time() + BOUND_S
            while trio.current_time() < end and not wanted():
                for name, subscriber in subscribers.items():
                    for delivery in await subscriber.receive_many(100, timeout=0.2):
                        self.judge(name, delivery)
                        got[name][bytes(delivery.body).decode()] += 1
            return wanted()

        async with AsyncExitStack() as stack:
            subscribers: dict[str, Consumer] = {}
            away = AsyncExitStack()
            for name, around, lasting in zip(names, (stack, away), ({}, durable), strict=True):
                client = await around.enter_async_context(self.nodes[name].broker.client())
                made = client.subscribe(LAST_TOPIC, ack="auto", **lasting)
                subscribers[name] = await around.enter_async_context(made)
            # What is sent before a broker knows of a subscriber is not for that one.
            senders: set[tuple[str, str]] = set()
            everyone = {(name, sender) for name in names for sender in self.shape.names}
            for _ in range(round(BOUND_S)):
                await publish(1)
                with trio.move_on_after(1):
                    await gather(lambda: False)
                senders = {(name, uid.partition("-")[0]) for name, found in got.items() for uid in found}
                if senders == everyone:
                    break
            await away.aclose()
            del subscribers[names[1]]
            sent = await publish(IN_PEACE)
            client = await stack.enter_async_context(self.nodes[names[1]].broker.client())
            back = client.subscribe(LAST_TOPIC, ack="auto", **durable)
            subscribers[names[1]] = await stack.enter_async_context(back)
            if not await gather(lambda: all(sent <= found.keys() for found in got.values())):
                missing = {
                    name: Counter(uid.partition("-")[0] for uid in sent - found.keys()) for name, found in got.items()
                }
                self.wrong("W6", f"of the topic {missing} did not come; heard of before: {sorted(senders)}")
        for name, found in got.items():
            self._check_copies(name, found)

    async def account(self) -> None:
        """Check that each confirmed message was consumed or is in a queue, and in one place only."""
        left: Counter[str] = Counter()
        for node in self.nodes.values():
            async with node.broker.client() as client:
                # One that nobody wants any more goes when its link has looked, perhaps just when it is to be browsed.
                with trio.move_on_after(PATIENCE_S):
                    while any(NETWORK_KEPT in queue for queue in await client.queues()):  # noqa: ASYNC110 - no signal
                        await trio.sleep(0.5)
                for queue in await client.queues():
                    async with client.consumer(queue, browse=True) as browser:
                        async for delivery in browser:
                            left[bytes(delivery.body).decode()] += 1
        lost = [uid for uid in sorted(self.confirmed) if not left[uid] and not self.acknowledged[uid]]
        if lost:
            self.wrong("W1", f"{len(lost)} confirmed messages are nowhere: {lost[:5]}")
        twice = [uid for uid in sorted(self.sent) if left[uid] + self.consumed[uid] > 1]
        if twice and not self.shape.kills:
            self.wrong("W2", f"{len(twice)} messages are there twice: {twice[:5]}")


async def network_scenario(simulation: Simulation) -> Outcome:
    """Run the faults of one seed, and check its accounts.

    Checkpoint: always.  Cancellation: the simulation ends.
    Raises: HistoryError for a promise that was broken.
    """
    made = SimulatedNetwork(simulation)
    await made.peace()
    await made.lasting.begin()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(made.roam)
        nursery.start_soon(made.advisories.roam)
        await made.suffer()
        made.history.healed()
        simulation.swarm.force("chaos.broker.drop_connection", False)
        await trio.sleep(3)
        made.closing = True
    await made.peace()
    await made.lasting.check()
    await made.unsubscribe()
    await made.check_nothing_left()
    await made.check_arrival()
    await made.check_topic()
    await made.advisories.check()
    await made.returning.check()
    await made.unsubscribe()
    await made.check_nothing_left()
    await made.account()
    if made.shape.deals:
        await Dealing(made).check()
    if made.violations:
        raise HistoryError(made.violations, "\n".join(f"{at_s:10.4f} {what}" for at_s, what in made.history.notes))
    return Outcome(made.history, made.faults, len(made.confirmed))


def run_network_seed(seed: int) -> SimulationResult:
    """Run one seed; the result has the failure, if any."""
    return run_scenario(seed, network_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
