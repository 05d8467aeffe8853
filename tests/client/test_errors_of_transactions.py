"""What a transaction raises when it is not open, or its client, its session or its connection is gone."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq import AddressFullError, AddressSettings
from meshq.client import Delivery, connect
from meshq.errors import (
    CallTimeoutError,
    ClosedError,
    ConnectionBrokenError,
    MeshqError,
    TransactionRolledBackError,
    UsageError,
)
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, until, until_attached
from tests.node.lives import lives

TCP = "tcp://127.0.0.1:1"
#: How a commit ends without its answer: what the error is, and what it says.
ENDS: dict[str, tuple[type[MeshqError], str]] = {
    "late": (CallTimeoutError, "not answered in time"),
    "lost": (TransactionRolledBackError, "repeat the work with the same duplicate ids"),
    "given up": (ConnectionBrokenError, "all attempts to connect are used up"),
    "closed": (ClosedError, "the client is closed"),
}


@pytest.mark.parametrize("how", ENDS)
async def test_a_commit_whose_answer_does_not_come_is_unknown(node: FakeNode, how: str) -> None:
    env, network = fake_env(node)
    result = Result()
    try:
        async with (
            connect(TCP, env=env, call_timeout=2, reconnect_attempts=1) as client,
            trio.open_nursery() as nursery,
        ):
            tx = await client.transaction().__aenter__()
            await tx.send("a", b"1")
            await client.flush()
            node.answers = False
            nursery.start_soon(result.of, tx.commit)
            await wait_all_tasks_blocked()
            if how == "late":
                await trio.sleep(3)
            elif how == "lost":
                node.answers = True
                node.restart()
            elif how == "given up":
                network.nodes.clear()
                node.cut()
            else:
                await client.close()
            await until(lambda: result.done)
    except ConnectionBrokenError:
        assert how == "given up"
    kind, text = ENDS[how]
    assert type(result.error) is kind
    assert text in str(result.error)
    assert result.error.outcome == "unknown"
    assert tx.state == "rolled back"


@pytest.mark.parametrize("how", ["given up", "closed"])
async def test_on_a_client_that_is_of_no_further_use_nothing_is_begun_and_nothing_committed(
    node: FakeNode, how: str
) -> None:
    env, network = fake_env(node)
    kind, text = ENDS[how]
    with pytest.raises(UsageError, match="the client is not open") as early:
        await connect(TCP, env=env).transaction().__aenter__()
    assert early.value.outcome == "not_done"
    try:
        async with connect(TCP, env=env, reconnect_attempts=1) as client:
            tx = await client.transaction().__aenter__()
            await tx.send("a", b"1")
            if how == "given up":
                network.nodes.clear()
                node.cut()
                await trio.sleep(1_000)
    except ConnectionBrokenError:
        assert how == "given up"
    for call in (tx.commit, client.transaction().__aenter__):
        with pytest.raises(kind, match=text) as caught:
            await call()
        assert type(caught.value) is kind
        assert caught.value.outcome == "not_done"


async def test_a_transaction_that_is_lost_takes_no_more_work(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        with pytest.raises(TransactionRolledBackError, match="the session was lost") as left:
            async with client.transaction() as tx:
                await tx.send("a", b"1")
                await client.flush()
                node.restart()
                await until_attached(client, 2)
                node.deliver("q", [b"x"])
                delivery = await consumer.receive()
                assert isinstance(delivery, Delivery)
                for work in (lambda: tx.ack(delivery), lambda: tx.send("a", b"2")):
                    with pytest.raises(TransactionRolledBackError, match="the session was lost") as caught:
                        await work()
                    assert caught.value.outcome == "not_done"
        assert left.value.outcome == "not_done"
        # It was not touched.
        await delivery.ack(confirm=True)


async def test_what_is_over_is_not_rolled_back(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        tx = client.transaction()
        with pytest.raises(UsageError, match="the transaction is new: enter its block first"):
            await tx.rollback()
        async with tx:
            await tx.rollback()
            for call in (tx.rollback, tx.commit):
                over = "the transaction is rolled back: it is over, make another one"
                with pytest.raises(UsageError, match=over) as caught:
                    await call()
                assert caught.value.outcome == "not_done"


async def test_a_full_address_refuses_all_of_a_transaction() -> None:
    settings = {"full": AddressSettings(full_policy="fail", max_size_messages=1)}
    async with lives(address_settings=settings) as life, life.client() as client:
        await client.create_queue("other")
        await client.send("full", b"1")
        with pytest.raises(AddressFullError, match="'full' has 1 messages") as caught:
            async with client.transaction() as tx:
                await tx.send("other", b"2")
                await tx.send("full", b"2")
        assert caught.value.outcome == "not_done"
        assert tx.state == "rolled back"
        assert [(await client.queue(name)).ready for name in ("full", "other")] == [1, 0]
