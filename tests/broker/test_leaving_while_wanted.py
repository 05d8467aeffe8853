"""What leaves a queue while somebody waits for its bytes keeps nobody from what stands behind it."""

from __future__ import annotations

import pytest

from meshq.settings import AddressSettings
from meshq.wire import KIND_CONTROL, KIND_HEADERS, Envelope, FrameType, encode_map
from tests.broker.kit import RawClient, make_house
from tests.broker.logs import FakeLog
from tests.broker.pages import FakePages
from tests.broker.test_delays import WallClock

EXPIRES = Envelope(4 << 8 | KIND_CONTROL | KIND_HEADERS, b"", encode_map({"x": 1_000}), b"")

LATER = Envelope(4 << 8 | KIND_CONTROL | KIND_HEADERS, b"", encode_map({"d": 60_000}), b"")


class Place:
    """A queue of three runs: one in memory, a large one that expires and is on the disk, and one behind it."""

    def __init__(self, expiry_address: str | None = None) -> None:
        self.wall = WallClock()
        settings = {"q": AddressSettings(expiry_address=expiry_address, max_size_bytes=1, page_size_bytes=65_536)}
        self.house = make_house(FakeLog(), now_ms=self.wall, settings=settings)
        self.pages = FakePages(self.house)
        self.client: RawClient = self.house.client()
        sender = self.client.produce()
        self.client.put(sender, b"first")
        # So large that what comes behind it is not read with it.
        self.client.put(sender, bytes(70_000), envelopes=[EXPIRES])
        self.rest()
        self.client.put(sender, b"last")
        self.rest()
        assert [bool(view.run.paged) for view in self.house.queue().runs()][:2] == [False, True]

    def rest(self) -> None:
        self.house.rest()
        self.pages.rest()
        self.house.rest()
        self.house.check()

    def consume(self, *, browse: bool = False) -> int:
        """Somebody has the first message, and room for one."""
        channel = self.client.consume(window=1, browse=browse)
        self.house.rest()
        return channel

    def bodies(self, channel: int) -> list[bytes]:
        return self.client.bodies(channel)


@pytest.mark.parametrize("browse", [False, True])
def test_what_expires_on_its_way_to_another_address(browse: bool) -> None:
    place = Place("late")
    reader = place.consume(browse=browse)
    place.wall.move(place.house, 2_000)
    place.client.settle(reader, (1, 1))
    place.rest()
    assert place.bodies(reader) == [b"first", b"last"]
    assert len(place.client.all(FrameType.CONSUMER_LOST)) == browse
    assert place.house.queue().counts.removed["expired"] == place.house.queue("late").counts.ready == 1


@pytest.mark.parametrize("browse", [False, True])
def test_what_expires_while_it_is_read(browse: bool) -> None:
    place = Place()
    reader = place.consume(browse=browse)
    place.client.settle(reader, (1, 1))
    place.wall.move(place.house, 2_000)
    place.rest()
    assert place.bodies(reader) == [b"first", b"last"]
    assert len(place.client.all(FrameType.CONSUMER_LOST)) == browse
    assert place.house.queue().counts.removed["expired"] == 1


@pytest.mark.parametrize("browse", [False, True])
def test_what_is_moved_while_it_is_read(browse: bool) -> None:
    place = Place()
    reader = place.consume(browse=browse)
    place.client.settle(reader, (1, 1))
    place.client.call("move_messages", name="q", address="there", filter="size > 1000")
    place.rest()
    assert place.bodies(reader) == [b"first", b"last"]
    assert place.house.queue("there").counts.ready == 1


def test_a_move_that_waits_for_what_is_purged_meanwhile_ends() -> None:
    place = Place()
    place.client.call("move_messages", name="q", address="there")
    call = place.client.calls
    assert place.client.answer(call) is None
    assert place.house.client().call("purge_queue", name="q") == {"removed": 2}
    place.rest()
    answer = place.client.answer(call)
    assert answer is not None and answer.named == {"moved": 1}


@pytest.mark.parametrize("hops", range(4))
@pytest.mark.parametrize("deleted", [False, True])
def test_what_is_not_due_is_purged_on_its_way_to_the_disk(hops: int, deleted: bool) -> None:
    place = Place()
    sender = place.client.produce(producer=b"another-producer")
    for _ in range(4):
        place.client.put(sender, bytes(5_000), envelopes=[LATER], durable=False)
    place.pages.press()
    for _ in range(hops):
        place.pages.hop()
    if deleted:
        place.client.call("delete_queue", name="q")
    else:
        assert place.client.call("purge_queue", name="q") == {"removed": 7}
    place.rest()
    place.pages.press()
    place.rest()
    assert place.house.core.memory.used_bytes == 0
    assert not place.house.core.pager.resident and not place.pages.written


@pytest.mark.parametrize("durable", [True, False])
def test_nothing_is_kept_of_what_was_read_back_and_acknowledged(durable: bool) -> None:
    place = Place()
    for name in ("a", "b"):
        place.client.call("create_queue", name=name, address="q", routing="anycast")
    sender = place.client.produce(producer=b"another-producer")
    for _ in range(20):
        place.client.put(sender, *[bytes(10_000)] * 3, durable=durable)
        place.rest()
    assert any(view.run.paged for view in place.house.queue("a").runs())
    for name in ("q", "a", "b"):
        reader = place.client.consume(name)
        place.rest()
        place.client.settle(reader, (1, len(place.bodies(reader))))
        place.rest()
    assert place.house.core.memory.used_bytes == 0 and not place.house.core.pager.resident


def test_what_is_too_large_for_the_room_of_a_consumer_expires() -> None:
    place = Place()
    reader = place.client.consume(window_bytes=100)
    place.rest()
    assert place.bodies(reader) == [b"first"]
    place.wall.move(place.house, 2_000)
    place.rest()
    assert place.bodies(reader) == [b"first", b"last"]
