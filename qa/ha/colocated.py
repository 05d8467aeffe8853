"""Two or three simulated processes, each with a node and the backup of another one: they die, stand still and are
stopped."""

from __future__ import annotations

import random
from collections.abc import Container
from typing import Any, Final

import trio

from meshq import Broker, ClusterConnection, Colocated, MeshqError, SharedStoreBackup, SharedStorePrimary
from meshq.concurrency import first_error
from meshq.ha import _store_competition
from meshq.node.hosting import _backup_host, _backup_requester
from meshq.testing import MemoryNetwork, SimDisk, SimNode, Simulation, SimulationResult
from meshq.testing.history._history import History
from qa.ha.clients import (
    Accounts,
    PairError,
    check_accounts,
    consume,
    drain,
    produce,
    produce_in_transactions,
)
from qa.ha.colocated_replicas import (
    CLUSTER,
    FORMED_S,
    THIRD,
    TTL_S,
    Numbers,
    ThirdProcess,
    replace_replica,
    replicating,
    until_protected,
)
from qa.ha.colocated_replicas import LOADED as BY_REPLICATION
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Loaded before a simulation begins: no file is opened in it.
LOADED: Final = (_store_competition.joined, _backup_host.BackupHost, _backup_requester.BackupRequester, BY_REPLICATION)
#: Simulated seconds of work under faults, and those after which all has to be over.
DURATION_S: Final = 12.0
LIMIT_S: Final = 300.0
LEASE_S: Final = 2.0
PORT: Final = 7001
OFFSET: Final = 100
#: So many backups one after the other a host may have had, at a port each, that clients know.
PLACES: Final = 8
FAULTS: Final = {"kill": 5, "kill_both": 1, "pause": 3, "long_pause": 3, "stop": 2, "fail_over": 2, "cut": 2} | {
    "disk": 2,
    "clock": 1,
}
#: The share of the runs over one disk in which there are three processes, which may back each other in a circle.
THREE: Final = 0.5
#: Those of runs in which each node has a store of its own.
REPLICATED_FAULTS: Final = {**FAULTS, "third": 3, "replaced": 2}
DISK_CALLS: Final = ("open", "write", "sync", "replace", "move_directory", "sync_directory", "read")
DISK_ERRORS_MAX: Final = 3
#: What the fixed seeds have to have seen, each at least once.
SIGHTS: Final = ("takeover", "failback", "both_lost", "asked_again", "transaction", "replicated", "moved", "three")
#: The share of the runs in which each node has a store of its own.
REPLICATED: Final = 0.4


class Half:
    """A process with a node and the backup of another node, and the clients of the node's store."""

    def __init__(self, stage: ColocatedStage, name: str, names: tuple[str, ...]) -> None:
        at = names.index(name)
        self.name = name
        #: The process that runs the backup of this one, and the one whose backup runs here.
        self.other = names[(at + 1) % len(names)]
        self.backs = names[at - 1]
        self.names = names
        self.stage = stage
        self.rng: random.Random = stage.rng
        self.accounts = Accounts()
        shared = not stage.replicates
        self.machine: SimNode = stage.simulation.node(name, disk=stage.disk) if shared else stage.simulation.node(name)
        stage.disk.latency = None
        #: The id of the node, once it is known.
        self.node_id: bytes | None = None
        self.broker: Broker | None = None
        self.down = False
        #: Whether the clients end.
        self.over: bool = False
        #: Whether a backup of the other node serves in this process.
        self.took_over = False

    @property
    def own_url(self) -> str:
        """Where the node itself listens."""
        return f"tcp://{self.name}:{PORT}?insecure=true"

    # -- as its clients see it

    @property
    def url(self) -> str:
        """The URL of the clients: the node, and the places of its backup at the other one."""
        hosts = [self.other, *([THIRD] if self.stage.replicates and self.name == "a" else [])]
        places = [f"tcp://{host}:{PORT + number * OFFSET}" for host in hosts for number in range(1, PLACES + 1)]
        return f"({','.join([f'tcp://{self.name}:{PORT}', *places])})?insecure=true&use_topology=false"

    @property
    def may_come_again(self) -> Container[str]:
        """No message may."""
        return ()

    def see(self, sight: str) -> None:
        """Count something that has happened."""
        self.stage.see(sight)

    def dial(self, name: str) -> SimNode:
        """Return the machine of a client of this half."""
        return self.stage.simulation.node(f"{name}-{self.name}")

    # -- its life

    @property
    def active(self) -> bool:
        """Whether the node itself serves."""
        return self.broker is not None and self.broker.state == "active" and self.machine.state == "running"

    @property
    def serves_other(self) -> bool:
        """Whether the backup of the other node serves here."""
        return any(one.state == "active" for one in self.hosted())

    def hosted(self) -> tuple[Any, ...]:
        """The backups that run in the process."""
        return self.broker.ha.hosted if self.broker is not None and self.machine.state == "running" else ()

    def learn_id(self) -> bytes | None:
        """Return the id of the node, which it tells while it serves."""
        if self.active and self.broker is not None:
            self.node_id = self.broker.node_id
        return self.node_id

    def start(self) -> None:
        """Begin a life."""
        self.down = False
        self.machine.spawn(self._live)

    def _policy(self) -> Colocated:
        stage = self.stage
        if stage.replicates:
            return replicating(self.name, failback=stage.failback)
        shared: dict[str, Any] = {
            "lease": LEASE_S,
            "lock_check_period": 0.1,
            "failover_on_shutdown": stage.on_shutdown,
        }
        return Colocated(
            primary=SharedStorePrimary(wait_for_activation=False, **shared),
            backup=SharedStoreBackup(allow_failback=stage.failback, **shared),
            request_backup=True,
            backup_request_retry_interval=1.0,
            backup_port_offset=OFFSET,
            # Clients know of which node a backup is by its host.
            shared_root=f"/{self.backs}",
        )

    async def _live(self) -> None:
        stage = self.stage
        static = [f"tcp://{other}:{PORT}?insecure=true" for other in self.names if other != self.name]
        about: dict[str, Any] = {
            "connector": "own",
            "retry_interval": 0.2,
            "max_retry_interval": 0.5,
            "connection_ttl": 2.0,
        }
        # Each store keeps what was sent to it.
        about["load_balancing"] = "off"
        if stage.replicates:
            static.append(f"tcp://{THIRD}:{PORT}?insecure=true")
            about |= CLUSTER
        self.broker = broker = Broker(
            self.name,
            data_dir=f"/{self.name}" if stage.replicates else f"/{self.name}/store",
            acceptors=[self.own_url],
            connectors={"own": self.own_url},
            services=[ClusterConnection("pair", password="secret", static_connectors=static, **about)],
            ha=self._policy(),
            stop_timeout=2,
            env=self.machine.env,
        )
        try:
            await broker.run()
        except* MeshqError as group:
            stage.notes.note(f"{self.name} has failed: {first_error(group)}")
        self.down = True


class ColocatedStage:
    """A run: the disk and the two halves."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.rng: random.Random = simulation.swarm.rng("colocated")
        self.disk = SimDisk(simulation.swarm.rng("colocated/disk"))
        #: Whether each node has a store of its own.
        self.replicates: bool = simulation.swarm.rng("colocated/replicates").random() < REPLICATED
        self.notes = History(trio.current_time)
        self.failback = self.rng.random() < 0.7
        self.on_shutdown = self.rng.random() < 0.5
        for sight in SIGHTS:
            simulation.swarm.count(f"seen.{sight}", 0)
        for fault in REPLICATED_FAULTS:
            simulation.swarm.count(f"fault.{fault}", 0)
        if self.replicates:
            self.see("replicated")
        three = not self.replicates and simulation.swarm.rng("colocated/three").random() < THREE
        names = ("a", "b", "c") if three else ("a", "b")
        self.halves = [Half(self, name, names) for name in names]
        if three:
            self.see("three")
        self.third = ThirdProcess(self) if self.replicates else None
        self.numbers = Numbers()

    def see(self, sight: str) -> None:
        """Count something that has happened."""
        if sight in SIGHTS:
            self.simulation.swarm.count(f"seen.{sight}")

    @property
    def fabric(self) -> MemoryNetwork:
        """The network."""
        fabric = self.simulation.fabric
        assert isinstance(fabric, MemoryNetwork)
        return fabric

    @property
    def brokers(self) -> list[Broker | None]:
        """The brokers of all processes that run."""
        found = [half.broker for half in self.halves if half.machine.state == "running"]
        return [*found, self.third.broker] if self.third is not None else found

    def served(self, half: Half) -> bool:
        """Whether the store of a half is served, by the node or by its backup."""
        third = self.third.broker if self.third is not None else None
        backups = [one for other in self.halves if other is not half for one in other.hosted()]
        backups += [] if third is None else third.ha.hosted
        return half.active or any(one.state == "active" for one in backups if one.requester == half.name)

    def restart(self) -> None:
        """Start all processes that have ended, as an operator does."""
        for half in self.halves:
            if half.down and half.machine.state == "running":
                half.start()
        if self.third is not None and self.third.machine.state == "dead":
            self.third.start()


async def colocated_scenario(simulation: Simulation) -> Outcome:
    """Run two processes under faults; the checkers follow."""
    stage = ColocatedStage(simulation)
    for half in stage.halves:
        half.start()
    await _until_served(stage, 30)
    await _until_backed(stage, 30)
    if stage.third is not None:
        stage.third.start()
        await until_protected(stage, 30)
        await trio.sleep(FORMED_S)
    for half in stage.halves:
        client = half.dial("client")
        client.spawn(produce, half, client, "p")
        client.spawn(produce_in_transactions, half, client)
        client.spawn(consume, half, client)
    watcher = simulation.node("watcher")
    watcher.spawn(_watch, stage)
    with trio.move_on_after(DURATION_S):
        await _faults(stage)
    await _heal(stage)
    await _until_served(stage, 60)
    if stage.replicates:
        await until_protected(stage, 60)
    await trio.sleep(2)
    for half in stage.halves:
        half.over = True
    await trio.sleep(5)
    for half in stage.halves:
        check_accounts(half.accounts, await drain(half, half.url))
    # By replication the third process may have the backup.
    await (until_protected(stage, 60) if stage.replicates else _until_backed(stage, 60))
    faults = sum(simulation.swarm.counters[f"fault.{kind}"] for kind in REPLICATED_FAULTS)
    return Outcome(
        history=stage.notes, faults=faults, confirmed=sum(len(one.accounts.confirmed) for one in stage.halves)
    )


async def _watch(stage: ColocatedStage) -> None:
    """See backups come to serve, and give the store back."""
    backing: dict[str, bool] = {}
    while True:
        _look(stage)
        for half in stage.halves:
            serves = half.serves_other
            if serves != half.took_over:
                half.took_over = serves
                stage.notes.note(f"the backup at {half.name} {'serves' if serves else 'does not serve'}")
                other = next(one for one in stage.halves if one.name == half.backs)
                stage.see("takeover" if serves else "failback" if other.active else "")
            if half.hosted() and not backing.get(half.name, True):
                stage.see("asked_again")
            backing[half.name] = bool(half.hosted())
        await trio.sleep(0.05)


def _look(stage: ColocatedStage) -> None:
    """Look at the numbers of backups with stores of their own."""
    processes: list[Half | ThirdProcess] = [] if stage.third is None else [*stage.halves, stage.third]
    for one in processes:
        if one.broker is not None and one.machine.state == "running":
            stage.numbers.look(one.name, one.broker, one.machine)
            if any(each.name == "colocated_backup_2" for each in one.broker.ha.hosted):
                stage.see("moved")


# -- faults


async def _faults(stage: ColocatedStage) -> None:
    rng, weights = stage.rng, REPLICATED_FAULTS if stage.replicates else FAULTS
    while True:
        await trio.sleep(rng.uniform(0.3, 1.5))
        stage.restart()
        half = rng.choice(stage.halves)
        (kind,) = rng.choices(list(weights), list(weights.values()))
        stage.simulation.swarm.count(f"fault.{kind}")
        stage.notes.note(f"{kind} of {half.name}")
        await _carry_out(stage, half, kind)


async def _carry_out(stage: ColocatedStage, half: Half, kind: str) -> None:
    rng, machine, broker = stage.rng, half.machine, half.broker
    if kind in ("kill", "kill_both"):
        lost = stage.halves if kind == "kill_both" else [half]
        if any(one.active and one.serves_other for one in lost):
            # Both stores are without anybody.
            stage.see("both_lost")
        for one in lost:
            one.machine.kill()
        await trio.sleep(rng.uniform(0.0, 4.0))
        for one in lost:
            one.machine.start()
            one.start()
    elif kind == "third" and stage.third is not None:
        stage.third.machine.kill()
        await trio.sleep(rng.uniform(0.0, 4.0))
        stage.third.start()
    elif kind == "replaced":
        await replace_replica(stage)
    elif kind in ("pause", "long_pause"):
        silence_s = TTL_S if stage.replicates else LEASE_S
        machine.pause()
        await trio.sleep(rng.uniform(0.05, 1.5) if kind == "pause" else rng.uniform(silence_s, 2 * silence_s))
        machine.resume()
    elif kind == "disk":
        disk = machine.disk if stage.replicates else stage.disk
        disk.faults.inject(rng.choice(DISK_CALLS), times=rng.randint(1, DISK_ERRORS_MAX))
    elif kind == "cut":
        place, far = rng.choice([(half.name, half.other), (half.name, f"client-{half.name}")])
        stage.fabric.cut(place, far)
        stage.fabric.cut(far, place)
        await trio.sleep(rng.uniform(0.2, 3.0))
        stage.fabric.heal()
    elif kind == "clock":
        machine.wall.offset_s += rng.uniform(-3_600, 3_600)
    elif broker is not None and half.active:
        machine.spawn(_operate, stage, broker, kind)
        await trio.sleep(rng.uniform(0.0, 3.0))


async def _operate(stage: ColocatedStage, broker: Broker, kind: str) -> None:
    """Do as an operator does."""
    try:
        if kind == "stop":
            await broker.stop()
        else:
            await broker.ha.fail_over()
    except MeshqError as error:
        stage.notes.note(f"{kind}: {error}")


async def _heal(stage: ColocatedStage) -> None:
    stage.notes.note("the faults end")
    stage.disk.faults.clear()
    stage.fabric.heal()
    for half in stage.halves:
        half.machine.disk.faults.clear()
    for half in stage.halves:
        half.machine.resume()
        if half.machine.state == "dead":
            half.machine.start()
            half.start()
    stage.restart()


# -- checkers


async def _until_served(stage: ColocatedStage, seconds: float) -> None:
    with trio.move_on_after(seconds):
        while not all(stage.served(half) for half in stage.halves):
            stage.restart()
            await trio.sleep(0.1)
        return
    raise PairError(f"H4: not every store is served {seconds:g} s after the last fault: {_states(stage)}")


async def _until_backed(stage: ColocatedStage, seconds: float) -> None:
    """Wait until each node has a backup at its host, if that serves itself."""
    with trio.move_on_after(seconds):
        while not all(_backed(stage, half) for half in stage.halves):
            stage.restart()
            await trio.sleep(0.1)
        return
    raise PairError(f"H5: not every node has a backup {seconds:g} s after the last fault: {_states(stage)}")


def _backed(stage: ColocatedStage, half: Half) -> bool:
    other = next(one for one in stage.halves if one.name == half.other)
    # A process whose own node waits is in no cluster, and nobody asks it.
    return not other.active or any(
        one.requester == half.name and one.state in ("waiting", "active") for one in other.hosted()
    )


def _states(stage: ColocatedStage) -> str:
    states = []
    for half in stage.halves:
        state = half.broker.state if half.broker is not None else "none"
        hosted = [f"{one.name} of {one.requester} {one.state} {one.last_error}" for one in half.hosted()]
        states.append(f"{half.name}: {state}, with {hosted}")
    return "; ".join(states)


def run_colocated_seed(seed: int) -> SimulationResult:
    """Run a seed; the result has the failure, if there was one."""
    return run_scenario(seed, colocated_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
