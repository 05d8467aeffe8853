"""What a prepared transaction holds stays where it is, over lives, whatever its queue does with messages otherwise."""

from __future__ import annotations

import pytest

from meshq.notifications import Notification, TransactionDecided, TransactionPrepared
from meshq.settings import AddressSettings
from meshq.wire import BY_NAME, FLAG_RETURN, KIND_CONTROL, KIND_HEADERS, Envelope, encode_map
from tests.broker.kit import GIB, make_house, widen
from tests.broker.logs import FakeLog
from tests.broker.pages import FakePages
from tests.broker.preparing import XID, content, decide, next_life, prepare, prepared_house, recovered
from tests.broker.test_transactions import Tx, clean, house_with

USAGE, UNDECIDED, ROLLED_BACK = (BY_NAME[name].number for name in ("usage", "undecided", "rolled_back"))


def groups(*names: str) -> list[Envelope]:
    """Envelopes of messages of groups."""
    kind = 4 << 8 | KIND_CONTROL | KIND_HEADERS
    return [Envelope(kind, b"", encode_map({"g": name}), b"") for name in names]


def test_a_group_waits_for_what_is_prepared_of_it() -> None:
    house = make_house(FakeLog())
    client = house.client()
    client.put(client.produce("in"), b"1", b"2", b"3", envelopes=groups("g", "g", "h"))
    channel = client.consume("in", window=1)
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    assert prepare(tx) == 0
    for _ in range(2):
        house, client = next_life(house)
        house.check()
        channel = client.consume("in")
        house.check()
        assert client.bodies(channel) == [b"3"]
        client.leave(channel)
    channel = client.consume("in")
    assert decide(client, "rollback") == 0
    house.check()
    assert client.bodies(channel) == [b"3", b"1", b"2"]


def test_of_a_value_the_held_message_stays_over_a_restart() -> None:
    settings = {"in": AddressSettings(default_last_value_key="k")}
    house = make_house(FakeLog(), settings=settings)
    client = house.client()
    kind = 4 << 8 | 2 << 1
    value = [Envelope(kind, b"", b"", encode_map({"k": 1}))]
    producer = client.produce("in")
    client.put(producer, b"1", envelopes=value)
    channel = client.consume("in", window=1)
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    assert prepare(tx) == 0
    client.leave(channel, 2)
    client.put(producer, b"2", envelopes=value)
    house, client = next_life(house, settings=settings)
    house.check()
    assert house.queue("in").counts.acked_in_transaction == 1
    assert house.queue("in").counts.ready == 1
    assert decide(client, "commit") == 0
    assert client.bodies(client.consume("in")) == [b"2"]
    clean(house)


def test_what_is_held_does_not_expire() -> None:
    now = 1_000_000
    house = make_house(FakeLog(), now_ms=lambda: now)
    client = house.client()
    kind = 4 << 8 | KIND_CONTROL | KIND_HEADERS
    lasting = [Envelope(kind, b"", encode_map({"x": 50}), b"")] * 2
    client.put(client.produce("in"), b"1", b"2", envelopes=lasting)
    channel = client.consume("in", window=1)
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    assert prepare(tx) == 0
    now += 1_000
    house, client = next_life(house, now_ms=lambda: now)
    house.core.clock_moved()
    assert (house.queue("in").counts.acked_in_transaction, house.queue("in").counts.ready) == (1, 0)
    assert decide(client, "rollback") == 0
    house.check()
    assert house.queue("in").counts.removed["expired"] == 2


@pytest.mark.parametrize("what", ["commit", "rollback"])
def test_what_is_held_may_stand_on_the_disk_only(what: str) -> None:
    """A rollback may have to move it: it waits until the bytes are here."""
    settings = {"in": AddressSettings(max_delivery_attempts=1, dead_letter_address="dead", max_size_bytes=1)}
    house, client, _, _ = prepared_house(settings=settings)
    log = house.log.after_crash()
    house = make_house(log, records=log.recovered(), settings=settings, memory=1)
    widen(house, GIB)
    pages = FakePages(house)
    client = house.client()
    client.call("create_queue", name="dead")
    assert all(view.run.paged for view in house.queue("in").runs())
    assert decide(client, what) == (0 if what == "commit" else -1)
    if what == "rollback":
        assert recovered(client) == [XID]
    pages.rest()
    clean(house)
    if what == "rollback":
        assert house.queue("dead").counts.ready == 2
        assert client.bodies(client.consume("dead")) == [b"1", b"3"]
    assert house.queue("in").counts.ready == 2


def test_a_rollback_that_waits_for_the_disk_sees_who_was_faster() -> None:
    settings = {"in": AddressSettings(max_size_bytes=1)}
    house, client, _, _ = prepared_house(settings=settings)
    log = house.log.after_crash()
    house = make_house(log, records=log.recovered(), settings=settings, memory=1)
    widen(house, GIB)
    pages = FakePages(house)
    client = house.client()
    assert decide(client, "rollback") == -1
    waiting = client.calls
    assert decide(client, "commit") == 0
    pages.rest()
    answer = client.answer(waiting)
    assert answer is not None
    assert answer.code == USAGE
    assert content(house.core)["out"] == 2
    clean(house)


def test_shares_of_runs_and_settings_of_returns_hold_over_a_restart() -> None:
    """Several queues of one address share a run; each has rows of its own, some of them held, some put off."""
    house = make_house(FakeLog())
    client = house.client()
    for name in ("left", "right"):
        client.call("create_queue", name=name, address="both")
    client.put(client.produce("both"), *[b"%d" % number for number in range(8)])
    left, right = client.consume("left"), client.consume("right")
    tx = Tx(client)
    tx.ack(left, 2, 3)
    tx.ack(right, 1, 1)
    client.settle(left, (1, 1), flags=FLAG_RETURN)
    assert prepare(tx) == 0
    held = {
        name: [got.body for got in client.got(channel)][low:high]
        for name, channel, low, high in (("left", left, 1, 3), ("right", right, 0, 1))
    }
    house, client = next_life(house)
    house.check()
    assert {name: house.queue(name).counts.acked_in_transaction for name in held} == {"left": 2, "right": 1}
    channels = {name: client.consume(name) for name in held}
    for name, channel in channels.items():
        assert not {*client.bodies(channel)} & {*held[name]}
    assert decide(client, "rollback") == 0
    for name, channel in channels.items():
        assert {*client.bodies(channel)} >= {*held[name]}
        assert len(client.bodies(channel)) == 4
    clean(house)


def test_a_queue_that_would_go_by_itself_stays_until_the_decision() -> None:
    house, client, channel = house_with(b"1", settings={"#": AddressSettings(auto_delete_queues=True)})
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    assert prepare(tx) == 0
    client.leave(channel, 2)
    assert "in" in house.core.router.queues
    assert decide(client, "commit") == 0
    assert "in" not in house.core.router.queues


def test_a_subscription_of_which_something_is_prepared_stays() -> None:
    house = make_house(FakeLog())
    client = house.client()
    channel = client.consume("news", subscription="single", name="me", durable=True)
    client.put(client.produce("news"), b"1")
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    assert prepare(tx) == 0
    client.leave(channel, 2)
    client.call("unsubscribe", address="news", name="me")
    answer = client.answer(client.calls)
    assert answer is not None
    assert answer.code == UNDECIDED
    assert decide(client, "commit") == 0
    assert client.call("unsubscribe", address="news", name="me") == {"removed": 0}


def test_what_is_rolled_back_comes_again_when_that_is_durable() -> None:
    house, client, channel, _ = prepared_house()
    house.auto = False
    assert decide(client, "rollback") == -1
    assert len(client.got(channel)) == 4
    assert house.queue("in").counts.acked_in_transaction == 2
    # Until then a crash would find it prepared, and nothing else may happen to it.
    assert decide(client, "commit") == -1
    late = client.calls
    client.call("delete_queue", name="in")
    answer = client.answer(client.calls)
    assert answer is not None
    assert answer.code == UNDECIDED
    house.rest()
    answer = client.answer(late)
    assert answer is not None
    assert answer.code == ROLLED_BACK
    assert len(client.got(channel)) == 6
    clean(house)


@pytest.mark.parametrize("what", ["commit", "rollback"])
def test_a_temporary_queue_outlives_its_session_until_the_decision(what: str) -> None:
    house = make_house(FakeLog())
    client, other = house.client(), house.client()
    values = client.call("create_temporary_queue")
    assert values is not None
    client.put(client.produce(values["name"]), b"1", b"2")
    tx = Tx(client)
    tx.ack(client.consume(values["name"]), 1, 1)
    assert prepare(tx) == 0
    client.close()
    assert house.queue(values["name"]).counts.acked_in_transaction == 1
    assert decide(other, what) == 0
    assert values["name"] not in house.core.router.queues
    clean(house)


def test_who_listens_hears_of_prepared_transactions_and_of_their_decisions() -> None:
    house, client, _, _ = prepared_house()
    heard: list[Notification] = []
    house.core.settings.event_bus.listen(heard.append)
    assert decide(client, "commit") == 0
    # Said once, however often it is asked.
    assert decide(client, "commit") == 0
    assert prepare(Tx(client, number=2), b"another") == 0
    assert decide(client, "rollback", b"another") == 0
    assert decide(client, "rollback", b"another") == 0
    told = [one for one in heard if isinstance(one, (TransactionPrepared, TransactionDecided))]
    at = told[0].timestamp
    assert told == [
        TransactionDecided(timestamp=at, xid=XID, user="", committed=True),
        TransactionPrepared(timestamp=at, xid=b"another", user="", sent=0, acked=0),
        TransactionDecided(timestamp=at, xid=b"another", user="", committed=False),
    ]
