"""An address that is full says so once, whatever becomes of what comes then, and again when it had room meanwhile."""

from __future__ import annotations

import pytest

from meshq.notifications import AddressFull
from meshq.settings import AddressSettings
from tests.broker.kit import FakeLog, House, make_house
from tests.broker.test_explaining import explained
from tests.broker.test_notices import listening


def full_house(policy: str, log: FakeLog | None = None) -> House:
    return make_house(log, settings={"q": AddressSettings(full_policy=policy, max_size_messages=4)})


@pytest.mark.parametrize("policy", ["block", "drop", "fail"])
def test_a_full_address_says_so_once_until_it_has_room_again(policy: str) -> None:
    house = full_house(policy)
    heard = listening(house.core)
    client = house.client()
    channel = client.produce()
    told = AddressFull(timestamp=1_000.0, address="q", policy=policy)
    for _ in range(2):
        for _ in range(8):
            client.put(channel, b"x")
        assert [one for one in heard if type(one) is AddressFull] == [told]
        assert explained(house, "q")["waits"] == ("the address is full" if policy == "block" else "")
        heard.clear()
        client.call("purge_queue", name="q")
        assert explained(house, "q")["waits"] == ""


def test_an_address_that_is_paged_says_so() -> None:
    house = full_house("page", FakeLog())
    heard = listening(house.core)
    client = house.client()
    channel = client.produce()
    for _ in range(8):
        client.put(channel, b"x")
    assert [one for one in heard if type(one) is AddressFull] == [
        AddressFull(timestamp=1_000.0, address="q", policy="page")
    ]


def test_an_address_with_room_says_nothing() -> None:
    house = full_house("fail")
    heard = listening(house.core)
    client = house.client()
    client.put(client.produce(), b"x")
    assert not any(type(one) is AddressFull for one in heard)
