"""What becomes of messages that are done with: in the queue, in memory, in the journal."""

from __future__ import annotations

import pytest

from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.records import DEFINITION, MARKS, RUN, SETTLED, decode_settled
from meshq.limits import RUN_MESSAGES_MAX
from meshq.wire import BY_NAME, FLAG_REJECT, FLAG_RETURN, FrameType
from tests.broker.kit import FakeLog, House, RawClient, make_core, make_house


def opened(house: House) -> tuple[RawClient, int, int]:
    client = house.client()
    return client, client.produce(), client.consume()


def again(house: House) -> House:
    log = house.log.after_crash()
    return House(make_core(log, records=house.log.recovered()))


def test_a_part_of_a_run_is_settled_by_a_note_and_the_rest_kills_it() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1", b"2", b"3")
    (run,) = [record for record in house.log.records if record.kind == RUN]
    client.settle(consumer, (2, 2))
    note = house.log.records[-1]
    assert (note.kind, not note.tombstone, note.refs, note.deletes) == (SETTLED, False, (run.position,), ())
    assert decode_settled(note.payload) == [(house.queue().number, run.position, 1, 2, 1)]
    assert house.core.memory.used_bytes > 0
    client.settle(consumer, (1, 1), (3, 3))
    assert house.log.records[-1].deletes == (run.position,)
    assert house.core.memory.used_bytes == 0


def test_acknowledged_rejected_and_returned_are_counted_apart() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1", b"2", b"3", b"4")
    client.settle(consumer, (1, 1))
    client.settle(consumer, (2, 2), flags=FLAG_REJECT)
    client.settle(consumer, (3, 4), flags=FLAG_RETURN)
    queue = house.queue()
    assert (queue.counts.acknowledged, queue.counts.removed["rejected"], queue.counts.redelivered) == (1, 1, 2)
    assert [(message.body, message.delivery_count) for message in client.got(consumer)[4:]] == [(b"3", 2), (b"4", 2)]
    assert [message.sequence for message in client.got(consumer)] == [1, 2, 3, 4, 3, 4]


def test_ranges_before_one_that_was_never_given_stay_settled_and_the_rest_goes_back() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1", b"2", b"3")
    client.settle(consumer, (1, 1), (3, 9))
    assert client.good_bye().code == BY_NAME["bad_tag"].number
    queue = house.queue()
    assert (queue.counts.acknowledged, queue.counts.ready, queue.counts.unacked) == (1, 2, 0)
    assert again(house).queue().counts.ready == 2
    house.check()


def test_an_answer_to_a_settlement_comes_when_it_is_on_disk() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1")
    house.auto = False
    client.settle(consumer, (1, 1), call=77)
    assert client.answer(77) is None
    house.log.sync()
    answer = client.answer(77)
    assert answer is not None and answer.code == 0


# -- purge and delete


def test_numbers_of_purged_messages_are_not_given_again_though_nobody_saw_them() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer = client.produce()
    client.put(producer, b"1", b"2", b"3")
    assert client.call("purge_queue", name="q") == {"removed": 3}
    after = again(house)
    client = after.client()
    consumer = client.consume()
    client.put(client.produce(), b"4")
    assert client.got(consumer)[0].sequence > 3
    assert client.got(consumer)[0].delivery_count == 1


def test_a_purge_of_nothing_writes_nothing() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="q")
    before = house.log.last
    assert client.call("purge_queue", name="q") == {"removed": 0}
    assert house.log.last == before


def test_a_purge_leaves_what_is_held_and_what_is_not_on_disk_yet() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer, consumer = client.produce(), client.consume("q", 1)
    client.put(producer, b"1", b"2")
    house.auto = False
    client.put(producer, b"3")
    client.call("purge_queue", name="q")
    house.log.sync()
    queue = house.queue()
    assert (queue.counts.unacked, queue.counts.ready, queue.counts.removed["purged"]) == (1, 1, 1)
    client.settle(consumer, (1, 1))
    house.log.sync()
    assert client.bodies(consumer) == [b"1", b"3"]
    house.check()


def test_a_purge_works_on_a_full_disk() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce(), b"1", b"2")
    house.log.full = True
    assert client.call("purge_queue", name="q") == {"removed": 2}
    assert again(house).queue().counts.ready == 0


def test_a_deleted_queue_leaves_nothing_behind() -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    client.put(producer, b"1", b"2")
    client.put(producer, b"3", durable=False)
    client.settle(consumer, (1, 1))
    assert client.call("delete_queue", name="q") == {"removed": 2}
    assert house.core.memory.used_bytes == 0
    assert [record.kind for record in house.log.living()] == [DEFINITION, DEFINITION]
    assert [b"last" in record.payload for record in house.log.living()] == [False, True]


def test_runs_that_wait_for_their_sync_when_their_queue_is_deleted_go_with_it() -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name in ("a", "b"):
        client.call("create_queue", name=name, address="news", routing="multicast")
    producer = client.produce("news")
    house.auto = False
    client.put(producer, b"1", b"2")
    client.put(producer, b"3", durable=False)
    client.call("delete_queue", name="a")
    client.call("create_queue", name="a", address="news", routing="multicast")
    house.log.sync()
    house.log.sync()
    assert client.confirmed[-1] == (producer, 3)
    assert (house.queue("a").counts.ready, house.queue("b").counts.ready) == (0, 3)
    assert (again(house).queue("a").counts.ready, again(house).queue("b").counts.ready) == (0, 2)
    house.auto = True
    consumer = client.consume("b")
    client.settle(consumer, (1, 3))
    assert house.core.memory.used_bytes == 0
    assert RUN not in [record.kind for record in house.log.living()]


def test_a_queue_that_is_deleted_while_its_mark_is_on_its_way_is_just_gone() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer = client.produce()
    client.put(producer, b"1")
    house.auto = False
    client.consume()
    assert house.log.kinds()[-1] == MARKS
    client.call("delete_queue", name="q")
    house.log.sync()
    house.log.sync()
    assert "q" not in house.core.router.queues
    assert MARKS not in [record.kind for record in house.log.living()]
    assert client.all(FrameType.DELIVER) == []


# -- marks, through a broker


def test_what_may_have_been_delivered_is_marked_after_a_crash_and_nothing_else_after_a_stop() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer = client.produce()
    client.put(producer, b"1", b"2", b"3", b"4")
    consumer = client.consume("q", 2)
    crashed = again(house).client()
    assert [message.delivery_count for message in crashed.got(crashed.consume())] == [2, 2, 2, 2]
    # In peace: exactly what was delivered.
    house.core.closing.begin("the node is stopping")
    queue = house.queue()
    house.core.definitions.watermarks.settle(queue, queue.delivered_up_to)
    client.settle(consumer, (1, 1))
    assert [message.body for message in client.got(consumer)] == [b"1", b"2"]
    stopped = again(house)
    client = stopped.client()
    channel = client.consume("q", 3)
    assert [(message.body, message.delivery_count) for message in client.got(channel)] == [
        (b"2", 2),
        (b"3", 1),
        (b"4", 1),
    ]


def test_a_stop_in_which_nobody_consumed_forgets_no_mark_of_an_earlier_life() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce(), b"1", b"2")
    client.consume()
    second = again(house)
    second.core.definitions.watermarks.settle(second.queue(), second.queue().delivered_up_to)
    client = again(second).client()
    assert [message.delivery_count for message in client.got(client.consume())] == [2, 2]


def test_a_message_is_delivered_only_when_the_disk_knows_that_it_may_have_been() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer = client.produce()
    client.put(producer, b"1")
    house.auto = False
    consumer = client.consume()
    assert client.got(consumer) == []
    house.log.sync()
    assert client.bodies(consumer) == [b"1"]
    client.put(producer, b"2")
    house.log.sync()
    assert client.bodies(consumer) == [b"1", b"2"]


def test_consumers_drain_a_full_disk_past_every_mark() -> None:
    house = make_house(FakeLog())
    client = house.client()
    producer = client.produce()
    for _ in range(4):
        for _ in range(20):
            client.put(producer, *[b"x"] * 256)
    house.log.full = True
    consumer = client.consume("q", 1_000)
    settled = 0
    while len(client.all(FrameType.DELIVER)):
        got = client.got(consumer)
        client.frames.clear()
        client.settle(consumer, (got[0].tag, got[-1].tag))
        settled += len(got)
    assert settled == 80 * 256
    house.check()


@pytest.mark.parametrize("turn", [0, 1])
def test_a_share_of_a_full_run_that_is_settled_to_its_end_can_be_read_again(turn: int) -> None:
    house = make_house(FakeLog())
    client, producer, consumer = opened(house)
    forward = house.core.definitions.forward_queue("there")
    house.core.router.bind(b"link", RemoteBinding(forward, "strict", 7, "q", "q", "anycast", 1, ()))
    for _ in range(turn):
        client.put(producer, b"turn")
    bodies = [b"%d" % number for number in range(RUN_MESSAGES_MAX)]
    client.put(producer, *bodies)
    queue = house.queue()
    # All but the first of them: a piece that goes to the end of a run which then still lives.
    last = queue.counts.unacked
    client.settle(consumer, (last - RUN_MESSAGES_MAX // 2 + 2, last))
    (row,) = decode_settled(house.log.records[-1].payload)
    assert row.stop <= RUN_MESSAGES_MAX
    left = again(house)
    assert (left.queue().counts.ready, left.queue("there").counts.ready) == (queue.counts.unacked, forward.counts.ready)
