"""Two-phase transactions from threads and from asyncio: over a socket and in process, and over a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshq import TransactionRolledBackError, UsageError, aio, blocking
from meshq.client import Client
from tests.blocking.test_signatures import parameters
from tests.real.aio_kit import asyncio_test

XID = b"order-7"
ACCEPTORS = ["tcp://127.0.0.1:0"]


def test_threads_prepare_in_one_life_and_decide_in_another(tmp_path: Path) -> None:
    with (
        blocking.Broker("hq", data_dir=tmp_path / "hq", acceptors=ACCEPTORS) as broker,
        blocking.connect(broker.urls[0]) as client,
    ):
        client.send_many("in", [b"1", b"2"])
        with client.consumer("in") as consumer:
            for number in (1, 2):
                with client.transaction(xid=b"%d" % number) as tx:
                    delivery = consumer.receive(timeout=10)
                    assert delivery is not None
                    tx.send("out", delivery.body)
                    tx.ack(delivery)
                    tx.prepare()
                    with pytest.raises(UsageError, match="the transaction is prepared"):
                        tx.send("out", b"late")
                assert tx.state == "prepared"
        with client.transaction(XID) as tx:
            tx.send("out", b"3")
            tx.prepare()
            tx.commit()
        with client.transaction(XID) as tx:
            tx.send("out", b"4")
            tx.prepare()
            tx.rollback()
        assert client.recover() == [b"1", b"2"]
    with blocking.Broker("hq", data_dir=tmp_path / "hq") as broker, broker.client() as client:
        assert [(one.xid, one.sent, one.acked) for one in client.prepared()] == [(b"1", 1, 1), (b"2", 1, 1)]
        client.commit(b"1")
        client.rollback(b"2")
        assert client.recover() == client.prepared() == []
        with pytest.raises(TransactionRolledBackError):
            client.commit(XID)
        assert (client.queue("in").ready, client.queue("out").ready) == (1, 2)


@asyncio_test
async def test_tasks_of_asyncio_prepare_in_one_life_and_decide_in_another(tmp_path: Path) -> None:
    async with (
        aio.Broker("hq", data_dir=tmp_path / "hq", acceptors=ACCEPTORS) as broker,
        aio.connect(broker.urls[0]) as client,
    ):
        await client.send_many("in", [b"1", b"2"])
        async with client.consumer("in") as consumer:
            for number in (1, 2):
                async with client.transaction(xid=b"%d" % number) as tx:
                    delivery = await consumer.receive(timeout=10)
                    assert delivery is not None
                    await tx.send("out", delivery.body)
                    await tx.ack(delivery)
                    await tx.prepare()
                assert tx.state == "prepared"
        async with client.transaction(XID) as tx:
            await tx.send("out", b"3")
            await tx.prepare()
            await tx.rollback()
        assert await client.recover() == [b"1", b"2"]
    async with aio.Broker("hq", data_dir=tmp_path / "hq") as broker, broker.client() as client:
        assert [one.xid for one in await client.prepared()] == [b"1", b"2"]
        await client.commit(b"1")
        await client.rollback(b"2")
        assert await client.recover() == []
        with pytest.raises(TransactionRolledBackError):
            await client.commit(XID)
        assert ((await client.queue("in")).ready, (await client.queue("out")).ready) == (1, 1)


@pytest.mark.parametrize("name", ["transaction", "commit", "rollback", "recover", "prepared"])
def test_the_calls_are_the_same_everywhere(name: str) -> None:
    known = parameters(getattr(Client, name))
    assert parameters(getattr(blocking.Client, name)) == parameters(getattr(aio.Client, name)) == known
