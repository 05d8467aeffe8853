"""An address or node that is full says so once, whatever becomes of what comes, and again if it had room meanwhile."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.notifications import AddressFull, MemoryFull
from meshq.settings import AddressSettings
from tests.broker.kit import FakeLog, House, make_house
from tests.broker.pages import FakePages
from tests.broker.test_explaining import explained
from tests.broker.test_notifications import listening


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


@pytest.mark.parametrize("policy", ["page", "block", "drop", "fail"])
def test_a_node_whose_memory_is_full_says_so_once_until_it_has_room_again(policy: str) -> None:
    size = 4 * limits.MIB
    house = make_house(
        FakeLog() if policy == "page" else None, memory=size, settings={"q": AddressSettings(full_policy=policy)}
    )
    pages = FakePages(house) if policy == "page" else None
    heard = listening(house.core)
    client = house.client()
    channel = client.produce()
    bound = {"page": size // 2, "block": size}.get(policy, size * 3 // 4)
    for _ in range(2):
        for _ in range(40):
            if client.sent < client.granted:
                client.put(channel, bytes(128 * limits.KIB))
                if pages is not None:
                    pages.rest()
        (told,) = [one for one in heard if type(one) is MemoryFull]
        assert (told.policy, told.limit) == (policy, size)
        assert bound <= told.used < bound + limits.MIB
        assert not any(type(one) is AddressFull for one in heard)
        heard.clear()
        client.call("purge_queue", name="q")
        assert house.core.memory.used_bytes == 0


def test_a_node_with_memory_left_says_nothing() -> None:
    house = make_house(FakeLog(), memory=4 * limits.MIB)
    pages = FakePages(house)
    heard = listening(house.core)
    client = house.client()
    for _ in range(15):
        client.put(client.produce(producer=bytes(16)), bytes(128 * limits.KIB))
        pages.rest()
    assert not any(type(one) is MemoryFull for one in heard)
