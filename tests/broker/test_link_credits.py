"""The credits of links at the bounded addresses of a node: what they cost, and who has them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from meshq.broker.catalog._address_quota import AddressQuota
from meshq.broker.catalog._producer_credit import ProducerCredit
from meshq.broker.events._event_bus import EventBus
from meshq.broker.queue._queue_machine import Queue
from meshq.settings import AddressSettings
from meshq.wire import BY_NUMBER, AddressCredit, FrameType, header_of
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.pages import FakePageRequests
from tests.broker.peers import RawPeer, peer_of


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


# -- links that send nothing


class Links:
    """Links of other nodes at one address; they answer when they are asked for credit."""

    def __init__(self, limit: int, links: int) -> None:
        queue = Queue(1, "q", "q", durable=False)
        self.quota = AddressQuota("q", "anycast", [queue], event_bus=EventBus(), press=FakePageRequests().wake)
        self.quota.rule(AddressSettings(full_policy="block", max_size_messages=limit), pages=True)
        self.asked: dict[int, int] = {}
        self.credits: list[ProducerCredit] = []
        for number in range(links):
            credit = self.quota.open(0, lambda until, number=number: self.told(number, until), link=True)  # type: ignore[misc]
            self.credits.append(credit)
            credit.extend(credit.until)

    def told(self, number: int, until: int) -> None:
        if len(self.credits) > number and until < self.credits[number].until:
            self.asked[number] = until

    def answer(self, on_their_way: int = 0) -> None:
        """Answer as whoever has sent so many messages that have not come."""
        asked, self.asked = self.asked, {}
        for number, until in asked.items():
            self.credits[number].kept(max(until, self.credits[number].count + on_their_way))

    def send(self, number: int, messages: int) -> None:
        """Messages come and stay."""
        self.quota.unreleased += messages
        self.credits[number].sent(self.credits[number].count + messages)
        self.answer()

    def take(self, messages: int) -> None:
        """A consumer takes messages."""
        self.quota.unreleased -= messages
        self.quota.less()
        self.answer()

    @property
    def promised(self) -> list[int]:
        return [credit.promised for credit in self.credits]


def test_links_that_have_sent_nothing_leave_most_of_an_address_to_others() -> None:
    links = Links(100, links=8)
    assert links.promised == [6, 5, 5, 5, 4, 4, 4, 4]
    assert Links(4, links=8).promised == [1] * 8


@pytest.mark.parametrize("busy", [False, True])
def test_one_of_eight_links_that_sends_gets_as_much_as_if_it_were_alone(busy: bool) -> None:
    """``busy``: the others have sent, too, and sit on what they got then."""
    links = Links(100, links=8)
    if busy:
        for number in range(8):
            credit = links.credits[number]
            credit.sent(credit.until)
        assert max(links.promised) > 10
    runs = 0
    while links.credits[7].count < 1_000:
        messages = links.promised[7]
        links.send(7, messages)
        links.take(messages)
        runs += 1
    # A quarter of what is free at a time, as it would be with seven links less: 25 or 23.
    assert links.promised[7] >= 12 and runs <= 80
    assert sum(links.promised[:7]) <= 50


@pytest.mark.parametrize("seed", range(5))
def test_whatever_links_send_an_address_holds_its_limit_and_one_message_of_each_link(seed: int) -> None:
    rng, limit = random.Random(seed), 30
    links = Links(limit, links=8)
    for _ in range(2_000):
        if rng.random() < 0.6:
            number = rng.randrange(8)
            links.send(number, rng.randint(0, links.promised[number]))
        elif links.quota.messages:
            links.take(rng.randint(1, links.quota.messages))
        assert links.quota.messages <= limit + 8
        assert links.quota._reserved == sum(links.promised)
    # Nobody waits for ever.
    links.take(links.quota.messages)
    assert min(links.promised) >= 1


def test_credit_that_was_used_before_it_was_asked_for_is_kept() -> None:
    links = Links(64, links=2)
    first, second = links.credits
    first.sent(first.until)
    assert links.promised == [15, 3]
    links.quota.unreleased += 48
    second.sent(3)
    # Of the sixteen that are free fifteen were promised.
    assert links.asked == {0: first.count + 1}
    links.answer(on_their_way=10)
    assert first.promised == 10 and not first.asked
    first.sent(first.until)
    assert first.promised > 0 and links.quota._reserved == sum(links.promised)


def told_to(peer: RawPeer) -> list[int]:
    return [frame.first for frame in peer.all(FrameType.ADDRESS_CREDIT)]


def test_a_link_is_asked_for_what_it_has_not_used_and_says_what_it_keeps() -> None:
    house = house_of(max_size_messages=64)
    idle, busy = peer_of(house), peer_of(house)
    channel = idle.open(link=b"the idle link...", bounded=True)
    other = busy.open(link=b"the busy link...", bounded=True)
    idle.forward(channel, 1, *[b"x"] * 4, credit=1)
    assert told_to(idle)[-1] > 10
    number = 1
    while told_to(idle)[-1] > 5:
        busy.forward(other, number, b"x", credit=1)
        number += 1
    quota = house.core.router.quotas["q"]
    before = quota._reserved
    idle.send(FrameType.ADDRESS_CREDIT, AddressCredit(address="q", number=1), channel=channel, first=5)
    assert quota._reserved < before
    # It goes on when it has something to send.
    client = house.client()
    client.settle(client.consume("q"), (1, number))
    idle.forward(channel, 5, b"x", credit=1)
    assert told_to(idle)[-1] > 5


def test_credit_that_nobody_has_asked_for_is_not_given_back() -> None:
    house = house_of(max_size_messages=64)
    peer = peer_of(house)
    channel = peer.open(bounded=True)
    # One that is closed by now is none.
    peer.send(FrameType.ADDRESS_CREDIT, AddressCredit(address="q", number=9), channel=channel, first=1)
    assert not peer.all(FrameType.CLOSE)
    peer.send(FrameType.ADDRESS_CREDIT, AddressCredit(address="q", number=1), channel=channel, first=1)
    assert BY_NUMBER[peer.good_bye().code].name == "bad_number"
