"""The handshake, as the client sees it: questions and their answers, strictly in turn; no waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from meshq.client.link._backlog_writer import BacklogWriter
from meshq.client.link._login import Login
from meshq.client.session._session import LinkOwner
from meshq.errors import RemoteProtocolError, SecurityError, UseAnotherServerError
from meshq.wire import (
    FEATURES,
    MECHANISM_SCRAM,
    PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN,
    Attached,
    Authenticate,
    Authenticated,
    Challenge,
    ClientExchange,
    Close,
    ConnectionMachine,
    Frame,
    FrameType,
    HandshakeFrames,
    Header,
    Hello,
    Link,
    Probed,
    Sender,
    Welcome,
    header_of,
    violation,
)


class HandshakeOwner(LinkOwner, Protocol):
    """The owner of a link, which is told how the handshake ends."""

    def attached(self, welcome: Welcome, attached: Attached) -> None:
        """Note that the session is attached, and the answers of the node."""

    def unwanted(self) -> None:
        """Note that the node has the client's session no more, and that no other one is wanted."""

    def probed(self, welcome: Welcome | None, probed: Probed) -> None:
        """Note the answer of a node that was only probed."""

    def broke_off(self) -> None:
        """Note that the other side has ended the link without a word."""


class HandshakeUser(Protocol):
    """The user of a handshake: makes the request after the login, and takes the frames after the handshake."""

    def greeted(self, welcome: Welcome) -> None:
        """Check the features of the node.

        Raises:
            RemoteProtocolError: one is missing, and the link ends.
        """

    def request(self, node_id: bytes) -> Header:
        """Make the request to a node that has let the client in.

        Raises:
            UseAnotherServerError: the node is not the one that is meant, and the link ends.
        """

    def wants(self, attached: Attached) -> bool:
        """Return whether the session that the node offers is the one that is wanted."""

    def attach(self, link: Link, attached: Attached, node_id: bytes, owner: LinkOwner) -> None:
        """Take a link over which the session goes on."""

    def handle(self, frames: list[Frame]) -> None:
        """Take the frames of the session."""


class Handshake:
    """A handshake on one link, and the receiver of that link: after the handshake the session takes the frames."""

    def __init__(
        self,
        link: Link,
        session: HandshakeUser,
        label: str,
        login: Login,
        owner: HandshakeOwner,
        *,
        writer: BacklogWriter,
    ) -> None:
        self._link = link
        #: The taker of received frames: the handshake, then the session.
        self.frames: Callable[[list[Frame]], None] = self._shake
        self._session = session
        self._owner = owner
        self._writer = writer
        self._label = label
        self._login = login
        here = Sender.PEER if login.role == "peer" else Sender.CLIENT
        self._machine = ConnectionMachine(here, Sender.SERVER)
        self._hello = Frame(FrameType.HELLO)
        self._welcome: Welcome | None = None
        # None: the node is taken at its word, as it takes us.
        self._exchange: ClientExchange | None = None
        # Whether the node has proved itself, as far as anything is to be proved.
        self._proved = False

    def start(self) -> None:
        """Say who we are."""
        self._link.start(self)
        hello = Hello(
            oldest=PROTOCOL_VERSION_MIN,
            newest=PROTOCOL_VERSION,
            role=self._login.role,
            label=self._label,
            features=FEATURES,
        )
        self._hello = self._say(hello)
        self._link.flush()

    def lost(self) -> None:
        """Tell the owner that the link has ended."""
        self._owner.broke_off()

    def backlogged(self) -> None:
        """Have the unsent bytes written."""
        self._writer.wake()

    def _shake(self, frames: list[Frame]) -> None:
        try:
            for index, frame in enumerate(frames):
                self._machine.received(frame.type)
                # What follows a log is counted from its first piece on.
                if (frame.number or frame.received) and frame.type is not FrameType.LOG:
                    raise violation("bad_number", f"{frame.type.name} has a number")
                if self._one(frame):
                    rest = frames[index + 1 :]
                    if rest:
                        self._session.handle(rest)
                    return
        except (RemoteProtocolError, SecurityError, UseAnotherServerError) as error:
            self._owner.peer_violated(error)
            return
        self._link.flush()

    def _one(self, frame: Frame) -> bool:
        """Take one frame; returns whether the session has the rest."""
        kind = frame.type
        if kind is FrameType.WELCOME:
            self._welcomed(frame)
        elif kind is FrameType.CHALLENGE:
            if self._exchange is None:
                raise violation("illegal_frame", "CHALLENGE where nothing is to be proved")
            self._say(self._login.prove(self._exchange, header_of(frame, Challenge)))
        elif kind is FrameType.AUTHENTICATED:
            assert self._welcome is not None
            authenticated = header_of(frame, Authenticated)
            if self._exchange is not None:
                self._exchange.check(authenticated)
            self._proved = True
            self._link.admit()
            self._say(self._session.request(self._welcome.node_id))
        elif kind is FrameType.ATTACHED:
            assert self._welcome is not None
            attached = header_of(frame, Attached)
            if not self._session.wants(attached):
                # The node keeps nothing for a client that has gone in peace.
                self._say(Close())
                self._link.flush()
                self._owner.unwanted()
                return True
            self.frames = self._session.handle
            self._session.attach(self._link, attached, self._welcome.node_id, self._owner)
            self._owner.attached(self._welcome, attached)
            return True
        elif kind in (FrameType.LOG, FrameType.PING, FrameType.PONG):
            # A node may give signs of life before its answer, which a disk may hold up.
            self.frames = self._session.handle
            self._session.handle([frame])
            return True
        elif kind is FrameType.PROBED:
            self._owner.probed(self._welcome, header_of(frame, Probed))
            return True
        else:
            close = header_of(frame, Close)
            self._owner.peer_closed(close if self._proved else attrs.evolve(close, target_place=""))
            return True
        return False

    def _welcomed(self, frame: Frame) -> None:
        self._welcome = welcome = header_of(frame, Welcome)
        if not PROTOCOL_VERSION_MIN <= welcome.version <= PROTOCOL_VERSION:
            raise violation("no_common_version", f"the node chose version {welcome.version}")
        self._session.greeted(welcome)
        login, link = self._login, self._link
        mechanism = login.choose(welcome.mechanisms, welcome.node_name, in_process=link.lossless)
        if mechanism != MECHANISM_SCRAM:
            # There is nothing to prove, or the certificate has proved it.
            self._say(Authenticate(mechanism=mechanism))
        else:
            self._exchange = login.begin(HandshakeFrames(login.role, self._hello, frame, link.binding))
            self._say(self._exchange.begin)

    def _say(self, header: Header) -> Frame:
        self._machine.sending(header.frame_type)
        frame = Frame(header.frame_type, header=header.encode())
        self._link.send(frame)
        return frame
