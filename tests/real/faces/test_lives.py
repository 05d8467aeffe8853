"""What is not open, or not any more, says so with a typed error, over every face; nothing waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import ClosedError, UsageError
from tests.real.faces.kit import ACCEPTORS, Face, promise


def things(client: Any) -> list[Any]:
    """What lives in a client, and has a block of its own."""
    return [client.producer("q"), client.consumer("q"), client.consumer("q", browse=True), client.subscribe("t")]


def calls_of(transaction: Any) -> list[Any]:
    """The calls of a transaction."""

    async def mark() -> None:
        transaction.mark_rollback_only()

    return [
        lambda: transaction.send("q", b"x"),
        transaction.ack,
        mark,
        transaction.prepare,
        transaction.commit,
        transaction.rollback,
        lambda: transaction.__aexit__(None, None, None),
    ]


async def handler(delivery: Any) -> None:
    """Never called."""


@promise
async def test_what_was_closed_before_its_block_can_not_be_entered(face: Face) -> None:
    async with face.broker() as broker:
        async with face.client(broker) as client:
            await client.create_queue("q")
            for thing in [face.client(broker), *things(client)]:
                await thing.close()
                await thing.close()
                for _ in range(2):
                    with pytest.raises(ClosedError, match="was closed before it was open") as caught:
                        await thing.__aenter__()
                    assert caught.value.outcome == "not_done"
                await thing.close()
            producer, consumer = client.producer("q"), client.consumer("q")
            for thing in (producer, consumer):
                await thing.close()
            late = (lambda: producer.send(b"x"), producer.flush, consumer.receive, lambda: consumer.ack(confirm=True))
            for call in late:
                with pytest.raises(ClosedError, match="is closed"):
                    await call()
            await client.send("q", b"the client goes on")
        for thing in things(client):
            with pytest.raises(ClosedError, match="the client is closed"):
                await thing.__aenter__()


@promise
async def test_what_is_closed_while_another_task_enters_it_is_not_entered(face: Face) -> None:
    async with (
        face.broker(acceptors=ACCEPTORS) as broker,
        face.connected(broker.urls[0], call_failover_timeout=5) as client,
    ):
        await client.create_queue("q")
        # Nothing can be opened any more, and the client goes on trying to come back.
        await broker.stop()
        for thing in (client.producer("q"), client.consumer("q")):

            async def enter(thing: Any = thing) -> None:
                with pytest.raises(ClosedError, match="is closed"):
                    await thing.__aenter__()

            async def close(thing: Any = thing) -> None:
                await face.until(lambda: thing.statistics().state == "open")
                await thing.close()

            await face.together(enter, close)
            await thing.close()
            assert thing.statistics().state == "closed"
            with pytest.raises(ClosedError, match="is closed"):
                await (thing.send(b"x") if hasattr(thing, "send") else thing.receive())


@promise
async def test_what_belongs_to_a_client_that_is_not_open_can_not_be_entered(face: Face) -> None:
    early = f"the client is not open: use it in {face.BLOCK}"
    async with face.broker() as broker:
        client = face.client(broker)
        producer, consumer, *others = things(client)
        for thing in (producer, consumer, *others, client.transaction()):
            with pytest.raises(UsageError, match=early):
                await thing.__aenter__()
        with pytest.raises(UsageError, match=early):
            await client.serve("q", handler)
        for call in calls_of(client.transaction(xid=b"x")):
            with pytest.raises(UsageError, match=early):
                await call()
        not_open = f"is not open: use it in {face.BLOCK}"
        calls = (lambda: producer.send(b"x"), producer.flush, consumer.receive, lambda: consumer.ack(confirm=True))
        for call in calls:
            with pytest.raises(UsageError, match=not_open):
                await call()
        async with client, producer, consumer:
            await producer.send(b"nothing has changed")
        closed = face.client(broker)
        await closed.close()
        for thing in (*things(closed), closed.transaction()):
            with pytest.raises(ClosedError, match="the client is closed"):
                await thing.__aenter__()


@promise
async def test_a_transaction_that_has_not_begun_says_so_in_every_call(face: Face) -> None:
    async with face.clients() as (client, _):
        for call in calls_of(client.transaction(xid=b"x")):
            with pytest.raises(UsageError, match="the transaction is new: enter its block first"):
                await call()


@promise
async def test_a_block_that_is_not_entered_can_not_be_left(face: Face) -> None:
    async with face.broker() as broker, face.client(broker) as client:
        await client.create_queue("q")
        other = face.client(broker)
        for thing in [other, *things(client)]:
            with pytest.raises(UsageError, match=f"is not open: use it in {face.BLOCK}"):
                await thing.__aexit__(None, None, None)
            async with thing:
                pass
            with pytest.raises(UsageError, match=f"is not open: use it in {face.BLOCK}"):
                await thing.__aexit__(None, None, None)
