"""One connection at the broker: the handshake, and then the frames of its session; no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

from meshq import limits
from meshq.broker.access._credentials import Credentials
from meshq.broker.core._core import Core
from meshq.broker.session._disk_space import must_wait
from meshq.broker.session._session import ServerSession, nobody
from meshq.broker.session._session_registry import SessionRegistry
from meshq.broker.work._fair_scheduler import ScheduledWork
from meshq.errors import MeshqError, RemoteProtocolError
from meshq.notifications import LoginRefused
from meshq.wire import (
    BY_NAME,
    MECHANISM_CERTIFICATE,
    MECHANISM_NONE,
    MECHANISM_SCRAM,
    NONCE_BYTES,
    Attach,
    Authenticate,
    Authenticated,
    Close,
    ConnectionMachine,
    ConnectionState,
    Frame,
    FrameType,
    HandshakeFrames,
    Header,
    Hello,
    Link,
    Proof,
    Role,
    Sender,
    ServerExchange,
    Welcome,
    agree,
    decline,
    header_of,
    is_own_nonce,
    refusal_of,
    violation,
)

#: What is sent against credit.
_CREDITED: Final = frozenset({FrameType.SEND, FrameType.FORWARD})
_HANDSHAKE: Final = frozenset({FrameType.HELLO, FrameType.AUTHENTICATE, FrameType.PROOF, FrameType.ATTACH})


@attrs.define(kw_only=True)
class ConnectionCounts:
    """Counts of a node's connections."""

    accepted: int = 0
    violations: int = 0
    #: Authentications that failed.
    denied: int = 0
    #: Connections that were not served, or ended before they had a session, because there were too many.
    turned_away: int = 0


class ServerConnection:
    """The server's side of one link.

    ``trusted``: clients need not say who they are: in process, and, without security, on the loopback device or
    where the operator has said that the acceptor is insecure.  Peers are taken at their word in process only.
    ``credentials``: what everybody else has to prove.
    ``on_closed`` is called once, when the link is of no more use.
    """

    def __init__(
        self,
        core: Core,
        sessions: SessionRegistry,
        link: Link,
        counts: ConnectionCounts,
        *,
        trusted: bool = True,
        credentials: Credentials | None = None,
    ) -> None:
        self._core = core
        self._sessions = sessions
        self._link = link
        self._counts = counts
        self._trusted = trusted
        self._credentials = credentials
        self._mechanisms: tuple[str, ...] = ()
        self._opening: HandshakeFrames | None = None
        self._exchange: ServerExchange | None = None
        #: What the other side is, "client" or "peer", and who; believed once ``authenticated``.
        self.role: Role = "client"
        self.user: str = ""
        #: Who is there is known, or need not be.
        self.authenticated: bool = False
        #: It tried to authenticate, and failed.
        self.denied: bool = False
        self._machine = ConnectionMachine(Sender.SERVER, Sender.CLIENT)
        self._label = ""
        self.session: ServerSession | None = None
        #: Seconds of silence after which the link is given up; known once attached.
        self.ttl: float = 0.0
        self.closed: bool = False
        # Larger frames may have to wait for room on the disk: one that does, with those behind it; and one whose
        # waiting is over.
        self._large_bytes = core.release_queue.large_bytes
        self._queued = core.release_queue.queued
        # Whatever sorts messages: while there is something, runs may have to be put to filters before.
        self._sieves = core.router.sieves
        self._asking: ScheduledWork | None = None
        self._deferred: list[Frame] = []
        # Their bytes: of those that were granted, and of the others.
        self._held_granted_bytes = self._held_bytes = 0
        #: Called when those that waited are taken in, or will not be.
        self.on_taken_in: Callable[[], None] = nobody
        self._answered: Frame | None = None
        self.on_closed: Callable[[], None] = nobody
        self.on_attached: Callable[[], None] = nobody
        link.on_frames = self.frames
        link.on_closed = self.lost
        counts.accepted += 1

    @property
    def attached(self) -> bool:
        """Whether the handshake is over."""
        return self._machine.state is ConnectionState.ATTACHED

    @property
    def phase(self) -> tuple[bool, bool, bool]:
        """The finished parts of the handshake: greeting, authentication, attachment.  Each part has its own timeout."""
        return self._opening is not None, self.authenticated, self.attached

    def frames(self, frames: list[Frame]) -> None:
        """A batch of frames has arrived."""
        try:
            if self._deferred:
                self._defer(frames)
                return
            for frame in frames:
                if self.closed or self._machine.state is ConnectionState.CLOSED:
                    # What the client had sent before it heard the good-bye.
                    return
                watched = frame.size_bytes > self._large_bytes or self._queued or self._sieves
                if watched and self._must_wait(frame):
                    self._defer(_from(frame, frames))
                    break
                self._one(frame)
        except RemoteProtocolError as error:
            self.violated(error)
        except MeshqError as error:
            self.refuse(error)
        if (
            self.session is not None
            and not self._link.lossless
            and self._core.settings.failpoint("broker.drop_connection")
        ):
            # Before anything of what these frames led to is said.
            self.lost()
        self._core.pending.run()
        if self.session is None and not self.closed:
            self._link.flush()

    def drained(self) -> None:
        """Nothing waits unsent any more."""
        if self.session is not None and self.session.link is self._link:
            self.session.drained()
            self._core.pending.run()

    def _must_wait(self, frame: Frame) -> bool:
        """Whether a frame, and all later ones, must wait for costly filters or for disk space.

        Raises:
            RemoteProtocolError: the frame can't be read.
        """
        session, costly = self.session, None
        if session is None:
            return False
        if self._sieves and frame.type is FrameType.SEND:
            costly = session.producers.costly(frame)
        elif self._sieves and frame.type is FrameType.FORWARD and session.peering is not None:
            costly = session.peering.costly(frame)
        if costly is not None:
            self._asking = self._core.pending.fair_scheduler.begin(session.owner, self, costly, self._judged)
            return True
        if frame is self._answered or (frame.size_bytes <= self._large_bytes and not self._queued):
            return False
        if frame.type is FrameType.FORWARD and session.peering is not None:
            session.peering.see(frame)
        return must_wait(self._core, frame, self._resume)

    def _judged(self) -> None:
        """Wait for disk space for the first deferred frame, after its filters were asked."""
        self._asking = None
        self.frames(self._release())
        self.on_taken_in()

    @property
    def crowded(self) -> bool:
        """Whether so much waits behind a frame that no more should be read."""
        return self._held_bytes > limits.HELD_BYTES_MAX

    def _defer(self, frames: list[Frame]) -> None:
        """Defer frames that wait for filters or for disk space.

        Raises:
            RemoteProtocolError: the client has sent more than its credit.
        """
        for frame in frames:
            if frame.type not in _CREDITED:
                self._held_bytes += frame.size_bytes + limits.HELD_FRAME_BYTES
            elif self.session is not None:
                self.session.check_credit(self._held_granted_bytes)
                self._held_granted_bytes += frame.size_bytes
            self._deferred.append(frame)

    def _release(self) -> list[Frame]:
        """Everything that has waited."""
        deferred, self._deferred = self._deferred, []
        self._held_granted_bytes = self._held_bytes = 0
        return deferred

    def _resume(self) -> None:
        """Handle the deferred frames: there is disk space for the first one, or none at all."""
        deferred = self._release()
        if deferred:
            # The connection is there still.
            self._answered = deferred[0]
            self.frames(deferred)
            self._answered = None
        self.on_taken_in()

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
        if frame.type is FrameType.HELLO:
            self._greet(frame)
        elif frame.type is FrameType.AUTHENTICATE:
            self._authenticate(header_of(frame, Authenticate))
        elif frame.type is FrameType.PROOF:
            assert self._exchange is not None
            self._admit(self._exchange.judge(header_of(frame, Proof)))
        else:
            self._attach(header_of(frame, Attach))

    def _greet(self, frame: Frame) -> None:
        hello, settings = header_of(frame, Hello), self._core.settings
        if hello.role == "peer":
            self.role = "peer"
            self._machine.meet(Sender.PEER)
        self._mechanisms = self._offered()
        if hello.role != self.role or (self.role == "peer" and not self._mechanisms):
            raise violation("role_not_served", f"role {hello.role!r}")
        version, features = agree(hello)
        self._label = hello.label
        welcome = Welcome(
            version=version,
            node_id=settings.node_id,
            node_name=settings.name,
            features=features,
            mechanisms=self._mechanisms,
        )
        said = Frame(FrameType.WELCOME, header=welcome.encode())
        self._opening = HandshakeFrames(self.role, frame, said, self._link.binding)
        self._machine.sending(said.type)
        self._link.send(said)

    def _offered(self) -> tuple[str, ...]:
        """How one may authenticate in the role that was said: by ``none``, a certificate, a proof, or not at all."""
        if self._trusted and (self.role == "client" or self._link.lossless):
            return (MECHANISM_NONE,)
        if self._credentials is None or not self._credentials.serves(self.role):
            return ()
        if self.role == "client" and self._link.identities and self._credentials.certified:
            return (MECHANISM_CERTIFICATE, MECHANISM_SCRAM)
        return (MECHANISM_SCRAM,)

    def _authenticate(self, begun: Authenticate) -> None:
        if begun.mechanism not in self._mechanisms:
            raise violation("unknown_mechanism", f"{begun.mechanism!r} is not offered here")
        if begun.mechanism == MECHANISM_NONE:
            self._admit(Authenticated())
            return
        assert self._credentials is not None and self._opening is not None
        if begun.mechanism == MECHANISM_CERTIFICATE:
            self.user = self._credentials.user_of(self._link.identities)
            self._admit(Authenticated())
            return
        settings = self._core.settings
        if self.role == "peer" and is_own_nonce(begun.nonce, settings.instance):
            # Whoever passes on what this node says would be taken for it.
            raise decline("same_node", f"{settings.name!r} was reached by itself")
        self.user = begun.user
        verifier, known = self._credentials.find(self.role, begun.user)
        nonce = settings.token(NONCE_BYTES)
        self._exchange = ServerExchange(self._opening, begun, verifier, nonce, known=known)
        self._reply(self._exchange.challenge)

    def _admit(self, answer: Authenticated) -> None:
        self.authenticated = True
        self._link.admit()
        self._reply(answer)

    def _attach(self, wanted: Attach) -> None:
        session, answer = self._sessions.attach(self._link, self._label, wanted, (self.role, self.user))
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
        if error.refusal == "not_authenticated":
            self.denied = True
            self._counts.denied += 1
            self._core.settings.host.warn(
                "login_refused", f"a {self.role} at {self._link.peer} could not show who it is"
            )
            self._core.settings.event_bus.emit(LoginRefused, role=self.role, peer=self._link.peer)
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
        if self._machine.state is not ConnectionState.CLOSED:
            self.send(FrameType.CLOSE, Close(code=code, text=text[:1024]).encode())
            self._release_session()
            self._link.flush()

    def taken_over(self) -> None:
        """The session goes on over another link."""
        session, self.session = self.session, None
        if session is not None:
            session.on_taken = nobody
            _forget_run(session)
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
        self._release_session()
        self._link.close()
        self.on_closed()
        self._core.pending.run()

    def _release_session(self) -> None:
        session, self.session = self.session, None
        if self._asking is not None:
            self._core.pending.fair_scheduler.cancel(self._asking)
            self._asking = None
        # What was not taken in comes again, if anybody does.
        deferred = self._release()
        if session is not None:
            session.on_taken = nobody
            _forget_run(session)
            if any(map(_is_good_bye, deferred)):
                # Whoever has said it does not come again.
                self._sessions.end(session)
            else:
                self._sessions.detached(session)


def _forget_run(session: ServerSession) -> None:
    """Forget the run that is being put to filters."""
    session.producers.forget()
    if session.peering is not None:
        session.peering.forget()


def _is_good_bye(frame: Frame) -> bool:
    """Whether a client ends its session with a frame."""
    if frame.type is not FrameType.CLOSE:
        return False
    try:
        return not header_of(frame, Close).code
    except RemoteProtocolError:
        return False


def _from(frame: Frame, frames: list[Frame]) -> list[Frame]:
    """This frame and those behind it."""
    return frames[next(index for index, one in enumerate(frames) if one is frame) :]
