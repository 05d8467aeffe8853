"""The interface of a quorum provider: who may serve for a node id, and which copies of its store are the newest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager

import attrs


@attrs.frozen(kw_only=True)
class QuorumRecord:
    """The record of a node id at a quorum; all of it is zero or empty for a node id that nobody has claimed.

    ``epoch``: the fence of the node that serves.  ``sequence``: the activation counter of the newest copies of the
    store.  ``claimed``: the counter of a claim; above ``sequence`` while the claim is under way, or was interrupted.
    ``in_sync``: the names of the nodes whose copies are the newest.  ``holder``: the name of the node that serves, or
    served last.
    """

    epoch: int = 0
    sequence: int = 0
    claimed: int = 0
    in_sync: tuple[str, ...] = ()
    holder: str = ""


class QuorumSession(ABC):
    """The part of one life of a node in the quorum, for one node id: a lock with a lease, and the record.

    One task calls ``acquire``, ``compare_and_set`` and ``release``; any number may call ``read`` and ``lost``.
    """

    @property
    @abstractmethod
    def held_until(self) -> float:
        """The moment of trio's clock until which the lock is surely held; 0.0 when it is not held.

        It is counted from before the last renewal that was answered was sent.  Once it has passed the lock counts as
        lost, whatever is heard later.
        """

    @abstractmethod
    async def read(self) -> QuorumRecord:
        """Return the record.  The holder of the lock gets what was stored last.  Anyone else may miss a record that
        is being stored at this moment.

        Checkpoint: always.  Cancellation: nothing changes.
        Raises: ConnectionBrokenError if the quorum can't be asked."""

    @abstractmethod
    async def acquire(self) -> bool:
        """Try to get the lock, without waiting for its holder; return whether this session holds it.

        Checkpoint: always.  Cancellation: the lock may be held; ``release`` gives it back.
        Raises: ConnectionBrokenError if the quorum can't be asked; RefusedError if it belongs to others."""

    @abstractmethod
    async def compare_and_set(self, expected: QuorumRecord, new: QuorumRecord) -> bool:
        """Store ``new`` in the place of ``expected``; return False, and change nothing, if the record is another one.

        Checkpoint: always.  Cancellation: stored or not; ``read`` tells.
        Raises: RefusedError if this session does not hold the lock, nothing is stored; ConnectionBrokenError if the
        quorum can't be asked, ``read`` tells whether it was stored."""

    @abstractmethod
    async def release(self) -> None:
        """Give the lock back, so that others get it at once; silent if it is not held.

        ``held_until`` is 0.0 before the call first waits, also when the call is cancelled or the quorum can't be asked.

        Checkpoint: always.  Cancellation: the lock may be held until its session has run out."""

    @abstractmethod
    async def lost(self) -> None:
        """Wait until the lock is not held: given back, run out, or taken away.

        Checkpoint: always.  Cancellation: the lock stays held."""


class QuorumProvider(ABC):
    """A quorum that decides which node serves for a node id, such as an ensemble of servers.

    ``meshq.testing.check_quorum`` says whether a provider of your own keeps this contract.
    """

    @abstractmethod
    def session(self, node_id: bytes, instance: bytes) -> AbstractAsyncContextManager[QuorumSession]:
        """The part of a node in the quorum, until the block is left; that gives the lock back.

        ``node_id``: 16 bytes, what is decided about.  ``instance``: 16 random bytes, this life of the node: another
        life is another candidate.  Entering the block asks nobody, so that a node may wait for its quorum.
        """
