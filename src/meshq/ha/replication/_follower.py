"""A node that follows the log of another one, from the copy of its store to the end of the link."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import trio

from meshq.abc import Difference, Env, RecordDigest, StoredBatch, StoredSegment
from meshq.client import LogLink, LogPiece
from meshq.errors import DamagedError, JournalBrokenError, MeshqError, RemoteProtocolError
from meshq.ha.replication._batch_format import followed, unpack_batch
from meshq.ha.replication._node_directory import BodyFile, NodeDirectory, is_body
from meshq.ha.replication._replica_machine import Following
from meshq.ha.replication._standing_format import Standing
from meshq.ha.replication.comparison._comparison_plan import (
    answer_of,
    failed_answer,
    first_difference,
    stretch,
    unpack_digests,
)
from meshq.ids import Position
from meshq.limits import MIB
from meshq.settings import EncryptionKey
from meshq.store import Journal, JournalOwner, StoreCopy, is_disk_full
from meshq.wire import Log, Logged, violation

POOL = "ha"
#: Bytes of batches that wait in memory for the disk of a replica, before nothing more is taken.
UNSYNCED_BYTES_MAX = 16 * MIB


@attrs.frozen(kw_only=True)
class FollowedNode:
    """The node whose log is followed, as it has said itself."""

    name: str
    url: str
    node_id: bytes
    journal_id: bytes
    epoch: int
    activation: int


@attrs.frozen(kw_only=True)
class FollowEnd:
    """The end of a link.

    ``node``: the one that was followed; None: it did not let this one follow.  ``may_take_over``: this node has all
    that was confirmed.  ``reason``: ``crash``, ``stopped``, ``forced`` or ``failback`` of the other node, or why this
    one could not go on.
    ``waiting``: the other node does not act either; what it remembers.  ``nobody``: nobody listens there.
    """

    error: MeshqError | OSError | None = None
    node: FollowedNode | None = None
    may_take_over: bool = False
    reason: str = "crash"
    waiting: Log | None = None
    nobody: bool = False

    @property
    def silent(self) -> bool:
        """Whether the link has ended by silence."""
        return self.error is not None and isinstance(self.error.__cause__, TimeoutError)


class Follower:
    """A single try to follow a node."""

    def __init__(
        self,
        link: LogLink,
        directory: NodeDirectory,
        *,
        env: Env,
        keys: tuple[EncryptionKey, ...],
        keep: float,
        following: Following,
        before: Standing,
        progress: Callable[[str, Follower], None],
    ) -> None:
        self._link = link
        self._directory = directory
        self._env = env
        self._keys = keys
        self._keep = keep
        self._before = before
        self._progress = progress
        #: How far the node is.
        self.following: Following = following
        #: The other node, once it has accepted this one; and its last position, once it has said that.
        self.node: FollowedNode | None = None
        self.last: int | None = None
        # The memory of a node that is in sync.
        self._in_sync: Standing | None = None
        self._reason = "crash"
        self._copy: StoreCopy | None = None
        self._segment: list[StoredBatch] = []
        self._journal: Journal | None = None
        self._bodies = BodyFile(env.disk, f"{directory.syncing}/large")
        self._failed: MeshqError | None = None
        self._waiting: Log | None = None
        self._nursery: trio.Nursery | None = None
        self._scope = trio.CancelScope()

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the nodes that have all that was confirmed, as the other node says."""
        return () if self._in_sync is None else self._in_sync.members

    @property
    def bytes_behind(self) -> int:
        """The bytes of the batches that were taken, and are not on this disk yet."""
        return self.following.backlog.size_bytes

    @property
    def durable(self) -> int:
        """The last position on this disk."""
        return 0 if self._journal is None else self._journal.durable

    async def run(self) -> FollowEnd:
        """Follow until the link ends; the store is closed then.

        Checkpoint: always.
        Cancellation: the store is closed.
        """
        error: MeshqError | OSError | None = None
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    with self._scope:
                        async with self._link.connected():
                            error = await self._take_pieces()
                except (MeshqError, OSError) as failure:
                    error = failure
                finally:
                    with trio.CancelScope(shield=True):
                        error = await self._close() or error
                    self._nursery.cancel_scope.cancel()
        except* JournalBrokenError as group:
            self._failed = self._failed or next(iter(group.exceptions), None)  # type: ignore[assignment]
        return self._ended(self._failed or error)

    def give_in(self) -> None:
        """End the link, and take over no more."""
        self._drop()
        self._scope.cancel()

    async def _take_pieces(self) -> MeshqError | OSError | None:
        while True:
            try:
                piece = await self._link.receive()
            except MeshqError as error:
                return error
            try:
                await self._take(piece)
            except (MeshqError, OSError) as error:
                self._reason = _reason_of(error)
                self._failed = error if isinstance(error, MeshqError) else self._failed
                self._link.tell(Logged(kind="failed", reason=self._reason, text=str(error)[:500]))
                self.following.end()
                return error
            if self.following.state == "ended":
                return None

    async def _take(self, piece: LogPiece) -> None:
        header, first = piece.header, piece.first
        handler: Any = getattr(self, f"_take_{header.kind}", None)
        if handler is None or (self.node is None and header.kind not in ("accepted", "waiting")):
            raise violation("illegal_frame", f"a piece of the kind {header.kind!r}")
        await handler(header, first, piece.body)

    # -- pieces, by their kinds

    async def _take_accepted(self, header: Log, first: int, body: bytes) -> None:
        self.following.accepted(header.epoch)
        self.node = node = FollowedNode(
            name=header.name,
            url=header.place,
            node_id=header.node_id,
            journal_id=header.journal_id,
            epoch=header.epoch,
            activation=header.activation,
        )
        self._copy = StoreCopy(
            self._env.disk,
            self._directory.syncing,
            self._env.entropy.token,
            identity=(node.node_id, node.journal_id),
            encryption_keys=self._keys,
        )
        # Before the copy begins: with what is here now this node must not serve any more.
        self._before = attrs.evolve(self._before, named=max(self._before.named, node.epoch))
        if await self._env.threads.run(self._directory.node_id, pool=POOL):
            await self._run(self._directory.remember, attrs.evolve(self._before, in_sync=self._before.acted))
        await self._run(self._directory.clear_copy)
        await self._run(self._copy.begin)
        self._progress("begun", self)

    async def _take_waiting(self, header: Log, first: int, body: bytes) -> None:
        self._waiting = header
        self.following.end()

    async def _take_batch(self, header: Log, first: int, body: bytes) -> None:
        batch = unpack_batch(header, first, body)
        if header.segment:
            self._segment.append(batch)
            await trio.lowlevel.checkpoint()
            return
        self.following.batch(first, len(batch.rows))
        if self._journal is not None:
            self.following.backlog.add(self.following.position, len(body))
            self._journal.log.follow(followed(batch))
            if self.following.backlog.size_bytes > UNSYNCED_BYTES_MAX:
                # What waits for the disk is in memory.
                await self._journal.wait_durable(self._journal.last)

    async def _take_segment(self, header: Log, first: int, body: bytes) -> None:
        batches, self._segment = self._segment, []
        last = batches[-1].positions[-1] if batches and batches[-1].positions else header.base
        segment = StoredSegment(
            number=header.segment, base=Position(header.base), last=Position(last), compacted=header.compacted
        )
        if self._copy is not None:
            await self._run(self._copy.add, segment, batches)

    async def _take_copied(self, header: Log, first: int, body: bytes) -> None:
        node, copy = self.node, self._copy
        self.following.copied(first)
        if copy is None or node is None or self._segment:
            raise violation("illegal_frame", "a copy that is not whole")
        # A large store takes its time, and the other node has signs of life answered meanwhile.
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._link.attend)
            try:
                self._journal = journal = await self._install(copy, node, first)
            except (MeshqError, OSError) as error:
                failure: MeshqError | OSError | None = error
            else:
                failure = None
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        journal.attach(
            JournalOwner(
                durable_moved=self._durable_moved,
                failed=self._journal_failed,
                full_changed=self._full_changed,
                damaged=lambda error: None,
                checkpoint=None,
                follows=True,
            )
        )
        assert self._nursery is not None
        await self._nursery.start(journal.run)
        self._durable_moved(journal.durable)
        self._progress("copied", self)

    async def _install(self, copy: StoreCopy, node: FollowedNode, last: int) -> Journal:
        """Put the copy in its place, and open it; each step is a sign of work."""
        directory = self._directory
        await self._run(copy.finish, last)
        self._link.tell(Logged(kind="working"))
        # Without a counter: what is here is not whole before this node is told that it joins.
        await self._run(directory.install_copy, attrs.evolve(self._standing(in_sync=False), activation=0), self._keep)
        self._link.tell(Logged(kind="working"))
        self._bodies = BodyFile(self._env.disk, f"{directory.root}/large")
        journal = Journal(directory.root, env=self._env, node_id=node.node_id, encryption_keys=self._keys)
        await journal.open()
        return journal

    async def _take_body(self, header: Log, first: int, body: bytes) -> None:
        if not is_body(header.name):
            raise violation("bad_header", f"{header.name!r} is no large body")
        write = self._bodies.write
        await self._env.threads.run(lambda: write(header.name, first, body, last=header.last), pool=POOL)
        # A sign of work: nothing else is told while a large body comes.
        self._link.tell(Logged(kind="working"))

    async def _take_removed(self, header: Log, first: int, body: bytes) -> None:
        if not is_body(header.name):
            raise violation("bad_header", f"{header.name!r} is no large body")
        if self._journal is not None:
            # The record that releases it comes first.
            await self._journal.wait_durable(self._journal.last)
        await self._run(self._bodies.remove, header.name)

    async def _take_joined(self, header: Log, first: int, body: bytes) -> None:
        self.following.joined(first)
        # The counter is durable before a quorum may know this node as in sync.
        await self._run(self._directory.remember, self._standing(in_sync=False))
        # Nothing more may come: what is here already was told before it counted.
        self._durable_moved(self.durable, kind="joined")

    async def _take_in_sync(self, header: Log, first: int, body: bytes) -> None:
        self.following.reached(self.durable)
        standing = self._standing(in_sync=True, members=header.members)
        self._in_sync = attrs.evolve(standing, number=header.number, voters=header.voters, later=())
        await self._run(self._directory.remember, self._in_sync)
        self._progress("in_sync", self)

    async def _take_voters(self, header: Log, first: int, body: bytes) -> None:
        if self._in_sync is None:
            raise violation("illegal_frame", "voters about a replica that is not in sync")
        self._in_sync = attrs.evolve(self._in_sync, voters=header.voters)
        await self._run(self._directory.remember, self._in_sync)
        self._link.tell(Logged(kind="voters"), first)

    async def _take_compare(self, header: Log, first: int, body: bytes) -> None:
        if self._journal is None or self._nursery is None:
            raise violation("illegal_frame", "a question about a store that is not whole")
        # Beside the log: what is read for it holds nothing up.
        self._nursery.start_soon(self._compare, self._journal, header, first, unpack_digests(body))
        await trio.lowlevel.checkpoint()

    async def _compare(self, journal: Journal, asked: Log, beyond: int, told: list[RecordDigest]) -> None:
        try:
            # What the other node has deleted is deleted here as soon as it is on the disk.
            await journal.wait_durable(journal.last)
            answer, position = answer_of(asked.number, await self._difference(journal, beyond, asked.base, told))
        except (MeshqError, OSError) as error:
            answer, position = failed_answer(asked.number, error), 0
        self._link.tell(answer, position)

    async def _difference(
        self, journal: Journal, beyond: int, upto: int, told: list[RecordDigest]
    ) -> Difference | None:
        while True:
            own = await journal.source.live(beyond, upto)
            end = own[-1].position if own else upto
            found = first_difference(stretch(told, beyond, end), own)
            if found is not None or not own:
                return found
            beyond = end

    async def _take_stopped(self, header: Log, first: int, body: bytes) -> None:
        self.last, self._reason = first, "stopped"
        await trio.lowlevel.checkpoint()

    async def _take_yielded(self, header: Log, first: int, body: bytes) -> None:
        self.last, self._reason = first, "failback" if header.name == "failback" else "forced"
        await trio.lowlevel.checkpoint()

    async def _take_dropped(self, header: Log, first: int, body: bytes) -> None:
        self._drop()
        await trio.lowlevel.checkpoint()

    def _drop(self) -> None:
        self._reason = "dropped"
        self.following.end()
        self._progress("dropped", self)

    def _standing(self, *, in_sync: bool, members: tuple[str, ...] = ()) -> Standing:
        node = self.node
        assert node is not None
        return attrs.evolve(
            self._before,
            epoch=node.epoch,
            activation=node.activation,
            acted=False,
            claimed=False,
            in_sync=in_sync,
            partner=node.name,
            members=(node.name, *members) if in_sync else (),
        )

    # -- the journal

    def _durable_moved(self, position: int, *, kind: str = "position") -> None:
        self.following.backlog.reached(position)
        self._link.tell(Logged(kind=kind), position)

    def _journal_failed(self, error: MeshqError) -> None:
        self._failed, self._reason = error, "disk"
        self._link.tell(Logged(kind="failed", reason="disk", text=str(error)[:500]))

    def _full_changed(self) -> None:
        if self._journal is not None and self._journal.full:
            self._reason = "full_disk"
            self._link.tell(Logged(kind="failed", reason="full_disk", text="the disk of the replica is full"))
            self.following.end()

    async def _close(self) -> MeshqError | None:
        """Close the store, with all batches that came on the disk."""
        journal = self._journal
        if journal is None:
            return None
        await journal.aclose()
        return self._failed

    def _ended(self, error: MeshqError | OSError | None) -> FollowEnd:
        # An error of the link is an ``OSError``, too.
        wrong = isinstance(error, RemoteProtocolError) or not isinstance(error, MeshqError | None)
        broken = self._failed is not None or wrong
        position = self.following.position
        may = not broken and self.durable >= position and self.following.may_take_over(self.durable, self.last)
        self.following.end()
        return FollowEnd(
            error=error,
            node=self.node,
            may_take_over=may,
            reason=self._reason,
            waiting=self._waiting,
            nobody=self._link.nobody,
        )

    async def _run(self, function: Callable[..., object], *arguments: object) -> None:
        await self._env.threads.run(function, *arguments, pool=POOL)


def _reason_of(error: MeshqError | OSError) -> str:
    """Return the word for a failure of the replica."""
    if isinstance(error, OSError) and not isinstance(error, MeshqError):
        return "full_disk" if is_disk_full(error) else "disk"
    return "disk" if isinstance(error, JournalBrokenError | DamagedError) else "left"
