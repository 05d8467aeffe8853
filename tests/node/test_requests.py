"""Temporary queues, and requests over them."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
import trio.testing

from meshq import (
    CallTimeoutError,
    Client,
    ClosedError,
    FailedOver,
    Message,
    NotFoundError,
    RefusedError,
    SettingsError,
    UnblockedError,
    UsageError,
)
from tests.client._waiting import until
from tests.node.lives import Lives, bodies, lives
from tests.process import ENDS, End


async def answer(client: Client, queue: str = "work", *, task_status: trio.TaskStatus[None]) -> None:
    """Answer every request with its own words, in capitals."""
    async with client.consumer(queue) as consumer:
        task_status.started()
        async for message in consumer:
            with suppress(NotFoundError):
                # Whoever has asked may be gone.
                seen = {"seen": message.properties.get("n")}
                await message.reply(message.body.upper(), durable=False, properties=seen)
            await message.ack()


async def test_a_temporary_queue_is_its_sessions_own_and_goes_with_it() -> None:
    async with lives() as node, node.client() as client:
        async with node.client() as owner:
            name = await owner.create_temporary_queue()
            second = await owner.create_temporary_queue()
            assert name.startswith("$temporary.") and name != second
            found = await client.queue(name)
            assert (found.address, found.durable, found.temporary, found.routing) == (name, False, True, "anycast")
            await client.send(name, b"1")
            for wanted in (name, f"{name}::{name}"):
                with pytest.raises(RefusedError, match="only the session that made it"):
                    async with client.consumer(wanted):
                        raise AssertionError("it was let in")
            async with owner.consumer(name) as consumer:
                assert await bodies(consumer) == [b"1"]
            await client.send(name, b"2")
            await owner.delete_queue(second)
        with pytest.raises(NotFoundError):
            await client.queue(name)
        assert await client.queues() == []
        for target in (name, f"{name}::{name}", f"{name}::other", "$temporary.mine"):
            with pytest.raises(NotFoundError):
                await client.send(target, b"x")
            with pytest.raises(NotFoundError):
                async with client.consumer(target):
                    raise AssertionError("it was made")
        for make in (client.create_queue, client.create_address):
            with pytest.raises(UsageError, match="given by the broker"):
                await make("$temporary.mine")
        statistics = node.broker.statistics()
        assert (statistics.addresses, statistics.queues, statistics.memory_used) == (0, 0, 0)


@pytest.mark.parametrize("end", ENDS)
async def test_nothing_of_a_temporary_queue_survives_a_restart(end: End) -> None:
    async with lives() as node:
        async with node.client() as client:
            await client.create_queue("work")
            await client.send(await client.create_temporary_queue(), b"durable")
            await node.again(end=end)
            assert await client.queues() == ["work"]
        assert node.broker.statistics().addresses == 1


@pytest.mark.slow
async def test_many_tasks_ask_at_a_time_and_each_gets_its_own_answer() -> None:
    async with lives() as node, node.client() as server, node.client() as client, trio.open_nursery() as nursery:
        for _ in range(3):
            await nursery.start(answer, server)
        got = {}

        async def ask(number: int) -> None:
            words = b"word %d" % number
            reply = await client.request("work", words, timeout=5, properties={"n": number})
            got[number] = (reply.body, reply.properties)

        async with trio.open_nursery() as asking:
            # More than the reply queue's window has room for.
            for number in range(1_200):
                asking.start_soon(ask, number)
        assert got == {number: (b"WORD %d" % number, {"seen": number}) for number in range(1_200)}
        assert [name for name in await server.queues() if name != "work"] == [
            name for name in await server.queues() if name.startswith("$temporary.")
        ]
        assert len(await server.queues()) == 2
        assert client.statistics().requests == client.statistics().late_answers == 0
        nursery.cancel_scope.cancel()


async def test_request_and_answer_may_each_be_a_message() -> None:
    async with lives() as node, node.client() as server, node.client() as client, trio.open_nursery() as nursery:

        async def serve() -> None:
            async with server.consumer("work") as consumer:
                async for request in consumer:
                    seen.append((request.json(), request.content_type, request.priority, request.properties))
                    await request.reply(Message.json(["re", *request.json()], properties=request.properties))
                    await request.ack()

        seen: list[object] = []
        nursery.start_soon(serve)
        question = Message.json(["a"], priority=7, properties={"n": 1})
        for _ in range(2):
            # The message stays as it is: it can be asked again.
            answered = await client.request("work", question, timeout=5)
            assert (answered.json(), answered.content_type) == (["re", "a"], question.content_type)
            assert answered.properties == {"n": 1}
        assert seen == [(["a"], question.content_type, 7, {"n": 1})] * 2
        assert client.statistics().late_answers == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["correlation_id", "reply_to"])
async def test_a_message_that_is_requested_leaves_its_routing_to_the_request(name: str) -> None:
    async with lives() as node, node.client() as client:
        await client.create_queue("work")
        with pytest.raises(SettingsError, match=f"{name}='mine' is not allowed; allowed: left out of the Message of a"):
            await client.request("work", Message(b"x", **{name: "mine"}), timeout=5)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="priority=9 is not allowed; allowed: left out beside a Message"):
            await client.request("work", Message(b"x"), priority=9, timeout=5)
        assert (await client.queue("work")).ready == 0


async def test_an_answer_keeps_the_correlation_id_that_it_has() -> None:
    async with lives() as node, node.client() as client:
        await client.send("work", b"x", correlation_id="asked", reply_to="answers")
        async with client.consumer("work") as consumer, client.consumer("answers") as answers:
            request = await consumer.receive(timeout=1)
            assert request is not None
            await request.reply(Message(b"1"))
            await request.reply(Message(b"2", correlation_id="mine"))
            await request.reply(b"3", correlation_id="mine")
            got = [await answers.receive(timeout=1) for _ in range(3)]
            assert [one.correlation_id for one in got if one is not None] == ["asked", "mine", "mine"]
            with pytest.raises(SettingsError, match="correlation_id='mine' is not allowed; allowed: left out beside"):
                await request.reply(Message(b"4"), correlation_id="mine")
            await request.ack()


async def test_an_answer_that_comes_too_late_is_dropped_and_counted() -> None:
    async with lives() as node, node.client() as server, node.client() as client:
        await server.create_queue("work")
        with pytest.raises(CallTimeoutError, match=r"not answered in 0\.5 s") as raised:
            await client.request("work", b"x", timeout=0.5)
        assert raised.value.outcome == "unknown"
        async with server.consumer("work") as consumer:
            request = await consumer.receive(timeout=1)
            assert request is not None
            await request.reply(b"late")
            await request.reply(b"and again")
            await request.ack()
            assert client.statistics().late_answers == 2
        async with trio.open_nursery() as nursery:
            await nursery.start(answer, server)
            assert (await client.request("work", b"y", timeout=5)).body == b"Y"
            nursery.cancel_scope.cancel()


async def test_whoever_answers_a_client_that_is_gone_is_told_so() -> None:
    async with lives() as node, node.client() as server, server.consumer("work") as consumer:
        async with node.client() as client, trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(ClosedError) as raised:
                    await client.request("work", b"x", timeout=60)
                assert raised.value.outcome == "unknown"

            nursery.start_soon(ask)
            request = await consumer.receive(timeout=1)
            assert request is not None
            await client.close()
        with pytest.raises(NotFoundError, match="temporary queue"):
            await request.reply(b"second")
        await server.send("work", b"no answer wanted")
        plain = await consumer.receive(timeout=1)
        assert plain is not None
        with pytest.raises(UsageError):
            await plain.reply(b"x")


@pytest.mark.parametrize("wrong", [0, -1, None, "1", float("nan"), True])
async def test_a_request_has_a_timeout_and_other_settings_are_checked(wrong: object) -> None:
    async with lives() as node, node.client() as client:
        with pytest.raises(SettingsError, match="timeout"):
            await client.request("work", b"x", timeout=wrong)  # type: ignore[arg-type]
        with pytest.raises(SettingsError):
            await client.request("work", b"x", timeout=1, properties={"a": []})  # type: ignore[dict-item]
        assert client.statistics().requests == 0


async def lose(node: Lives, client: Client) -> None:
    """The broker is killed and started again, and the client is back."""
    events = client.events()
    await node.again(killed=True)
    with trio.fail_after(60):
        async for event in events:
            if isinstance(event, FailedOver):
                return


async def test_after_a_failover_requests_under_way_are_unknown_and_the_next_ones_are_answered() -> None:
    async with lives() as node, node.client() as server, node.client() as client, trio.open_nursery() as nursery:
        await server.create_queue("work")
        errors = []

        async def ask() -> None:
            with pytest.raises(UnblockedError) as raised:
                await client.request("work", b"lost", timeout=60)
            errors.append(raised.value.outcome)

        async with trio.open_nursery() as asking:
            for _ in range(3):
                asking.start_soon(ask)
            # The queue for the answers is there when its number is on the disk.
            await until(lambda: client.statistics().requests == 3)
            await lose(node, client)
        assert errors == ["unknown"] * 3
        await nursery.start(answer, server)
        with trio.fail_after(60):
            assert (await client.request("work", b"found", timeout=5)).body == b"FOUND"
        assert [name.startswith("$temporary.") for name in await server.queues()] == [True, False]
        nursery.cancel_scope.cancel()


async def test_when_the_reply_queue_is_deleted_the_next_request_makes_another() -> None:
    async with lives() as node, node.client() as server, node.client() as client, trio.open_nursery() as nursery:
        await nursery.start(answer, server)
        assert (await client.request("work", b"a", timeout=5)).body == b"A"
        (name,) = [name for name in await server.queues() if name != "work"]
        await server.delete_queue(name)
        assert (await client.request("work", b"b", timeout=5)).body == b"B"
        nursery.cancel_scope.cancel()
