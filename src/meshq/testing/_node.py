"""A simulated node: a disk and an address that stay, and one life of a process after the other."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypedDict

import trio

from meshq.abc import Datagrams, Env, Network
from meshq.env import OpenSslTls
from meshq.errors import UsageError
from meshq.limits import GIB
from meshq.testing._clock import SimEntropy, SimWallClock, VirtualClock
from meshq.testing._datagrams import MemoryDatagrams, NoDatagrams
from meshq.testing._scheduler import LIFE, Life, Scheduler
from meshq.testing._swarm import DiskLatency, Swarm
from meshq.testing._threads import SimThreads, Spending
from meshq.testing.disk._disk import SimDisk
from meshq.testing.disk._mount import Mount


class Fabric(Protocol):
    """The network of a simulation, as ``MemoryNetwork`` implements it."""

    counters: dict[str, int]
    datagrams: MemoryDatagrams
    #: Where the network's events go if not into a task of its own: ``SimClock.call_at``.
    call_at: Callable[[float, Callable[[], object]], None] | None

    async def run(self) -> None:
        """Deliver until cancelled.  Checkpoint: always.  Cancellation: what is under way is lost or stays."""

    def host(self, name: str) -> Network:
        """The network of the process on this host; of a new one after ``kill_host`` and ``power_off``."""

    def kill_host(self, name: str) -> None:
        """The process dies; its kernel closes its connections."""

    def power_off(self, name: str) -> None:
        """The host goes silent."""

    def pause_host(self, name: str) -> None:
        """The process is stopped."""

    def resume_host(self, name: str) -> None:
        """The process goes on."""


class World(Protocol):
    """The part of a simulation that its nodes use."""

    scheduler: Scheduler
    swarm: Swarm
    nursery: trio.Nursery | None

    @property
    def fabric(self) -> Fabric | None:
        """The network; None: the simulation has none."""

    @property
    def clock(self) -> VirtualClock:
        """The time of the simulation."""

    async def guard(self, life: Life, function: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
        """Run a task of a life.  Checkpoint: as ``function``.  Cancellation: the same."""


class NoNetwork(Network):
    """The network of a simulation that was given none."""

    __slots__ = ()

    async def connect(self, host: str, port: int) -> Any:
        raise UsageError("this simulation has no network: give run_seed() one")

    async def listen(self, host: str, port: int) -> Any:
        raise UsageError("this simulation has no network: give run_seed() one")


class NodeOptions(TypedDict, total=False):
    """The keywords of ``SimNode``, for functions that hand them on."""

    memory_bytes: int
    disk: SimDisk | None
    remote_disk: bool


class SimNode:
    """A simulated machine: a disk and an address that stay, and one life of a process after the other.

    ``env`` is the outside world of the present life, for ``Broker(..., env=node.env)`` and
    ``connect(..., env=node.env)``.  ``disk`` and ``wall``, the clock of the machine, outlive the life.
    A ``remote_disk``, which several nodes may share, keeps its power when a node loses its own.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        memory_bytes: int = GIB,
        disk: SimDisk | None = None,
        remote_disk: bool = False,
    ) -> None:
        self.name = name
        self._world = world
        self._memory_bytes = memory_bytes
        self._spending = Spending(world.clock.advance)
        self.disk: SimDisk = SimDisk(world.swarm.rng(f"{name}/disk")) if disk is None else disk
        self.latency: DiskLatency = DiskLatency(world.swarm.rng(f"{name}/latency"))
        self.disk.latency = self.latency
        self._remote_disk = remote_disk
        self.wall: SimWallClock = SimWallClock()
        self.life: Life = Life(name, 0)
        self.life.dead = True
        for fault in ("kill", "power_off", "pause"):
            world.swarm.count(f"node.{fault}", 0)
        self._mount: Mount | None = None
        self.env: Env = self.start()

    def __repr__(self) -> str:
        return f"<SimNode {self.name} life={self.life.number} {self.state}>"

    @property
    def state(self) -> str:
        """The state of the present life: ``"running"``, ``"paused"`` or ``"dead"``."""
        return "dead" if self.life.dead else ("running" if self.life.running else "paused")

    @property
    def caller(self) -> Mount | None:
        """The process whose calls of the disk are this node's; None: the disk has no other callers."""
        return self._mount if self._remote_disk else None

    @property
    def open_files(self) -> int:
        """The number of files that the present life has open."""
        return 0 if self._mount is None else len(self._mount.files)

    def _spend(self, seconds: float) -> None:
        self._world.scheduler.progress()
        self._spending.spend(seconds)

    def _rng(self, purpose: str) -> random.Random:
        return self._world.swarm.rng(f"{self.name}/{self.life.number}/{purpose}")

    # -- lives -----------------------------------------------------------------------------------------------

    def start(self) -> Env:
        """Begin a new life on the same disk, and return the outside world of that life."""
        if not self.life.dead:
            raise UsageError(f"{self.name} is {self.state}: only a dead node is started")
        world = self._world
        self.life = Life(self.name, self.life.number + 1)
        self._mount = self.disk.mount(self._spend)
        network: Network = NoNetwork() if world.fabric is None else world.fabric.host(self.name)
        datagrams: Datagrams = NoDatagrams() if world.fabric is None else world.fabric.datagrams.host(self.name)
        self.env = Env(
            disk=self._mount,
            threads=SimThreads(self._rng("threads"), world.clock, self._spending),
            network=network,
            datagrams=datagrams,
            tls=OpenSslTls(),
            wall=self.wall,
            entropy=SimEntropy(self._rng("entropy")),
            memory_bytes=self._memory_bytes,
            failpoint=world.swarm.failpoint,
        )
        return self.env

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: Any, name: object = None) -> None:
        """Start a task of this life; the task, and all tasks that it starts, die with the life.

        An error with which the task ends, while the node lives, is the failure of the simulation.
        """
        if self.life.dead or self._world.nursery is None:
            raise UsageError(f"{self.name} is {self.state}: start() it first")
        token = LIFE.set(self.life)
        try:
            self._world.nursery.start_soon(
                self._world.guard, self.life, function, arguments, name=function if name is None else name
            )
        finally:
            LIFE.reset(token)

    # -- faults ----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process, as SIGKILL does: its tasks take no other step, not even in ``finally``.

        Written bytes stay on the disk, synced or not, and the kernel closes the process's connections.  A task of the
        node that calls this goes on to its next checkpoint, and can change nothing outside any more.  A dead node
        stays dead.
        """
        if self._end("kill") and self._mount is not None:
            self.disk.faults.count("disk.kill")
            self._mount.kill()
            if self._world.fabric is not None:
                self._world.fabric.kill_host(self.name)

    def power_off(self) -> None:
        """Cut the power: as ``kill``, but unsynced bytes are kept or lost by chance, and the peers are told nothing."""
        if self._end("power_off"):
            if self._remote_disk and self._mount is not None:
                self._mount.power_loss()
            else:
                self.disk.power_loss()
            if self._world.fabric is not None:
                self._world.fabric.power_off(self.name)

    def _end(self, fault: str) -> bool:
        if self.life.dead:
            return False
        self._world.swarm.count(f"node.{fault}")
        self._world.scheduler.kill(self.life)
        self._spending.take()
        return True

    def pause(self) -> None:
        """Stop the process, as SIGSTOP does: its tasks stand still until ``resume``, while time goes on."""
        if self.life.running and not self.life.dead:
            self._world.swarm.count("node.pause")
            self._world.scheduler.stop(self.life)
            if self._world.fabric is not None:
                self._world.fabric.pause_host(self.name)

    def resume(self) -> None:
        """Let a paused process go on, as SIGCONT does."""
        if not self.life.running and not self.life.dead:
            self._world.scheduler.resume(self.life)
            if self._world.fabric is not None:
                self._world.fabric.resume_host(self.name)

    def fuse(self, calls: int, *, power: bool = True, only: tuple[Any, ...] = ()) -> None:
        """Cut the power, or kill the process, right after ``calls`` more disk calls of the kinds ``only``."""
        self.disk.fuse(calls, self.power_off if power else self.kill, only=only, of=self.caller)

    def sever(self) -> None:
        """Cut the node off from disk and network without ending its tasks, as the end of a simulation does."""
        if not self.life.dead and self._mount is not None:
            self.life.dead = True
            self._mount.kill()
            if self._world.fabric is not None:
                self._world.fabric.kill_host(self.name)
