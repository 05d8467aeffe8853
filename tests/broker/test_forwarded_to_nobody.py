"""Messages from another node for a queue that is gone: they are routed once more, and then they are dead letters."""

from __future__ import annotations

import pytest

from meshq import MessageOrigin
from meshq.notifications import MessageDeadLettered
from meshq.selector import parse_filter
from meshq.settings import AddressSettings
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import RawPeer, peer_of
from tests.broker.queues import properties

LETTERS = AddressSettings(auto_create_queues=False, dead_letter_address="letters")


def house_without_queue(*, address: str = "q", routing: str = "anycast", settings: AddressSettings = LETTERS) -> House:
    """A node whose first queue is gone when a peer's messages for it come."""
    house = make_house(FakeLog(), settings={"#": settings})
    house.core.definitions.create_queue("q", address=address, routing=routing, durable=True)
    return house


def told(house: House) -> list[MessageDeadLettered]:
    """What is told of dead letters from now on."""
    found: list[MessageDeadLettered] = []
    house.core.settings.event_bus.listen(
        lambda one: found.append(one) if isinstance(one, MessageDeadLettered) else None
    )
    return found


def opened(house: House) -> tuple[RawPeer, int]:
    """A peer that knows the queue, which then goes."""
    peer = peer_of(house)
    channel = peer.open()
    house.client().call("delete_queue", name="q")
    return peer, channel


def origins(house: House, name: str = "letters") -> list[MessageOrigin | None]:
    """Where the messages of a queue came from."""
    found = [view.run.options for view in house.core.router.queues[name].all_runs()]
    return [options.origin if options is not None else None for options in found]


def test_what_is_for_a_queue_that_is_gone_and_has_no_other_place_is_a_dead_letter() -> None:
    house = house_without_queue()
    peer, channel = opened(house)
    tales = told(house)
    for _ in range(2):
        peer.forward(channel, 1, b"1", b"2")
    assert peer.confirmed == [(channel, 2)] * 2
    assert (house.queue("letters").counts.ready, house.core.ingress.unrouted) == (2, 0)
    assert origins(house) == [MessageOrigin("q", "q", "unrouted")]
    assert [(one.address, one.target, one.messages, one.reason) for one in tales] == [("q", "letters", 2, "unrouted")]
    # The link's number is stored with the letters: a crash doubles nothing.
    later = make_house(house.log.after_crash(), records=house.log.recovered(), settings={"#": LETTERS})
    again = peer_of(later)
    again.forward(again.open(), 1, b"1", b"2", b"3")
    assert (later.queue("letters").counts.ready, later.core.ingress.unrouted) == (3, 0)
    assert origins(later) == [MessageOrigin("q", "q", "unrouted")] * 2
    later.check()


def test_without_an_address_for_dead_letters_they_are_counted_and_told_of() -> None:
    house = house_without_queue(settings=AddressSettings(auto_create_queues=False))
    peer, channel = opened(house)
    tales = told(house)
    peer.forward(channel, 1, b"1", b"2")
    assert house.core.ingress.unrouted == 2
    assert [(one.target, one.messages) for one in tales] == [("", 2)]


def test_of_a_run_that_is_routed_once_more_those_that_no_queue_takes_are_dead_letters() -> None:
    house = house_without_queue(address="work")
    chosen = parse_filter("n > 1")
    house.core.definitions.create_queue("other", address="work", routing="anycast", durable=True, filter=chosen)
    peer, channel = opened(house)
    envelopes = [properties({"n": number}) for number in range(4)]
    peer.forward(channel, 1, b"0", b"1", b"2", b"3", address="work", envelopes=envelopes)
    assert (house.queue("other").counts.ready, house.queue("letters").counts.ready) == (2, 2)
    assert (peer.confirmed, house.core.ingress.unrouted) == ([(channel, 4)], 0)
    # Both or none of them are there after a crash.
    assert any(last - first == 1 for first, last in house.log.groups)
    later = make_house(house.log.after_crash(), records=house.log.recovered(), settings={"#": LETTERS})
    again = peer_of(later)
    again.forward(again.open(), 1, b"0", b"1", b"2", b"3", address="work", envelopes=envelopes)
    assert (later.queue("other").counts.ready, later.queue("letters").counts.ready) == (2, 2)


@pytest.mark.parametrize("address", ["news", "$temporary.of a session"])
def test_what_was_for_a_subscription_or_a_session_goes_with_it(address: str) -> None:
    house = house_without_queue()
    house.core.definitions.create_queue("n", address="news", routing="multicast", durable=True)
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"1", queues=(99,), address=address)
    assert "letters" not in house.core.router.queues
    assert (peer.confirmed, house.core.ingress.unrouted) == ([(channel, 1)], 1)
