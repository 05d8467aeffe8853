"""The cursors of a node: registered, owned, acknowledged, given up, over crashes; and what others may do meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from meshq.broker import Core
from meshq.notifications import CursorLagging, CursorReleased, Notification
from meshq.settings import AddressSettings
from meshq.wire import (
    BY_NUMBER,
    FLAG_RETURN,
    KIND_CONTROL,
    KIND_HEADERS,
    Answer,
    ConsumerLost,
    Envelope,
    FrameType,
    encode_map,
    header_of,
)
from tests.broker.kit import House, RawClient, make_core, make_house
from tests.broker.logs import FakeLog


class Time:
    """A clock, ms."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def opened(client: RawClient, token: str = "a", **more: Any) -> dict[str, Any]:
    """Take the cursor ``c`` of the queue ``q``."""
    values = client.call("open_cursor", queue="q", name="c", token=token, lease_ms=1_000, **more)
    assert values is not None
    return values


def fence_of(client: RawClient) -> int:
    """The fence of the last owner."""
    cursor = client.house.queue().roster.cursor
    return cursor.facts.fence if cursor is not None else 0


def owned(client: RawClient, operation: str, fence: int = 0, **more: Any) -> dict[str, Any]:
    """Do something as the owner; ``fence`` 0: as the last one."""
    values = client.call(operation, queue="q", name="c", fence=fence or fence_of(client), **more)
    assert values is not None
    return values


def refusal(client: RawClient) -> str:
    """The name of the last refusal, or empty."""
    return BY_NUMBER[client.code].name if client.code else ""


def said(client: RawClient) -> str:
    """The text of the last answer."""
    return header_of(client.last(FrameType.ANSWER), Answer).text


def recorded(*bodies: bytes, log: FakeLog | None = None, **options: Any) -> tuple[House, RawClient]:
    """A house with these messages in the queue ``q``."""
    house = make_house(log, **options)
    client = house.client()
    sender = client.produce()
    if bodies:
        client.put(sender, *bodies)
    return house, client


def numbers(client: RawClient, channel: int) -> list[int]:
    """The numbers of the messages that were delivered on a channel."""
    return [got.sequence for got in client.got(channel)]


def holes(client: RawClient, lo: int, hi: int) -> list[tuple[int, int, str]]:
    """The holes of a range."""
    found = client.call("holes", queue="q", lo=lo, hi=hi) or {}
    return [(found[f"lo{row}"], found[f"hi{row}"], found[f"kind{row}"]) for row in range(len(found) // 3)]


def test_registering_again_gives_the_same_start_and_the_place_that_was_acknowledged() -> None:
    _, client = recorded(b"a", b"b", b"c", b"d")
    first = opened(client)
    assert (first["start"], first["processed"], first["high"]) == (1, 1, 5)
    assert owned(client, "ack_cursor", number=3)["processed"] == 3
    assert owned(client, "ack_cursor", number=2)["processed"] == 3
    again = opened(client)
    assert (again["start"], again["processed"], again["epoch"], again["fence"]) == (
        1,
        3,
        first["epoch"],
        first["fence"],
    )


def test_a_second_owner_waits_for_the_lease_and_the_first_one_is_told_that_it_lost_the_cursor() -> None:
    time = Time()
    _, client = recorded(b"a", b"b", elapsed_ms=time)
    first = opened(client)["fence"]
    reading = client.consume(browse=True, lo=1, cursor="c", fence=first)
    held = opened(client, "b")
    assert held["held"] is True and held["left_ms"] == 1_000 and "session" in held["holder"]
    time.now += 1_000
    second = opened(client, "b")["fence"]
    assert second > first
    lost = header_of(client.last(FrameType.CONSUMER_LOST), ConsumerLost)
    assert BY_NUMBER[lost.code].name == "cursor_taken" and client.last(FrameType.CONSUMER_LOST).channel == reading
    for operation, more in (("ack_cursor", {"number": 2}), ("pin_cursor", {"number": 2}), ("renew_cursor", {})):
        owned(client, operation, first, **more)
        assert refusal(client) == "cursor_taken"
    client.consume(browse=True, lo=1, cursor="c", fence=first)
    assert refusal(client) == "cursor_taken"
    owned(client, "release_cursor")
    assert opened(client, "c")["fence"] > second


def test_a_queue_with_a_cursor_gives_nothing_to_others_and_takes_everything() -> None:
    house, client = recorded(b"a", b"b", log=FakeLog())
    opened(client)
    client.consume()
    assert refusal(client) == "cursor_held" and "'c'" in said(client)
    for operation, arguments in (
        ("purge_queue", {"name": "q"}),
        ("delete_queue", {"name": "q"}),
        ("move_messages", {"name": "q", "address": "elsewhere"}),
        ("redrive", {"name": "q"}),
    ):
        client.call(operation, **arguments)
        house.core.resume()
        assert refusal(client) == "cursor_held", operation
    opened_other = client.call("open_cursor", queue="q", name="other", token="a", lease_ms=1_000)
    assert opened_other == {} and refusal(client) == "cursor_held"
    browse = client.consume(browse=True)
    assert client.bodies(browse) == [b"a", b"b"]
    client.put(client.produce(producer=b"second--16 bytes"), b"c")
    assert owned(client, "renew_cursor")["high"] == 4
    client.call("delete_cursor", queue="q", name="c")
    reader = client.consume()
    assert client.bodies(reader) == [b"a", b"b", b"c"]
    house.check()


def test_what_can_have_no_cursor_says_why() -> None:
    settings = {"last": AddressSettings(default_last_value_key="k")}
    _, client = recorded(b"a", log=FakeLog(), settings=settings)
    reader = client.consume()
    opened(client)
    assert refusal(client) == "in_use" and "1 consumers" in said(client)
    client.leave(reader)
    client.call("create_queue", name="soft", durable=False)
    client.call("create_queue", name="last")
    for name, why in (("soft", "not durable"), ("last", "last value"), ("none", "no queue")):
        client.call("open_cursor", queue=name, name="c", token="a", lease_ms=1_000)
        assert client.code and why in said(client)
    for wrong, why in (
        ({"start": "middle"}, "'earliest' or 'latest'"),
        ({"token": ""}, "from 1 to 64"),
        ({"lease_ms": 1}, "100 to 3600000"),
        ({"max_lag": -1}, "max_lag"),
    ):
        client.call("open_cursor", **{"queue": "q", "name": "c", "token": "a", "lease_ms": 1_000, **wrong})
        assert client.code and why in said(client)
    assert client.call("cursors") == {"more": False}


def test_numbers_are_read_in_order_whatever_the_priority_and_again_from_any_number() -> None:
    _, client = recorded()
    sender = client.produce(producer=b"second--16 bytes")
    for priority in (4, 9, 0, 9, 4, 0):
        client.put(sender, b"%d" % priority, envelopes=[Envelope(priority << 8, b"", b"", b"")])
    opened(client)
    reading = client.consume(browse=True, lo=1, hi=7)
    assert numbers(client, reading) == [1, 2, 3, 4, 5, 6]
    assert client.bodies(reading) == [b"4", b"9", b"0", b"9", b"4", b"0"]
    assert numbers(client, client.consume(browse=True, lo=3, hi=5)) == [3, 4]
    slow = client.consume(browse=True, lo=2, window=1, cursor="c", fence=fence_of(client))
    assert numbers(client, slow) == [2]
    owned(client, "ack_cursor", number=4)
    # What is acknowledged is gone for this reader, too.
    client.settle(slow, (1, 1))
    assert numbers(client, slow) == [2, 4]
    client.settle(slow, (2, 2))
    client.settle(slow, (3, 3))
    client.settle(slow, (4, 4))
    client.put(sender, b"later", envelopes=[Envelope(7 << 8, b"", b"", b"")])
    assert numbers(client, slow) == [2, 4, 5, 6, 7]
    client.consume(browse=True, lo=4, hi=9)
    assert refusal(client) == "usage" and "[1, 8)" in said(client)


def test_a_pinned_message_does_not_expire_and_another_one_leaves_a_hole() -> None:
    time = Time()
    house, client = recorded(log=FakeLog(), now_ms=time, elapsed_ms=time)
    sender = client.produce(producer=b"second--16 bytes")
    short = Envelope(KIND_CONTROL | KIND_HEADERS | 4 << 8, b"", encode_map({"x": 500}), b"")
    for _ in range(2):
        client.put(sender, b"short", envelopes=[short])
        client.put(sender, b"long")
    house.rest()
    opened(client)
    owned(client, "pin_cursor", number=3)
    time.now += 600
    house.core.clock_moved()
    house.rest()
    assert numbers(client, client.consume(browse=True, lo=1, hi=5)) == [1, 2, 4]
    assert holes(client, 1, 5) == [(3, 4, "expired")]
    core = make_core(records=house.log.recovered(), now_ms=time, elapsed_ms=time)
    later = House(core).client()
    assert holes(later, 1, 5) == [(3, 4, "expired")]
    client.call("delete_cursor", queue="q", name="c")
    house.core.clock_moved()
    assert client.bodies(client.consume(browse=True)) == [b"long", b"long"]


def test_a_message_that_was_not_durable_is_a_loss_after_a_restart_and_a_skipped_block_is_none() -> None:
    house, client = recorded(b"a", log=FakeLog())
    sender = client.produce(producer=b"second--16 bytes")
    client.put(sender, b"soft", durable=False)
    opened(client)
    client.put(sender, b"b")
    client.put(sender, b"soft", durable=False)
    house.rest()
    assert holes(client, 1, 5) == []
    core = make_core(records=house.log.recovered())
    later = House(core).client()
    high = opened(later)["high"]
    assert high > 5
    assert holes(later, 1, high)[:2] == [(2, 3, "lost"), (4, high, "lost")]


def test_one_that_lags_without_an_owner_is_given_up_with_an_event() -> None:
    time = Time()
    house, client = recorded(b"a", elapsed_ms=time)
    events: list[Notification] = []
    house.core.settings.event_bus.listen(events.append)
    opened(client, max_lag=5)
    sender = client.produce(producer=b"second--16 bytes")
    client.put(sender, b"b", b"c", b"d")
    client.put(sender, b"e", b"f")
    assert [type(event) for event in events if isinstance(event, (CursorLagging, CursorReleased))] == [CursorLagging]
    house.core.second_passed()
    assert house.queue().roster.cursor is not None
    time.now += 1_000
    house.core.second_passed()
    (gone,) = [event for event in events if isinstance(event, CursorReleased)]
    assert (gone.queue, gone.name, gone.reason) == ("q", "c", "max_lag")
    owned(client, "ack_cursor", number=2)
    assert refusal(client) == "cursor_deleted"
    assert client.bodies(client.consume()) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_the_settings_of_the_address_bound_a_cursor_whose_owner_has_named_no_number() -> None:
    time = Time()
    house, client = recorded(b"a", b"b", b"c", b"d", elapsed_ms=time)
    events: list[Notification] = []
    house.core.settings.event_bus.listen(events.append)
    opened(client)

    def statistics() -> dict[str, Any]:
        values = client.call("cursors", queue="q")
        assert values is not None
        return values

    assert (statistics()["lag0"], statistics()["max_lag0"]) == (4, 0) and not house.core.cursors.watched
    client.call("set_address_settings", pattern="q", cursor_max_lag=5)
    assert statistics()["max_lag0"] == 5 and house.core.cursors.watched
    house.core.second_passed()
    (lagging,) = [event for event in events if isinstance(event, CursorLagging)]
    assert (lagging.lag, lagging.max_lag) == (4, 5)
    # With an owner, and at the number, it stays.
    client.put(client.produce(producer=b"second--16 bytes"), b"e", b"f")
    house.core.second_passed()
    assert house.queue().roster.cursor is not None
    # An owner who has said any number is not bound, nor is one who has said a higher one.
    for number, shown in ((2**63 - 1, 0), (6, 6)):
        opened(client, max_lag=number)
        time.now += 1_000
        house.core.second_passed()
        assert statistics()["max_lag0"] == shown
    opened(client)
    house.core.second_passed()
    assert statistics()["lag0"] == 6
    time.now += 1_000
    house.core.second_passed()
    (gone,) = [event for event in events if isinstance(event, CursorReleased)]
    assert (gone.queue, gone.name, gone.reason) == ("q", "c", "max_lag")
    assert client.bodies(client.consume()) == [b"a", b"b", b"c", b"d", b"e", b"f"]


def test_what_waits_before_a_cursor_that_starts_at_the_end_stays_and_is_for_consumers_afterwards() -> None:
    _, client = recorded(b"a", b"b")
    first = opened(client, start="latest")
    assert first["start"] == 3
    client.put(client.produce(producer=b"second--16 bytes"), b"c", b"d")
    owned(client, "ack_cursor", number=5)
    assert client.call("cursor_lag", queue="q", name="c") == {"messages": 0, "bytes": 0, "age_ms": 0}
    second_epoch = first["epoch"]
    client.call("delete_cursor", queue="q", name="c")
    assert client.bodies(client.consume(browse=True)) == [b"a", b"b"]
    assert opened(client)["epoch"] > second_epoch


def test_a_full_disk_takes_acknowledgements_and_no_new_cursor() -> None:
    house, client = recorded(b"a", b"b", log=FakeLog())
    opened(client)
    house.log.full = True
    assert owned(client, "ack_cursor", number=2)["processed"] == 2
    client.call("delete_cursor", queue="q", name="c")
    assert not client.code
    opened(client)
    assert refusal(client) == "address_full" and house.queue().roster.cursor is None


def test_a_crash_at_any_record_loses_nothing_of_a_cursor_and_gives_nothing_twice() -> None:
    house, client = recorded(log=FakeLog())
    house.auto = False
    sender = client.produce()
    house.rest()
    base = house.log.durable
    client.put(sender, *[b"%d" % number for number in range(6)])
    house.rest()
    durable = house.log.durable
    client.call("open_cursor", queue="q", name="c", token="a", lease_ms=1_000)
    house.log.sync()
    registered = house.log.durable
    for number in (3, 4, 7):
        owned_in_doubt(client, number)
    house.rest()
    for cut in range(base, house.log.last + 1):
        core = make_core(log := house.log.after_crash(cut), records=house.log.recovered(cut))
        judge(core, log, sent=cut >= durable, registered=cut >= registered)


def owned_in_doubt(client: RawClient, number: int) -> None:
    """Acknowledge, and hear of it later."""
    client.call("ack_cursor", queue="q", name="c", fence=fence_of(client), number=number)


def judge(core: Core, log: FakeLog, *, sent: bool, registered: bool) -> None:
    """Check what a life finds."""
    core.schedule_all_dispatches()
    core.pending.run()
    queue = core.router.queues["q"]
    cursor = queue.roster.cursor
    assert cursor is not None or not registered
    place = cursor.facts.processed if cursor is not None else 1
    assert place in (1, 3, 4, 7)
    live = [view.first + row for view in queue.runs() for row, state in enumerate(view.states) if state != 2]
    assert live == (list(range(place, 7)) if sent else [])
    queue.check()
    if cursor is None:
        return
    # Also when the cursor is gone in the life after that.
    client = House(core).client()
    client.call("delete_cursor", queue="q", name="c")
    core = make_core(records=log.recovered())
    queue = core.router.queues["q"]
    assert queue.roster.cursor is None
    live = [view.first + row for view in queue.runs() for row, state in enumerate(view.states) if state != 2]
    assert live == list(range(place, 7))


def test_messages_that_came_back_from_a_consumer_are_read_in_their_places() -> None:
    _, client = recorded(b"a", b"b", b"c")
    reader = client.consume()
    client.settle(reader, (2, 2))
    client.settle(reader, (1, 1), flags=FLAG_RETURN)
    client.leave(reader, handed=3)
    opened(client)
    assert numbers(client, client.consume(browse=True, lo=1, hi=4)) == [1, 3]
    assert holes(client, 1, 4) == [(2, 3, "consumed")]


@pytest.mark.parametrize("wrong", [{"hi": 3}, {"cursor": "c"}, {"lo": 1}])
def test_numbers_without_a_browse_break_the_protocol(wrong: dict[str, Any]) -> None:
    _, client = recorded(b"a")
    client.consume(**wrong)
    assert client.all_closed()
