"""The store-and-forward queues and remote bindings of a broker, as its services see them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import attrs

from meshq.abc._buffer import Buffer


@attrs.frozen(kw_only=True)
class ForwardRun:
    """Messages of a store-and-forward queue, dispatched to the link that forwards them.

    ``tag``: what ``StoreAndForwardQueue.done`` is told, of the first message; they rise by one.  ``number``: in the
    queue, of the first message, which rises by ``step``; ``message``: its producer's number for it, which rises by
    ``step`` times ``stride``.  ``table`` and ``body`` are the messages as they were encoded; ``queues`` the numbers of
    the other node's queues that they are for; ``topic``: of a multicast address.  ``arrival``: when the first broker
    took them (its clock, ms); 0: that doesn't matter.  ``waited()``: how long ago that is, ms, whatever clocks show.
    ``origin``: address, queue and reason of messages that were moved before; empty: there is none.
    """

    tag: int
    rows: int
    number: int
    step: int
    stride: int
    message: int
    producer: bytes
    address: str
    stamp: int
    durable: bool
    table: bytes
    body: Buffer
    queues: tuple[int, ...]
    topic: bool = False
    arrival: int = 0
    waited: Callable[[], int]
    origin: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class RemoteQueue:
    """A queue of another node, as described by that node.

    ``filters``: if each of its consumers has one.  ``filter``: what the queue itself takes; empty for everything.
    ``durable``: it outlives its node.  ``features``: the parts of runs that its node understands besides those that
    every node does.
    """

    number: int
    name: str
    address: str
    routing: str
    consumers: int
    filters: tuple[str, ...] = ()
    filter: str = ""
    durable: bool = True
    features: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class KnownPeer:
    """A node at the URL ``connector``, linked with this node before its restart; ``left``: it said goodbye."""

    name: str
    connector: str
    left: bool


class StoreAndForwardQueue(ABC):
    """A store-and-forward queue, with the calls of the one link that reads its messages."""

    #: The queue's own number, which is never used again.
    number: int

    @abstractmethod
    def attach(self, take: Callable[[ForwardRun], None], stored: int) -> None:
        """Dispatch the queue's messages to ``take``, in order, as far as the window allows.  Of the messages dispatched
        before, the other node has stored those with numbers up to ``stored``, and will store no others."""

    @abstractmethod
    def done(self, first_tag: int, last_tag: int) -> None:
        """Acknowledge messages that the other node has stored."""

    @abstractmethod
    def detach(self) -> None:
        """Detach the lost link: unacked messages are dispatched again to the next link.  Twice is silent."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """The number of messages in the queue, dispatched or not."""


@attrs.frozen(kw_only=True)
class StrandedQueue:
    """A queue that has no consumer here and one on a linked node.

    ``messages``: those that are ready.  ``delay``: the seconds for which they stay, by the settings of the address.
    """

    address: str
    messages: int
    delay: float


class StrandedMessages(ABC):
    """The messages of a broker that none of its consumers can get, with the calls of a redistributor.

    A redistributor never counts as a consumer, and holds nothing: messages stay in their queue, in their places, until
    one record moves them to the store-and-forward queue of a node that has a consumer.
    """

    @abstractmethod
    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call ``watcher`` with the name of each queue at once, and from then on whenever ``stranded`` may answer
        otherwise than before, or room for more messages has become free.  The watcher must not raise, and moves nothing
        within the call."""

    @abstractmethod
    def stranded(self, queue: str) -> StrandedQueue | None:
        """Return the state of a queue that has no consumer here and one on a linked node; None: the queue keeps its
        messages, also because the settings of its address say so."""

    @abstractmethod
    async def move(self, queue: str, limit: int) -> int:
        """Move up to ``limit`` messages that consumers on linked nodes want, in their order; return how many were
        moved, when that is durable.  The move ends at the first consumer here.

        Checkpoint: always.
        Cancellation: what has moved has moved, and nothing else will.
        Raises:
            AddressFullError: the disk is full; if the outcome is unknown some messages were moved.
            NotActiveError: the node stops; outcome unknown.
        """


class PeerQueues(ABC):
    """The store-and-forward queues of a broker, one for each node that the broker knows."""

    @abstractmethod
    def forwarding(self, name: str) -> StoreAndForwardQueue:
        """Return the store-and-forward queue of this name, created if missing."""

    @abstractmethod
    def former(self, prefix: str) -> Sequence[KnownPeer]:
        """List the nodes known before the restart whose store-and-forward queue's ``name`` begins with ``prefix``."""

    @abstractmethod
    def met(self, link: StoreAndForwardQueue, connector: str) -> None:
        """Note the URL of a link's peer, which is kept over restarts with the peer's bindings."""


class RemoteBindings(ABC):
    """The remote bindings of links: the queues of other nodes.  A link is named by its store-and-forward queue."""

    @abstractmethod
    def replace(self, link: StoreAndForwardQueue, mode: str, queues: Sequence[RemoteQueue], store: bytes = b"") -> None:
        """Replace all bindings of a link's peer; ``mode``: off, strict or on_demand.  Messages that wait for another
        ``store`` of the peer go to the queues of the same names; empty: the peer doesn't say which store."""

    @abstractmethod
    def describe(self, link: StoreAndForwardQueue, mode: str, queue: RemoteQueue) -> None:
        """Add or update one queue of a link's peer."""

    @abstractmethod
    def remove(self, link: StoreAndForwardQueue, number: int) -> None:
        """Remove one queue of a link's peer."""

    @abstractmethod
    def take_up(self, link: StoreAndForwardQueue, mode: str) -> None:
        """Restore the bindings of a node known before the restart, or forget a node that left with all its messages."""

    @abstractmethod
    def withdraw(self, link: StoreAndForwardQueue) -> None:
        """Remove the bindings of a link's peer, until ``replace`` or ``describe`` adds them again."""

    @abstractmethod
    def mark(self, link: StoreAndForwardQueue, gone: str) -> None:
        """Set the state of a link's peer: "away", "left", or empty if the peer is linked.  Its bindings stay."""
