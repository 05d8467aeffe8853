"""What a lost link does to a transaction: the rows of the public face, against a node that is cut and restarted."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from meshq import limits
from meshq.client import Client, connect
from meshq.errors import (
    BusyError,
    CallTimeoutError,
    NotFoundError,
    SettingsError,
    StaleDeliveryError,
    TransactionRolledBackError,
)
from meshq.wire import Call, FrameType, Transact, header_of
from tests.client._server import FakeNode, fake_env
from tests.client._waiting import Result, cut_off, until, until_attached

TCP = "tcp://127.0.0.1:1"


def calls(node: FakeNode) -> list[str]:
    return [header_of(frame, Call).operation for frame in node.heard if frame.type is FrameType.CALL]


def runs(node: FakeNode) -> list[tuple[str, int, int]]:
    """Address, messages, and messages before."""
    heard = [frame for frame in node.heard if frame.type is FrameType.TRANSACT]
    return [(header_of(frame, Transact).address, frame.count, header_of(frame, Transact).sent) for frame in heard]


async def one_send(client: Client) -> None:
    async with client.transaction() as tx:
        await tx.send("a", b"x")


async def test_messages_of_one_address_gather_and_a_commit_says_how_many_there_were(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        async with client.transaction() as tx:
            for number in range(300):
                await tx.send("a" if number < 280 else "b", b"%d" % number)
        assert sum(count for _, count, _ in runs(node)) == 300
        assert len(runs(node)) < 12
        before = 0
        for address, count, sent in runs(node):
            assert sent == before
            assert address == ("a" if sent < 280 else "b")
            before += count
    commit = next(header_of(frame, Call) for frame in node.heard if frame.type is FrameType.CALL)
    assert commit.named == {"transaction": 1, "sent": 300, "acked": 0}


@pytest.mark.parametrize("address", [None, "", 7, "a::"])
async def test_what_is_no_address_is_refused_and_neither_transaction_nor_client_suffers(
    node: FakeNode, address: object
) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client:
        async with client.transaction() as tx:
            # Refused before there is an address, and after.
            for _ in range(2):
                with pytest.raises(SettingsError, match="address=") as caught:
                    await tx.send(address, b"x")  # type: ignore[arg-type]
                assert caught.value.outcome == "not_done"
                await tx.send("a", b"x")
        assert [count for _, count, _ in runs(node)] == [2]


async def test_of_the_deliveries_of_several_consumers_all_that_are_not_stale_are_acknowledged(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("a") as one, client.consumer("b") as other:
        node.deliver("a", [b"1", b"2"])
        old = await one.receive_many(2)
        node.restart()
        await until_attached(client, 2)
        await client.flush()
        node.deliver("a", [b"1"])
        node.deliver("b", [b"3"])
        (again,), (fresh,) = await one.receive_many(1), await other.receive_many(1)
        async with client.transaction() as tx:
            with pytest.raises(StaleDeliveryError) as caught:
                await tx.ack(*old, fresh, again)
            assert [None if error is None else error.outcome for error in caught.value.results] == [
                "not_done",
                "not_done",
                None,
                None,
            ]
            with pytest.raises(StaleDeliveryError):
                await tx.ack(old[0])
        commit = next(
            header_of(frame, Call)
            for frame in node.heard
            if frame.type is FrameType.CALL and "acked" in header_of(frame, Call).named
        )
        assert commit.named["acked"] == 2


async def test_a_commit_in_flight_goes_on_with_its_session(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.answers = False
        result = Result()
        nursery.start_soon(result.of, one_send, client)
        await wait_all_tasks_blocked()
        node.cut()
        await until_attached(client, 2)
        node.answers = True
        node.release()
        await until(lambda: result.done)
        assert result.error is None
    assert calls(node) == ["commit"]


async def test_a_commit_in_flight_is_unknown_when_its_session_is_lost(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.answers = False
        result = Result()
        nursery.start_soon(result.of, one_send, client)
        await wait_all_tasks_blocked()
        node.answers = True
        node.restart()
        await until(lambda: result.done)
        assert type(result.error) is TransactionRolledBackError
        assert result.error.outcome == "unknown"
        await one_send(client)


async def test_a_commit_that_was_not_sent_is_not_done_when_the_session_is_lost(node: FakeNode) -> None:
    env, network = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        tx = await client.transaction().__aenter__()
        await tx.send("a", b"x")
        await cut_off(client, node, network)
        result = Result()
        nursery.start_soon(result.of, tx.commit)
        await wait_all_tasks_blocked()
        network.nodes["127.0.0.1", 1] = node
        await until(lambda: result.done)
        assert type(result.error) is TransactionRolledBackError
        assert result.error.outcome == "not_done"
        assert "commit" not in calls(node)
        await client.flush()


async def test_a_commit_that_is_not_answered_in_time_is_rolled_back_behind_it(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env, call_timeout=1) as client:
        node.answers = False
        with pytest.raises(CallTimeoutError) as caught:
            await one_send(client)
        assert caught.value.outcome == "unknown"
        node.answers = True
        node.release()
    assert calls(node) == ["commit", "roll_back"]


async def test_a_send_waits_while_too_many_runs_are_on_their_way(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        node.answers = False
        sent = 0

        async def send() -> None:
            nonlocal sent
            async with client.transaction() as tx:
                for number in range(40):
                    await tx.send(f"a{number}", b"x")
                    sent += 1

        nursery.start_soon(send)
        await wait_all_tasks_blocked()
        assert 16 <= sent < 40
        node.answers = True
        node.release()
        await until(lambda: sent == 40)


async def test_two_tasks_on_one_transaction_are_told_so(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, trio.open_nursery() as nursery:
        async with client.transaction() as tx:
            node.answers = False
            result = Result()
            nursery.start_soon(result.of, tx.commit)
            await wait_all_tasks_blocked()
            with pytest.raises(BusyError):
                await tx.send("a", b"x")
            node.answers = True
            node.release()
            await until(lambda: result.done)
        assert result.error is None


async def test_a_refused_send_ends_the_transaction_at_the_next_call(node: FakeNode) -> None:
    env, _ = fake_env(node)
    node.refuse_call = lambda operation: "not_found" if operation == "transact" else None
    async with connect(TCP, env=env) as client:
        with pytest.raises(NotFoundError):
            async with client.transaction() as tx:
                await tx.send("a", b"x")
                await client.flush()
                assert tx.rollback_only
                await tx.send("a", b"y")


@pytest.mark.parametrize("refused", ["transact", "commit"])
async def test_a_node_that_is_going_away_rolls_back_and_takes_the_work_when_it_is_repeated(
    node: FakeNode, refused: str
) -> None:
    env, _ = fake_env(node)
    node.refuse_call = lambda operation: "not_active" if operation == refused else None
    async with connect(TCP, env=env) as client:
        with pytest.raises(TransactionRolledBackError) as caught:
            async with client.transaction() as tx:
                await tx.send("a", b"x")
                await client.flush()
        assert caught.value.outcome == "not_done"
        node.refuse_call = lambda operation: None
        await one_send(client)


async def test_acknowledgements_go_before_the_commit_even_if_the_loop_had_no_turn(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.consumer("q") as consumer:
        node.deliver("q", [b"1", b"2"])
        first, second = await consumer.receive(), await consumer.receive()
        assert first is not None
        assert second is not None
        async with client.transaction() as tx:
            await tx.ack(first, second)
    assert node.settled == [("ack in a transaction", 1, 2)]
    kinds = [frame.type for frame in node.heard]
    assert kinds.index(FrameType.SETTLE) < kinds.index(FrameType.CALL)


async def test_every_call_passes_through_the_scheduler_now_and_then(node: FakeNode) -> None:
    env, _ = fake_env(node)
    async with connect(TCP, env=env) as client, client.transaction() as tx:
        await tx.send("a", b"x")
        with trio.CancelScope() as scope:
            scope.cancel()
            for _ in range(limits.CHECKPOINT_MESSAGES + 1):
                await tx.send("a", b"x")
        assert scope.cancelled_caught
        await tx.rollback()
    assert calls(node) == ["roll_back"]
