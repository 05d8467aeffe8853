"""Local transactions, from a program to the disk and back, across lost sessions and restarts."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from meshq import (
    AddressSettings,
    Client,
    DuplicateError,
    NotFoundError,
    SettingsError,
    StaleDeliveryError,
    TransactionRolledBackError,
    UsageError,
)
from tests.client._waiting import Result, until
from tests.node.lives import Lives, bodies, lives
from tests.process import ENDS, End


async def everything(client: Client, queue: str) -> list[bytes]:
    async with client.consumer(queue) as consumer:
        return await bodies(consumer, 0.2)


def clean(node: Lives) -> None:
    """Nothing of a transaction is left at the broker."""
    core = node.broker._node.core
    assert len(core.transactions) == core.transactions.size_bytes == 0
    for queue in core.router.queues.values():
        queue.check()
        assert queue.counts.acked_in_transaction == 0


async def test_a_block_commits_its_sends_and_acknowledgements_together() -> None:
    async with lives() as node, node.client() as client:
        await client.send_many("in", [b"1", b"2", b"3"])
        async with client.transaction() as tx:
            async with client.consumer("in") as consumer:
                for delivery in [await consumer.receive() for _ in range(3)]:
                    assert delivery is not None
                    await tx.send("out", delivery.body * 2, properties={"n": 1}, duplicate_id=delivery.body)
                    await tx.ack(delivery)
            assert tx.state == "active"
            await tx.send("out", b"last", durable=False)
            assert (await client.queue("in")).delivering == 3
        assert tx.state == "committed"
        clean(node)
        await node.again(killed=True)
        assert await everything(client, "in") == []
        assert await everything(client, "out") == [b"11", b"22", b"33"]


async def test_a_block_that_raises_rolls_back() -> None:
    async with lives() as node, node.client() as client:
        await client.send("in", b"1")
        async with client.consumer("in") as consumer:
            with pytest.raises(ZeroDivisionError):
                async with client.transaction() as tx:
                    delivery = await consumer.receive()
                    assert delivery is not None
                    await tx.ack(delivery)
                    await tx.send("out", b"x", duplicate_id="d")
                    raise ZeroDivisionError
            assert tx.state == "rolled back"
            again = await consumer.receive()
            assert again is not None
            assert (again.body, again.delivery_count) == (b"1", 2)
            await again.ack()
        assert await everything(client, "out") == []
        clean(node)
        # Its duplicate id was never known.
        await client.send("out", b"y", duplicate_id="d")
        assert await everything(client, "out") == [b"y"]


async def test_commit_and_rollback_may_be_called_and_then_it_is_over() -> None:
    async with lives() as node, node.client() as client:
        async with client.transaction() as tx:
            await tx.send("out", b"1")
            await tx.commit()
            with pytest.raises(UsageError, match="committed"):
                await tx.send("out", b"2")
        async with client.transaction() as tx:
            await tx.send("out", b"3")
            await tx.rollback()
        with pytest.raises(UsageError, match="rolled back"):
            await tx.commit()
        with pytest.raises(UsageError, match="used before"):
            async with tx:
                raise AssertionError("it began twice")
        with pytest.raises(UsageError, match="new"):
            await client.transaction().send("out", b"4")
        async with client.transaction():
            pass
        assert await everything(client, "out") == [b"1"]
        clean(node)


async def test_many_messages_in_one_transaction() -> None:
    async with lives() as node, node.client() as client:
        sent = [b"%d" % number for number in range(2_000)]
        async with client.transaction() as tx:
            for number, body in enumerate(sent):
                await tx.send("a" if number % 3 else "b", body)
        assert await everything(client, "a") == [body for number, body in enumerate(sent) if number % 3]
        assert await everything(client, "b") == sent[::3]
        clean(node)


async def test_a_transaction_that_is_flagged_is_not_committed_and_the_next_one_is() -> None:
    async with lives() as node, node.client() as client:
        with pytest.raises(TransactionRolledBackError) as caught:
            async with client.transaction() as tx:
                await tx.send("out", b"1")
                tx.mark_rollback_only()
                assert tx.rollback_only
        assert caught.value.outcome == "not_done"
        async with client.transaction() as tx:
            await tx.send("out", b"2")
        assert await everything(client, "out") == [b"2"]
        clean(node)


@pytest.mark.parametrize("end", ENDS)
async def test_a_lost_session_takes_the_work_of_a_transaction_and_leaves_one_without(end: End) -> None:
    async with lives() as node, node.client() as client, client.consumer("in") as consumer:
        await client.send_many("in", [b"1", b"2"])
        with pytest.raises(TransactionRolledBackError) as caught:
            async with client.transaction() as tx, client.transaction() as untouched:
                delivery, old = await consumer.receive(), await consumer.receive()
                assert delivery is not None
                assert old is not None
                await tx.ack(delivery)
                await client.flush()
                await node.again(end=end)
                await client.send("out", b"0")
                await untouched.send("out", b"1")
        assert caught.value.outcome == "not_done"
        assert untouched.state == "committed"
        again = await consumer.receive()
        assert again is not None
        assert again.body == b"1"
        # The same session goes on: the work is done again.
        async with client.transaction() as tx:
            await tx.send("out", b"2")
            await tx.ack(again)
            with pytest.raises(StaleDeliveryError):
                await tx.ack(old)
        assert await everything(client, "out") == [b"0", b"1", b"2"]
        last = await consumer.receive()
        assert last is not None
        assert last.body == b"2"
        clean(node)


async def test_a_known_duplicate_id_rejects_the_transaction_or_is_left_out_of_it() -> None:
    settings = {"lenient": AddressSettings(duplicate_in_transaction="skip")}
    async with lives(address_settings=settings) as node, node.client() as client:
        for address in ("out", "lenient"):
            await client.send(address, b"1", duplicate_id="d")
        with pytest.raises(DuplicateError) as caught:
            async with client.transaction() as tx:
                await tx.send("out", b"2")
                await tx.send("out", b"3", duplicate_id="d")
        assert caught.value.outcome == "not_done"
        async with client.transaction() as tx:
            await tx.send("lenient", b"2")
            await tx.send("lenient", b"3", duplicate_id="d")
        assert await everything(client, "out") == [b"1"]
        assert await everything(client, "lenient") == [b"1", b"2"]
        clean(node)
    with pytest.raises(SettingsError, match="'reject' or 'skip'"):
        AddressSettings(duplicate_in_transaction="perhaps")


async def test_an_idle_transaction_is_rolled_back_and_its_client_told_at_the_next_call() -> None:
    async with lives(transaction_timeout=2) as node, node.client() as client:
        with pytest.raises(TransactionRolledBackError) as caught:
            async with client.transaction() as tx:
                await tx.send("out", b"1")
                await client.flush()
                core = node.broker._node.core
                assert len(core.transactions) == 1
                await until(lambda: not len(core.transactions))
                await trio.sleep(1.1)
                await tx.send("out", b"2")
        assert caught.value.outcome == "not_done"
        assert "it timed out: it was idle for longer than transaction_timeout=2 seconds" in str(caught.value)
        clean(node)
        async with client.transaction() as tx:
            await tx.send("out", b"3")
        assert await everything(client, "out") == [b"3"]


async def test_a_message_that_is_refused_ends_the_transaction_with_its_error() -> None:
    settings = {"#": AddressSettings(auto_create_queues=False)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.create_queue("out")
        with pytest.raises(NotFoundError):
            async with client.transaction() as tx:
                await tx.send("out", b"1")
                await tx.send("nowhere", b"2")
        assert await everything(client, "out") == []
        clean(node)


async def test_what_does_not_belong_into_a_transaction() -> None:
    async with lives() as node, node.client() as client, node.client() as other:
        await client.send_many("in", [b"1", b"2"])
        async with other.consumer("in", window=1) as theirs, client.consumer("in") as consumer:
            foreign, own = await theirs.receive(), await consumer.receive()
            assert foreign is not None
            assert own is not None
            async with client.transaction() as tx:
                with pytest.raises(UsageError, match="another client"):
                    await tx.ack(foreign)
                await tx.ack(own)
                with pytest.raises(UsageError, match="settled before"):
                    await tx.ack(own)
                with pytest.raises(SettingsError):
                    await tx.send("", b"x")
                with pytest.raises(SettingsError):
                    await tx.send("out", "text")  # type: ignore[arg-type]
            await foreign.ack()
        clean(node)


async def test_a_cancelled_commit_leaves_nothing_open() -> None:
    async with lives() as node, node.client() as client:
        with trio.CancelScope() as scope:
            async with client.transaction() as tx:
                await tx.send("out", b"1")
                await client.flush()
                scope.cancel()
        assert tx.state == "rolled back"
        await trio.testing.wait_all_tasks_blocked()
        await client.flush()
        clean(node)


async def test_a_closed_client_ends_its_transactions() -> None:
    async with lives() as node:
        async with node.client() as client:
            tx = await client.transaction().__aenter__()
            await tx.send("out", b"1")
            await client.flush()
        with pytest.raises(Exception, match="closed") as caught:
            await tx.commit()
        assert caught.value.outcome == "not_done"  # type: ignore[attr-defined]
        clean(node)


@pytest.mark.slow
async def test_once_and_only_once_through_any_number_of_kills() -> None:
    """Read, send and acknowledge in transactions, with ids that follow from what was read; begin anew what failed."""
    async with lives() as node, node.client(max_retry_interval=0.1) as client:
        sent = [b"%d" % number for number in range(200)]
        await client.send_many("in", sent)
        again = 0
        async with trio.open_nursery() as nursery, client.consumer("in", window=20) as consumer:

            async def kill() -> None:
                for life in range(8):
                    await trio.sleep(0.003 * (life + 1))
                    await node.again(killed=True)

            nursery.start_soon(kill)
            while (delivery := await consumer.receive(timeout=5)) is not None:
                try:
                    async with client.transaction() as tx:
                        await tx.send("out", delivery.body, duplicate_id=delivery.body)
                        await tx.ack(delivery)
                        await trio.sleep(0.0005)
                except (TransactionRolledBackError, StaleDeliveryError):
                    again += 1
        assert again
        assert sorted(await everything(client, "out")) == sorted(sent)
        clean(node)


async def test_a_commit_whose_reply_is_lost_is_there_once_when_its_work_is_repeated() -> None:
    async with lives() as node, node.client() as client:
        await client.send("in", b"1")
        async with client.consumer("in") as consumer:
            tx = await client.transaction().__aenter__()
            delivery = await consumer.receive()
            assert delivery is not None
            await tx.send("out", b"x", duplicate_id="d")
            await tx.ack(delivery)
            result = Result()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(result.of, tx.commit)
                await until(lambda: node.broker._node.core.transactions.committed == 1)
                await node.broker._node._journal.wait_durable(node.broker._node._journal.last)
                await node.again(killed=True)
            await until(lambda: client.statistics().renewed == 1)
            with pytest.raises(DuplicateError):
                async with client.transaction() as repeated:
                    await repeated.send("out", b"x", duplicate_id="d")
        assert await everything(client, "in") == []
        assert await everything(client, "out") == [b"x"]
