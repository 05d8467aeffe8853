"""Who deletes or purges a queue loses nothing of what is to leave it for another address, and waits for that."""

from __future__ import annotations

import pytest

from meshq.wire import BY_NAME
from tests.broker.costly import ROWS, Steps, fill, lettered, numbered, read
from tests.broker.kit import RawClient
from tests.broker.preparing import prepare
from tests.broker.test_disk_space_for_moves import BusyLog
from tests.broker.test_subscriptions import subscribe
from tests.broker.test_transactions import Tx

NOT_FOUND, UNDECIDED, IN_USE = (BY_NAME[name].number for name in ("not_found", "undecided", "in_use"))


def answered(client: RawClient, call: int = 0) -> dict[str, object]:
    answer = client.answer(call or client.calls)
    assert answer is not None
    assert not answer.code, answer.text
    return answer.named


@pytest.mark.parametrize("operation", ["delete_queue", "purge_queue"])
def test_what_is_rejected_has_gone_before_its_queue_does(steps: Steps, operation: str) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    channel = client.consume("work")
    client.settle(channel, (1, 10), flags=2)
    client.leave(channel)
    assert client.call(operation, name="work") is None
    steps.all(house)
    assert answered(client) == {"removed": 2}
    assert read(house, "all") == numbered(10) and read(house, "some") == [b"1", b"4", b"7", b"10"]
    assert ("work" in house.core.router.queues) is (operation == "purge_queue")


def test_a_purge_does_not_wait_for_what_is_rejected_after_it(steps: Steps) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    fill(client, "work", producer=b"another producer")
    channel = client.consume("work")
    client.settle(channel, (1, ROWS), flags=2)
    assert client.call("purge_queue", name="work") is None
    call = client.calls
    client.settle(channel, (ROWS + 1, 2 * ROWS - 1), flags=2)
    while client.answer(call) is None:
        steps.one(house)
    assert house.core.pending.fair_scheduler and read(house, "all") == numbered()
    steps.all(house)


def test_a_purge_waits_for_all_that_was_rejected_before_it(steps: Steps) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    channel = client.consume("work")
    client.settle(channel, (1, 5), flags=2)
    # They are put to the filters after the others of their run.
    client.settle(channel, (6, 10), flags=2)
    client.leave(channel)
    assert client.call("purge_queue", name="work") is None
    steps.all(house)
    assert answered(client) == {"removed": 2} and read(house, "all") == numbered(10)


def test_a_purge_waits_for_room_for_what_filters_have_judged_since(steps: Steps) -> None:
    house, client = lettered(steps, log=BusyLog(room_bytes=5_000_000))
    fill(client, "work")
    channel = client.consume("work")
    client.settle(channel, (1, 10), flags=2)
    client.leave(channel)
    assert client.call("purge_queue", name="work") is None
    house.log.large_bytes = house.core.release_queue.large_bytes = 10
    steps.all(house)
    assert client.answer(client.calls) is None
    while house.log.asked:
        house.log.answer()
        house.rest()
    assert answered(client) == {"removed": 2} and read(house, "all") == numbered(10)


def test_a_subscription_ends_when_what_was_rejected_has_gone(steps: Steps) -> None:
    house, client = lettered(steps, queue=False)
    channel = subscribe(client, "work", kind="single", name="s", durable=True)
    fill(client, "work")
    client.settle(channel, (1, 10), flags=2)
    client.leave(channel)
    assert client.call("unsubscribe", address="work", name="s") is None
    call = client.calls
    channel = subscribe(client, "work", kind="single", name="s", durable=True)
    steps.all(house)
    answer = client.answer(call)
    assert answer is not None and answer.code == IN_USE, "somebody has come to use it meanwhile"
    client.leave(channel)
    client.call("unsubscribe", address="work", name="s")
    steps.all(house)
    assert answered(client) == {"removed": 2} and read(house, "all") == numbered(10)
    assert "work::s" not in house.core.router.queues


@pytest.mark.parametrize("held", ["delivered", "acknowledged in a transaction"])
def test_what_comes_back_too_often_as_its_queue_is_deleted_becomes_a_dead_letter(steps: Steps, held: str) -> None:
    house, client = lettered(steps, max_delivery_attempts=1)
    other = house.client()
    fill(client, "work")
    channel = other.consume("work")
    if held != "delivered":
        Tx(other).ack(channel, 1, ROWS)
    assert client.call("delete_queue", name="work") is None
    late = other.consume("work")
    steps.all(house)
    assert answered(client) == {"removed": 0} and sorted(read(house, "all")) == sorted(numbered())
    assert "work" not in house.core.router.queues and late not in other.server.session.channels.consumers  # type: ignore[union-attr]


def test_what_a_transaction_gives_back_to_a_queue_that_goes_by_itself_becomes_a_dead_letter(steps: Steps) -> None:
    house, client = lettered(steps, queue=False, max_delivery_attempts=1)
    other = house.client()
    channel = subscribe(other, "work")
    (name,) = [queue.name for queue in house.core.router.addresses["work"].queues]
    fill(client, "work")
    Tx(other).ack(channel, 1, 8)
    other.settle(channel, (9, 10))
    other.leave(channel)
    steps.all(house)
    assert sorted(read(house, "all")) == sorted(numbered(8)) and name not in house.core.router.queues


def test_of_two_that_delete_a_queue_one_hears_that_it_is_gone(steps: Steps) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    client.settle(client.consume("work"), (1, 10), flags=2)
    calls = []
    for operation in ("purge_queue", "delete_queue", "delete_queue", "purge_queue"):
        client.call(operation, name="work")
        calls.append(client.calls)
    steps.all(house)
    answers = [client.answer(call) for call in calls]
    assert [answer.code for answer in answers if answer is not None] == [0, 0, NOT_FOUND, NOT_FOUND]
    assert read(house, "all") == numbered(10)


def test_who_comes_while_a_queue_is_deleted_gets_nothing_until_that_is_given_up(steps: Steps) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    channel = client.consume("work")
    client.settle(channel, (1, 10), flags=2)
    client.leave(channel)
    client.call("delete_queue", name="work")
    late = house.client()
    channel = late.consume("work")
    house.rest()
    assert not late.bodies(channel)
    tx = Tx(client)
    tx.send("work", b"later")
    assert prepare(tx) == 0
    steps.all(house)
    house.rest()
    assert late.bodies(channel) == [b"11", b"12"] and not house.core.mover.pending_moves.suspended


def test_a_queue_that_a_transaction_needs_by_then_is_not_deleted(steps: Steps) -> None:
    house, client = lettered(steps)
    fill(client, "work")
    channel = client.consume("work")
    client.settle(channel, (1, 10), flags=2)
    client.call("delete_queue", name="work")
    call = client.calls
    tx = Tx(client)
    tx.send("work", b"later")
    assert prepare(tx) == 0
    steps.all(house)
    answer = client.answer(call)
    assert answer is not None and answer.code == UNDECIDED and "work" in house.core.router.queues


@pytest.mark.parametrize("room", [5_000_000, 0])
def test_what_waits_for_room_on_the_disk_goes_before_its_queue_does(steps: Steps, room: int) -> None:
    house, client = lettered(steps, log=BusyLog(room_bytes=room))
    client.put(client.produce("work"), bytes(5_000))
    channel = client.consume("work")
    house.log.large_bytes = house.core.release_queue.large_bytes = 1_000
    client.settle(channel, (1, 1), flags=2)
    client.leave(channel)
    assert client.call("delete_queue", name="work") is None
    steps.all(house)
    assert "work" in house.core.router.queues
    house.log.answer()
    house.rest()
    assert answered(client) == {"removed": int(not room)} and house.queue("all").counts.added == int(bool(room))
    assert "work" not in house.core.router.queues and not house.core.mover.pending_moves._moves
