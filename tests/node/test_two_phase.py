"""Two-phase transactions, from a program to the disk and back, across lost sessions and restarts."""

from __future__ import annotations

import pytest
import trio

from meshq import (
    AddressFullError,
    AddressSettings,
    BusyError,
    Client,
    DuplicateError,
    NotFoundError,
    Permissions,
    RetryTransactionError,
    Secret,
    Security,
    SecurityError,
    TransactionRolledBackError,
    UsageError,
    connect,
)
from meshq.client import Consumer
from tests.client._waiting import until
from tests.node.lives import TrioWall, bodies, lives, machine
from tests.node.test_transactions import clean, everything
from tests.process import ENDS, End

XID = b"order-7"


async def prepared(client: Client, consumer: Consumer, xid: bytes = XID) -> None:
    """A message of ``in`` is acknowledged, and two are sent to ``out``: one durable, one not."""
    async with client.transaction(xid) as tx:
        delivery = await consumer.receive(timeout=1)
        assert delivery is not None
        await tx.send("out", b"durable", duplicate_id="d")
        await tx.send("out", b"fleeting", durable=False)
        await tx.ack(delivery)
        await tx.prepare()
        assert tx.state == "prepared"
    assert tx.state == "prepared"


async def counted(client: Client, *names: str) -> list[tuple[int, int]]:
    """Ready and delivering, of each queue."""
    return [(found.ready, found.delivering) for found in [await client.queue(name) for name in names]]


@pytest.mark.parametrize("end", [None, *ENDS])
@pytest.mark.parametrize("verdict", ["commit", "rollback"])
async def test_another_client_in_another_life_decides(verdict: str, end: End | None) -> None:
    async with lives() as node:
        async with node.client() as client, client.consumer("in") as consumer:
            await client.create_queue("out")
            await client.send("in", b"1")
            await prepared(client, consumer)
        if end is not None:
            await node.again(end=end)
        async with node.client() as other:
            assert await other.recover() == [XID]
            assert await counted(other, "in", "out") == [(0, 1), (0, 0)]
            await getattr(other, verdict)(XID)
            assert await other.recover() == []
            sent = [b"durable"] if end is not None else [b"durable", b"fleeting"]
            assert await everything(other, "out") == (sent if verdict == "commit" else [])
            async with other.consumer("in") as consumer:
                again = await consumer.receive(timeout=0.1)
            assert (again is None) == (verdict == "commit")
            assert again is None or (again.body == b"1" and again.redelivered)
            # It stands, whoever asks again and when.
            await node.again(killed=True)
            await getattr(other, verdict)(XID)
            if verdict == "commit":
                with pytest.raises(UsageError, match="was committed") as caught:
                    await other.rollback(XID)
                assert caught.value.outcome == "not_done"
            else:
                with pytest.raises(TransactionRolledBackError) as refused:
                    await other.commit(XID)
                assert refused.value.outcome == "not_done"
        clean(node)


async def test_prepare_kill_commit_is_to_be_retried_and_then_it_is_there_once() -> None:
    async with lives() as node, node.client() as client:
        await client.send("in", b"1")
        async with client.consumer("in") as consumer:
            delivery = await consumer.receive(timeout=1)
            assert delivery is not None
            async with client.transaction(XID) as tx:
                await tx.send("out", b"x")
                await tx.ack(delivery)
                await tx.prepare()
                await node.again(killed=True)
                await until(lambda: client.statistics().renewed == 1)
                with pytest.raises(RetryTransactionError) as caught:
                    await tx.commit()
                assert caught.value.outcome == "not_done"
                await tx.commit()
        # Committed, or not known any more: both are success, and change nothing.
        await client.commit(XID)
        await client.commit(b"never heard of")
        assert await everything(client, "out") == [b"x"]
        assert await everything(client, "in") == []
        clean(node)


async def test_a_commit_whose_reply_is_lost_is_repeated_and_there_once() -> None:
    async with lives() as node, node.client() as client:
        async with client.transaction(XID) as tx:
            await tx.send("out", b"x")
            await tx.prepare()
        core, journal = node.broker._node.core, node.broker._node._journal
        core.transactions.two_phase.commit(XID, next(iter(node.broker._node.sessions.by_number.values())).principal)
        core.pending.run()
        await journal.wait_durable(journal.last)
        await node.again(killed=True)
        await until(lambda: client.statistics().renewed == 1)
        with pytest.raises(RetryTransactionError):
            await tx.commit()
        await tx.commit()
        assert await everything(client, "out") == [b"x"]
        clean(node)


async def test_leaving_the_block_decides_nothing_even_by_an_error() -> None:
    async with lives() as node, node.client() as client, client.consumer("in") as consumer:
        await client.create_queue("out")
        await client.send("in", b"1")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction(XID) as tx:
                delivery = await consumer.receive(timeout=1)
                assert delivery is not None
                await tx.send("out", b"x")
                await tx.prepare()
                for work in (lambda: tx.send("out", b"y"), lambda: tx.ack(delivery), tx.prepare):
                    with pytest.raises(UsageError, match="the transaction is prepared") as caught:
                        await work()
                    assert caught.value.outcome == "not_done"
                with pytest.raises(UsageError, match="the transaction is prepared"):
                    tx.mark_rollback_only()
                raise ZeroDivisionError
        assert await client.recover() == [XID]
        await tx.rollback()
        assert tx.state == "rolled back"
        with pytest.raises(UsageError, match="the transaction is rolled back"):
            await tx.rollback()
        clean(node)
        assert await counted(client, "out") == [(0, 0)]


async def test_with_an_xid_and_not_prepared_it_is_a_local_one() -> None:
    async with lives() as node, node.client() as client:
        async with client.transaction(XID) as tx:
            await tx.send("out", b"1")
        with pytest.raises(ZeroDivisionError):
            async with client.transaction(XID) as tx:
                await tx.send("out", b"2")
                raise ZeroDivisionError
        async with client.transaction(XID) as tx:
            await tx.send("out", b"3")
            await tx.rollback()
        assert await client.recover() == []
        assert await everything(client, "out") == [b"1"]
        clean(node)


async def test_what_is_marked_is_not_prepared() -> None:
    async with lives() as node, node.client() as client:
        async with client.transaction(XID) as tx:
            await tx.send("out", b"1")
            tx.mark_rollback_only()
            with pytest.raises(TransactionRolledBackError, match="rollback-only") as caught:
                await tx.prepare()
            assert caught.value.outcome == "not_done"
        assert tx.state == "rolled back"
        assert await client.recover() == []
        clean(node)


@pytest.mark.parametrize("end", ENDS)
async def test_a_session_that_is_lost_before_the_prepare_takes_the_work_with_it(end: End) -> None:
    async with lives() as node, node.client() as client, client.consumer("in") as consumer:
        await client.send("in", b"1")
        tx = await client.transaction(XID).__aenter__()
        delivery = await consumer.receive(timeout=1)
        assert delivery is not None
        await tx.ack(delivery)
        await client.flush()
        await node.again(end=end)
        await until(lambda: client.statistics().renewed == 1)
        with pytest.raises(TransactionRolledBackError, match="the session was lost") as caught:
            await tx.prepare()
        assert caught.value.outcome == "not_done"
        assert await client.recover() == []
        assert await bodies(consumer) == [b"1"]


async def test_what_a_prepare_is_refused_for_rolls_all_of_it_back() -> None:
    settings = {"closed.#": AddressSettings(auto_create_queues=False)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.send("out", b"1", duplicate_id="d")
        tx = await client.transaction(XID).__aenter__()
        await tx.send("out", b"2", duplicate_id="d")
        with pytest.raises(DuplicateError) as known:
            await tx.prepare()
        assert known.value.outcome == "not_done"
        async with client.transaction(XID) as first:
            await first.send("out", b"3")
            await first.prepare()
        second = await client.transaction(XID).__aenter__()
        await second.send("out", b"4")
        with pytest.raises(UsageError, match="a transaction is prepared as b'order-7'") as used:
            await second.prepare()
        assert used.value.outcome == "not_done"
        assert second.state == "rolled back"
        await client.commit(XID)
        assert await everything(client, "out") == [b"1", b"3"]
        clean(node)


async def test_what_can_not_be_stored_now_is_committed_later() -> None:
    settings = {"full": AddressSettings(full_policy="fail", max_size_messages=1)}
    async with lives(address_settings=settings) as node, node.client() as client:
        async with client.transaction(XID) as tx:
            await tx.send("full", b"2")
            await tx.prepare()
        await client.send("full", b"1")
        for commit in (tx.commit, lambda: client.commit(XID)):
            with pytest.raises(RetryTransactionError, match="'full' has 1 messages") as caught:
                await commit()
            assert caught.value.outcome == "not_done"
        assert await everything(client, "full") == [b"1"]
        await tx.commit()
        assert await everything(client, "full") == [b"2"]
        clean(node)


async def test_a_full_address_refuses_a_prepare() -> None:
    settings = {"full": AddressSettings(full_policy="fail", max_size_messages=1)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await client.send("full", b"1")
        tx = await client.transaction(XID).__aenter__()
        await tx.send("full", b"2")
        with pytest.raises(AddressFullError, match="'full' has 1 messages") as caught:
            await tx.prepare()
        assert caught.value.outcome == "not_done"
        clean(node)


async def test_a_queue_that_is_not_there_refuses_a_prepare() -> None:
    settings = {"closed": AddressSettings(auto_create_queues=False)}
    async with lives(address_settings=settings) as node, node.client() as client:
        tx = await client.transaction(XID).__aenter__()
        await tx.send("closed", b"1")
        with pytest.raises(NotFoundError, match="closed") as caught:
            await tx.prepare()
        assert caught.value.outcome == "not_done"
        clean(node)


async def test_a_queue_with_messages_of_a_prepared_transaction_stays() -> None:
    async with lives() as node, node.client() as client:
        await client.send("in", b"1")
        async with client.consumer("in") as consumer:
            await prepared(client, consumer)
        with pytest.raises(BusyError, match="order-7") as caught:
            await client.delete_queue("in")
        assert caught.value.outcome == "not_done"
        await client.commit(XID)
        await client.delete_queue("in")
        clean(node)


@pytest.mark.parametrize("end", ENDS)
async def test_what_is_to_get_prepared_messages_is_not_deleted_and_gets_them(end: End) -> None:
    async with lives() as node, node.client() as client:
        await client.create_queue("audit", address="news", routing="multicast")
        await client.create_queue("copies", address="copy", routing="multicast")
        await client.create_divert("copying", address="news", forwarding_address="copy")
        async with client.subscribe("news", name="me", durable=True):
            pass
        async with client.transaction(XID) as tx:
            await tx.send("news", b"1")
            await tx.prepare()
        await node.again(killed=end == "killed")
        for attempt in (
            lambda: client.delete_queue("audit"),
            lambda: client.unsubscribe("news", "me"),
            lambda: client.delete_divert("copying"),
            lambda: client.delete_queue("copies"),
        ):
            with pytest.raises(BusyError, match="is to get messages of the transaction b'order-7'") as caught:
                await attempt()
            assert caught.value.outcome == "not_done"
        await client.commit(XID)
        for queue in ("audit", "copies"):
            async with client.consumer(queue) as consumer:
                assert await bodies(consumer) == [b"1"]
        assert await client.unsubscribe("news", "me") == 1
        await client.delete_divert("copying")
        await client.delete_queue("copies")
        clean(node)


async def test_an_open_transaction_is_not_decided_by_its_xid_before_it_is_prepared() -> None:
    """The broker does not know it yet, and would answer "committed" where nothing was."""
    async with lives() as node, node.client() as client:
        async with client.transaction(XID) as tx:
            await tx.send("out", b"1")
            for decide in (client.rollback, client.commit):
                with pytest.raises(UsageError, match="b'order-7' is open in this client and not prepared") as caught:
                    await decide(XID)
                assert caught.value.outcome == "not_done"
            await tx.prepare()
        await client.commit(XID)
        assert await everything(client, "out") == [b"1"]
        async with client.transaction(b"another") as tx:
            await tx.send("out", b"2")
        # It is over: of another one that has this xid the broker is asked.
        await client.rollback(b"another")
        clean(node)


async def test_messages_acknowledged_before_the_prepare_do_not_come_again() -> None:
    """Acknowledgements are at the broker before it is prepared, however late in the loop turn they were made."""
    async with lives() as node, node.client() as client:
        await client.send_many("in", [b"%d" % number for number in range(50)])
        async with client.consumer("in") as consumer, client.transaction(XID) as tx:
            for delivery in await consumer.receive_many(50, timeout=1):
                await tx.ack(delivery)
            await tx.prepare()
            await node.again(killed=True)
            await until(lambda: client.statistics().renewed == 1)
            assert await consumer.receive(timeout=0.2) is None
            with pytest.raises(RetryTransactionError):
                await tx.commit()
            await tx.commit()
            assert await consumer.receive(timeout=0.2) is None
        assert (await client.queue("in")).acknowledged == 50
        clean(node)


async def test_what_is_prepared_is_its_users() -> None:
    permissions = {"#": Permissions(send={"r"}, consume={"r"}, create={"r"}, manage={"boss"}, browse={"r"})}
    roles = {"app": {"r", "boss"}, "other": {"r"}}
    security = Security(users={"app": "x", "other": "y"}, roles=roles, permissions=permissions)
    url = "tcp://127.0.0.1:7001"
    async with lives(security=security, acceptors=[url]) as node:
        app = connect(url, env=node.env, user="app", password=Secret("x"))
        other = connect(url, env=node.env, user="other", password=Secret("y"))
        async with app, other, node.client() as inside:
            async with app.transaction(XID) as tx:
                await tx.send("out", b"1")
                await tx.prepare()
            assert (await app.recover(), await other.recover(), await inside.recover()) == ([XID], [], [XID])
            for user in (app, inside):
                assert [one.user for one in await user.prepared()] == ["app"]
            with pytest.raises(SecurityError, match="lacks the permission 'manage'") as told:
                await other.prepared()
            assert told.value.outcome == "not_done"
            for refused in (other.commit, other.rollback):
                with pytest.raises(SecurityError, match="another user's") as caught:
                    await refused(XID)
                assert caught.value.outcome == "not_done"
            theirs = await other.transaction(XID).__aenter__()
            with pytest.raises(SecurityError, match="another user's"):
                await theirs.prepare()
            await inside.commit(XID)
            await app.commit(XID)
        clean(node)


async def test_operators_see_what_waits_whoever_it_belongs_to() -> None:
    wall = machine(wall=TrioWall())
    async with lives(env=wall) as node, node.client() as client, client.consumer("in") as consumer:
        assert await client.prepared() == []
        await client.send("in", b"1")
        await prepared(client, consumer)
        for number in range(60):
            async with client.transaction(b"%02d" % number + b"x" * 100) as tx:
                await tx.prepare()
        await trio.sleep(2)
        found = await client.prepared()
        assert len(found) == 61
        assert (found[0].xid, found[0].user, found[0].sent, found[0].acked) == (XID, "", 2, 1)
        assert 2 <= found[0].age < 5
        assert [one.age for one in found] == sorted((one.age for one in found), reverse=True)
        assert sorted(one.xid for one in found) == await client.recover()


async def test_any_number_of_kills_around_any_number_of_transactions() -> None:
    """Prepare some, kill, decide what is found, and again: each is there whole or not at all, as was decided."""
    async with lives() as node, node.client(max_retry_interval=0.1) as client:
        await client.create_queue("out")
        wanted: list[bytes] = []
        for life in range(5):
            for number in range(8):
                xid = b"%d/%d" % (life, number)
                async with client.transaction(xid) as tx:
                    await tx.send("out", xid)
                    await tx.send("all", xid)
                    await tx.prepare()
                if number % 4 == 0:
                    await client.commit(xid)
                    wanted.append(xid)
            await node.again(killed=True)
            await until(lambda: client.statistics().renewed == life + 1)  # noqa: B023
            found = await client.recover()
            assert len(found) == 6 * (life + 1) - 4 * life
            for xid in found[:4]:
                commits = xid[-1] % 2 == 0
                await (client.commit(xid) if commits else client.rollback(xid))
                if commits:
                    wanted.append(xid)
        for xid in await client.recover():
            await client.rollback(xid)
        for name in ("out", "all"):
            assert sorted(await everything(client, name)) == sorted(wanted)
        clean(node)
