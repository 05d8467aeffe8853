"""Advisories: topics that tell of consumers, producers and connections, and cost nothing where nobody reads them."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.address import ADVISORY, NOTIFICATIONS
from meshq.broker.catalog._demand_updates import is_hidden
from meshq.broker.events._advisories_plan import ADVISORY_ONLY
from meshq.errors import SettingsError
from meshq.network._demand_machine import is_forwarded
from meshq.notifications import KINDS
from meshq.settings import AddressSettings
from meshq.wire import BY_NAME, Answer, Consume, FrameType, header_of
from tests.broker.kit import FakeLog, House, RawClient, make_house
from tests.broker.test_access import SECURITY, client_of, outcome
from tests.broker.test_notifications import kinds, listening, told

USAGE = BY_NAME["usage"].number
TOPICS = (
    "Connection", "Consumer.Queue", "Consumer.Queue.q", "Consumer.Topic", "Consumer.Topic.t", "Producer.Queue",
    "Producer.Queue.q", "Producer.Topic", "Producer.Topic.t",
)  # fmt: skip


def reading(client: RawClient, name: str, *, window: int = 1_000, **about: Any) -> int:
    """The channel of a subscriber of an advisory."""
    client.channels += 1
    about = {"subscription": "own", **about}
    header = Consume(queue=ADVISORY + name, window=window, window_bytes=1 << 30, **about)
    client.request(FrameType.CONSUME, header, channel=client.channels)
    return client.channels


def act(house: House) -> None:
    """A client that opens and ends what there is, of a queue and of a topic."""
    client = house.client()
    client.call("create_address", name="t", routing="multicast")
    for address, about in (("q", {}), ("t", {"subscription": "own"})):
        producer = client.produce(address, address.encode().ljust(16))
        client.channels += 1
        header = Consume(queue=address, window=10, window_bytes=1 << 20, **about)
        client.request(FrameType.CONSUME, header, channel=client.channels)
        client.leave(client.channels)
        client.leave(producer)
    client.close()


def test_each_topic_tells_what_comes_and_goes_of_its_subject_and_nothing_else() -> None:
    house = make_house(FakeLog())
    reader = house.client()
    channels = {name: reading(reader, name) for name in TOPICS}
    act(house)
    found = {name: kinds(reader, channel) for name, channel in channels.items()}
    assert found.pop("Connection") == ["session_created", "session_closed"]
    for name, heard in found.items():
        subject = name.partition(".")[0].lower()
        assert heard == [f"{subject}_created", f"{subject}_closed"], name
        address = {"Queue": "q", "Topic": "t"}[name.split(".")[1]]
        assert {one["address"] for one in told(reader, channels[name])} == {address}
    created, closed = told(reader, channels["Consumer.Queue.q"])
    assert (created["queue"], created["consumers"], closed["consumers"]) == ("q", 1, 0)
    produced = told(reader, channels["Producer.Topic.t"])[0]
    del produced["session"]
    assert produced == {
        "notification": "producer_created", "timestamp": 1_000.0, "address": "t", "routing": "multicast", "user": "",
    }  # fmt: skip


def test_producers_are_told_of_at_advisories_alone() -> None:
    house = make_house(FakeLog())
    heard = listening(house.core)
    reader = house.client()
    reader.channels += 1
    about = Consume(queue=NOTIFICATIONS, window=100, window_bytes=1 << 20, subscription="own")
    reader.request(FrameType.CONSUME, about, channel=reader.channels)
    act(house)
    assert "consumer_created" in kinds(reader, reader.channels)
    for told_of in (kinds(reader, reader.channels), [one.kind for one in heard]):
        assert not any(one.startswith("producer") for one in told_of)


def test_nothing_is_made_where_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    house = make_house(FakeLog())
    reader = house.client()
    # The topic is there, and another one is read.
    reader.call("create_address", name=f"{ADVISORY}Consumer.Queue.q", routing="multicast")
    reading(reader, "Consumer.Queue.other")
    for kind in (*KINDS, *ADVISORY_ONLY):
        monkeypatch.setattr(kind, "__init__", lambda *_, **__: pytest.fail("a notification was made"))
    act(house)


def test_what_happens_at_an_advisory_is_told_at_none() -> None:
    house = make_house(FakeLog())
    reader = house.client()
    topics = reading(reader, "Consumer.Topic")
    other = house.client()
    other.leave(reading(other, "Consumer.Topic"))
    assert kinds(reader, topics) == []


def test_an_advisory_is_a_topic_that_nobody_else_sends_to() -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(auto_create_queues=False, default_routing="anycast")})
    client, name = house.client(), f"{ADVISORY}Connection"
    for operation, about in (
        ("create_address", {"name": name, "routing": "anycast"}),
        ("create_divert", {"name": "d", "address": "a", "forwarding_address": name}),
    ):
        client.call(operation, **about)
        assert client.code == USAGE, operation
    client.produce(name)
    assert client.code == USAGE
    # First use is always allowed here, of the names that there are.
    for wrong in ("Consumers", "Consumer", "Consumer.Queue.", "Connection.q", "MessageDLQd.Queue.q"):
        reading(client, wrong)
        assert client.code == USAGE, wrong
    reading(client, "Connection")
    assert client.code == 0
    assert house.core.router.addresses[name].routing == "multicast"


def test_who_reads_an_advisory_needs_the_permission_to_consume_there() -> None:
    house = make_house(FakeLog(), security=SECURITY)
    house.core.definitions.create_address(f"{ADVISORY}Consumer.Queue.q", "multicast")
    for user, refused in (("writer", True), ("reader", False)):
        client = client_of(house, user)
        reading(client, "Consumer.Queue.q")
        assert bool(outcome(client)) is refused, user


def test_an_advisory_is_for_this_broker_alone_and_no_demand() -> None:
    house = make_house(FakeLog())
    changed: list[str] = []
    house.core.router.demand.watchers.append(lambda: changed.append("changed"))
    reading(house.client(), "Connection")
    queue = house.core.router.addresses[f"{ADVISORY}Connection"].queues[0]
    assert is_hidden(queue) and not is_forwarded(queue.address) and changed == []


def test_a_reader_that_does_not_read_keeps_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NOTIFICATIONS_QUEUED_MAX", 10)
    house = make_house(FakeLog())
    reading(house.client(), "Producer.Queue", window=1)
    client = house.client()
    for number in range(25):
        client.produce(f"q{number}", number.to_bytes(16, "big"))
    (slow,) = house.core.router.addresses[f"{ADVISORY}Producer.Queue"].queues
    assert (slow.counts.ready, slow.counts.unacked) == (10, 1)
    assert house.core.settings.event_bus.dropped == 25 - 11


@pytest.mark.parametrize("name", ["Consumer.Queue.>", "Producer.Topic.a.>", ">"])
def test_a_pattern_of_advisories_tells_nothing_and_is_refused(name: str) -> None:
    house = make_house(FakeLog())
    client = house.client()
    reading(client, name)
    answer = header_of(client.last(FrameType.ANSWER), Answer)
    assert answer.code == USAGE and "is no advisory; there are" in answer.text
    assert not house.core.router.addresses


def test_a_broker_without_advisory_support_tells_nothing_and_says_so() -> None:
    house = make_house(FakeLog(), advisory_support=False)
    client = house.client()
    reading(client, "Connection")
    answer = header_of(client.last(FrameType.ANSWER), Answer)
    assert answer.code == USAGE and "advisory_support=False" in answer.text
    assert not house.core.router.addresses


@pytest.mark.parametrize("name", ["dead_letter_address", "expiry_address"])
@pytest.mark.parametrize("address", ["ActiveMQ.Advisory.Connection", "activemq.notifications"])
def test_no_setting_sends_messages_of_users_where_only_the_broker_tells(name: str, address: str) -> None:
    with pytest.raises(SettingsError, match=name):
        AddressSettings(**{name: address})
