"""One connection at the broker: the handshake, and then the frames of its session; no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from meshq.broker._core import Core
from meshq.broker._session import Session, nobody
from meshq.broker._sessions import Sessions
from meshq.errors import MeshqError, RemoteProtocolError
from meshq.wire import (
    BY_NAME,
    MECHANISM_NONE,
    Attach,
    Authenticate,
    Authenticated,
    Close,
    ConnectionMachine,
    Frame,
    FrameType,
    Header,
    Hello,
    Link,
    Sender,
    State,
    Welcome,
    agree,
    header_of,
    refusal_of,
    violation,
)

_HANDSHAKE: Final = frozenset({FrameType.HELLO, FrameType.AUTHENTICATE, FrameType.ATTACH})


@attrs.define(kw_only=True)
class ConnectionCounts:
    """What a node's connections have come to."""

    accepted: int = 0
    violations: int = 0


class ServerConnection:
    """The server's side of one link.

    ``trusted``: the mechanism ``none`` is enough: in process, on the loopback device, or where the operator has
    said that the acceptor is insecure.
    ``on_closed`` is called once, when the link is of no more use.
    """

    def __init__(
        self, core: Core, sessions: Sessions, link: Link, counts: ConnectionCounts, *, trusted: bool = True
    ) -> None:
        self._core = core
        self._sessions = sessions
        self._link = link
        self._counts = counts
        self._trusted = trusted
        self._machine = ConnectionMachine(Sender.SERVER, Sender.CLIENT)
        self._label = ""
        #: What the other side is: ``client`` or ``peer``.
        self.role = "client"
        self.session: Session | None = None
        #: Seconds of silence after which the link is given up; known once attached.
        self.ttl = 0.0
        self.closed = False
        self.on_closed: Callable[[], None] = nobody
        self.on_attached: Callable[[], None] = nobody
        #: Frames received and sent: whoever looks from time to time sees silence by them.
        self.heard = 0
        link.on_frames = self.frames
        link.on_closed = self.lost
        counts.accepted += 1

    @property
    def attached(self) -> bool:
        """Whether the handshake is over."""
        return self._machine.state is State.ATTACHED

    def frames(self, frames: list[Frame]) -> None:
        """A batch of frames has arrived."""
        self.heard += 1
        try:
            for frame in frames:
                if self.closed or self._machine.state is State.CLOSED:
                    # What the client had sent before it heard the good-bye.
                    return
                self._one(frame)
        except RemoteProtocolError as error:
            self.violated(error)
        except MeshqError as error:
            self.refuse(error)
        if self.session is not None and not self._link.lossless and self._core.settings.chaos("broker.drop_connection"):
            # Before anything of what these frames led to is said.
            self.lost()
        self._core.turn()
        if self.session is None and not self.closed:
            self._link.flush()

    def _one(self, frame: Frame) -> None:
        self._machine.received(frame.type)
        session = self.session
        if session is not None and frame.type >= FrameType.PRODUCE:
            session.handle(frame)
        elif frame.type in _HANDSHAKE:
            if frame.number:
                raise violation("bad_number", f"{frame.type.name} has number {frame.number}")
            self._shake(frame)
        elif frame.type is FrameType.CLOSE:
            if frame.number:
                raise violation("bad_number", f"CLOSE has number {frame.number}")
            self._good_bye(header_of(frame, Close))
        elif session is not None:
            session.incoming.accept(frame)
            session.arrived(frame.received)
            if frame.type is FrameType.PING:
                self.send(FrameType.PONG)
                self._link.flush()

    def _shake(self, frame: Frame) -> None:
        core = self._core
        if frame.type is FrameType.HELLO:
            hello = header_of(frame, Hello)
            self._meet(hello)
            version, features = agree(hello)
            self._label = hello.label
            self._reply(
                Welcome(
                    version=version,
                    node_id=core.settings.node_id,
                    node_name=core.settings.name,
                    features=features,
                    mechanisms=(MECHANISM_NONE,) if self._trusted else (),
                )
            )
        elif frame.type is FrameType.AUTHENTICATE:
            chosen = header_of(frame, Authenticate)
            if chosen.mechanism != MECHANISM_NONE or not self._trusted:
                raise violation("unknown_mechanism", f"{chosen.mechanism!r} is not offered here")
            self._link.admit()
            self._reply(Authenticated())
        else:
            self._attach(header_of(frame, Attach))

    def _meet(self, hello: Hello) -> None:
        if hello.role == "peer":
            self.role = "peer"
            self._machine.meet(Sender.PEER)
        elif hello.role != "client":
            raise violation("role_not_served", f"role {hello.role!r}")

    def _attach(self, wanted: Attach) -> None:
        session, answer = self._sessions.attach(self._link, self._label, wanted)
        session.on_taken()
        self._reply(answer)
        self.session = session
        if self.role == "peer":
            session.welcome_peer()
        session.on_taken = self.taken_over
        self.ttl = answer.ttl_ms / 1000
        session.attach(self._link, wanted.received if answer.resumed else 0)
        if not answer.resumed:
            self._core.memory.open(session)
        self.on_attached()

    def _good_bye(self, close: Close) -> None:
        session = self.session
        if session is not None and close.code == 0:
            self._sessions.end(session)
            self.session = None
        self._end()

    def _reply(self, header: Header) -> None:
        self.send(header.frame_type, header.encode())

    def send(self, frame_type: FrameType, header: bytes = b"") -> None:
        """Put an unnumbered frame in line."""
        self._machine.sending(frame_type)
        received = self.session.incoming.last if self.session is not None else 0
        self._link.send(Frame(frame_type, header=header, received=received))

    def refuse(self, error: MeshqError) -> None:
        """Tell the client why, and end the connection; a violation ends the session, too."""
        if self.closed:
            return
        session = self.session
        if session is not None and isinstance(error, RemoteProtocolError):
            self._sessions.end(session)
            self.session = None
        self.say_close(refusal_of(error).number, str(error))
        self._end()

    def violated(self, error: RemoteProtocolError) -> None:
        """The client broke the protocol: tell it how, and end the connection and its session."""
        self._counts.violations += issubclass(refusal_of(error).error, RemoteProtocolError)
        self.refuse(error)

    def cut_off(self, error: RemoteProtocolError) -> None:
        """The stream has ended inside a frame.

        That is how it looks when a client dies while it sends, and when it gives up a link with bytes in line: no rule
        is broken, and it may come back for its session.  It is told all the same: it may have stopped sending only.
        """
        if not self.closed:
            self.say_close(refusal_of(error).number, str(error))
            self._end()

    def say_close(self, code: int, text: str) -> None:
        """Put the last frame in line; the session says nothing more over this link."""
        if self._machine.state is not State.CLOSED:
            self.send(FrameType.CLOSE, Close(code=code, text=text[:1024]).encode())
            self._let_go()
            self._link.flush()

    def taken_over(self) -> None:
        """The session goes on over another link."""
        session, self.session = self.session, None
        if session is not None:
            session.on_taken = nobody
            session.detach()
        entry = BY_NAME["session_taken"]
        self.say_close(entry.number, entry.sentence)
        self._end()

    def lost(self) -> None:
        """The link is gone; the session waits for its client."""
        if not self.closed:
            self._end()

    def _end(self) -> None:
        self.closed = True
        self._let_go()
        self._link.close()
        self.on_closed()
        self._core.turn()

    def _let_go(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.on_taken = nobody
            self._sessions.detached(session)
