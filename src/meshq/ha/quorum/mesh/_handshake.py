"""The opening of a connection to a witness: who both are, and a proof of each that it knows the password.

The proofs are those of the broker's protocol, over what both sides have said here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import attrs
import msgpack

from meshq.errors import RefusedError, RemoteProtocolError, SecurityError
from meshq.ha.quorum.mesh._channel import Channel
from meshq.ha.quorum.mesh._witness_machine import name_of
from meshq.settings import Secret
from meshq.wire import (
    NONCE_BYTES,
    Authenticate,
    Authenticated,
    Challenge,
    ClientExchange,
    Frame,
    FrameType,
    HandshakeFrames,
    Proof,
    ServerExchange,
    Verifier,
    salted_password,
)

VERSION: Final = 1
#: The bytes of a proof, and the longest name of a user: what a stranger sends is looked at only up to here.
PROOF_BYTES: Final = 32
USER_CHARACTERS_MAX: Final = 255


@attrs.frozen(kw_only=True)
class WitnessFacts:
    """The name of a witness, the name with its journal (``member``), its ensemble, and its tick in seconds."""

    name: str
    member: str
    ensemble: str
    tick_s: float


def _encode(values: dict[str, Any]) -> bytes:
    data: bytes = msgpack.packb(values, use_bin_type=True)
    return data


def _decode(data: bytes, **kinds: type) -> dict[str, Any]:
    try:
        found = msgpack.unpackb(data, raw=False, max_map_len=len(kinds), max_array_len=0, max_ext_len=0)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RemoteProtocolError("the other side speaks another protocol than a quorum's") from error
    if type(found) is not dict or {key: type(value) for key, value in found.items()} != kinds:
        raise RemoteProtocolError("the other side speaks another protocol than a quorum's")
    return found


def _frames(hello: bytes, welcome: bytes, binding: bytes) -> HandshakeFrames:
    said = Frame(FrameType.WELCOME, header=welcome)
    return HandshakeFrames("client", Frame(FrameType.HELLO, header=hello), said, binding)


def _same_ensemble(mine: str, theirs: str) -> None:
    if mine != theirs:
        raise RefusedError(f"the ensembles are {mine!r} here and {theirs!r} there", outcome="not_done")


async def greet_witness(
    channel: Channel, *, ensemble: str, user: str, password: Secret, token: Callable[[int], bytes]
) -> WitnessFacts:
    """Open a connection as the side that asks.

    Checkpoint: always.
    Cancellation: the connection is of no use.
    Raises:
        RefusedError: the witness is of another ensemble.
        SecurityError: one side does not know the password.
        RemoteProtocolError, ConnectionBrokenError.
    """
    nonce = token(NONCE_BYTES)
    hello = _encode({"version": VERSION, "ensemble": ensemble, "user": user, "nonce": nonce})
    await channel.send(hello)
    welcome = await channel.receive()
    kinds = {
        "version": int,
        "ensemble": str,
        "name": str,
        "member": str,
        "tick": float,
        "salt": bytes,
        "iterations": int,
    }
    found = _decode(welcome, **kinds, nonce=bytes)
    if found["version"] != VERSION:
        raise RemoteProtocolError(f"the witness speaks version {found['version']}, and this side {VERSION}")
    _same_ensemble(ensemble, found["ensemble"])
    challenge = Challenge(salt=found["salt"], iterations=found["iterations"], nonce=found["nonce"])
    exchange = ClientExchange(_frames(hello, welcome, channel.binding), user, nonce)
    exchange.check_challenge(challenge)
    salted = salted_password(password.reveal().encode(), challenge.salt, challenge.iterations)
    await channel.send(exchange.prove(challenge, salted).proof)
    answer = await channel.receive()
    if not answer:
        raise SecurityError("no such user, or another password")
    exchange.check(Authenticated(proof=answer))
    if name_of(found["member"]) != found["name"]:
        raise RemoteProtocolError(f"the witness {found['name']!r} calls itself {found['member']!r}, too")
    return WitnessFacts(name=found["name"], member=found["member"], ensemble=found["ensemble"], tick_s=found["tick"])


async def greet_session(
    channel: Channel, facts: WitnessFacts, *, user: str, verifier: Verifier, token: Callable[[int], bytes]
) -> None:
    """Open a connection as a witness.

    Checkpoint: always.
    Cancellation: the connection is of no use.
    Raises:
        RefusedError: the other side wants another ensemble.
        SecurityError: the other side does not know the password.
        RemoteProtocolError, ConnectionBrokenError.
    """
    hello = await channel.receive()
    found = _decode(hello, version=int, ensemble=str, user=str, nonce=bytes)
    if len(found["user"]) > USER_CHARACTERS_MAX or len(found["nonce"]) != NONCE_BYTES:
        raise RemoteProtocolError("the other side speaks another protocol than a quorum's")
    nonce = token(NONCE_BYTES)
    welcome = _encode(
        {
            "version": VERSION,
            "ensemble": facts.ensemble,
            "name": facts.name,
            "member": facts.member,
            "tick": facts.tick_s,
            "salt": verifier.salt,
            "iterations": verifier.iterations,
            "nonce": nonce,
        }
    )
    await channel.send(welcome)
    _same_ensemble(facts.ensemble, found["ensemble"])
    begun = Authenticate(mechanism="scram-sha-256", user=found["user"], nonce=found["nonce"])
    frames = _frames(hello, welcome, channel.binding)
    exchange = ServerExchange(frames, begun, verifier, nonce, known=found["user"] == user)
    proof = await channel.receive()
    if len(proof) != PROOF_BYTES:
        raise RemoteProtocolError(f"a proof of {len(proof)} bytes, where {PROOF_BYTES} are allowed")
    try:
        answer = exchange.judge(Proof(proof=proof))
    except SecurityError:
        await channel.send(b"")
        raise
    await channel.send(answer.proof)
