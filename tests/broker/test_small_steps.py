"""Small parts of a queue, each alone: bounds of a step, what a list forgets with a run, what a record may say."""

from __future__ import annotations

import struct

import pytest

from meshq import AddressSettings, limits
from meshq.broker import records
from meshq.broker.queue._dispatch_machine import whole
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.errors import DamagedError
from meshq.wire import KIND_CONTROL, KIND_HEADERS, PRIORITY_SHIFT, Envelope, RunBytes, encode_map
from tests.broker.kit import make_house
from tests.broker.logs import FakeLog
from tests.broker.pages import FakePages
from tests.broker.queues import join, make_queue, make_run, put


@pytest.mark.parametrize(("window", "fits"), [(4, True), (3, False)])
def test_a_run_goes_whole_to_a_consumer_with_credit_for_just_so_many(window: int, fits: bool) -> None:
    queue = make_queue()
    put(queue, 4)
    assert (whole(queue.counts, queue.lists.main, join(queue, window)) is not None) is fits


@pytest.mark.parametrize("priorities", [(4,), (9, 4)])
def test_a_large_message_takes_as_much_of_a_step_as_many_small_ones(priorities: tuple[int, ...]) -> None:
    """Each counts for itself and for each KiB that it has."""
    queue = make_queue()
    join(queue)
    for priority in priorities:
        for _ in range(12):
            put(queue, size=200 * limits.STEP_MESSAGE_BYTES, priority=priority)
    assert len(queue.dispatch()) == 5, "1,000 messages of a step are five of 201"


def for_another_node(addresses: str, size: int) -> Queue:
    """A store-and-forward queue with a link, and a message for each of these addresses."""
    queue = Queue(1, "$meshq.cluster.mesh.there", "$meshq.cluster.mesh.there", durable=True)
    queue.lists.high_watermark = float("inf")
    for number, address in enumerate(dict.fromkeys(addresses), 1):
        queue.branch().granted(number, address, 0)
    for address in addresses:
        run = make_run([size])
        run.address = address
        queue.append(QueueRun(run, queue.number_rows(1)))
    join(queue)
    return queue


def test_messages_for_another_node_are_counted_by_their_bytes_too() -> None:
    queue = for_another_node("a", 10)
    assert not queue.dispatch() and queue.branch().active, "without credit it stands aside"
    for _ in range(12):
        run = make_run([200 * limits.STEP_MESSAGE_BYTES])
        run.address = "b"
        queue.append(QueueRun(run, queue.number_rows(1)))
    assert len(queue.dispatch()) == 5
    assert not queue.branch().has_credit("a") and queue.branch().has_credit("b")
    queue.branch().granted(1, "a", 1)
    assert queue.branch().has_credit("a"), "a credit of one is a credit"


@pytest.mark.parametrize("size", [0, 10])
def test_addresses_take_turns_also_with_messages_without_a_byte(size: int) -> None:
    queue = for_another_node("aaabbb", size)
    assert not queue.dispatch()
    for number, address in ((1, "a"), (2, "b")):
        queue.branch().granted(number, address, 3)
    assert [dispatch.view.run.address for _, dispatch in queue.dispatch()] == [*"ababab"]


def test_a_list_forgets_the_run_that_it_waits_for_with_that_run_alone() -> None:
    lists = PriorityList(4, durable=True)
    first, second, third = (QueueRun(make_run([10]), number) for number in (1, 2, 3))
    for view in (first, second, third):
        lists.append(view)
    lists.absent = second
    lists.leave([first])
    assert lists.absent is second and lists.runs() == [second, third]
    lists.leave([second])
    assert lists.absent is None and lists.runs() == [third] and lists.ready == 1


def test_a_message_of_a_group_is_fetched_from_the_disk_when_its_turn_comes() -> None:
    house = make_house(FakeLog(), settings={"q": AddressSettings(max_size_bytes=1, page_size_bytes=65_536)})
    pages, client = FakePages(house), house.client()
    sender = client.produce()
    for body in (b"first", b"second" + bytes(70_000)):
        kind = 4 << PRIORITY_SHIFT | KIND_CONTROL | KIND_HEADERS
        client.put(sender, body, envelopes=[Envelope(kind, b"", encode_map({"g": "a"}), b"")])
        house.rest()
    pages.rest()
    assert [bool(view.run.paged) for view in house.queue().runs()] == [False, True]
    reader = client.consume()
    for _ in range(3):
        house.rest()
        pages.rest()
    assert [body[:6] for body in client.bodies(reader)] == [b"first", b"second"]
    house.check()


@pytest.mark.parametrize("kind", [10 << 8, 255 << 8, 4 << 8 | 1 << 16, 1 << 31])
def test_a_record_whose_message_has_no_priority_that_there_is_is_damage(kind: int) -> None:
    def record(*kinds: int) -> bytes:
        table = b"".join(struct.pack("<5I", one, 0, 0, 0, 0) for one in kinds)
        run = records.RunRecord(bytes(16), 1, 2, "a", (), (), RunBytes(len(kinds), table, 0, b""))
        return records.encode_run_head(run) + table

    assert records.decode_run(record(0, 9 << 8)).content.rows == 2
    for kinds in ((kind,), (4 << 8, kind), (kind, 4 << 8)):
        with pytest.raises(DamagedError, match="readable run record"):
            records.decode_run(record(*kinds))
