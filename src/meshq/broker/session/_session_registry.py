"""The sessions of a node: who may have one, who gets an old one back, and when one ends."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from meshq import limits
from meshq.broker._core import Core
from meshq.broker.session._deadlines import Deadlines
from meshq.broker.session._session import ServerSession
from meshq.errors import NotActiveError
from meshq.ids import IDENTITY_BYTES
from meshq.notifications import SessionClosed, SessionCreated
from meshq.wire import Attach, Attached, Link, decline


def _is_theirs(session: ServerSession, wanted: Attach, owner: tuple[str, str]) -> bool:
    return session.resumable and session.owner == owner and hmac.compare_digest(session.key, wanted.key)


class SessionRegistry:
    """All sessions of one node.  ``now`` is the monotonic clock.

    ``ttl_max``: seconds for which a session outlives its connection at most, whatever its client asks for.
    ``per_user``: sessions of one user, attached or not; users are those of ``Security``, so where nobody is asked who
    they are, only the bound of the node holds.
    ``on_detached`` is told when a session begins to wait for its client, so that somebody looks at its deadline.
    """

    def __init__(
        self, core: Core, now: Callable[[], float], ttl_max: float, *, per_user: int = limits.SESSIONS_PER_USER
    ) -> None:
        self._core = core
        self._now = now
        self._ttl_max = ttl_max
        self._per_user = per_user
        self._last = 0
        self._ttl: dict[int, float] = {}
        # How many sessions each user has; above 0.
        self._of_user: dict[str, int] = {}
        # Of the sessions that wait for their clients, by number.
        self._deadlines = Deadlines()
        self.on_detached: Callable[[], None] = lambda: None
        #: Sessions that were resumed, made and ended for want of their client.
        self.resumed: int = 0
        self.made: int = 0
        self.expired: int = 0

    def attach(self, link: Link, label: str, wanted: Attach, owner: tuple[str, str]) -> tuple[ServerSession, Attached]:
        """Return the session that a client asks for, resumed or new, and the answer.

        ``owner``: role and user.  A session of another owner is not resumed: the client gets a new one.

        The caller sends the answer, and then calls ``session.attach``.

        Raises:
            NotActiveError: the node has the maximum of sessions, or is stopping.
        """
        core = self._core
        ttl = min(max(wanted.ttl_ms / 1000, limits.SESSION_TTL_S_MIN), self._ttl_max)
        session = core.sessions.get(wanted.session)
        if session is not None and _is_theirs(session, wanted, owner):
            self._ttl[session.number] = ttl
            self._deadlines.forget(session.number)
            self.resumed += 1
            return session, self._answer(session, ttl, resumed=True)
        if core.closing is not None:
            raise NotActiveError(core.closing)
        if len(core.sessions) >= limits.SESSIONS_MAX:
            raise decline("too_many_sessions", f"it has its {limits.SESSIONS_MAX}")
        role, user = owner
        if role == "client" and user:
            theirs = self._of_user.get(user, 0)
            if theirs >= self._per_user:
                raise decline("too_many_sessions", f"the user {user!r} has {theirs}, and may have {self._per_user}")
            self._of_user[user] = theirs + 1
        self._last += 1
        self.made += 1
        # 0: the client keeps nothing, and will never come back for its session.
        window = min(wanted.window_bytes, limits.CONFIRMATION_WINDOW_BYTES_MAX)
        session = ServerSession(core, self._last, core.settings.token(IDENTITY_BYTES), label, window)
        session.owner = owner
        session.rights = core.access.of(owner)
        core.sessions[session.number] = session
        self._ttl[session.number] = ttl
        about = {"session": session.number, "role": role, "user": user, "label": label, "peer": link.peer}
        core.event_bus.emit(SessionCreated, server_name=link.server_name, **about)
        return session, self._answer(session, ttl, resumed=False)

    @staticmethod
    def _answer(session: ServerSession, ttl: float, *, resumed: bool) -> Attached:
        return Attached(
            session=session.number,
            key=session.key,
            resumed=resumed,
            received=session.incoming.last if resumed else 0,
            ttl_ms=int(ttl * 1000),
        )

    def detached(self, session: ServerSession) -> None:
        """A session lost its connection; it may be resumed until its deadline, if it can be resumed at all."""
        if session.ended:
            return
        if not session.resumable:
            self.end(session)
            return
        session.detach()
        self._deadlines.set(session.number, self._now() + self._ttl[session.number])
        self.on_detached()

    def end(self, session: ServerSession) -> None:
        """A session is over."""
        if session.number in self._core.sessions:
            del self._core.sessions[session.number], self._ttl[session.number]
            self._deadlines.forget(session.number)
            session.end()
            role, user = session.owner
            self._one_less(role, user)
            about = {"session": session.number, "role": role, "user": user, "label": session.label}
            self._core.event_bus.emit(SessionClosed, **about)

    def expire(self) -> float | None:
        """End the sessions whose time is up; returns the next deadline."""
        for number in self._deadlines.due(self._now()):
            self.expired += 1
            self.end(self._core.sessions[number])
        self._core.run_pending()
        return self._deadlines.soonest()

    def _one_less(self, role: str, user: str) -> None:
        if role == "client" and user:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]
