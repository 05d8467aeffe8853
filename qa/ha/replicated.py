"""A simulated pair by replication, each node with a disk of its own: one of the two is lost at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial
from typing import Any, Final

import trio

from meshq import (
    Broker,
    ClusterConnection,
    MeshqError,
    Message,
    ReplicationBackup,
    ReplicationPrimary,
    ScaleDown,
    connect,
)
from meshq.abc import ActiveTerm, Difference, HAPolicy
from meshq.concurrency import first_error
from meshq.ha.replication import _joined
from meshq.testing import MemoryNetwork, SimNode, Simulation, SimulationResult
from meshq.testing.history._history import History
from qa.ha.clients import (
    PATIENT,
    QUEUE,
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
from qa.ha.replicated_faults import DEADLY, FAULTS, SLOW_S, TTL_S, draw_faults
from qa.ha.target import LEAVING, TARGET, live_apart
from qa.ha.watched import Acts, WatchedPolicy
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Loaded before a simulation begins: no file is opened in it.
LOADED: Final = _joined.joined
#: Simulated seconds of work under faults, and those after which all has to be over.
DURATION_S: Final = 15.0
LIMIT_S: Final = 300.0
#: The time of the end of a sync.
SYNC_S: Final = 3.0
#: The phases of a node that serves, or has found the one that does.
SETTLED: Final = ("syncing", "in_sync", "activating", "active", "scaling_down", "failing_back")
LOOSE_SENDERS: Final = 2
#: Bytes of a body that goes in a file of its own.
LARGE_BYTES: Final = 150_000
#: What the fixed seeds have to have seen, each at least once.
SIGHTS: Final = (
    "takeover",
    "failback",
    "handed_over",
    "stopped",
    "synced",
    "synced_under_traffic",
    "superseded",
    "dropped_link",
    "dropped_slow",
    "dropped_disk",
    "sync_failed",
    "transaction",
    "large",
    "scaled_down",
)


class ReplicaMember:
    """A node of the pair: one life of a broker after the other."""

    def __init__(self, stage: ReplicatedStage, name: str, *, first: bool) -> None:
        self.name = name
        self.url = f"tcp://{name}:7001?insecure=true"
        self._stage = stage
        self.first = first
        self.machine: SimNode = stage.simulation.node(name)
        self.broker: Broker | None = None
        self.down = True

    @property
    def up(self) -> bool:
        """Whether a broker runs there, and is not stopped."""
        ended = self.broker is not None and self.broker.state in ("stopping", "stopped", "failed")
        return not (self.down or ended) and self.machine.state == "running"

    @property
    def there(self) -> bool:
        """Whether a broker runs there that takes connections: one that is being started refuses them."""
        return self.up and self.broker is not None and self.broker.state not in ("new", "starting")

    @property
    def settled(self) -> bool:
        """Whether the node is down, or has found the other one since it was started."""
        return self.down or (self.broker is not None and self.broker.ha.phase in SETTLED)

    @property
    def active(self) -> bool:
        """Whether the broker serves."""
        return self.broker is not None and self.broker.state == "active" and self.up

    def start(self) -> None:
        """Begin a life, as an operator does: the node that served last is started first."""
        stage = self._stage
        if self.machine.state == "dead":
            self.machine.start()
        if self.down and (stage.any_order or self.name == stage.served_last or stage.other(self).there):
            # That of the life before says nothing of this one.
            self.down, self.broker = False, None
            self.machine.spawn(self._live)

    def _policy(self) -> HAPolicy:
        about, stage = dict(self._stage.about(self)), self._stage
        about |= {"initial_replication_sync_timeout": SYNC_S, "max_retry_interval": 0.5, "retry_interval": 0.1}
        if self.first:
            return ReplicationPrimary(wait_for_activation=False, **about)
        order = ScaleDown(connectors=[TARGET]) if stage.target is not None else None
        return ReplicationBackup(allow_failback=stage.failback, scale_down=order, **about)

    async def _live(self) -> None:
        stage = self._stage
        cluster: dict[str, Any] = {"connection_ttl": TTL_S, "call_timeout": SLOW_S}
        other, policy = stage.other(self).url, self._policy()
        self.broker = broker = Broker(
            self.name,
            data_dir="/data",
            acceptors=[self.url],
            services=[
                ClusterConnection("pair", password="secret", connector="own", static_connectors=[other], **cluster)
            ],
            connectors={"own": self.url},
            # Of a policy that is wrapped nobody sees that it scales down.
            ha=policy if stage.target is not None and not self.first else WatchedPolicy(policy, stage.acts, epoch_of),
            stop_timeout=2,
            env=self.machine.env,
        )
        watch = partial(self._watch, broker)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            nursery.start_soon(self._watch_phases, broker)
            try:
                await broker.run()
            except* (MeshqError, OSError) as group:
                stage.notes.note(f"{self.name} has failed: {first_error(group)}")
            nursery.cancel_scope.cancel()
        self.down = True

    async def _watch_phases(self, broker: Broker) -> None:
        """Note who has the messages, and count the times when all were handed over."""
        stage = self._stage
        while True:
            await broker.ha.wait_for(phase="scaling_down")
            stage.served_last = self.name
            stage.notes.note(f"{self.name} scales down")
            await broker.ha.wait_for(role="backup")
            stage.notes.note(f"{self.name} waits again: {broker._run.board.report.reason}")
            if broker._run.board.report.reason == "scaled_down":
                stage.see("scaled_down")

    async def _watch(self, broker: Broker) -> None:
        stage = self._stage
        async for event in broker.events():
            stage.happened(self, event.kind, event)


def epoch_of(term: ActiveTerm) -> int:
    """Return the epoch of a term."""
    return getattr(term.guard, "epoch", 0)


class ReplicatedStage:
    """A run: nodes, clients and their accounts."""

    #: Whether a node is started at any time; otherwise the one that served last is started first.
    any_order = False
    #: What a run may see, and the faults, by their weights.
    sights: tuple[str, ...] = SIGHTS
    faults: Mapping[str, int] = FAULTS
    #: The share of the runs in which the backup scales down.
    leaving = LEAVING

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.rng: random.Random = simulation.swarm.rng("pair")
        self.acts = Acts()
        self.notes = History(trio.current_time)
        self.accounts = Accounts()
        self.failback = self.rng.random() < 0.6
        #: The node that served last.
        self.served_last = "a"
        for sight in self.sights:
            simulation.swarm.count(f"seen.{sight}", 0)
        for fault in self.faults:
            simulation.swarm.count(f"fault.{fault}", 0)
        leaves = simulation.swarm.rng("pair/leaves").random() < self.leaving
        #: The machine of the node that gets what the backup takes over; None: the backup serves.
        self.target: SimNode | None = simulation.node("target") if leaves else None
        self.members = [ReplicaMember(self, "a", first=True), ReplicaMember(self, "b", first=False)]
        self.over = False

    def about(self, member: ReplicaMember) -> Mapping[str, Any]:
        """Return settings of the policy of a node."""
        return {"check_for_live_server": True} if member.first else {}

    def url_of(self, name: str) -> str:
        """Return where a node is reached."""
        return f"tcp://{name}:7001?insecure=true"

    def other(self, member: ReplicaMember) -> ReplicaMember:
        """Return the other node of the pair."""
        return next(one for one in self.members if one is not member)

    def see(self, sight: str) -> None:
        """Count something that has happened."""
        if sight in self.sights:
            self.simulation.swarm.count(f"seen.{sight}")

    def happened(self, member: ReplicaMember, kind: str, event: Any) -> None:
        """Note a notification of a node."""
        if kind == "broker_state_changed" and event.state == "active":
            self.served_last = member.name
        if kind == "role_changed":
            self.notes.note(f"{member.name} is {event.role}: {event.reason} (epoch {event.epoch})")
            if event.role == "primary":
                self.see({"crash": "takeover", "forced": "handed_over"}.get(event.reason, event.reason))
            elif event.reason in ("superseded", "lease_lost"):
                self.see(event.reason)
        elif kind == "sync_done":
            self.notes.note(f"{event.replica} is in sync with {member.name}")
            self.see("synced")
            if self.accounts.confirmed and not self.over:
                self.see("synced_under_traffic")
        elif kind == "sync_failed":
            self.see("sync_failed")
        elif kind == "replica_dropped":
            self.notes.note(f"{member.name} drops {event.replica}: {event.reason}")
            self.see(f"dropped_{event.reason}")

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

    def look_at(self, member: ReplicaMember) -> None:
        """Look at a node before each fault."""

    def allows(self, member: ReplicaMember, kind: str) -> bool:
        """Whether such a fault may come now."""
        if self.any_order:
            return True
        # One node at a time: the other one is what is left.
        if member.down and kind not in ("cut", "clock"):
            return False
        # An operator who starts an old store sees to it that the newer one is there until the two have met.
        return kind not in DEADLY or self.other(member).settled

    @property
    def may_come_again(self) -> Container[str]:
        """Repetitions, where the duplicate ids are at another node."""
        return self.accounts.in_doubt if self.target is not None else ()

    def check(self, left: list[str]) -> None:
        """Check the accounts of the clients against the messages that are left.  Raises: PairError."""
        for epoch, names in self.acts.actors.items():
            if len(names) > 1:
                raise PairError(f"H3: {', '.join(sorted(names))} act in epoch {epoch}")
        check_accounts(self.accounts, left)

    def dial(self, name: str) -> SimNode:
        """Return the machine of a client."""
        return self.simulation.node(name)


async def replicated_scenario(simulation: Simulation) -> Outcome:
    """Run a pair under faults; the checkers follow."""
    return await run_pair(ReplicatedStage(simulation), replicated_faults)


async def run_pair(stage: ReplicatedStage, make_faults: Callable[[ReplicatedStage], Awaitable[None]]) -> Outcome:
    """Run a pair under faults; the checkers follow."""
    if stage.target is not None:
        apart = ClusterConnection("apart", password="secret", connector="own")
        stage.target.spawn(live_apart, stage.target, apart)
    for member in stage.members:
        member.start()
    await _until_active(stage, 30)
    clients = [stage.dial(f"client-{index}") for index in range(5)]
    clients[0].spawn(produce, stage, clients[0], "p")
    clients[1].spawn(produce, stage, clients[1], "r")
    clients[2].spawn(produce_in_transactions, stage, clients[2])
    clients[3].spawn(consume, stage, clients[3])
    clients[4].spawn(_produce_large, stage, clients[4])
    loose, prober = stage.dial("loose"), stage.dial("prober")
    for number in range(LOOSE_SENDERS):
        loose.spawn(send_loosely, stage, loose, number)
    for member in stage.members:
        prober.spawn(probe, stage, prober, member)
    with trio.move_on_after(DURATION_S):
        await make_faults(stage)
    await heal(stage)
    await _until_active(stage, 60)
    await _until_in_sync(stage, 60)
    await trio.sleep(2)
    stage.over = True
    await trio.sleep(5)
    differences = await _differences(stage)
    left = await drain(stage, stage.url)
    if stage.target is not None:
        left += await drain(stage, TARGET)
    stage.check(left)
    if differences:
        raise PairError(f"H6: the stores of the two are not the same: {differences}")
    faults = sum(stage.simulation.swarm.counters[f"fault.{kind}"] for kind in stage.faults)
    return Outcome(history=stage.notes, faults=faults, confirmed=len(stage.accounts.confirmed))


# -- faults


async def replicated_faults(stage: ReplicatedStage) -> None:
    """Make one fault after the other, until cancelled: of one node at a time."""
    await draw_faults(stage, (0.2, 2.0), {})


async def heal(stage: ReplicatedStage) -> None:
    """End all faults, and start the nodes."""
    stage.notes.note("the faults end")
    stage.heal()
    for member in stage.members:
        member.machine.disk.faults.clear()
        member.machine.disk.capacity_bytes = math.inf
        if member.machine.state == "paused":
            member.machine.resume()
    for _ in range(2):
        for member in stage.members:
            member.start()


async def _until_active(stage: ReplicatedStage, seconds: float) -> None:
    with trio.move_on_after(seconds):
        while not any(one.active for one in stage.members):
            for member in stage.members:
                member.start()
            await trio.sleep(0.1)
        return
    raise PairError(f"H4: no node serves {seconds:g} s after the last fault: {_states(stage)}")


async def _until_in_sync(stage: ReplicatedStage, seconds: float) -> None:
    with trio.move_on_after(seconds):
        while not any(
            one.active and one.broker is not None and one.broker.ha.replicas and not one.broker.ha.unprotected
            for one in stage.members
        ):
            for member in stage.members:
                member.start()
            await trio.sleep(0.1)
        return
    raise PairError(f"H4: no node is in sync {seconds:g} s after the last fault: {_states(stage)}")


async def _differences(stage: ReplicatedStage) -> list[Difference]:
    """Return the first record that differs between the node that serves and its replica, if there is one."""
    found: list[Difference | None] = []
    for one in stage.members:
        if one.active and one.broker is not None:
            found += [await one.broker.ha.replica(each.name).diff() for each in one.broker.ha.replicas if each.in_sync]
    return [one for one in found if one is not None]


def _states(stage: ReplicatedStage) -> str:
    found = []
    for one in stage.members:
        broker = one.broker
        ha = broker.ha if broker is not None else None
        state = broker.state if broker is not None else "none"
        found.append(f"{one.name}: {state} {ha!r} {ha.last_error if ha is not None else ''}")
    return "; ".join(found)


# -- clients


async def _produce_large(stage: ReplicatedStage, machine: SimNode) -> None:
    """Send messages whose bodies have files of their own, and begin with the uid."""
    accounts, number = stage.accounts, 0
    async with connect(stage.url, env=machine.env, reconnect_attempts=float("inf"), **PATIENT) as client:
        while not stage.over:
            uid, number = f"L{number}", number + 1
            accounts.sent.add(uid)
            body = uid.encode().ljust(LARGE_BYTES, b".")
            done = False
            while not done and not stage.over:
                try:
                    await client.send(QUEUE, Message(body, duplicate_id=uid))
                    done = True
                except MeshqError:
                    accounts.repeated.add(uid)
                await trio.sleep(0.05)
            if done:
                stage.see("large")
                accounts.confirmed.add(uid)
            await trio.sleep(stage.rng.uniform(0.2, 1.0))


def run_replicated_pair_seed(seed: int) -> SimulationResult:
    """Run a seed; the result has the failure, if there was one."""
    return run_scenario(seed, replicated_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
