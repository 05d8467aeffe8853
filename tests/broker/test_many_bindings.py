"""A node that describes thousands of queues of one address costs no more than its descriptions."""

from __future__ import annotations

import pytest

from meshq.broker import RemoteBinding
from meshq.broker.catalog._router import Router
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import bind

#: Enough for a look at each of them to take long.
QUEUES = 500


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses whose clustered queues were worked out, each time."""
    found: list[str] = []
    work_out = Router.bindings

    def counted(self: Router, address: str) -> list[RemoteBinding]:
        found.append(address)
        return work_out(self, address)

    monkeypatch.setattr(Router, "bindings", counted)
    return found


def house_with_queue() -> House:
    """A node with a queue of the address."""
    house = make_house(FakeLog())
    house.core.definitions.create_queue("q", address="q", routing="anycast", durable=True)
    return house


def test_all_queues_of_a_node_are_taken_up_replaced_and_dropped_in_one_look_each(looks: list[str]) -> None:
    house = house_with_queue()
    router = house.core.router
    forward = bind(house)
    link = forward.number.to_bytes(8, "big")
    sender = house.client()
    channel = sender.produce("q")
    sender.put(channel, b"x")
    for described in (range(1, QUEUES + 1), range(2, QUEUES + 2), range(0)):
        del looks[:]
        bindings = [RemoteBinding(forward, "on_demand", one, f"q{one}", "q", "anycast", 1, ()) for one in described]
        router.replace(link, bindings)
        sender.put(channel, b"x")
        assert looks.count("q") <= 2
        assert len(router.addresses["q"].clustered_queues) == (len(described) + 1 if described else 0)


def test_queues_that_are_described_one_by_one_are_looked_at_when_a_message_comes(looks: list[str]) -> None:
    house = house_with_queue()
    del looks[:]
    for number in range(1, 101):
        bind(house, number=number, name=f"q{number}")
    assert looks.count("q") <= 1
    sender = house.client()
    channel = sender.produce("q")
    sender.put(channel, *[b"x"] * 100)
    assert looks.count("q") <= 2
    assert house.queue("$meshq.cluster.mesh.there").counts.added == 100
