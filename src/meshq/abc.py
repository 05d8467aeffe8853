"""Every interface between meshq and the outside world, each a contract.

Nothing in meshq opens a file or a socket, reads a wall clock, draws a random number or starts a thread but
through these.  Monotonic time is trio's own (``trio.current_time``).  ``meshq.env`` has the real
implementations; the testing kit has simulated ones that pass the same conformance suites.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

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
        """Write all buffers one after the other, starting at ``offset`` (bytes); short writes are continued."""

    @abstractmethod
    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    @abstractmethod
    def size(self) -> int:
        """Return the length of the file in bytes."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Cut the file to its first ``size`` bytes; durable with the next sync.  The file is at least that long."""

    @abstractmethod
    def sync(self) -> float:
        """Make every completed write durable; return the duration in seconds."""

    @abstractmethod
    def lock(self) -> bool:
        """Take the file's exclusive lock, kept until ``close``; False if another process has the lock."""

    @abstractmethod
    def close(self) -> None:
        """Close the file without a sync.  Closing twice is silent."""


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
        """Rename the file ``old`` to ``new``, replacing a file of that name."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """List the names in a directory, sorted; ``FileNotFoundError`` if the directory is missing."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory (mode 0700) and its missing parents; silent if it exists."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    @abstractmethod
    def mode(self, directory: str) -> int:
        """Return the permission bits of a directory, as for ``chmod``; ``FileNotFoundError`` if missing."""


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
        """Whether no other task of this loop can run now, so that a short blocking call in the loop delays no task."""


class Stream(ABC):
    """A byte stream to a peer; one task reads, one task sends at a time."""

    @abstractmethod
    def send_nowait(self, data: Buffer) -> int:
        """Take all of ``data``; return the number of bytes that wait to be sent.

        Raises:
            ConnectionBrokenError: the stream is broken or closed.
        """

    @abstractmethod
    async def flush(self) -> None:
        """Wait until all taken bytes are sent.

        Checkpoint: when bytes wait.  Cancellation: these bytes still wait.
        Raises: ConnectionBrokenError.
        """

    @abstractmethod
    async def receive(self, size_max: int) -> bytes:
        """Receive at least one and at most ``size_max`` bytes; ``b""`` when the peer has closed in an orderly way.

        Checkpoint: when nothing has arrived yet, and at least every 64th call.  Cancellation: nothing is lost.
        Raises: ConnectionBrokenError; SecurityError if the other side says under TLS that it does not believe us.
        """

    def gone(self) -> bool:
        """Whether the stream is known to be broken or ended by the peer, without reading the received bytes."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close at once: unsent bytes are dropped, ``flush`` and ``receive`` raise.  Closing twice is silent."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """The address of the peer, ``host:port``, for logs and errors."""

    @property
    def binding(self) -> bytes:
        """The SHA-256 of the server's certificate, the same at both ends; empty without TLS."""
        return b""

    @property
    def identities(self) -> tuple[str, ...]:
        """At a server: the names in the client's verified certificate, such as ``CN=app``."""
        return ()

    @property
    def server_name(self) -> str:
        """At a server under TLS: the host name that the client asked for (SNI), or empty."""
        return ""


class Listener(ABC):
    """A listening endpoint."""

    @abstractmethod
    async def accept(self) -> Stream:
        """Accept the next connection.  Checkpoint: always.  Cancellation: no connection is lost.
        Raises: ClosedError once closed; OSError if the system refuses for the moment (too many open files)."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port that is bound, also where port 0 was asked for."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening.  Closing twice is silent."""


class TlsSide(ABC):
    """One side of TLS connections, with certificates and keys that are loaded."""

    @abstractmethod
    async def wrap(self, stream: Stream, host: str | None = None) -> Stream:
        """Run the TLS handshake over ``stream`` and return an encrypted stream, which replaces and closes ``stream``.

        ``host``: at a client, the name that the certificate of the other side must have.

        Checkpoint: always.  Cancellation: ``stream`` is closed.
        Raises: SecurityError if one side does not believe the other, ConnectionBrokenError; ``stream`` is closed."""


class Tls(ABC):
    """TLS 1.3.  ``tls`` is ``meshq.TLS``, an ``ssl.SSLContext`` or, at a client, None."""

    @abstractmethod
    def server(self, tls: object) -> TlsSide:
        """Load the side of an acceptor.  Blocks while the files are read.
        Raises: SettingsError if they can't be used, or a context allows less than TLS 1.3."""

    @abstractmethod
    def client(self, tls: object) -> TlsSide:
        """Load the side that connects, which verifies the server's certificate.
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
    """The time of day, for timestamps and expiry only, never for intervals."""

    @abstractmethod
    def now_ms(self) -> int:
        """Return the milliseconds since 1970, UTC."""


class Entropy(ABC):
    """Randomness."""

    @abstractmethod
    def token(self, size: int) -> bytes:
        """Return ``size`` random bytes for secrets."""

    @abstractmethod
    def generator(self) -> random.Random:
        """Return a new generator for jitter and choices that need not be secret."""


def no_failpoint(name: str) -> bool:
    """Say False at every point: the default outside the simulation."""
    return False


@attrs.frozen(kw_only=True)
class Env:
    """The environment of one node or client: disk, threads, network, TLS, clocks, randomness."""

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
    #: The clock of loops that meshq starts in threads of their own; None: trio's own clock.
    clock: Clock | None = None
    #: Asked at named points; True takes the rare way there.  Constant False outside the simulation.
    failpoint: Callable[[str], bool] = no_failpoint
    #: In-process endpoints by name: ``inproc://name`` finds its broker here.  Whoever shares the dictionary
    #: shares the process.
    local: dict[str, Any] = attrs.field(factory=dict, repr=False)


# -- a broker, as its services see it


@attrs.frozen(kw_only=True)
class ForwardRun:
    """Messages of a store-and-forward queue, dispatched to the link that forwards them.

    ``tag``: what ``StoreAndForwardQueue.done`` is told, of the first message; they rise by one.  ``number``: in the
    queue, of the first message, which rises by ``step``; ``message``: its producer's number for it, which rises by
    ``step`` times ``stride``.  ``table`` and ``body`` are the messages as they were encoded; ``queues`` the numbers of
    the other node's queues that they are for; ``topic``: of a multicast address.  ``arrival``: when the first broker
    took them (its clock, ms); 0: that doesn't matter.  ``waited()``: how long ago that is, ms, whatever clocks show."""

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
    """A queue of another node, as described by that node.

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


class RemoteBindings(ABC):
    """The remote bindings of links: the queues of other nodes.  A link is named by its store-and-forward queue."""

    @abstractmethod
    def forwarding(self, name: str) -> StoreAndForwardQueue:
        """Return the store-and-forward queue of this name, created if missing."""

    @abstractmethod
    def replace(self, link: StoreAndForwardQueue, mode: str, queues: Sequence[RemoteQueue], store: bytes = b"") -> None:
        """Replace all bindings of a link's peer; ``mode``: off, strict or on_demand.  Messages that wait for another
        ``store`` of the peer go to the queues of the same names; empty: the peer doesn't say which store."""

    @abstractmethod
    def describe(self, link: StoreAndForwardQueue, mode: str, queue: RemoteQueue) -> None:
        """Add or update one queue of a link's peer."""

    @abstractmethod
    def met(self, link: StoreAndForwardQueue, connector: str) -> None:
        """Note the URL of a link's peer, which is kept over restarts with the peer's bindings."""

    @abstractmethod
    def former(self, prefix: str) -> Sequence[KnownPeer]:
        """List the nodes known before the restart whose store-and-forward queue's ``name`` begins with ``prefix``."""

    @abstractmethod
    def take_up(self, link: StoreAndForwardQueue, mode: str) -> None:
        """Restore the bindings of a node known before the restart, or forget a node that left with all its messages."""

    @abstractmethod
    def withdraw(self, link: StoreAndForwardQueue) -> None:
        """Remove the bindings of a link's peer, until ``replace`` or ``describe`` adds them again."""

    @abstractmethod
    def mark(self, link: StoreAndForwardQueue, gone: str) -> None:
        """Set the state of a link's peer: "away", "left", or empty if the peer is linked.  Its bindings stay."""

    @abstractmethod
    def remove(self, link: StoreAndForwardQueue, number: int) -> None:
        """Remove one queue of a link's peer."""

    @abstractmethod
    def consumers(self, queue: str) -> int:
        """Return the number of consumers of a queue of this node; 0 if the queue is missing."""


@attrs.frozen(kw_only=True)
class NodeControl:
    """The node that a service belongs to.

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
    """An active broker, with everything that its services may use.

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
    """A service that operators can inspect, pause and resume, in process and over a connection."""

    name: str

    @abstractmethod
    def statistics(self) -> BridgeStatistics:
        """Return the state and counters of the service."""

    @abstractmethod
    def pause(self) -> None:
        """Pause the service until ``resume``; twice is silent."""

    @abstractmethod
    def resume(self) -> None:
        """Resume the service; twice is silent."""


class Service(ABC):
    """A service of a broker, in two phases: announced while the node is passive, served while the node is active."""

    #: The kind of service, as a configuration file names it.  Services of one kind have different names.
    kind: ClassVar[str] = "service"
    name: str

    def conflict(self, other: Service) -> tuple[str, str] | None:
        """Compare the service with another one of its broker; return an event and a text for the log, or None."""
        return None

    @property
    def credentials(self) -> Mapping[str, Secret]:
        """The names and passwords with which nodes may connect to the broker as peers of this service."""
        return {}

    def check_exposure(self, *, loopback: bool) -> None:
        """Check where the broker listens: on loopback or not.  Raises: SettingsError: the service forbids it."""
        return

    def wrong_connectors(self, connectors: Mapping[str, str], env: Env) -> list[SettingsError]:
        """Return the errors of the connectors and URLs that the service uses; a node with errors does not start."""
        return []

    def take_up(self, broker: LocalBroker) -> None:
        """Restore the state of the service from before the restart; called before the node listens."""
        return

    @abstractmethod
    def announce(self, control: NodeControl) -> None:
        """Learn the identity of the node.  Raises: SettingsError: the service does not fit the node."""

    @abstractmethod
    async def serve(self, broker: LocalBroker, *, task_status: TaskStatus[None]) -> None:
        """Serve until cancelled; report started once the service runs.

        Whatever it raises ends the node, and leaves the broker's block as it was raised: the body is cancelled, the
        block raises that one error, in no group.  What must not end the node the service handles itself.

        It is cancelled first when the node stops.  What it shields from that is waited for, however long it takes:
        ``stop_timeout`` does not bound it.  So a shielded part has a bound of its own.

        Checkpoint: always.
        Cancellation: what the service holds for others stays where it is.
        """
