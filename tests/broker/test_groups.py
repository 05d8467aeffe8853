"""Messages of groups: each group is one consumer's at a time, and its messages go there in order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from meshq import AddressSettings
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue
from meshq.wire import FLAG_RETURN, KIND_CONTROL, KIND_HEADERS, KIND_PROPERTIES, Envelope, encode_map
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.pages import FakePages
from tests.broker.queues import dealt, give_back, join, leave, make_queue, put, settle


def table(queue: Queue) -> dict[str, int | None]:
    """The groups that a queue knows, and the numbers of their owners."""
    assert queue.grouped is not None
    return {name: group.owner and group.owner.number for name, group in queue.grouped.table.items()}


def named(*groups: str) -> list[Envelope]:
    """Envelopes of messages of these groups; an empty one is none."""
    return [
        Envelope(
            4 << 8 | (KIND_CONTROL | KIND_HEADERS if group else 0), b"", encode_map({"g": group}) if group else b"", b""
        )
        for group in groups
    ]


def test_each_group_goes_to_one_consumer_and_groups_are_given_in_turn() -> None:
    queue = make_queue()
    join(queue, number=1)
    join(queue, number=2)
    put(queue, groups=list("aabbacc"))
    assert dealt(queue) == {1: [1, 2, 5, 6, 7], 2: [3, 4]}
    put(queue, groups=list("bad"))
    assert dealt(queue) == {1: [9], 2: [8, 10]}
    assert table(queue) == {"a": 1, "b": 2, "c": 1, "d": 2}


def test_a_group_whose_owner_is_full_holds_up_nobody_else() -> None:
    queue = make_queue()
    first = join(queue, 1, number=1)
    join(queue, number=2)
    put(queue, groups=["a", "a", "b", None, "a", None, "b"])
    assert dealt(queue) == {1: [1], 2: [3, 4, 6, 7]}
    settle(first, 1, 1)
    assert dealt(queue) == {1: [2], 2: []}
    give_back(first, 2, 2)
    assert dealt(queue) == {1: [2], 2: []}
    settle(first, 3, 3)
    assert dealt(queue) == {1: [5], 2: []}
    assert queue.counts.redelivered == 1


def test_one_consumer_gets_everything_in_the_order_of_the_queue() -> None:
    queue = make_queue()
    consumer = join(queue, 4)
    for _ in range(3):
        put(queue, groups=["a", None, "b", "a", None])
    got = []
    for tag in range(1, 16):
        got += dealt(queue)[1]
        settle(consumer, tag, tag)
    assert got == list(range(1, 16))
    assert queue.lists.live_runs == 0 and table(queue) == {}


def test_when_its_owner_leaves_a_group_is_given_anew_with_what_came_back() -> None:
    queue = make_queue()
    first = join(queue, 2, number=1)
    put(queue, groups=list("aaab"))
    assert dealt(queue) == {1: [1, 2]}
    second = join(queue, number=2)
    assert dealt(queue) == {1: [], 2: [4]}
    settle(first, 1, 1)
    leave(first)
    assert dealt(queue) == {2: [2, 3]}
    assert table(queue) == {"a": 2, "b": 2}
    settle(second, 1, 3)
    assert table(queue) == {} and queue.lists.live_runs == 0


def test_a_group_without_messages_is_forgotten() -> None:
    queue = make_queue()
    first = join(queue, number=1)
    for number in range(3_000):
        put(queue, groups=[f"g{number}"])
        assert dealt(queue) == {1: [number + 1]}
        settle(first, number + 1, number + 1)
    assert table(queue) == {}
    assert queue.grouped is not None and not queue.grouped._backlogs
    assert sum(map(len, queue.grouped._offers.values())) == 0


def test_what_comes_back_goes_before_what_is_later_in_its_group() -> None:
    queue = make_queue()
    first = join(queue, 2, number=1)
    join(queue, number=2)
    put(queue, groups=list("aaa"))
    assert dealt(queue) == {1: [1, 2], 2: []}
    give_back(first, 1, 1)
    assert dealt(queue) == {1: [1], 2: []}
    settle(first, 2, 2)
    give_back(first, 3, 3)
    assert dealt(queue) == {1: [1, 3], 2: []}


def test_the_more_urgent_of_a_group_goes_first_and_to_its_owner() -> None:
    queue = make_queue()
    first = join(queue, 1, number=1)
    second = join(queue, 1, number=2)
    put(queue, groups=list("aab"))
    assert dealt(queue) == {1: [1], 2: [3]}
    put(queue, groups=list("ca"), priority=9)
    put(queue, groups=list("a"), priority=1)
    assert dealt(queue) == {1: [], 2: []}
    got = []
    for tag in range(1, 5):
        settle(first, tag, tag)
        got += dealt(queue)[1]
    assert got == [4, 5, 2, 6]
    settle(second, 1, 1)
    assert dealt(queue) == {1: [], 2: []}


def test_a_group_goes_to_whose_filter_takes_its_first_message_and_what_that_leaves_waits() -> None:
    queue = make_queue()
    choosy = join(queue, number=1, filter="k = 1")
    join(queue, number=2, filter="k = 2")
    put(queue, groups=list("aaab"), values=[{"k": 1}, {"k": 2}, {"k": 1}, {"k": 3}])
    assert dealt(queue) == {1: [1, 3], 2: []}
    assert table(queue) == {"a": 1, "b": None}
    join(queue, number=3, filter="k = 3")
    assert dealt(queue) == {1: [], 2: [], 3: [4]}
    settle(choosy, 1, 1)
    leave(choosy)
    assert dealt(queue) == {2: [2], 3: []}
    assert queue.counts.ready == 1


def test_a_filtered_owner_gets_groups_and_others_in_the_order_of_the_queue() -> None:
    queue = make_queue()
    join(queue, number=1, filter="k = 1")
    put(queue, groups=["a", None, "a", None, None], values=[{"k": 1}] * 4 + [{"k": 2}])
    assert dealt(queue) == {1: [1, 2, 3, 4]}
    join(queue, number=2)
    assert dealt(queue) == {1: [], 2: [5]}


def test_the_higher_priority_of_consumers_gets_the_groups_as_far_as_it_has_room() -> None:
    queue = make_queue()
    low = join(queue, number=1, priority=-1)
    high = join(queue, 2, number=2)
    put(queue, groups=list("abcc"))
    assert dealt(queue) == {1: [3, 4], 2: [1, 2]}
    settle(high, 1, 2)
    put(queue, groups=list("c"))
    # What it was given it keeps.
    assert dealt(queue) == {1: [5], 2: []}
    leave(low)
    assert dealt(queue) == {2: [3, 4]}


def test_an_exclusive_consumer_has_all_groups_once_nobody_holds_anything_else() -> None:
    queue = make_queue()
    first = join(queue, 1, number=1)
    put(queue, groups=list("aab"))
    dealt(queue)
    join(queue, number=2, exclusive=True)
    assert dealt(queue) == {1: [], 2: []}
    give_back(first, 1, 1)
    assert dealt(queue) == {1: [], 2: [1, 2, 3]}


def test_with_rebalance_groups_are_given_anew_as_their_owners_hold_nothing_of_them() -> None:
    queue = make_queue()
    queue.settings = AddressSettings(default_group_rebalance=True)
    first = join(queue, 3, number=1)
    put(queue, groups=list("aabbc"))
    assert dealt(queue) == {1: [1, 2, 3]}
    join(queue, 1, number=2)
    assert dealt(queue) == {1: [], 2: [5]}
    assert table(queue) == {"a": None, "b": None, "c": 2}
    settle(first, 3, 3)
    assert dealt(queue) == {1: [4], 2: []}
    settle(first, 1, 1)
    assert table(queue) == {"a": None, "b": 1, "c": 2}
    give_back(first, 2, 2)
    put(queue, groups=list("a"))
    assert dealt(queue) == {1: [2, 6], 2: []}


def test_a_large_message_of_a_group_is_not_overtaken_for_its_owner_and_holds_up_no_other() -> None:
    queue = make_queue()
    first = join(queue, 10, 100, number=1)
    join(queue, number=2)
    put(queue, groups=["a", "b"], sizes=[60, 10])
    assert dealt(queue) == {1: [1], 2: [2]}
    put(queue, groups=["a", None, None, "b"], sizes=[70, 10, 10, 10])
    assert dealt(queue) == {1: [], 2: [4, 5, 6]}
    settle(first, 1, 1)
    assert dealt(queue) == {1: [3], 2: []}


def test_durable_messages_of_groups_wait_for_the_mark() -> None:
    queue = make_queue(mark=0)
    join(queue)
    put(queue, groups=list("ab"))
    put(queue, 1)
    assert dealt(queue) == {1: []} and queue.lists.all[0].wanted_watermark == 3
    queue.lists.high_watermark = 1
    assert dealt(queue) == {1: [1]}
    queue.lists.high_watermark = 3
    assert dealt(queue) == {1: [2, 3]}
    assert queue.delivered_up_to == {4: 3}


def test_what_is_urgent_and_waits_for_its_mark_is_not_overtaken() -> None:
    queue = make_queue(mark=0)
    join(queue)
    put(queue, groups=["a"], priority=9)
    put(queue, 1, durable=False)
    queue.priority_list(9).high_watermark = 0
    assert dealt(queue) == {1: []} and queue.priority_list(9).wanted_watermark == 1
    queue.lists.high_watermark = 1
    assert dealt(queue) == {1: [1, 2]}


def test_what_was_handed_out_ahead_of_others_counts_as_delivered() -> None:
    queue = make_queue()
    join(queue, filter="k = 1")
    put(queue, groups=[None, "a", None], values=[{"k": 2}, {"k": 1}, {"k": 2}])
    assert dealt(queue) == {1: [2]}
    assert queue.delivered_up_to == {4: 2}


def test_a_purge_takes_what_waits_for_its_group_too() -> None:
    queue = make_queue()
    first = join(queue, 1, number=1)
    put(queue, groups=["a", "a", None, "b"])
    put(queue, groups=["a"])
    assert dealt(queue) == {1: [1]}
    spans, ended = queue.purge(1_000)
    assert sum(span.rows for span in spans) == queue.counts.removed["purged"] == 4 and sum(ended) == 1
    queue.check()
    assert table(queue) == {"a": 1} and queue.counts.ready == 0
    for _ in range(500):
        put(queue, groups=["a"])
        queue.purge(10)
    (place,) = queue.grouped._backlogs.values()  # type: ignore[union-attr]
    assert len(place._heap) <= 66
    settle(first, 1, 1)
    assert table(queue) == {} and queue.lists.live_runs == 0


def test_a_backlog_that_waits_for_its_owners_is_not_looked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue()
    full = join(queue, 1, number=1)
    put(queue, groups=["a"])
    dealt(queue)
    free = join(queue, number=2)
    for _ in range(40):
        put(queue, groups=["a"] * 250)
    dealt(queue)
    looked: Counter[str] = Counter()
    for place in queue.grouped._backlogs.values():  # type: ignore[union-attr]
        rows = type(place).next_row

        def next_row(self: Any, view: Any, table: Any, rows: Any = rows) -> Any:
            looked["runs"] += 1
            return rows(self, view, table)

        monkeypatch.setattr(type(place), "next_row", next_row)
        break
    for tag in range(1, 101):
        put(queue, groups=["b"])
        assert queue.dispatch()[0][0] is free
        settle(free, tag, tag)
    assert looked["runs"] < 500
    assert full.unacked == 1


def test_a_queue_without_groups_has_none_of_this() -> None:
    queue = make_queue()
    join(queue)
    put(queue, 3, priority=9)
    put(queue, 3)
    assert dealt(queue) == {1: [1, 2, 3, 4, 5, 6]}
    assert queue.grouped is None


def test_a_message_that_waits_before_it_comes_again_holds_up_nothing_and_keeps_its_group() -> None:
    queue = make_queue()
    first = join(queue, number=1)
    join(queue, number=2)
    put(queue, groups=list("aa"))
    assert dealt(queue) == {1: [1, 2], 2: []}
    (span,) = first.take(1, 1)
    queue.give_back(span, counted=True, waits=True)
    settle(first, 2, 2)
    put(queue, groups=list("ba"))
    assert dealt(queue) == {1: [4], 2: [3]}
    queue.wake(span)
    assert dealt(queue) == {1: [1], 2: []}


# -- over sessions and lives


def test_groups_are_given_anew_after_a_restart_in_order_and_nothing_is_lost() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    first, second = client.consume(window=2), client.consume()
    client.put(sender, *(b"%d" % index for index in range(6)), envelopes=named("a", "b", "a", "a", "", "b"))
    house.rest()
    assert client.bodies(first) == [b"0", b"2"] and client.bodies(second) == [b"1", b"4", b"5"]
    client.settle(first, (1, 1))
    client.settle(second, (1, 1))
    house.rest()
    house.check()
    house = next_life(house)
    client = house.client()
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == [b"2", b"3", b"4", b"5"]
    client.settle(reader, (1, 4))
    house.rest()
    assert house.queue().lists.live_runs == 0 and house.core.memory.used_bytes == 0


def next_life(house: House) -> House:
    log = house.log.after_crash()
    return make_house(log, records=log.recovered())


def test_a_session_that_ends_hands_its_groups_over_and_what_it_returns_stays_in_order() -> None:
    house = make_house()
    client, other = house.client(), house.client()
    sender = client.produce()
    first = client.consume(window=3)
    client.put(sender, *(b"%d" % index for index in range(5)), envelopes=named(*"aaaaa"))
    second = other.consume()
    client.settle(first, (2, 2), flags=FLAG_RETURN)
    assert client.bodies(first) == [b"0", b"1", b"2", b"1"]
    house.sessions.by_number[1].end()
    house.core.pending.run()
    assert other.bodies(second) == [b"0", b"1", b"2", b"3", b"4"]
    house.check()


def test_the_settings_say_whether_groups_are_given_anew() -> None:
    for rebalance in (True, False):
        house = make_house(settings={"q": AddressSettings(default_group_rebalance=rebalance)})
        client = house.client()
        sender = client.produce()
        first = client.consume(window=1)
        client.put(sender, b"1", b"2", b"3", envelopes=named(*"aba"))
        client.settle(first, (1, 1))
        assert client.bodies(first) == [b"1", b"2"]
        second = client.consume()
        assert client.bodies(second) == ([b"3"] if rebalance else [])
        house.check()


def test_who_has_no_room_for_an_urgent_message_of_its_group_is_given_no_other_group_before_it() -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    reader = client.consume(window_bytes=100)
    urgent = [one._replace(kind=one.kind & ~(0xF << 8) | 9 << 8) for one in named("a")]
    client.put(sender, b"a" * 60, envelopes=urgent)
    client.put(sender, b"A" * 90, envelopes=urgent)
    client.put(sender, b"b", envelopes=named("b"))
    assert client.bodies(reader) == [b"a" * 60]
    house.check()
    client.settle(reader, (1, 1))
    assert client.bodies(reader)[1:] == [b"A" * 90]
    client.settle(reader, (2, 2))
    assert client.bodies(reader)[2:] == [b"b"]
    house.check()


def test_what_the_owner_of_a_group_is_done_with_is_not_kept_for_its_filter() -> None:
    queue = make_queue()
    consumer = join(queue, filter="k = 1")
    put(queue, values=[{"k": 1}], groups=["a"])
    for tag in range(1, 200):
        # There is always something of the group, so that its owner stays.
        put(queue, values=[{"k": 1}, {"k": 2}] if tag == 50 else [{"k": 1}], groups=["a", "a"] if tag == 50 else ["a"])
        dealt(queue)
        settle(consumer, tag, tag)
    assert queue.grouped is not None
    (place,) = queue.grouped._backlogs.values()
    # What it does not accept is found when it can be had by somebody else.
    assert len(place._passed) == 1 and len(place._queued) <= 2 and queue.lists.live_runs == 2
    leave(consumer)
    join(queue, number=2)
    assert len(dealt(queue)[2]) == 2


def test_offers_that_are_void_do_not_pile_up_while_nobody_has_room() -> None:
    queue = make_queue()
    join(queue, 1)
    put(queue, groups=["held"])
    dealt(queue)
    kept = put(queue, groups=["kept"])
    for number in range(500):
        view = put(queue, groups=[f"g{number}"])
        assert dealt(queue) == {1: []}
        queue.remove(RowSpan(view, 0, 1, 1), "expired")
    assert queue.grouped is not None and list(queue.grouped.table) == ["held", "kept"]
    assert [len(offers) < 100 for offers in queue.grouped._offers.values()] == [True]
    join(queue, number=2)
    assert dealt(queue)[2] == [kept.first]


@pytest.mark.parametrize("wanted", ["k >= 1", "k >= 2"])
def test_what_comes_while_a_filter_has_to_look_at_the_disk_is_not_offered_before_that(wanted: str) -> None:
    house = make_house(FakeLog(), settings={"q": AddressSettings(max_size_bytes=1, page_size_bytes=65_536)})
    pages = FakePages(house)
    client = house.client()
    sender = client.produce()

    def put(body: bytes, k: int) -> None:
        headers, values = encode_map({"g": "a"}), encode_map({"k": k})
        kind = 4 << 8 | KIND_CONTROL | KIND_HEADERS | KIND_PROPERTIES
        client.put(sender, body, envelopes=[Envelope(kind, b"", headers, values)])
        house.rest()

    client.put(sender, b"head")
    put(b"first" + bytes(70_000), 1)
    pages.rest()
    assert [bool(view.run.paged) for view in house.queue().runs()] == [False, True]
    reader = client.consume(filter=wanted)
    house.rest()
    put(b"second", 2)
    assert client.bodies(reader) == []
    house.check()
    pages.rest()
    house.rest()
    house.check()
    assert [body[:6] for body in client.bodies(reader)] == [b"first\0", b"second"][wanted == "k >= 2" :]
