"""The faults of a simulated minute, and their ends."""

from __future__ import annotations

import errno
import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from meshq.testing import DiskCall, MemoryNetwork, SimNode, Simulation
from qa.simulation.broker import BrokerNode
from qa.simulation.workload import Actor, Scene

#: The least number of faults that a seed has to have seen.
FAULTS_MIN: Final = 3
#: On a full disk files take whole pages, so that nothing is left in the last one.
PAGE_BYTES: Final = 4096
#: What happens to the broker's process; each ends in a restart.
BROKER_FAULTS: Final = ("kill", "power", "fuse_kill", "fuse_power", "fuse_write", "stop", "rot", "full_kill")
#: What happens to its disk.
DISK_FAULTS: Final = ("sync_eio", "write_eio", "write_enospc", "create_enospc", "no_descriptors", "disk_full")
#: What happens to connections.
NETWORK_FAULTS: Final = ("reset", "half_open", "cut_there", "cut_back", "partition", "slow", "delay", "no_files")
#: What happens to processes besides: stopped ones, dead clients, clocks, consumers that don't receive.
OTHER_FAULTS: Final = ("pause", "pause_client", "kill_client", "power_client", "clock", "stuck")
KINDS: Final = (*BROKER_FAULTS, *DISK_FAULTS, *NETWORK_FAULTS, *OTHER_FAULTS)
#: The faults after which what is stored tells whether it was kept: with no others they come ten times as often.
STORAGE_FAULTS: Final = ("power", "fuse_write", "rot", "sync_eio")
#: The calls of one disk within which a fuse blows.
FUSE_CALLS: Final = 40
#: How long a fault lasts on average, and how long those last that have to outlive a session.
FAULT_S: Final = 2.0
LONG_S: Final = 6.0


class Machine:
    """A node with the actors that run on it."""

    def __init__(self, node: SimNode, actors: list[Actor]) -> None:
        self.node = node
        self.actors = actors

    def start(self) -> None:
        """Start its actors, in a new life if it is dead."""
        if self.node.life.dead:
            self.node.start()
            for actor in self.actors:
                actor.died()
        for actor in self.actors:
            self.node.spawn(actor.run, name=actor.name)


class Faults:
    """The faults of a run, as the seed decides."""

    kinds: tuple[str, ...] = KINDS
    #: How long all is well between two faults, on average; a seed has one of these, in seconds.
    pauses: tuple[float, ...] = (1.0, 3.0, 8.0)

    def __init__(self, simulation: Simulation, scene: Scene, broker: BrokerNode, clients: list[Machine]) -> None:
        assert isinstance(simulation.fabric, MemoryNetwork)
        self.swarm = simulation.swarm
        self.fabric = simulation.fabric
        self.scene = scene
        self.broker = broker
        self.clients = clients
        self.rng = self.swarm.rng("faults")
        self.happened = 0
        self._delayed: list[tuple[str, str]] = []
        # The latest that each broker's clock ever was, off by so many seconds, and the life in which it was set back.
        self._latest: dict[BrokerNode, float] = {}
        self._behind: dict[BrokerNode, int] = {}
        self._short_writes = 0.1 if self.swarm.on("fault.short_writes") else 0.0
        for kind in self.kinds:
            self.swarm.count(f"fault.{kind}", 0)
        self.mend()

    # -- the kinds -------------------------------------------------------------------------------------------

    def _client(self) -> SimNode:
        return self.rng.choice(self.clients).node

    def _link(self) -> tuple[str, str]:
        ends = [self._client().name, self.broker.node.name]
        self.rng.shuffle(ends)
        return ends[0], ends[1]

    def _kill(self) -> None:
        self.broker.node.kill()

    def _power(self) -> None:
        self.broker.node.power_off()

    def _fuse_kill(self) -> None:
        self.broker.node.fuse(self.rng.randrange(1, FUSE_CALLS), power=False)

    def _fuse_power(self) -> None:
        self.broker.node.fuse(self.rng.randrange(1, FUSE_CALLS))

    def _fuse_write(self) -> None:
        """The power goes between a write and its sync."""
        self.broker.node.fuse(self.rng.randrange(1, 10), only=("write",))

    def _stop(self) -> None:
        self.broker.stop()

    async def _rot(self) -> None:
        await self.broker.rot()

    def _inject(self, call: DiskCall, error: int) -> None:
        self._inject_after(call, error, self.rng.randrange(5))

    def _inject_after(self, call: DiskCall, error: int, skip: int) -> None:
        self.broker.node.disk.faults.inject(call, error, skip=skip)

    def _sync_eio(self) -> None:
        self._inject("sync", errno.EIO)

    def _write_eio(self) -> None:
        self._inject("write", errno.EIO)

    def _write_enospc(self) -> None:
        self._inject("write", errno.ENOSPC)

    def _no_descriptors(self) -> None:
        """Let no file be made and no connection be accepted; an existing file is opened after a wait."""
        node = self.broker.node
        error = self.rng.choice((errno.EMFILE, errno.ENFILE))
        node.disk.faults.inject("create", error, times=math.inf)
        node.latency.opening_s = 0.2 + self.rng.random()
        self.fabric.exhaust_files(node.name)
        if self.rng.random() < 0.3:
            # It starts like that.
            node.kill()
            self.broker.start()

    def _create_enospc(self) -> None:
        """No room for a new file, or no descriptor."""
        skip = self.rng.randrange(5)
        self._inject_after("create", errno.EMFILE if skip % 2 else errno.ENOSPC, skip)

    def _disk_full(self) -> None:
        disk = self.broker.node.disk
        disk.page_bytes = PAGE_BYTES
        disk.capacity_bytes = disk.used_bytes() + self.rng.choice((0, 5_000, 70_000))

    async def _full_kill(self) -> None:
        """Kill the broker on a full disk, and start it there, now and then more than once.

        Free bytes come later, or as messages are consumed.
        """
        self._disk_full()
        await trio.sleep(self.rng.random())
        for _ in range(self.rng.choice((1, 1, 3))):
            if not self.broker.node.life.dead:
                self.broker.node.kill()
            self.broker.start()
            await self.broker.started()
            await trio.sleep(self.rng.random())

    def _reset(self) -> None:
        self.fabric.reset(self._client().name, self.broker.node.name)

    def _half_open(self) -> None:
        self.fabric.silence(self._client().name, self.broker.node.name)

    def _cut_there(self) -> None:
        self.fabric.cut(self._client().name, self.broker.node.name)

    def _cut_back(self) -> None:
        self.fabric.cut(self.broker.node.name, self._client().name)

    def _partition(self) -> None:
        self.fabric.partition([self._client().name], [self.broker.node.name])

    def _slow(self) -> None:
        self.fabric.slow(*self._link(), self.rng.choice((5_000.0, 50_000.0)))

    def _delay(self) -> None:
        link = self._link()
        self.fabric.delay(*link, 0.02, self.rng.choice((0.1, 1.0)))
        self._delayed.append(link)

    def _no_files(self) -> None:
        self.fabric.exhaust_files(self.broker.node.name)
        self.fabric.reset(self._client().name, self.broker.node.name)

    def _pause(self) -> None:
        self.broker.node.pause()

    def _pause_client(self) -> None:
        self._client().pause()

    def _kill_client(self) -> None:
        self._client().kill()

    def _power_client(self) -> None:
        self._client().power_off()

    def _clock(self) -> None:
        wall = self.broker.node.wall
        wall.offset_s += self.rng.choice((-7_200.0, 3_600.0))
        self.scene.history.clock_set(self.broker.place, wall.offset_s)
        latest = self._latest[self.broker] = max(self._latest.get(self.broker, 0.0), wall.offset_s)
        if wall.offset_s < latest:
            self._behind.setdefault(self.broker, self.broker.node.life.number)
        else:
            self._behind.pop(self.broker, None)

    def _stuck(self) -> None:
        self.scene.stuck = True

    # -- over time -------------------------------------------------------------------------------------------

    async def run(self, until: float) -> None:
        """Break things until then.

        Checkpoint: always.  Cancellation: ends it.
        """
        on = [kind for kind in self.kinds if self.swarm.on(f"fault.{kind}")] or list(self.kinds)
        pause = self.rng.choice(self.pauses)
        while trio.current_time() < until or self.happened < FAULTS_MIN:
            await trio.sleep(pause * (0.5 + self.rng.random()))
            kind = self.rng.choice(on)
            await self.happens(kind)
            long = kind in ("pause_client", "cut_there", "cut_back", "partition", "stuck") and self.rng.random() < 0.4
            await trio.sleep(LONG_S if long else self.rng.expovariate(1 / FAULT_S))
            self.mend()
        for broker, life in self._behind.items():
            if broker.node.life.number != life:
                # What waits over a restart has only the time of day: it is due soon, and not two hours after the end.
                broker.node.wall.offset_s = self._latest[broker]
                self.scene.history.clock_set(broker.place, self._latest[broker])

    async def happens(self, kind: str) -> None:
        """Begin a fault.

        Checkpoint: if the broker has to be there for it.  Cancellation: it may have begun.
        """
        if self.broker.node.life.dead and kind in (*BROKER_FAULTS, *DISK_FAULTS, "pause"):
            await self.broker.started()
        self.scene.history.note(kind)
        self.swarm.count(f"fault.{kind}")
        self.happened += 1
        self.broker.look()
        act: Callable[[], Awaitable[None] | None] = getattr(self, f"_{kind}")
        ends = act()
        if ends is not None:
            await ends

    def mend(self) -> None:
        """End the present faults, and start the dead nodes."""
        self.broker.look()
        self.scene.stuck = False
        self.fabric.heal()
        self.fabric.exhaust_files(self.broker.node.name, False)
        for one, other in self._delayed:
            link = self.fabric.link(one, other)
            link.latency_s_min, link.latency_s_max = (
                self.fabric.settings.latency_s_min,
                self.fabric.settings.latency_s_max,
            )
        self._delayed.clear()
        for machine in self.clients:
            for one, other in ((machine.node.name, self.broker.node.name), (self.broker.node.name, machine.node.name)):
                self.fabric.slow(one, other, None)
            machine.node.resume()
            if machine.node.life.dead:
                machine.start()
        self.broker.node.resume()
        disk = self.broker.node.disk
        disk.faults.clear()
        disk.faults.short_write_rate = self._short_writes
        disk.capacity_bytes = math.inf
        latency = self.broker.node.latency
        self.swarm.count("seen.waited_for_descriptors", latency.waited)
        latency.opening_s, latency.waited = 0.0, 0
        if self.broker.node.life.dead:
            self.broker.start()
