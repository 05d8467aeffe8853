"""The simulated fanout: one client sends to three separate brokers, which are killed, cut off and full.

``run_fanout_seed`` is one seed.  A send that returned is at as many brokers as are needed (FO1), and what an error says
of a broker is so (FO2).  Without ``fan_out_queues`` no message for a queue is at two brokers (FO3), and none is at a
broker twice (FO4).  When the faults are over, every broker gets what is sent (FO5).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

import attrs
import trio

from meshq import (
    AddressSettings,
    Broker,
    ConnectionEvent,
    EventStream,
    FanoutClient,
    FanoutError,
    FanoutMissed,
    MeshqError,
    connect,
)
from meshq.testing import MemoryNetwork, SimNode, Simulation, SimulationResult
from meshq.testing.history._delivery import Violation
from meshq.testing.history._end import HistoryError
from meshq.testing.history._history import History
from qa.simulation.broker import STOP_S
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Simulated seconds of faults, and by which a seed must be done.
DURATION_S: Final = 15.0
LIMIT_S: Final = 600.0
#: Seconds in which all brokers are connected again, when nothing breaks any more.
PATIENCE_S: Final = 60.0
NAMES: Final = ("b0", "b1", "b2")
KINDS: Final = ("kill", "reset", "cut", "full")
#: The address of all brokers, the queue of it, and the queue that comes into being by its first message.
TOPIC, COPIES, ORDERS = "topic", "copies", "orders"
#: What the seeds have to have met, each in at least one of them.
FANOUT_SIGHTS: Final = ("copied", "drawn", "sent", "too_few", "partly", "missed", "killed")


@attrs.frozen
class Sent:
    """A send and its end; ``error`` is None if it returned."""

    uid: str
    address: str
    error: MeshqError | None


class FanoutNode:
    """A broker over all its lives."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.url = f"tcp://{node.name}:5000"
        self.broker: Broker = self._make()

    def _make(self) -> Broker:
        acceptors = [f"{self.url}?insecure=true"]
        broker = Broker(self.node.name, data_dir="/data", acceptors=acceptors, stop_timeout=STOP_S, env=self.node.env)
        self.node.spawn(self._run, broker)
        return broker

    async def _run(self, broker: Broker) -> None:
        with suppress(MeshqError):
            await broker.run()

    def up(self) -> None:
        """Begin a new life if the last one is over."""
        if self.node.state == "dead":
            self.node.start()
            self.broker = self._make()

    async def active(self) -> None:
        """Wait until it serves."""
        while self.broker.state != "active":  # noqa: ASYNC110 - looking costs nothing here
            await trio.sleep(0.05)

    async def refuse(self, seconds: float) -> None:
        """Have no room in the topic for so long."""
        async with self.broker.client() as client:
            await client.set_address_settings(TOPIC, AddressSettings(full_policy="fail", max_size_bytes=1))
            await trio.sleep(seconds)
            await client.remove_address_settings(TOPIC)

    async def bodies(self, queue: str) -> Counter[str]:
        """How often each message is in a queue."""
        found: Counter[str] = Counter()
        async with self.broker.client() as client:
            if queue in await client.queues():
                async with client.consumer(queue, browse=True) as browser:
                    async for delivery in browser:
                        found[bytes(delivery.body).decode()] += 1
        return found


class SimulatedFanout:
    """The brokers of a seed, the accounts of the sender, and the violations that were found."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.rng = simulation.swarm.rng("fanout")
        self.history = History(trio.current_time)
        self.violations: list[Violation] = []
        seed = simulation.swarm.seed
        # Not drawn: so a few seeds in a row have all of them.
        self.needed: int = 1 + seed % 3
        self.copied: bool = seed // 3 % 2 == 1
        self.nodes = {name: FanoutNode(simulation.node(name)) for name in NAMES}
        self.user = simulation.node("user")
        self.sent: list[Sent] = []
        self.closing = False
        self.faults = 0
        self._done = trio.Event()
        for sight in FANOUT_SIGHTS:
            simulation.swarm.count(f"seen.{sight}", 0)
        for kind in KINDS:
            simulation.swarm.count(f"fault.{kind}", 0)
        self._seen("copied" if self.copied else "drawn")

    def _seen(self, sight: str) -> None:
        self.simulation.swarm.count(f"seen.{sight}")

    def wrong(self, checker: str, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(Violation(checker, what))

    @property
    def _fabric(self) -> MemoryNetwork:
        fabric = self.simulation.fabric
        assert isinstance(fabric, MemoryNetwork)
        return fabric

    async def prepare(self) -> None:
        """Wait for the brokers, and make the address at each."""
        for node in self.nodes.values():
            await node.active()
            async with node.broker.client() as client:
                await client.create_address(TOPIC, "multicast")
                await client.create_queue(COPIES, address=TOPIC, routing="multicast")

    # -- the sender

    async def send(self) -> None:
        """Send to the topic and the queue, several at a time, until the faults are over; then once more to all."""
        places = ",".join(node.url for node in self.nodes.values())
        options = f"min_ack_count={self.needed}&fan_out_queues={str(self.copied).lower()}&max_reconnect_delay=0.5"
        client: object = connect(
            f"fanout:(static:({places}))?{options}",
            env=self.user.env,
            insecure=True,
            call_failover_timeout=1.0,
            call_timeout=3.0,
            connection_ttl=3.0,
            check_period=1.0,
        )
        assert isinstance(client, FanoutClient)
        async with client:
            events = client.events()
            async with trio.open_nursery() as nursery:
                for name in ("s", "t"):
                    nursery.start_soon(self._send_many, client, name)
            await self._in_peace(client)
            await client.flush()
        await self._hear(events)
        self._done.set()

    async def _send_many(self, client: FanoutClient, name: str) -> None:
        number = 0
        while not self.closing:
            number += 1
            await self._send_one(client, f"{name}-{number}", self.rng.choice((TOPIC, ORDERS)))
            await trio.sleep(self.rng.uniform(0.0, 0.1))

    async def _send_one(self, client: FanoutClient, uid: str, address: str) -> None:
        error: MeshqError | None = None
        try:
            await client.send(address, uid.encode())
            self._seen("sent")
        except MeshqError as caught:
            error = caught
            if isinstance(error, FanoutError):
                self._seen("partly" if error.confirmed else "too_few")
        self.sent.append(Sent(uid, address, error))

    async def _in_peace(self, client: FanoutClient) -> None:
        """Send when all brokers are connected."""
        with trio.move_on_after(PATIENCE_S) as scope:
            while len(client.topology()) < len(NAMES):  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.1)
        if scope.cancelled_caught:
            self.wrong("FO5", f"{PATIENCE_S:g} s after the last fault only {client.topology()} are connected")
        for number in range(5):
            await self._send_one(client, f"peace-{number}", TOPIC)

    async def _hear(self, events: EventStream[ConnectionEvent]) -> None:
        async for event in events:
            if isinstance(event, FanoutMissed):
                self._seen("missed")

    async def sent_all(self) -> None:
        """Wait until the sender is done."""
        await self._done.wait()

    # -- faults

    async def suffer(self) -> None:
        """Go through the faults of a seed."""
        end = trio.current_time() + DURATION_S
        while trio.current_time() < end:
            await trio.sleep(self.rng.uniform(0.1, 1.5))
            kind, name = self.rng.choice(KINDS), self.rng.choice(NAMES)
            self.faults += 1
            self.simulation.swarm.count(f"fault.{kind}")
            self.history.note(f"{kind} of {name}")
            if kind == "kill":
                self._seen("killed")
                self.nodes[name].node.kill()
                await trio.sleep(self.rng.uniform(0.0, 2.0))
                self.nodes[name].up()
            elif kind == "reset":
                self._fabric.reset("user", name)
            elif kind == "full":
                await self.nodes[name].active()
                await self.nodes[name].refuse(self.rng.uniform(0.1, 1.0))
            else:
                self._fabric.partition(["user"], [name])
                await trio.sleep(self.rng.choice((0.3, 2.0, 5.0)))
                self._fabric.heal()
        self._fabric.heal()
        for node in self.nodes.values():
            node.up()
            await node.active()

    # -- accounts

    async def account(self) -> None:
        """Compare the answers that the sender got with the messages of the brokers."""
        there = {
            TOPIC: {node.url: await node.bodies(COPIES) for node in self.nodes.values()},
            ORDERS: {node.url: await node.bodies(ORDERS) for node in self.nodes.values()},
        }
        for one in self.sent:
            self._judge(one, {url: found[one.uid] for url, found in there[one.address].items()})

    def _judge(self, one: Sent, there: dict[str, int]) -> None:
        having = [url for url, times in there.items() if times]
        single = one.address == ORDERS and not self.copied
        if one.error is None and len(having) < (1 if single else self.needed):
            self.wrong("FO1", f"{one.uid} was confirmed, and is at {having} only")
        if isinstance(one.error, FanoutError):
            lost = [url for url in one.error.confirmed if url not in having]
            more = [url for url, error in one.error.errors.items() if error.outcome == "not_done" and url in having]
            if lost or more or (one.error.outcome == "not_done" and having):
                self.wrong("FO2", f"{one.uid} is at {having}: {one.error}")
        if single and len(having) > 1:
            self.wrong("FO3", f"{one.uid} is for one broker, and is at {having}")
        if max(there.values()) > 1:
            self.wrong("FO4", f"{one.uid} is at a broker twice: {there}")
        if one.uid.startswith("peace") and (one.error is not None or len(having) < len(NAMES)):
            self.wrong("FO5", f"{one.uid} was sent in peace, and is at {having}: {one.error!r}")


async def fanout_scenario(simulation: Simulation) -> Outcome:
    """Run the faults of one seed, and check its accounts.

    Checkpoint: always.  Cancellation: the simulation ends.
    Raises: HistoryError for a promise that was broken.
    """
    made = SimulatedFanout(simulation)
    await made.prepare()
    made.user.spawn(made.send)
    await made.suffer()
    made.history.healed()
    simulation.swarm.force("chaos.broker.drop_connection", False)
    made.closing = True
    await made.sent_all()
    await made.account()
    if made.violations:
        raise HistoryError(made.violations, "\n".join(f"{at_s:10.4f} {what}" for at_s, what in made.history.notes))
    return Outcome(made.history, made.faults, sum(one.error is None for one in made.sent))


def run_fanout_seed(seed: int) -> SimulationResult:
    """Run one seed; the result has the failure, if any."""
    return run_scenario(seed, fanout_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
