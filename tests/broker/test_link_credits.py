"""The credits of links at the bounded addresses of a node: what they cost, and who has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from meshq.broker.catalog._address_quota import AddressQuota
from meshq.settings import AddressSettings
from meshq.wire import AddressCredit, FrameType, header_of
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import peer_of


class Counted(dict[str, AddressQuota]):
    """Quotas by address; counts how many of them were looked at."""

    looks = 0

    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self.looks += 1
            yield key

    def get(self, *key: Any) -> Any:
        self.looks += 1
        return super().get(*key)


def house_of(**settings: Any) -> House:
    """A node each of whose addresses is bounded; it has a queue ``q``."""
    house = make_house(FakeLog(), settings={"#": AddressSettings(full_policy="block", **settings)})
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    return house


@pytest.mark.parametrize("addresses", [10, 200])
def test_one_more_bounded_address_or_one_less_costs_the_same_however_many_there_are(addresses: int) -> None:
    house = house_of(max_size_messages=4)
    client = house.client()
    for number in range(addresses):
        client.call("create_queue", name=f"q{number}")
    peers = [peer_of(house) for _ in range(3)]
    for number, peer in enumerate(peers):
        peer.open(link=b"a link, number %d" % number, bounded=True)
        assert len(peer.all(FrameType.ADDRESS_CREDIT)) == addresses + 1
    counted = house.core.router.quotas = Counted(house.core.router.quotas)
    client.call("create_queue", name="one.more")
    client.call("delete_queue", name="q1")
    assert counted.looks < 30
    for peer in peers:
        told = [header_of(frame, AddressCredit).address for frame in peer.all(FrameType.ADDRESS_CREDIT)]
        assert told[addresses + 1 :][:1] == ["one.more"]
