"""The login of a client: mechanism, name and proof."""

from __future__ import annotations

from collections.abc import Callable

from meshq.errors import SecurityError
from meshq.settings import Secret
from meshq.wire import (
    MECHANISM_CERTIFICATE,
    MECHANISM_NONE,
    MECHANISM_SCRAM,
    NONCE_BYTES,
    Challenge,
    ClientExchange,
    HandshakeFrames,
    Proof,
    Role,
    own_nonce,
    salted_password,
)


class Login:
    """The identity of a client or node, for all its links.

    ``token``: random bytes that nobody can guess.  ``instance``: the life of the node that dials as a peer, which is to
    know its nonces again.  What is slow to derive from a password is kept for as long as
    the node asks with the same salt, so that a reconnect costs microseconds.
    """

    def __init__(
        self,
        token: Callable[[int], bytes],
        user: str | None,
        password: Secret | None,
        *,
        role: Role = "client",
        instance: bytes = b"",
    ) -> None:
        self._token = token
        self._user = user
        self._password = password
        self.role = role
        self._instance = instance
        self._derived: tuple[bytes, int, bytes] | None = None

    def choose(self, offered: tuple[str, ...], node_name: str, *, in_process: bool) -> str:
        """The mechanism to authenticate with.

        Raises:
            SecurityError: none that is offered will do.  Who has a password never goes in without a proof, except in
                process: somebody between the two could have taken the better mechanism off the list.
        """
        if MECHANISM_NONE in offered and (self._user is None or in_process):
            return MECHANISM_NONE
        if MECHANISM_SCRAM in offered and self._user is not None:
            return MECHANISM_SCRAM
        if MECHANISM_CERTIFICATE in offered and self._user is None:
            return MECHANISM_CERTIFICATE
        if self._user is None:
            raise SecurityError(f"the node {node_name!r} asks for a user and a password")
        raise SecurityError(f"the node {node_name!r} does not ask for a user's proof, and could be anybody")

    def begin(self, opening: HandshakeFrames) -> ClientExchange:
        """A new authentication."""
        assert self._user is not None
        nonce = self._token(NONCE_BYTES)
        return ClientExchange(opening, self._user, own_nonce(nonce, self._instance) if self._instance else nonce)

    def prove(self, exchange: ClientExchange, challenge: Challenge) -> Proof:
        """The answer to a challenge.

        Raises:
            SecurityError: it asks for too little work, or for too much.
        """
        exchange.check_challenge(challenge)
        asked = (challenge.salt, challenge.iterations)
        if self._derived is None or self._derived[:2] != asked:
            assert self._password is not None
            self._derived = (*asked, salted_password(self._password.reveal().encode(), *asked))
        return exchange.prove(challenge, self._derived[2])
