"""Stages and batches, from a program to the disk and back, across lost sessions and restarts."""

from __future__ import annotations

import random

import attrs
import pytest
import trio

from meshq import (
    AddressFullError,
    AddressSettings,
    Client,
    JournalSettings,
    Permissions,
    Secret,
    Security,
    SecurityError,
    TransactionRolledBackError,
    UsageError,
    connect,
    limits,
)
from meshq.testing import SimDisk
from tests.node.lives import lives, machine
from tests.node.test_transactions import everything
from tests.process import ENDS, End


async def staged(client: Client, *sent: bytes, batch: int = 0, partition: int = 0, attempt: int = 0) -> int:
    """A prepared stage of the sink ``s`` that sends to ``out``; returns its number."""
    async with client.stage("s", batch, partition=partition, attempt=attempt) as part:
        for body in sent:
            await part.send("out", body)
    assert part.stage_id is not None
    return part.stage_id


async def settled(client: Client) -> None:
    """Wait until no stage is on its way."""
    with trio.fail_after(1_000):
        while await client.stages():  # noqa: ASYNC110 - the node tells no event of it
            await trio.sleep(0.05)


@pytest.mark.parametrize("end", [None, *ENDS])
async def test_another_client_in_another_life_commits_and_commits_again(end: End | None) -> None:
    async with lives() as node:
        async with node.client() as client:
            named = [await staged(client, b"b", partition=1), await staged(client, b"a")]
            await staged(client, b"loser", attempt=1)
        if end is not None:
            await node.again(end=end)
        async with node.client() as other:
            assert not (await other.commit_batch("s", 0, named)).already
            if end is not None:
                await node.again(end=end)
            assert (await other.commit_batch("s", 0, named)).already
            await settled(other)
            assert await everything(other, "out") == [b"a", b"b"]
            assert [name for name in await other.queues() if name.startswith("$meshq.stage")] == []


async def test_a_stage_whose_session_is_lost_says_so_and_another_attempt_is_taken() -> None:
    async with lives() as node, node.client() as client:
        async with client.stage("s", 0) as part:
            await part.send("out", b"lost")
            await client.flush()
            await node.again(killed=True)
            with pytest.raises(TransactionRolledBackError) as caught:
                await part.prepare()
            assert caught.value.outcome == "not_done" and part.state == "rolled back"
        stage = await staged(client, b"again", attempt=1)
        await client.commit_batch("s", 0, [stage])
        await settled(client)
        assert await everything(client, "out") == [b"again"]


async def test_a_part_larger_than_a_batch_of_the_journal_is_placed_with_little_memory() -> None:
    sent = [bytes([number]) * limits.MIB for number in range(limits.BATCH_BYTES_MAX // limits.MIB + 4)]
    async with lives(memory_limit=12 * limits.MIB) as node, node.client() as client:
        stage = await staged(client, *sent)
        assert node.broker._node.core.memory.used_bytes <= 12 * limits.MIB
        await client.commit_batch("s", 0, [stage])
        await settled(client)
        assert node.broker._node.core.memory.used_bytes <= 12 * limits.MIB
        async with client.consumer("out", window_bytes=2 * limits.MIB) as consumer:
            for body in sent:
                delivery = await consumer.receive(timeout=5)
                assert delivery is not None and delivery.body == body
                await delivery.ack()


async def test_a_commit_waits_for_the_batch_before_it_to_reach_its_addresses() -> None:
    settings = {"out": AddressSettings(full_policy="block", max_size_messages=1)}
    async with lives(address_settings=settings) as node, node.client() as client, node.client() as other:
        await client.create_queue("out")
        first = [await staged(client, b"a"), await staged(client, b"b", partition=1)]
        second = [await staged(client, b"c", batch=1)]
        await client.commit_batch("s", 0, first)
        with trio.move_on_after(3) as waited:
            await client.commit_batch("s", 1, second)
        with pytest.raises(UsageError, match="still being placed"):
            await client.delete_sink("s")
        assert waited.cancelled_caught and [sink.batch for sink in await client.sinks()] == [0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.commit_batch, "s", 1, second)
            async with other.consumer("out") as consumer:
                for body in (b"a", b"b", b"c"):
                    delivery = await consumer.receive(timeout=30)
                    assert delivery is not None and delivery.body == body
                    await delivery.ack()
        assert [sink.batch for sink in await client.sinks()] == [1]


async def test_a_sink_is_its_users() -> None:
    permissions = {"#": Permissions(send={"r"}, consume={"r"}, create={"r"}, manage={"boss"}, browse={"r"})}
    roles = {"app": {"r", "boss"}, "other": {"r"}, "third": {"r"}}
    security = Security(users={"app": "x", "other": "y", "third": "z"}, roles=roles, permissions=permissions)
    url = "tcp://127.0.0.1:7001"
    async with lives(security=security, acceptors=[url]) as node:
        app = connect(url, env=node.env, user="app", password=Secret("x"))
        other = connect(url, env=node.env, user="other", password=Secret("y"))
        third = connect(url, env=node.env, user="third", password=Secret("z"))
        async with app, other, third, node.client() as inside:
            stage = await staged(other, b"1")
            for call in (
                lambda: third.commit_batch("s", 0, [stage]),
                lambda: third.abandon_batch("s", 0),
                lambda: third.stage("s", 0, attempt=1).__aenter__(),
                lambda: other.delete_sink("s"),
            ):
                with pytest.raises(SecurityError) as caught:
                    await call()
                assert caught.value.outcome == "not_done"
            assert [len(await user.stages()) for user in (app, other, third, inside)] == [1, 1, 0, 1]
            await app.commit_batch("s", 0, [stage])
            await settled(inside)
            assert [sink.user for sink in await other.sinks()] == ["other"] and await third.sinks() == []
            await app.delete_sink("s")
            assert await everything(inside, "out") == [b"1"]


async def test_where_a_user_may_not_send_nothing_is_staged() -> None:
    permissions = {"open.#": Permissions(send={"r"}, create={"r"})}
    security = Security(users={"app": "x"}, roles={"app": {"r"}}, permissions=permissions)
    url = "tcp://127.0.0.1:7001"
    async with lives(security=security, acceptors=[url]) as node:
        app = connect(url, env=node.env, user="app", password=Secret("x"))
        async with app:
            with pytest.raises(SecurityError, match="shut"):
                async with app.stage("s", 0) as part:
                    await part.send("open.q", b"1")
                    await part.send("shut", b"2")
            assert part.state == "rolled back" and await app.stages() == []


async def test_a_full_disk_refuses_a_new_sink_and_lets_one_that_is_known_decide() -> None:
    env = attrs.evolve(machine(), disk=SimDisk(random.Random(0), capacity_bytes=2_000_000).mount())
    journal = JournalSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)
    async with lives(env=env, journal=journal) as life, life.client() as client:
        await client.commit_batch("s", 0, [])
        stage = await staged(client, b"a", batch=1)
        with pytest.raises(AddressFullError):
            while True:
                await client.send("filling", bytes(10_000))
        with pytest.raises(AddressFullError) as caught:
            await client.commit_batch("new", 0, [])
        assert caught.value.outcome == "not_done"
        assert (await client.commit_batch("s", 1, [stage])).messages == 1
        await client.purge_queue("filling")
        await settled(client)
        assert await everything(client, "out") == [b"a"]


async def test_a_stage_whose_opening_was_cancelled_is_not_left_at_the_node() -> None:
    async with lives() as node, node.client() as client:
        entered = []
        with trio.move_on_after(1e-6) as scope:
            async with client.stage("s", 0):
                entered.append("it was cancelled before")
        assert scope.cancelled_caught and not entered
        stage = await staged(client, b"a")
        assert [one.stage for one in await client.stages()] == [stage]
        await client.commit_batch("s", 0, [stage])
        await settled(client)
        assert await everything(client, "out") == [b"a"]


async def test_a_stage_of_messages_that_no_journal_has_is_slowed_down_to_the_memory_of_the_node() -> None:
    limit, used = 12 * limits.MIB, []
    async with lives(memory_limit=limit) as node, node.client() as client:
        broker = node.broker._node
        assert broker is not None
        async with client.stage("s", 0) as part:
            for number in range(64):
                await part.send("out", bytes([number]) * limits.MIB, durable=False)
                used.append(broker.core.memory.used_bytes)
        used.append(broker.core.memory.used_bytes)
        assert limit // 2 < max(used) <= limit + 2 * limits.MIB
        stage = part.stage_id
        assert stage is not None and (await client.commit_batch("s", 0, [stage])).messages == 64
        await settled(client)
        async with client.consumer("out", window_bytes=2 * limits.MIB) as consumer:
            for number in range(64):
                delivery = await consumer.receive(timeout=5)
                assert delivery is not None and delivery.body[0] == number
                await delivery.ack()
