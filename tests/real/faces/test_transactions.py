"""Transactions, over every face."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq import (
    DuplicateError,
    Message,
    RetryTransactionError,
    SettingsError,
    StaleDeliveryError,
    TransactionRolledBackError,
    UsageError,
)
from tests.real.faces.kit import Face, promise, received

XID = b"order-7"


@pytest.mark.parametrize("durable", [True, False])
@promise
async def test_a_transaction_counts_whole_or_not_at_all(face: Face, tmp_path: Path, durable: bool) -> None:
    async with face.clients(data_dir=tmp_path / "hq" if durable else None) as (client, other):
        await client.send_many("in", [b"1", b"2", b"3"])
        await client.create_queue("out")
        async with client.consumer("in") as consumer:
            deliveries = [await received(consumer) for _ in range(3)]
            async with client.transaction() as tx:
                assert (tx.state, tx.rollback_only) == ("active", False)
                await tx.ack(*deliveries[:2])
                await tx.send("out", b"a", properties={"n": 1})
                await tx.send("out", Message(b"b", correlation_id="c"))
                assert (await other.queue("out")).ready == 0
            failing = client.transaction()
            with pytest.raises(ZeroDivisionError):
                async with failing:
                    await failing.ack(deliveries[2])
                    await failing.send("out", b"c")
                    raise ZeroDivisionError
            assert (tx.state, failing.state) == ("committed", "rolled back")
            again = await received(consumer)
            assert (again.body, again.delivery_count) == (b"3", 2)
            flagged = client.transaction()
            with pytest.raises(TransactionRolledBackError) as caught:
                async with flagged:
                    await flagged.ack(again)
                    flagged.mark_rollback_only()
                    assert flagged.rollback_only
            assert caught.value.outcome == "not_done"
            async with client.transaction() as last:
                await last.ack(await received(consumer))
                await last.commit()
            async with client.transaction() as nothing:
                await nothing.rollback()
                assert repr(nothing) == "<Transaction rolled back sent=0 acked=0>"
            for over in (last.commit, nothing.rollback, lambda: last.send("out", b"x"), last.ack):
                with pytest.raises(UsageError):
                    await over()
        async with other.consumer("out") as consumer:
            first, second = await received(consumer), await received(consumer)
            assert (first.body, first.properties, second.body, second.correlation_id) == (b"a", {"n": 1}, b"b", "c")
            await consumer.ack(first, second)
            assert await consumer.receive(timeout=0.02) is None


@promise
async def test_a_transaction_refuses_a_known_duplicate_id_and_what_it_may_not_settle(face: Face) -> None:
    async with face.clients() as (client, other):
        await client.send("q", b"1", duplicate_id="twice")
        with pytest.raises(DuplicateError) as caught:
            async with client.transaction() as tx:
                await tx.send("q", b"2", duplicate_id="twice")
        assert caught.value.outcome == "not_done" and tx.state == "rolled back"
        async with client.consumer("q") as consumer:
            mine = await received(consumer)
            async with other.transaction() as tx:
                with pytest.raises(UsageError):
                    await tx.ack(mine)
                with pytest.raises(SettingsError):
                    await tx.ack(b"no delivery")
        async with client.transaction() as tx:
            with pytest.raises(StaleDeliveryError):
                await tx.ack(mine)
        assert (await client.queue("q")).ready == 1


@promise
async def test_what_is_prepared_in_one_life_is_decided_in_another(face: Face, tmp_path: Path) -> None:
    async with face.broker(data_dir=tmp_path / "hq") as broker, face.client(broker) as client:
        await client.send_many("in", [b"1", b"2"])
        async with client.consumer("in") as consumer:
            for number in (1, 2):
                async with client.transaction(xid=b"%d" % number) as tx:
                    delivery = await received(consumer)
                    await tx.send("out", delivery.body)
                    await tx.ack(delivery)
                    await tx.prepare()
                    with pytest.raises(UsageError, match="the transaction is prepared"):
                        await tx.send("out", b"late")
                assert tx.state == "prepared"
        async with client.transaction(XID) as tx:
            await tx.send("out", b"3")
            await tx.prepare()
            await tx.commit()
        async with client.transaction(XID) as tx:
            await tx.send("out", b"4")
            await tx.prepare()
            await tx.rollback()
        async with client.transaction() as tx:
            with pytest.raises(UsageError, match="is made with its id"):
                await tx.prepare()
        assert await client.recover() == [b"1", b"2"]
    async with face.broker(data_dir=tmp_path / "hq") as broker, face.client(broker) as client:
        assert [(one.xid, one.sent, one.acked) for one in await client.prepared()] == [(b"1", 1, 1), (b"2", 1, 1)]
        await client.commit(b"1")
        await client.rollback(b"2")
        assert await client.recover() == await client.prepared() == []
        with pytest.raises(TransactionRolledBackError):
            await client.commit(XID)
        assert ((await client.queue("in")).ready, (await client.queue("out")).ready) == (1, 2)


@promise
async def test_an_xid_that_is_open_here_is_no_prepared_one(face: Face) -> None:
    async with face.clients() as (client, _):
        async with client.transaction(XID) as tx:
            await tx.send("q", b"x")
            for wrong in (client.commit, client.rollback):
                with pytest.raises(UsageError) as caught:
                    await wrong(XID)
                assert not isinstance(caught.value, RetryTransactionError)
        with pytest.raises(SettingsError):
            await client.commit(b"")
