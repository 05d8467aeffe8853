"""Moving messages at an operator's word: which, where to, in steps, and in one place at every crash."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker.queue._run import GONE
from meshq.wire import FLAG_REJECT, KIND_PROPERTIES, Envelope, RunView, encode_map
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.test_groups import named
from tests.broker.test_second_chances import DEAD, Shop


def bodies(house: House, name: str) -> list[bytes]:
    """What is in a queue, in order."""
    queue = house.core.router.queues.get(name)
    return [
        RunView(view.run.content).body(row)
        for view in (queue.runs() if queue is not None else ())
        for row in range(len(view.states))
        if view.states[row] != GONE
    ]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def with_k(*values: int) -> list[Envelope]:
    return [Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map({"k": value})) for value in values]


def test_what_waits_is_moved_in_order_and_what_is_held_stays() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce(), *numbered(10))
    client.consume(window=3)
    house.rest()
    assert client.call("move_messages", name="q", address="other") == {"moved": 7}
    assert (bodies(house, "q"), bodies(house, "other")) == (numbered(3), numbered(10)[3:])
    assert house.queue().counts.removed["moved"] == 7
    house.check()
    later = make_house(house.log.after_crash(), records=house.log.after_crash().recovered())
    assert (bodies(later, "q"), bodies(later, "other")) == (numbered(3), numbered(10)[3:])


def test_what_waits_for_the_consumer_of_its_group_is_moved_too() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce(), *numbered(4), envelopes=named("a", "a", "a", "a"))
    client.consume(window=1)
    client.consume()
    house.rest()
    assert client.call("move_messages", name="q", address="other") == {"moved": 3}
    assert (bodies(house, "q"), bodies(house, "other")) == ([b"0"], [b"1", b"2", b"3"])
    house.check()


def test_a_filter_and_a_limit_say_which() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce(), *numbered(6), envelopes=with_k(1, 2, 1, 2, 1, 1))
    assert client.call("move_messages", name="q", address="other", filter="k = 1", limit=3) == {"moved": 3}
    assert (bodies(house, "q"), bodies(house, "other")) == ([b"1", b"3", b"5"], [b"0", b"2", b"4"])


def test_a_move_to_its_own_address_ends_and_each_message_is_there_once() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce(), *numbered(5))
    assert client.call("move_messages", name="q", address="q") == {"moved": 5}
    assert bodies(house, "q") == numbered(5)


def test_a_time_to_live_goes_along_with_what_is_moved_alive() -> None:
    shop = Shop(window=1)
    shop.send(b"first")
    shop.send(b"a", ttl_ms=500)
    assert shop.client.call("move_messages", name="q", address="other") == {"moved": 1}
    shop.next_life()
    shop.pass_time(499)
    assert bodies(shop.house, "other") == [b"a"]
    shop.pass_time(1)
    assert bodies(shop.house, "other") == []


def test_dead_letters_go_back_to_where_they_were_and_begin_anew() -> None:
    shop = Shop(**DEAD, max_delivery_attempts=2)
    shop.send(b"a", b"b", b"c")
    shop.settle(1)
    shop.settle(4)
    shop.settle(2, flags=FLAG_REJECT)
    client = shop.house.client()
    client.put(client.produce("dead", producer=b"another-producer"), b"sent there")
    assert bodies(shop.house, "dead") == [b"a", b"b", b"sent there"]
    assert client.call("redrive", name="dead") == {"moved": 2}
    shop.house.rest()
    assert bodies(shop.house, "dead") == [b"sent there"]
    assert shop.got[-2:] == [(b"a", 1), (b"b", 1)]
    shop.next_life()
    assert sorted(body for body, _ in shop.got) == [b"a", b"b", b"c"]


def test_where_the_queue_is_gone_dead_letters_go_to_its_address() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="one", address="news", routing="multicast")
    client.call("create_queue", name="two", address="news", routing="multicast")
    client.put(client.produce("news"), b"x")
    client.call("move_messages", name="one", address="aside")
    client.call("delete_queue", name="one")
    assert client.call("redrive", name="aside") == {"moved": 1}
    assert (bodies(house, "aside"), bodies(house, "two")) == ([], [b"x", b"x"])


def test_a_long_move_leaves_others_their_turn_and_takes_what_was_there_when_it_began() -> None:
    house = make_house(FakeLog())
    asked: list[int] = []
    house.host.wake = lambda: asked.append(1)
    client = house.client()
    sender = client.produce()
    for start in range(0, 4 * limits.STEP_MESSAGES_MAX, 250):
        client.put(sender, *(b"%d" % number for number in range(start, start + 250)))
    assert client.call("move_messages", name="q", address="other") is None
    assert asked and 0 < len(bodies(house, "other")) < 2 * limits.STEP_MESSAGES_MAX
    client.put(sender, b"late")
    while client.answer(client.calls) is None:
        house.core.resume()
        house.rest()
    answer = client.answer(client.calls)
    assert answer is not None and answer.named == {"moved": 4 * limits.STEP_MESSAGES_MAX}
    assert bodies(house, "q") == [b"late"]
    assert bodies(house, "other") == numbered(4 * limits.STEP_MESSAGES_MAX)


def test_runs_that_go_while_a_move_is_under_way_do_not_end_it() -> None:
    house = make_house(FakeLog())
    house.host.wake = lambda: None
    client = house.client()
    sender = client.produce()
    count = 3 * limits.STEP_MESSAGES_MAX
    for start in range(0, count, 250):
        client.put(sender, *(b"%d" % number for number in range(start, start + 250)))
    client.call("move_messages", name="q", address="other", limit=count)
    reader = client.consume(window=500)
    house.rest()
    got = client.got(reader)
    client.settle(reader, (1, len(got)))
    client.leave(reader, len(got) + 1)
    for _ in range(10):
        house.core.resume()
        house.rest()
    answer = client.answer(3)
    assert bodies(house, "q") == [] and answer is not None
    assert len(bodies(house, "other")) == count - len(got)


def test_a_full_disk_ends_a_move_and_what_was_not_moved_is_where_it_was() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="other")
    client.put(client.produce(), *numbered(3))
    house.log.full = True
    assert client.call("move_messages", name="q", address="other") == {}
    assert client.code and bodies(house, "q") == numbered(3)
    house.log.full = False
    assert client.call("move_messages", name="q", address="other") == {"moved": 3}


@pytest.mark.parametrize("operation", ["move_messages", "redrive"])
def test_at_every_crash_each_message_is_in_one_place(operation: str) -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    for number in range(4):
        client.put(sender, b"a%d" % number, b"b%d" % number)
    if operation == "redrive":
        client.call("move_messages", name="q", address="other")
    house.auto = False
    before = house.log.last
    client.call(operation, **({"name": "other"} if operation == "redrive" else {"name": "q", "address": "other"}))
    assert house.log.last > before
    for cut in range(before, house.log.last + 1):
        log = house.log.after_crash(cut)
        later = make_house(log, records=log.recovered())
        assert sorted(bodies(later, "q") + bodies(later, "other")) == sorted(
            b"%c%d" % (letter, number) for number in range(4) for letter in b"ab"
        )
        later.check()


@pytest.mark.parametrize("lives", [1, 2])
def test_what_had_expired_and_was_sent_back_does_not_expire_again_wherever_it_is_moved(lives: int) -> None:
    shop = Shop(window=1, expiry_address="old")
    shop.send(b"first")
    shop.send(b"a", ttl_ms=500)
    shop.pass_time(500)
    assert shop.client.call("redrive", name="old") == {"moved": 1}
    assert shop.client.call("move_messages", name="q", address="other") == {"moved": 1}
    for _ in range(lives):
        shop.house.rest()
        shop.pass_time(1_000)
        assert bodies(shop.house, "other") == [b"a"]
        shop.next_life()
    assert bodies(shop.house, "other") == [b"a"]


@pytest.mark.parametrize("operation", ["move_messages", "redrive"])
def test_what_has_no_place_stays_and_holds_nothing_up(operation: str) -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name in ("one", "two"):
        client.call("create_queue", name=name, address="picky", filter="k < 3")
    client.put(client.produce("picky"), *numbered(6), envelopes=with_k(1, 2, 1, 2, 2, 1))
    for name in ("one", "two"):
        assert client.call("move_messages", name=name, address="aside") == {"moved": 3}
        client.call("delete_queue", name=name)
    client.call("create_queue", name="three", address="picky", filter="k = 1")
    asked = {"name": "aside"} if operation == "redrive" else {"name": "aside", "address": "picky"}
    assert client.call(operation, **asked, limit=2) == {"moved": 2}
    for moved, outcome in ((1, {"outcome": "unknown"}), (0, {})):
        assert client.call(operation, **asked) == outcome
        told = f"{moved} messages were moved; no queue of 'picky' takes the first of 3 others, which stay"
        assert told in str(client.answer(client.calls))
        assert sorted(bodies(house, "three")) == [b"0", b"2", b"5"]
        assert sorted(bodies(house, "aside")) == [b"1", b"3", b"4"]
    house.check()


def test_what_was_where_another_address_has_the_name_now_does_not_keep_the_rest_from_going_back() -> None:
    house = make_house(FakeLog())
    client = house.client()
    for name in ("first", "second"):
        client.put(client.produce(name, name.encode().ljust(16, b"-")), name.encode())
        assert client.call("move_messages", name=name, address="aside") == {"moved": 1}
    client.call("delete_queue", name="first")
    client.call("create_queue", name="first", address="other")
    assert client.call("redrive", name="aside") == {"outcome": "unknown"}
    assert (bodies(house, "aside"), bodies(house, "second")) == ([b"first"], [b"second"])


@pytest.mark.parametrize("operation", ["move_messages", "redrive"])
@pytest.mark.parametrize("filter", [None, "k = 1"])
def test_what_no_subscriber_of_a_topic_would_store_stays(operation: str, filter: str | None) -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.call("create_queue", name="sub", address="news", routing="multicast")
    client.put(client.produce("news"), *numbered(3), envelopes=with_k(1, 2, 1))
    assert client.call("move_messages", name="sub", address="aside") == {"moved": 3}
    client.call("delete_queue", name="sub")
    assert house.core.router.addresses["news"].routing == "multicast"
    stays = ["0", "1", "2"]
    if filter is not None:
        client.call("create_queue", name="some", address="news", routing="multicast", filter=filter)
        stays = ["1"]
    asked = {"name": "aside"} if operation == "redrive" else {"name": "aside", "address": "news"}
    assert client.call(operation, **asked) == ({"outcome": "unknown"} if filter else {})
    told = f"{3 - len(stays)} messages were moved; no queue of 'news' takes the first of {len(stays)} others"
    assert told in str(client.answer(client.calls))
    assert [body.decode() for body in bodies(house, "aside")] == stays
    if filter is not None:
        assert bodies(house, "some") == [b"0", b"2"]
    house.check()
