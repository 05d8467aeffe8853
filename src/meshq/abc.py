"""Every interface between meshq and the outside world, each a contract.

Nothing in meshq opens a file or a socket, reads a wall clock, draws a random number or starts a thread but
through these.  Monotonic time is trio's own (``trio.current_time``).  ``meshq.env`` has the real
implementations; the testing kit has simulated ones that pass the same conformance suites.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from meshq import limits
from meshq.errors import SettingsError
from meshq.settings import Secret
from meshq.statistics import BridgeStatistics

if TYPE_CHECKING:
    from trio import TaskStatus
    from trio.abc import Clock

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class File(ABC):
    """An open file, for one user at a time.  All calls block; they are made from worker threads.

    Errors are ``OSError``s as the operating system gives them.  After an error of ``write_at`` or ``sync``
    nothing may be assumed of what was written: the caller stops (fail-stop), and never syncs again.
    """

    @abstractmethod
    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers, one after the other, from ``offset`` (bytes) on; short writes are continued."""

    @abstractmethod
    def read_at(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    @abstractmethod
    def size(self) -> int:
        """The length of the file in bytes."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Give back what lies behind the first ``size`` bytes; durable with the next sync, of a file that has them."""

    @abstractmethod
    def sync(self) -> float:
        """Make every completed write durable; returns how long that took, in seconds."""

    @abstractmethod
    def lock(self) -> bool:
        """Take the file's exclusive lock, kept until ``close``; False if somebody else has it."""

    @abstractmethod
    def close(self) -> None:
        """Close; nothing is synced by it.  Closing twice is silent."""


class Disk(ABC):
    """A tree of directories and files.  Paths are strings with ``/``.  All calls block.

    A created, renamed or removed name is durable only once its directory has been synced.
    """

    @abstractmethod
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; ``create=True`` makes a new file (mode 0600) and fails if it exists.

        Where no descriptor is left, a new file is refused after a moment (EMFILE, ENFILE), as by a full disk; whatever
        is there already is waited for.
        """

    @abstractmethod
    def replace(self, old: str, new: str) -> None:
        """Give the file ``old`` the name ``new``, in place of a file that has it."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """The names in a directory, sorted; ``FileNotFoundError`` if there is none."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory (mode 0700) and its missing parents; silent if it exists."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    @abstractmethod
    def mode(self, directory: str) -> int:
        """The permission bits of a directory, as ``chmod`` takes them; ``FileNotFoundError`` if there is none."""


class Threads(ABC):
    """Worker threads, for calls that release the interpreter lock."""

    @abstractmethod
    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        """Call ``function`` in a worker thread of the named pool (one thread for ``"journal"``).

        Checkpoint: always.
        Cancellation: the call is waited for; its effects stand and its result is lost.
        """

    @abstractmethod
    def idle(self) -> bool:
        """Whether no task of this loop could run now: a short blocking call made inline then delays nobody."""


class Stream(ABC):
    """A byte stream to a peer; one task reads, one task sends at a time."""

    @abstractmethod
    def send_nowait(self, data: Buffer) -> int:
        """Take all of ``data``; returns how many bytes wait here unsent.

        Raises:
            ConnectionBrokenError: the stream is broken or closed.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Return when nothing waits unsent.

        Checkpoint: when something waits.  Cancellation: what waits stays in line.
        Raises: ConnectionBrokenError.
        """

    @abstractmethod
    async def receive(self, size_max: int) -> bytes:
        """At least one and at most ``size_max`` bytes; ``b""`` when the peer has closed in an orderly way.

        Checkpoint: when nothing has arrived yet, and at least every 64th call.  Cancellation: nothing is lost.
        Raises: ConnectionBrokenError; SecurityError if the other side says under TLS that it does not believe us.
        """

    def gone(self) -> bool:
        """Whether the peer has ended the stream, or it is broken, as far as is known without reading what has come."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close at once; what waits unsent is dropped, ``flush`` and ``receive`` raise.  Closing twice is silent."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """The other side's address, ``host:port``, for logs and errors."""

    @property
    def binding(self) -> bytes:
        """SHA-256 of the server's certificate, the same at both ends; empty if there is no TLS."""
        return b""

    @property
    def identities(self) -> tuple[str, ...]:
        """At a server: who the client is by the certificate that was shown and believed, such as ``CN=app``."""
        return ()

    @property
    def server_name(self) -> str:
        """At a server under TLS: the host name that the client has asked for (SNI); empty if it named none."""
        return ""


class Listener(ABC):
    """A listening endpoint."""

    @abstractmethod
    async def accept(self) -> Stream:
        """The next connection.  Checkpoint: always.  Cancellation: no connection is lost.
        Raises: ClosedError once closed; OSError if the system refuses for the moment (too many open files)."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port that is really bound."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening.  Closing twice is silent."""


class TlsSide(ABC):
    """One side of TLS connections: certificates and keys, read and ready."""

    @abstractmethod
    async def wrap(self, stream: Stream, host: str | None = None) -> Stream:
        """Shake hands over ``stream``; what comes back is used in its place, and closes it.

        ``host``: at a client, the name that the certificate of the other side must have.

        Checkpoint: always.  Cancellation: ``stream`` is closed.
        Raises: SecurityError if one side does not believe the other, ConnectionBrokenError; ``stream`` is closed."""


class Tls(ABC):
    """TLS 1.3.  ``tls`` is ``meshq.TLS``, an ``ssl.SSLContext`` or, at a client, None."""

    @abstractmethod
    def server(self, tls: object) -> TlsSide:
        """The side of an acceptor.  Blocks for as long as it takes to read the files.
        Raises: SettingsError if they can't be used, or a context allows less than TLS 1.3."""

    @abstractmethod
    def client(self, tls: object) -> TlsSide:
        """The side that connects, and sees to it that the other one is who it says.
        Raises: SettingsError, as ``server``; also if a context would believe everybody."""


class Network(ABC):
    """Byte streams between hosts."""

    @abstractmethod
    async def connect(self, host: str, port: int) -> Stream:
        """Open a stream.  Checkpoint: always.  Cancellation: nothing is left.  Raises: ConnectionBrokenError."""

    @abstractmethod
    async def listen(self, host: str, port: int) -> Listener:
        """Listen; port 0 chooses a free one.  Checkpoint: always.  Cancellation: nothing listens.  Raises: OSError."""


class WallClock(ABC):
    """The time of day, for timestamps and expiry only; never for intervals."""

    @abstractmethod
    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC."""


class Entropy(ABC):
    """Randomness."""

    @abstractmethod
    def token(self, size: int) -> bytes:
        """``size`` random bytes that nobody can guess."""

    @abstractmethod
    def generator(self) -> random.Random:
        """A new generator for jitter and choices that need not be secret."""


def no_chaos(name: str) -> bool:
    """The chaos of production: none."""
    return False


@attrs.frozen(kw_only=True)
class Env:
    """All of the outside world that one node or client can reach."""

    disk: Disk
    threads: Threads
    network: Network
    tls: Tls
    wall: WallClock
    entropy: Entropy
    #: Bytes of memory that this host has.
    memory_bytes: int
    #: Files and connections that this process may have open.
    descriptors: int = limits.DESCRIPTORS_UNKNOWN
    #: What a loop that meshq starts in a thread of its own goes by; None: trio's own clock.
    clock: Clock | None = None
    #: Asked at named points; True takes the rare way there.  Constant False outside the simulation.
    chaos: Callable[[str], bool] = no_chaos
    #: In-process endpoints by name: ``inproc://name`` finds its broker here.  Whoever shares the dictionary
    #: shares the process.
    local: dict[str, Any] = attrs.field(factory=dict, repr=False)


# -- a broker, as its services see it


@attrs.frozen(kw_only=True)
class ForwardRun:
    """Messages that a store-and-forward queue holds, given to whoever forwards them.

    ``tag``: what ``StoreAndForwardQueue.done`` is told, of the first message; they rise by one. ``number``: in the
    queue, of the first message, which rises by ``step``; ``message``: its producer's number for it, which rises by
    ``step`` times ``stride``. ``table`` and ``body`` are the messages as they were encoded; ``queues`` the numbers of
    the other node's queues that they are for; ``topic``: of a multicast address. ``arrival``: when the first broker
    took them (its clock, ms); 0: that doesn't matter. ``waited()``: how long that is ago by now, ms, whatever clocks
    show.
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


@attrs.frozen(kw_only=True)
class RemoteQueue:
    """A queue of another node, as that node has described it.

    ``filters``: if each of its consumers has one.  ``filter``: what the queue itself takes; empty for everything.
    ``durable``: it outlives its node.
    """

    number: int
    name: str
    address: str
    routing: str
    consumers: int
    filters: tuple[str, ...] = ()
    filter: str = ""
    durable: bool = True


@attrs.frozen(kw_only=True)
class KnownPeer:
    """A node that an earlier life was linked with, at the URL ``connector``; ``left``: it said goodbye."""

    name: str
    connector: str
    left: bool


class StoreAndForwardQueue(ABC):
    """A store-and-forward queue, as the one link that reads it sees it."""

    #: The queue's own number, which is never used again.
    number: int

    @abstractmethod
    def attach(self, take: Callable[[ForwardRun], None], stored: int) -> None:
        """Give ``take`` what the queue holds, and what comes, in order, as far as the window goes.  Of what was given
        before, the other node has ``stored`` what has numbers up to this one, and will store nothing more."""

    @abstractmethod
    def done(self, first_tag: int, last_tag: int) -> None:
        """The other node has stored these messages."""

    @abstractmethod
    def detach(self) -> None:
        """The link is gone; what was given and not done is given again to whoever attaches.  Twice is silent."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Messages held, given or not."""


class RemoteBindings(ABC):
    """The remote bindings of links.  A link is named by its store-and-forward queue."""

    @abstractmethod
    def forwarding(self, name: str) -> StoreAndForwardQueue:
        """The store-and-forward queue of this name; made unless it exists."""

    @abstractmethod
    def replace(self, link: StoreAndForwardQueue, mode: str, queues: Sequence[RemoteQueue], store: bytes = b"") -> None:
        """All queues of a link's peer, instead of what was known; ``mode``: off, strict or on_demand.  What waits for
        another ``store`` than this one is for the queues of the same names; empty: the peer doesn't say."""

    @abstractmethod
    def describe(self, link: StoreAndForwardQueue, mode: str, queue: RemoteQueue) -> None:
        """One queue of a link's peer, as it is now."""

    @abstractmethod
    def met(self, link: StoreAndForwardQueue, connector: str) -> None:
        """A link's peer is at this URL: what it has is kept over restarts with that."""

    @abstractmethod
    def former(self, prefix: str) -> Sequence[KnownPeer]:
        """Nodes of an earlier life whose store-and-forward queue's name, ``name``, begins so."""

    @abstractmethod
    def take_up(self, link: StoreAndForwardQueue, mode: str) -> None:
        """Send what is for a node of an earlier life there again; nothing is known of one that left and has all."""

    @abstractmethod
    def withdraw(self, link: StoreAndForwardQueue) -> None:
        """Nothing more goes to a link's peer, as long as it is not described anew."""

    @abstractmethod
    def mark(self, link: StoreAndForwardQueue, gone: str) -> None:
        """A link's peer is gone: "away", or "left"; empty: it is there.  What it has is still known."""

    @abstractmethod
    def remove(self, link: StoreAndForwardQueue, number: int) -> None:
        """A queue of a link's peer is gone."""

    @abstractmethod
    def consumers(self, queue: str) -> int:
        """Consumers of a queue of this node; 0 if there is none."""


@attrs.frozen(kw_only=True)
class NodeControl:
    """Who the node is that a service belongs to.

    ``instance``: this life of it; ``store``: for as long as what it holds is known, so the same as ``instance`` in
    memory only; ``connectors``: URLs by name.
    """

    name: str
    node_id: bytes
    instance: bytes
    store: bytes
    connectors: Mapping[str, str]
    env: Env


@attrs.frozen(kw_only=True)
class LocalBroker:
    """An active broker, as its services see it.

    ``on_demand_changed``: register a callback for whenever a queue or its consumers have changed.  ``on_peer``: the
    same for whenever another node has linked to this one; it is told that node's id, and the URL where it says it is.
    ``say``: tell whoever watches the broker of a notification.  ``open_link``: a client's end of a new link to the
    broker.
    """

    control: NodeControl
    routes: RemoteBindings
    on_demand_changed: Callable[[Callable[[], None]], None]
    on_peer: Callable[[Callable[[bytes, str], None]], None]
    say: Callable[..., None]
    open_link: Callable[[], Any]


class Controllable(ABC):
    """A service that an operator can look at, pause and resume, from wherever operators are."""

    name: str

    @abstractmethod
    def statistics(self) -> BridgeStatistics:
        """What it is doing, and has done."""

    @abstractmethod
    def pause(self) -> None:
        """Do nothing more until ``resume``; twice is silent."""

    @abstractmethod
    def resume(self) -> None:
        """Go on; twice is silent."""


class Service(ABC):
    """Something that a broker is given, with two phases: known while the node is passive, served while it is active."""

    name: str

    @property
    def credentials(self) -> Mapping[str, Secret]:
        """Names and passwords of nodes that may connect to the broker as peers because of this service."""
        return {}

    def check_exposure(self, *, loopback: bool) -> None:
        """Where the broker listens: on this machine only, or not.  Raises: SettingsError: the service forbids it."""
        return

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """What is wrong with the connectors and URLs that the service is to use: with any of it no node starts."""
        return []

    def take_up(self, broker: LocalBroker) -> None:
        """The node is about to listen: what an earlier life knew holds from the first message on."""
        return

    @abstractmethod
    def announce(self, control: NodeControl) -> None:
        """The node has its identity.  Raises: SettingsError: the service does not fit the node."""

    @abstractmethod
    async def serve(self, broker: LocalBroker, *, task_status: TaskStatus[None]) -> None:
        """Serve until cancelled; reports started once it does.

        Whatever it raises ends the node, and leaves the broker's block as it was raised: the body is cancelled, the
        block raises that one error, in no group.  What must not end the node the service handles itself.

        It is cancelled first when the node stops.  What it shields from that is waited for, however long it takes:
        ``stop_timeout`` does not bound it.  So a shielded part has a bound of its own.

        Checkpoint: always.
        Cancellation: what the service holds for others stays where it is.
        """
