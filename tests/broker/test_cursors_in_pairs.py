"""Cursors beside other features of a queue, over lives of the node, and before whoever asks for too much."""

from __future__ import annotations

from meshq.broker.queue._run import GONE
from meshq.wire import (
    KIND_PROPERTIES,
    Envelope,
    encode_map,
)
from tests.broker.kit import House, make_core
from tests.broker.logs import FakeLog
from tests.broker.test_cursors import numbers, opened, owned, recorded, refusal

OTHER = b"second--16 bytes"


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
