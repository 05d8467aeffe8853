"""Everything durable of a node is at its backup, whether the two share a store or one follows the other."""

from __future__ import annotations

import pytest
import trio

from meshq import AddressSettings, Client, Message
from meshq.testing import Cluster
from tests.testing.kit.worlds import in_cluster

pytestmark = pytest.mark.slow
KINDS = pytest.mark.parametrize("ha", ["replication", "shared_store"])
XIDS = (b"order-7", b"order-8")
PAGED = AddressSettings(max_size_messages=10)
LARGE = bytes(range(256)) * 1_200
FOREVER = float("inf")


async def taken_over(cluster: Cluster) -> None:
    """Kill the node that serves, and wait until its backup does."""
    (name,) = cluster.alive
    cluster.kill(name)
    await cluster.settled()
    assert cluster.alive == ["n0b"]


async def bodies(client: Client, queue: str) -> list[bytes]:
    """Take all messages of a queue."""
    found: list[bytes] = []
    async with client.consumer(queue) as consumer:
        while (delivery := await consumer.receive(timeout=2)) is not None:
            found.append(bytes(delivery.body))
            await delivery.ack(confirm=True)
    return found


@KINDS
def test_a_duplicate_id_is_known_after_a_failover(ha: str) -> None:
    """K29."""

    async def test(cluster: Cluster) -> None:
        async with cluster.client() as client:
            await client.send("orders", b"one", duplicate_id="order-1")
        await taken_over(cluster)
        async with cluster.client() as client:
            await client.send("orders", b"one", duplicate_id="order-1")
            await client.send("orders", b"two", duplicate_id="order-2")
            assert await bodies(client, "orders") == [b"one", b"two"]

    in_cluster(test, nodes=1, ha=ha)


@KINDS
def test_prepared_transactions_are_listed_and_decided_on_the_backup(ha: str) -> None:
    """K25."""

    async def test(cluster: Cluster) -> None:
        async with cluster.client() as client:
            for xid in XIDS:
                async with client.transaction(xid) as transaction:
                    await transaction.send("orders", xid)
                    await transaction.prepare()
        await taken_over(cluster)
        async with cluster.client() as client:
            assert sorted(await client.recover()) == sorted(XIDS)
            assert (await client.queue("orders")).ready == 0
            await client.commit(XIDS[0])
            await client.rollback(XIDS[1])
            assert await client.recover() == []
            assert await bodies(client, "orders") == [XIDS[0]]

    in_cluster(test, nodes=1, ha=ha)


@KINDS
def test_what_was_paged_is_delivered_by_the_backup_in_its_order(ha: str) -> None:
    """K18."""
    sent = [b"%d" % number for number in range(300)]

    async def test(cluster: Cluster) -> None:
        async with cluster.client() as client:
            for begin in range(0, len(sent), 50):
                await client.send_many("orders", sent[begin : begin + 50])
        assert cluster.broker("n0").statistics().paged > 0
        await taken_over(cluster)
        async with cluster.client() as client:
            assert cluster.broker("n0b").statistics().paged > 0
            assert await bodies(client, "orders") == sent

    in_cluster(test, nodes=1, ha=ha, address_settings={"orders": PAGED})


@KINDS
def test_every_part_of_a_store_is_at_the_backup_though_it_was_in_use_meanwhile(ha: str) -> None:
    """K22: definitions, pages, large bodies, scheduled messages, delivery counts, prepared transactions."""

    async def test(cluster: Cluster) -> None:
        async with cluster.client() as client:
            await client.create_queue("mine", address="news", routing="multicast", filter="n > 1")
            await client.set_address_settings("kept", AddressSettings(max_delivery_attempts=7))
            await client.send_many("orders", [b"%d" % number for number in range(40)])
            # The backup begins anew, and copies while messages come and go.
            cluster.kill("n0b")
            await client.send("orders", Message(LARGE, priority=9))
            await client.send("later", Message(b"later", delay=40.0))
            cluster.spawn(None, cluster.restart, "n0b")
            for number in range(1, 4):
                await client.send("news", Message(b"n%d" % number, properties={"n": number}))
                await trio.sleep(0.02)
            async with client.consumer("orders") as consumer:
                for expected in (LARGE, b"0"):
                    delivery = await consumer.receive(timeout=5)
                    assert delivery is not None and bytes(delivery.body) == expected
                    await delivery.ack(confirm=True)
                # It is handed over, and comes again.
                assert await consumer.receive(timeout=5) is not None
            async with client.transaction(XIDS[0]) as transaction:
                await transaction.send("orders", b"prepared")
                await transaction.prepare()
        await cluster.settled()
        await taken_over(cluster)
        async with cluster.client() as client:
            assert (await client.queue("mine")).filter == "n > 1"
            assert await bodies(client, "mine") == [b"n2", b"n3"]
            await client.commit(XIDS[0])
            async with client.consumer("orders") as consumer:
                first = await consumer.receive(timeout=5)
                assert first is not None and (bytes(first.body), first.delivery_count) == (b"1", 2)
                await first.ack(confirm=True)
            assert await bodies(client, "orders") == [*(b"%d" % number for number in range(2, 40)), b"prepared"]
            await trio.sleep(40)
            assert await bodies(client, "later") == [b"later"]

    in_cluster(test, nodes=1, ha=ha, address_settings={"orders": PAGED})
