"""A simulated pair over one disk: faults come and go, clients send and consume, and nothing is lost or comes twice."""

from __future__ import annotations

import random
from collections.abc import Container
from typing import Any, Final

import trio

from meshq import Broker, ClusterConnection, MeshqError, ScaleDown, SharedStoreBackup, SharedStorePrimary
from meshq.abc import HAPolicy
from meshq.concurrency import first_error
from meshq.ha import _store_competition
from meshq.testing import MemoryNetwork, SimDisk, SimNode, Simulation, SimulationResult
from meshq.testing.history._history import History
from qa.ha.clients import (
    Accounts,
    PairError,
    check_accounts,
    consume,
    drain,
    probe,
    produce,
    produce_in_transactions,
    send_loosely,
)
from qa.ha.target import LEAVING, TARGET, live_apart
from qa.ha.watched import Acts, WatchedPolicy
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Loaded before a simulation begins: no file is opened in it.
LOADED: Final = _store_competition.joined
#: Simulated seconds of work under faults, and those after which all has to be over.
DURATION_S: Final = 12.0
LIMIT_S: Final = 240.0
LEASE_S: Final = 2.0
#: Seconds for which the server of the disk keeps the locks of a node that it does not hear; longer than a lease.
LOCK_PATIENCE_S: Final = 3.0
#: The share of the runs in which that server has no patience at all: then the epochs alone keep what is durable.
IMPATIENT: Final = 0.4
DIRECTORY: Final = "/shared"
#: Clients that send what is not durable.
LOOSE_SENDERS: Final = 3
#: The faults, by the weights with which they are drawn.
FAULTS: Final = {"kill": 4, "pause": 3, "long_pause": 3, "lost_lock": 6, "fail_over": 3, "stop": 3, "clock": 2} | {
    "power": 1,
    "disk": 3,
    "cut": 3,
}
#: The share of the moments before a fault at which a node that has ended is started again.
REPAIRED: Final = 0.3
#: The machines of the clients that are cut off.
CLIENTS: Final = ("client-0", "client-1", "client-2", "client-3", "loose")
#: The calls of the disk that fail, and how often in a row at most.
DISK_CALLS: Final = ("open", "write", "sync", "replace", "move_directory", "sync_directory", "read")
DISK_ERRORS_MAX: Final = 4
#: What the fixed seeds have to have seen, each at least once.
SIGHTS: Final = (
    "takeover",
    "failback",
    "lease_lost",
    "superseded",
    "handed_over",
    "stopped_waits",
    "scaled_down",
    "transaction",
)


class Member:
    """A node of the pair: one life of a broker after the other."""

    def __init__(self, stage: PairStage, name: str, port: int, *, first: bool) -> None:
        self.name = name
        self.url = f"tcp://{name}:{port}?insecure=true"
        self._stage = stage
        self._first = first
        self._port = port
        self.machine: SimNode = stage.simulation.node(name, disk=stage.disk)
        # Time is that of the network: the disk is at once there for all of them.
        stage.disk.latency = None
        self.broker: Broker | None = None
        self.down = False

    @property
    def active(self) -> bool:
        """Whether the broker serves."""
        return self.broker is not None and self.broker.state == "active" and self.machine.state == "running"

    def start(self) -> None:
        """Begin a life."""
        self.down = False
        self.machine.spawn(self._live)

    async def _live(self) -> None:
        stage = self._stage
        shared: dict[str, Any] = {"lease": LEASE_S, "lock_check_period": 0.1}
        shared["failover_on_shutdown"] = stage.on_shutdown
        ha: HAPolicy = SharedStorePrimary(wait_for_activation=False, **shared)
        if not self._first:
            order = ScaleDown() if stage.target is not None else None
            ha = SharedStoreBackup(allow_failback=stage.failback, scale_down=order, **shared)
        self.broker = broker = Broker(
            self.name,
            data_dir=DIRECTORY,
            acceptors=[self.url],
            services=[stage.cluster(self.url)],
            connectors={"own": self.url},
            # Of a policy that is wrapped nobody sees that it scales down.
            ha=ha if stage.target is not None and not self._first else WatchedPolicy(ha, stage.acts),
            stop_timeout=2,
            env=self.machine.env,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, broker)
            nursery.start_soon(self._watch_phases, broker)
            try:
                await broker.run()
            except* MeshqError as group:
                stage.notes.note(f"{self.name} has failed: {first_error(group)}")
            nursery.cancel_scope.cancel()
        self.down = True

    async def _watch_phases(self, broker: Broker) -> None:
        """Count the hand-overs that have ended."""
        while True:
            await broker.ha.wait_for(phase="scaling_down")
            self._stage.notes.note(f"{self.name} scales down")
            await broker.ha.wait_for(phase="waiting")
            self._stage.notes.note(f"{self.name} waits again")
            if broker._run.board.report.reason == "scaled_down":
                self._stage.see("scaled_down")

    async def _watch(self, broker: Broker) -> None:
        async for event in broker.events():
            if event.kind == "role_changed":
                reason = getattr(event, "reason", "")
                self._stage.notes.note(f"{self.name} is {getattr(event, 'role', '')}: {reason}")
                sight = {"crash": "takeover", "forced": "handed_over"}.get(reason, reason)
                self._stage.see(sight)


class PairStage:
    """A run: disk, nodes, clients and their accounts."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.rng: random.Random = simulation.swarm.rng("pair")
        self.disk = SimDisk(simulation.swarm.rng("pair/disk"))
        self.acts = Acts()
        self.notes = History(trio.current_time)
        self.accounts = Accounts()
        self.failback = self.rng.random() < 0.5
        self.on_shutdown = self.rng.random() < 0.5
        self.impatient = self.rng.random() < IMPATIENT
        for sight in SIGHTS:
            simulation.swarm.count(f"seen.{sight}", 0)
        for fault in FAULTS:
            simulation.swarm.count(f"fault.{fault}", 0)
        names = ["a", "b", "c"][: self.rng.choice((2, 2, 3))]
        self.members = [Member(self, name, 7001, first=name == "a") for name in names]
        leaves = simulation.swarm.rng("pair/leaves").random() < LEAVING
        #: The machine of the node that gets what backups take over; None: backups serve.
        self.target: SimNode | None = simulation.node("target") if leaves else None
        self.over = False

    def cluster(self, url: str) -> ClusterConnection:
        """The cluster connection of a node."""
        others = [one.url for one in self.members if one.url != url] + [TARGET] * (url != TARGET)
        given: dict[str, Any] = {"static_connectors": others} if self.target is not None else {}
        return ClusterConnection("pair", password="secret", connector="own", retry_interval=0.2, **given)

    def see(self, sight: str) -> None:
        """Count something that has happened."""
        if sight in SIGHTS:
            self.simulation.swarm.count(f"seen.{sight}")

    def repair(self) -> None:
        """Start nodes again, by chance, that have ended."""
        for member in self.members:
            if member.down and member.machine.state == "running" and self.rng.random() < REPAIRED:
                member.start()

    def cut(self, one: str, other: str) -> None:
        """Let nothing through between two machines."""
        self._fabric.cut(one, other)
        self._fabric.cut(other, one)

    def heal(self) -> None:
        """Let everything through again."""
        self._fabric.heal()

    @property
    def _fabric(self) -> MemoryNetwork:
        fabric = self.simulation.fabric
        assert isinstance(fabric, MemoryNetwork)
        return fabric

    @property
    def url(self) -> str:
        """The URL of the clients."""
        places = (one.url.partition("?")[0] for one in self.members)
        return f"({','.join(places)})?insecure=true"

    @property
    def may_come_again(self) -> Container[str]:
        """Repetitions, where the duplicate ids are at another node."""
        return self.accounts.in_doubt if self.target is not None else ()

    def dial(self, name: str) -> SimNode:
        """Return the machine of a client."""
        return self.simulation.node(name)


async def pair_scenario(simulation: Simulation) -> Outcome:
    """Run a pair under faults; the checkers follow."""
    stage = PairStage(simulation)
    if stage.target is not None:
        stage.target.spawn(live_apart, stage.target, stage.cluster(TARGET))
    for member in stage.members:
        member.start()
    await _until_active(stage, 30)
    clients = [stage.dial(f"client-{index}") for index in range(4)]
    clients[0].spawn(produce, stage, clients[0], "p")
    clients[1].spawn(produce, stage, clients[1], "r")
    clients[2].spawn(produce_in_transactions, stage, clients[2])
    clients[3].spawn(consume, stage, clients[3])
    loose, prober = stage.dial("loose"), stage.dial("prober")
    for number in range(LOOSE_SENDERS):
        loose.spawn(send_loosely, stage, loose, number)
    for member in stage.members:
        prober.spawn(probe, stage, prober, member)
    with trio.move_on_after(DURATION_S):
        await _faults(stage)
    await _heal(stage)
    await _until_active(stage, 60)
    await trio.sleep(2)
    stage.over = True
    await trio.sleep(5)
    left = await drain(stage, stage.url)
    if stage.target is not None:
        left += await drain(stage, TARGET)
    _check(stage, left)
    faults = sum(stage.simulation.swarm.counters[f"fault.{kind}"] for kind in FAULTS)
    return Outcome(history=stage.notes, faults=faults, confirmed=len(stage.accounts.confirmed))


# -- faults


async def _faults(stage: PairStage) -> None:
    rng, kinds = stage.rng, list(FAULTS)
    while True:
        await trio.sleep(rng.uniform(0.2, 1.5))
        stage.repair()
        member = rng.choice([one for one in stage.members if one.active] or stage.members)
        (kind,) = rng.choices(kinds, list(FAULTS.values()))
        stage.simulation.swarm.count(f"fault.{kind}")
        stage.notes.note(f"{kind} of {member.name}")
        await _carry_out(stage, member, kind)


async def _carry_out(stage: PairStage, member: Member, kind: str) -> None:
    rng, machine, broker = stage.rng, member.machine, member.broker
    if kind == "kill":
        machine.kill()
        await trio.sleep(rng.uniform(0.0, 4.0))
        machine.start()
        member.start()
    elif kind in ("pause", "long_pause"):
        machine.pause()
        await trio.sleep(rng.uniform(0.05, 1.5) if kind == "pause" else rng.uniform(LEASE_S, 3 * LEASE_S))
        machine.resume()
    elif kind == "lost_lock":
        if not stage.impatient:
            machine.pause()
            await trio.sleep(LOCK_PATIENCE_S)
        machine.env.disk.lose_locks()  # type: ignore[attr-defined]
        # A successor may have begun, be about to, or have acted for a while.
        await trio.sleep(rng.choice((0.0, rng.uniform(0.0, 0.5), rng.uniform(0.3, 3.0))))
        machine.resume()
    elif kind == "power":
        # All nodes, and the disk with them.
        for one in stage.members:
            one.machine.resume()
            one.machine.kill()
        stage.disk.power_loss(rng)
        await trio.sleep(rng.uniform(0.1, 2.0))
        for one in stage.members:
            one.machine.start()
            one.start()
    elif kind == "disk":
        stage.disk.faults.inject(rng.choice(DISK_CALLS), times=rng.randint(1, DISK_ERRORS_MAX))
    elif kind == "cut":
        client = rng.choice(CLIENTS)
        stage.cut(member.name, client)
        await trio.sleep(rng.uniform(0.2, 4.0))
        stage.heal()
    elif kind == "clock":
        machine.wall.offset_s += rng.uniform(-3_600, 3_600)
    elif broker is not None and member.active:
        machine.spawn(_operate, stage, broker, kind, rng.random() < 0.3)
        if kind == "stop":
            await trio.sleep(rng.uniform(2.0, 5.0))
            if not any(one.active for one in stage.members):
                stage.see("stopped_waits")


async def _operate(stage: PairStage, broker: Broker, kind: str, force: bool) -> None:
    """Do as an operator does."""
    try:
        if kind == "stop":
            await broker.stop()
        else:
            await broker.ha.fail_over(force=force)
    except MeshqError as error:
        stage.notes.note(f"{kind}: {error}")


async def _heal(stage: PairStage) -> None:
    stage.notes.note("the faults end")
    stage.disk.faults.clear()
    stage.heal()
    for member in stage.members:
        member.machine.resume()
        if member.machine.state == "dead":
            member.machine.start()
            member.start()
        elif member.down:
            member.start()


async def _until_active(stage: PairStage, seconds: float) -> None:
    with trio.move_on_after(seconds):
        while not any(one.active for one in stage.members):
            for member in stage.members:
                if member.down and member.machine.state == "running":
                    member.start()
            await trio.sleep(0.1)
        return
    states = {one.name: one.broker.state if one.broker is not None else "none" for one in stage.members}
    raise PairError(f"H4: no node serves {seconds:g} s after the last fault: {states}")


# -- checkers


def _check(stage: PairStage, left: list[str]) -> None:
    accounts, acts = stage.accounts, stage.acts
    if acts.stale and not stage.impatient:
        at, name, epoch, later = acts.stale[0]
        raise PairError(f"H3: at {at:.4f} {name} acts in epoch {epoch}, after an act in epoch {later}")
    for epoch, names in acts.actors.items():
        if len(names) > 1:
            raise PairError(f"H3: {', '.join(sorted(names))} act in epoch {epoch}")
    # With the duplicate ids at the other node, a repetition at this one is another message.
    check_accounts(accounts, left, may_come_again=stage.may_come_again)


def run_pair_seed(seed: int) -> SimulationResult:
    """Run a seed; the result has the failure, if there was one."""
    return run_scenario(seed, pair_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
