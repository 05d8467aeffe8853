"""A cluster of brokers inside one test: nodes on simulated machines, and their faults."""

from __future__ import annotations

import errno
import math
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, Unpack

import attrs
import trio
from trio.testing import MockClock

from meshq.client import Client, ClientOptions, connect
from meshq.cluster import ClusterConnection
from meshq.errors import CallTimeoutError
from meshq.limits import KIB
from meshq.node import Broker
from meshq.settings import JournalSettings
from meshq.testing.disk._disk import SimDisk
from meshq.testing.history._judged import ClusterHistory
from meshq.testing.kit import _fault_plan as plan
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.kit._fault_plan import TEST_HOST
from meshq.testing.kit._judged_nodes import JudgedNodes
from meshq.testing.kit._link_faults import FaultyLinks, LinkFaults
from meshq.testing.kit._node import KitNode
from meshq.testing.kit._pairs import Pairs, serves, store_of, waits_for
from meshq.testing.kit._report import report_of
from meshq.testing.kit._settled_plan import NodeView, moving
from meshq.testing.kit._spawned_task import SpawnedTask
from meshq.testing.kit._world import SimulatedWorld

#: Where the store of a node lies on the disk of the node's machine.
DIRECTORY: Final = "/data"
PORT: Final = 61616
#: Segments are small: filling them takes time and memory, and a test is short.
JOURNAL: Final = JournalSettings(segment_bytes=256 * KIB)
#: The name of the cluster connection, and its credentials.
CLUSTER: Final = "cluster"
#: Nodes that nothing keeps apart are linked within these seconds.
FORMED_S: Final = 30.0
#: Two looks that see the same are so many seconds apart.
QUIET_S: Final = 1.0
#: Seconds between two looks whether a node of a pair serves.
LOOK_S: Final = 0.05
#: States of a node whose process is there.
RUNNING: Final = ("active", "waiting", "paused", "starting", "stopping")
#: At the end of a test a cluster has so many seconds to stop cleanly; the rest is killed.
STOP_S: Final = 5.0


class Cluster(LinkFaults):
    """A cluster of brokers inside one test, in virtual time; made by the fixture ``meshq_cluster``.

    Each node, ``n0``, ``n1`` and so on, has a simulated disk and a host of its own on one simulated network.  Faults
    happen at once.  A wrong name, or a node in a wrong state, is a ``UsageError`` that names the nodes.  ``test`` is
    the host of the test itself in ``cut``, ``partition``, ``delay`` and ``drop``.

    With ``ha="shared_store"`` each node has a backup, ``n0b``, ``n1b`` and so on, over the same disk, which is none of
    a node's machine: a fault of the disk hits both, and when one loses its power, the disk does not.  With
    ``ha="replication"`` the backup has a disk of its own and follows its node, and a quorum that is always there says
    which of the two serves.
    """

    def __init__(self, world: SimulatedWorld, settings: ClusterPlan) -> None:
        if settings.seed is not None:
            world.reseed(settings.seed)
        world.generations += 1
        self._world = world
        self._settings = settings
        #: The seed of all that is left to chance.
        self.seed: int = world.seed
        # The hosts of a second cluster in one test have other names than those of the first.
        suffix = "" if world.generations == 1 else f"-{world.generations}"
        self._urls = {name: f"tcp://{name}{suffix}:{PORT}?insecure=true" for name in settings.names}
        self._pairs = Pairs(settings.ha)
        paired = settings.primaries if self._pairs.share_stores else []
        disks = {name: SimDisk(world.swarm.rng(f"{name}{suffix}/store")) for name in paired}
        self._nodes = {
            name: KitNode(world, name, f"{name}{suffix}", self._make, disks.get(store_of(name)))
            for name in settings.names
        }
        self._tasks: list[SpawnedTask] = []
        self._choice = world.swarm.rng(f"cluster {world.generations}/clients")
        #: For choices of the test: the same numbers for the same seed.
        self.rng: random.Random = world.swarm.rng(f"cluster {world.generations}/test")
        self._until_healed: list[SpawnedTask] = []

    def __repr__(self) -> str:
        return f"<Cluster {', '.join(f'{name}: {state}' for name, state in self._states().items())}>"

    def _make(self, node: KitNode) -> Broker:
        settings = self._settings
        connection = ClusterConnection(
            CLUSTER,
            connector=node.name,
            static_connectors=[name for name in self.nodes if name != node.name],
            load_balancing=settings.load_balancing,
            max_hops=settings.max_hops,
            user=CLUSTER,
            password=CLUSTER,
            **self._pairs.link_settings(),
        )
        return Broker(
            node.name,
            data_dir=DIRECTORY,
            journal=JOURNAL,
            acceptors=[self._urls[node.name]],
            connectors=self._urls,
            services=[connection, *settings.services_of(node.name)],
            queues=settings.queues,
            address_settings=settings.settings_of_addresses(),
            security=settings.security,
            **self._pairs.broker_settings(node.name),
        )

    # -- what it is

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes, dead ones included."""
        return list(self._nodes)

    @property
    def alive(self) -> list[str]:
        """The names of the nodes that serve."""
        return [name for name, node in self._nodes.items() if node.state == "active"]

    @property
    def clock(self) -> MockClock:
        """The clock of the test, which is moved to the next deadline whenever nothing can run; do not move it."""
        return self._world.clock.clock

    @property
    def urls(self) -> list[str]:
        """The URLs of all nodes."""
        return list(self._urls.values())

    def url(self, n: str | None = None) -> str:
        """Return the URL of a node, or one of all nodes, for ``meshq.connect``.

        Raises:
            UsageError: no node has this name.
        """
        if n is None:
            places = ",".join(url.partition("?")[0] for url in self.urls)
            return f"({places})?insecure=true"
        return self._urls[self._known(n).name]

    def broker(self, n: str) -> Broker:
        """Return the broker of a node in its present life.

        Raises:
            UsageError: no node has this name, or it is dead.
        """
        broker = self._in_state(n, *RUNNING).broker
        assert broker is not None
        return broker

    def client(self, n: str | None = None, **settings: Unpack[ClientOptions]) -> Client:
        """Create a client of a node, or of any node that serves, to be used as ``async with``.

        The client is at the host ``test``; in a task of a node, on that node's host.

        Raises:
            UsageError: no node has this name.
            SettingsError: a setting is not allowed.
        """
        settings.setdefault("insecure", True)
        if n is not None:
            return connect(self.url(n).partition("?")[0], **settings)
        # The seed says which node is tried first; those that do not serve, and may not even answer, come last.
        settings.setdefault("load_balancing", "first_element")
        alive = self.alive
        self._choice.shuffle(alive)
        ordered = alive + [name for name in self.nodes if name not in alive]
        return connect([self._urls[name].partition("?")[0] for name in ordered], **settings)

    @property
    def history(self) -> ClusterHistory:
        """The sends, deliveries and settlements of the test's clients: ``.to_jsonl()`` and ``.check()``."""
        return ClusterHistory(self._world.recorder, JudgedNodes(self._settings, self._nodes), self._world.events)

    def report(self) -> str:
        """Return the seed, the nodes with their queues, the links that are cut, and the last events, as text."""
        return "\n".join(self.report_lines() + self._world.last_events())

    def report_lines(self) -> list[str]:
        """Return the seed, the nodes with their queues, and the links that are cut, a line each."""
        hosts = {node.host: name for name, node in self._nodes.items()} | {TEST_HOST: TEST_HOST}
        cuts = [(hosts[a], hosts[b]) for a, b in self._world.fabric.cuts() if a in hosts and b in hosts]
        now = f"seed {self.seed}, {trio.current_time():.3f} simulated seconds"
        return [now, *report_of(self._views(), cuts)]

    # -- life

    async def form(self) -> None:
        """Start all nodes, and wait until each is linked to each other one.

        Checkpoint: always.  Cancellation: the nodes go on starting.
        Raises:
            MeshqError: a node can't start.
            CallTimeoutError: the nodes are not linked in time.
        """
        primaries = self._settings.primaries
        for names in (primaries, self.nodes[len(primaries) :]):
            for name in names:
                self._nodes[name].start()
            for name in names:
                await self._serving(name)
        for name in self.nodes[len(primaries) :]:
            await self._awaited(name)
        if len(primaries) > 1:
            await self.wait_for(nodes=len(primaries), timeout=FORMED_S)

    async def close(self) -> None:
        """End the tasks of the test and stop all nodes; a node that does not stop in time is killed.

        Checkpoint: always.  Cancellation: the nodes are killed at once.
        """
        self._world.closing = True
        self._world.fabric.restore()
        running = [node for node in self._nodes.values() if node.machine.state == "running"]
        for task in [*self._tasks, *(task for node in running for task in node.tasks)]:
            task.cancel()
        with trio.move_on_after(STOP_S, shield=True):
            async with trio.open_nursery() as nursery:
                for node in running:
                    nursery.start_soon(node.stop)
        for node in self._nodes.values():
            node.kill()

    # -- faults

    def kill(self, n: str) -> None:
        """Kill a node, as SIGKILL does: no task of the node takes another step, not even in ``finally``."""
        self._in_state(n, *RUNNING).kill()
        self._world.note(n, "killed")

    def power_loss(self, n: str) -> None:
        """Cut the power of a node: unsynced bytes are kept or lost by chance, and no peer is told."""
        self._in_state(n, *RUNNING).power_off()
        self._world.note(n, "lost its power")

    def pause(self, n: str) -> None:
        """Stop a node, as SIGSTOP does, until ``resume``."""
        self._in_state(n, *(state for state in RUNNING if state != "paused")).machine.pause()
        self._world.note(n, "paused")

    def resume(self, n: str) -> None:
        """Let a paused node go on."""
        self._in_state(n, "paused").machine.resume()
        self._world.note(n, "resumed")

    def disk(self, n: str, kind: plan.DiskFault) -> None:
        """Let the disk of a node fail.

        ``"eio"``: writes and syncs fail from now on.  ``"eio_once"``: the next sync fails.  ``"enospc"``: the disk is
        full.  ``"torn"``: the power fails right after the next write.  ``"flip"``: a random bit of the store has
        changed.  ``"ok"``: the disk works again, and has room.

        Raises:
            UsageError: no node has this name; or the disk has no such fault.
        """
        plan.check_disk_fault(kind)
        node = self._known(n)
        disk = node.machine.disk
        if kind == "eio":
            disk.faults.inject("write", times=math.inf)
            disk.faults.inject("sync", times=math.inf)
        elif kind == "eio_once":
            disk.faults.inject("sync", errno.EIO)
        elif kind == "enospc":
            disk.capacity_bytes = disk.used_bytes()
        elif kind == "torn":
            disk.fuse(1, node.power_off, only=("write",), of=node.machine.caller)
        elif kind == "flip":
            disk.flip_random_bit(within=DIRECTORY)
        else:
            disk.faults.clear()
            disk.capacity_bytes = math.inf
        self._world.note(n, f"disk: {kind}")

    def wall_clock(self, n: str, seconds: float) -> None:
        """Move the time of day at a node by ``seconds``, which may be negative; its monotonic clock goes on."""
        plan.check_shift(seconds)
        self._known(n).machine.wall.offset_s += seconds
        self._world.note(n, f"time of day moved by {seconds:g} s")

    # -- tasks and nodes

    def spawn(self, n: str | None, fn: Callable[..., Awaitable[Any]], *args: Any) -> SpawnedTask:
        """Start ``fn(*args)`` as a task of a node, with which the task dies; ``None``: of the test.

        An exception of the task fails the test.

        Raises:
            UsageError: no node has this name, or it is dead; or ``fn`` is no function.
        """
        plan.check_function(fn)
        if n is not None:
            return self._in_state(n, "active", "waiting", "paused", "starting").spawn(fn, args)
        task = SpawnedTask(fn, None)
        self._tasks.append(task)
        self._world.start(task.run, fn, args)
        return task

    async def restart(self, n: str) -> None:
        """Start a dead node again on the same disk, or kill a node and start it; returns when the node is active.

        A node of a pair whose other node serves waits, and is not active then.

        Checkpoint: always.  Cancellation: the node goes on starting.
        Raises:
            UsageError: no node has this name.
            BrokenError, DamagedError: the disk is broken, or what is on it.
        """
        node = self._known(n)
        node.kill()
        node.start()
        self._world.note(n, "restarted")
        await self._serving(n)

    async def stop(self, n: str) -> None:
        """Stop a node cleanly; ``restart`` starts it again.

        Checkpoint: always.  Cancellation: the stop goes on.
        Raises:
            UsageError: no node has this name, or it does not serve.
        """
        await self._in_state(n, "active", "waiting").stop()
        self._world.note(n, "stopped")

    async def healed(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109
        """End all faults, start dead nodes again, and wait until the cluster has settled.

        The faults of a scenario, too, are over then, for good.

        Checkpoint: always.  Cancellation: some of it is done.
        Raises:
            BrokenError, DamagedError: a node can't start, because what is on its disk is damaged.
            CallTimeoutError: the time is up; the error lists what still moves.
        """
        plan.check_seconds("timeout", timeout)
        end = trio.current_time() + timeout
        for task in self._until_healed:
            task.cancel()
        self._world.fabric.restore()
        self._world.note("cluster", "heals")
        while True:
            # Also where all serve: a disk that is to fail at the next write is to fail no more.
            for node in self._nodes.values():
                node.mend()
            for node in self._nodes.values():
                await node.started()
            # A broker whose disk has failed before takes a moment to end.
            await trio.sleep(QUIET_S)
            if self._all_serve() or trio.current_time() > end:
                left = max(0.0, end - trio.current_time())
                await self.wait_for(nodes=len(self._settings.primaries), timeout=left)
                await self.settled(max(0.0, end - trio.current_time()))
                if self._all_serve():
                    return

    async def settled(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109
        """Wait until nothing moves any more: every link that can be is there, and no message comes or goes.

        What can't move because a node is dead or paused, or a link is cut, counts as still.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError: the time is up; the error lists what still moves.
        """
        plan.check_seconds("timeout", timeout)
        end = trio.current_time() + timeout
        while True:
            before = self._views()
            await trio.sleep(QUIET_S)
            lines = moving(before, self._views(), self._apart)
            if not lines:
                return
            if trio.current_time() >= end:
                text = f"still moving after {timeout:g} s: {'; '.join(lines)}"
                raise CallTimeoutError(text, outcome="unknown") from TimeoutError(f"waited {timeout:g} s")

    async def wait_for(
        self,
        *,
        nodes: int = 1,
        queue: str | None = None,
        queues: int | None = None,
        consumers: int = 0,
        address: str | None = None,
        exactly: bool = False,
        timeout: float = 60.0,  # noqa: ASYNC109
    ) -> None:
        """Wait until every node that serves knows so many nodes, queues and consumers.

        The parameters are those of ``ClusterConnection.wait_for``.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed, or can't be counted.
            CallTimeoutError: the time is up; the error names the node, and how far the node came.
        """
        end = trio.current_time() + timeout
        for name in self.alive:
            try:
                await (
                    self.broker(name)
                    .cluster(CLUSTER)
                    .wait_for(
                        nodes=nodes,
                        queue=queue,
                        queues=queues,
                        consumers=consumers,
                        address=address,
                        exactly=exactly,
                        timeout=max(0.0, end - trio.current_time()),
                    )
                )
            except CallTimeoutError as error:
                raise CallTimeoutError(f"{name}: {error}", outcome="not_done") from error

    # -- for scenarios

    def until_healed(self, task: SpawnedTask) -> None:
        """Cancel this task as soon as all faults are to end."""
        self._until_healed.append(task)

    def node(self, name: str) -> KitNode:
        """Return a node over all its lives.

        Raises:
            UsageError: no node has this name.
        """
        return self._known(name)

    # -- parts of these

    async def _serving(self, name: str) -> None:
        """Wait until a node serves, or waits because the other node of its pair serves."""
        while True:
            # It may have failed or died since the last look.
            await self._nodes[name].started()
            if serves(name, self._states()):
                return
            await trio.sleep(LOOK_S)

    async def _awaited(self, name: str) -> None:
        """Wait until the primary knows that this backup waits, and tells clients so."""
        while True:
            if waits_for(self.broker(store_of(name)), name):
                return
            await trio.sleep(LOOK_S)

    def _all_serve(self) -> bool:
        states = self._states()
        return all(serves(name, states) for name in states)

    def _states(self) -> dict[str, str]:
        return {name: node.state for name, node in self._nodes.items()}

    def _known(self, name: str) -> KitNode:
        plan.check_known(name, self.nodes)
        return self._nodes[name]

    def _in_state(self, name: str, *allowed: str) -> KitNode:
        node = self._known(name)
        plan.check_state(name, node.state, allowed, self._states())
        return node

    def _links(self) -> FaultyLinks:
        return self._world.fabric

    def _note(self, what: str, text: str) -> None:
        self._world.note(what, text)

    def _places(self) -> tuple[list[str], list[str]]:
        return self.nodes, [*self.nodes, TEST_HOST]

    def host(self, place: str) -> str:
        """Return the name on the network of a node, or of the test itself."""
        plan.check_known(place, self._places()[1])
        return place if place == TEST_HOST else self._nodes[place].host

    def _apart(self, a: str, b: str) -> bool:
        cuts = self._world.fabric.cuts()
        return any(pair in cuts for pair in self._directions(a, b))

    def _views(self) -> list[NodeView]:
        names = {name: name for name in self._nodes}
        copy_of = self._pairs.copy_of
        return [attrs.evolve(node.view(names), copy=copy_of(node.broker, node.name)) for node in self._nodes.values()]
