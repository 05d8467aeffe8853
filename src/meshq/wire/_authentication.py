"""``scram-sha-256``: both sides prove that they know a password, and neither sends it.

The problem: a password that crosses the link is known to every listener, and to every false node.
A hash of the password is no better, because it can be replayed.  So each side proves that it knows the password with a
keyed hash over *the frames of this connection*, as SCRAM (RFC 5802) does.

The transcript is hashed: the role, HELLO and WELCOME as they were sent (and so the mechanisms that were
offered), mechanism and user, both nonces, salt and iterations, and the hash of the node's certificate under TLS.
Each part has its length before it, so that no two conversations have one transcript.  A proof is therefore good for
one connection, in one direction, to one node: nonces end replay, two labels end reflection, the certificate ends
relaying, the mechanisms end downgrading.

Nodes of a cluster share one password, so a node could be connected back to itself: the dialled attacker relays its
frames to its own acceptor, and gets its proof.  Without TLS no certificate prevents that, so a node recognizes its own
nonces: one half is random, the other a keyed hash of the first.  An attacker can't replace them, because both proofs
are over them.

The node keeps a verifier, which can check a client's proof and can't make one.  It asks unknown users for a proof, too,
with a salt that stays the same: its answers and its work are the same as for a wrong password.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, NamedTuple

import attrs

from meshq import limits
from meshq.errors import invariant
from meshq.wire._frames import Frame, encode
from meshq.wire._headers import NONCE_BYTES, Authenticate, Authenticated, Challenge, Proof, Role
from meshq.wire._negotiation import MECHANISM_SCRAM
from meshq.wire._refusals import decline, violation

_HASH: Final = "sha256"
_LABEL: Final = b"meshq scram-sha-256 1"
_CLIENT_KEY: Final = b"meshq client key"
_SERVER_KEY: Final = b"meshq server key"
#: The prefix of each side's proof, so that a proof of one side can't serve as one of the other.
_CLIENT_PROOF: Final = b"meshq client proof"
_SERVER_PROOF: Final = b"meshq server proof"
_LENGTH_BYTES: Final = 4
_OWN_NONCE: Final = b"meshq own nonce"
#: The one text for everything that is wrong with a user, a password or a proof.
FAILED: Final = "no such user, or another password"


def _mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), _HASH)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def salted_password(password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return the password as the proofs use it.  Slow on purpose; the interpreter lock is released meanwhile."""
    return hashlib.pbkdf2_hmac(_HASH, password, salt, iterations)


def own_nonce(token: bytes, instance: bytes) -> bytes:
    """Make a nonce that this life of a node recognizes; ``token``: ``NONCE_BYTES`` random bytes, never used before."""
    fresh = token[: NONCE_BYTES // 2]
    return fresh + _mac(instance, _OWN_NONCE, fresh)[: NONCE_BYTES - len(fresh)]


def is_own_nonce(nonce: bytes, instance: bytes) -> bool:
    """Whether this life of the node has made the nonce."""
    return nonce == own_nonce(nonce, instance)


@attrs.frozen(repr=False)
class Verifier:
    """The keys that a node keeps of a password: they check a client's proof and make the node's, but no client's."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def make_verifier(password: bytes, salt: bytes, iterations: int) -> Verifier:
    """Make the verifier of a password."""
    salted = salted_password(password, salt, iterations)
    return Verifier(salt, iterations, _digest(_mac(salted, _CLIENT_KEY)), _mac(salted, _SERVER_KEY))


class HandshakeFrames(NamedTuple):
    """The role, the first frames and the certificate of a connection, before the authentication."""

    role: Role
    hello: Frame
    welcome: Frame
    #: SHA-256 of the node's certificate under TLS; empty without.
    binding: bytes


def transcript(opening: HandshakeFrames, begun: Authenticate, challenge: Challenge) -> bytes:
    """Return the bytes that both proofs are over: each part with its length before it."""
    parts = (
        _LABEL,
        opening.role.encode(),
        encode(opening.hello),
        encode(opening.welcome),
        begun.mechanism.encode(),
        begun.user.encode(),
        begun.nonce,
        challenge.nonce,
        challenge.salt,
        b"%d" % challenge.iterations,
        opening.binding,
    )
    return b"".join(item for part in parts for item in (len(part).to_bytes(_LENGTH_BYTES, "big"), part))


class ClientExchange:
    """The client's side of one authentication.

    ``nonce``: bytes that were never used before.  ``begin`` goes out first; ``prove`` answers the challenge, and
    ``check`` judges what the node says then.
    """

    def __init__(self, opening: HandshakeFrames, user: str, nonce: bytes) -> None:
        invariant(len(nonce) == NONCE_BYTES, "a nonce has its size")
        self._opening = opening
        self.begin: Authenticate = Authenticate(mechanism=MECHANISM_SCRAM, user=user, nonce=nonce)
        # The proof expected of the node; None until the client has made its own.
        self._expected: bytes | None = None

    @staticmethod
    def check_challenge(challenge: Challenge) -> None:
        """Refuse a challenge that would make guessing cheap, or keep this side busy for long.

        Raises:
            SecurityError: the number of iterations is out of its bounds.
        """
        if not limits.ITERATIONS_MIN <= challenge.iterations <= limits.ITERATIONS_MAX:
            allowed = f"{limits.ITERATIONS_MIN} to {limits.ITERATIONS_MAX}"
            raise decline("not_authenticated", f"the node asks for {challenge.iterations} iterations, not {allowed}")

    def prove(self, challenge: Challenge, salted: bytes) -> Proof:
        """Make the proof, from the password as ``salted_password`` returns it for this challenge."""
        said = transcript(self._opening, self.begin, challenge)
        client_key = _mac(salted, _CLIENT_KEY)
        signature = _mac(_digest(client_key), _CLIENT_PROOF, said)
        self._expected = _mac(_mac(salted, _SERVER_KEY), _SERVER_PROOF, said)
        return Proof(proof=_xor(client_key, signature))

    def check(self, authenticated: Authenticated) -> None:
        """Check the node's proof.

        Raises:
            SecurityError: the node asked for no proof, or does not know the password itself.
        """
        if self._expected is None or not hmac.compare_digest(self._expected, authenticated.proof):
            raise decline("not_authenticated", "the node did not prove that it knows the password")


class ServerExchange:
    """The node's side of one authentication; ``nonce``: random bytes that were never used before.

    ``known``: whether there is such a user; if not, ``verifier`` is one that no password fits, and everything is
    computed all the same.
    """

    def __init__(
        self, opening: HandshakeFrames, begun: Authenticate, verifier: Verifier, nonce: bytes, *, known: bool
    ) -> None:
        if len(begun.nonce) != NONCE_BYTES:
            raise violation("bad_header", f"AUTHENTICATE has a nonce of {len(begun.nonce)} bytes, not {NONCE_BYTES}")
        self._verifier = verifier
        self._known = known
        self.challenge: Challenge = Challenge(salt=verifier.salt, iterations=verifier.iterations, nonce=nonce)
        self._said = transcript(opening, begun, self.challenge)

    def judge(self, proof: Proof) -> Authenticated:
        """Check the client's proof; return the node's own.

        Raises:
            SecurityError: the proof is wrong, or there is no such user; the error doesn't tell which.
        """
        verifier = self._verifier
        client_key = _xor(proof.proof, _mac(verifier.stored_key, _CLIENT_PROOF, self._said))
        right = hmac.compare_digest(_digest(client_key), verifier.stored_key)
        answer = Authenticated(proof=_mac(verifier.server_key, _SERVER_PROOF, self._said))
        if not (right and self._known):
            raise decline("not_authenticated", FAILED)
        return answer
