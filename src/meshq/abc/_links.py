"""The store-and-forward queues and remote bindings of a broker, as its services see them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

import attrs

from meshq import limits
from meshq.abc._buffer import Buffer
from meshq.errors import MeshqError


class ForwardWay(NamedTuple):
    """How messages go over a link.

    ``changes``: what the other node has to be told before them, in order: addresses, and whether their branch ends.
    ``branch``: they go over the branch of their address.  ``credit``: the number of the credit that counts them; 0:
    their address is not bounded.
    """

    changes: tuple[tuple[str, bool], ...] = ()
    branch: bool = False
    credit: int = 0


_MAIN: Final = ForwardWay()


class ForwardEntry(NamedTuple):
    """The kind of something that waits for another node, a prepared transaction, and the way over the link.

    ``kind``: empty for messages.  ``held``: the transaction that has acknowledged the messages, or of which the entry
    is a part; empty: none.  ``target``: the queue that such a part sends to; empty: a whole address.  ``way``: how it
    goes over the link.
    """

    kind: str = ""
    held: bytes = b""
    target: str = ""
    way: ForwardWay = _MAIN

    def without_changes(self) -> ForwardEntry:
        """Return the entry of messages before which the other node needs to be told nothing."""
        return self._replace(way=self.way._replace(changes=())) if self.way.changes else self


_MESSAGES: Final = ForwardEntry()


class AddressCredits(ABC):
    """The credits of addresses at the other node of a link, and its marks of the link's branches, in one session."""

    @property
    @abstractmethod
    def marks(self) -> Mapping[str, int]:
        """Up to which number the other node had stored each branch when the link was opened, by address."""

    @abstractmethod
    def watch(self, granted: Callable[[int, str, int], int]) -> None:
        """Call ``granted`` with each credit that is known, and then with each that is told: its number (0: the address
        is not bounded), the address, and how many messages may be sent in all.

        It returns how many are sent in all, which is more if so many were sent before credit was asked back.
        """


@attrs.frozen(kw_only=True)
class BodyReader:
    """A large body that is read block by block.

    ``read``: reads a block, by its number from 0, and calls the function with the bytes, or with the error; blocks come
    in the order in which they were asked for.  All blocks but the last have ``limits.LARGE_BLOCK_BYTES``.
    """

    size_bytes: int
    read: Callable[[int, Callable[[bytes | MeshqError], None]], None]


@attrs.frozen(kw_only=True)
class ForwardRun:
    """Messages of a store-and-forward queue, dispatched to the link that forwards them.

    ``tag``: what ``StoreAndForwardQueue.done`` is told, of the first message; they rise by one.  ``number``: in the
    queue, of the first message, which rises by ``step``; ``message``: its producer's number for it, which rises by
    ``step`` times ``stride``.  ``table`` and ``body`` are the messages as they were encoded; ``queues`` the numbers of
    the other node's queues that they are for; ``topic``: of a multicast address.  ``arrival``: when the first broker
    took them (its clock, ms); 0: that doesn't matter.  ``waited()``: how long ago that is, ms, whatever clocks show.
    ``origin``: address, queue and reason of messages that were moved before; empty: there is none.  ``former()``: by
    row how often a message was delivered before, how often it came back for sure, and for how many ms it still waits.
    ``queue``: the queue that the messages are for, if it is known by no number: name, routing
    type, filter, kind of subscription, and what holds of "durable" and "on_use"; empty: ``queues`` are these.
    ``entry``: what it is, if it is no message, its transaction, and its way over the link.
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
    former: Callable[[], Mapping[int, tuple[int, int, int]]]
    queue: tuple[str, ...] = ()
    entry: ForwardEntry = _MESSAGES


@attrs.frozen(kw_only=True)
class LargeForwardRun(ForwardRun):
    """A message of a store-and-forward queue whose body is not in ``body``: the link reads the ``large`` one."""

    large: BodyReader


@attrs.frozen(kw_only=True)
class RemoteQueue:
    """A queue of another node, as described by that node.

    ``filters``: if each of its consumers has one.  ``filter``: what the queue itself takes; empty for everything.
    ``durable``: it outlives its node.  ``features``: the parts of runs that its node understands besides those that
    every node does.  ``precise``: its consumers have no filters beside these; otherwise it is not known what they want.
    ``path``: the ids of the nodes from its own to the peer; ``node_name``: the name of its own node;
    ``gone``: how that node, or one on the way, is gone, as the peer says: "left", "away", or empty.
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
    precise: bool = True
    path: tuple[str, ...] = ()
    node_name: str = ""
    gone: str = ""


@attrs.frozen(kw_only=True)
class KnownPeer:
    """A node at the URL ``connector``, linked with this node before its restart; ``left``: it said goodbye; ``over``:
    after it had handed over all that it held."""

    name: str
    connector: str
    left: bool
    over: bool = False


class StoreAndForwardQueue(ABC):
    """A store-and-forward queue, with the calls of the one link that reads its messages."""

    #: The queue's own number, which is never used again.
    number: int

    @property
    def link(self) -> bytes:
        """The name under which the other node knows the queue's numbers."""
        raise NotImplementedError("a queue that a broker makes has a name")

    def overtaken(self, stored: int, token: bytes) -> bool:
        """Whether the other node has stored a number that was never given here, so that the store here is a copy, or an
        older one was restored.  Then the queue has another ``link`` from now on, made of the ``token``."""
        return False

    def lacking(self, features: Sequence[str]) -> tuple[str, ...]:
        """The features that waiting messages need, and that a node with these features does not understand."""
        return ()

    @abstractmethod
    def attach(
        self,
        take: Callable[[ForwardRun], None],
        stored: int,
        large_from: int = limits.MESSAGE_BYTES_MAX,
        credits: AddressCredits | None = None,
    ) -> None:
        """Dispatch the queue's messages to ``take``, in order, as far as the window allows.  Of the messages dispatched
        before, the other node has stored those with numbers up to ``stored``, and will store no others.

        ``large_from``: bodies of more bytes are handed over to be read, if they lie elsewhere than their messages.
        ``credits``: messages of an address without credit wait, and others overtake them; None: no address is bounded.
        """

    def unreadable(self, tag: int) -> None:
        """Give up a message whose body can't be read: it is rejected, and left to a human."""
        raise NotImplementedError("a queue that hands over bodies to be read rejects what can't be read")

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

    @property
    def blocked(self) -> int:
        """The number of messages that wait because their address is full at the other node."""
        return 0


@attrs.frozen(kw_only=True)
class StrandedQueue:
    """A queue that has no consumer here, or only consumers with filters, and one on a linked node.

    ``messages``: those that are ready.  ``delay``: the seconds for which they stay, by the settings of the address.
    ``filters``: those of the consumers here; messages that one of them takes stay.  ``demand``: what is known of the
    consumers elsewhere; another value means that others may be wanted there, or that there is room again.
    """

    address: str
    messages: int
    delay: float
    filters: frozenset[str] = frozenset()
    demand: Hashable = None


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

    @abstractmethod
    def handed_over(self, link: StoreAndForwardQueue) -> None:
        """Note, also for later lives, that a node which has left stores nothing that waits for it: it had handed over
        all that it held."""

    @abstractmethod
    def give_back(
        self, link: StoreAndForwardQueue, done: Callable[[int], None], failed: Callable[[MeshqError], None]
    ) -> None:
        """Route the messages anew that wait for a node which has stored none of them and will store none.  One of the
        two functions is called: with their number, or with the error that has ended it early."""


class RemoteBindings(ABC):
    """The remote bindings of links: the queues of other nodes.  A link is named by its store-and-forward queue."""

    @abstractmethod
    def replace(
        self,
        link: StoreAndForwardQueue,
        mode: str,
        queues: Sequence[RemoteQueue],
        store: bytes = b"",
        features: Sequence[str] = (),
    ) -> None:
        """Replace all bindings of a link's peer; ``mode``: off, strict or on_demand.  Messages that wait for another
        ``store`` of the peer go to the queues of the same names; empty: the peer doesn't say which store."""

    def lacks(self, link: StoreAndForwardQueue, queues: Sequence[RemoteQueue], store: bytes) -> bool:
        """Whether the ``store`` of a link's peer is another one than before, and its ``queues`` lack some of further
        nodes that messages wait for: the peer may not have heard of these yet."""
        return False

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
