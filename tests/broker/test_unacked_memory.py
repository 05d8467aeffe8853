"""What consumers hold stays in memory: their windows say how much they want, and the node how much they get."""

from __future__ import annotations

import random

import pytest

from meshq import limits
from meshq.broker.session._outgoing_bound import LEAST_BYTES, OutgoingBound
from meshq.broker.session._session_stream import SessionStream
from meshq.settings import AddressSettings
from meshq.wire import KIND_PROPERTIES, Envelope, Frame, FrameType, encode_map
from tests.broker.kit import House, RawClient, make_house, nothing
from tests.broker.logs import FakeLog

MIB = 1 << 20
SIZE = 100_000
#: Half of memory may be held, and half of that by one that is alone.
MEMORY = 16 * MIB


def filled(count: int = 100, rows: int = 1, **options: object) -> tuple[House, RawClient]:
    house = make_house(FakeLog(), memory=MEMORY, **options)  # type: ignore[arg-type]
    client = house.client(lossless=True)
    sender = client.produce()
    for number in range(0, count, rows):
        bodies = [b"%d " % row + bytes(SIZE) for row in range(number, number + rows)]
        envelopes = [Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map({"k": row})) for row in range(rows)]
        client.put(sender, *bodies, envelopes=envelopes)
    return house, client


def got(client: RawClient, channel: int) -> list[int]:
    return [int(body.split(b" ")[0]) for body in client.bodies(channel)]


def wide(client: RawClient, **options: object) -> int:
    return client.consume(window=1_000_000, window_bytes=1 << 40, **options)


def test_one_consumer_gets_half_of_what_may_be_held_and_the_next_ones_what_is_left() -> None:
    house, client = filled()
    unacked_memory = house.core.memory.unacked
    first = wide(client)
    assert unacked_memory.bound_bytes == MEMORY // 2
    assert abs(unacked_memory.used_bytes - MEMORY // 4) < 2 * SIZE
    others = [wide(client) for _ in range(6)]
    assert all(len(got(client, channel)) >= 1 for channel in others)
    assert unacked_memory.used_bytes <= unacked_memory.bound_bytes + len(others) * 2 * SIZE
    house.check()
    # What is settled makes room, and in the end everything has come.
    open_tags = dict.fromkeys([first, *others], 1)
    for _ in range(1_000):
        if house.queue().counts.ready + house.queue().counts.unacked == 0:
            break
        for channel, tag in open_tags.items():
            if len(client.bodies(channel)) >= tag:
                client.settle(channel, (tag, tag))
                open_tags[channel] += 1
    assert sorted(number for channel in open_tags for number in got(client, channel)) == list(range(100))
    assert unacked_memory.used_bytes == 0 and not any(one.pinned_bytes for one in house.queue().roster.consumers)


def test_one_message_of_a_run_keeps_the_whole_run_and_counts_as_that() -> None:
    house, client = filled(rows=10)
    channel = wide(client, filter="k = 3")
    held = len(got(client, channel))
    # Of ten runs of a megabyte not more than a quarter of memory, and one.
    assert 4 <= held <= 6
    assert house.core.memory.unacked.used_bytes > 10 * (held - 1) * SIZE
    for tag in range(1, 11):
        client.settle(channel, (tag, tag))
    assert got(client, channel) == list(range(3, 100, 10))


def test_one_that_holds_nothing_gets_something_however_much_the_others_hold() -> None:
    house, client = filled()
    holders = [wide(client) for _ in range(12)]
    assert house.core.memory.unacked.free_bytes < SIZE
    late = wide(client)
    assert len(got(client, late)) == 1
    client.settle(late, (1, 1))
    assert len(got(client, late)) == 2
    # Those who had no room hear of it when somebody else goes.
    before = sum(len(got(client, channel)) for channel in holders[1:])
    client.leave(holders[0])
    assert sum(len(got(client, channel)) for channel in holders[1:]) > before
    house.check()


def test_one_with_a_filter_goes_on_when_a_little_memory_is_free() -> None:
    house, client = filled(83)
    holders = [wide(client) for _ in range(12)]
    assert house.queue().counts.ready == 0
    sender = client.produce("others")
    envelope = Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map({"k": 1}))
    client.put(sender, b"0 " + bytes(SIZE), envelopes=[envelope])
    filtered = wide(client, queue="others", filter="k = 1")
    memory = house.core.memory.unacked
    client.put(sender, b"1 ", envelopes=[envelope])
    assert memory.free_bytes < SIZE and len(got(client, filtered)) == 1, "it holds more than there is"
    # Too little for those that are called when an eighth of the bound is free.
    client.settle(holders[0], (1, 3))
    assert SIZE < memory.free_bytes < memory.bound_bytes // 8
    house.check()
    client.put(sender, b"2 ", envelopes=[envelope])
    assert got(client, filtered) == [0, 1, 2]
    house.check()


def test_what_a_consumer_holds_is_let_go_however_it_ends() -> None:
    for ending in ("leave", "drop", "end"):
        house, _ = filled(20)
        reader = house.client()
        channel = wide(reader)
        reader.settle(channel, (3, 4), (7, 7))
        assert house.core.memory.unacked.used_bytes > 5 * SIZE
        if ending == "leave":
            reader.leave(channel)
        else:
            reader.drop()
            if ending == "drop":
                assert house.core.memory.unacked.used_bytes > 5 * SIZE, "it may come back for them"
            assert reader.attached is not None
            house.sessions.end(house.sessions.by_number[reader.attached.session])
        assert house.core.memory.unacked.used_bytes == 0
        house.check()


def test_the_default_windows_are_no_different_where_there_is_memory() -> None:
    house = make_house(FakeLog())
    client = house.client(lossless=True)
    sender = client.produce()
    for _ in range(20):
        client.put(sender, *[bytes(1_000)] * 100)
    channel = client.consume()
    assert len(client.bodies(channel)) == 1_000


def test_several_consumers_of_a_run_count_it_once() -> None:
    house, client = filled(10, rows=10)
    for _ in range(5):
        client.consume(window=2)
    assert house.queue().counts.unacked == 10
    assert SIZE * 10 <= house.core.memory.unacked.used_bytes < SIZE * 10 + 10_000


def test_a_consumer_counts_a_run_once_however_many_parts_of_it_it_holds() -> None:
    house, client = filled(10, rows=10)
    first, second = client.consume(window=3), client.consume(window=2)
    shares = house.queue().roster.consumers
    for tag in (1, 4, 2, 3, 5, 6):
        # What is settled is followed by another part of the same run, until nothing of it is left.
        if len(client.bodies(first)) >= tag:
            client.settle(first, (tag, tag))
        house.check()
        for share in shares:
            assert 0 < share.unacked <= 3
            assert SIZE * 10 <= share.pinned_bytes < SIZE * 10 + 10_000, "each has the run, and has it once"
        assert house.core.memory.unacked.used_bytes == shares[0].pinned_bytes
    for channel, share in zip((first, second), shares, strict=True):
        left = range(share.next_tag - share.unacked, share.next_tag)
        client.settle(channel, (left[0], left[-1]))
    house.check()
    client.leave(first)
    client.leave(second)
    assert house.core.memory.unacked.used_bytes == 0


@pytest.mark.slow
def test_parts_of_runs_in_any_order_leave_nothing_counted() -> None:
    for seed in range(40):
        house, client = filled(100, rows=10)
        draw = random.Random(seed)
        open_tags: dict[int, list[int]] = {client.consume(window=draw.randrange(1, 40)): [] for _ in range(3)}
        given = dict.fromkeys(open_tags, 0)
        while house.queue().counts.ready + house.queue().counts.unacked:
            for channel, tags in open_tags.items():
                total = len(client.bodies(channel))
                tags += range(given[channel] + 1, total + 1)
                given[channel] = total
                if tags:
                    tag = tags.pop(draw.randrange(len(tags)))
                    client.settle(channel, (tag, tag))
            house.check()
        assert house.core.memory.unacked.used_bytes == 0
        assert not any(one.pinned_bytes for one in house.queue().roster.consumers)


@pytest.mark.parametrize("window", [1 * MIB, 64 * MIB])
def test_a_client_that_says_nothing_of_what_it_has_got_is_given_its_share_and_no_more(window: int) -> None:
    house, _ = filled(100)
    reader = house.client(window_bytes=window)
    reader.mute = True
    others = [house.client() for _ in range(6)]
    channel = wide(reader)
    share = MEMORY // 4 // (len(others) + 2)
    # Who may keep so much reports later, and has to hear so much before.
    share = max(share, LEAST_BYTES + min(window // 4, limits.REPORT_BYTES_MAX))
    assert share < MEMORY // 8
    session = house.sessions.by_number[reader.attached.session]  # type: ignore[union-attr]
    # A step grants a megabyte at most.
    assert share < session.outgoing_bound.used_bytes <= share + MIB + 2 * SIZE
    before = len(got(reader, channel))
    # Acknowledging without saying what has arrived frees nothing.
    reader.settle(channel, (1, before))
    assert len(got(reader, channel)) == before
    reader.mute = False
    reader.send(FrameType.PING)
    assert len(got(reader, channel)) > before


class _Link:
    waiting = 0


@pytest.mark.parametrize("window", [0, 256, 1 * MIB, 64 * MIB])
def test_a_share_is_never_so_small_that_the_client_stays_silent(window: int) -> None:
    house = make_house(memory=1 * MIB)
    stream = SessionStream(window, nothing)
    outgoing, bound = stream.outgoing, OutgoingBound(house.core.memory, house.core.sessions, stream, window)
    if window:
        reports = min(max(window, LEAST_BYTES) // 4, 1 * MIB)
        while not bound.reached:
            outgoing.number(Frame(FrameType.DELIVER, body=bytes(10_000)), keep=True)
        assert reports < bound.used_bytes <= max(1 * MIB // 4, reports + LEAST_BYTES) + 20_000
        outgoing.arrived(outgoing.last)
        assert bound.left
        return
    stream.link = link = _Link()  # type: ignore[assignment]
    assert not bound.reached
    link.waiting = 300_000
    assert bound.reached
    link.waiting = 100_000
    assert bound.left


def test_an_address_setting_does_not_matter() -> None:
    house, client = filled(40, settings={"q": AddressSettings(full_policy="block")})
    wide(client)
    assert house.core.memory.unacked.used_bytes < MEMORY // 4 + 2 * SIZE
