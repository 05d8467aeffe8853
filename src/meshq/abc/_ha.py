"""When a broker node is the active one, and when the node has to wait."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

import attrs

from meshq.abc._disk import Disk
from meshq.abc._replication import ReplicationSink
from meshq.abc._services import NodeControl
from meshq.errors import RefusedError


class TermGuard(ABC):
    """A bound on a term, for roles that another node can get while the holder lives."""

    @abstractmethod
    def may_act(self) -> bool:
        """Whether the node may act now: hand messages over, confirm, and send anything at all.

        Once False it stays False.  Asked whenever bytes or frames are about to leave the node.
        """

    @abstractmethod
    def disk(self, disk: Disk) -> Disk:
        """Return the disk by which the node reaches its store in this term, which fails once the term is over."""

    @property
    @abstractmethod
    def over(self) -> StepBack | None:
        """The order that a failure of the store stands for, because the term is over; None: the store has failed."""


@attrs.frozen(kw_only=True)
class ActiveTerm:
    """A node's time as the active one, from ``Activation.wait`` to ``Activation.release``.

    ``data_dir``: the directory of the store in this term; None: the broker's own ``data_dir``.  ``sink``: where the
    records of the store have to be durable, too, before they are confirmed and delivered; it begins with the journal of
    this term, and with no other.  ``guard``: the bounds of the term; None: nobody else gets the role before
    ``release``.  ``vacant_since``: when the role was last known to be another node's, or an
    earlier term of this node has ended, on the clock of the loop; None: neither.  ``node_id``: the id that the store
    must have, and that a new store gets; None: that of the broker's settings, or of the store.
    """

    data_dir: str | None = None
    sink: ReplicationSink | None = None
    guard: TermGuard | None = None
    vacant_since: float | None = None
    node_id: bytes | None = None


@attrs.frozen(kw_only=True)
class StepBack:
    """The order that ends a term: the node closes its store, and waits again.

    ``reason``: why, for logs and for the clients of the node.  ``at_once``: another node may be active already, so
    nothing is finished first; otherwise the node has its ``stop_timeout`` for committed work and a good-bye.
    ``final``: the broker stops instead of waiting again.
    """

    reason: str
    at_once: bool = False
    final: bool = False


class Activation(ABC):
    """A node's part in the competition for a role, as long as the broker runs.

    The broker calls ``wait``, then ``lost`` until the node's store is closed, then ``release``; and begins again with
    ``wait`` unless it was stopped.
    """

    @abstractmethod
    async def wait(self) -> ActiveTerm:
        """Wait until the node may be active, and no other node is.

        Checkpoint: always.
        Cancellation: the node does not have the role.
        Raises:
            MeshqError: the node can never be active; the broker fails with the error.
        """

    @abstractmethod
    async def lost(self) -> StepBack:
        """Wait until the node has to step back; called again, wait until the order is another one.

        After an order that leaves the node its time there may be one to step back ``at_once``, also while the broker
        stops.  The broker asks no more after an order that is ``at_once`` or equal to the last order.

        Checkpoint: always.
        Cancellation: nothing has changed.
        """

    @abstractmethod
    async def release(self, *, failover: bool) -> None:
        """Give the role up: the node's store is closed, so another node may be active.

        ``failover``: the broker was stopped with the order to hand over.  The broker's ``stop_timeout`` is the time
        for this call, which is cancelled after that.

        Checkpoint: always.
        Cancellation: the role is given up.
        """

    def served(self) -> None:
        """Note that the node is active now; called at most once in a term."""
        return

    async def leaves(self) -> None:
        """Prepare for the end of the term: the node is about to tell its links, because it stops or steps back.

        The call is cancelled after the broker's ``stop_timeout``; what waits for a thread then is to go on elsewhere.

        Checkpoint: none, unless the policy has something to do then.
        Cancellation: the term ends all the same.
        """
        return

    def scales_down(self) -> None:
        """Note that the node hands its messages over to another node, and serves no client in this term."""
        return

    async def keeps(self) -> None:
        """Wait while another node may come to have the role with all messages: until then none is handed over.

        Called after ``scales_down``, and after ``scaled_down``: the other node gets the empty store then.

        Checkpoint: none, unless the policy has something to wait for.
        Cancellation: nothing changes.
        """
        return

    def finds_no_target(self) -> None:
        """Note that no node takes the messages over: a node that would serve them may have the role."""
        return

    def scaled_down(self) -> None:
        """Note that another node has all messages of the store now."""
        return

    def order(self, *, back: bool, force: bool) -> int:
        """Order the node that is active to hand over, as ``hand_over`` does, and return the epoch that ends.

        Raises:
            RefusedError: nobody is there who could take over.
            NotActiveError: the node waits.
        """
        raise RefusedError("the policy of ha= does not hand over on demand")

    async def hand_over(self, *, back: bool, force: bool) -> None:
        """Order a change of role: the node that is active hands over; ``back``: to the node that had the role first.

        A node that waits takes the role, where the policy allows it.  Return when it is done.

        ``force``: nothing is finished first.

        Checkpoint: always.
        Cancellation: the order stands.
        Raises:
            RefusedError: nobody is there who could take over.
        """
        raise RefusedError("the policy of ha= does not hand over on demand")


class HAPolicy(ABC):
    """A rule that says when a broker's node is active: settings without state, which touch nothing when built."""

    #: The name of the rule.
    kind: ClassVar[str] = "custom"

    #: Whether a broker's block is entered only when the node is active; otherwise as soon as the node waits.
    wait_for_activation: bool

    @abstractmethod
    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Join the competition for the role; entered when the broker starts.

        Leaving the block gives up a role that the node still has: the node's store is closed by then.
        The broker's ``stop_timeout`` is the time for leaving the block, which is cancelled after that.

        ``control``: the node as long as it waits.  Its ``node_id`` may be another one when its store is open.
        """


@attrs.frozen(kw_only=True)
class QuorumRecord:
    """The record of a node id at a quorum: zero and empty until a node claims the node id.

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
