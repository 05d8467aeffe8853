"""The sessions of a node: who may have one, who gets an old one back, and when one ends."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from meshq import limits
from meshq.abc import Accept, Admission, HandshakeFacts, Redirect, Refuse
from meshq.broker.core._core import Core
from meshq.broker.session._deadlines import Deadlines
from meshq.broker.session._session import ServerSession
from meshq.errors import UsageError
from meshq.ids import IDENTITY_BYTES
from meshq.notifications import SessionClosed, SessionCreated
from meshq.wire import BY_NAME, Attach, Attached, Link, decline, violation


def _is_theirs(session: ServerSession, wanted: Attach, owner: tuple[str, str]) -> bool:
    return (
        session.stream.resumable and session.principal.owner == owner and hmac.compare_digest(session.key, wanted.key)
    )


class SessionRegistry:
    """All sessions of one node.  ``now`` is the monotonic clock.

    ``ttl_max``: seconds for which a session outlives its connection at most, whatever its client asks for.
    ``admission``: asked once for each connection, after its login.
    ``detached`` is called when a session begins to wait for its client, so that the node looks at its deadline.
    """

    def __init__(
        self,
        core: Core,
        now: Callable[[], float],
        ttl_max: float,
        *,
        detached: Callable[[], None],
        admission: Admission,
    ) -> None:
        self._core = core
        self._closing = core.closing
        self._event_bus = core.settings.event_bus
        self._token = core.settings.token
        #: The sessions, linked or not, by number.
        self.by_number: dict[int, ServerSession] = {}
        self._now = now
        self._ttl_max = ttl_max
        self._admission = admission
        self._topologies = core.settings.topologies
        self._last = 0
        self._ttl: dict[int, float] = {}
        # How many sessions each user has; above 0.
        self._of_user: dict[str, int] = {}
        # Of the sessions that wait for their clients, by number.
        self._deadlines = Deadlines()
        self._detached = detached
        #: Sessions that were resumed, made and ended for want of their client.
        self.resumed: int = 0
        self.made: int = 0
        self.expired: int = 0
        #: Sessions that were refused because this node lacks some of what another one hands over.
        self.held_back: int = 0

    def attach(self, link: Link, label: str, wanted: Attach, owner: tuple[str, str]) -> tuple[ServerSession, Attached]:
        """Return the session that a client asks for, resumed or new, and the answer.

        ``owner``: role and user.  A session of another owner is not resumed: the client gets a new one.

        The caller sends the answer, and then calls ``session.attach``.

        Raises:
            NotActiveError: the node has the maximum of sessions, is waiting as a backup, is stopping, or lacks some of
                what the client's former node hands over.
            UseAnotherServerError: another node serves this client.
        """
        ttl = min(max(wanted.ttl_ms / 1000, limits.SESSION_TTL_S_MIN), self._ttl_max)
        session = self.by_number.get(wanted.session)
        if session is not None and not _is_theirs(session, wanted, owner):
            session = None
        if session is None:
            if owner[0] == "peer":
                # A node that hands over what it has tells other nodes how far their messages are stored.
                self._closing.check_running()
            else:
                self._closing.check()
                self._check_handed_over(wanted.came_from)
        facts = self.facts(link, label, owner, resumes=session is not None)
        self._admit(facts)
        if session is not None:
            self._ttl[session.number] = ttl
            self._deadlines.forget(session.number)
            self.resumed += 1
            return session, self._answer(session, ttl, resumed=True)
        role, user = owner
        if role == "client" and user:
            self._of_user[user] = self._of_user.get(user, 0) + 1
        self._last += 1
        self.made += 1
        # 0: the client keeps nothing, and will never come back for its session.
        window = min(wanted.window_bytes, limits.CONFIRMATION_WINDOW_BYTES_MAX)
        session = ServerSession(
            self._core,
            self._last,
            self._token(IDENTITY_BYTES),
            label=label,
            owner=owner,
            rights=self._core.access.of(owner),
            window_bytes=window,
        )
        self.by_number[session.number] = session
        self._core.sessions[session] = None
        self._ttl[session.number] = ttl
        about = {"session": session.number, "role": role, "user": user, "label": label, "peer": link.peer}
        self._event_bus.emit(SessionCreated, server_name=link.server_name, **about)
        return session, self._answer(session, ttl, resumed=False)

    def _check_handed_over(self, came_from: bytes) -> None:
        """Check that the handovers of a client's former nodes have come to their end.

        Raises:
            NotActiveError: something is missing, or may be.
        """
        if len(came_from) % (2 * IDENTITY_BYTES):
            raise violation("bad_header", "a client that comes from nodes without ids")
        for start in range(0, len(came_from), 2 * IDENTITY_BYTES):
            middle = start + IDENTITY_BYTES
            why = self._topologies.missing(came_from[start:middle], came_from[middle : middle + IDENTITY_BYTES])
            if why:
                self.held_back += 1
                raise decline("not_handed_over", why)

    def resumes(self, wanted: Attach, owner: tuple[str, str]) -> bool:
        """Return whether a client asks for a session that it has here."""
        session = self.by_number.get(wanted.session)
        return session is not None and _is_theirs(session, wanted, owner)

    @property
    def clients(self) -> int:
        """The clients that are connected now."""
        found = (one for one in self.by_number.values() if one.principal.owner[0] == "client")
        return sum(one.stream.link is not None for one in found)

    def check_served(self, link: Link, label: str, owner: tuple[str, str]) -> None:
        """Check that this node serves one more client.

        Raises:
            NotActiveError: it does not.
        """
        self._closing.check()
        self._admit(self.facts(link, label, owner))

    def facts(
        self, link: Link, label: str, owner: tuple[str, str], *, visited: bytes = b"", resumes: bool = False
    ) -> HandshakeFacts:
        """Return the facts of a connection that has logged in.  ``visited``: as of ``Attach``."""
        role, user = owner
        ids = (visited[start : start + IDENTITY_BYTES] for start in range(0, len(visited), IDENTITY_BYTES))
        security = self._core.settings.security
        known = security.roles if security is not None else None
        roles = known.get(user, ()) if known is not None and role == "client" else ()
        return HandshakeFacts(
            role=role,
            user=user,
            label=label,
            address=link.peer,
            server_name=link.server_name,
            resumes=resumes,
            sessions=len(self.by_number),
            user_sessions=self._of_user.get(user, 0) if role == "client" else 0,
            roles=tuple(sorted(roles)),
            visited=tuple(one.hex() for one in ids),
        )

    def _admit(self, facts: HandshakeFacts) -> None:
        """Ask whether a connection may have a session.

        Raises:
            NotActiveError, UseAnotherServerError: the connection may not.
            UsageError: the rule has decided nothing that can be done, so that it may not, either.
        """
        decision = self._admission.decide(facts)
        if isinstance(decision, Redirect) and type(decision.url) is str:
            raise decline("use_another_server", decision.url)
        if isinstance(decision, Refuse) and decision.refusal in BY_NAME and type(decision.text) is str:
            raise decline(decision.refusal, decision.text)
        if not isinstance(decision, Accept):
            allowed = "Accept, Redirect with a URL, or Refuse with the name of a refusal"
            raise UsageError(f"the node's admission decided {decision!r}; allowed is {allowed}")

    @staticmethod
    def _answer(session: ServerSession, ttl: float, *, resumed: bool) -> Attached:
        return Attached(
            session=session.number,
            key=session.key,
            resumed=resumed,
            received=session.stream.incoming.last if resumed else 0,
            ttl_ms=int(ttl * 1000),
        )

    def detached(self, session: ServerSession) -> None:
        """A session lost its connection; it may be resumed until its deadline, if it can be resumed at all."""
        if session.ended:
            return
        if not session.stream.resumable:
            self.end(session)
            return
        session.detach()
        self._deadlines.set(session.number, self._now() + self._ttl[session.number])
        self._detached()

    def end(self, session: ServerSession) -> None:
        """A session is over."""
        if session.number in self.by_number:
            del self.by_number[session.number], self._core.sessions[session], self._ttl[session.number]
            self._deadlines.forget(session.number)
            session.end()
            role, user = session.principal.owner
            self._one_less(role, user)
            about = {"session": session.number, "role": role, "user": user, "label": session.principal.label}
            self._event_bus.emit(SessionClosed, **about)

    def expire(self) -> float | None:
        """End the sessions whose time is up; returns the next deadline."""
        for number in self._deadlines.due(self._now()):
            self.expired += 1
            self.end(self.by_number[number])
        self._core.pending.run()
        return self._deadlines.soonest()

    def _one_less(self, role: str, user: str) -> None:
        if role == "client" and user:
            self._of_user[user] -= 1
            if not self._of_user[user]:
                del self._of_user[user]
