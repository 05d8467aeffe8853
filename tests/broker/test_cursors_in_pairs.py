"""Cursors beside other features of a queue, over lives of the node, and before whoever asks for too much."""

from __future__ import annotations

import pytest

from meshq.broker.queue._run import GONE
from meshq.settings import AddressSettings
from meshq.wire import (
    BY_NUMBER,
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PROPERTIES,
    Attach,
    Authenticate,
    ConsumerLost,
    Envelope,
    FrameType,
    Hello,
    encode_map,
    header_of,
)
from tests.broker.kit import House, make_core
from tests.broker.logs import FakeLog
from tests.broker.test_cursors import Time, holes, numbers, opened, owned, recorded, refusal, said
from tests.broker.test_disk_space_for_moves import BusyLog

OTHER = b"second--16 bytes"
#: Of a message that lives for half a second.
SHORT = Envelope(KIND_CONTROL | KIND_HEADERS | 4 << 8, b"", encode_map({"x": 500}), b"")


def there(house: House, queue: str = "q") -> list[int]:
    """The numbers of the messages that are in a queue."""
    runs = house.queue(queue).runs()
    return sorted(view.first + row for view in runs for row, state in enumerate(view.states) if state != GONE)


def test_an_owner_of_a_deleted_cursor_acknowledges_nothing_of_the_next_one_of_its_name() -> None:
    house, client = recorded(b"a", b"b", b"c", log=FakeLog())
    first = opened(client)
    client.call("delete_cursor", queue="q", name="c")
    second = opened(client, "b")
    assert second["fence"] > first["fence"] and second["epoch"] > first["epoch"]
    for operation, more in (("ack_cursor", {"number": 3}), ("pin_cursor", {"number": 3}), ("renew_cursor", {})):
        owned(client, operation, first["fence"], **more)
        assert refusal(client) == "cursor_taken", operation
    assert there(house) == [1, 2, 3]
    core = make_core(FakeLog(records=house.log.recovered()), records=house.log.recovered())
    later = House(core)
    owned(later.client(), "ack_cursor", first["fence"], number=3)
    later.rest()
    assert there(later) == [1, 2, 3]


def keyed(*values: str) -> list[Envelope]:
    """Envelopes of messages with a key."""
    return [Envelope(KIND_PROPERTIES | 4 << 8, b"", b"", encode_map({"k": value})) for value in values]


def test_a_setting_for_last_values_waits_for_the_end_of_the_cursor_also_over_a_restart() -> None:
    house, client = recorded(log=FakeLog())
    sender = client.produce()
    opened(client)
    client.put(sender, b"old", b"new", envelopes=keyed("x", "x"))
    client.call("set_address_settings", pattern="q", default_last_value_key="k")
    client.put(sender, b"newer", envelopes=keyed("x"))
    house.rest()
    assert there(house) == [1, 2, 3]
    later = House(make_core(FakeLog(records=house.log.recovered()), records=house.log.recovered()))
    later.core.schedule_all_dispatches()
    later.core.pending.run()
    assert there(later) == [1, 2, 3]
    again = later.client()
    assert numbers(again, again.consume(browse=True, lo=1, hi=4)) == [1, 2, 3]
    again.call("delete_cursor", queue="q", name="c")
    assert there(later) == [3]


def test_a_browse_does_not_begin_for_an_owner_that_loses_the_cursor_before_it_is_answered() -> None:
    house, client = recorded(b"a", log=FakeLog())
    fence = opened(client)["fence"]
    house.auto = False
    client.put(client.produce(producer=OTHER), b"not durable yet, and the answer waits behind it")
    reading = client.consume(browse=True, lo=1, cursor="c", fence=fence)
    client.call("delete_cursor", queue="q", name="c")
    house.rest()
    assert numbers(client, reading) == []
    lost = header_of(client.last(FrameType.CONSUMER_LOST), ConsumerLost)
    assert BY_NUMBER[lost.code].name == "cursor_deleted"
    house.check()


def test_holes_come_in_pages_and_those_that_came_one_by_one_take_few_records() -> None:
    time = Time()
    house, client = recorded(log=FakeLog(), now_ms=time, elapsed_ms=time)
    sender = client.produce()
    opened(client)
    for _ in range(100):
        client.put(sender, b"long")
        client.put(sender, b"short", envelopes=[SHORT])
    time.now += 600
    house.core.clock_moved()
    house.rest()
    found: list[tuple[int, int, str]] = []
    pages, more = 0, True
    while more:
        values = client.call("holes", queue="q", lo=found[-1][1] if found else 1, hi=201) or {}
        found += [(values[f"lo{row}"], values[f"hi{row}"], values[f"kind{row}"]) for row in range(len(values) // 3)]
        pages, more = pages + 1, values["more"]
    assert found == [(number, number + 1, "expired") for number in range(2, 201, 2)] and pages > 1
    # From the middle of a range on.
    assert holes(client, 200, 201) == [(200, 201, "expired")]
    # Each expiry was one record; few of them are left.
    records = [record for record in house.log.living() if b"holes" in record.payload]
    assert len(records) < 70
    later = House(make_core(records=house.log.recovered(), now_ms=time, elapsed_ms=time)).client()
    assert holes(later, 150, 201) == [(number, number + 1, "expired") for number in range(150, 201, 2)]


def test_the_ends_of_numbers_are_refused_by_name() -> None:
    _, client = recorded(b"a")
    opened(client)
    for lo, hi in ((0, 1), (2, 1), (1, 2**63), (-5, 2), (2**63 - 1, 2**63 - 1)):
        client.call("holes", queue="q", lo=lo, hi=hi)
        assert refusal(client) == "usage" and "[1, 2)" in said(client)
    for lo, hi in ((2, 1), (1, 2**63 - 1), (2**63 - 1, 2**63 - 1)):
        client.consume(browse=True, lo=lo, hi=hi)
        assert refusal(client) == "usage" and "[1, 2)" in said(client), (lo, hi)
    for number in (3, 2**63, 2**64 - 1):
        for operation in ("ack_cursor", "pin_cursor"):
            owned(client, operation, number=number)
            assert refusal(client) == "usage" and "up to its high mark 2" in said(client)


def after_restart(house: House, time: Time) -> House:
    """The next life of a node."""
    records = house.log.recovered()
    return House(make_core(FakeLog(records=records), records=records, now_ms=time, elapsed_ms=time))


def test_a_number_that_has_expired_is_not_given_again_below_the_high_mark() -> None:
    time = Time()
    house, client = recorded(b"a", log=FakeLog(), now_ms=time, elapsed_ms=time)
    opened(client)
    client.put(client.produce(producer=OTHER), b"short", envelopes=[SHORT])
    assert owned(client, "renew_cursor")["high"] == 3
    time.now += 600
    house.core.clock_moved()
    house.rest()
    assert there(house) == [1]
    later = after_restart(house, time)
    again = later.client()
    assert owned(again, "renew_cursor")["high"] >= 3
    again.put(again.produce(producer=b"third---16 bytes"), b"b")
    assert there(later)[-1] >= 3 and holes(again, 1, 3) == [(2, 3, "expired")]


def test_what_comes_after_a_restart_is_never_below_the_start_of_a_cursor() -> None:
    time = Time()
    house, client = recorded(log=FakeLog(), now_ms=time, elapsed_ms=time)
    client.put(client.produce(), b"short", envelopes=[SHORT])
    time.now += 600
    house.core.clock_moved()
    start = opened(client)["start"]
    assert start == 2 and there(house) == []
    later = after_restart(house, time)
    again = later.client()
    reading = again.consume(browse=True, lo=start, cursor="c", fence=owned(again, "renew_cursor")["fence"])
    again.put(again.produce(producer=OTHER), b"b")
    assert again.bodies(reading) == [b"b"]


@pytest.mark.parametrize("expiry_address", ["dead", None])
def test_what_expires_under_a_cursor_leaves_its_number_and_its_hole_at_any_crash(expiry_address: str | None) -> None:
    time = Time()
    about = {"q": AddressSettings(expiry_address=expiry_address)}
    house, client = recorded(b"a", log=FakeLog(), now_ms=time, elapsed_ms=time, settings=about)
    client.call("create_queue", name="dead")
    opened(client)
    client.put(client.produce(producer=OTHER), b"short", envelopes=[SHORT])
    house.rest()
    before = house.log.durable
    time.now += 600
    house.core.clock_moved()
    house.rest()
    assert there(house) == [1] and there(house, "dead") == ([1] if expiry_address else [])
    for cut in range(before, house.log.last + 1):
        # The clock of this life goes from the beginning: nothing expires before somebody looks.
        records = house.log.recovered(cut)
        later = House(make_core(house.log.after_crash(cut), records=records, settings=about))
        again = later.client()
        assert owned(again, "renew_cursor")["high"] >= 3, cut
        gone = [] if 2 in there(later) else [(2, 3, "expired")]
        assert holes(again, 1, 3) == gone and len(there(later, "dead")) == (len(gone) if expiry_address else 0), cut


def test_nothing_is_moved_out_of_a_queue_whose_cursor_came_as_the_move_waited_for_the_disk() -> None:
    log = BusyLog()
    house, client = recorded(b"a" * 100, b"b" * 100, log=log)
    house.core.release_queue.large_bytes = 10.0
    mover = house.client()
    mover.call("move_messages", name="q", address="there")
    assert log.asked
    opened(client)
    log.answer()
    house.core.resume()
    house.rest()
    assert there(house) == [1, 2] and refusal(mover) == "cursor_held"


def test_a_cursor_of_the_longest_names_fits_in_an_answer_and_many_come_in_pages() -> None:
    house, client = recorded(log=FakeLog())
    queue, name = "q" * 512, "\N{GREEK SMALL LETTER ALPHA}" * 256
    loud = house.client(attach=False)
    loud.send(FrameType.HELLO, Hello(oldest=1, newest=1, label="\U000e0001" * 64))
    loud.send(FrameType.AUTHENTICATE, Authenticate(mechanism="none"))
    loud.send(FrameType.ATTACH, Attach())
    loud.call("create_queue", name=queue)
    loud.call("open_cursor", queue=queue, name=name, token="t" * 64, lease_ms=1_000)
    assert not loud.code
    held = client.call("open_cursor", queue=queue, name=name, token="u", lease_ms=1_000) or {}
    assert held["held"] and "session" in held["holder"]
    for number in range(40):
        loud.call("create_queue", name=f"a{number}")
        loud.call("open_cursor", queue=f"a{number}", name="c", token="t", lease_ms=1_000)
    found: list[str] = []
    more = True
    while more:
        values = client.call("cursors", after=len(found)) or {}
        found += [str(value) for key, value in values.items() if key.startswith("queue")]
        more = values["more"]
    assert sorted(found) == sorted([queue, *(f"a{number}" for number in range(40))])
    later = House(make_core(records=house.log.recovered()))
    assert later.queue(queue).roster.cursor is not None
