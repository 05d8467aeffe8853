"""Duplicate ids: what is stored once, how long that is known, and where it stands on disk."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from meshq.broker import Core
from meshq.broker.log._duplicates import DuplicateIds, IdChunk
from meshq.broker.records import IDS, RUN, decode_ids
from meshq.settings import AddressSettings
from tests.broker.kit import FakeLog, House, RawClient, make_core, make_house, with_ids


def house_with(capacity: int = 20_000, log: FakeLog | None = None) -> House:
    settings = {"#": AddressSettings(duplicate_id_cache_size=capacity)}
    return make_house(FakeLog() if log is None else log, settings=settings)


def put_ids(client: RawClient, channel: int, *ids: str, durable: bool = True) -> None:
    """One message for each id, whose body is the id."""
    bodies = [text.encode() for text in ids]
    client.put(channel, *bodies, envelopes=with_ids(*ids), durable=durable)


def again(house: House, capacity: int = 20_000) -> House:
    """The node after a crash in which nothing was lost."""
    log = house.log.after_crash()
    settings = {"#": AddressSettings(duplicate_id_cache_size=capacity)}
    return House(make_core(log, records=house.log.recovered(), settings=settings))


def known(core: Core, address: str = "q") -> int:
    return len(core.router.addresses[address].duplicates)


# -- the window alone


def test_a_window_keeps_the_newest_ids_and_says_which_records_nobody_needs() -> None:
    window = DuplicateIds(3)
    assert window.add(IdChunk(1, [b"a", b"b"], record=11)) == []
    assert window.add(IdChunk(2, [b"c"])) == []
    assert window.fresh_rows([b"a", b"d", b"c", b"b"]) == [1]
    assert window.add(IdChunk(3, [b"d"])) == []
    assert window.fresh_rows([b"a", b"b"]) == [0]
    assert window.add(IdChunk(4, [b"e"])) == [11]
    assert window.surviving(1) is None
    assert len(window) == 3


def test_repeats_within_one_run_and_messages_without_an_id_are_told_apart() -> None:
    window = DuplicateIds(10)
    assert window.fresh_rows([b"a", b"b"]) is None
    assert window.fresh_rows([b"a", b"", b"a", b"", b"b"]) == [0, 1, 3, 4]
    window.add(IdChunk(1, [b"a"]))
    assert window.fresh_rows([b"", b""]) is None


def test_a_window_of_nothing_knows_nothing_and_gives_records_back_at_once() -> None:
    window = DuplicateIds(0)
    assert window.fresh_rows([b"a", b"a"]) is None
    assert window.add(IdChunk(1, [b"a"], record=7)) == [7]
    assert window.add(IdChunk(1, [b"a"])) == []


def test_a_run_with_more_ids_than_the_window_leaves_the_last_ones() -> None:
    window = DuplicateIds(2)
    window.add(IdChunk(1, [b"a", b"b", b"c", b"d"]))
    assert window.fresh_rows([b"a", b"b", b"c", b"d"]) == [0, 1]


@given(st.lists(st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e", b""]), min_size=1, max_size=5), max_size=12))
def test_a_window_is_a_list_of_its_newest_ids(runs: list[list[bytes]]) -> None:
    window, model = DuplicateIds(4), list[bytes]()
    for origin, ids in enumerate(runs, 1):
        rows = window.fresh_rows(ids)
        expected = [row for row, one in enumerate(ids) if not one or (one not in model and one not in ids[:row])]
        assert (list(range(len(ids))) if rows is None else rows) == expected
        fresh = [ids[row] for row in expected if ids[row]]
        if fresh:
            window.add(IdChunk(origin, fresh))
            model = [*model, *fresh][-4:]
        assert len(window) == len(model)


def test_the_id_of_a_message_that_is_not_durable_holds_for_a_durable_one_only_once_that_came() -> None:
    window = DuplicateIds(3)
    window.add(IdChunk(0, [b"a", b"b"], durable=False))
    assert window.fresh_rows([b"a", b"a", b"c"], durable=False) == [2]
    assert window.fresh_rows([b"a", b"a", b"c"]) == [0, 2]
    window.add(IdChunk(1, [b"a"]))
    assert window.fresh_rows([b"a", b"b"]) == [1]
    assert window.known() == [b"b", b"a"]
    # The place of the first one leaves the window, and the id stays for the second one.
    window.add(IdChunk(2, [b"d", b"e"]))
    assert window.fresh_rows([b"a", b"b"], durable=False) == [1]
    window.add(IdChunk(3, [b"f"]))
    assert window.known() == [b"d", b"e", b"f"] and len(window) == 3


# -- sends


def test_a_repeat_is_confirmed_and_stored_once_in_a_frame_and_across_frames() -> None:
    house = house_with()
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "a", "b", "a", "")
    put_ids(client, producer, "b", "c", "")
    put_ids(client, producer, "a", "c")
    assert client.bodies(consumer) == [b"a", b"b", b"", b"c", b""]
    assert client.confirmed[-1] == (producer, 9)
    assert house.core.ingress.duplicates == 4
    house.check()


def test_the_confirm_of_a_repeat_waits_for_its_original() -> None:
    house = house_with()
    first, second = house.client(), house.client()
    one, two = first.produce(), second.produce(producer=b"q" * 16)
    house.auto = False
    put_ids(first, one, "a")
    put_ids(second, two, "a")
    put_ids(second, two, "a", durable=False)
    assert second.confirmed == []
    house.log.sync()
    assert second.confirmed == [(two, 2)]


def test_a_durable_message_that_was_confirmed_is_there_after_a_crash_whatever_came_before_with_its_id() -> None:
    house = house_with()
    client = house.client()
    producer = client.produce()
    put_ids(client, producer, "a", durable=False)
    put_ids(client, producer, "a", durable=False)
    client.put(producer, b"durable", envelopes=with_ids("a"))
    put_ids(client, producer, "a", durable=False)
    put_ids(client, producer, "a")
    assert (house.queue().counts.ready, house.core.ingress.duplicates) == (2, 3)
    house.check()
    after = again(house)
    client = after.client()
    assert client.bodies(client.consume()) == [b"durable"]
    put_ids(client, client.produce(producer=b"q" * 16), "a")
    assert after.core.ingress.duplicates == 1
    after.check()


def test_an_id_that_has_left_the_window_is_stored_again() -> None:
    house = house_with(2)
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    for text in ("a", "b", "c", "a", "c"):
        put_ids(client, producer, text)
    assert client.bodies(consumer) == [b"a", b"b", b"c", b"a"]


def test_ids_are_known_per_address() -> None:
    house = house_with()
    client = house.client()
    one, two = client.produce("x"), client.produce("y", producer=b"q" * 16)
    put_ids(client, one, "a")
    put_ids(client, two, "a")
    assert house.core.ingress.duplicates == 0


def test_repeats_are_skipped_in_every_queue_of_the_address() -> None:
    house = house_with()
    client = house.client()
    for name in ("a", "b"):
        client.call("create_queue", name=name, address="work")
    producer = client.produce("work")
    put_ids(client, producer, "1")
    put_ids(client, producer, "1", "2", "1", "3")
    assert house.queue("a").counts.ready + house.queue("b").counts.ready == 3
    after = again(house)
    assert after.queue("a").counts.ready + after.queue("b").counts.ready == 3
    house.check()
    after.check()


def test_a_queue_whose_share_of_a_run_is_all_repeats_holds_nothing_of_it() -> None:
    house = house_with()
    client = house.client()
    for name in ("a", "b"):
        client.call("create_queue", name=name, address="work")
    producer = client.produce("work")
    put_ids(client, producer, "1", "2")
    for name in ("a", "b"):
        client.settle(client.consume(name), (1, 1))
    put_ids(client, producer, "1", "3")
    assert [house.queue(name).lists.live_runs for name in ("a", "b")] == [0, 1]
    client.settle(client.channels, (2, 2))
    assert house.core.memory.used_bytes == 0
    assert RUN not in [record.kind for record in house.log.living()]


def test_what_is_refused_has_not_used_its_id() -> None:
    house = house_with()
    client = house.client()
    producer = client.produce()
    house.log.full = True
    put_ids(client, producer, "a")
    house.log.full = False
    put_ids(client, producer, "a")
    assert (house.queue().counts.ready, house.core.ingress.duplicates) == (1, 0)


def test_a_message_that_nobody_listens_to_has_not_used_its_id() -> None:
    house = house_with()
    client = house.client()
    client.call("create_address", name="news", routing="multicast")
    producer = client.produce("news")
    put_ids(client, producer, "a")
    client.call("create_queue", name="x", address="news", routing="multicast")
    put_ids(client, producer, "a")
    assert house.queue("x").counts.ready == 1


# -- on disk


def test_ids_are_known_after_a_crash_from_the_record_of_their_run() -> None:
    house = house_with()
    client = house.client()
    put_ids(client, client.produce(), "a", "", "b")
    after = again(house)
    assert known(after.core) == 2
    client = after.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "b", "c", "a")
    assert client.bodies(consumer) == [b"a", b"", b"b", b"c"]


def test_ids_outlive_their_run_in_a_record_of_their_own_that_goes_when_they_leave() -> None:
    house = house_with(3)
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "a", "b")
    client.settle(consumer, (1, 2))
    assert [record.kind for record in house.log.living() if record.kind in (RUN, IDS)] == [IDS]
    assert decode_ids(house.log.records[-1].payload).ids == (b"a", b"b")
    after = again(house, 3)
    assert known(after.core) == 2
    client = after.client()
    producer = client.produce()
    put_ids(client, producer, "a", "c", "d")
    assert (after.queue().counts.ready, after.core.ingress.duplicates) == (2, 1)
    # One of them is still in the window.
    assert IDS in [record.kind for record in after.log.living()]
    put_ids(client, producer, "e")
    put_ids(client, producer, "f")
    assert IDS not in [record.kind for record in after.log.living()]
    assert known(after.core) == 3


def test_only_ids_that_are_still_in_the_window_are_moved() -> None:
    house = house_with(3)
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "a", "b", "c")
    put_ids(client, producer, "d")
    client.settle(consumer, (1, 3))
    (record,) = [record for record in house.log.records if record.kind == IDS]
    assert decode_ids(record.payload).ids == (b"b", b"c")


def test_a_run_whose_ids_have_all_left_dies_with_its_last_message() -> None:
    house = house_with(1)
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "a")
    put_ids(client, producer, "b")
    client.settle(consumer, (1, 1))
    assert IDS not in house.log.kinds()
    assert len([record for record in house.log.living() if record.kind == RUN]) == 1


def test_on_a_full_disk_what_has_ids_can_be_consumed_too() -> None:
    house = house_with()
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "a", "b")
    house.log.full = True
    client.settle(consumer, (1, 2))
    assert house.core.memory.used_bytes == 0
    assert [record.kind for record in house.log.living() if record.kind in (RUN, IDS)] == [IDS]
    assert known(again(house).core) == 2


def test_a_run_that_is_kept_for_its_ids_only_goes_when_they_leave() -> None:
    house = house_with(2)
    client = house.client()
    for name in ("a", "b"):
        client.call("create_queue", name=name, address="news", routing="multicast")
    producer, consumer = client.produce("news"), client.consume("a")
    put_ids(client, producer, "1")
    client.settle(consumer, (1, 1))
    client.call("delete_queue", name="b")
    # The crash came before what the deletion wrote about the run.
    (cut,) = [record.position for record in house.log.records if record.kind == IDS]
    records = [record for record in house.log.recovered() if record.position != cut]
    for record in records:
        record.deleted = record.deleted and record.kind != RUN
    settings = {"#": AddressSettings(duplicate_id_cache_size=2)}
    log = house.log.after_crash()
    log.records = [record for record in log.records if record.position != cut]
    after = House(make_core(log, records=records, settings=settings))
    assert known(after.core, "news") == 1
    assert after.core.memory.used_bytes == 0
    client = after.client()
    producer = client.produce("news")
    put_ids(client, producer, "1", "2")
    assert after.core.ingress.duplicates == 1
    put_ids(client, producer, "3")
    put_ids(client, producer, "4")
    runs = [record.position for record in after.log.living() if record.kind == RUN]
    assert min(runs) > cut


def test_an_id_that_stands_in_two_records_is_known_as_long_as_the_later_one_is() -> None:
    log = FakeLog()
    house = house_with(2, log)
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "a")
    # These two push "a" out of the window, and leave no trace on disk.
    put_ids(client, producer, "x", "y", durable=False)
    put_ids(client, producer, "a")
    assert client.bodies(consumer) == [b"a", b"x", b"y", b"a"]
    after = again(house, 2)
    client = after.client()
    producer = client.produce(producer=b"another-producer")
    put_ids(client, producer, "b")
    put_ids(client, producer, "a")
    assert after.core.ingress.duplicates == 1


def test_a_window_that_is_switched_off_frees_its_records_at_the_next_start() -> None:
    house = house_with()
    client = house.client()
    producer, consumer = client.produce(), client.consume()
    put_ids(client, producer, "a")
    client.settle(consumer, (1, 1))
    after = again(house, 0)
    client = after.client()
    put_ids(client, client.produce(), "a")
    assert IDS not in [record.kind for record in after.log.living()]
    assert after.queue().counts.ready == 1
