"""A node asks its admission once for each connection, after the login, and does what the answer says."""

from __future__ import annotations

import attrs
import pytest

from meshq import limits
from meshq.abc import Accept, Admission, AdmissionDecision, HandshakeFacts, Redirect, Refuse
from meshq.broker import SessionBounds, SessionRegistry
from meshq.wire import BY_NAME, Attach, Authenticate, FrameType, Hello
from tests.broker.kit import House, RawClient, make_house, nothing

NEW = HandshakeFacts(
    role="client", user="", label="test", address="client", server_name="", resumes=False, sessions=0, user_sessions=0
)
AS_PEER = attrs.evolve(NEW, role="peer", user="app", user_sessions=limits.SESSIONS_PER_USER)


@attrs.define
class Doorkeeper(Admission):
    """An admission that says what the test wants, and keeps what it was asked."""

    answer: AdmissionDecision = attrs.field(factory=Accept)
    asked: list[HandshakeFacts] = attrs.field(factory=list)

    def decide(self, facts: HandshakeFacts) -> AdmissionDecision:
        self.asked.append(facts)
        return self.answer


def house_with(admission: Admission) -> House:
    house = make_house()
    house.sessions = SessionRegistry(house.core, house.clock, 60.0, detached=nothing, admission=admission)
    return house


def test_the_facts_are_those_of_the_handshake_and_the_question_comes_once_after_the_login() -> None:
    door = Doorkeeper()
    house = house_with(door)
    house.client()
    client = house.client(attach=False)
    client.send(FrameType.HELLO, Hello(oldest=1, newest=1, label="till-7"))
    assert len(door.asked) == 1
    client.send(FrameType.AUTHENTICATE, Authenticate(mechanism="none"))
    client.server.handshake.user = "app"
    assert len(door.asked) == 1
    client.send(FrameType.ATTACH, Attach(ttl_ms=60_000))
    client.consume()
    assert door.asked == [NEW, attrs.evolve(NEW, user="app", label="till-7", sessions=1)]


def test_a_connection_that_comes_back_for_its_session_says_so() -> None:
    door = Doorkeeper()
    client = house_with(door).client(ttl_ms=60_000, window_bytes=1 << 20)
    client.drop()
    assert client.resume(ttl_ms=60_000, window_bytes=1 << 20).resumed
    assert door.asked == [NEW, attrs.evolve(NEW, resumes=True, sessions=1)]


@pytest.mark.parametrize(
    ("answer", "refusal", "text"),
    [
        (Redirect("tcp://b:1"), "use_another_server", "another node serves this client: tcp://b:1"),
        (Refuse("not_active", "n waits"), "not_active", "the node is not active: n waits"),
    ],
)
def test_a_connection_that_is_not_accepted_is_told_why_and_gets_no_session(
    answer: AdmissionDecision, refusal: str, text: str
) -> None:
    house = house_with(Doorkeeper(answer))
    client = RawClient(house)
    client.send(FrameType.HELLO, Hello(oldest=1, newest=1))
    client.send(FrameType.AUTHENTICATE, Authenticate(mechanism="none"))
    client.send(FrameType.ATTACH, Attach())
    close = client.good_bye()
    assert (close.code, close.text) == (BY_NAME[refusal].number, text)
    assert client.closed and house.sessions.by_number == {}


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        (NEW, False),
        (attrs.evolve(NEW, sessions=limits.SESSIONS_MAX - 1), False),
        (attrs.evolve(NEW, sessions=limits.SESSIONS_MAX), True),
        (attrs.evolve(NEW, sessions=limits.SESSIONS_MAX, resumes=True), False),
        (attrs.evolve(NEW, user="app", user_sessions=1), False),
        (attrs.evolve(NEW, user="app", user_sessions=2), True),
        (attrs.evolve(NEW, user="app", user_sessions=2, resumes=True), False),
        (attrs.evolve(NEW, user_sessions=2), False),
        (AS_PEER, False),
    ],
)
def test_the_bounds_of_a_node_count_new_sessions_of_the_node_and_of_each_user(
    facts: HandshakeFacts, refused: bool
) -> None:
    answer = SessionBounds(per_user=2).decide(facts)
    assert isinstance(answer, Refuse) is refused
    assert isinstance(answer, Refuse | Accept)
