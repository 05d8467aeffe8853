"""The sessions of a node: who may have one, who gets an old one back, and when one ends."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Final

from meshq import limits
from meshq.broker._core import Core
from meshq.broker.session._session import Session
from meshq.errors import NotActiveError
from meshq.ids import IDENTITY_BYTES
from meshq.notifications import SessionClosed, SessionCreated
from meshq.wire import Attach, Attached, Link, decline

#: A client may not ask for a shorter time: its pings would cost more than its session.
SESSION_TTL_MIN_S: Final = 0.1


def _is_theirs(session: Session, wanted: Attach, owner: tuple[str, str]) -> bool:
    return session.resumable and session.owner == owner and hmac.compare_digest(session.key, wanted.key)


class Sessions:
    """All sessions of one node.  ``now`` is the monotonic clock.

    ``on_detached`` is told when a session begins to wait for its client, so that somebody looks at its deadline.
    """

    def __init__(self, core: Core, now: Callable[[], float], ttl_max: float) -> None:
        self._core = core
        self._now = now
        self._ttl_max = ttl_max
        self._last = 0
        self._ttl: dict[int, float] = {}
        self.on_detached: Callable[[], None] = lambda: None
        #: Sessions that were resumed, made and ended for want of their client.
        self.resumed = 0
        self.made = 0
        self.expired = 0

    def attach(self, link: Link, label: str, wanted: Attach, owner: tuple[str, str]) -> tuple[Session, Attached]:
        """The session that a client asks for, resumed or new; and what to tell it.

        ``owner``: role and user.  Who has another one gets a new session: the old one is not theirs.

        The caller sends the answer, and then calls ``session.attach``.

        Raises:
            NotActiveError: there is no room for another session, or the node is stopping.
        """
        core = self._core
        ttl = min(max(wanted.ttl_ms / 1000, SESSION_TTL_MIN_S), self._ttl_max)
        session = core.sessions.get(wanted.session)
        if session is not None and _is_theirs(session, wanted, owner):
            self._ttl[session.number] = ttl
            self.resumed += 1
            return session, self._answer(session, ttl, resumed=True)
        if core.closing is not None:
            raise NotActiveError(core.closing)
        if len(core.sessions) >= limits.SESSIONS_MAX:
            raise decline("too_many_sessions", f"it has its {limits.SESSIONS_MAX}")
        self._last += 1
        self.made += 1
        # 0: the client keeps nothing, and will never come back for its session.
        window = min(wanted.window_bytes, limits.CONFIRMATION_WINDOW_BYTES_MAX)
        session = Session(core, self._last, core.settings.token(IDENTITY_BYTES), label, window)
        session.owner = owner
        session.rights = core.access.of(owner)
        core.sessions[session.number] = session
        self._ttl[session.number] = ttl
        role, user = owner
        about = {"session": session.number, "role": role, "user": user, "label": label, "peer": link.peer}
        core.notices.say(SessionCreated, server_name=link.server_name, **about)
        return session, self._answer(session, ttl, resumed=False)

    @staticmethod
    def _answer(session: Session, ttl: float, *, resumed: bool) -> Attached:
        return Attached(
            session=session.number,
            key=session.key,
            resumed=resumed,
            received=session.incoming.last if resumed else 0,
            ttl_ms=int(ttl * 1000),
        )

    def detached(self, session: Session) -> None:
        """A session lost its connection; it may be resumed until its deadline, if it can be resumed at all."""
        if session.ended:
            return
        if not session.resumable:
            self.end(session)
            return
        session.detach()
        session.deadline = self._now() + self._ttl[session.number]
        self.on_detached()

    def end(self, session: Session) -> None:
        """A session is over."""
        if session.number in self._core.sessions:
            del self._core.sessions[session.number], self._ttl[session.number]
            session.end()
            role, user = session.owner
            about = {"session": session.number, "role": role, "user": user, "label": session.label}
            self._core.notices.say(SessionClosed, **about)

    def expire(self) -> float | None:
        """End the sessions whose time is up; returns the next deadline."""
        now = self._now()
        waiting = [session for session in self._core.sessions.values() if session.link is None]
        for session in waiting:
            if session.deadline <= now:
                self.expired += 1
                self.end(session)
        self._core.turn()
        return min((session.deadline for session in waiting if not session.ended), default=None)
