"""Somebody sets the wall clock: what waits for a while waits as long; what expires at a time of day expires then."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.settings import AddressSettings
from meshq.wire import FLAG_REJECT, KIND_CONTROL, KIND_HEADERS, Envelope, encode_map
from tests.broker.kit import make_house
from tests.broker.logs import FakeLog
from tests.broker.test_delays import WallClock, late
from tests.broker.test_second_chances import Shop

HOUR_MS = 3_600_000
JUMPS = [-2 * HOUR_MS, HOUR_MS]


class TwoClocks(WallClock):
    """A wall clock that can be set, and the time that has passed, ms."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000_000
        self.set_by = 0

    def passed(self) -> float:
        return self.now - self.set_by

    def jump(self, ms: int) -> None:
        self.now += ms
        self.set_by += ms


class Clockmaker(Shop):
    """A shop whose wall clock somebody sets."""

    def __init__(self, *, window: int = 1_000, **settings: object) -> None:
        self.clocks = self.wall = TwoClocks()
        self.settings = {"q": AddressSettings(**settings)}  # type: ignore[arg-type]
        self.window = window
        self.begin(make_house(FakeLog(), settings=self.settings, now_ms=self.wall, elapsed_ms=self.clocks.passed))

    def next_life(self, cut: int | None = None) -> None:
        log = self.house.log.after_crash(cut)
        self.begin(
            make_house(
                log,
                records=log.recovered(),
                settings=self.settings,
                now_ms=self.wall,
                elapsed_ms=self.clocks.passed,
            )
        )
        self.pass_time(0)

    def jump(self, ms: int) -> None:
        self.clocks.jump(ms)
        self.pass_time(0)


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("durable", [True, False])
def test_a_delay_is_as_long_as_it_was_whatever_the_wall_clock_does(jump: int, durable: bool) -> None:
    shop = Clockmaker()
    shop.client.put(shop.sender, b"later", envelopes=late(5_000), durable=durable)
    shop.house.rest()
    shop.jump(jump)
    shop.pass_time(4_999)
    assert shop.got == []
    shop.pass_time(1)
    assert [body for body, _ in shop.got] == [b"later"]


@pytest.mark.parametrize("jump", JUMPS)
@pytest.mark.parametrize("by_setting", [True, False])
def test_what_was_handed_back_waits_as_long_as_it_was_to(jump: int, by_setting: bool) -> None:
    shop = Clockmaker(redelivery_delay=5.0 if by_setting else 0.0)
    shop.send(b"a")
    shop.settle(1, stamp=0 if by_setting else 5_001)
    shop.jump(jump)
    shop.pass_time(4_999)
    assert shop.got == [(b"a", 1)]
    shop.pass_time(1)
    assert shop.got == [(b"a", 1), (b"a", 2)]


@pytest.mark.parametrize("jump", JUMPS)
def test_what_could_not_be_moved_is_tried_again_after_a_second(jump: int) -> None:
    shop = Clockmaker(window=1, dead_letter_address="dead", expiry_address="old")
    shop.send(b"first")
    shop.send(b"stale", ttl_ms=100)
    shop.house.log.full = True
    shop.pass_time(100)
    shop.settle(1, flags=FLAG_REJECT)
    assert shop.got == [(b"first", 1)], "what has expired is nobody's, also while it can't be moved"
    shop.jump(jump if jump > 0 else 0)
    shop.house.log.full = False
    shop.pass_time(999)
    assert (shop.count("rejected"), shop.count("expired")) == (0, 0)
    shop.jump(jump if jump < 0 else 0)
    shop.pass_time(1)
    # It is not over any more if the clock was set back.
    assert shop.count("expired") == (jump > 0)
    assert shop.got[1:] == [(b"first", 2)]


@pytest.mark.parametrize("jump", JUMPS)
def test_over_a_restart_the_time_of_day_counts_but_no_delay_grows(jump: int) -> None:
    shop = Clockmaker()
    shop.client.put(shop.sender, b"later", envelopes=late(5_000))
    shop.house.rest()
    shop.pass_time(1_000)
    shop.clocks.jump(jump)
    shop.next_life()
    if jump > 0:
        assert [body for body, _ in shop.got] == [b"later"]
        return
    shop.pass_time(4_999)
    assert shop.got == []
    shop.pass_time(1)
    assert [body for body, _ in shop.got] == [b"later"]


def test_after_a_jump_what_waits_is_written_by_the_new_time_of_day() -> None:
    shop = Clockmaker()
    shop.send(b"a", b"b")
    shop.settle(1, stamp=10_001)
    shop.jump(-2 * HOUR_MS)
    shop.settle(2, stamp=10_001)
    shop.next_life()
    shop.pass_time(9_999)
    assert shop.got == []
    shop.pass_time(1)
    assert sorted(shop.got) == [(b"a", 2), (b"b", 2)]


def test_what_waits_over_a_restart_is_there_when_the_clock_is_put_right() -> None:
    shop = Clockmaker()
    shop.send(b"a")
    shop.settle(1, stamp=10_001)
    shop.clocks.jump(-2 * HOUR_MS)
    shop.next_life()
    shop.pass_time(60_000)
    assert shop.got == []
    shop.jump(2 * HOUR_MS)
    assert shop.got == [(b"a", 2)]


def test_a_message_expires_by_the_time_of_day() -> None:
    shop = Clockmaker(window=1)
    shop.send(b"first")
    shop.send(b"a", ttl_ms=5_000)
    shop.jump(HOUR_MS)
    assert shop.count("expired") == 1


def test_of_one_run_an_earlier_expiry_counts_also_if_a_later_one_is_waited_for() -> None:
    """The first one is held while the last one's time is looked for, and comes back to wait beyond its own."""
    shop = Shop(window=2)
    ttls = (300, 100, 1_000)
    envelopes = [Envelope(4 << 8 | KIND_CONTROL | KIND_HEADERS, b"", encode_map({"x": ttl}), b"") for ttl in ttls]
    shop.client.put(shop.sender, b"0", b"1", b"2", envelopes=envelopes)
    shop.house.rest()
    # The time of the second one, which is held with the first: what is waited for now is the third one's.
    shop.pass_time(100)
    shop.settle(1, stamp=801)
    shop.pass_time(50)
    assert shop.count("expired") == 0
    shop.pass_time(150)
    assert shop.count("expired") == 1


@pytest.mark.parametrize("at_once", [True, False])
def test_nobody_gets_what_has_expired_if_more_has_than_one_step_takes(at_once: bool) -> None:
    clock = WallClock()
    house = make_house(now_ms=clock)
    steps: list[None] = []
    if not at_once:
        house.host.wake = lambda: steps.append(None)
    client = house.client()
    sender = client.produce("q")
    messages = 2 * limits.STEP_MESSAGES_MAX + 1
    for number in range(messages):
        envelope = Envelope(4 << 8 | KIND_CONTROL | KIND_HEADERS, b"", encode_map({"x": 100}), b"")
        client.put(sender, b"%d" % number, envelopes=[envelope])
    client.put(sender, b"lives on")
    clock.now += 100
    looker = client.consume("q", window=2 * messages, browse=True)
    reader = client.consume("q", window=2 * messages)
    while not at_once and steps:
        assert client.got(reader) == []
        steps.pop()
        house.core.resume()
    assert [got.body for got in client.got(looker)] == [b"lives on"]
    assert [got.body for got in client.got(reader)] == [b"lives on"]
    assert house.queue().counts.removed["expired"] == messages
    house.check()
