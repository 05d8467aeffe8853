"""The table of legal frames: which sender may send which frame in which state of a connection; for both sides.

A frame that is not in the table is illegal.  The error names the state, the sender and the frame.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from meshq.errors import LocalProtocolError
from meshq.wire._frames import FrameType
from meshq.wire._refusals import violation


class Sender(enum.Enum):
    """The sender of a frame.  A peer is another node's link; it may send frames that clients may not."""

    # Enum's own hash is a call in Python, for every look-up of every frame; members are compared by identity.
    if not TYPE_CHECKING:
        __hash__ = object.__hash__

    CLIENT = "client"
    PEER = "peer"
    SERVER = "server"


class ConnectionState(enum.Enum):
    """The state of one connection.

    - ``NEW``: nothing was said.
    - ``GREETING``: the client has said who it is; the server has yet to answer.
    - ``WELCOMED``: version and features are agreed; the client must authenticate.
    - ``AUTHENTICATING``: the server has to judge, or to ask for a proof.
    - ``CHALLENGED``: the client must prove that it knows its password.
    - ``PROVING``: the server has to judge the proof, and to give its own.
    - ``AUTHENTICATED``: the client is known; it must ask for a session, or only how the server is.
    - ``ATTACHING``: the server has yet to grant the session.
    - ``ATTACHED``: the session is open; numbered frames go both ways.
    - ``REPLICATING``: the client follows the log of the server.
    - ``PROBING``: the client asks only how the server is; when that is said, the connection ends.
    - ``CLOSED``: one side has said good-bye; nothing more is legal.
    """

    if not TYPE_CHECKING:
        __hash__ = object.__hash__

    NEW = "new"
    GREETING = "greeting"
    WELCOMED = "welcomed"
    AUTHENTICATING = "authenticating"
    CHALLENGED = "challenged"
    PROVING = "proving"
    AUTHENTICATED = "authenticated"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    REPLICATING = "replicating"
    PROBING = "probing"
    CLOSED = "closed"


_T = FrameType
_OPENERS: Final = (Sender.CLIENT, Sender.PEER)
_CLIENT_FRAMES: Final = (
    _T.PRODUCE, _T.SEND, _T.CONSUME, _T.SETTLE, _T.LEAVE, _T.CALL, _T.TRANSACT, _T.BLOCK, _T.READ,
)  # fmt: skip
_SERVER_FRAMES: Final = (
    _T.DELIVER, _T.CONFIRM, _T.REFUSE, _T.ANSWER, _T.CREDIT, _T.CONSUMER_LOST, _T.PIECE, _T.NODE,
)  # fmt: skip
_PEER_FRAMES: Final = (_T.LINK, _T.FORWARD, _T.BRANCH, _T.ADDRESS_CREDIT, _T.NODE)
_FOR_PEERS: Final = (_T.BINDING, _T.SNAPSHOT, _T.BRANCH, _T.ADDRESS_CREDIT)
_BOTH_FRAMES: Final = (_T.PING, _T.PONG, _T.RECEIVED)

SentFrame = tuple[Sender, FrameType]


def _openers(frame_type: FrameType, to: ConnectionState) -> dict[SentFrame, ConnectionState]:
    return {(sender, frame_type): to for sender in _OPENERS}


def _closing() -> dict[SentFrame, ConnectionState]:
    return {(sender, _T.CLOSE): ConnectionState.CLOSED for sender in Sender}


TRANSITIONS: Final[dict[ConnectionState, dict[SentFrame, ConnectionState]]] = {
    ConnectionState.NEW: {**_openers(_T.HELLO, ConnectionState.GREETING), **_closing()},
    ConnectionState.GREETING: {(Sender.SERVER, _T.WELCOME): ConnectionState.WELCOMED, **_closing()},
    ConnectionState.WELCOMED: {**_openers(_T.AUTHENTICATE, ConnectionState.AUTHENTICATING), **_closing()},
    ConnectionState.AUTHENTICATING: {
        (Sender.SERVER, _T.CHALLENGE): ConnectionState.CHALLENGED,
        (Sender.SERVER, _T.AUTHENTICATED): ConnectionState.AUTHENTICATED,
        **_closing(),
    },
    ConnectionState.CHALLENGED: {**_openers(_T.PROOF, ConnectionState.PROVING), **_closing()},
    ConnectionState.PROVING: {(Sender.SERVER, _T.AUTHENTICATED): ConnectionState.AUTHENTICATED, **_closing()},
    ConnectionState.AUTHENTICATED: {
        **_openers(_T.ATTACH, ConnectionState.ATTACHING),
        **_openers(_T.PROBE, ConnectionState.PROBING),
        (Sender.PEER, _T.REPLICATE): ConnectionState.REPLICATING,
        **_closing(),
    },
    ConnectionState.REPLICATING: {
        (Sender.SERVER, _T.LOG): ConnectionState.REPLICATING,
        (Sender.PEER, _T.LOGGED): ConnectionState.REPLICATING,
        **{
            (sender, frame): ConnectionState.REPLICATING
            for sender in (Sender.PEER, Sender.SERVER)
            for frame in (_T.PING, _T.PONG)
        },
        **_closing(),
    },
    ConnectionState.PROBING: {(Sender.SERVER, _T.PROBED): ConnectionState.PROBING, **_closing()},
    ConnectionState.ATTACHING: {(Sender.SERVER, _T.ATTACHED): ConnectionState.ATTACHED, **_closing()},
    ConnectionState.ATTACHED: {
        **{(sender, frame): ConnectionState.ATTACHED for sender in _OPENERS for frame in _CLIENT_FRAMES},
        **{(Sender.PEER, frame): ConnectionState.ATTACHED for frame in _PEER_FRAMES},
        **{(Sender.SERVER, frame): ConnectionState.ATTACHED for frame in (*_SERVER_FRAMES, *_FOR_PEERS)},
        **{(sender, frame): ConnectionState.ATTACHED for sender in Sender for frame in _BOTH_FRAMES},
        **_closing(),
    },
    ConnectionState.CLOSED: {},
}


class ConnectionMachine:
    """The state of one connection, moved by each frame that is sent or received."""

    __slots__ = ("_here", "_there", "state")

    def __init__(self, here: Sender, there: Sender) -> None:
        # Which sender this side is, and which one the other side is.
        self._here = here
        self._there = there
        #: The state now; only ``sending`` and ``received`` assign a state.
        self.state: ConnectionState = ConnectionState.NEW

    def meet(self, there: Sender) -> None:
        """Set the role of the other side, which its HELLO has named."""
        self._there = there

    def sending(self, frame_type: FrameType) -> None:
        """Check a frame that is about to be sent, and change the state.

        Raises:
            LocalProtocolError: the frame is not legal now; nothing changed.
        """
        state = TRANSITIONS[self.state].get((self._here, frame_type))
        if state is None:
            raise LocalProtocolError(f"{self._here.value} may not send {frame_type.name} in state {self.state.value}")
        self.state = state

    def received(self, frame_type: FrameType) -> None:
        """Check a frame that was received, and change the state.

        Raises:
            RemoteProtocolError: the frame is not legal now; nothing changed.
        """
        state = TRANSITIONS[self.state].get((self._there, frame_type))
        if state is None:
            raise violation(
                "illegal_frame",
                f"{frame_type.name} from the {self._there.value} in state {self.state.value}",
            )
        self.state = state

    def __repr__(self) -> str:
        return f"<ConnectionMachine {self._here.value} {self.state.value}>"
