"""A client with a password: it proves itself, and goes in nowhere that does not prove itself, too."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.client import Client, ClientSettings, connect
from meshq.client.link._login import Login
from meshq.errors import RemoteProtocolError, SecurityError
from meshq.settings import Secret
from meshq.wire import (
    BY_NAME,
    Authenticated,
    Challenge,
    Close,
    Frame,
    FrameType,
    HandshakeFrames,
    Header,
    header_of,
)
from tests.client._server import FakeConnection, FakeNode, fake_env

TCP = "tcp://127.0.0.1:1"
HELLO = Frame(FrameType.HELLO)
OPENING = HandshakeFrames("client", HELLO, HELLO, b"")


def login(token: bytes = b"n") -> Login:
    return Login(lambda size: token * size, "app", Secret("canary"))


class Impostor(FakeNode):
    """A node that answers AUTHENTICATE, and PROOF, as a test says."""

    answers_with: Header = Authenticated()
    then: Header | None = None

    def _authenticate(self, connection: FakeConnection, frame: Frame) -> None:
        connection.say(self.answers_with)

    def _proof(self, connection: FakeConnection, frame: Frame) -> None:
        assert self.then is not None
        connection.say(self.then)


def impostor(first: Header, then: Header | None = None) -> Impostor:
    node = Impostor(mechanisms=("scram-sha-256",))
    node.answers_with, node.then = first, then
    return node


def challenge(iterations: int = limits.ITERATIONS_MIN) -> Challenge:
    return Challenge(salt=b"s" * 16, iterations=iterations, nonce=b"m" * 32)


async def why_not(node: FakeNode, **settings: object) -> SecurityError:
    """Why a client does not go in; the node hears of it, and the client does not try again."""
    env, network = fake_env(node)
    given = {"user": "app", "password": "canary", "initial_connect_attempts": 9, **settings}
    with pytest.raises(SecurityError) as caught:
        async with connect(TCP, env=env, **given):
            pytest.fail("it went in")
    assert len(network.dialed) == 1
    assert "canary" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (FakeNode(), "does not ask for a user's proof"),
        (FakeNode(mechanisms=()), "does not ask for a user's proof"),
        (FakeNode(mechanisms=("later",)), "does not ask for a user's proof"),
        (impostor(Authenticated()), "did not prove"),
        (impostor(challenge(), Authenticated()), "did not prove"),
        (impostor(challenge(), Authenticated(proof=bytes(32))), "did not prove"),
        (impostor(challenge(iterations=1)), "1 iterations"),
        (impostor(challenge(iterations=limits.ITERATIONS_MAX + 1)), "iterations"),
        (impostor(challenge(), Close(code=BY_NAME["not_authenticated"].number, text="no")), "no"),
    ],
)
async def test_a_node_that_does_not_prove_itself_is_left(node: FakeNode, says: str) -> None:
    assert says in str(await why_not(node))
    assert FrameType.ATTACH not in [frame.type for frame in node.heard]


async def test_a_client_without_a_password_is_told_that_one_is_needed() -> None:
    error = await why_not(FakeNode(mechanisms=("scram-sha-256",)), user=None, password=None)
    assert "asks for a user and a password" in str(error)


async def test_who_was_let_in_without_a_proof_is_not_asked_for_one_later() -> None:
    node = impostor(challenge())
    node.mechanisms = ("none",)
    env, _ = fake_env(node)
    with pytest.raises(RemoteProtocolError, match="CHALLENGE where nothing is to be proved"):
        async with connect(TCP, env=env):
            pytest.fail("it went in")
    (close,) = [frame for frame in node.heard if frame.type is FrameType.CLOSE]
    assert header_of(close, Close).code == BY_NAME["illegal_frame"].number


async def test_in_process_nobody_is_asked() -> None:
    node = FakeNode()
    async with Client.over(lambda: node.connect_local("x"), env=fake_env(node)[0], user="app", password="x") as client:
        await client.send("q", b"x")
    assert node.bodies == [b"x"]


def test_what_is_slow_to_derive_is_derived_once_for_each_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[tuple[bytes, int]] = []

    def salted(password: bytes, salt: bytes, iterations: int) -> bytes:
        derived.append((salt, iterations))
        return bytes(32)

    monkeypatch.setattr("meshq.client.link._login.salted_password", salted)
    mine = login()
    for _ in range(3):
        mine.prove(mine.begin(OPENING), challenge())
    assert len(derived) == 1
    mine.prove(mine.begin(OPENING), challenge(iterations=limits.ITERATIONS_MIN + 1))
    mine.prove(mine.begin(OPENING), challenge())
    assert len(derived) == 3


def test_a_client_says_that_it_is_one_and_a_peer_says_so() -> None:
    assert login().role == "client"
    assert Login(bytes, "cluster", Secret("x"), role="peer").role == "peer"
    assert ClientSettings(user="app", password="x").user == "app"
