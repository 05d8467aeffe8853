"""What is moved waits for room on the disk: when it is there it is looked at anew, and goes if it still may."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from meshq import abc
from meshq.broker import transfer
from meshq.node._local_broker import LocalPeerQueues, LocalRemoteBindings
from meshq.node._stranded_messages import MoveCall
from meshq.settings import AddressSettings
from meshq.wire import (
    BY_NAME,
    FLAG_REJECT,
    KIND_HEADERS,
    KIND_PLAIN,
    KIND_PROPERTIES,
    Envelope,
    encode_map,
)
from tests.broker.kit import make_house
from tests.broker.logs import FakeLog
from tests.broker.test_moving import bodies

FULL = BY_NAME["address_full"].number


class BusyLog(FakeLog):
    """Whoever is answered has its room while that call lasts, also if it asks again: as in the journal."""

    def request_space(self, size_bytes: int, then: Callable[[], None]) -> bool:
        return self.has_space(size_bytes) or super().request_space(size_bytes, then)


def expiring(ms: int) -> Envelope:
    return Envelope(4 << 8 | KIND_HEADERS | 16, b"", encode_map({"x": ms}), b"")


@pytest.mark.parametrize("carried", [False, True])
def test_what_a_link_carries_while_room_is_made_does_not_expire_here(carried: bool) -> None:
    now = [1_000_000]
    settings = {"theirs": AddressSettings(expiry_address="late", auto_create_queues=False)}
    house = make_house(BusyLog(large_bytes=1_000), now_ms=lambda: now[0], settings=settings)
    client = house.client()
    client.call("create_queue", name="late")
    routes = LocalRemoteBindings(house.core)
    forwarding = LocalPeerQueues(house.core).forwarding("$meshq.cluster.x")
    theirs = abc.RemoteQueue(number=7, name="theirs", address="theirs", routing="anycast", consumers=1)
    routes.replace(forwarding, "on_demand", [theirs])
    client.put(client.produce("theirs"), bytes(5_000), envelopes=[expiring(4_000)])
    house.log.answer()
    house.rest()
    now[0] += 5_000
    house.core.clock_moved()
    assert len(house.log.asked) == 1
    given: list[Any] = []
    if carried:
        # It goes out, and nobody knows what has become of it.
        forwarding.attach(given.append, 0)
        house.rest()
        forwarding.detach()
    house.log.answer()
    house.rest()
    assert len(given) == carried
    assert house.queue("late").counts.ready == (not carried)
    assert forwarding.queue.counts.ready == carried
    house.check()


def test_a_run_that_waits_for_room_to_be_moved_is_not_paged_meanwhile_however_scarce_memory_is() -> None:
    house = make_house(BusyLog(large_bytes=1_000))
    client = house.client()
    for name in ("in", "out"):
        client.call("create_queue", name=name)
    producer = client.produce("in")
    for number in range(4):
        properties = Envelope(KIND_PLAIN | KIND_PROPERTIES, b"", b"", encode_map({"n": number}))
        # No room need be made for the first two.
        client.put(producer, bytes(10 if number < 2 else 5_000), envelopes=[properties])
        while house.log.asked:
            house.log.answer()
        house.rest()
    assert client.call("move_messages", name="in", filter="n = 2", address="out", limit=10) is None
    house.rest()
    assert len(house.log.asked) == 1
    pager, memory = house.core.pager, house.core.memory
    memory.page_at, memory.limit_bytes = 0, 1
    pager.relieve()
    # The one that is next, and the one that is to be moved.
    assert [bool(view.run.paged) for view in house.queue("in").runs()] == [False, True, False, True]
    house.log.answer()
    house.rest()
    assert (client.code, house.queue("in").counts.ready, house.queue("out").counts.ready) == (0, 3, 1)
    pager.relieve()
    assert [bool(view.run.paged) for view in house.queue("in").runs()] == [False, True, True]
    house.check()


SMALL = [b"%d" % number + bytes(100) for number in range(3)]


@pytest.mark.parametrize("operation", ["move_messages", "redrive"])
def test_an_operators_move_waits_for_room_on_a_busy_journal(operation: str) -> None:
    house = make_house(BusyLog(large_bytes=10_000), settings={"in": AddressSettings(dead_letter_address="dead")})
    client = house.client()
    for name in ("dead", "in"):
        client.call("create_queue", name=name)
    client.put(client.produce("in"), *SMALL)
    if operation == "redrive":
        consumer = client.consume("in")
        client.settle(consumer, (1, 3), flags=FLAG_REJECT)
        client.leave(consumer)
        assert house.queue("dead").counts.ready == 3
    # Batches wait behind the one that is being written.
    house.log.queued.append(1)
    source, target = ("dead", "in") if operation == "redrive" else ("in", "dead")
    arguments = {} if operation == "redrive" else {"address": "dead"}
    assert client.call(operation, name=source, filter=None, limit=1_000, **arguments) is None
    assert house.queue(source).counts.ready == 3
    while house.log.asked:
        house.log.answer()
        house.rest()
    assert client.code == 0
    assert (house.queue(source).counts.ready, house.queue(target).counts.ready) == (0, 3)
    house.check()


def test_an_operators_move_ends_when_the_room_that_it_asks_for_is_not_to_be_had() -> None:
    house = make_house(BusyLog(large_bytes=1_000))
    client = house.client()
    client.call("create_queue", name="there")
    client.put(client.produce("q"), bytes(5_000))
    house.log.answer()
    house.rest()
    # Small records are placed still: nobody knows that the disk is full.
    house.log.room_bytes = 4_000
    assert client.call("move_messages", name="q", address="there", filter=None, limit=1_000) is None
    for _ in range(20):
        if house.log.asked:
            house.log.answer()
            house.rest()
    assert client.code == FULL
    assert (house.queue("q").counts.ready, house.queue("there").counts.ready) == (1, 0)
    house.check()


def test_no_small_message_overtakes_a_large_one_that_finds_no_room_to_be_handed_over() -> None:
    house = make_house(BusyLog(large_bytes=1_000))
    client = house.client()
    routes = LocalRemoteBindings(house.core)
    forwarding = LocalPeerQueues(house.core).forwarding("$meshq.cluster.x")
    theirs = abc.RemoteQueue(number=7, name="q", address="q", routing="anycast", consumers=0)
    routes.replace(forwarding, "on_demand", [theirs])
    client.put(client.produce("q"), *(b"%d" % number + bytes(5_000 * (number in (1, 2, 4))) for number in range(6)))
    house.log.answer()
    house.rest()
    given: list[abc.ForwardRun] = []
    forwarding.attach(given.append, 0)
    # Small records are placed still: nobody knows that the disk is full.
    for house.log.room_bytes in (4_000, math.inf):
        transfer(house.core, house.queue("q"), forwarding.queue, 100, MoveCall())
        while house.log.asked:
            house.log.answer()
            house.rest()
    house.log.sync()
    house.rest()
    assert b"".join(bytes(run.body).replace(b"\0", b"") for run in given) == b"012345"
    assert house.queue("q").counts.ready == 0
    house.check()


@pytest.mark.parametrize("subscribed", [False, True])
def test_on_a_full_disk_only_what_somebody_keeps_finds_no_room(subscribed: bool) -> None:
    now = [1_000_000]
    settings = {"q": AddressSettings(expiry_address="news")}
    house = make_house(BusyLog(large_bytes=1_000), now_ms=lambda: now[0], settings=settings)
    client = house.client()
    client.call("create_queue", name="mine", address="news", routing="multicast")
    if not subscribed:
        client.call("delete_queue", name="mine")
        client.call("create_address", name="news", routing="multicast")
    client.put(client.produce("q"), bytes(5_000), envelopes=[expiring(4_000)])
    house.log.answer()
    house.rest()
    house.log.full = True
    now[0] += 5_000
    house.core.clock_moved()
    house.rest()
    assert not house.log.asked
    assert bodies(house, "q") == [bytes(5_000)] * subscribed
    assert house.queue("q").counts.removed["expired"] == (not subscribed)
    assert bodies(house, "mine") == []
    house.check()
