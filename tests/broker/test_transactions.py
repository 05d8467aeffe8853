"""Transactions at the broker, in raw frames: all of it or nothing, and the counts that decide."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from meshq import limits
from meshq.settings import AddressSettings
from meshq.wire import (
    BY_NAME,
    FLAG_DURABLE,
    FLAG_TRANSACTED,
    Answer,
    Envelope,
    FrameType,
    Transact,
    encode_ranges,
    encode_run,
)
from tests.broker.kit import PRODUCER, House, RawClient, make_core, make_house, with_ids
from tests.broker.logs import FakeLog

ROLLED_BACK, DUPLICATE, USAGE, FULL, TOO_MANY = (
    BY_NAME[name].number for name in ("rolled_back", "duplicate", "usage", "address_full", "too_many")
)


@attrs.define
class Tx:
    """A transaction of a raw client."""

    client: RawClient
    number: int = 1
    sent: int = 0
    acked: int = 0

    def send(
        self, address: str, *bodies: bytes, envelopes: list[Envelope] | None = None, durable: bool = True
    ) -> Answer | None:
        run = encode_run(list(bodies), envelopes)
        self.client.calls += 1
        header = Transact(
            transaction=self.number, address=address, producer=PRODUCER, number=1 + self.sent, sent=self.sent
        )
        self.client.send(
            FrameType.TRANSACT,
            header,
            first=self.client.calls,
            flags=FLAG_DURABLE if durable else 0,
            count=run.rows,
            table=run.table,
            body=run.body,
        )
        self.sent += run.rows
        return self.client.answer(self.client.calls)

    def ack(self, channel: int, first: int, last: int) -> None:
        self.client.send(
            FrameType.SETTLE,
            flags=FLAG_TRANSACTED,
            stamp=self.number,
            channel=channel,
            count=1,
            table=encode_ranges([(first, last)]),
        )
        self.acked += last - first + 1

    def commit(self, **changed: int) -> Answer | None:
        counts = {"sent": self.sent, "acked": self.acked, **changed}
        self.client.call("commit", transaction=self.number, **counts)
        return self.client.answer(self.client.calls)

    def roll_back(self) -> None:
        self.client.call("roll_back", transaction=self.number)


def house_with(*bodies: bytes, queue: str = "in", **options: Any) -> tuple[House, RawClient, int]:
    """A house whose queue has these messages, and a client that consumes them."""
    house = make_house(FakeLog(), **options)
    client = house.client()
    producer = client.produce(queue)
    if bodies:
        client.put(producer, *bodies)
    channel = client.consume(queue)
    return house, client, channel


def delivered(client: RawClient) -> list[bytes]:
    """What came on the client's last channel."""
    return client.bodies(client.channels)


def clean(house: House) -> None:
    """Nothing of a transaction is left."""
    house.check()
    assert len(house.core.transactions) == house.core.transactions.size_bytes == 0
    assert not house.core.transactions.two_phase._sends._by_address
    assert all(queue.counts.acked_in_transaction == 0 for queue in house.core.router.queues.values())


def test_what_a_transaction_sends_is_seen_when_it_is_committed_and_durable() -> None:
    house, client, _ = house_with(queue="out")
    tx = Tx(client)
    tx.send("out", b"a", b"b")
    tx.send("out", b"c", durable=False)
    assert delivered(client) == []
    house.auto = False
    assert tx.commit() is None
    assert delivered(client) == []
    house.rest()
    assert delivered(client) == [b"a", b"b", b"c"]
    clean(house)


def test_a_rollback_leaves_nothing_of_the_sends_and_brings_back_what_was_acknowledged() -> None:
    house, client, channel = house_with(b"1", b"2")
    tx = Tx(client)
    tx.send("out", b"x")
    tx.ack(channel, 1, 1)
    house.check()
    assert house.queue("in").counts.acked_in_transaction == 1
    tx.roll_back()
    clean(house)
    assert "out" not in house.core.router.queues or not house.queue("out").counts.added
    assert [(got.body, got.delivery_count) for got in client.got(channel)] == [(b"1", 1), (b"2", 1), (b"1", 2)]


def test_an_acknowledgement_settles_for_the_window_at_once() -> None:
    _, client, _ = house_with()
    client.put(client.produce("other"), b"1", b"2")
    channel = client.consume("other", window=1)
    assert delivered(client) == [b"1"]
    Tx(client).ack(channel, 1, 1)
    assert delivered(client) == [b"1", b"2"]


@pytest.mark.parametrize("changed", [{"sent": 2}, {"acked": 0}, {"transaction": 2}])
def test_a_commit_of_other_work_than_the_broker_has_is_rolled_back(changed: dict[str, int]) -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.send("out", b"x")
    tx.ack(channel, 1, 1)
    tx.number = changed.pop("transaction", 1)
    answer = tx.commit(**changed)
    assert answer is not None
    assert answer.code == ROLLED_BACK
    tx.number = 1
    tx.roll_back()
    clean(house)
    assert house.queue("in").counts.acknowledged == 0


def test_a_run_behind_one_that_is_missing_ends_the_transaction() -> None:
    house, client, _ = house_with()
    tx = Tx(client, sent=3)
    answer = tx.send("out", b"x")
    assert answer is not None
    assert answer.code == ROLLED_BACK
    clean(house)


def test_a_session_that_ends_takes_its_transactions_with_it() -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.send("out", b"x")
    tx.ack(channel, 1, 1)
    client.close()
    clean(house)
    assert house.queue("in").counts.ready == 1


def test_a_consumer_that_leaves_does_not_take_back_what_was_acknowledged() -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    client.leave(channel, 2)
    assert house.queue("in").counts.ready == 0
    tx.commit()
    clean(house)
    assert house.queue("in").counts.acknowledged == 1


def test_a_deleted_queue_ends_the_transactions_that_have_messages_of_it() -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    client.call("delete_queue", name="in")
    assert "in" not in house.core.router.queues
    answer = tx.commit()
    assert answer is not None
    assert answer.code == ROLLED_BACK
    assert "the queue 'in', of which it had acknowledged messages, was deleted" in answer.text
    clean(house)


def test_an_idle_transaction_is_rolled_back_and_a_used_one_is_not() -> None:
    house, client, channel = house_with(b"1")
    transactions = house.core.transactions
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    for _ in range(299):
        transactions.tick()
    tx.send("out", b"x")
    for _ in range(300):
        transactions.tick()
    assert house.queue("in").counts.acked_in_transaction == 1
    transactions.tick()
    clean(house)
    answer = tx.commit()
    assert answer is not None
    assert answer.code == ROLLED_BACK
    assert "timed out: it was idle for longer than transaction_timeout=300 seconds" in answer.text


def test_why_the_node_has_rolled_one_back_is_remembered_for_the_last_of_a_session() -> None:
    house = make_house()
    client = house.client()
    txs = [Tx(client, number=number) for number in range(1, limits.TRANSACTIONS_MAX + 2)]
    for tx in txs:
        tx.send("out", b"x")
        for _ in range(301):
            house.core.transactions.tick()
    told = [answer.text for tx in txs if (answer := tx.commit()) is not None]
    assert "no longer had all" in told[0]
    assert len(told) == len(txs) and all("timed out" in text for text in told[1:])


def test_a_known_duplicate_id_rejects_all_of_it_and_a_rollback_forgets_the_ids() -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.send("out", b"a", envelopes=with_ids("x"))
    tx.roll_back()
    tx = Tx(client, number=2)
    tx.send("out", b"b", envelopes=with_ids("x"))
    answer = tx.commit()
    assert answer is not None
    assert answer.code == 0
    for number, ids in ((3, ("y", "x")), (4, ("z", "z"))):
        tx = Tx(client, number=number)
        tx.send("out", b"c", b"d", envelopes=with_ids(*ids))
        tx.ack(channel, number - 2, number - 2)
        answer = tx.commit()
        assert answer is not None
        assert answer.code == DUPLICATE
        clean(house)
    assert house.queue("out").counts.added == 1
    assert house.queue("in").counts.acknowledged == 0
    # What came back twice may be had and settled by the next one.
    assert delivered(client) == [b"1"] * 3


def test_whoever_hears_of_a_duplicate_may_take_the_first_one_for_stored() -> None:
    house, client, _ = house_with()
    house.auto = False
    for number in (1, 2):
        tx = Tx(client, number=number)
        tx.send("out", b"a", envelopes=with_ids("x"))
        assert tx.commit() is None
    house.rest()
    answer = client.answer(client.calls)
    assert answer is not None
    assert answer.code == DUPLICATE
    clean(house)


def test_two_runs_of_a_transaction_with_one_duplicate_id() -> None:
    house, client, _ = house_with()
    tx = Tx(client)
    tx.send("out", b"a", envelopes=with_ids("x"))
    tx.send("out", b"b", envelopes=with_ids("x"))
    answer = tx.commit()
    assert answer is not None
    assert answer.code == DUPLICATE
    clean(house)


def test_known_duplicate_ids_may_be_left_out() -> None:
    house, client, _ = house_with(settings={"#": AddressSettings(duplicate_in_transaction="skip")})
    tx = Tx(client)
    tx.send("out", b"a", b"b", envelopes=with_ids("x", "x"))
    tx.send("out", b"c", b"d", envelopes=with_ids("x", "y"))
    answer = tx.commit()
    assert answer is not None
    assert answer.code == 0
    assert house.queue("out").counts.added == 2


def test_a_full_disk_refuses_a_commit_before_anything_has_changed() -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.send("out", b"a")
    tx.ack(channel, 1, 1)
    house.log.full = True
    answer = tx.commit()
    assert answer is not None
    assert answer.code == FULL
    house.log.full = False
    clean(house)
    assert house.queue("in").counts.acknowledged == 0
    assert house.queue("out").counts.added == 0


def test_a_commit_that_would_be_too_many_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    house, client, channel = house_with(b"1")
    tx = Tx(client)
    tx.send("fine", b"a")
    tx.send("out", b"a", b"b", envelopes=[Envelope(n << 8, b"", b"", b"") for n in (1, 2)])
    tx.ack(channel, 1, 1)
    monkeypatch.setattr("meshq.broker.ingress._record_writer.ROUTED_TARGETS_MAX", 1)
    answer = tx.commit()
    assert answer is not None
    assert answer.code == FULL
    clean(house)
    assert house.queue("fine").counts.added == house.queue("in").counts.acknowledged == 0


def test_a_transaction_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    house, client, channel = house_with(b"1", b"2")
    monkeypatch.setattr(limits, "TRANSACTION_MESSAGES_MAX", 1)
    tx = Tx(client)
    tx.ack(channel, 1, 1)
    answer = tx.send("out", b"a")
    assert answer is not None
    assert answer.code == USAGE
    clean(house)
    tx = Tx(client, number=2)
    tx.ack(channel, 2, 2)
    tx.ack(channel, 3, 3)
    clean(house)
    monkeypatch.setattr(limits, "TRANSACTION_BYTES_MAX", 10)
    answer = Tx(client, number=3).send("out", b"a")
    assert answer is not None
    assert answer.code == USAGE
    clean(house)
    monkeypatch.setattr(limits, "TRANSACTION_BYTES_MAX", 10_000)
    monkeypatch.setattr(limits, "TRANSACTIONS_MAX", 1)
    assert Tx(client, number=4).send("out", b"a") == Answer()
    answer = Tx(client, number=5).send("out", b"a")
    assert answer is not None
    assert answer.code == TOO_MANY


def test_open_transactions_take_a_part_of_the_memory_only() -> None:
    house, client, _ = house_with(memory=100_000)
    tx = Tx(client)
    used = house.core.memory.used_bytes
    assert tx.send("out", bytes(20_000)) == Answer()
    assert house.core.memory.used_bytes > used + 20_000
    answer = tx.send("out", bytes(20_000))
    assert answer is not None
    assert answer.code == FULL
    clean(house)
    assert house.core.memory.used_bytes == used


def test_the_records_of_a_commit_stand_together_or_not_at_all() -> None:
    """Cut the journal at each place that a crash may leave: the transaction is there whole, or nothing of it."""
    log = FakeLog()
    house = make_house(log)
    client = house.client()
    client.put(client.produce("in"), b"1", b"2", b"3", envelopes=with_ids("i1", "i2", "i3"))
    client.put(client.produce("in", b"another-producer"), b"4")
    channel = client.consume("in")
    house.rest()
    house.auto = False
    tx = Tx(client)
    tx.send("out", b"a", b"b", envelopes=with_ids("x", "y"))
    tx.send("news", b"c")
    tx.ack(channel, 1, 3)
    tx.ack(channel, 4, 4)
    before = log.durable
    tx.commit()
    assert log.last > before + 2
    seen = []
    for cut in log.cuts():
        core = make_core(records=log.recovered(cut))
        contents = {name: sum(view.live for view in queue.runs()) for name, queue in core.router.queues.items()}
        assert contents in (
            {"in": 4},
            {"in": 4, "out": 0},
            {"in": 4, "out": 0, "news": 0},
            {"in": 0, "out": 2, "news": 1},
        )
        seen.append(contents["in"])
        for address, ids in (("in", [b"i1"]), *((("out", [b"x", b"y"]),) if not contents["in"] else ())):
            assert core.router.addresses[address].duplicates.fresh_rows(ids) == []
    assert seen[0] == 4
    assert seen[-1] == 0


def test_a_client_that_is_no_party_to_the_rules_is_ended() -> None:
    for fields in ({"transaction": 0}, {"number": 0}, {"number": (1 << 63) - 1}):
        house, client, _ = house_with()
        header = {"transaction": 1, "address": "q", "producer": PRODUCER, "number": 1, "sent": 0, **fields}
        run = encode_run([b"x"])
        client.send(
            FrameType.TRANSACT,
            Transact(**header),
            first=1,
            count=1,
            table=run.table,
            body=run.body,  # type: ignore[arg-type]
        )
        assert client.closed
        clean(house)


def test_what_a_commit_weighs_is_at_least_what_it_takes() -> None:
    """The fake log compares; this one has every kind of run."""
    house, client, channel = house_with(*[b"%d" % n for n in range(50)])
    client.call("create_address", name="all", routing="multicast")
    for number in range(20):
        client.call("create_queue", name=f"all{number}", address="all", routing="multicast")
    tx = Tx(client)
    tx.send("all", *[b"x"] * 256)
    tx.send("out", *[b"x"] * 10, envelopes=[Envelope((n % 10) << 8, b"", b"", b"") for n in range(10)])
    for tag in range(1, 50, 2):
        tx.ack(channel, tag, tag)
    answer = tx.commit()
    assert answer is not None
    assert answer.code == 0
    assert len(house.log.groups) == 1


def test_what_a_commit_weighs_covers_what_is_cut_into_pieces_by_known_ids() -> None:
    """Messages that are left out leave holes, in each queue; the fake log compares."""
    house, client, _ = house_with(b"1", settings={"all": AddressSettings(duplicate_in_transaction="skip")})
    client.call("create_address", name="all", routing="multicast")
    for number in range(20):
        client.call("create_queue", name=f"all{number}", address="all", routing="multicast")
    ids = [str(number) for number in range(256)]
    known = [number for number in ids if int(number) % 7 in (1, 3, 4)]
    urgent = [Envelope(1 | 9 << 8, number.encode(), b"", b"") for number in ids]
    before = client.produce("all", b"another-producer")
    client.put(before, *[b"x"] * len(known), envelopes=with_ids(*known))
    tx = Tx(client)
    # Some are known already, and others when the run before them in the same transaction is placed.
    tx.send("all", *[b"x"] * 128, envelopes=urgent[::2])
    tx.send("all", *[b"x"] * 256, envelopes=urgent)
    answer = tx.commit()
    assert answer is not None and answer.code == 0
    assert house.queue("all0").counts.added == 256
    clean(house)


def test_messages_that_go_alone_don_t_weigh_so_much_that_their_number_does_not_fit() -> None:
    house, client, _ = house_with()
    tx = Tx(client)
    tx.send("a-queue-of-somebody", b"x" * 64)
    (transaction,) = house.core.transactions._open
    each = house.core.ingress.weigh(*transaction.work[0])
    assert each * limits.TRANSACTION_MESSAGES_MAX <= limits.BATCH_BYTES_MAX
    answer = tx.commit()
    assert answer is not None and answer.code == 0
