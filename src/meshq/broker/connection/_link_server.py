"""The broker's side of new links: in the process and over the network alike."""

from __future__ import annotations

from meshq.abc import RoleBoard
from meshq.broker.access._credentials import Credentials
from meshq.broker.connection._server_connection_machine import ConnectionCounts, ConnectionOwner, ServerConnection
from meshq.broker.core._core import Core
from meshq.broker.session._session_registry import SessionRegistry
from meshq.wire import Link


class LinkServer:
    """Makes the connection that serves a link.  ``credentials``: who may log in; None: no login is asked for.

    ``board``: says who may follow the log of the node; None: nobody may.

    Invariant: every connection of one node has the node's sessions, and is counted in ``counts``.
    """

    def __init__(
        self,
        core: Core,
        sessions: SessionRegistry,
        counts: ConnectionCounts,
        credentials: Credentials | None = None,
        *,
        board: RoleBoard | None = None,
    ) -> None:
        self._board = board
        self._core = core
        self._sessions = sessions
        self._credentials = credentials
        #: The counts of all connections.
        self.counts: ConnectionCounts = counts

    @property
    def asks_clients(self) -> bool:
        """Whether clients over the network have to log in."""
        return self._credentials is not None and self._credentials.serves("client")

    def serve(
        self, link: Link, owner: ConnectionOwner, *, trusted: bool, redirect_to: str | None = None
    ) -> ServerConnection:
        """Serve a new link.  ``trusted``: a client of the link needs no login; ``redirect_to``: the name of the
        balancer that decides where clients go."""
        redirector = self._core.settings.redirectors.get(redirect_to) if redirect_to is not None else None
        return ServerConnection(
            self._core,
            self._sessions,
            link,
            owner,
            self.counts,
            trusted=trusted,
            credentials=self._credentials,
            redirector=redirector,
            board=self._board,
        )

    def warn(self, subject: str, text: str) -> None:
        """Tell the operator something about connections."""
        self._core.settings.host.warn(subject, text)
