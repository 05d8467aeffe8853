"""Large messages between nodes: what is small goes in one frame, what is larger block by block."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from meshq import AddressSettings, DamagedError, limits
from meshq.broker.bodies._bodies import Got
from meshq.broker.bodies._body import Body
from meshq.broker.bodies._file_bodies import FileBodies
from meshq.broker.session._session import ServerSession
from meshq.client.session._link_upload_machine import LinkUploadMachine
from meshq.wire import Frame, FrameType
from tests.cluster.kit import Mesh, mesh, until

BLOCK = limits.LARGE_BLOCK_BYTES
BODY = random.Random(3).randbytes(2 * BLOCK + 9)


async def create(nodes: Mesh) -> None:
    for name in "ab":
        async with nodes.client(name) as client:
            await client.create_queue("q")
    await nodes.joined()


def bodies_of(nodes: Mesh, name: str) -> list[str]:
    return nodes.disks[name].names(f"/data/{name}/large")


async def test_large_and_small_messages_cross_a_link_in_their_order() -> None:
    sent = [BODY[: BLOCK + number] if number % 2 else b"%d" % number for number in range(8)]
    async with mesh("ab", root="simulated") as nodes:
        await create(nodes)
        async with nodes.client("b") as there, there.consumer("q") as consumer, nodes.client("a") as here:
            await nodes.brokers["a"].cluster("mesh").wait_for(nodes=2, queue="q", consumers=1, timeout=10)
            for body in sent:
                await here.send("q", body)
            got = []
            for _ in sent:
                message = await consumer.receive(timeout=10)
                assert message is not None
                got.append(message.body)
                await message.ack(confirm=True)
            assert got == sent
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []


async def test_a_body_waits_for_a_node_that_is_down_and_arrives_once() -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await create(nodes)
        await nodes.kill("b")
        await nodes.send("a", [BODY + b"%d" % number for number in range(4)])
        await nodes.kill("a")
        await nodes.start("a", "b")
        await nodes.joined()
        await trio.sleep(1)
        got = [delivery.body for name in "ab" for delivery in await nodes.drain(name)]
        assert sorted(got) == [BODY + b"%d" % number for number in range(4)]
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []


@attrs.define
class Blocks:
    """Set when so many blocks have come."""

    wanted: int = 0
    come: trio.Event = attrs.field(factory=trio.Event)


@pytest.fixture
def reached() -> Blocks:
    """What a test waits for."""
    return Blocks()


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch, reached: Blocks) -> Counter[FrameType]:
    """The frames with parts of messages that nodes have taken from other nodes."""
    found: Counter[FrameType] = Counter()
    handle: Callable[[ServerSession, Frame], None] = ServerSession.handle

    def count(session: ServerSession, frame: Frame) -> None:
        if session.peering is not None and frame.type in (FrameType.FORWARD, FrameType.BLOCK):
            found[frame.type] += 1
            if found[FrameType.BLOCK] == reached.wanted:
                reached.come.set()
        handle(session, frame)

    monkeypatch.setattr(ServerSession, "handle", count)
    return found


async def linked(nodes: Mesh) -> None:
    """Have a queue at b that a sends to."""
    async with nodes.client("b") as there:
        await there.create_queue("far", address="only")
    await nodes.joined("a", "b")


async def got(nodes: Mesh, count: int) -> list[bytes]:
    """What b has in the queue, read block by block where it is large."""
    found = []
    async with nodes.client("b") as there, there.consumer("far") as consumer:
        for _ in range(count):
            message = await consumer.receive(timeout=30)
            assert message is not None
            found.append(message.body if message.size <= limits.MESSAGE_BYTES_MAX else await message.read())
            await message.ack(confirm=True)
        assert await consumer.receive(timeout=1) is None
    return found


@pytest.mark.parametrize("client_large", [2_000, 16 * limits.MIB])
@pytest.mark.parametrize(
    ("size", "large", "blocks"),
    [
        (102_400, {}, 0),
        (102_401, {}, 1),
        (50_000, {"min_large_message_size": 50_000}, 0),
        (50_001, {"min_large_message_size": 50_000}, 1),
        (BLOCK, {}, 1),
        (BLOCK + 1, {}, 2),
        (len(BODY), {"min_large_message_size": 16 * limits.MIB}, 0),
        (len(BODY), {}, 3),
    ],
)
async def test_a_message_of_up_to_min_large_message_size_crosses_in_one_frame_and_a_larger_one_in_several(
    size: int, large: dict[str, Any], blocks: int, client_large: int, frames: Counter[FrameType]
) -> None:
    async with mesh("ab", root="simulated", mode="strict", cluster=large) as nodes:
        await linked(nodes)
        async with nodes.brokers["a"].client(min_large_message_size=client_large) as client:
            await client.send("only::far", BODY[:size], properties={"n": 7})
            await trio.sleep(1)
        assert frames == {FrameType.FORWARD: 1, **({FrameType.BLOCK: blocks} if blocks else {})}
        assert await got(nodes, 1) == [BODY[:size]]
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []


async def test_what_is_large_among_the_messages_of_a_run_goes_alone_and_all_arrive_in_their_order(
    frames: Counter[FrameType],
) -> None:
    sent = [b"%d" % number + (BODY[:2_000] if number in (0, 3, 4, 9) else b"") for number in range(10)]
    async with mesh("ab", root="simulated", mode="strict", cluster={"min_large_message_size": 1_024}) as nodes:
        await linked(nodes)
        async with nodes.client("a") as client:
            await client.send_many("only::far", sent)
            await trio.sleep(1)
        assert frames == {FrameType.FORWARD: 6, FrameType.BLOCK: 4}
        assert await got(nodes, 10) == sent


async def test_a_body_that_is_larger_than_any_frame_crosses_and_of_it_no_more_than_a_window_is_in_memory(
    monkeypatch: pytest.MonkeyPatch, frames: Counter[FrameType]
) -> None:
    most = [0]
    read = LinkUploadMachine.next

    def watched(machine: LinkUploadMachine) -> int | None:
        found = read(machine)
        most[0] = max(most[0], machine.asked - machine.answered)
        return found

    monkeypatch.setattr(LinkUploadMachine, "next", watched)
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", 2 * BLOCK)
    body = BODY * 8
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await linked(nodes)
        async with nodes.client("a") as client:
            await client.send("only::far", body)
        assert await got(nodes, 1) == [body]
        assert frames[FrameType.BLOCK] == -(-len(body) // BLOCK) == 17
        assert most[0] == limits.LARGE_WINDOW_BLOCKS
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []


@pytest.mark.parametrize("dies", ["a", "b", "both"])
@pytest.mark.parametrize("blocks", [1, 5, 16])
async def test_a_node_that_dies_in_the_middle_of_a_body_loses_and_doubles_nothing_and_leaves_no_file(
    dies: str, blocks: int, reached: Blocks, frames: Counter[FrameType]
) -> None:
    reached.wanted = blocks
    sent = [b"before", BODY * 8, b"after"]
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await linked(nodes)
        async with nodes.client("a") as client:
            await client.send("only::far", sent[0])
            await trio.sleep(1)
            for body in sent[1:]:
                await client.send("only::far", body)
            await reached.come.wait()
        for name in "ab" if dies == "both" else dies:
            await nodes.kill(name)
        await nodes.start(*("ab" if dies == "both" else dies))
        await nodes.joined("a", "b")
        assert await got(nodes, 3) == sent
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []


async def test_a_body_that_can_not_be_read_is_given_up_and_what_is_behind_it_arrives(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FileBodies.read
    asked: list[int] = []

    def damaged(bodies: FileBodies, body: Body, number: int, then: Got) -> None:
        asked.append(number)
        if number == 5:
            then(DamagedError("large", 0, "a checksum", "another one"))
        else:
            read(bodies, body, number, then)

    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await linked(nodes)
        await nodes.stop("b")
        async with nodes.client("a") as client:
            await client.send("only::far", BODY * 8)
            await client.send("only::far", b"after")
        monkeypatch.setattr(FileBodies, "read", damaged)
        await nodes.start("b")
        await nodes.joined("a", "b")
        monkeypatch.setattr(limits, "LARGE_WINDOW_BLOCKS", 2)
        assert await got(nodes, 1) == [b"after"]
        assert 5 in asked
        await trio.sleep(1)
        assert bodies_of(nodes, "a") == bodies_of(nodes, "b") == []
    assert "body_unreadable" in [getattr(one, "event", "") for one in caplog.records]


async def test_a_large_message_whose_queue_is_gone_is_a_dead_letter_with_its_body() -> None:
    settings = {
        "#": AddressSettings(auto_create_queues=False),
        "only": AddressSettings(auto_create_queues=False, dead_letter_address="dead"),
    }
    async with mesh("ab", root="simulated", mode="strict", broker={"address_settings": settings}) as nodes:
        async with nodes.client("b") as client:
            await client.create_queue("dead")
            await client.create_queue("far", address="only")
        await nodes.known("a").wait_for(nodes=2, queue="far", queues=1, timeout=10)
        await nodes.kill("b")
        await nodes.send("a", [BODY], "only")
        await nodes.kill("a")
        await nodes.start("b")
        async with nodes.client("b") as client:
            await client.delete_queue("far")
        await nodes.start("a")
        await until(lambda: nodes.known("a").peers()[0].waiting == 0)
        await nodes.kill("b")
        await nodes.start("b")
        async with nodes.client("b") as client, client.consumer("dead") as consumer:
            message = await consumer.receive(timeout=10)
            assert message is not None
            assert message.size == len(BODY)
            assert await message.read() == BODY
            await message.ack(confirm=True)
        await until(lambda: bodies_of(nodes, "b") == [])


async def test_a_body_goes_on_over_a_node_between(frames: Counter[FrameType]) -> None:
    settings = {"max_hops": 2, "allow_direct_connections_only": True}
    others = {"a": ["b"], "b": ["a", "c"], "c": ["b"]}
    async with mesh("abc", root="simulated", mode="strict", cluster=settings, others=others) as nodes:
        async with nodes.client("c") as there:
            await there.create_queue("far", address="only")
        await nodes.known("a").wait_for(queue="far", queues=1, timeout=20)
        async with nodes.client("a") as client:
            await client.send("only::far", BODY * 4)
        async with nodes.client("c") as there, there.consumer("far") as consumer:
            message = await consumer.receive(timeout=30)
            assert message is not None
            assert message.body == BODY * 4
            await message.ack(confirm=True)
        assert frames[FrameType.BLOCK] == 2 * -(-len(BODY * 4) // BLOCK)


async def test_an_older_node_gets_what_a_frame_can_hold_in_one_frame_and_the_rest_waits(
    monkeypatch: pytest.MonkeyPatch, frames: Counter[FrameType]
) -> None:
    monkeypatch.setattr("meshq.broker.session._peering.LINK_FEATURES", "origin counts due queue ids hops announced")
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        await linked(nodes)
        async with nodes.client("a") as client:
            await client.send("only::far", BODY)
        assert await got(nodes, 1) == [BODY]
        assert frames == {FrameType.FORWARD: 1}
