"""Notifications in a core: who is told what, in which order, and that nobody is waited for."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import limits
from meshq.address import NOTIFICATIONS
from meshq.broker import Core
from meshq.notifications import (
    KINDS,
    BrokerStateChanged,
    ConsumerClosed,
    ConsumerCreated,
    MessageDeadLettered,
    MessageExpired,
    Notification,
    QueueCreated,
    SecurityRefused,
    SessionClosed,
    SessionCreated,
)
from meshq.settings import AddressSettings
from meshq.wire import (
    BY_NAME,
    FLAG_REJECT,
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PLAIN,
    Consume,
    Deliver,
    Envelope,
    Frame,
    FrameType,
    RunBytes,
    RunView,
    decode_map,
    encode_map,
    header_of,
)
from tests.broker.kit import FakeLog, House, RawClient, make_core, make_house
from tests.broker.test_access import client_of, house_with


def listening(core: Core) -> list[Notification]:
    """Everything that happens from now on."""
    heard: list[Notification] = []
    core.settings.event_bus.listen(heard.append)
    return heard


def subscribed(house: House, *, window: int = 100_000, filter: str = "", **about: Any) -> tuple[RawClient, int]:
    """Somebody who has subscribed to notifications, and the channel."""
    client = house.client()
    client.channels += 1
    about = {"subscription": "own", **about}
    header = Consume(queue=NOTIFICATIONS, window=window, window_bytes=1 << 30, filter=filter, **about)
    client.request(FrameType.CONSUME, header, channel=client.channels)
    return client, client.channels


def properties(frame: Frame) -> list[dict[str, Any]]:
    header = header_of(frame, Deliver)
    view = RunView(RunBytes(frame.count, bytes(frame.table), header.base, frame.body))
    return [decode_map(view.properties(row), 1 << 16) for row in range(frame.count)]


def told(client: RawClient, channel: int) -> list[dict[str, Any]]:
    """The properties of each notification that has come."""
    frames = [frame for frame in client.all(FrameType.DELIVER) if frame.channel == channel]
    return [one for frame in frames for one in properties(frame)]


def kinds(client: RawClient, channel: int) -> list[str]:
    return [one["notification"] for one in told(client, channel)]


def test_a_subscriber_sees_a_queue_and_its_consumer_come_and_go_in_order() -> None:
    house = make_house(FakeLog())
    client, channel = subscribed(house)
    other = house.client()
    consumer = other.consume("orders")
    other.leave(consumer)
    other.call("delete_queue", name="orders")
    other.close()
    expected = "session_created queue_created consumer_created consumer_closed queue_deleted session_closed"
    assert kinds(client, channel) == expected.split()
    created = told(client, channel)[1]
    assert created == {
        "notification": "queue_created", "timestamp": 1_000.0, "address": "orders", "queue": "orders",
        "routing": "anycast", "durable": True, "temporary": False,
    }  # fmt: skip
    assert told(client, channel)[2]["consumers"] == 1 and told(client, channel)[3]["consumers"] == 0


def test_filters_choose_among_them() -> None:
    house = make_house(FakeLog())
    filter = "notification = 'queue_created' AND \"address\" LIKE 'orders%'"
    client, channel = subscribed(house, filter=filter)
    other = house.client()
    for name in ("orders.emea", "prices", "orders.us"):
        other.produce(name, name.encode().ljust(16))
    assert [one["queue"] for one in told(client, channel)] == ["orders.emea", "orders.us"]
    assert house.core.ingress.unrouted == 0


def test_nothing_is_made_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    house = make_house(FakeLog())
    for kind in KINDS:
        monkeypatch.setattr(kind, "__init__", lambda *_, **__: pytest.fail("a notification was made"))
    client = house.client()
    client.leave(client.consume("q"))
    client.call("delete_queue", name="q")
    client.close()


def test_programs_hear_at_once_what_happens() -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(dead_letter_address="dead", max_delivery_attempts=1)})
    heard = listening(house.core)
    client = house.client()
    client.put(client.produce(), b"1", b"2", b"3")
    channel = client.consume()
    client.settle(channel, (1, 2), flags=FLAG_REJECT)
    client.close()
    assert [type(one) for one in heard] == [
        SessionCreated, QueueCreated, ConsumerCreated, QueueCreated, MessageDeadLettered, MessageDeadLettered,
        ConsumerClosed, SessionClosed,
    ]  # fmt: skip
    assert heard[4] == MessageDeadLettered(
        timestamp=1_000.0, address="q", queue="q", target="dead", reason="rejected", messages=2
    )
    assert heard[5] == MessageDeadLettered(
        timestamp=1_000.0, address="q", queue="q", target="dead", reason="attempts", messages=1
    )


def test_what_expires_is_told_by_runs_and_not_by_messages() -> None:
    now = [1_000_000]
    house = make_house(FakeLog(), now_ms=lambda: now[0])
    heard = listening(house.core)
    client = house.client()
    late = Envelope(KIND_PLAIN | KIND_HEADERS | KIND_CONTROL, b"", encode_map({"x": 5_000}), b"")
    client.put(client.produce(), *[b"x"] * 100, envelopes=[late] * 100)
    now[0] += 5_000
    house.core.clock_moved()
    assert heard[-1] == MessageExpired(timestamp=1_005.0, address="q", queue="q", target="", messages=100)
    assert sum(type(one) is MessageExpired for one in heard) == 1


def test_what_is_refused_is_told_without_any_secret() -> None:
    house = house_with("q")
    heard = listening(house.core)
    client = client_of(house, "nobody")
    client.call("purge_queue", name="q")
    assert heard[-1] == SecurityRefused(
        timestamp=1_000.0, user="nobody", permission="manage", address="q", peer="client"
    )


def test_a_subscription_that_nobody_reads_keeps_the_newest_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "NOTIFICATIONS_QUEUED_MAX", 10)
    house = make_house(FakeLog())
    subscribed(house, window=1)
    client, other = subscribed(house)
    for number in range(25):
        client.produce(f"q{number}", number.to_bytes(16, "big"))
    slow, quick = house.core.router.addresses[NOTIFICATIONS].queues
    assert len(told(client, other)) == 25
    assert (slow.counts.ready, slow.counts.unacked, slow.counts.removed["purged"]) == (
        10,
        1,
        house.core.settings.event_bus.dropped,
    )
    assert house.core.settings.event_bus.dropped == 1 + 25 - 11
    client.call("purge_queue", name="q0")
    slow.check()
    quick.check()
    assert house.core.memory.used_bytes > 0


def test_a_turn_in_which_too_much_happens_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NOTIFICATIONS_WAITING_MAX", 300)
    house = make_house(FakeLog())
    client, channel = subscribed(house)
    for number in range(1_000):
        house.core.definitions.create_queue(f"q{number}", address=None, routing="anycast", durable=False)
    assert kinds(client, channel) == []
    house.core.pending.run()
    assert [one["queue"] for one in told(client, channel)] == [f"q{number}" for number in range(700, 1_000)]
    assert house.core.settings.event_bus.dropped == 700


def test_nobody_else_sends_to_the_address_and_it_is_multicast_for_ever() -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(auto_create_queues=False, default_routing="anycast")})
    client = house.client()
    usage = BY_NAME["usage"].number
    for operation, about in (
        ("create_address", {"name": NOTIFICATIONS, "routing": "anycast"}),
        ("create_queue", {"name": "mine", "address": NOTIFICATIONS}),
        ("create_divert", {"name": "d", "address": "a", "forwarding_address": NOTIFICATIONS}),
    ):
        client.call(operation, **about)
        assert client.code == usage
    client.produce(NOTIFICATIONS)
    assert client.code == usage
    client.consume(NOTIFICATIONS)
    assert client.code == usage
    assert house.core.router.addresses == {}
    # First use is always allowed here.
    reader, channel = subscribed(house)
    client.call("create_queue", name="mine", address=NOTIFICATIONS, routing="multicast")
    assert client.code == 0
    client.call("create_queue", name="other")
    client.call("move_messages", name="other", address=NOTIFICATIONS)
    assert client.code == usage
    assert [one["queue"] for one in told(reader, channel)] == ["other"]


def test_a_durable_subscription_is_there_after_a_restart_and_what_it_kept_is_not() -> None:
    log = FakeLog()
    house = make_house(log)
    subscribed(house, subscription="single", name="desk", durable=True)
    house.client().produce("q")
    house.rest()
    again = House(make_core(log.after_crash(), records=log.recovered()))
    queue = again.core.router.queues[f"{NOTIFICATIONS}::desk"]
    assert queue.counts.ready == 0
    client, channel = subscribed(again, subscription="single", name="desk", durable=True)
    again.client().produce("new")
    assert kinds(client, channel) == ["session_created", "session_created", "queue_created"]


def test_what_is_recovered_was_not_created_anew() -> None:
    log = FakeLog()
    house = make_house(log)
    house.client().produce("q")
    house.rest()
    core = make_core(log.after_crash(), records=log.recovered())
    assert "q" in core.router.queues
    heard = listening(core)
    House(core).client()
    assert [type(one) for one in heard] == [SessionCreated]


def test_what_becomes_of_the_broker_itself_is_for_its_own_process() -> None:
    house = make_house(FakeLog())
    heard = listening(house.core)
    client, channel = subscribed(house)
    house.core.settings.event_bus.emit(BrokerStateChanged, state="stopping")
    house.core.pending.run()
    assert kinds(client, channel) == [] and type(heard[-1]) is BrokerStateChanged


def test_other_nodes_are_not_told_of_subscriptions_to_what_happens_here() -> None:
    house = make_house(FakeLog())
    changed: list[str] = []
    house.core.router.demand.watchers.append(lambda: changed.append("changed"))
    subscribed(house)
    assert changed == []
    house.client().consume("q")
    assert changed
