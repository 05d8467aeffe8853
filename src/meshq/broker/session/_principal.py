"""The client or peer that a session belongs to: its user, rights and temporary queues."""

from __future__ import annotations

from meshq.broker.access._access import Rights
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.session._session_stream import SessionStream
from meshq.lifecycle import LifeCycle


class Principal:
    """The client or peer of one session, as checks of permissions, management and errors know a session."""

    __slots__ = ("_life", "_stream", "label", "node", "number", "owned", "owner", "rights")

    def __init__(
        self,
        number: int,
        stream: SessionStream,
        life: LifeCycle,
        *,
        label: str,
        owner: tuple[str, str],
        rights: Rights | None,
    ) -> None:
        #: The number of the session.
        self.number: int = number
        self.label: str = label
        #: Role and user; nobody else resumes the session.
        self.owner: tuple[str, str] = owner
        #: What the user may do; None: everything.
        self.rights: Rights | None = rights
        #: The id of the node that has linked in the session, and its life; empty: none has.
        self.node: tuple[str, str] = "", ""
        #: The temporary queues of the session, by number.
        self.owned: dict[int, Queue] = {}
        self._stream = stream
        self._life = life

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self._life.state == "ended"

    @property
    def peer(self) -> str:
        """The address of the client; "nowhere" without a link."""
        link = self._stream.link
        return link.peer if link is not None else "nowhere"

    def queue_deleted(self, number: int) -> None:
        """Forget a temporary queue, which is deleted."""
        self.owned.pop(number, None)

    def __repr__(self) -> str:
        return f"<Principal of session {self.number} {self.label!r} at {self.peer}>"
