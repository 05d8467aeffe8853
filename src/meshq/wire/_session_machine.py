"""Which frame may come from whom in which state of a connection: a table, used by both sides.

Illegal is what the table lacks.  The error names the state, the sender and the frame.
"""

from __future__ import annotations

import enum
from typing import Final

from meshq.errors import LocalProtocolError
from meshq.wire._frames import FrameType
from meshq.wire._refusals import violation


class Sender(enum.Enum):
    """Who sends a frame.  A peer is another node's link; it may send what clients may not."""

    # Enum's own hash is a call in Python, for every look-up of every frame; members are compared by identity.
    __hash__ = object.__hash__

    CLIENT = "client"
    PEER = "peer"
    SERVER = "server"


class State(enum.Enum):
    """The state of one connection.

    - ``NEW``: nothing was said.
    - ``GREETING``: the client has said who it is; the server has yet to answer.
    - ``WELCOMED``: version and features are agreed; the client must authenticate.
    - ``AUTHENTICATING``: the server has to judge, or to ask for a proof.
    - ``CHALLENGED``: the client must prove that it knows its password.
    - ``PROVING``: the server has to judge the proof, and to give its own.
    - ``AUTHENTICATED``: the client is known; it must ask for a session.
    - ``ATTACHING``: the server has yet to grant the session.
    - ``ATTACHED``: the session is open; numbered frames go both ways.
    - ``CLOSED``: one side has said good-bye; nothing more is legal.
    """

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
    CLOSED = "closed"


_T = FrameType
_OPENERS: Final = (Sender.CLIENT, Sender.PEER)
_CLIENT_FRAMES: Final = (
    _T.PRODUCE, _T.SEND, _T.CONSUME, _T.SETTLE, _T.LEAVE, _T.CALL, _T.TRANSACT, _T.BLOCK, _T.READ,
)  # fmt: skip
_SERVER_FRAMES: Final = (_T.DELIVER, _T.CONFIRM, _T.REFUSE, _T.ANSWER, _T.CREDIT, _T.CONSUMER_LOST, _T.PIECE)
_PEER_FRAMES: Final = (_T.LINK, _T.FORWARD)
_FOR_PEERS: Final = (_T.BINDING, _T.SNAPSHOT)
_BOTH_FRAMES: Final = (_T.PING, _T.PONG, _T.RECEIVED)

Event = tuple[Sender, FrameType]


def _openers(frame_type: FrameType, to: State) -> dict[Event, State]:
    return {(sender, frame_type): to for sender in _OPENERS}


def _closing() -> dict[Event, State]:
    return {(sender, _T.CLOSE): State.CLOSED for sender in Sender}


TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.NEW: {**_openers(_T.HELLO, State.GREETING), **_closing()},
    State.GREETING: {(Sender.SERVER, _T.WELCOME): State.WELCOMED, **_closing()},
    State.WELCOMED: {**_openers(_T.AUTHENTICATE, State.AUTHENTICATING), **_closing()},
    State.AUTHENTICATING: {
        (Sender.SERVER, _T.CHALLENGE): State.CHALLENGED,
        (Sender.SERVER, _T.AUTHENTICATED): State.AUTHENTICATED,
        **_closing(),
    },
    State.CHALLENGED: {**_openers(_T.PROOF, State.PROVING), **_closing()},
    State.PROVING: {(Sender.SERVER, _T.AUTHENTICATED): State.AUTHENTICATED, **_closing()},
    State.AUTHENTICATED: {**_openers(_T.ATTACH, State.ATTACHING), **_closing()},
    State.ATTACHING: {(Sender.SERVER, _T.ATTACHED): State.ATTACHED, **_closing()},
    State.ATTACHED: {
        **{(sender, frame): State.ATTACHED for sender in _OPENERS for frame in _CLIENT_FRAMES},
        **{(Sender.PEER, frame): State.ATTACHED for frame in _PEER_FRAMES},
        **{(Sender.SERVER, frame): State.ATTACHED for frame in (*_SERVER_FRAMES, *_FOR_PEERS)},
        **{(sender, frame): State.ATTACHED for sender in Sender for frame in _BOTH_FRAMES},
        **_closing(),
    },
    State.CLOSED: {},
}


class ConnectionMachine:
    """The state of one connection, moved by each frame that is sent or received."""

    __slots__ = ("_here", "_state", "_there")

    def __init__(self, here: Sender, there: Sender) -> None:
        # Which sender this side is, and which one the other side is.
        self._here = here
        self._there = there
        self._state = State.NEW

    @property
    def state(self) -> State:
        """The state now."""
        return self._state

    def meet(self, there: Sender) -> None:
        """The other side has said in which role it speaks; from here on it is held to that."""
        self._there = there

    def sending(self, frame_type: FrameType) -> None:
        """A frame is about to go out.

        Raises:
            LocalProtocolError: it is not legal now; nothing changed.
        """
        state = TRANSITIONS[self._state].get((self._here, frame_type))
        if state is None:
            raise LocalProtocolError(f"{self._here.value} may not send {frame_type.name} in state {self._state.value}")
        self._state = state

    def received(self, frame_type: FrameType) -> None:
        """A frame has come in.

        Raises:
            RemoteProtocolError: it is not legal now; nothing changed.
        """
        state = TRANSITIONS[self._state].get((self._there, frame_type))
        if state is None:
            raise violation(
                "illegal_frame",
                f"{frame_type.name} from the {self._there.value} in state {self._state.value}",
            )
        self._state = state

    def __repr__(self) -> str:
        return f"<ConnectionMachine {self._here.value} {self._state.value}>"
