"""The simulated balancers: a front and five targets, or five brokers that balance each other, and clients of them.

``run_balanced_seed`` is one seed.  Brokers are killed, hang, stop and are cut off meanwhile, also so many that there is
no quorum.  No client is without a broker for longer than its timeouts while one that fits is there (P1), and none gives
up (P2).  In peace all targets are ready again and counted right (P3), a key has the target that it should have (P4),
targets are chosen evenly (P5), only the keys of a broker that is gone move (P6), nothing is given below the quorum
(P7), and a client is sent on once (P8).
"""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Final

import trio

from meshq.testing import MemoryNetwork, Simulation, SimulationResult
from meshq.testing.history._delivery import Violation
from meshq.testing.history._end import HistoryError
from meshq.testing.history._history import History
from qa.balanced.device import Device
from qa.balanced.node import PATIENCE_S, BalancedNode
from qa.balanced.shape import CHECK_S, CLIENT_PORT, FRONT, KINDS, PORT, QUORUM_S, TARGETS, BalancedShape
from qa.simulation.one_run import run_scenario
from qa.simulation.scenario import Outcome

#: Simulated seconds of faults, and by which a seed must be done.
DURATION_S: Final = 60.0
LIMIT_S: Final = 900.0
KEYS: Final = tuple(f"dev-{number}" for number in range(30))


class Balanced:
    """The brokers and the clients of a seed, and the violations that were found."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.shape = BalancedShape(simulation)
        self.rng = simulation.swarm.rng("balanced")
        self.history = History(trio.current_time)
        self.violations: list[Violation] = []
        self.nodes = {name: BalancedNode(simulation.node(name), self.shape) for name in self.shape.names}
        keys = [*(f"dev-{number}" for number in range(6)), "ops-1"]
        self.devices = [self._device(key) for key in keys]
        self.probe = self._device("probe")
        self.faults = 0
        self.closing = False

    def _device(self, key: str) -> Device:
        return Device(self.simulation.node(f"client-{key}"), key, self.shape.fronts, self.wrong)

    def wrong(self, checker: str, what: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(Violation(checker, what))

    def seen(self, sight: str, number: int = 1) -> None:
        """Count a sight."""
        self.simulation.swarm.count(f"seen.{sight}", number)

    @property
    def fronts(self) -> list[BalancedNode]:
        """The brokers with a balancer."""
        return [self.nodes[name] for name in self.shape.fronts]

    @property
    def _network(self) -> MemoryNetwork:
        fabric = self.simulation.fabric
        assert isinstance(fabric, MemoryNetwork)
        return fabric

    # -- faults

    async def watch(self) -> None:
        """See at all times that clients have a broker."""
        while not self.closing:
            await trio.sleep(0.5)
            there = [name for name in TARGETS if self.nodes[name].running and not self.nodes[name].apart]
            fits = len(there) >= self.shape.quorum and (self.shape.symmetric or self._front_is_there)
            for device in self.devices:
                device.look(fits=fits)

    @property
    def _front_is_there(self) -> bool:
        return self.nodes[FRONT].running and not self.nodes[FRONT].apart

    async def suffer(self) -> None:
        """Go through the faults of a seed."""
        for device in self.devices:
            device.node.spawn(device.run, lambda: self.closing)
        end = trio.current_time() + DURATION_S
        while trio.current_time() < end:
            await trio.sleep(self.rng.uniform(0.1, 6.0))
            await self._happens(self.rng.choice(KINDS), self.rng.choice(TARGETS))
            await trio.sleep(self.rng.choice((0.3, 3.0, 45.0)))
            self.mend()
        self.mend()

    async def _happens(self, kind: str, name: str) -> None:
        fabric, node = self._network, self.nodes[name]
        front = self.rng.choice(self.fronts)
        others = [one for one in TARGETS if one != name]
        self.faults += 1
        self.simulation.swarm.count(f"fault.{kind}")
        self.history.note(f"{kind} at {name}, with {front.name}")
        if kind == "kill":
            node.node.kill()
        elif kind == "pause":
            node.node.pause()
        elif kind == "isolated":
            node.apart = True
            clients = [one.node.name for one in [*self.devices, self.probe]]
            fabric.partition([name], [*others, *(one for one in (FRONT,) if one in self.nodes), *clients])
        elif kind == "apart" and front is not node:
            # Its clients reach it still, and the balancer does not.
            node.apart = True
            fabric.partition([name], [front.name])
        elif kind == "reset":
            for device in self.devices:
                fabric.reset(device.node.name, name)
        elif kind == "stop":
            await node.stop()
        elif kind == "front":
            front.node.kill()
        elif kind == "few":
            for one in self.rng.sample(TARGETS, self.rng.choice((3, 4, 5))):
                self.nodes[one].node.kill()

    def mend(self) -> None:
        """End the faults, and start the brokers that are down."""
        self._network.heal()
        for node in self.nodes.values():
            node.apart = False
            node.up()

    # -- in peace

    async def peace(self, *missing: str) -> None:
        """Wait until each balancer knows which targets are ready, and how many clients each has."""
        wanted = set(TARGETS) - set(missing)
        with trio.move_on_after(PATIENCE_S):
            while True:
                await trio.sleep(CHECK_S / 2)
                here = [front for front in self.fronts if front.name not in missing]
                if all(front.running and front.ready() == wanted for front in here):
                    break
            await trio.sleep(3 * CHECK_S)
            return
        found = {front.name: sorted(front.ready()) if front.running else "down" for front in self.fronts}
        self.wrong("P3", f"ready are {sorted(wanted)}, and known to be ready after {PATIENCE_S:g} s {found}")

    def check_counts(self) -> None:
        """Check that balancers know how many clients each target has; these are at rest."""
        there = {name: self.nodes[name].clients for name in TARGETS}
        for front in self.fronts:
            known = {row.node_name: row.connections for row in front.balancer.statistics().targets}
            if known != there:
                self.wrong("P3", f"{front.name} knows of {known} clients, and there are {there}")
            if front.balancer.statistics().waiting:
                self.wrong("P7", f"at {front.name} clients wait although there is a quorum")

    async def all_are_served(self) -> None:
        """Wait until each client was served in peace, or has been without a broker for so long that it is found."""
        began = trio.current_time()
        with trio.move_on_after(PATIENCE_S + 1.0):
            while any(device.served_at <= began for device in self.devices):  # noqa: ASYNC110 - looking costs nothing
                await trio.sleep(0.5)

    async def check_places(self) -> None:
        """Check where clients come that connect anew, and how often they are sent on."""
        homes: dict[str, set[str]] = {}
        for device in self.devices:
            for front in self.fronts if self.shape.symmetric else [*self.fronts, *self.fronts]:
                at, hops = await device.place(f"tcp://{front.name}:{CLIENT_PORT}")
                homes.setdefault(device.key, set()).add(at)
                self.seen("redirected", int(hops > 0))
                if hops > 1:
                    self.wrong("P8", f"{device.key} was sent on {hops} times from {front.name}")
        for key, places in homes.items():
            local = key.startswith("ops") and not self.shape.symmetric
            if local and places != {FRONT}:
                self.wrong("P4", f"{key} stays at the front, and was at {sorted(places)}")
            elif not local and FRONT in places:
                self.wrong("P4", f"{key} was at the front, which is no target")
            elif self.shape.sticks and len(places) > 1:
                self.wrong("P4", f"{key} has one target, and was at {sorted(places)}")
            self.seen("kept_local", int(local))

    async def check_shares(self) -> None:
        """Check that targets are chosen evenly where the policy says so, by questions at once."""
        front = self.fronts[0]
        if self.shape.policy not in ("round_robin", "least_connections") or self.shape.cached:
            return
        async with AsyncExitStack() as stack:
            # Some have come by themselves, and count as well.
            for _ in range(4):
                await stack.enter_async_context(self.probe.dial(f"tcp://{TARGETS[0]}:{PORT}"))
            await trio.sleep(3 * CHECK_S)
            await self._share(front)

    async def _share(self, front: BalancedNode) -> None:
        before = {row.node_name: row.connections + row.under_way for row in front.balancer.statistics().targets}
        given = Counter(dict.fromkeys(TARGETS, 0))
        for number in range(40):
            target = await front.balancer.target(f"new-{number}")
            given[self._name_of(target.node_id if target is not None else "")] += 1
        load = {
            name: given[name] + (before[name] if self.shape.policy == "least_connections" else 0) for name in TARGETS
        }
        highest = max(load[name] for name in TARGETS if given[name])
        if sum(given[name] for name in TARGETS) != 40 or highest > min(load.values()) + 1:
            self.wrong("P5", f"of 40 questions {dict(given)} were given, to {before}")

    @staticmethod
    def _name_of(node_id: str) -> str:
        return bytes.fromhex(node_id).rstrip(b"-").decode() if node_id else ""

    async def homes(self) -> dict[str, str]:
        """The target of each key."""
        found = {}
        for key in KEYS:
            target = await self.fronts[-1].balancer.target(key)
            found[key] = self._name_of(target.node_id if target is not None else "")
        return found

    async def check_moves(self) -> None:
        """Check that only the keys of a broker move which is gone, and come back with it unless they are kept."""
        if self.shape.policy != "consistent_hash":
            return
        before, gone = await self.homes(), self.rng.choice(TARGETS[:-1])
        if max(Counter(before.values()).values()) > len(KEYS) / 2:
            self.wrong("P5", f"of {len(KEYS)} keys {Counter(before.values())} are at one target")
        self.nodes[gone].node.kill()
        await self.peace(gone)
        moved = {key for key, name in (await self.homes()).items() if name != before[key]}
        theirs = {key for key in KEYS if before[key] == gone}
        if moved != theirs:
            self.wrong("P6", f"{gone} is gone, which had {sorted(theirs)}; {sorted(moved)} have moved")
        self.seen("moved", len(moved))
        self.nodes[gone].up()
        await self.peace()
        if not self.shape.cached and await self.homes() != before:
            self.wrong("P6", f"{gone} is back, and its keys are not")

    async def check_quorum(self) -> None:
        """Check that nothing is given below the quorum, and something again above it."""
        if self.shape.symmetric:
            return
        balancer = self.fronts[0].balancer
        gone = TARGETS[: len(TARGETS) - self.shape.quorum + 1]
        for name in gone:
            self.nodes[name].node.kill()
        await self.peace(*gone)
        began = trio.current_time()
        target = None
        with trio.move_on_after(10 * QUORUM_S):
            target = await balancer.target("nobody")
        waited = trio.current_time() - began
        if target is not None or balancer.statistics().active:
            self.wrong("P7", f"{self.shape.quorum} targets are a quorum, and below it {target} was given")
        elif not QUORUM_S <= waited < 2 * QUORUM_S:
            self.wrong("P7", f"that there is no quorum was said after {waited:.1f} s")
        self.seen("quorum_lost")
        for name in gone:
            self.nodes[name].up()
        await self.peace()
        if await balancer.target("nobody") is None:
            self.wrong("P7", "the quorum is there again, and no target is given")
        self.seen("quorum_regained")


async def balanced_scenario(simulation: Simulation) -> Outcome:
    """Run the faults of one seed, and check its accounts.

    Checkpoint: always.  Cancellation: the simulation ends.
    Raises: HistoryError for a promise that was broken.
    """
    made = Balanced(simulation)
    await made.peace()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.watch)
        await made.suffer()
        made.history.healed()
        simulation.swarm.force("chaos.broker.drop_connection", False)
        await made.peace()
        await made.all_are_served()
        made.closing = True
    await made.peace()
    made.check_counts()
    await made.check_places()
    await made.check_shares()
    await made.check_moves()
    await made.check_quorum()
    if made.violations:
        raise HistoryError(made.violations, "\n".join(f"{at_s:10.4f} {what}" for at_s, what in made.history.notes))
    return Outcome(made.history, made.faults, sum(device.served for device in made.devices))


def run_balanced_seed(seed: int) -> SimulationResult:
    """Run one seed; the result has the failure, if any."""
    return run_scenario(seed, balanced_scenario, duration_s=DURATION_S, limit_s=LIMIT_S)
