"""``scram-sha-256``: whoever knows the password is let in, by whom it knows; and nobody else, by anything heard."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshq import limits
from meshq.errors import RemoteProtocolError, SecurityError
from meshq.wire import (
    MECHANISM_SCRAM,
    NONCE_BYTES,
    Authenticate,
    Authenticated,
    Challenge,
    ClientExchange,
    Frame,
    HandshakeFrames,
    Header,
    Hello,
    Proof,
    ServerExchange,
    Verifier,
    Welcome,
    is_own_nonce,
    make_verifier,
    own_nonce,
    salted_password,
)
from meshq.wire._authentication import FAILED, transcript

PASSWORD = b"correct horse"
SALT = b"s" * 16
#: The real number takes its time on purpose.
FEW = limits.ITERATIONS_MIN
VERIFIER = make_verifier(PASSWORD, SALT, FEW)
SALTED = salted_password(PASSWORD, SALT, FEW)
WRONG = salted_password(b"correct house", SALT, FEW)


def said(header: Header) -> Frame:
    return Frame(header.frame_type, header=header.encode())


HELLO = said(Hello(oldest=1, newest=1, label="shop"))
WELCOME = said(Welcome(version=1, node_id=bytes(16), node_name="n", mechanisms=(MECHANISM_SCRAM,)))
OPENING = HandshakeFrames("client", HELLO, WELCOME, b"certificate")


@attrs.define
class Talk:
    """One authentication, as far as it has come."""

    client: ClientExchange
    server: ServerExchange

    @classmethod
    def between(
        cls,
        theirs: HandshakeFrames = OPENING,
        ours: HandshakeFrames = OPENING,
        *,
        verifier: Verifier = VERIFIER,
        known: bool = True,
        nonces: tuple[bytes, bytes] = (b"c" * NONCE_BYTES, b"n" * NONCE_BYTES),
    ) -> Talk:
        client = ClientExchange(theirs, "app", nonces[0])
        return cls(client, ServerExchange(ours, client.begin, verifier, nonces[1], known=known))

    def prove(self, salted: bytes = SALTED) -> Proof:
        return self.client.prove(self.server.challenge, salted)


def refused(talk: Talk, proof: Proof) -> str:
    with pytest.raises(SecurityError) as caught:
        talk.server.judge(proof)
    assert caught.value.refusal == "not_authenticated"
    return str(caught.value)


def test_who_knows_the_password_is_let_in_and_is_sure_of_the_node() -> None:
    talk = Talk.between()
    talk.client.check_challenge(talk.server.challenge)
    talk.client.check(talk.server.judge(talk.prove()))


def test_a_known_answer_stays_what_it_is() -> None:
    # Another implementation needs these bytes; whoever changes them has made another mechanism.
    talk = Talk.between()
    proof = talk.prove()
    assert proof.proof.hex() == "7c84ec945a68f7a99f70fd0563298b2af422ac743b39500a71089984e465b847"
    assert talk.server.judge(proof).proof.hex() == "39b16aa3b03798a061956503a05b382769e102cfb72bf3bf898f301c90308467"


def test_whatever_is_wrong_the_same_is_said() -> None:
    texts = {
        refused(Talk.between(), Talk.between().prove(WRONG)),
        refused(Talk.between(known=False), Talk.between().prove()),
        refused(Talk.between(verifier=make_verifier(b"other", SALT, FEW), known=False), Talk.between().prove()),
    }
    assert texts == {f"the authentication failed: {FAILED}"}


def test_a_user_who_is_not_known_is_not_let_in_even_by_a_proof_that_fits() -> None:
    talk = Talk.between(known=False)
    refused(talk, talk.prove())


def test_a_proof_is_good_for_one_connection_only() -> None:
    proof = Talk.between().prove()
    for nonces in ((b"c" * 32, b"m" * 32), (b"d" * 32, b"n" * 32)):
        refused(Talk.between(nonces=nonces), proof)


@pytest.mark.parametrize(
    "changed",
    [
        {"role": "peer"},
        {"hello": said(Hello(oldest=1, newest=1, label="shop", features=("later",)))},
        {"welcome": said(Welcome(version=1, node_id=bytes(16), node_name="n", mechanisms=("none", MECHANISM_SCRAM)))},
        {"welcome": said(Welcome(version=1, node_id=b"x" * 16, node_name="n", mechanisms=(MECHANISM_SCRAM,)))},
        {"binding": b""},
        {"binding": b"certificate of somebody in between"},
    ],
)
def test_both_sides_must_have_heard_the_same_over_the_same_certificate(changed: dict[str, object]) -> None:
    # Somebody in between who changes the mechanisms (downgrade) or holds another certificate (relay) gets nowhere.
    talk = Talk.between(theirs=OPENING._replace(**changed))
    refused(talk, talk.prove())


def test_a_proof_of_one_side_is_none_of_the_other() -> None:
    talk = Talk.between()
    proof = talk.prove()
    theirs = talk.server.judge(proof).proof
    refused(talk, Proof(proof=theirs))
    with pytest.raises(SecurityError, match="did not prove"):
        talk.client.check(Authenticated(proof=proof.proof))


def test_a_nonce_is_known_again_by_the_life_that_made_it_and_by_no_other() -> None:
    made = own_nonce(bytes(range(NONCE_BYTES)), b"this life")
    assert len(made) == NONCE_BYTES
    assert is_own_nonce(made, b"this life") and not is_own_nonce(made, b"another")
    for at in range(NONCE_BYTES):
        assert not is_own_nonce(made[:at] + bytes([made[at] ^ 1]) + made[at + 1 :], b"this life")
    assert not is_own_nonce(b"", b"this life") and not is_own_nonce(bytes(NONCE_BYTES), b"this life")
    # What is chance in it comes from the token, all that there is room for.
    others = {own_nonce(bytes([number]) * NONCE_BYTES, b"this life") for number in range(256)}
    assert len({nonce[:16] for nonce in others}) == len({nonce[16:] for nonce in others}) == 256


def test_a_node_that_does_not_know_the_password_is_refused() -> None:
    talk = Talk.between(verifier=make_verifier(b"guessed", SALT, FEW))
    talk.prove()
    for proof in (b"", bytes(32), b"x" * 31):
        with pytest.raises(SecurityError, match="did not prove"):
            talk.client.check(Authenticated(proof=proof))


def test_a_node_that_asks_for_no_proof_is_refused() -> None:
    with pytest.raises(SecurityError, match="did not prove"):
        Talk.between().client.check(Authenticated())


@pytest.mark.parametrize("iterations", [0, 1, limits.ITERATIONS_MIN - 1, limits.ITERATIONS_MAX + 1, 2**62])
def test_a_challenge_that_helps_guessing_or_never_ends_is_refused(iterations: int) -> None:
    challenge = Challenge(salt=SALT, iterations=iterations, nonce=bytes(32))
    with pytest.raises(SecurityError, match="iterations"):
        ClientExchange.check_challenge(challenge)


@pytest.mark.parametrize("size", [0, 1, 31])
def test_a_nonce_that_is_too_short_breaks_the_protocol(size: int) -> None:
    begun = Authenticate(mechanism=MECHANISM_SCRAM, user="app", nonce=bytes(size))
    with pytest.raises(RemoteProtocolError, match="nonce"):
        ServerExchange(OPENING, begun, VERIFIER, bytes(32), known=True)


@settings(max_examples=150)
@given(st.integers(0, 31), st.integers(1, 255), st.booleans())
def test_no_bit_of_a_proof_is_idle(at: int, change: int, ours: bool) -> None:
    talk = Talk.between()
    proof = bytearray(talk.prove().proof)
    if ours:
        proof[at] ^= change
        refused(talk, Proof(proof=bytes(proof)))
    else:
        answer = bytearray(talk.server.judge(Proof(proof=bytes(proof))).proof)
        answer[at] ^= change
        with pytest.raises(SecurityError):
            talk.client.check(Authenticated(proof=bytes(answer)))


_PART = st.binary(max_size=4)
_SAID = st.tuples(st.text(max_size=3), _PART, _PART, _PART, st.integers(0, 99), _PART)


def _bytes_of(parts: tuple[str, bytes, bytes, bytes, int, bytes]) -> bytes:
    user, mine, theirs, salt, iterations, binding = parts
    begun = Authenticate(mechanism=MECHANISM_SCRAM, user=user, nonce=mine)
    challenge = Challenge(salt=salt, iterations=iterations, nonce=theirs)
    return transcript(OPENING._replace(binding=binding), begun, challenge)


@pytest.mark.slow
@settings(max_examples=300)
@given(_SAID, _SAID)
def test_two_conversations_never_have_one_transcript(one: object, other: object) -> None:
    assert (one == other) == (_bytes_of(one) == _bytes_of(other))  # type: ignore[arg-type]


def test_what_a_node_keeps_shows_nothing_and_makes_no_proof() -> None:
    assert "stored" not in repr(VERIFIER) and PASSWORD.decode() not in repr(VERIFIER)
    for kept in (VERIFIER.stored_key, VERIFIER.server_key):
        talk = Talk.between()
        refused(talk, talk.prove(kept))
