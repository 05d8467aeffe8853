"""A broker and its services, as they see each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import attrs

from meshq.abc._env import Env
from meshq.abc._groups import PinnedGroups
from meshq.abc._held import HeldQueues
from meshq.abc._links import PeerQueues, RemoteBindings, StrandedMessages
from meshq.abc._local import LocalAcceptor
from meshq.abc._questions import OwnAnswers
from meshq.abc._redirection import Redirectors
from meshq.abc._roles import RoleBoard
from meshq.abc._topology import Topologies
from meshq.abc._transfer import Transfer
from meshq.errors import SettingsError
from meshq.notifications import Notification
from meshq.settings import EncryptionKey, Secret
from meshq.statistics import BridgeStatistics

if TYPE_CHECKING:
    from trio import TaskStatus


@attrs.frozen(kw_only=True)
class NodeControl:
    """The node that a service belongs to.

    ``instance``: this life of it; ``store``: for as long as what it holds is known, so the same as ``instance`` in
    memory only; ``connectors``: URLs by name.  ``acceptors``: returns the URLs by which the acceptors are dialed, in
    their order; ports that the system chooses are 0 until the node listens.  ``data_dir``: the directory of the
    broker's store, as its settings name it; None: it is in memory only.  ``url``: returns the URL by which other nodes
    reach the node; empty: they do not.  ``wanted_id``: the id that the node must have; None: that of its store.
    ``board``: has the role of the node among those of its pair.  ``services``: those of the broker.
    ``encryption_keys``: those of its store.
    """

    name: str
    node_id: bytes
    instance: bytes
    store: bytes
    connectors: Mapping[str, str]
    env: Env
    acceptors: Callable[[], Sequence[str]] = tuple
    data_dir: str | None = None
    url: Callable[[], str] = str
    wanted_id: bytes | None = None
    board: RoleBoard = attrs.field(factory=RoleBoard, eq=False)
    services: Sequence[Service] = attrs.field(default=(), eq=False, repr=False)
    encryption_keys: Sequence[EncryptionKey] = attrs.field(default=(), eq=False, repr=False)


class Demand(ABC):
    """The demand for messages at a broker: its queues and their consumers, and the nodes that have linked to it."""

    @abstractmethod
    def watch(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` whenever a queue or its consumers have changed."""

    @abstractmethod
    def watch_peers(self, watcher: Callable[[bytes, str], None]) -> None:
        """Call ``watcher`` whenever another node has linked to the broker, with the id and the URL of that node."""

    @abstractmethod
    def count(self, queue: str | None, address: str | None) -> tuple[int, int]:
        """Return the number of queues of the broker, and the number of their consumers: of all queues that other nodes
        may see, or of a name or an address."""

    @abstractmethod
    def note_connector(self, name: str, settings: Sequence[str] | None) -> None:
        """Note those settings of a network connector that are set and belong on all connectors; None: it has ended."""

    @abstractmethod
    def kept(self, beginning: str) -> tuple[int, float | None]:
        """Return how many messages of topics wait here for another broker of the network, and for how many seconds the
        oldest of them has; None without any.  Who asks more often is told more exactly.
        ``beginning``: how the names of their subscriptions begin.
        """


class NotificationSink(Protocol):
    """A receiver of notifications for the watchers of the broker."""

    def emit(self, kind: type[Notification], **about: Any) -> None:
        """Notify all watchers; ``about``: the fields of the notification."""


@attrs.frozen(kw_only=True)
class LocalBroker:
    """An active broker, with everything that its services may use.

    ``acceptor``: opens links for clients of the broker.  ``services``: those of the broker, this one among them.
    """

    control: NodeControl
    acceptor: LocalAcceptor
    demand: Demand
    routes: RemoteBindings
    peers: PeerQueues
    stranded: StrandedMessages
    transfer: Transfer
    notifications: NotificationSink
    topologies: Topologies
    answers: OwnAnswers
    held: HeldQueues
    groups: PinnedGroups
    redirectors: Redirectors
    services: Sequence[Service]


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
    def needs(self) -> Sequence[Service]:
        """The other services that this service uses; its broker has them, too, each once."""
        return ()

    @property
    def credentials(self) -> Mapping[str, Secret]:
        """The names and passwords with which nodes may connect to the broker as peers of this service."""
        return {}

    def bridges(self) -> Sequence[BridgeStatistics]:
        """Return the statistics of the bridges that the service has made by itself, which operators can't pause."""
        return ()

    def check_exposure(self, *, loopback: bool) -> None:
        """Check where the broker listens: on loopback or not.  Raises: SettingsError: the service forbids it."""
        return

    def check_acceptors(self, urls: Sequence[str]) -> None:
        """Check the URLs of the broker's acceptors, in which ports may be 0.

        Raises:
            SettingsError: the service needs an acceptor that other machines can dial.
        """
        return

    def check_services(self, services: Sequence[Service]) -> None:
        """Check the other services of the broker.  Raises: SettingsError: one is missing that this service names."""
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
        A service that returns without the report ends the node, too, with a ``UsageError`` that names the service.

        It is cancelled first when the node stops.  What it shields from that is waited for, however long it takes:
        ``stop_timeout`` does not bound it.  So a shielded part has a bound of its own.

        Checkpoint: always.
        Cancellation: what the service holds for others stays where it is.
        """
