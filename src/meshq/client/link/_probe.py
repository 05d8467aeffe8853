"""A probe of a broker: a connection that logs in, asks how the broker is, and leaves no trace there."""

from __future__ import annotations

import attrs
import trio

from meshq import limits
from meshq.client.link._backlog_writer import BacklogWriter
from meshq.client.link._connector import ConnectTarget
from meshq.client.link._handshake import Handshake, HandshakeOwner, HandshakeUser
from meshq.client.link._link_end import closed_by
from meshq.client.link._login import Login
from meshq.client.session._session import LinkOwner
from meshq.concurrency import Completion, first_error
from meshq.errors import ConnectionBrokenError, MeshqError, RemoteProtocolError, UsageError, caused
from meshq.wire import REDIRECT, Attached, Close, Frame, Link, Probe, Probed, StreamLink, Welcome, violation


@attrs.frozen(kw_only=True)
class ProbedBroker:
    """The answer of a broker that serves clients.  ``connections``: how many clients it has."""

    node_id: bytes
    node_name: str
    connections: int


class BrokerProbe(HandshakeUser, HandshakeOwner):
    """A single probe of the broker at a target, with a login."""

    def __init__(self, target: ConnectTarget, login: Login, label: str) -> None:
        self._target = target
        self._login = login
        self._label = label
        self._done = Completion()
        self._peer = ""

    async def ask(self) -> ProbedBroker:
        """Connect, log in, ask, and close the connection.

        Checkpoint: always.  Cancellation: the connection is closed.
        Raises:
            MeshqError: the broker can't be reached, does not let the prober in, or serves no clients now.
        """
        link = await self._target.open()
        self._peer = link.peer
        writer = BacklogWriter()
        try:
            Handshake(link, self, self._label, self._login, self, writer=writer).start()
            if isinstance(link, StreamLink):
                await self._attend(link, writer)
            found: ProbedBroker | MeshqError = await self._done.wait()
        finally:
            link.close()
        if isinstance(found, MeshqError):
            raise found
        return found

    async def _attend(self, link: StreamLink, writer: BacklogWriter) -> None:
        try:
            async with trio.open_nursery() as nursery:
                writer.begin(link.stream, nursery)
                try:
                    while not self._done.done:
                        data = await link.stream.receive(limits.RECEIVE_BYTES)
                        if not data:
                            self.broke_off()
                        else:
                            link.feed(data)
                except RemoteProtocolError as error:
                    self.peer_violated(error)
                finally:
                    writer.end()
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            only = first_error(group)
            raise only from only.__cause__

    # -- what the broker says

    def request(self, node_id: bytes) -> Probe:
        """Make the question."""
        return Probe()

    def probed(self, welcome: Welcome | None, probed: Probed) -> None:
        """Take the answer."""
        assert welcome is not None
        self._done.succeed(
            ProbedBroker(node_id=welcome.node_id, node_name=welcome.node_name, connections=probed.connections)
        )

    def greeted(self, welcome: Welcome) -> None:
        """Check that the broker knows probes.

        Raises:
            RemoteProtocolError: it is too old.
        """
        if REDIRECT not in welcome.features:
            raise violation("no_common_version", f"{welcome.node_name} is older than balancers, and can't be probed")

    def wants(self, attached: Attached) -> bool:
        """Return True: ``attach`` refuses the session."""
        return True

    def unwanted(self) -> None:
        """Do nothing: a probe refuses no session."""

    def attach(self, link: Link, attached: Attached, node_id: bytes, owner: LinkOwner) -> None:
        """Refuse a session, because a probe asks for none."""
        raise violation("illegal_frame", "ATTACHED where nothing but a probe was asked for")

    def handle(self, frames: list[Frame]) -> None:
        """Take no frame behind the answer."""

    def attached(self, welcome: Welcome, attached: Attached) -> None:
        """Do nothing: no session is asked for."""

    def peer_closed(self, close: Close) -> None:
        """Note that the broker refuses, and why."""
        self._done.succeed(closed_by(self._peer, close).error)

    def peer_violated(self, error: MeshqError) -> None:
        """Note that the broker is not believed, or breaks the protocol."""
        self._done.succeed(error)

    def broke_off(self) -> None:
        """Note that the broker has ended the connection without a word."""
        error = ConnectionBrokenError(f"{self._peer} has ended the connection without an answer")
        self._done.succeed(caused(error, EOFError("the stream has ended")))


def same_node(error: MeshqError) -> bool:
    """Return whether a node has reached itself."""
    return isinstance(error, UsageError) and error.refusal == "same_node"
