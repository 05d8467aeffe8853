"""Who may come in, at the broker, in raw frames: users as clients, nodes as peers, and nobody as the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshq import limits
from meshq.broker import Credentials
from meshq.settings import Secret
from meshq.wire import (
    BY_NUMBER,
    MECHANISM_SCRAM,
    NONCE_BYTES,
    Attach,
    Attached,
    Authenticate,
    Authenticated,
    Challenge,
    ClientExchange,
    Close,
    Frame,
    FrameType,
    HandshakeFrames,
    Header,
    Hello,
    Produce,
    Proof,
    Role,
    Welcome,
    header_of,
    own_nonce,
    salted_password,
)
from tests.broker.kit import House, Receiver, make_house

CREDENTIALS = Credentials.derive(
    {"client": {"app": Secret("right"), "ops": Secret("other")}, "peer": {"cluster": Secret("among us")}}, b"of today"
)
USERS_ONLY = Credentials.derive({"client": {"app": Secret("right")}}, b"of today")
PEERS_ONLY = Credentials.derive({"peer": {"cluster": Secret("among us")}}, b"of today")


class Caller:
    """Somebody at the door, frame by frame."""

    def __init__(
        self,
        house: House,
        credentials: Credentials | None = CREDENTIALS,
        *,
        trusted: bool = False,
        lossless: bool = False,
        binding: bytes = b"",
    ) -> None:
        self.link, self.server = house.link(lossless=lossless, trusted=trusted, credentials=credentials)
        self.link.binding = binding
        self.link.start(Receiver(self.heard_frames, lambda: None))
        self.heard: list[Frame] = []
        self.hello = Frame(FrameType.HELLO)
        self.exchange: ClientExchange | None = None

    def heard_frames(self, frames: list[Frame]) -> None:
        self.heard += frames

    def say(self, header: Header) -> Frame:
        frame = Frame(header.frame_type, header=header.encode())
        self.link.send(frame)
        self.link.flush()
        return self.heard[-1]

    def greet(self, role: str = "client") -> Welcome | Close:
        header = Hello(oldest=1, newest=1, role=role)
        self.hello = Frame(FrameType.HELLO, header=header.encode())
        answer = self.say(header)
        return header_of(answer, Welcome if answer.type is FrameType.WELCOME else Close)

    def begin(self, user: str, role: Role = "client", *, nonce: bytes = b"c" * NONCE_BYTES) -> Challenge:
        assert isinstance(self.greet(role), Welcome)
        opening = HandshakeFrames(role, self.hello, self.heard[-1], self.link.binding)
        self.exchange = ClientExchange(opening, user, nonce)
        return header_of(self.say(self.exchange.begin), Challenge)

    def proof(self, challenge: Challenge, password: str) -> Proof:
        assert self.exchange is not None
        salted = salted_password(password.encode(), challenge.salt, challenge.iterations)
        return self.exchange.prove(challenge, salted)

    def log_in(self, user: str, password: str, role: Role = "client") -> Authenticated | Close:
        answer = self.say(self.proof(self.begin(user, role), password))
        return header_of(answer, Authenticated if answer.type is FrameType.AUTHENTICATED else Close)

    @property
    def refusal(self) -> tuple[str, str]:
        close = header_of(self.heard[-1], Close)
        return BY_NUMBER[close.code].name, close.text


def test_who_has_the_password_gets_a_session_and_knows_the_node() -> None:
    house = make_house()
    caller = Caller(house)
    answer = caller.log_in("app", "right")
    assert isinstance(answer, Authenticated) and caller.exchange is not None
    caller.exchange.check(answer)
    assert caller.server.handshake.authenticated and (caller.server.handshake.role, caller.server.handshake.user) == (
        "client",
        "app",
    )
    caller.say(Attach())
    assert house.sessions.by_number[1].principal.owner == ("client", "app")
    assert house.counts.denied == 0


@pytest.mark.parametrize(
    ("user", "password", "role"),
    [
        ("app", "wrong", "client"),
        ("app", "Right", "client"),
        ("app", "other", "client"),
        ("nobody", "right", "client"),
        ("", "right", "client"),
        ("cluster", "among us", "client"),
        ("app", "right", "peer"),
        ("cluster", "right", "peer"),
    ],
)
def test_whatever_is_wrong_the_same_is_said_and_it_is_counted(user: str, password: str, role: Role) -> None:
    house = make_house()
    caller = Caller(house)
    assert isinstance(caller.log_in(user, password, role), Close)
    assert caller.refusal == ("not_authenticated", "the authentication failed: no such user, or another password")
    assert caller.server.handshake.denied and caller.server.closed and not caller.server.handshake.authenticated
    assert (house.counts.denied, house.counts.violations, house.sessions.by_number) == (1, 0, {})


def test_a_user_who_does_not_exist_is_asked_like_one_who_does() -> None:
    asked = [Caller(make_house()).begin(user) for user in ("app", "nobody", "app", "nobody")]
    assert asked[0] == asked[2] and asked[1] == asked[3]
    assert asked[0].salt != asked[1].salt
    assert asked[0].iterations == asked[1].iterations == limits.ITERATIONS
    as_peer = Caller(make_house()).begin("app", "peer")
    assert as_peer.salt != asked[0].salt and as_peer.iterations == limits.ITERATIONS_MIN
    other_start = Credentials.derive({"client": {"app": Secret("right")}}, b"of tomorrow")
    assert Caller(make_house(), other_start).begin("nobody").salt != asked[1].salt


def test_a_peer_is_known_by_the_clusters_password() -> None:
    caller = Caller(make_house(), PEERS_ONLY, trusted=True)
    assert isinstance(caller.log_in("cluster", "among us", "peer"), Authenticated)
    assert (caller.server.handshake.role, caller.server.handshake.user) == ("peer", "cluster")


def test_what_is_offered_depends_on_the_role_and_on_the_link() -> None:
    def offered(credentials: Credentials | None, role: str, **options: bool) -> tuple[str, ...] | str:
        answer = Caller(make_house(), credentials, **options).greet(role)
        return answer.mechanisms if isinstance(answer, Welcome) else BY_NUMBER[answer.code].name

    scram, none = (MECHANISM_SCRAM,), ("none",)
    assert offered(CREDENTIALS, "client") == offered(CREDENTIALS, "peer") == scram
    assert (offered(USERS_ONLY, "client"), offered(USERS_ONLY, "peer")) == (scram, "role_not_served")
    assert (offered(PEERS_ONLY, "client"), offered(PEERS_ONLY, "peer")) == ((), scram)
    assert (offered(PEERS_ONLY, "client", trusted=True), offered(PEERS_ONLY, "peer", trusted=True)) == (none, scram)
    assert (offered(None, "client", trusted=True), offered(None, "peer", trusted=True)) == (none, "role_not_served")
    # In process everybody is the same program.
    within = {"trusted": True, "lossless": True}
    assert offered(None, "client", **within) == offered(None, "peer", **within) == none
    assert offered(CREDENTIALS, "king", **within) == "role_not_served"


@pytest.mark.parametrize("mechanism", ["none", "", "scram", "SCRAM-SHA-256"])
def test_nothing_else_than_what_is_offered_will_do(mechanism: str) -> None:
    caller = Caller(make_house())
    caller.greet()
    caller.say(Authenticate(mechanism=mechanism, user="app", nonce=bytes(NONCE_BYTES)))
    assert caller.refusal[0] == "unknown_mechanism" and not caller.server.handshake.denied


def test_a_session_is_asked_for_after_the_proof_only() -> None:
    caller = Caller(make_house())
    caller.begin("app")
    caller.say(Attach())
    assert caller.refusal[0] == "illegal_frame"
    caller = Caller(make_house())
    caller.greet()
    caller.say(Proof(proof=bytes(32)))
    assert caller.refusal[0] == "illegal_frame"


def test_a_proof_that_was_heard_is_of_no_use() -> None:
    house = make_house()
    heard = Caller(house)
    proof = heard.proof(heard.begin("app"), "right")
    thief = Caller(house)
    # Even with the same nonce of the client; the node's is its own.
    serial = iter(range(9))
    object.__setattr__(house.core.settings, "token", lambda size: bytes([next(serial)]) * size)
    thief.begin("app")
    thief.say(proof)
    assert thief.refusal[0] == "not_authenticated"


def test_a_node_that_is_led_back_to_itself_lets_nobody_in() -> None:
    # Nodes have one password between them: what this one says when it dials would open its own door.
    house = make_house()
    nonce = own_nonce(b"t" * NONCE_BYTES, house.core.settings.instance)
    caller = Caller(house)
    with pytest.raises(AssertionError):
        caller.begin("cluster", "peer", nonce=nonce)
    assert caller.refusal == ("same_node", "the node was reached by itself: 'node' was reached by itself")
    assert caller.server.closed and not caller.server.handshake.authenticated and not caller.server.handshake.denied
    assert house.sessions.by_number == {}
    # Another node's is welcome, and so is a user: only nodes dial as peers.
    other = own_nonce(b"t" * NONCE_BYTES, b"another life    ")
    assert Caller(house).begin("cluster", "peer", nonce=other)
    assert Caller(house).begin("app", "client", nonce=nonce)


def test_a_proof_for_a_link_with_another_certificate_is_refused() -> None:
    # Somebody in between has a certificate of their own: what the client proves is bound to that one.
    caller = Caller(make_house(), binding=b"certificate of somebody in between")
    assert isinstance(caller.log_in("app", "right"), Close)
    assert caller.refusal[0] == "not_authenticated"


def test_a_session_is_resumed_by_its_own_user_only() -> None:
    house = make_house()

    def attach(user: str, password: str, wanted: Attach) -> Attached:
        caller = Caller(house)
        assert isinstance(caller.log_in(user, password), Authenticated)
        caller.say(wanted)
        (frame,) = [frame for frame in caller.heard if frame.type is FrameType.ATTACHED]
        return header_of(frame, Attached)

    mine = attach("app", "right", Attach())
    again = Attach(session=mine.session, key=mine.key)
    assert not attach("ops", "other", again).resumed
    assert attach("app", "right", again).resumed
    assert not attach("app", "right", Attach(session=mine.session, key=bytes(16))).resumed


def test_what_is_kept_shows_nothing() -> None:
    assert repr(CREDENTIALS) == "<Credentials client=2, peer=1>"


#: A proof that was heard on another connection, and one that was made up.
_HEARD = Caller(make_house())
_PROOFS = (_HEARD.proof(_HEARD.begin("app"), "right"), Proof(proof=bytes(32)))
_HELLOS: tuple[Header, ...] = tuple(Hello(oldest=1, newest=1, role=role) for role in ("client", "peer", "king"))
_BEGINNINGS: tuple[Header, ...] = tuple(
    Authenticate(mechanism=mechanism, user=user, nonce=nonce)
    for mechanism in (MECHANISM_SCRAM, "none")
    for user in ("app", "cluster", "nobody", "")
    for nonce in (b"c" * NONCE_BYTES, b"")
)
_REST: tuple[Header, ...] = (
    *_PROOFS,
    Attach(),
    Attach(session=1, key=bytes(16)),
    Authenticated(),
    Challenge(salt=bytes(16), iterations=4_096, nonce=bytes(32)),
    Produce(producer=bytes(16), address="q"),
)


def stranger_says(said: Iterable[Header], credentials: Credentials) -> None:
    """Whatever it is, it leads to no session."""
    house = make_house()
    serial = iter(range(1, 99))
    object.__setattr__(house.core.settings, "token", lambda size: bytes([next(serial)]) * size)
    caller = Caller(house, credentials)
    for header in said:
        channel = 1 if header.frame_type is FrameType.PRODUCE else 0
        caller.link.send(Frame(header.frame_type, header=header.encode(), channel=channel, first=channel))
        caller.link.flush()
    assert house.sessions.made == 0 and not caller.server.handshake.authenticated
    assert FrameType.AUTHENTICATED not in [frame.type for frame in caller.heard]


@pytest.mark.parametrize("credentials", [CREDENTIALS, USERS_ONLY, PEERS_ONLY], ids=["both", "users", "peers"])
def test_a_stranger_gets_no_session_by_any_way_through_the_handshake(credentials: Credentials) -> None:
    for said in itertools.product(_HELLOS, _BEGINNINGS, _REST):
        stranger_says((*said, Attach()), credentials)


@settings(max_examples=200)
@given(st.lists(st.sampled_from((*_HELLOS, *_BEGINNINGS, *_REST)), max_size=7))
def test_a_stranger_gets_no_session_by_anything_in_any_order(said: list[Header]) -> None:
    stranger_says(said, CREDENTIALS)
