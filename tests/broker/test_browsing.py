"""Looking at a queue: everything that is in it, in order, and nothing changes by it."""

from __future__ import annotations

import random

import pytest

from meshq import limits
from meshq.wire import (
    FLAG_RETURN,
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PROPERTIES,
    ConsumerLost,
    Envelope,
    FrameType,
    encode_map,
    header_of,
)
from tests.broker.kit import House, RawClient, make_house
from tests.broker.logs import FakeLog


def over(client: RawClient, channel: int) -> bool:
    """Whether a browse is at its end."""
    lost = [frame for frame in client.frames if frame.type is FrameType.CONSUMER_LOST and frame.channel == channel]
    return bool(lost) and header_of(lost[0], ConsumerLost).code == 0


def test_a_browse_shows_what_is_ready_and_held_in_order_and_takes_nothing() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    client.put(sender, b"a", b"b")
    reader = client.consume(window=1)
    client.put(sender, b"c", b"urgent", envelopes=[Envelope(4 << 8, b"", b"", b""), Envelope(9 << 8, b"", b"", b"")])
    house.rest()
    browse = client.consume(browse=True)
    assert client.bodies(browse) == [b"urgent", b"a", b"b", b"c"]
    assert over(client, browse) and client.bodies(reader) == [b"a"]
    statistics = house.core.router.statistics(house.queue())
    assert (statistics["consumers"], statistics["ready"], statistics["delivering"]) == (1, 3, 1)
    house.check()
    # What comes afterwards belongs to nobody.
    client.settle(browse, (1, 2))
    client.leave(browse)
    client.settle(reader, (1, 1))
    assert client.bodies(reader) == [b"a", b"urgent"]


def test_it_ends_with_what_was_last_when_it_began_and_an_empty_queue_at_once() -> None:
    house = make_house()
    client = house.client()
    empty = client.consume(browse=True)
    assert client.bodies(empty) == [] and over(client, empty)
    sender = client.produce()
    client.put(sender, *[b"%d" % number for number in range(6)])
    browse = client.consume(browse=True, window=2)
    client.put(sender, b"later")
    client.put(sender, b"urgent", envelopes=[Envelope(9 << 8, b"", b"", b"")])
    for tag in (1, 3):
        assert not over(client, browse)
        assert client.bodies(browse) == [b"%d" % number for number in range(tag + 1)]
        client.settle(browse, (tag, tag + 1))
    assert client.bodies(browse) == [b"%d" % number for number in range(6)] and over(client, browse)
    assert not house.queue().roster.browsers and not house.queue().lists.all[0].cursors


def test_a_message_that_goes_meanwhile_is_left_out_and_one_that_moves_is_not_missed() -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    for number in range(6):
        client.put(sender, b"%d" % number)
    reader = client.consume(window=4)
    browse = client.consume(browse=True, window=1)
    assert client.bodies(browse) == [b"0"]
    client.settle(reader, (1, 3))
    client.settle(reader, (4, 4), flags=FLAG_RETURN)
    for tag in range(1, 4):
        client.settle(browse, (tag, tag))
    assert client.bodies(browse) == [b"0", b"3", b"4", b"5"] and over(client, browse)
    house.check()


def test_a_filter_looks_through_a_long_queue_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 10)
    house = make_house()
    later: list[None] = []
    house.host.wake = lambda: later.append(None)
    client = house.client()
    sender = client.produce()
    for number in range(40):
        properties = Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map({"n": number}))
        client.put(sender, b"%d" % number, envelopes=[properties])
    browse = client.consume(browse=True, filter="n > 36")
    assert client.bodies(browse) == []
    steps = 0
    while not over(client, browse):
        steps += 1
        assert steps < 10 and len(later) == steps
        house.core.resume()
    assert client.bodies(browse) == [b"37", b"38", b"39"] and steps == 3
    # It is none of the queue's filters.
    assert house.queue().roster.filters == () and not house.queue().lists.main.watchers


def test_groups_are_shown_what_is_not_due_is_not_and_a_paused_queue_can_be_looked_at() -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    control = 4 << 8 | KIND_CONTROL | KIND_HEADERS
    client.put(
        sender,
        b"grouped",
        b"late",
        envelopes=[
            Envelope(control, b"", encode_map({"g": "a"}), b""),
            Envelope(control, b"", encode_map({"d": 60_000}), b""),
        ],
    )
    client.call("pause_queue", name="q")
    browse = client.consume(browse=True)
    assert client.bodies(browse) == [b"grouped"] and over(client, browse)


def test_a_window_in_bytes_bounds_what_is_shown_at_a_time() -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    client.put(sender, b"x" * 60, b"y" * 60, b"z" * 200)
    browse = client.consume(browse=True, window_bytes=100)
    assert client.bodies(browse) == [b"x" * 60]
    client.settle(browse, (1, 1))
    client.settle(browse, (2, 2))
    assert client.bodies(browse)[2:] == [b"z" * 200]
    assert over(client, browse)


@pytest.mark.parametrize("numbers", [{}, {"lo": 1, "hi": 3}])
def test_a_run_of_which_no_message_fits_beside_the_ones_before_waits(numbers: dict[str, int]) -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    client.put(sender, b"x" * 60)
    client.put(sender, b"y" * 60)
    browse = client.consume(browse=True, window_bytes=100, **numbers)
    assert client.bodies(browse) == [b"x" * 60]
    client.settle(browse, (1, 1))
    assert client.bodies(browse) == [b"x" * 60, b"y" * 60]
    client.settle(browse, (2, 2))
    assert over(client, browse)


def test_a_queue_that_is_deleted_ends_the_browse_and_says_so() -> None:
    house = make_house()
    client = house.client()
    client.put(client.produce(), b"a", b"b")
    browse = client.consume(browse=True, window=1)
    assert client.call("delete_queue", name="q") == {"removed": 2}
    lost = [frame for frame in client.frames if frame.type is FrameType.CONSUMER_LOST]
    assert [header_of(frame, ConsumerLost).code for frame in lost] == [70] and not over(client, browse)


def test_a_session_that_ends_leaves_no_browse_behind() -> None:
    house = make_house()
    client = house.client()
    client.put(client.produce(), b"a", b"b")
    client.consume(browse=True, window=1)
    queue = house.queue()
    assert queue.roster.browsers and queue.lists.all[0].cursors
    house.sessions.by_number[1].end()
    house.core.pending.run()
    assert not queue.roster.browsers and not queue.lists.all[0].cursors
    house.check()


def test_a_browse_that_stands_still_keeps_nothing_that_is_gone() -> None:
    house = make_house()
    client = house.client()
    sender, reader = client.produce(), client.consume()
    for number in range(5):
        client.put(sender, b"%d" % number)
    client.consume(browse=True, window=1)
    (browser,) = house.queue().roster.browsers
    client.settle(reader, (1, 5))
    assert browser._view is None and house.queue().lists.live_runs == 0


def test_a_queue_that_goes_by_itself_waits_for_those_who_look() -> None:
    house = make_house()
    client = house.client()
    client.call("create_address", name="news", routing="multicast")
    reader = client.consume("news", window=1, subscription="shared", name="mine")
    client.put(client.produce("news"), b"a", b"b")
    browse = client.consume("news::mine", browse=True, window=1)
    assert client.bodies(browse) == [b"a"]
    client.leave(reader)
    assert "news::mine" in house.core.router.queues
    client.settle(browse, (1, 1))
    assert client.bodies(browse) == [b"a", b"b"] and over(client, browse)
    assert "news::mine" not in house.core.router.queues


def test_it_shows_nothing_before_it_is_on_disk_and_marks_nothing_as_delivered() -> None:
    house = make_house(
        FakeLog(),
    )
    client = house.client()
    sender = client.produce()
    client.put(sender, b"a", b"b")
    house.rest()
    browse = client.consume(browse=True)
    house.rest()
    assert client.bodies(browse) == [b"a", b"b"]
    log = house.log.after_crash()
    house = make_house(log, records=log.recovered())
    assert [view.maybe for view in house.queue().runs()] == [0]


@pytest.mark.parametrize("seed", range(12))
def test_any_browse_shows_what_was_there_all_the_time_in_order_and_once(seed: int) -> None:
    dice = random.Random(seed)
    house: House = make_house()
    client = house.client()
    sender, reader = client.produce(), client.consume(window=7)
    sent = done = 0
    for _ in range(12):
        for _ in range(dice.randrange(1, 6)):
            bodies = [b"%d" % (sent + index) for index in range(dice.choice([1, 1, 4]))]
            sent += len(bodies)
            client.put(sender, *bodies)
        window = dice.choice([1, 3, 100])
        first, browse, shown = done, client.consume(browse=True, window=window), 0
        gone: set[int] = set()
        last = sent
        while not over(client, browse):
            found = len(client.bodies(browse))
            assert found - shown <= window
            if done < min(sent, len(client.bodies(reader))) and dice.random() < 0.6:
                client.settle(reader, (done + 1, done + 1))
                gone.add(done)
                done += 1
            if dice.random() < 0.3:
                client.put(sender, b"%d" % sent)
                sent += 1
            if found > shown:
                client.settle(browse, (shown + 1, found))
                shown = found
        got = [int(body) for body in client.bodies(browse)]
        assert got == sorted(set(got))
        assert set(range(first, last)) - gone <= set(got) <= set(range(first, last))
        house.check()
