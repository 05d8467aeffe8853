"""Whether a node takes a connection that has logged in."""

from __future__ import annotations

from abc import ABC, abstractmethod

import attrs


@attrs.frozen(kw_only=True)
class HandshakeFacts:
    """The facts of a connection whose login is done.

    ``role``: "client", or "peer" for another node.  ``user``: the user that has logged in; empty where no login is
    asked for.  ``label``: the client's ``client_id``, or the peer's name.  ``address``: the address of the other side.
    ``server_name``: the host name that was asked for under TLS, or empty.  ``resumes``: the connection comes back for
    a session of its own.  ``sessions``: the sessions of the node; ``user_sessions``: those of this user.
    """

    role: str
    user: str
    label: str
    address: str
    server_name: str
    resumes: bool
    sessions: int
    user_sessions: int
    roles: tuple[str, ...] = ()
    visited: tuple[str, ...] = ()


@attrs.frozen
class Accept:
    """The connection gets a session."""


@attrs.frozen
class Redirect:
    """The connection has to go to another node, at ``url``."""

    url: str


@attrs.frozen
class Refuse:
    """The connection gets no session: ``refusal`` is the name of a refusal of the protocol, ``text`` says why."""

    refusal: str
    text: str


AdmissionDecision = Accept | Redirect | Refuse


class Admission(ABC):
    """A rule for connections: decides from the facts of a handshake which of them get a session.

    The node asks once for each connection, after the login and before the session is made or resumed.
    """

    @abstractmethod
    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        """Decide about one connection.  Plain and quick: the other connections of the node wait for the answer."""
