"""How many connections a node may have, from the number of descriptors that its process may have.

A connection is a descriptor, and so is each file of the store.  A store that finds none for its next segment confirms
nothing, so a part of the descriptors is kept back for it (and for links to other nodes, and for the program around
the broker), and connections share the rest.
"""

from __future__ import annotations

import attrs

from meshq import limits
from meshq.abc import Accept, Admission, AdmissionDecision, HandshakeFacts, Refuse


@attrs.frozen(kw_only=True)
class ConnectionBounds:
    """The bounds of one node's connections."""

    #: All connections over the network.
    connections: int
    #: Those of them that have no session yet.
    unauthenticated: int
    #: Those that have none yet and are of one address.
    per_address: int
    #: Sessions of one user, attached or not.
    sessions_per_user: int
    #: Large bodies that are coming in.
    uploads: int


def connection_bounds(descriptors: int, sessions_per_user: int | None = None) -> ConnectionBounds:
    """The bounds for a process that may have so many descriptors.

    ``sessions_per_user``: what the operator has said; None: the default.
    """
    reserved = max(descriptors // limits.DESCRIPTORS_RESERVED_SHARE, limits.DESCRIPTORS_RESERVED_MIN)
    # Where there are hardly any, the store still gets half.
    reserved = min(reserved, limits.DESCRIPTORS_RESERVED_MAX, descriptors // 2)
    connections = max(descriptors - reserved, 1)
    unauthenticated = max(min(connections // limits.UNAUTHENTICATED_SHARE, limits.UNAUTHENTICATED_MAX), 1)
    share = unauthenticated // limits.UNAUTHENTICATED_ADDRESS_SHARE
    per_address = max(min(share, limits.UNAUTHENTICATED_PER_ADDRESS_MAX), limits.UNAUTHENTICATED_PER_ADDRESS_MIN)
    if sessions_per_user is None:
        theirs = connections * limits.SESSIONS_PER_USER_PERCENT // 100
        sessions_per_user = max(min(theirs, limits.SESSIONS_PER_USER), 1)
    return ConnectionBounds(
        connections=connections,
        unauthenticated=unauthenticated,
        per_address=min(per_address, unauthenticated),
        sessions_per_user=sessions_per_user,
        uploads=max(reserved // limits.DESCRIPTORS_UPLOADS_SHARE, 1),
    )


@attrs.frozen(kw_only=True)
class SessionBounds(Admission):
    """The bounds of the sessions of a node and of each user.

    ``per_user``: sessions of one user, attached or not.  Users are those of ``Security``; where no login is asked for
    only the bound of the node holds.
    """

    per_user: int = limits.SESSIONS_PER_USER

    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        """Refuse sessions over a bound; a session that is resumed counts already."""
        if facts.resumes:
            return Accept()
        if facts.sessions >= limits.SESSIONS_MAX:
            return _too_many(f"it has its {limits.SESSIONS_MAX}")
        if facts.role == "client" and facts.user and facts.user_sessions >= self.per_user:
            theirs = f"the user {facts.user!r} has {facts.user_sessions}"
            return _too_many(f"{theirs}, and may have {self.per_user}")
        return Accept()


def _too_many(detail: str) -> Refuse:
    return Refuse("too_many_sessions", detail)
