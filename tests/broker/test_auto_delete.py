"""Queues and addresses that came into being on first use go when nobody needs them."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.errors import SettingsError
from meshq.settings import AddressSettings
from meshq.wire import FLAG_REJECT, FLAG_RETURN, KIND_CONTROL, KIND_HEADERS, Consume, Envelope, FrameType, encode_map
from tests.broker.kit import FakeLog, House, make_core, with_ids

GOING = {
    "#": AddressSettings(auto_delete_queues=True),
    "kept.#": AddressSettings(auto_delete_queues=False),
    "news.#": AddressSettings(default_routing="multicast"),
}


def house(log: FakeLog | None = None, **options: Any) -> House:
    return House(make_core(log, settings=GOING, **options))


def again(old: House) -> House:
    return house(old.log.after_crash(), records=old.log.recovered())


def names(found: House) -> tuple[list[str], list[str]]:
    return list(found.core.router.addresses), list(found.core.router.queues)


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_made_on_first_use_goes_when_it_is_empty_and_its_last_consumer_has_left(durable: bool) -> None:
    here = house(FakeLog())
    client = here.client()
    producer = client.produce("work")
    client.put(producer, b"1", b"2", durable=durable)
    first, second = client.consume("work", window=1), client.consume("work", window=1)
    client.leave(first)
    client.settle(second, (1, 1))
    client.settle(second, (2, 2))
    assert names(here) == (["work"], ["work"])
    client.leave(second)
    assert names(here) == ([], [])
    here.check()
    # A producer that is still there makes it again; it waits for somebody to come.
    client.put(producer, b"3", durable=durable)
    assert names(here) == (["work"], ["work"]) and here.queue("work").number == 2
    if durable:
        here = again(here)
        client = here.client()
        assert names(here) == (["work"], ["work"])
        channel = client.consume("work")
        assert client.bodies(channel) == [b"3"]
        client.settle(channel, (1, 1))
        client.close()
        assert names(here) == ([], [])
        assert names(again(here)) == ([], [])


def test_what_waits_or_comes_back_keeps_the_queue_and_a_purge_ends_it() -> None:
    here = house(FakeLog())
    client = here.client()
    client.put(client.produce("work"), b"1")
    channel = client.consume("work")
    client.settle(channel, (1, 1), flags=FLAG_RETURN)
    client.leave(channel, handed=1)
    assert names(here)[1] == ["work"]
    client.call("purge_queue", name="work")
    assert names(here) == ([], [])


def test_what_comes_again_later_and_what_is_not_due_keep_the_queue() -> None:
    now = [1_000_000]
    going = AddressSettings(auto_delete_queues=True, redelivery_delay=5)
    here = House(make_core(settings={"#": going}, now_ms=lambda: now[0]))
    client = here.client()
    client.put(client.produce("work"), b"1")
    channel = client.consume("work")
    client.settle(channel, (1, 1), flags=FLAG_RETURN)
    client.leave(channel, handed=2)
    assert (here.queue("work").counts.ready, here.queue("work").counts.delayed) == (0, 1)
    now[0] += 5_000
    here.core.clock_moved()
    channel = client.consume("work")
    client.settle(channel, (1, 1))
    client.leave(channel)
    assert names(here) == ([], [])


def test_what_is_on_its_way_to_the_disk_keeps_the_queue() -> None:
    here = house(FakeLog())
    client = here.client()
    producer, channel = client.produce("work"), client.consume("work")
    here.auto = False
    client.put(producer, b"1")
    client.leave(channel)
    assert names(here)[1] == ["work"]
    here.log.sync()
    assert client.confirmed == [(producer, 1)] and here.queue("work").counts.ready == 1
    assert names(again(here))[1] == ["work"]


def test_what_was_created_stays_and_so_does_what_nobody_has_consumed_from() -> None:
    here = house(FakeLog())
    client = here.client()
    client.call("create_queue", name="made")
    for name in ("made", "used", "kept.x", "claimed"):
        client.put(client.produce(name, name.ljust(16).encode()), b"1")
    client.call("create_queue", name="claimed")
    for name in ("made", "kept.x", "claimed"):
        channel = client.consume(name)
        client.settle(channel, (1, 1))
        client.leave(channel)
    client.call("purge_queue", name="used")
    kept = ["made", "used", "kept.x", "claimed"]
    assert names(here) == (kept, kept)
    assert here.queue("used").counts.ready == 0
    here = again(here)
    client = here.client()
    client.leave(client.consume("claimed"))
    client.leave(client.consume("used"))
    assert names(here)[1] == ["made", "kept.x", "claimed"]


def test_an_address_goes_with_its_last_queue_unless_it_has_something_to_remember() -> None:
    here = house(FakeLog())
    client = here.client()
    client.put(client.produce("ids"), b"1", envelopes=with_ids("a"))
    channel = client.consume("ids")
    client.settle(channel, (1, 1))
    client.leave(channel)
    assert names(here) == (["ids"], [])
    client.put(client.produce("ids", b"another producer"), b"1", envelopes=with_ids("a"))
    assert here.core.ingress.duplicates == 1
    # Two queues of an address, one after the other.
    for name in ("pair::one", "pair::two"):
        client.leave(client.consume(name))
    assert names(here)[0] == ["ids"]
    one, two = client.consume("pair::one"), client.consume("pair::two")
    client.leave(one)
    assert names(here) == (["ids", "pair"], ["ids", "two"])
    client.leave(two)
    assert names(here)[0] == ["ids"]
    client.call("create_divert", name="d", address="way", forwarding_address="x")
    client.leave(client.consume("way"))
    assert names(here) == (["ids", "way"], ["ids"])


def test_an_address_of_a_routing_that_it_would_not_have_again_stays() -> None:
    here = house(FakeLog())
    client = here.client()
    assert client.call("create_queue", name="q", address="x", routing="multicast") is not None
    for address in ("news.a", "odd"):
        client.channels += 1
        header = Consume(queue=address, window=1, window_bytes=1, subscription="own")
        client.request(FrameType.CONSUME, header, channel=client.channels)
        client.leave(client.channels)
    assert names(here) == (["x", "odd"], ["q"])


def test_a_queue_goes_when_its_last_message_is_moved_or_expires() -> None:
    now = [1_000_000]
    here = House(make_core(settings=GOING, now_ms=lambda: now[0]))
    client = here.client()
    producer = client.produce("work")
    for operation in ("moved", "expired"):
        ttl = Envelope(4 << 8 | KIND_CONTROL | KIND_HEADERS, b"", encode_map({"x": 50}), b"")
        client.put(producer, b"x", envelopes=[ttl])
        client.leave(client.consume("work"))
        assert "work" in names(here)[1]
        if operation == "moved":
            assert client.call("move_messages", name="work", address="made") == {"moved": 1}
        else:
            now[0] += 100
            here.core.clock_moved()
        assert "work" not in names(here)[1]


def test_nothing_is_moved_to_a_temporary_queue_that_is_gone() -> None:
    settings = {"#": AddressSettings(dead_letter_address="dead")}
    here = House(make_core(settings=settings))
    client, owner = here.client(), here.client()
    found = owner.call("create_temporary_queue")
    assert found is not None
    name = str(found["name"])
    client.put(client.produce(name), b"1")
    channel = owner.consume(name)
    owner.settle(channel, (1, 1), flags=FLAG_REJECT)
    assert here.queue("dead").counts.ready == 1
    assert client.call("redrive", name="dead") == {"moved": 1}
    owner.settle(channel, (2, 2), flags=FLAG_REJECT)
    owner.close()
    assert client.call("redrive", name="dead") == {"moved": 0}
    client.call("move_messages", name="dead", address=name)
    assert client.code and here.queue("dead").counts.ready == 1 and name not in here.core.router.addresses
    with pytest.raises(SettingsError):
        AddressSettings(dead_letter_address="$temporary.x")
