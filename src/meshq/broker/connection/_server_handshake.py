"""The server's part of a handshake: the role of the other side, and the proof of its user."""

from __future__ import annotations

from meshq.broker.access._credentials import Credentials
from meshq.broker.connection._handshake_life import HANDSHAKE_TRANSITIONS
from meshq.broker.core._core import CoreSettings
from meshq.lifecycle import LifeCycle
from meshq.wire import (
    MECHANISM_CERTIFICATE,
    MECHANISM_NONE,
    MECHANISM_SCRAM,
    NONCE_BYTES,
    TOPOLOGY,
    Authenticate,
    Authenticated,
    Frame,
    FrameType,
    HandshakeFrames,
    Header,
    Hello,
    Link,
    Proof,
    Role,
    ServerExchange,
    Welcome,
    agree,
    decline,
    is_own_nonce,
    violation,
)


class ServerHandshake:
    """The handshake of one connection.

    ``trusted``: clients need not say who they are: in process, and, without security, on the loopback device or
    where the operator has said that the acceptor is insecure.  Peers are taken at their word in process only.
    ``credentials``: what everybody else has to prove.  ``tells``: clients may be told of other nodes.
    """

    def __init__(
        self,
        settings: CoreSettings,
        link: Link,
        *,
        trusted: bool,
        credentials: Credentials | None,
        tells: bool = True,
    ) -> None:
        self._settings = settings
        self._link = link
        self._trusted = trusted
        self._credentials = credentials
        self._tells = tells
        #: The phase: "new", "greeted", "authenticated", "attached" or "denied".
        self.life: LifeCycle = LifeCycle("handshake", HANDSHAKE_TRANSITIONS)
        #: What the other side is, "client" or "peer", and who; believed once ``authenticated``.
        self.role: Role = "client"
        self.user: str = ""
        self.label: str = ""
        #: What both sides understand beyond what all do.
        self.features: tuple[str, ...] = ()
        self._mechanisms: tuple[str, ...] = ()
        self._frames: HandshakeFrames | None = None
        self._exchange: ServerExchange | None = None

    @property
    def authenticated(self) -> bool:
        """Whether the user of the other side is known, or need not be."""
        return self.life.state in ("authenticated", "attached")

    @property
    def denied(self) -> bool:
        """Whether the other side tried to authenticate, and failed."""
        return self.life.state == "denied"

    def greet(self, frame: Frame, hello: Hello) -> Frame:
        """Return the WELCOME for a HELLO.

        Raises:
            MeshqError: the role is not served here, or no version that the other side speaks.
        """
        if hello.role == "peer":
            self.role = "peer"
        self._mechanisms = self._offered()
        if hello.role != self.role or (self.role == "peer" and not self._mechanisms):
            raise violation("role_not_served", f"role {hello.role!r}")
        version, features = agree(hello)
        kept = self._tells or self.role == "peer"
        self.features = tuple(feature for feature in features if kept or feature != TOPOLOGY)
        self.label = hello.label
        welcome = Welcome(
            version=version,
            node_id=self._settings.node_id,
            node_name=self._settings.name,
            features=self.features,
            mechanisms=self._mechanisms,
        )
        said = Frame(FrameType.WELCOME, header=welcome.encode())
        self._frames = HandshakeFrames(self.role, frame, said, self._link.binding)
        self.life.on("greet")
        return said

    def _offered(self) -> tuple[str, ...]:
        """How one may authenticate in the role that was said: by ``none``, a certificate, a proof, or not at all."""
        if self._trusted and (self.role == "client" or self._link.lossless):
            return (MECHANISM_NONE,)
        if self._credentials is None or not self._credentials.serves(self.role):
            return ()
        if self.role == "client" and self._link.identities and self._credentials.certified:
            return (MECHANISM_CERTIFICATE, MECHANISM_SCRAM)
        return (MECHANISM_SCRAM,)

    def authenticate(self, begun: Authenticate) -> Header:
        """Return the answer to AUTHENTICATE: a challenge, or that the other side is admitted.

        Raises:
            SecurityError: a certificate stands for no user.
            RemoteProtocolError: the mechanism is not offered.
        """
        if begun.mechanism not in self._mechanisms:
            raise violation("unknown_mechanism", f"{begun.mechanism!r} is not offered here")
        if begun.mechanism == MECHANISM_NONE:
            return self._admit(Authenticated())
        assert self._credentials is not None and self._frames is not None
        if begun.mechanism == MECHANISM_CERTIFICATE:
            self.user = self._credentials.user_of(self._link.identities)
            return self._admit(Authenticated())
        settings = self._settings
        if self.role == "peer" and is_own_nonce(begun.nonce, settings.instance):
            # Whoever passes on what this node says would be taken for it.
            raise decline("same_node", f"{settings.name!r} was reached by itself")
        self.user = begun.user
        verifier, known = self._credentials.find(self.role, begun.user)
        nonce = settings.token(NONCE_BYTES)
        self._exchange = ServerExchange(self._frames, begun, verifier, nonce, known=known)
        return self._exchange.challenge

    def judge(self, proof: Proof) -> Header:
        """Return the answer to a PROOF: the other side is admitted.

        Raises:
            SecurityError: the proof is wrong.
        """
        assert self._exchange is not None
        return self._admit(self._exchange.judge(proof))

    def _admit(self, answer: Authenticated) -> Authenticated:
        self.life.on("admit")
        self._link.admit()
        return answer
