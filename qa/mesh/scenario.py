"""The simulated mesh: three brokers that are linked, their clients, faults, then the accounts of all.

``run_mesh_seed`` is one seed.  Queues have a place on each node; what is promised of a queue is checked over all of
its places, and over what is on its way between them.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import trio

from meshq.client import Client
from meshq.testing import SimDisk, Simulation, SimulationResult
from meshq.testing.history._history import History, place_of
from qa.checkers.end import check_history
from qa.mesh.accounts import settle_mesh
from qa.mesh.bridges import BRIDGE_SIGHTS, MeshBridges
from qa.mesh.bursts.delays import DELAY_SIGHTS, MeshDelays
from qa.mesh.bursts.flood import Flood
from qa.mesh.bursts.groups import GROUP_SIGHTS, MeshGroups
from qa.mesh.bursts.limits import LIMIT_SIGHTS, MeshLimits
from qa.mesh.bursts.payrolls import PAYROLL_SIGHTS, MeshPayrolls
from qa.mesh.bursts.tapes import TAPES_SIGHTS, MeshTapes
from qa.mesh.departure import FURNISHED, MeshDeparture
from qa.mesh.discovery import DiscoveredMemberships, Stranger
from qa.mesh.doubt import expire_in_doubt
from qa.mesh.faults import MeshFaults
from qa.mesh.finder import Finder
from qa.mesh.gone import GONE_SIGHTS, MeshGone, linked
from qa.mesh.membership import NODES, WIDE, Memberships
from qa.mesh.node import MODES, RETIRED, SPREAD, MeshNode
from qa.mesh.roamer import ROAMER_SIGHTS, Roamer
from qa.mesh.sends import send_where_it_stands, spread
from qa.mesh.stranded import STRANDED, MeshRedistribution, redistribute_in_order
from qa.mesh.stuck import STUCK_SIGHTS, judge_stuck
from qa.mesh.topology import TOPOLOGY_SIGHTS, ListedMemberships, TopologyReader, judge_topology
from qa.mesh.watch import WATCH_SIGHTS, watch
from qa.simulation.accounts import Recount, barrier, settle_down
from qa.simulation.faults import Machine
from qa.simulation.one_run import run_scenario
from qa.simulation.recovery import record_recoveries
from qa.simulation.scenario import LIMIT_S, RECOVERY_CRASHES, RECOVERY_SHARE, SENDS_MIN, Outcome
from qa.simulation.workload import ADDRESSES, CONSUMED, SETTINGS, Actor, Dial, Scene, Sender, topic_filter
from qa.simulation.workload_receive import PLAIN, Queues, Receiver, Settling
from qa.simulation.workload_transacting import Transacting
from qa.simulation.workload_two_phase import Manager, Preparing, VerdictLog

#: What the seeds of a mesh have to have met, besides what those of a single broker meet.
MESH_SIGHTS: Final = (
    *BRIDGE_SIGHTS,
    *DELAY_SIGHTS,
    *GONE_SIGHTS,
    *GROUP_SIGHTS,
    *LIMIT_SIGHTS,
    *PAYROLL_SIGHTS,
    *ROAMER_SIGHTS,
    *STUCK_SIGHTS,
    *TAPES_SIGHTS,
    *TOPOLOGY_SIGHTS,
    *WATCH_SIGHTS,
    "announced",
    "binding_added",
    "binding_removed",
    "body_in_blocks",
    "finite_attempts",
    "flood",
    "tcp_only",
)
#: Faults come so long, and closer together than at a single broker, so that there are as many in less time.
FAULTS_S: Final = 22.0
#: In calm the nodes are looked at until then, at least.
LEAST_S: Final = 60.0
#: Three nodes cost as much as three: so each has less to do than a single one, and no seed is short of sends.
PACE: Final = 0.3
IDLE_S: Final = 1.0
#: Of the receivers, those who prepare what they acknowledge; and with these, those who do so in transactions.
PREPARING_SHARE: Final = 0.2
TRANSACTING_SHARE: Final = 0.4


class MoreActors(Protocol):
    """Makes more actors of each node."""

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the actors of a node."""


class MeshCast:
    """Return the actors: a client machine for each node, all with receivers, and senders on two or within one."""

    def __init__(
        self, simulation: Simulation, scene: Scene, nodes: list[MeshNode], bridges: MeshBridges, *more: MoreActors
    ) -> None:
        """``more``: the parts of the workload that have actors of their own at each node."""
        rng = simulation.swarm.rng
        self.receivers: list[Actor] = []
        self.machines: dict[str, list[Machine]] = {}
        #: The transactions of receivers that prepare, by node.
        self.verdict_logs: dict[str, VerdictLog] = {}
        order = [node.place for node in nodes]
        rng("cast/senders").shuffle(order)
        inside = order[1] if rng("cast/hosted").random() < 0.5 else ""
        # Where nobody lives in a broker, its death closes nothing before it.
        simulation.swarm.count("seen.tcp_only", int(not inside))
        for node in nodes:
            name = node.place
            machine = simulation.node(f"client-{name}")
            dial: Dial = functools.partial(node.dial, machine)
            actors = self._receiving(scene, name, dial, rng)
            receiver = actors[0]
            self.receivers.append(receiver)
            if name in order[:2]:
                hosted: Dial = node.client
                sender = Sender(
                    scene, f"sender-{name}", rng(f"actor/sender-{name}"), hosted if name == inside else dial
                )
                sender.expendable = name == inside
                (node.hosted if name == inside else actors).append(sender)
            actors += bridges.actors(scene, name, dial)
            for one in more:
                actors += one.actors(scene, name, dial)
            if name == order[0] and simulation.swarm.on("mesh.flood"):
                actors.append(Flood(scene, f"flood-{name}", rng(f"actor/flood-{name}"), dial))
                simulation.swarm.count("seen.flood")
            for actor in (*actors, *node.hosted):
                actor.node, actor.pace, actor.idle_s = name, PACE, IDLE_S
            self.machines[name] = [Machine(machine, actors)]

    def _receiving(self, scene: Scene, name: str, dial: Dial, rng: Callable[[str], random.Random]) -> list[Actor]:
        """Return a receiver of a node: plain, in transactions, or in prepared transactions with a manager."""
        receiver, receiving = f"receiver-{name}", rng(f"actor/receiver-{name}")
        transacting = Transacting(scene, receiver, receiving, name)
        settling: Settling = PLAIN
        managers: list[Actor] = []
        way = rng(f"cast/transacting-{name}").random()
        if way < PREPARING_SHARE:
            verdict_log = self.verdict_logs[name] = VerdictLog(scene.history)
            managers.append(Manager(scene, f"manager-{name}", rng(f"actor/manager-{name}"), dial, verdict_log))
            settling = Preparing(scene, receiving, transacting, verdict_log)
        elif way < TRANSACTING_SHARE:
            settling = transacting
        return [Receiver(scene, receiver, receiving, dial, Queues(CONSUMED, name), settling=settling), *managers]

    @property
    def all_machines(self) -> list[Machine]:
        """The machines of all nodes' clients."""
        return [machine for machines in self.machines.values() for machine in machines]


def _reader(simulation: Simulation, nodes: list[MeshNode]) -> TopologyReader:
    """Start a client that is told of the cluster by one of the nodes."""
    at = simulation.swarm.rng("mesh/reader").choice(nodes)
    reader = TopologyReader(simulation.node("reader"), simulation.swarm, at)
    reader.start()
    return reader


def _begin_roaming(simulation: Simulation, scene: Scene, nodes: list[MeshNode]) -> Roamer | None:
    """Start clients that go to the nodes of which they are told, in half of the seeds."""
    for sight in ROAMER_SIGHTS:
        simulation.swarm.count(f"seen.{sight}", 0)
    if not simulation.swarm.on("mesh.roaming"):
        return None
    roamer = Roamer(simulation, scene, nodes)
    roamer.start()
    return roamer


async def _judge_cluster(nodes: list[MeshNode], reader: TopologyReader, roamer: Roamer | None) -> None:
    """Write down the errors of nodes and clients about the cluster in calm."""
    if trio.current_time() < LEAST_S:
        await trio.sleep_until(LEAST_S)
    await judge_topology(nodes, reader)
    if roamer is not None:
        await roamer.judge(nodes)


def _begin_finding(simulation: Simulation, scene: Scene, discovery: DiscoveredMemberships) -> Finder:
    """Start a stranger that announces itself, and a client that finds the nodes by their group."""
    Stranger(simulation.node("stranger"), scene, simulation.swarm, discovery).start()
    finder = Finder(simulation.node("finder"), scene, simulation.swarm, discovery.group_of_a_client())
    finder.start()
    return finder


async def _judge_bursts(
    scene: Scene,
    nodes: list[MeshNode],
    groups: MeshGroups,
    limits: MeshLimits,
    tapes: MeshTapes,
    payrolls: MeshPayrolls,
) -> None:
    """Judge the last messages of groups, a bounded queue, the queue of cursors, and the stages; the clients of the
    workload are dead."""
    await groups.judge(scene)
    await limits.judge(scene, nodes)
    tapes.judge(nodes)
    await payrolls.judge(nodes)


def _end_finding(
    discovery: DiscoveredMemberships | None, faults: MeshFaults, nodes: list[MeshNode], finder: Finder | None
) -> None:
    """Judge the discovery of the nodes, and end the client that looks for them."""
    if discovery is not None and finder is not None:
        discovery.settle(faults.fabric, nodes, finder)
        finder.node.kill()


def _begin(nodes: list[MeshNode], cast: MeshCast, departure: MeshDeparture | None) -> None:
    """Start the nodes."""
    if departure is not None:
        departure.undertake(cast.verdict_logs)
    for node in nodes:
        node.start()


def _observe(simulation: Simulation, history: History, nodes: list[MeshNode], groups: MeshGroups) -> None:
    """Look at the nodes from outside, all the while."""
    observer = simulation.node("watch")
    observer.spawn(watch, simulation.swarm, history, nodes)
    observer.spawn(groups.watch)
    observer.spawn(judge_stuck, simulation.swarm, nodes)


async def mesh_scenario(
    simulation: Simulation,
    *,
    wide: bool = False,
    redistributed: bool = False,
    discovered: bool = False,
    drained: bool = False,
) -> Outcome:
    """The faults of a seed, and its accounts.

    ``wide``: there are four nodes, five or seven.  ``redistributed``: messages go from node to node while they have no
    consumer.  ``discovered``: the nodes know nothing of each other but a multicast group.  ``drained``: a node hands
    its messages over to another one, and goes for good.

    Checkpoint: always.  Cancellation: the simulation ends.
    Raises: HistoryError for a promise that was broken.
    """
    swarm, rng = simulation.swarm, simulation.swarm.rng
    history = History(trio.current_time)
    scene = Scene(history)
    mode = "on_demand" if redistributed or drained else rng("mesh").choice(MODES)
    names = tuple(rng("mesh/width").choice(WIDE)) if wide else NODES
    bridges, delays = MeshBridges(simulation.swarm, names), MeshDelays(simulation.swarm, names)
    groups, limits = MeshGroups(simulation.swarm), MeshLimits(simulation.swarm, names, drained=drained)
    tapes, payrolls = MeshTapes(swarm, names, drained=drained), MeshPayrolls(swarm, names, drained=drained)
    for one in (bridges, delays, groups, limits, tapes, payrolls):
        one.known(history)
    redistribution = MeshRedistribution(simulation.swarm, history) if redistributed else None
    discovery = DiscoveredMemberships(simulation.swarm) if discovered else None
    memberships: Memberships = ListedMemberships(simulation.swarm, names) if discovery is None else discovery
    departure = MeshDeparture(simulation, scene) if drained else None
    parts: dict[str, Any] = {"delays": delays, "groups": groups, "limits": limits, "more_queues": tapes.queues}
    parts |= {"memberships": memberships, "more_services": redistribution}
    make: Callable[..., MeshNode] = functools.partial(MeshNode, **parts)
    groups.nodes = nodes = [make(simulation.node(name), history, simulation.swarm, mode, bridges) for name in names]
    history.expected.alone(place_of(queue, name) for queue in CONSUMED for name in names)
    crashes = RECOVERY_CRASHES if rng("trials").random() < RECOVERY_SHARE / len(names) else 0
    for node in nodes:
        await _furnish(node, (STRANDED,) if redistributed else FURNISHED if drained else (), redistribution)
    cast = MeshCast(simulation, scene, nodes, bridges, delays, groups, limits, tapes, payrolls)
    _begin(nodes, cast, departure)
    gone = MeshGone(simulation.swarm, history, nodes, bridges, mode, departure=departure)
    faults = MeshFaults(simulation, scene, nodes, cast.machines, gone, memberships=memberships)
    finder = _begin_finding(simulation, scene, discovery) if discovery is not None else None
    _observe(simulation, history, nodes, groups)
    reader, roamer = _reader(simulation, nodes), _begin_roaming(simulation, scene, nodes)
    for machine in cast.all_machines:
        machine.start()
    await faults.run(FAULTS_S)
    while scene.confirmed < SENDS_MIN:  # noqa: ASYNC110 - looking costs nothing here
        await trio.sleep(1.0)
    if gone.done:
        nodes = [node for node in nodes if node is not gone.node]
    for node in nodes:
        await node.serving()
    # A last power loss in the middle of work: what it leaves is recovered in every way.
    crashed = await _crash(rng("last").choice(nodes)) if crashes else None
    retiring = rng("retired").choice(nodes)
    await _retire(retiring, faults)
    simulation.swarm.force("chaos.broker.drop_connection", False)
    more_queues = functools.partial(_drained, delays, limits, groups, tapes, payrolls)
    await _peace(scene, cast, nodes, bridges, more_queues, gone, retiring)
    await _moved_messages(scene, nodes, departure, redistribution)
    await _judge_cluster(nodes, reader, roamer)
    _end_finding(discovery, faults, nodes, finder)
    await expire_in_doubt(nodes, faults, simulation.swarm)
    for machine in cast.all_machines:
        machine.node.kill()
    await _judge_bursts(scene, nodes, groups, limits, tapes, payrolls)
    for node in nodes:
        node.dismiss()
        node.rest()
    await settle_mesh(simulation, history, nodes, gone)
    if crashed is not None:
        await record_recoveries(simulation, history, "the store after a crash", crashed, Recount(), crashes=crashes)
    check_history(history)
    return Outcome(history, faults.happened, scene.confirmed)


def _drained(
    delays: MeshDelays, limits: MeshLimits, groups: MeshGroups, tapes: MeshTapes, payrolls: MeshPayrolls
) -> list[str]:
    """Return the queues of the bursts that are empty in the end."""
    return [*delays.queues, *limits.queues, *groups.drained(), *tapes.drained(groups.nodes), *payrolls.queues]


async def _peace(
    scene: Scene,
    cast: MeshCast,
    nodes: list[MeshNode],
    bridges: MeshBridges,
    more_queues: Callable[[], list[str]],
    gone: MeshGone,
    retiring: MeshNode,
) -> None:
    """Wait until all nodes work again and messages under way have arrived, and send the last messages."""
    if gone.done:
        for node in nodes:
            await gone.known(node)
    dealt = {node.place: await gone.dealt(node) for node in nodes}
    scene.closing = True
    scene.history.healed()
    there = [node.place for node in nodes]
    async with trio.open_nursery() as nursery:
        for receiver in cast.receivers:
            if receiver.node in there:
                nursery.start_soon(barrier, receiver)
    machines = [machine for name in there for machine in cast.machines[name]]
    drained = (*CONSUMED, *bridges.drained, *more_queues())
    await settle_down(scene, nodes, machines, drained)
    if gone.done:
        if gone.node is not None:
            bridges.parted(scene.history, gone.node.place)
        await gone.rescue(nodes)
        await settle_down(scene, nodes, machines, drained)
    # A link to a life that is over is given up when nothing was heard for its time to live, and a little.
    await trio.sleep(SETTINGS["connection_ttl"] * 1.5)
    await linked(nodes)
    for node in nodes:
        if node is not retiring:
            await send_where_it_stands(scene, node)
    await spread(scene, nodes, gone)
    for node in nodes if gone.done else ():
        await gone.judge(node, dealt[node.place])


async def _crash(node: MeshNode) -> SimDisk:
    """Cut the power of a node, and wait until it serves again; returns a copy of the disk in between."""
    node.node.power_off()
    crashed = node.node.disk.copy()
    await node.serving()
    return crashed


async def _moved_messages(
    scene: Scene, nodes: list[MeshNode], departure: MeshDeparture | None, redistribution: MeshRedistribution | None
) -> None:
    """Receive the messages that have to have gone from node to node."""
    if redistribution is not None:
        await redistribute_in_order(scene, nodes, redistribution)
    if departure is not None:
        await departure.judge(nodes)


async def _furnish(node: MeshNode, more_queues: Iterable[str], redistribution: MeshRedistribution | None) -> None:
    """A node's first life, in which it gets the queues and address settings that are not in its own settings."""
    node.start()
    await node.started()
    client: Client
    async with node.client() as client:
        for queue in ADDRESSES["news"]:
            await client.create_queue(queue, address="news", routing="multicast", filter=topic_filter(node.swarm))
        await client.create_queue(RETIRED)
        for queue in more_queues:
            await client.create_queue(queue)
        await client.create_queue(node.spread, address=SPREAD)
        if redistribution is not None:
            await redistribution.furnish(client)
    node.node.kill()


async def _retire(node: MeshNode, faults: MeshFaults) -> None:
    """A node is killed, and loses a queue before the others see it again: they learn of that from a snapshot only."""
    faults.isolate(node)
    node.node.kill()
    await node.serving()
    async with node.client() as client:
        await client.delete_queue(RETIRED)
    faults.mend()


def run_mesh_seed(
    seed: int, *, wide: bool = False, redistributed: bool = False, discovered: bool = False, drained: bool = False
) -> SimulationResult:
    """A seed: the result has the failure, if there was one.  The keywords are those of ``mesh_scenario``."""
    made = functools.partial(
        mesh_scenario, wide=wide, redistributed=redistributed, discovered=discovered, drained=drained
    )
    return run_scenario(seed, made, duration_s=FAULTS_S, limit_s=LIMIT_S)
