"""What becomes of two-phase calls when a session, a connection or a client is lost, and the codes that tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq import Client, Disconnected, SettingsError
from meshq.client import ConnectionEvent, EventStream, connect
from meshq.errors import (
    CallTimeoutError,
    ClosedError,
    ConnectionBrokenError,
    MeshqError,
    RetryTransactionError,
    TransactionRolledBackError,
    UnblockedError,
    UsageError,
)
from meshq.wire import Call, FrameType, header_of
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, cut_off, until, until_attached

TCP = "tcp://127.0.0.1:1"
XID = b"order-7"
Work = Callable[[Client], Awaitable[object]]


async def prepared(client: Client) -> object:
    """Prepare a transaction with one message."""
    tx = await client.transaction(XID).__aenter__()
    await tx.send("a", b"1")
    await tx.prepare()
    return tx


async def rolled_back_once_prepared(client: Client) -> None:
    tx = await client.transaction(XID).__aenter__()
    tx._end("prepare")
    assert tx._prepared is not None
    tx._prepared._node_id = client.statistics().node_id
    await tx.rollback()


async def committed_once_prepared(client: Client) -> None:
    tx = await client.transaction(XID).__aenter__()
    statistics = client.statistics()
    tx._end("prepare")
    assert tx._prepared is not None
    tx._prepared._epoch, tx._prepared._node_id = statistics.epoch, statistics.node_id
    await tx.commit()


#: Each call, and what it raises when it is cut off by a lost session.
CALLS: dict[str, tuple[Work, type[MeshqError]]] = {
    "prepare": (prepared, TransactionRolledBackError),
    "commit_prepared": (lambda client: client.commit(XID), RetryTransactionError),
    "roll_back_prepared": (lambda client: client.rollback(XID), UnblockedError),
    "recover": (lambda client: client.recover(), UnblockedError),
    "Transaction.commit": (committed_once_prepared, RetryTransactionError),
    "Transaction.rollback": (rolled_back_once_prepared, UnblockedError),
}
ENDS: dict[str, type[MeshqError]] = {
    "late": CallTimeoutError,
    "given up": ConnectionBrokenError,
    "closed": ClosedError,
}


def asked(node: FakeNode) -> list[str]:
    """The calls that the node has heard."""
    return [header_of(frame, Call).operation for frame in node.heard if frame.type is FrameType.CALL]


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cut_off_is_unknown_and_says_what_to_do(node: FakeNode, name: str) -> None:
    node.answer_values["recover"] = {"more": False}
    env, _ = fake_env(node)
    work, kind = CALLS[name]
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.answers = False
        result = Result()
        nursery.start_soon(result.of, work, client)
        await wait_all_tasks_blocked()
        node.answers = True
        node.restart()
        await until(lambda: result.done)
        assert type(result.error) is kind
        assert result.error.outcome == "unknown"
        # And again.
        await work(client)


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("name", CALLS)
async def test_a_call_whose_answer_does_not_come_is_unknown(node: FakeNode, name: str, how: str) -> None:
    env, network = fake_env(node)
    work, _ = CALLS[name]
    result = Result()
    try:
        async with (
            connect(TCP, env=env, call_timeout=2, reconnect_attempts=1) as client,
            trio.open_nursery() as nursery,
        ):
            node.answers = False
            nursery.start_soon(result.of, work, client)
            await wait_all_tasks_blocked()
            if how == "late":
                await trio.sleep(3)
            elif how == "given up":
                network.nodes.clear()
                node.cut()
            else:
                await client.close()
            await until(lambda: result.done)
    except ConnectionBrokenError:
        assert how == "given up"
    assert type(result.error) is ENDS[how]
    assert result.error.outcome == "unknown"


@pytest.mark.parametrize("how", ["given up", "closed"])
async def test_on_a_client_that_is_of_no_further_use_nothing_is_decided(node: FakeNode, how: str) -> None:
    env, network = fake_env(node)
    try:
        async with connect(TCP, env=env, reconnect_attempts=1) as client:
            tx = await client.transaction(XID).__aenter__()
            await tx.prepare()
            another = await client.transaction(XID).__aenter__()
            if how == "given up":
                network.nodes.clear()
                node.cut()
                await trio.sleep(1_000)
    except ConnectionBrokenError:
        assert how == "given up"
    for work in (
        tx.commit,
        tx.rollback,
        another.prepare,
        lambda: client.commit(XID),
        lambda: client.rollback(XID),
        client.recover,
    ):
        with pytest.raises(ENDS[how]) as caught:
            await work()
        assert caught.value.outcome == "not_done"


async def test_a_call_that_was_not_sent_waits_for_the_next_session(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        await cut_off(client, node, network)
        result = Result()
        nursery.start_soon(result.of, client.commit, XID)
        await wait_all_tasks_blocked()
        network.nodes["127.0.0.1", 1] = node
        await until(lambda: result.done)
        assert result.error is None
    assert asked(node) == ["commit_prepared"]


async def test_who_commits_after_the_session_was_lost_is_told_so_once(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        async with client.transaction(XID) as tx:
            await tx.prepare()
            node.restart()
            await until_attached(client, 2)
            with pytest.raises(RetryTransactionError, match="commit it again") as caught:
                await tx.commit()
            assert caught.value.outcome == "not_done"
            assert tx.state == "prepared"
            assert "commit_prepared" not in asked(node)
            await tx.commit()
        assert tx.state == "committed"
        with pytest.raises(UsageError, match="the transaction is committed"):
            await tx.commit()
    assert asked(node)[-1] == "commit_prepared"


async def test_another_node_is_not_asked_to_decide(node: FakeNode) -> None:
    """It knows nothing of the transaction, and would say that it is committed."""
    env, _ = fake_env(node)
    node.answer_values["recover"] = {"more": False}
    async with connect(TCP, env=env) as client:
        tx = await client.transaction(XID).__aenter__()
        await tx.prepare()
        first, node.node_id = node.node_id, b"another" + bytes(9)
        node.restart()
        await until_attached(client, 2)
        for work in (tx.commit, tx.commit, tx.rollback):
            with pytest.raises(RetryTransactionError) as caught:
                await work()
            assert caught.value.outcome == "not_done"
        assert first.hex() in str(caught.value)
        # The first commit says that the session was lost.
        assert asked(node) == ["prepare", "recover", "recover"]
        node.node_id = first
        node.restart()
        await until_attached(client, 3)
        with pytest.raises(RetryTransactionError):
            await tx.commit()
        await tx.commit()
    assert asked(node)[-1] == "commit_prepared"


@pytest.mark.parametrize("operation", ["commit", "rollback"])
async def test_the_client_that_has_prepared_it_asks_no_other_node(node: FakeNode, operation: str) -> None:
    env, _ = fake_env(node)
    node.answer_values["recover"] = {"xid0": b"somebody else's", "more": False}
    async with connect(TCP, env=env) as client:
        await prepared(client)
        first, node.node_id = node.node_id, b"another" + bytes(9)
        node.restart()
        await until_attached(client, 2)
        heard = asked(node)
        for work in (client.commit, client.rollback):
            with pytest.raises(RetryTransactionError, match="is not known here") as caught:
                await work(XID)
            assert caught.value.outcome == "not_done" and first.hex() in str(caught.value)
        # Others are nobody's business.
        await client.commit(b"somebody else's")
        assert asked(node) == [*heard, "recover", "recover", "commit_prepared"]
        node.node_id = first
        node.restart()
        await until_attached(client, 3)
        await getattr(client, operation)(XID)
        assert asked(node)[-1] == {"commit": "commit_prepared", "rollback": "roll_back_prepared"}[operation]


@pytest.mark.parametrize("operation", ["commit", "rollback"])
@pytest.mark.parametrize("own", [True, False], ids=["of the transaction", "of the client"])
async def test_what_another_node_lists_as_prepared_is_decided_there_also_when_that_is_repeated(
    node: FakeNode, operation: str, own: bool
) -> None:
    """The first node has left for good and handed it over."""
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        tx = await client.transaction(XID).__aenter__()
        await tx.prepare()
        node.node_id = b"another" + bytes(9)
        node.restart()
        await until_attached(client, 2)
        heard = len(asked(node))
        node.answer_values["recover"] = {"xid0": b"more", "xid1": XID, "more": True}
        decide = getattr(tx, operation) if own else lambda: getattr(client, operation)(XID)
        if own and operation == "commit":
            with pytest.raises(RetryTransactionError, match="the session was lost"):
                await decide()
        await decide()
        # Decided, it is listed nowhere, and this node knows of it.
        node.answer_values["recover"] = {"more": False}
        await getattr(client, operation)(XID)
    decision = {"commit": "commit_prepared", "rollback": "roll_back_prepared"}[operation]
    assert asked(node)[heard:] == ["recover", decision, decision]


async def test_a_look_for_a_prepared_transaction_that_is_cut_off_is_not_done(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        await prepared(client)
        node.node_id = b"another" + bytes(9)
        node.restart()
        await until_attached(client, 2)
        node.answers = False
        result = Result()
        nursery.start_soon(result.of, client.commit, XID)
        await wait_all_tasks_blocked()
        assert asked(node)[-1] == "recover"
        await cut_off(client, node, network)
        network.nodes["127.0.0.1", 1] = node
        await until(lambda: result.done)
        assert isinstance(result.error, RetryTransactionError) and result.error.outcome == "not_done"
    assert "commit_prepared" not in asked(node)


async def test_what_is_prepared_at_another_node_than_it_began_at_is_decided_there(node: FakeNode) -> None:
    """Without any work it goes to whatever node the client is connected to when it can be sent."""
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        tx = await client.transaction(XID).__aenter__()
        await cut_off(client, node, network)
        result = Result()
        nursery.start_soon(result.of, tx.prepare)
        await wait_all_tasks_blocked()
        node.node_id = b"another" + bytes(9)
        network.nodes["127.0.0.1", 1] = node
        await until(lambda: result.done)
        assert result.error is None and asked(node) == ["prepare"]
        await client.commit(XID)
        await tx.commit()
    assert asked(node) == ["prepare", "commit_prepared", "commit_prepared"]


@pytest.mark.parametrize("same", [True, False])
async def test_a_decision_that_waits_for_a_connection_is_sent_to_its_node_only(node: FakeNode, same: bool) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        await prepared(client)
        await cut_off(client, node, network)
        result = Result()
        nursery.start_soon(result.of, client.rollback, XID)
        await wait_all_tasks_blocked()
        assert not result.done
        if not same:
            node.node_id = b"another" + bytes(9)
        network.nodes["127.0.0.1", 1] = node
        await until(lambda: result.done)
        assert (result.error is None) is same and ("roll_back_prepared" in asked(node)) is same
        assert same or isinstance(result.error, RetryTransactionError)


async def test_a_commit_that_was_cut_off_goes_through_when_it_is_repeated(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        tx = await client.transaction(XID).__aenter__()
        await tx.prepare()
        node.answers = False
        result = Result()
        nursery.start_soon(result.of, tx.commit)
        await wait_all_tasks_blocked()
        node.answers = True
        node.restart()
        await until(lambda: result.done)
        assert type(result.error) is RetryTransactionError
        assert tx.state == "prepared"
        await tx.commit()
        assert tx.state == "committed"


async def test_a_transaction_that_somebody_has_rolled_back_is_over(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        tx = await client.transaction(XID).__aenter__()
        await tx.prepare()
        node.refuse_call = lambda operation: "rolled_back"
        with pytest.raises(TransactionRolledBackError) as caught:
            await tx.commit()
        assert caught.value.outcome == "not_done"
        assert tx.state == "rolled back"


@pytest.mark.parametrize("xid", ["text", b"", b"x" * 129, 7, bytearray(b"x")])
async def test_what_is_no_xid_is_refused_by_name(node: FakeNode, xid: bytes) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        for work in (client.commit, client.rollback):
            with pytest.raises(SettingsError, match=r"xid.*1 to 128 bytes"):
                await work(xid)
        with pytest.raises(SettingsError, match=r"xid.*1 to 128 bytes"):
            client.transaction(xid)
    assert asked(node) == []


async def test_without_an_xid_nothing_is_prepared(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.transaction() as tx:
        with pytest.raises(UsageError, match="is made with its id") as caught:
            await tx.prepare()
        assert caught.value.outcome == "not_done"
        assert tx.state == "active"


async def test_each_of_the_five_codes_comes_from_its_own_case(node: FakeNode) -> None:
    """A cut call, a cut commit or prepare, a cut commit behind a prepare, a new session, a connection given up."""
    env, network = fake_env(node)
    codes: list[str] = []
    events: list[ConnectionEvent] = []

    async def listen(stream: EventStream[ConnectionEvent]) -> None:
        async for event in stream:
            events.append(event)

    async def cut(work: Callable[[], Awaitable[object]]) -> None:
        """The node forgets the session while it waits for its answer."""
        node.answers = False
        result = Result()
        async with trio.open_nursery() as inner:
            inner.start_soon(result.of, work)
            await wait_all_tasks_blocked()
            assert not result.done
            node.answers = True
            node.restart()
            await until(lambda: result.done)
        assert isinstance(result.error, MeshqError)
        assert result.error.outcome == "unknown"
        codes.append(result.error.code)

    async with trio.open_nursery() as nursery:
        with pytest.raises(ConnectionBrokenError):
            async with connect(TCP, env=env, reconnect_attempts=1) as client:
                nursery.start_soon(listen, client.events())
                await cut(lambda: client.queue("q"))
                local = await client.transaction().__aenter__()
                await local.send("a", b"1")
                await cut(local.commit)
                another = await client.transaction(XID).__aenter__()
                await another.send("a", b"1")
                await cut(another.prepare)
                tx = await client.transaction(XID).__aenter__()
                await tx.prepare()
                await cut(tx.commit)
                assert codes == [
                    "unblocked",
                    "transaction_rolled_back",
                    "transaction_rolled_back",
                    "retry_transaction",
                ]
                assert [event.code for event in events] == ["disconnect", "failover"] * 4
                # None of these was the end of it.
                assert not any(isinstance(event, Disconnected) and event.final for event in events)
                network.nodes.clear()
                node.cut()
                await trio.sleep(1_000)
    last = events[-1]
    assert isinstance(last, Disconnected)
    assert (last.code, last.final) == ("disconnect", True)
    assert [event.code for event in events].count("failover") == 4
