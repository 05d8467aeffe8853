"""How many sessions a user may have, and for how long those are kept whose clients are gone."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.abc import Admission, HandshakeFacts, Redirect, Refuse
from meshq.broker import SessionBounds
from meshq.broker.session._session import ServerSession
from meshq.broker.session._session_registry import SessionRegistry
from meshq.wire import BY_NAME, Attach, Attached, Authenticate, Close, FrameType, Hello, Role, header_of
from tests.broker.kit import Clock, House, RawClient, make_house, nothing


def later(house: House, seconds: float) -> float | None:
    """Time goes by; returns when the next session ends."""
    clock = house.clock
    assert isinstance(clock, Clock)
    clock.now += seconds
    return house.sessions.expire()


def guest(house: House, user: str, *, refused: bool, role: Role = "client") -> RawClient:
    """A client of whom it is known who is there."""
    client = RawClient(house)
    for header in (Hello(oldest=1, newest=1), Authenticate(mechanism="none")):
        client.send(header.frame_type, header)
    client.server.handshake.role, client.server.handshake.user = role, user
    client.send(FrameType.ATTACH, Attach(ttl_ms=60_000, window_bytes=1 << 20))
    assert client.closed is refused
    if not refused:
        client.attached = header_of(client.last(FrameType.ATTACHED), Attached)
    return client


def test_a_user_has_so_many_sessions_and_others_still_get_theirs() -> None:
    house = make_house()
    bounds = SessionBounds(per_user=2)
    house.sessions = SessionRegistry(house.core, house.clock, 60.0, detached=nothing, admission=bounds)
    mine = [guest(house, "app", refused=False) for _ in range(2)]
    third = guest(house, "app", refused=True)
    close = third.good_bye()
    assert close.code == BY_NAME["too_many_sessions"].number
    assert "the user 'app' has 2, and may have 2" in close.text
    guest(house, "ops", refused=False)
    # A peer of the same name is somebody else; whoever need not say who they are has no bound but the node's.
    guest(house, "app", refused=False, role="peer")
    for _ in range(3):
        guest(house, "", refused=False)
    # A session that waits for its client counts, until its time is up or it is ended.
    mine[0].drop()
    assert guest(house, "app", refused=True).closed
    later(house, 60.1)
    guest(house, "app", refused=False)
    mine[1].send(FrameType.CLOSE, Close())
    again = guest(house, "app", refused=False)
    # Coming back for it is no new one.
    again.drop()
    assert again.attached is not None
    wanted = Attach(session=again.attached.session, key=again.attached.key, ttl_ms=60_000)
    assert house.sessions.attach(again.link, "", wanted, ("client", "app"))[1].resumed
    assert house.sessions._of_user == {"app": 2, "ops": 1}


def test_a_detached_session_is_kept_as_long_as_the_server_allows_whatever_its_client_asks_for() -> None:
    house = make_house()
    house.sessions = SessionRegistry(house.core, house.clock, 300.0, detached=nothing, admission=SessionBounds())
    client = house.client(ttl_ms=3_600_000)
    assert client.attached is not None and client.attached.ttl_ms == 300_000
    client.drop()
    assert later(house, 299.9) == 300.0 and len(house.sessions.by_number) == 1
    assert later(house, 0.1) is None and house.sessions.by_number == {}


def test_a_detach_looks_at_no_other_session() -> None:
    """Each costs the same, however many wait already."""
    looked: list[int] = []

    class Counting(dict[int, ServerSession]):
        def values(self) -> Any:
            looked.append(len(self))
            return super().values()

        def __iter__(self) -> Any:
            looked.append(len(self))
            return super().__iter__()

    house = make_house()
    house.sessions.by_number = Counting()
    bounds, due = SessionBounds(), list[float | None]()
    house.sessions = SessionRegistry(
        house.core,
        house.clock,
        3_600.0,
        detached=lambda: due.append(house.sessions.expire()),
        admission=bounds,
    )
    clients = [house.client(ttl_ms=60_000) for _ in range(50)]
    for client in clients:
        client.drop()
    assert len(house.sessions.by_number) == 50 and looked == []
    later(house, 60.0)
    assert house.sessions.by_number == {} and house.sessions.expired == 50


class Odd(Admission):
    """A rule that decides what a test says."""

    def __init__(self, decision: Any) -> None:
        self.decision = decision

    def decide(self, facts: HandshakeFacts) -> Any:
        return self.decision


@pytest.mark.parametrize(
    "decision",
    [None, False, "no", Refuse("no_such_refusal", "text"), Refuse("not_active", None), Redirect(7)],  # type: ignore[arg-type]
)
def test_a_rule_that_decides_nothing_that_can_be_done_lets_nobody_in(decision: Any) -> None:
    house = make_house()
    house.sessions = SessionRegistry(house.core, house.clock, 60.0, detached=nothing, admission=Odd(decision))
    close = guest(house, "app", refused=True).good_bye()
    assert close.code == BY_NAME["usage"].number
    assert "allowed is Accept, Redirect with a URL, or Refuse" in close.text
    assert house.sessions.by_number == {} and house.sessions._of_user == {}
