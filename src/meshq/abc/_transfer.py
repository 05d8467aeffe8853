"""Everything that a broker holds, as seen by a service that hands it over to another node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import attrs

from meshq.abc._links import StoreAndForwardQueue


@attrs.frozen(kw_only=True)
class TransferInventory:
    """The contents of a broker that another node does not have yet.  Names without contents are left out.

    ``messages``: by queue, due or not, unacked ones included.  ``forwarded``: messages that wait for other nodes, by
    store-and-forward queue, parts of prepared transactions included.
    ``ids``: remembered duplicate ids that were not handed over in this life, by address.
    ``prepared``: transactions that are prepared and not decided.  Messages that are not durable count, too.
    """

    messages: Mapping[str, int]
    forwarded: Mapping[str, int]
    ids: Mapping[str, int]
    prepared: int

    @property
    def empty(self) -> bool:
        """Whether nothing is left."""
        return not (self.messages or self.forwarded or self.ids or self.prepared)


class Transfer(ABC):
    """The contents of a broker whose node leaves for good, with the calls of a service that hands the contents over.

    No contents are in two places: one record removes messages from their queue and places them in the store-and-forward
    queue of the target.  So a transfer that was cut needs no memory: a new transfer goes on with the inventory.
    """

    @abstractmethod
    def inventory(self) -> TransferInventory:
        """Return the inventory, including messages that are placed and not durable yet.  An empty inventory after
        ``close`` stays empty."""

    @property
    @abstractmethod
    def moved_bytes(self) -> int:
        """The bytes of the messages that were moved in this life of the node, as they are stored."""

    @abstractmethod
    def prepared(self) -> Sequence[bytes]:
        """Return the xids of the transactions that are prepared and not decided, those included of which a part is
        here."""

    @abstractmethod
    def takes_prepared(self, target: StoreAndForwardQueue) -> bool:
        """Return whether the other node is linked, and understands prepared transactions."""

    @abstractmethod
    def has_begun(self, target: StoreAndForwardQueue) -> bool:
        """Return whether a prepared transaction has taken its first step to this target, and not its last one: no other
        link leads it on, not even another one to the same node."""

    @abstractmethod
    async def hand_over(self, xid: bytes, target: StoreAndForwardQueue) -> int:
        """Take the next step of a prepared transaction's way to another node; return the number of steps, 0 or 1, when
        that is durable.

        The first step has the transaction begun there, before the messages that it holds, and sends all that it sends:
        from then on it can't be decided here.  The messages that it holds are moved by ``move``, in their places.  The
        last step, when all of these are on their way, ends the transaction here: from then on it is decided there.
        0: it is unknown, or waits for ``move``, or it is on its way to another node, or the node is not linked or does
        not understand it, or can't take a message that it holds.

        Checkpoint: always.
        Cancellation: the step was taken or not.
        Raises:
            AddressFullError: the disk is full; nothing changed.
            NotActiveError: the node stops; outcome unknown.
        """

    @abstractmethod
    def cursors(self) -> Sequence[tuple[str, str]]:
        """Return the queues here that a cursor has, each with the name of the cursor."""

    @abstractmethod
    def sinks(self) -> Sequence[str]:
        """Return the names of the sinks that have stages or an entry in the batch ledger here."""

    @abstractmethod
    def lacking(self, target: StoreAndForwardQueue) -> Sequence[str]:
        """Return the names of the durable queues, with or without messages, that the other node does not have, as far
        as it has described its queues, and of which it was not told in this life."""

    @abstractmethod
    def makes_queues(self, target: StoreAndForwardQueue) -> bool:
        """Return whether the other node is linked, and makes queues that it is told of."""

    @abstractmethod
    async def make_queues(self, target: StoreAndForwardQueue) -> int:
        """Tell another node of the next queues that it lacks, which it makes as they are here: with address, routing
        type, filter and kind of subscription; return of how many it is told, when that is durable.

        0: it lacks none, or has something else under their names, or is not linked or does not understand this, or so
        much waits for it that nothing else goes ahead.

        Checkpoint: always.
        Cancellation: the node is told or not.
        Raises:
            AddressFullError: the disk is full; of some it may be told.
            NotActiveError: the node stops; outcome unknown.
        """

    @abstractmethod
    async def close(self) -> None:
        """Take in no message, duplicate id or transaction any more, until the broker is started again.

        Messages and acknowledgements that came before are stored and confirmed.  Then clients lose their sessions, with
        ``not_active``, which new ones are answered with, too; unacked messages are ready again.  Prepared transactions
        stay, and cannot be decided.  Links with other nodes stay: what waits here goes to other nodes, and these are
        told how far their messages are stored here, but no further messages of these are stored.
        Twice is silent.

        Checkpoint: always.
        Cancellation: nothing is taken in any more; sessions may be left until the next call.
        Raises:
            NotActiveError: the node stops.
        """

    @abstractmethod
    async def move_ids(self, address: str, target: StoreAndForwardQueue) -> int:
        """Hand the next part of the duplicate ids of an address over to another node, oldest first, behind all that was
        moved there before; return how many ids it has, when that is durable.  They stay known here, and are no part of
        the inventory of this life any more.

        0: none is left, or the node is not linked or does not understand ids, or so much waits for it that nothing else
        goes ahead.

        Checkpoint: always.
        Cancellation: the ids are handed over or not.
        Raises:
            AddressFullError: the disk is full; nothing changed.
            NotActiveError: the node stops; outcome unknown.
        """

    @abstractmethod
    async def move(self, queue: str, target: StoreAndForwardQueue, limit: int) -> int:
        """Move up to ``limit`` messages of a queue, in their order, to the queue of that name on another node, whether
        or not that has a consumer; return how many were moved, when that is durable.

        0: the queue is missing here or there, or the node is not linked, or so many messages wait for the node that no
        others go ahead, or all messages that are left stay because a link does not carry these or because the queue
        there may drop or lose these.

        Checkpoint: always.
        Cancellation: what has moved has moved, and nothing else will.
        Raises:
            AddressFullError: the disk is full; if the outcome is unknown some messages were moved.
            NotActiveError: the node stops; outcome unknown.
        """
