"""The simulated broker as a process: it dies, is stopped, is started again, and its disk rots while it is down."""

from __future__ import annotations

import random
from typing import Final

import trio

from meshq.broker import Core
from meshq.client import Client
from meshq.directories import StoreDirectories
from meshq.errors import DamagedError, MeshqError, NotActiveError, SettingsError
from meshq.limits import PAGE_BYTES_MIN, SEGMENT_HEADER_BYTES
from meshq.node import Broker
from meshq.settings import AddressSettings, FullPolicy, JournalSettings
from meshq.store.inspection._check import check_store
from meshq.testing import DiskOperation, MemoryRole, SimNode, Swarm
from meshq.testing.history._history import History
from qa.checkers.end import check_history
from qa.simulation.partner import Partner
from qa.simulation.users import Users
from qa.simulation.workload import ADDRESSES, CONSUMED, URL, Actor
from qa.simulation.workload_cursor import TAPE
from qa.simulation.workload_odd import ODD_SETTINGS, PLACES
from qa.simulation.workload_sifted import SIFTED_PLACES, SIFTED_SETTINGS

DIRECTORY: Final = "/data/broker"
#: Where the parts of its store are in some seeds, as on several disks; pages are of no account.
APART: Final = StoreDirectories(journal="/fast/broker", bindings="/safe/broker", large_messages="/wide/large")
APART_SHARE: Final = 0.25
SEGMENT_BYTES: Final = 64 * 1024
#: Little enough that producers have to wait now and then.
MEMORY_BYTES: Final = 1 << 20
#: The share of seeds in which nothing is paged but the queue that is kept to the end.
BLOCK_SHARE: Final = 0.3
#: Seconds within which a start must have come to its end, and a stop.
START_S: Final = 30.0
STOP_S: Final = 2.0
#: What is looked for in the broker's statistics: at least one seed must have seen each of them.
SIGHTS: Final = (
    "blocked_sessions",
    "compactions",
    "duplicates",
    "filtered_topic",
    "full",
    "indexed",
    "inline_syncs",
    "page_reads",
    "sessions_expired",
    "sessions_resumed",
    "torn_bytes",
)


class DiskWatch:
    """The bytes of each file that are proven: recovery has to notice a change of each of them.

    Of a file that is being appended to that is what was there before the last write that was synced: only the very
    last batch of a journal may be taken for a torn tail.  Of a file that a start has found and kept, everything.
    """

    def __init__(self, node: SimNode) -> None:
        self._disk = node.disk
        self._written: dict[str, int] = {}
        self._proven: dict[str, int] = {}
        self._found: dict[str, None] = {}
        node.disk.watch = self._look

    def _look(self, operation: DiskOperation) -> None:
        path = operation.path
        if operation.call == "write":
            # A write may come in parts.
            self._written[path] = min(operation.offset, self._written.get(path, operation.offset))
        elif operation.call == "sync" and path in self._written:
            self._proven[path] = self._written.pop(path)
        elif operation.call == "create":
            self._written.pop(path, None)
            self._proven.pop(path, None)
            self._found.pop(path, None)

    def starting(self) -> None:
        """The broker is about to look at the files that are there now."""
        self._written.clear()
        self._found = dict.fromkeys(self._disk.files())

    def started(self) -> None:
        """Note that the broker has come up: the bytes that it found and kept are proven, or soon will be."""
        for path in self._found:
            if self._disk.is_file(path):
                self._proven[path] = len(self._disk.content(path))
        self._found = {}

    def choose(self, rng: random.Random) -> tuple[str, int] | None:
        """A file and a bit of it that is proven; None if there is none."""
        # A start looks at the length of a large body only: what is in it is proven when somebody reads it.
        files = [path for path in self._disk.files() if not path.endswith("lock") and "/large/" not in path]
        sizes = {path: self._proven.get(path, 0) for path in files}
        paths = [path for path, size in sizes.items() if min(size, len(self._disk.content(path)))]
        if not paths:
            return None
        # Small files matter as much as large ones.
        path = rng.choice(paths)
        return path, rng.randrange(8 * min(sizes[path], len(self._disk.content(path))))


class BrokerNode:
    """A broker over all its lives, with actors that live in its process."""

    def __init__(
        self, node: SimNode, history: History, swarm: Swarm, *, turns: bool = False, partner: Partner | None = None
    ) -> None:
        self.node = node
        #: The role that the present life competes for, alone; None: the broker is active as soon as it runs.
        self.role: MemoryRole | None = None
        self._turns = turns
        #: Where the records have to be durable, too; None: nowhere else.
        self.partner: Partner | None = partner
        self.history = history
        self.swarm = swarm
        self.rng = swarm.rng("broker process")
        # Where memory is full, producers wait in some seeds, and in the others queues are paged.
        self.full_policy: FullPolicy = "block" if swarm.rng("full policy").random() < BLOCK_SHARE else "page"
        self.directories = APART if swarm.rng("directories").random() < APART_SHARE else StoreDirectories()
        swarm.count("seen.store_apart", int(self.directories is APART))
        self.users = Users(swarm.on("users"))
        self.broker: Broker | None = None
        #: Actors in this process: they die with it.
        self.hosted: list[Actor] = []
        self.watch = DiskWatch(node)
        self._stop = trio.Event()
        self._inside = trio.CancelScope()
        #: Set when a start has come to its end, good or bad.
        self._settled = trio.Event()
        self._active = False
        #: A bit that was changed while it was down.
        self._flipped: tuple[str, int] | None = None
        self._before: dict[str, bytes] = {}
        for sight in SIGHTS:
            swarm.count(f"seen.{sight}", 0)
        for sight in ("refused_damage", "harmless_damage", "damage_found_later"):
            swarm.count(f"seen.{sight}", 0)

    @property
    def active(self) -> bool:
        """Whether it serves."""
        serves = not self._turns or (self.broker is not None and self.broker._node is not None)
        return self._active and serves and not self.node.life.dead

    @property
    def stepping_back(self) -> bool:
        """Whether the broker has an order to wait, and still closes the store."""
        return self.broker is not None and not self.node.life.dead and self.broker.state in ("starting", "active")

    @property
    def core(self) -> Core | None:
        """The inside of the broker; None while it does not serve."""
        node = None if self.broker is None else self.broker._node
        return None if node is None or not self.active else node.core

    @property
    def serving_core(self) -> Core:
        """The inside of the broker, which serves."""
        core = self.core
        assert core is not None
        return core

    def start(self) -> None:
        """Start it, in a new life if it is dead."""
        if self.node.life.dead:
            self.node.start()
            self.history.restarted(self.place)
        self._active = False
        self._stop, self._settled = trio.Event(), trio.Event()
        self.node.spawn(self._run)

    def client(self) -> Client:
        """A client in the broker's own process."""
        if self.broker is None:
            raise NotActiveError("there is no broker in this process")
        return self.broker.client(call_timeout=20.0, call_failover_timeout=20.0, min_large_message_size=8_000)

    @property
    def place(self) -> str:
        """The node's name in the history; empty: there is only one."""
        return ""

    def drained(self, queue: str) -> bool:
        """Return whether a consumer takes all messages of a queue."""
        return queue in (*CONSUMED, *PLACES, *SIFTED_PLACES, TAPE)

    def left(self, what: str, number: int) -> None:
        """Record a number of this broker that has to be 0 at the end."""
        self.history.final.left(f"{what} at {self.place}" if self.place else what, number)

    def make(self) -> Broker:
        """The broker of this life."""
        make_sink = None if self.partner is None else self.partner.sink
        self.role = MemoryRole(make_sink=make_sink) if self._turns else None
        return Broker(
            "broker",
            data_dir=DIRECTORY,
            directories=self.directories,
            journal=JournalSettings(segment_bytes=SEGMENT_BYTES),
            acceptors=[f"{URL}?insecure=true"],
            security=self.users.security,
            queues=[
                *(address for address, queues in ADDRESSES.items() if len(queues) == 1),
                *PLACES,
                *self.users.queues,
            ],
            # A producer that comes back would make a deleted queue again.
            address_settings={
                "#": AddressSettings(full_policy=self.full_policy, page_size_bytes=PAGE_BYTES_MIN),
                # What stays to the end must not keep producers waiting for ever.
                "kept": AddressSettings(full_policy="page", page_size_bytes=PAGE_BYTES_MIN),
                "clerk.#": AddressSettings(auto_create_queues=False),
                **ODD_SETTINGS,
                **SIFTED_SETTINGS,
            },
            memory_limit=MEMORY_BYTES,
            ha=self.role.policy() if self.role is not None else None,
            stop_timeout=STOP_S,
            env=self.node.env,
        )

    async def _run(self) -> None:
        life = self.node.life
        broker = self.make()
        self.watch.starting()
        try:
            async with broker:
                self.broker = broker
                self._came_up()
                async with trio.open_nursery() as nursery:
                    self._inside = nursery.cancel_scope
                    for actor in self.hosted:
                        nursery.start_soon(actor.run)
                    await self._stop.wait()
                    self.look()
                    if self.rng.random() < 0.5:
                        await broker.stop()
                    nursery.cancel_scope.cancel()
                await self._stop.wait()
            if self.node.open_files:
                self.left("files open after a stop", self.node.open_files)
        except (DamagedError, SettingsError) as error:
            self._refused(error)
        except MeshqError as error:
            self.history.note(f"the broker ends: {error!r}")
        self._settled.set()
        if not life.dead:
            self.look()
            self._active = False
            self.node.kill()

    def _came_up(self) -> None:
        self.watch.started()
        self._active = True
        self._settled.set()

    def _refused(self, error: MeshqError) -> None:
        """Its store is damaged, it says.  If it is, that is its duty, and it must leave it as it is."""
        if self._flipped is None:
            self.history.refused(str(error))
            check_history(self.history)
        self.history.note(f"the broker refuses its damaged store: {error}")
        self.swarm.count("seen.refused_damage")
        # What is found only when records are handed out is found behind the manifest that says where each segment ends,
        # and behind the beginning of the next one, in place of one with no more than a header.
        changed = [
            path
            for path, content in self._before.items()
            if len(content.rstrip(bytes(1))) > SEGMENT_HEADER_BYTES
            and self.node.disk.is_file(path)
            and "/manifest-" not in path
            and self._content(path) != content
        ]
        self.left("files changed in a store that was refused", len(changed))

    def _content(self, path: str) -> bytes:
        return self.node.disk.content(path) if self.node.disk.is_file(path) else b""

    def look(self) -> None:
        """Count the events within the broker, and check the invariants that hold between two steps."""
        core = self.core
        if core is None or self.broker is None:
            return
        statistics = self.broker.statistics()
        journal = statistics.journal
        for sight in SIGHTS:
            number = getattr(statistics, sight, 0) or getattr(journal, sight, 0)
            self.swarm.count(f"seen.{sight}", int(number > 0))
        if statistics.violations:
            self.left("broken rules of the protocol", statistics.violations)
        for queue in core.router.queues.values():
            queue.check()

    def look_at_waiting(self) -> None:
        """Check that a broker that waits has no store and no session, and note that its next turn is a restart."""
        if self.broker is None or self.node.life.dead or self.broker.state != "waiting":
            return
        self.swarm.count("seen.waiting")
        if self.node.open_files:
            self.left("files open in a broker that waits", self.node.open_files)
        self.history.restarted(self.place)
        self.watch.starting()

    # -- what is done to it ----------------------------------------------------------------------------------

    def dismiss(self) -> None:
        """End the actors in this process for good."""
        self.hosted.clear()
        self._inside.cancel()

    def stop(self) -> None:
        """Ask it to stop in peace."""
        self._stop.set()

    async def rot(self) -> None:
        """Kill the broker, change one proven bit on its disk, and start the broker.

        It must refuse, naming the damage and changing nothing, or come up with everything that it had; or it comes up
        and finds the damage while it serves, in what it took by an index.  If it found it, the bit is put right, and
        it is started again.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        disk, node = self.node.disk, self.node
        node.resume()
        node.kill()
        disk.faults.clear()
        chosen = self.watch.choose(self.swarm.rng(f"rot/{node.life.number}"))
        if chosen is not None:
            path, bit = self._flipped = chosen
            self.history.note(f"bit {bit} of {path} is flipped")
            disk.flip_bit(path, bit)
            # A segment that the manifest has not come to list is nothing yet, whatever stands in it.
            regions = check_store(disk.copy(), DIRECTORY).regions
            nothing = {region.file for region in regions if region.what == "unlisted"}
            kept = (file for file in disk.files() if file not in nothing and not file.endswith("lock"))
            self._before = {file: disk.content(file) for file in kept}
        await self.started()
        if self._flipped is None:
            return
        if self.active and await self._proven():
            self.swarm.count("seen.harmless_damage")
            self._flipped = None
            return
        node.resume()
        node.kill()
        if disk.is_file(self._flipped[0]):
            disk.flip_bit(*self._flipped)
        disk.faults.counts["disk.bit_flip"] -= 1
        self._flipped = None
        await self.started()

    async def _proven(self) -> bool:
        """Wait until all is proven that the start has taken on trust; False if it has found damage, or ended."""
        while self.active and self.broker is not None:
            journal = self.broker.statistics().journal
            if journal is None or journal.damaged_segments or journal.state != "open":
                break
            if not journal.unproven_segments:
                return True
            await trio.sleep(0.1)
        self.history.note("the damage is found while the broker serves")
        self.swarm.count("seen.damage_found_later")
        return False

    async def started(self) -> None:
        """Start it if it is dead, and wait until that has come to an end.

        Checkpoint: always.  Cancellation: the start goes on.
        """
        if self.node.life.dead:
            self.start()
        with trio.move_on_after(START_S):
            await self._settled.wait()
        await trio.lowlevel.checkpoint()

    async def serving(self) -> None:
        """Have it run, however often it has to be started: a stop that is under way is waited for.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        while not self.active or self._stop.is_set():
            await self.started()
            await trio.sleep(0.1)
