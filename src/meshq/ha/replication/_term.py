"""A term of a node that replicates: the writes of its store are told to its replica."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from meshq.abc import Disk, File, ReplicatedBatch, ReplicationSink, ReplicationStart, StepBack, TermGuard
from meshq.concurrency import ChangeSignal
from meshq.ha.replication._node_directory import is_body
from meshq.ha.replication._replicator_machine import ReplicationBounds, Replicator
from meshq.ha.replication.comparison import Compared
from meshq.ids import Position


class ReplicationTerm(TermGuard, ReplicationSink):
    """A term, from the activation to the release; the sink of its journal, and the eye on its large bodies."""

    def __init__(self, epoch: int, bounds: ReplicationBounds, until: Callable[[], float] | None = None) -> None:
        #: The epoch of the term.
        self.epoch: int = epoch
        # Until when the node may act; None: there is no lock that ends.
        self._until = until
        self._lapsed = False
        self._bounds = bounds
        #: The journal, once it is open; and whether no batch follows.
        self.start: ReplicationStart | None = None
        self.ended: bool = False
        self.replicator: Replicator = Replicator(0, bounds)
        #: Takes each batch as it is placed; None: nobody does.
        self.taker: Callable[[ReplicatedBatch], None] | None = None
        #: What becomes of the large bodies.
        self.bodies: BodyNews = BodyNews()
        #: Told when a position or the replica has changed.
        self.changed: ChangeSignal = ChangeSignal()
        #: The last answer of a replica that was asked to compare its store.
        self.compared: Compared = Compared()
        #: How often the replica was told of other voters, as far as it remembers them.
        self.knows_voters: int = 0
        #: Whether clients are served, or the messages are handed over: another node may follow.
        self.serving: bool = False
        #: Whether another node has everything; or none was found that takes it, so that a primary gets the role back.
        self.emptied: bool = False
        self.stranded: bool = False
        #: Whether the replica was told to take over, is in sync, and has not said that it can't.
        self.yielded: bool = False
        #: Whether the last word was said: the replica may take over then, and is given up no more.
        self.leaving: bool = False
        #: Whether the disk has, before the last word, that the replica goes on; None: that is not asked for.
        #: False: no last word is said.
        self.noted: bool | None = None
        #: The order to end the term, and the one of which the broker was told; None: there is none.
        self.order: StepBack | None = None
        self.told: StepBack | None = None

    # -- the guard

    def may_act(self) -> bool:
        """Whether the lock is held, if there is one, and no other node is known to act in a later epoch."""
        if self._until is not None and trio.current_time() >= self._until():
            self._lapsed = True
        if self._lapsed:
            return False
        return self.order is None or not self.order.at_once or self.order.reason in ("forced", "failback")

    def lapse(self) -> None:
        """Note that the lock of the term is not held any more; a later one is that of another term."""
        self._lapsed = True

    def disk(self, disk: Disk) -> Disk:
        """Return the disk whose large bodies are looked at."""
        return WatchedDisk(disk, self.bodies)

    @property
    def over(self) -> StepBack | None:
        """Return None: the store is the node's own, and a failure is one."""
        return None

    @property
    def positions(self) -> Replicator:
        """How far the journal and the replica are."""
        return self.replicator

    # -- the sink

    def begin(self, start: ReplicationStart) -> None:
        """Begin with a journal."""
        self.start = start
        self.replicator = Replicator(start.last, self._bounds)
        self.changed.tell()

    def place(self, batch: ReplicatedBatch) -> None:
        """Hand a batch on."""
        if batch.rows:
            size_bytes = sum(len(part) for part in batch.parts)
            self.replicator.place(batch.last, trio.current_time(), size_bytes)
            if self.taker is not None:
                self.taker(batch)
        self.changed.tell()

    async def behind(self) -> None:
        """Wait until something waits for the replica.

        Checkpoint: if nothing does.
        Cancellation: nothing changes.
        """
        while not self.replicator.behind:
            await self.changed.wait()

    async def durable_beyond(self, position: Position) -> Position:
        """Wait until more is durable by the policy."""
        await trio.lowlevel.checkpoint()
        while self.replicator.durable <= position:
            # What was placed behind the last word was confirmed to nobody, and the replica answers no more.
            if self.ended and self.leaving and self.replicator.placed > position:
                return Position(self.replicator.placed)
            await self.changed.wait()
        return Position(self.replicator.durable)

    def end(self) -> None:
        """Note that no batch follows."""
        self.ended = True
        self.changed.tell()


class BodyNews:
    """The large bodies that were made or removed, in order, while a replica is there; threads append."""

    __slots__ = ("_noted", "news")

    def __init__(self) -> None:
        #: Names, and whether they were made.
        self.news: deque[tuple[str, bool]] = deque()
        self._noted = False

    def begin(self) -> None:
        """Note bodies from now on."""
        self.news.clear()
        self._noted = True

    def end(self) -> None:
        """Note nothing more."""
        self._noted = False
        self.news.clear()

    def note(self, name: str, *, made: bool) -> None:
        """Note a body."""
        if self._noted:
            self.news.append((name, made))


class WatchedDisk(Disk):
    """A disk that notes which large bodies are made and removed."""

    __slots__ = ("_bodies", "_disk")

    def __init__(self, disk: Disk, bodies: BodyNews) -> None:
        self._disk = disk
        self._bodies = bodies

    def open(self, path: str, *, create: bool = False) -> File:
        return self._disk.open(path, create=create)

    def replace(self, old: str, new: str) -> None:
        self._disk.replace(old, new)
        self._note(new, made=True)

    def move_directory(self, old: str, new: str) -> None:
        self._disk.move_directory(old, new)

    def remove(self, path: str) -> None:
        self._disk.remove(path)
        self._note(path, made=False)

    def names(self, directory: str) -> list[str]:
        return self._disk.names(directory)

    def make_directory(self, path: str) -> None:
        self._disk.make_directory(path)

    def mode(self, directory: str) -> int:
        return self._disk.mode(directory)

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(path)

    def _note(self, path: str, *, made: bool) -> None:
        name = path.rpartition("/")[2]
        if is_body(name):
            self._bodies.note(name, made=made)
