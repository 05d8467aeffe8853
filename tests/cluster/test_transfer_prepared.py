"""A node that leaves hands its prepared transactions over, with what they send and hold; they are decided elsewhere."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from meshq import (
    BusyError,
    Client,
    JournalSettings,
    MeshqError,
    Message,
    RefusedError,
    RetryTransactionError,
    UsageError,
)
from tests.cluster.kit import Mesh, bodies, until
from tests.cluster.test_drain import drained
from tests.cluster.test_transfer import inside, known, nodes_with_queues, numbered, recounted, taken, to

pytestmark = pytest.mark.slow

FEATURES = "meshq.broker.session._peering.LINK_FEATURES"
BOTH: dict[str, Any] = {"own": {"a": {"data_dir": "/data/a"}, "b": {"data_dir": "/data/b"}}}


async def prepared(nodes: Mesh, xid: bytes = b"x", *, held: int = 2, name: str = "a", durable: bool = True) -> None:
    """Prepare a transaction that acknowledges the second and the next messages of ``q``, and sends three to ``r``."""
    async with nodes.client(name) as client, client.consumer("q", window=held + 1) as consumer:
        got = await consumer.receive_many(held + 1, timeout=5)
        while len(got) < held + 1:
            got += await consumer.receive_many(held + 1 - len(got), timeout=5)
        transaction = await client.transaction(xid=xid).__aenter__()
        await transaction.ack(*got[1:])
        for number in range(3):
            await transaction.send("r", Message(b"sent %d" % number, durable=durable))
        await transaction.prepare()
        await consumer.nack(got[0])


async def recovered(nodes: Mesh, name: str) -> list[bytes]:
    async with nodes.client(name) as client:
        return await client.recover()


async def decided(nodes: Mesh, commit: bool, xid: bytes = b"x", name: str = "b") -> None:
    async with nodes.client(name) as client:
        await (client.commit(xid) if commit else client.rollback(xid))


async def in_order(nodes: Mesh, *, commit: bool) -> None:
    """See what is in the queues of ``b`` after the decision."""
    left = [b"0", *numbered(7, 3)] if commit else numbered(10)
    assert bodies(await taken(nodes, "b")) == left
    assert bodies(await taken(nodes, "b", "r")) == ([b"sent 0", b"sent 1", b"sent 2"] if commit else [])


def undecided(nodes: Mesh, name: str) -> int:
    return len(nodes.brokers[name]._node.core.transactions.two_phase)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("commit", [False, True])
async def test_a_prepared_transaction_is_decided_at_the_other_node_as_it_would_be_here(
    commit: bool, restart: bool
) -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        drain = await drained(nodes)
        assert (drain.state, drain.progress.prepared, drain.moved) == ("transferred", 0, 10)
        if restart:
            await nodes.stop("a")
            await nodes.kill("b")
            await nodes.start("b")
        assert await recovered(nodes, "b") == [b"x"]
        # Nobody gets what it holds, nor what it sends.
        assert bodies(await taken(nodes, "b", "r")) == []
        async with nodes.client("b") as client:
            statistics = await client.queue("q")
            assert (statistics.ready, statistics.delivering) == (8, 2)
        await decided(nodes, commit)
        await in_order(nodes, commit=commit)
        assert undecided(nodes, "b") == 0


async def test_what_is_held_keeps_its_place_between_the_others_and_comes_back_as_delivered() -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        await drained(nodes)
        await decided(nodes, commit=False)
        found = await taken(nodes, "b")
        assert bodies(found) == numbered(10)
        assert [one.delivery_count for one in found] == [2, 2, 2, *[1] * 7]


async def test_the_node_that_left_knows_where_the_transaction_is_also_after_its_restart() -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        await drained(nodes)
        state = await recounted(nodes)
        assert state["prepared"] == []
        await nodes.start("a")
        await nodes.joined()
        for commit in (True, False):
            with pytest.raises(RetryTransactionError, match="handed over, and is decided at the node inproc://b"):
                await decided(nodes, commit, name="a")
        assert await recovered(nodes, "a") == []
        await decided(nodes, commit=True)
        await in_order(nodes, commit=True)


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("victim", ["a", "b"])
async def test_a_hand_over_that_is_cut_by_kills_goes_on_and_all_of_the_transaction_is_there_once(
    victim: str, commit: bool
) -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        for _ in range(2):
            await inside(nodes).transfer.close()
            transfer = inside(nodes).transfer
            await transfer.hand_over(b"x", to(nodes))
            await transfer.move("q", to(nodes), 2)
            await nodes.kill(victim)
            await nodes.start(victim)
            await nodes.joined()
        # Neither here nor there it can be decided meanwhile.
        with pytest.raises(MeshqError):
            await decided(nodes, commit, name="a")
        assert await recovered(nodes, "b") == []
        with pytest.raises(RetryTransactionError, match="not all of it is here yet"):
            await decided(nodes, commit)
        assert (await drained(nodes)).state == "transferred"
        await nodes.kill("b")
        await nodes.start("b")
        assert await recovered(nodes, "b") == [b"x"]
        await decided(nodes, commit)
        await in_order(nodes, commit=commit)


@pytest.mark.parametrize("calls", [1, 2, 3, 5, 8, 12, 17, 25])
@pytest.mark.parametrize("victim", ["a", "b"])
async def test_power_that_is_lost_at_any_call_of_a_disk_loses_and_doubles_nothing_of_a_transaction(
    victim: str, calls: int
) -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        nodes.lose_power_at(victim, calls)
        await _drained_or_not(nodes, victim)
        if not nodes.lives[victim].dead:
            await nodes.kill(victim)
        await nodes.ended(victim)
        await nodes.start(victim)
        await nodes.joined()
        here = nodes.brokers["a"]._node.core.transactions.two_phase.xids("", b"")[0]
        assert not (here and await recovered(nodes, "b"))
        assert (await drained(nodes)).state == "transferred"
        assert await recovered(nodes, "b") == [b"x"]
        await decided(nodes, commit=True)
        await in_order(nodes, commit=True)


async def _drained_or_not(nodes: Mesh, victim: str) -> None:
    async with trio.open_nursery() as nursery:
        if victim == "b":
            nursery.start_soon(_again, nodes)
        with suppress(MeshqError):
            await drained(nodes)
        nursery.cancel_scope.cancel()


async def _again(nodes: Mesh) -> None:
    """Start ``b`` again when it has died."""
    await nodes.ended("b")
    await nodes.start("b")
    await trio.sleep_forever()


async def test_many_transactions_with_hundreds_of_messages_each_move_on_from_node_to_node() -> None:
    async with nodes_with_queues("abc", broker={"queues": ["q", "r"]}, own={}) as nodes:
        await nodes.send("a", numbered(600))
        for xid in (b"x", b"y"):
            await prepared(nodes, xid, held=250)
        await drained(nodes, "b")
        await nodes.stop("a")
        async with nodes.brokers["b"].drain("c") as drain:
            pass
        assert drain.state == "transferred"
        assert await recovered(nodes, "c") == [b"x", b"y"]
        await decided(nodes, commit=True, name="c")
        await decided(nodes, commit=False, xid=b"y", name="c")
        # y began with the message that x had given back.
        found = bodies(await taken(nodes, "c"))
        assert found == [b"0", *numbered(349, 251)]
        assert bodies(await taken(nodes, "c", "r")) == [b"sent 0", b"sent 1", b"sent 2"]


async def test_messages_that_are_not_durable_go_with_their_transaction() -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        async with nodes.client("a") as client:
            await client.send_many("q", [Message(body, durable=False) for body in numbered(10)])
        await prepared(nodes, durable=False)
        await drained(nodes)
        await decided(nodes, commit=True)
        await in_order(nodes, commit=True)


async def test_a_dry_run_counts_transactions_and_moves_none() -> None:
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        async with nodes.brokers["a"].drain(dry_run=True) as drain:
            found = [progress async for progress in drain]
        assert [(one.state, one.prepared, one.left) for one in found] == [("looked", 1, 10)]
        assert await recovered(nodes, "a") == [b"x"]


async def test_an_older_node_is_refused_by_name_before_anything_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEATURES, "origin counts due queue ids")
    async with nodes_with_queues() as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        with pytest.raises(BusyError, match=r"node b at inproc://b is older.*decide these first: 78"):
            await drained(nodes)
        await decided(nodes, commit=True, name="a")
        assert (await drained(nodes)).state == "transferred"
        await in_order(nodes, commit=True)


async def test_a_transaction_that_holds_what_the_other_node_cannot_take_stays_and_is_named() -> None:
    async with nodes_with_queues() as nodes:
        async with nodes.client("a") as here, nodes.client("b") as there:
            await here.create_queue("some")
            await here.send("some", b"any")
            await there.create_queue("some", filter="odd = 1")
            await until(lambda: known(nodes, "some"))
            async with here.consumer("some") as consumer:
                delivery = await consumer.receive()
                transaction = await here.transaction(xid=b"x").__aenter__()
                await transaction.ack(delivery)
                await transaction.prepare()
        with pytest.raises(RefusedError, match="1 of 'some', and the prepared transactions 78"):
            await drained(nodes)
        await nodes.stop("a")
        await nodes.start("a")
        assert await recovered(nodes, "a") == [b"x"]


async def test_a_transaction_of_the_same_id_at_the_other_node_is_decided_with_the_one_that_comes() -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        async with nodes.client("b") as client:
            transaction = await client.transaction(xid=b"x").__aenter__()
            await transaction.send("r", b"own")
            await transaction.prepare()
        await drained(nodes)
        await nodes.kill("b")
        await nodes.start("b")
        assert await recovered(nodes, "b") == [b"x"]
        await decided(nodes, commit=True)
        assert sorted(bodies(await taken(nodes, "b", "r"))) == [b"own", b"sent 0", b"sent 1", b"sent 2"]
        assert bodies(await taken(nodes, "b")) == [b"0", *numbered(7, 3)]


async def test_a_decided_id_is_free_again_and_holds_nothing_over_restarts() -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        await drained(nodes)
        await decided(nodes, commit=False)
        await nodes.stop("a")
        await prepared(nodes, held=1, name="b")
        await nodes.kill("b")
        await nodes.start("b")
        async with nodes.client("b") as client:
            statistics = await client.queue("q")
            assert (statistics.ready, statistics.delivering) == (9, 1)
        await decided(nodes, commit=True)
        assert bodies(await taken(nodes, "b")) == [b"0", *numbered(8, 2)]


async def test_while_a_transaction_comes_its_id_is_taken_and_what_it_holds_and_sends_to_stays() -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        transfer = inside(nodes).transfer
        await transfer.close()
        assert await transfer.hand_over(b"x", to(nodes)) == 1
        assert await transfer.hand_over(b"x", to(nodes)) == 0
        await transfer.move("q", to(nodes), 3)
        await until(lambda: not transfer.inventory().forwarded)
        async with nodes.client("b") as client:
            for queue in ("q", "r"):
                with pytest.raises(BusyError):
                    await client.delete_queue(queue)
            await _refused(client)
        assert (await drained(nodes)).state == "transferred"


async def _refused(client: Client) -> None:
    transaction = await client.transaction(xid=b"x").__aenter__()
    await transaction.send("r", b"another")
    with pytest.raises(UsageError, match="take another xid"):
        await transaction.prepare()


async def test_what_a_target_has_begun_waits_for_that_target() -> None:
    async with nodes_with_queues("abc", broker={"queues": ["q", "r"]}, own={}) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        transfer = inside(nodes).transfer
        await transfer.close()
        await transfer.hand_over(b"x", to(nodes))
        await until(lambda: not transfer.inventory().forwarded)
        assert await transfer.hand_over(b"x", to(nodes, "c")) == 0
        assert await transfer.move("q", to(nodes, "c"), 20) == 8
        assert await transfer.move("q", to(nodes), 20) == 2
        assert await transfer.hand_over(b"x", to(nodes)) == 1
        assert transfer.prepared() == []
        await until(lambda: undecided(nodes, "b") == 1)
        assert await recovered(nodes, "b") == [b"x"]


@pytest.mark.parametrize("message", [bytes(1_500_000), b"small"])
async def test_a_transaction_of_many_runs_goes_as_one_if_it_could_be_prepared(message: bytes) -> None:
    async with nodes_with_queues(**BOTH) as nodes:
        async with nodes.client("a") as client:
            transaction = await client.transaction(xid=b"x").__aenter__()
            for _ in range(12):
                await transaction.send("r", message)
                await trio.sleep(0.001)
            await transaction.prepare()
        transactions = nodes.brokers["a"]._node.core.transactions
        (found,) = transactions.two_phase
        assert len(found.transaction.work) == 12
        assert transactions.transfer.weigh(found) <= transactions.two_phase._weigh(found)
        assert (await drained(nodes)).state == "transferred"
        await nodes.kill("b")
        await nodes.start("b")
        await decided(nodes, commit=True)
        assert bodies(await taken(nodes, "b", "r")) == [message] * 12


@pytest.mark.parametrize("size", [255_900, 500_000])
async def test_what_a_transaction_sends_may_be_more_than_the_reserve_of_a_full_disk(size: int) -> None:
    journal = {"journal": JournalSettings(segment_bytes=1 << 20)}
    own = {name: {"data_dir": f"/data/{name}", **journal} for name in "ab"}
    async with nodes_with_queues(own=own) as nodes:
        sent = [b"%d" % number * size for number in range(6)]
        whole = nodes.brokers["a"].client(min_large_message_size=1 << 24)
        async with whole as client, client.transaction(xid=b"x") as transaction:
            for body in sent:
                await transaction.send("r", body)
            await transaction.prepare()
        assert (await drained(nodes)).state == "transferred"
        await nodes.kill("b")
        await nodes.start("b")
        await decided(nodes, commit=True)
        assert bodies(await taken(nodes, "b", "r")) == sent


async def test_a_drain_waits_for_the_node_at_which_a_transaction_was_begun_and_goes_on_there() -> None:
    async with nodes_with_queues("abc", own={name: {"data_dir": f"/data/{name}"} for name in "abc"}) as nodes:
        await nodes.send("a", numbered(10))
        await prepared(nodes)
        await inside(nodes).transfer.close()
        await inside(nodes).transfer.hand_over(b"x", to(nodes))
        await until(lambda: not to(nodes).waiting)
        await nodes.stop("b")
        with pytest.raises(RefusedError, match=r"transactions 78: node c .* or another node has a part of"):
            async with nodes.brokers["a"].drain("c"):
                await trio.sleep(20)
                # Not yet.
                assert inside(nodes).transfer.inventory().prepared == 1
        await nodes.start("b")
        await nodes.joined()
        async with nodes.brokers["a"].drain("b") as drain:
            pass
        assert drain.state == "transferred" and await recovered(nodes, "b") == [b"x"]
