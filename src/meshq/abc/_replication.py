"""Where the records of a journal are to be durable besides its own disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import attrs

from meshq.abc._buffer import Buffer
from meshq.ids import NodeId, Position


@attrs.frozen(kw_only=True)
class StoredSegment:
    """A segment of a journal, as far as its bytes are durable.

    ``last``: the position of its last record.  ``compacted``: its records do not fill their range of positions.
    ``size_bytes``: what of its file is durable.
    """

    number: int
    base: Position
    last: Position
    compacted: bool
    size_bytes: int = 0


@attrs.frozen(kw_only=True)
class StoredBatch:
    """A batch of a segment, without the encryption of its journal.

    ``positions``: of the records, if they are not all from ``first`` on.  ``content``: the bytes of all records.
    """

    first: Position
    flags: int
    rows: Sequence[int]
    content: Buffer
    positions: Sequence[int] | None = None


@attrs.frozen
class RecordDigest:
    """A live record of a journal: its position, and a digest of all that it says."""

    position: int
    digest: bytes


class RecordSource(ABC):
    """The records that a journal has on its own disk, for a copy of it, or to compare it with one."""

    @abstractmethod
    def holding(self) -> AbstractAsyncContextManager[None]:
        """Surround a copy: no segment is compacted or removed meanwhile, as long as the disk has space."""

    @abstractmethod
    def segments(self) -> Sequence[StoredSegment]:
        """Return the segments, the one that is being written among them, by their numbers."""

    @abstractmethod
    async def read(self, number: int, beyond: int = 0) -> Sequence[StoredBatch]:
        """Read the durable batches of a segment that have records beyond a position.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            MeshqError: the segment is gone, because the disk had no space for it any more, or is damaged.
            OSError: the disk failed.
        """

    @abstractmethod
    async def live(self, beyond: int, upto: int) -> Sequence[RecordDigest]:
        """Read the next live records beyond a position, in order, up to another one; not all at once; empty: none.

        Records that are deleted meanwhile may be left out.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            MeshqError: a record is damaged.
            OSError: the disk failed.
        """

    @property
    @abstractmethod
    def synced(self) -> Position:
        """The last position on this disk."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """Whether the disk has no space for new records."""


@attrs.frozen(kw_only=True)
class ReplicationStart:
    """The journal that a sink begins with.

    ``last``: the records up to this position were there before; the first batch follows them.  ``source``: has these,
    and all later ones that are durable; None: nobody can copy them.
    """

    node_id: NodeId
    journal_id: bytes
    last: Position
    source: RecordSource | None = attrs.field(default=None, eq=False)


@attrs.frozen(kw_only=True)
class ReplicatedBatch:
    """The records of one batch, with the positions ``first`` to ``last``; without records ``last`` is ``first`` - 1.

    ``flags``, ``rows`` and ``parts`` are those of the store's batch format, before encryption.  The owner of the
    journal may change the bytes of ``parts`` after ``ReplicationSink.place`` has returned.
    """

    first: Position
    last: Position
    flags: int
    rows: Sequence[int]
    parts: Sequence[Buffer]


class ReplicationSink(ABC):
    """A place besides the journal's own disk where records have to be durable, by a policy that the sink keeps.

    A record counts as durable, and is confirmed and delivered, when it is on the journal's disk and the sink's position
    covers it.  The sink alone decides whose answers its position waits for.
    """

    @abstractmethod
    def begin(self, start: ReplicationStart) -> None:
        """Begin with a journal that is being opened; called once, before all other calls.

        The first batch follows ``start.last``.  The sink discards all records that it has beyond that position: the
        journal does not have them, and gives the same positions to other records.

        Records up to ``start.last`` count as durable without the sink, also records that an earlier life wrote and
        the sink never took; no call of this port hands these records over.  To bring a replica up to ``start.last``
        is the task of the policy, before ``begin``.
        """

    @abstractmethod
    def place(self, batch: ReplicatedBatch) -> None:
        """Take the next batch, in the order of positions, while the journal writes the batch to its own disk.

        Called without a checkpoint between two batches, so that a sink only queues the batch here.
        """

    @abstractmethod
    async def durable_beyond(self, position: Position) -> Position:
        """Wait until records beyond ``position`` are durable; return the last position that is durable.

        A position never falls, and never lies behind the last batch that was placed: the journal fails otherwise.

        Checkpoint: always.
        Cancellation: nothing has changed; the call may be repeated.
        Raises:
            MeshqError: the records can't become durable by the policy; the journal fails, and confirms nothing more.
        """

    @abstractmethod
    def end(self) -> None:
        """Take note that no batch follows: the journal is being closed, and waits for the position of the last batch.

        From here on ``durable_beyond`` returns that position, or raises, within the time that the policy allows.  The
        journal waits for ``limits.SINK_TIMEOUT_S``, and that of a broker for its ``stop_timeout``; then the sink has
        failed.
        Called also when the journal has failed, which then waits for no position.
        """
