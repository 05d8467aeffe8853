"""A node that waits for its turn: reachable, with its store closed, and without a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import trio

from meshq import abc
from meshq.abc import Admission, AdmissionDecision, HandshakeFacts, NodeControl, Refuse, RoleBoard
from meshq.broker import (
    ConnectionCounts,
    Core,
    CoreSettings,
    Credentials,
    EventBus,
    LinkServer,
    Listeners,
    SessionRegistry,
    connection_bounds,
)
from meshq.endpoint import told_place
from meshq.errors import invariant
from meshq.ids import IDENTITY_BYTES
from meshq.logs import Warnings
from meshq.node._core_host import CoreHost, elapsed_ms
from meshq.node._inproc import InprocAcceptor
from meshq.node._scale_down import clusters_of
from meshq.node._settings import MEMORY_BYTES_MIN, BrokerSettings
from meshq.node.terms._node_term import NoOffice


@attrs.frozen
class WaitingAdmission(Admission):
    """The rule for connections of a node that waits: all are told that the node is not active."""

    name: str
    board: RoleBoard = attrs.field(factory=RoleBoard)

    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        """Refuse the connection; the same request may succeed later."""
        acting = self.board.report.acting
        where = f"; {acting.name!r} is active at {acting.url}" if acting is not None and acting.url else ""
        return Refuse("not_active", f"the broker {self.name!r} waits until it may be active{where}")


def waiting_control(
    settings: BrokerSettings,
    env: abc.Env,
    acceptors: Callable[[], Sequence[str]],
    board: RoleBoard,
    instance: bytes,
) -> NodeControl:
    """Return the node as it is known while its store is closed.

    ``acceptors``: returns the URLs by which its acceptors are dialed.  ``instance``: this life of the broker.
    """
    store = env.entropy.token(IDENTITY_BYTES)
    return NodeControl(
        name=settings.name,
        node_id=settings.node_id or env.entropy.token(IDENTITY_BYTES),
        instance=instance,
        store=store,
        connectors=settings.connectors,
        env=env,
        acceptors=acceptors,
        data_dir=settings.data_dir,
        url=lambda: told_url(settings, acceptors()),
        wanted_id=settings.node_id,
        board=board,
        services=settings.services,
        encryption_keys=settings.journal.encryption_keys,
    )


def told_url(settings: BrokerSettings, acceptors: Sequence[str]) -> str:
    """Return the URL by which other nodes reach a node, without options; empty: they do not."""
    for cluster in clusters_of(settings):
        connector = cluster.settings.connector
        if connector is not None:
            return told_place(settings.connectors.get(connector, ""))
    return told_place(next(iter(acceptors), ""))


class WaitingNode:
    """A node without a store and without queues, which listens at the acceptors of the broker.

    A connection is greeted and logs in as at an active node, and is then told that the node is not active.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        env: abc.Env,
        control: NodeControl,
        credentials: Credentials | None,
        event_bus: EventBus,
    ) -> None:
        self._settings = settings
        self._control = control
        # No client comes as far as asking for statistics.
        host = CoreHost(Warnings("node", trio.current_time), dict, NoOffice())
        core = Core(
            CoreSettings(
                name=settings.name,
                node_id=control.node_id,
                instance=control.instance,
                memory_limit_bytes=MEMORY_BYTES_MIN,
                address_settings={},
                security=settings.security,
                token=env.entropy.token,
                failpoint=env.failpoint,
                now_ms=env.wall.now_ms,
                elapsed_ms=elapsed_ms,
                event_bus=event_bus,
                host=host,
                page_requests=host.page_requests,
            ),
            None,
        )
        admission = WaitingAdmission(settings.name, control.board)
        sessions = SessionRegistry(
            core, trio.current_time, settings.max_session_ttl, detached=_no_session_is_there, admission=admission
        )
        bounds = connection_bounds(env.descriptors, settings.max_sessions_per_user)
        links = LinkServer(core, sessions, ConnectionCounts(), credentials, board=control.board)
        #: The acceptor for clients in this process.
        self.inproc: InprocAcceptor = InprocAcceptor(settings.name, links)
        #: The acceptors over the network.
        self.listeners: Listeners = Listeners(links, env.network, tls=env.tls, bounds=bounds)

    async def start(self, nursery: trio.Nursery) -> None:
        """Announce the services, and listen, with tasks in ``nursery``.

        Checkpoint: always.
        Cancellation: ``close`` gives back what was bound.
        Raises:
            ConnectionBrokenError: an acceptor can't be bound.
            SettingsError: a service does not fit the node.
        """
        for service in self._settings.services:
            service.announce(self._control)
        await self.listeners.listen(self._settings.acceptors, nursery)

    def close(self) -> None:
        """End every connection, and take no more."""
        self.listeners.close()
        self.inproc.close("not_active", "the node becomes active", goodbye=False)


def _no_session_is_there() -> None:
    """Fail: a waiting node admits no session, so no session is detached."""
    invariant(False, "a waiting node has no session")
