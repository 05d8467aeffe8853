"""The acceptor of ``inproc://``: links without a socket for clients in this process, served in the sender's turn."""

from __future__ import annotations

import trio

from meshq.abc import TermGuard
from meshq.broker import LinkServer, ServerConnection
from meshq.errors import ClosedError, ConnectionBrokenError, UsageError
from meshq.node.terms._guarded_links import GuardedLink
from meshq.wire import BY_NAME, DirectLink, Link


class InprocAcceptor:
    """Opens links to a broker in the same process.  ``inproc://NAME`` finds it in ``env.local``."""

    def __init__(self, name: str, links: LinkServer, guard: TermGuard | None = None) -> None:
        self._name = name
        # The bounds of the node's term; None: there are none.
        self._guard = guard
        self._links = links
        self._open: dict[ServerConnection, None] = {}
        self._closed = False
        # The event loop that the broker runs in.
        self._loop = trio.lowlevel.current_trio_token()

    def connect_local(self, label: str) -> Link:
        """A new link; the client's end.

        Raises:
            ConnectionBrokenError: the broker has stopped; outcome not done.
            UsageError: the broker runs in another event loop of this process.
        """
        if self._closed:
            raise ConnectionBrokenError(f"the broker {self._name!r} has stopped", outcome="not_done") from ClosedError(
                "it takes no links any more"
            )
        if trio.lowlevel.current_trio_token() is not self._loop:
            # A link within the process is a call, and two threads would be in the broker at once.
            raise UsageError(f"the broker {self._name!r} runs in another thread: connect to one of its acceptors")
        here, there = DirectLink.pair(label or "in process", f"inproc://{self._name}")
        end: Link = there if self._guard is None else GuardedLink(there, self._guard)
        server = self._links.serve(end, self, trusted=True)
        self._open[server] = None
        return here

    def attached(self, connection: ServerConnection) -> None:
        """Do nothing: a handshake within the process has no deadline."""

    def routing(self, connection: ServerConnection) -> None:
        """Do nothing: no balancer decides about links within the process."""

    def taken_in(self, connection: ServerConnection) -> None:
        """Do nothing: frames of a direct link come when the client sends, and no reader waits."""

    def pinged(self, connection: ServerConnection) -> None:
        """Do nothing: within the process a client is never silent."""

    def backlogged(self, connection: ServerConnection) -> None:
        """Do nothing: a direct link hands over everything at once."""

    def closed(self, connection: ServerConnection) -> None:
        """Forget a link that is of no more use."""
        self._open.pop(connection, None)

    @property
    def connections(self) -> list[ServerConnection]:
        """The open links."""
        return list(self._open)

    def close(self, refusal: str, text: str, *, goodbye: bool = True) -> None:
        """End every link, and open no more.  Without ``goodbye`` other nodes are told nothing, as after a crash."""
        self._closed = True
        for server in self.connections:
            if goodbye or server.handshake.role != "peer":
                server.say_close(BY_NAME[refusal].number, text)
            server.lost()
