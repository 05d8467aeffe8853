"""A connection at the broker: the handshake, and then the frames of its session; no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

import attrs

from meshq.abc import Accept, AdmissionDecision, Redirect, Redirector, RoleBoard
from meshq.broker.access._credentials import Credentials
from meshq.broker.connection._deferred_frames import DeferredFrames
from meshq.broker.connection._replica_line import ReplicaConnection
from meshq.broker.connection._server_handshake import ServerHandshake
from meshq.broker.core._core import Core
from meshq.broker.session._disk_space import DiskSpace
from meshq.broker.session._session import ServerSession
from meshq.broker.session._session_registry import SessionRegistry
from meshq.errors import MeshqError, RemoteProtocolError
from meshq.notifications import LoginRefused
from meshq.wire import (
    BY_NAME,
    BY_NUMBER,
    REDIRECT,
    Attach,
    Authenticate,
    Close,
    ConnectionMachine,
    ConnectionState,
    Frame,
    FrameType,
    Header,
    Hello,
    Link,
    Probed,
    Proof,
    Replicate,
    Sender,
    decline,
    header_of,
    refusal_of,
    violation,
)

#: Refusals of a node that hands over what it has: the client is told to whom.
_SENT_AWAY: Final = frozenset({"not_active", "stopping"})
#: After these a replica has everything.
_IN_ORDER: Final = tuple(BY_NAME[name] for name in sorted(_SENT_AWAY))
_HANDSHAKE: Final = frozenset(
    {FrameType.HELLO, FrameType.AUTHENTICATE, FrameType.PROOF, FrameType.ATTACH, FrameType.PROBE, FrameType.REPLICATE}
)


@attrs.define(kw_only=True)
class ConnectionCounts:
    """Counts of a node's connections."""

    accepted: int = 0
    violations: int = 0
    #: Authentications that failed.
    denied: int = 0
    #: Connections that were not served, or ended before they had a session, because there were too many.
    turned_away: int = 0


class ConnectionOwner(Protocol):
    """The owner of a connection, which is told of its life."""

    def attached(self, connection: ServerConnection) -> None:
        """Note that the connection has a session."""

    def routing(self, connection: ServerConnection) -> None:
        """Note that a balancer decides about the connection, which may take a while."""

    def taken_in(self, connection: ServerConnection) -> None:
        """Note that the deferred frames were handled, or will not be."""

    def pinged(self, connection: ServerConnection) -> None:
        """Note that the other side has asked for a sign of life, and has one."""

    def backlogged(self, connection: ServerConnection) -> None:
        """Note that bytes wait unsent."""

    def closed(self, connection: ServerConnection) -> None:
        """Note that the link is of no more use.  Called once."""


class ServerConnection:
    """The server's side of one link.  ``trusted`` and ``credentials``: as of ``ServerHandshake``.

    ``redirector``: the balancer that decides about its client; None: none does, and the client stays.  ``board``: says
    who may follow the log of the node.
    """

    def __init__(
        self,
        core: Core,
        sessions: SessionRegistry,
        link: Link,
        watcher: ConnectionOwner,
        counts: ConnectionCounts,
        *,
        trusted: bool = True,
        credentials: Credentials | None = None,
        redirector: Redirector | None = None,
        board: RoleBoard | None = None,
    ) -> None:
        self._board = board
        # The other side follows the log of this node; None: it does not.
        self._replica: ReplicaConnection | None = None
        self._pending = core.pending
        self._memory = core.memory
        self._event_bus = core.settings.event_bus
        self._settings = core.settings
        self._failpoint = core.settings.failpoint
        self._warn = core.settings.host.warn
        self._sessions = sessions
        self._link = link
        self._watcher = watcher
        self._counts = counts
        self._machine = ConnectionMachine(Sender.SERVER, Sender.CLIENT)
        #: What the other side is, and how far its handshake has come.
        self.handshake: ServerHandshake = ServerHandshake(
            core.settings, link, trusted=trusted, credentials=credentials, tells=redirector is None
        )
        self.deferred: DeferredFrames = DeferredFrames(
            DiskSpace(core.release_queue, core.router),
            core.release_queue.queued,
            core.router.sieves,
            core.pending.fair_scheduler,
            handle=self.frames,
            taken_in=partial(watcher.taken_in, self),
        )
        self.session: ServerSession | None = None
        self._redirector = redirector
        # Withdraws the question, while a balancer decides.
        self._withdraw: Callable[[], None] | None = None
        #: Seconds of silence after which the link is given up; known once attached.
        self.ttl: float = 0.0
        #: Whether the link is of no more use.
        self.closed: bool = False
        link.start(self)
        counts.accepted += 1

    @property
    def attached(self) -> bool:
        """Whether the handshake is over."""
        return self._machine.state in (ConnectionState.ATTACHED, ConnectionState.REPLICATING)

    def frames(self, frames: list[Frame]) -> None:
        """A batch of frames has arrived."""
        deferred = self.deferred
        try:
            if deferred.frames:
                deferred.defer(frames, self.session)
                return
            for frame in frames:
                if self.closed or self._machine.state is ConnectionState.CLOSED:
                    # What the client had sent before it heard the good-bye.
                    return
                watched = frame.size_bytes > deferred.large_bytes or deferred.queued or deferred.sieves
                if watched and deferred.must_wait(frame, self.session):
                    deferred.defer(_from(frame, frames), self.session)
                    break
                self._one(frame)
        except RemoteProtocolError as error:
            self.violated(error)
        except MeshqError as error:
            self.refuse(error)
        if self.session is not None and not self._link.lossless and self._failpoint("broker.drop_connection"):
            # Before anything of what these frames led to is said.
            self.lost()
        self._pending.run()
        if self.session is None and not self.closed:
            self._link.flush()

    def backlogged(self) -> None:
        """Tell the owner that bytes wait unsent."""
        self._watcher.backlogged(self)

    def drained(self) -> None:
        """Nothing waits unsent any more."""
        if self._replica is not None:
            self._replica.drained()
        if self.session is not None and self.session.stream.link is self._link:
            self.session.consumers.drained()
            self._pending.run()

    def _one(self, frame: Frame) -> None:
        self._machine.received(frame.type)
        session = self.session
        if self._replica is not None and frame.type is not FrameType.CLOSE:
            self._replica.take(frame)
            if frame.type is FrameType.PING:
                self._answer_ping()
        elif session is not None and frame.type >= FrameType.PRODUCE:
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
            session.heard(frame)
            if frame.type is FrameType.PING:
                self._answer_ping()
                self._link.flush()

    def _answer_ping(self) -> None:
        self.send(FrameType.PONG)
        self._watcher.pinged(self)

    def _shake(self, frame: Frame) -> None:
        if frame.type is FrameType.HELLO:
            self._greet(frame)
        elif frame.type is FrameType.AUTHENTICATE:
            self._reply(self.handshake.authenticate(header_of(frame, Authenticate)))
        elif frame.type is FrameType.PROOF:
            self._reply(self.handshake.judge(header_of(frame, Proof)))
        elif frame.type is FrameType.PROBE:
            self._probe()
        elif frame.type is FrameType.REPLICATE:
            self._follow(header_of(frame, Replicate))
        else:
            self._attach(header_of(frame, Attach))

    def _probe(self) -> None:
        """Say that the node serves clients, and how many, or why not; it is as if the connection had never been."""
        handshake = self.handshake
        self._counts.accepted -= 1
        self._sessions.check_served(self._link, handshake.label, (handshake.role, handshake.user))
        self._reply(Probed(connections=self._sessions.clients))
        self._link.flush()
        self._end()

    def _follow(self, wanted: Replicate) -> None:
        """Let another node follow the node's log, if the policy wants that, or have a vote of the node."""
        replica, board = ReplicaConnection(self._link, self._machine, self._end_with), self._board
        host = None if board is None else board.voter if wanted.votes else board.replicas
        self.ttl = replica.begin(host, wanted)
        self._replica = replica
        self.handshake.life.on("attach")
        self._watcher.attached(self)

    def _end_with(self, text: str) -> None:
        self.say_close(0, text)
        self._end()

    @property
    def routing(self) -> bool:
        """Whether a balancer decides about the connection."""
        return self._withdraw is not None

    def _greet(self, frame: Frame) -> None:
        hello = header_of(frame, Hello)
        if hello.role == "peer":
            self._machine.meet(Sender.PEER)
        said = self.handshake.greet(frame, hello)
        self._machine.sending(said.type)
        self._link.send(said)

    def _attach(self, wanted: Attach) -> None:
        """Grant a session, or ask the balancer of the acceptor about a client that has none here."""
        handshake, redirector = self.handshake, self._redirector
        owner = handshake.role, handshake.user
        if redirector is None or handshake.role == "peer" or self._sessions.resumes(wanted, owner):
            self._grant(wanted)
            return
        self._sessions.check_served(self._link, handshake.label, owner)
        facts = self._sessions.facts(self._link, handshake.label, owner, visited=wanted.visited)
        waits, answers = False, []

        def take(decision: AdmissionDecision) -> None:
            if waits:
                self._decided_later(wanted, decision)
            else:
                answers.append(decision)

        withdraw = redirector.route(facts, take)
        if answers:
            self._decided(wanted, answers[0])
            return
        waits, self._withdraw = True, withdraw
        self._watcher.routing(self)

    def _decided_later(self, wanted: Attach, decision: AdmissionDecision) -> None:
        """Take the decision of a balancer that has waited for its pool."""
        self._withdraw = None
        if self.closed or self._machine.state is ConnectionState.CLOSED:
            return
        try:
            self._decided(wanted, decision)
        except RemoteProtocolError as error:
            self.violated(error)
        except MeshqError as error:
            self.refuse(error)
        self._pending.run()
        if not self.closed:
            self._link.flush()

    def _decided(self, wanted: Attach, decision: AdmissionDecision) -> None:
        if isinstance(decision, Accept):
            self._grant(wanted)
        elif isinstance(decision, Redirect) and REDIRECT in self.handshake.features:
            entry = BY_NAME["use_another_server"]
            place: dict[str, Any] = {"node_id": self._settings.node_id, "target_place": decision.url}
            self._last_word(Close(code=entry.number, text=f"{entry.sentence}: {decision.url}"[:1024], **place))
            self._end()
        elif isinstance(decision, Redirect):
            raise decline("use_another_server", decision.url)
        else:
            raise decline(decision.refusal, decision.text)

    def _grant(self, wanted: Attach) -> None:
        handshake = self.handshake
        owner = handshake.role, handshake.user
        session, answer = self._sessions.attach(self._link, handshake.label, wanted, owner)
        if session.holder is not None:
            session.holder.taken_over()
        self._reply(answer)
        handshake.life.on("attach")
        self.session = session
        session.welcome(handshake.role, handshake.features)
        self.ttl = answer.ttl_ms / 1000
        session.attach(self._link, wanted.received if answer.resumed else 0, self)
        if not answer.resumed:
            self._memory.open(session.credit)
        self._watcher.attached(self)

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
        received = self.session.stream.incoming.last if self.session is not None else 0
        self._link.send(Frame(frame_type, header=header, received=received))

    def refuse(self, error: MeshqError) -> None:
        """Tell the client why, and end the connection; a violation ends the session, too."""
        if self.closed:
            return
        if error.refusal == "not_authenticated":
            role = self.handshake.role
            if self.handshake.life.state == "greeted":
                self.handshake.life.on("deny")
            self._counts.denied += 1
            self._warn("login_refused", f"a {role} at {self._link.peer} could not show who it is")
            self._event_bus.emit(LoginRefused, role=role, peer=self._link.peer)
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
            if self._replica is not None and BY_NUMBER.get(code) in _IN_ORDER:
                self._replica.leaving()
            close = Close(code=code, text=text[:1024])
            sent_away = BY_NUMBER.get(code) in _IN_ORDER
            if sent_away and self.handshake.authenticated and self.handshake.role == "client":
                close = self._directed(close)
            self._last_word(close)

    def _last_word(self, close: Close) -> None:
        self.send(FrameType.CLOSE, close.encode())
        self._release_session()
        self._link.flush()

    def _directed(self, close: Close) -> Close:
        """Add the target of this node's handover to a CLOSE, if there is one."""
        settings = self._settings
        target = settings.topologies.target
        if target is None:
            return close
        return attrs.evolve(
            close,
            node_id=settings.node_id,
            instance=settings.instance,
            target=target.node_id,
            target_name=target.name,
            target_place=target.place,
        )

    def taken_over(self) -> None:
        """The session goes on over another link."""
        session, self.session = self.session, None
        if session is not None:
            session.forget_judged()
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
        withdraw, self._withdraw = self._withdraw, None
        if withdraw is not None:
            withdraw()
        self._release_session()
        if self._replica is not None:
            self._replica.lost()
        self._link.close()
        self._watcher.closed(self)
        self._pending.run()

    def _release_session(self) -> None:
        session, self.session = self.session, None
        # What was not taken in comes again, if anybody does.
        deferred = self.deferred.drop()
        if session is not None:
            session.forget_judged()
            if any(map(_is_good_bye, deferred)):
                # Whoever has said it does not come again.
                self._sessions.end(session)
            else:
                self._sessions.detached(session)


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
