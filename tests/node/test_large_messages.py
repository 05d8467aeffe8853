"""Large messages, as a user of a broker sees them: sent in pieces, kept once, read in chunks, gone when nobody needs
them."""

from __future__ import annotations

import inspect
import io
from collections.abc import AsyncIterator

import attrs
import pytest
import trio
import trio.testing

from meshq import (
    AddressFullError,
    AddressSettings,
    BodyStream,
    Broker,
    Client,
    Consumer,
    Delivery,
    NotFoundError,
    SettingsError,
    StaleDeliveryError,
    UsageError,
    limits,
)
from meshq.client.send._implicit_producers import IMPLICIT_PRODUCERS_MAX
from meshq.env import real_env
from tests.node.lives import Lives, lives, machine
from tests.process import ENDS, End

BLOCK = limits.LARGE_BLOCK_BYTES
#: Three blocks and a bit, none of them alike.
BODY = b"".join(number.to_bytes(4, "big") for number in range(3 * BLOCK // 4 + 25))


async def pieces(body: bytes = BODY, size: int = 70_001) -> AsyncIterator[bytes]:
    """A body as some program makes it."""
    for start in range(0, len(body), size):
        await trio.lowlevel.checkpoint()
        yield body[start : start + size]


def files(life: Lives) -> list[str]:
    """What lies beside the journal."""
    return life.env.disk.names("/data/hq/large")


async def quiet() -> None:
    """Until nothing is to be done any more."""
    await trio.sleep(1)


async def one(client: Client, queue: str = "q") -> bytes:
    """The next message, read and acknowledged."""
    async with client.consumer(queue) as consumer:
        message = await consumer.receive(timeout=5)
        assert message is not None
        body = await message.read()
        await message.ack(confirm=True)
    return body


@pytest.mark.parametrize("data_dir", [None, "/data/hq"])
@pytest.mark.parametrize("size", [limits.MIN_LARGE_MESSAGE_BYTES + 1, BLOCK, BLOCK + 1, 2 * BLOCK, len(BODY)])
async def test_bytes_of_any_size_arrive_as_they_were_sent(data_dir: str | None, size: int) -> None:
    async with lives(data_dir=data_dir) as life, life.client() as client:
        await client.send("q", BODY[:size], properties={"k": 1}, correlation_id="c", duplicate_id="d", priority=7)
        async with client.consumer("q") as consumer:
            message = await consumer.receive(timeout=5)
            assert message is not None
            assert (message.body, message.size) == (BODY[:size], size)
            assert (message.properties, message.correlation_id, message.priority) == ({"k": 1}, "c", 7)
            assert message.duplicate_id == b"d"
            async with message.open() as stream:
                chunks = [chunk async for chunk in stream]
            assert b"".join(chunks) == BODY[:size] and max(map(len, chunks)) <= limits.MIB


@pytest.mark.parametrize(
    "source",
    [
        lambda: pieces(),
        lambda: pieces(size=1_000_000),
        lambda: io.BytesIO(BODY),
        lambda: (BODY[start : start + 9_999] for start in range(0, len(BODY), 9_999)),
        lambda: [BODY],
        lambda: memoryview(BODY),
        lambda: bytearray(BODY),
    ],
)
async def test_a_body_may_come_from_anywhere(source: object) -> None:
    async with lives() as life, life.client() as client:
        await client.send("q", source())  # type: ignore[operator]
        assert await one(client) == BODY


async def test_a_stream_that_turns_out_small_is_an_ordinary_message() -> None:
    async with lives() as life, life.client() as client:
        await client.send("q", [b"a", b"b"])
        await client.send("q", [])
        assert files(life) == []
        assert [await one(client), await one(client)] == [b"ab", b""]


@pytest.mark.parametrize("wrong", ["text", 7, None, {"a": 1}, ["text"], [b"x", 7]])
async def test_what_is_no_body_is_refused_and_leaves_nothing(wrong: object) -> None:
    async with lives() as life, life.client() as client:
        with pytest.raises(SettingsError) as caught:
            await client.send("q", wrong)  # type: ignore[arg-type]
        assert caught.value.outcome == "not_done"
        with pytest.raises(SettingsError):
            await client.send("q", [BODY, "text"])  # type: ignore[list-item]
        await quiet()
        assert files(life) == []
        assert (await client.queue("q")).ready == 0 if life.broker.statistics().queues else True


async def test_what_the_program_raises_while_it_makes_the_body_comes_out_and_nothing_is_left() -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield BODY
        raise RuntimeError("the source is gone")

    async with lives() as life, life.client() as client:
        with pytest.raises(RuntimeError, match="the source is gone"):
            await client.send("q", broken())
        await quiet()
        assert files(life) == []


async def test_a_body_is_one_file_until_its_message_is_acknowledged() -> None:
    async with lives() as life, life.client() as client:
        await client.send("q", BODY)
        assert len(files(life)) == 1 and files(life)[0].endswith(".body")
        async with client.consumer("q") as consumer:
            message = await consumer.receive(timeout=5)
            assert message is not None
            await message.nack()
            message = await consumer.receive(timeout=5)
            assert message is not None and message.body == BODY and message.redelivered
            assert len(files(life)) == 1
            await message.ack(confirm=True)
        await quiet()
        assert files(life) == []


@pytest.mark.parametrize("end", ENDS)
async def test_a_large_message_survives_the_broker_and_so_does_its_absence(end: End) -> None:
    async with lives() as life:
        async with life.client() as client:
            await client.send("q", BODY, properties={"k": 1})
            await client.send("q", BODY[:BLOCK])
            await client.send("q", BODY[: 2 * BLOCK], durable=False)
        await life.again(end=end)
        assert len(files(life)) == 2
        async with life.client() as client:
            assert await one(client) == BODY
        await life.again(end=end)
        assert len(files(life)) == 1
        async with life.client() as client:
            assert await one(client) == BODY[:BLOCK]
            assert (await client.queue("q")).ready == 0
        await life.again(end=end)
        assert files(life) == []


async def test_one_body_serves_all_queues_of_a_topic_and_goes_with_the_last() -> None:
    async with lives() as life:
        async with life.client() as client:
            await client.create_address("news", routing="multicast")
            for name in ("one", "two", "three"):
                await client.create_queue(name, address="news", routing="multicast")
            await client.send("news", BODY)
            assert len(files(life)) == 1
            assert await one(client, "news::one") == BODY
        await life.again(killed=True)
        async with life.client() as client:
            assert await one(client, "news::two") == BODY
            assert len(files(life)) == 1
            assert await client.purge_queue("three") == 1
            await client.flush()
            await quiet()
            assert files(life) == []


async def test_a_dead_letter_keeps_its_body() -> None:
    settings = {"q": AddressSettings(dead_letter_address="dead", max_delivery_attempts=1)}
    async with lives(queues=["q", "dead"], address_settings=settings) as life:
        async with life.client() as client:
            await client.send("q", BODY)
            async with client.consumer("q") as consumer:
                message = await consumer.receive(timeout=5)
                assert message is not None
                await message.reject()
            await quiet()
            assert len(files(life)) == 1
        await life.again(killed=True)
        async with life.client() as client:
            async with client.consumer("dead") as consumer:
                message = await consumer.receive(timeout=5)
                assert message is not None and message.body == BODY
                assert message.origin is not None and message.origin.queue == "q"
                await message.ack(confirm=True)
            await quiet()
            assert files(life) == []


async def test_a_deleted_queue_takes_its_bodies_with_it() -> None:
    async with lives() as life, life.client() as client:
        await client.create_queue("q")
        await client.send("q", BODY)
        await client.delete_queue("q")
        await client.flush()
        await quiet()
        assert files(life) == []


async def test_a_repeated_duplicate_id_is_stored_once_and_the_second_body_is_dropped() -> None:
    async with lives() as life:
        async with life.client() as client:
            await client.send("q", BODY, duplicate_id="a")
            await client.send("q", BODY[:BLOCK], duplicate_id="a")
            await quiet()
            assert len(files(life)) == 1
        await life.again(killed=True)
        async with life.client() as client:
            await client.send("q", pieces(), duplicate_id="a")
            assert (await client.queue("q")).ready == 1
            assert await one(client) == BODY
            await quiet()
            assert files(life) == []


async def test_a_message_to_nobody_leaves_no_body() -> None:
    async with lives() as life, life.client() as client:
        await client.create_address("news", routing="multicast")
        await client.send("news", BODY)
        await quiet()
        assert files(life) == []
        assert life.broker.statistics().unrouted == 1


async def test_a_body_for_an_address_that_refuses_it_is_refused_as_a_small_one_is() -> None:
    async with (
        lives(address_settings={"#": AddressSettings(auto_create_queues=False)}) as life,
        life.client() as client,
    ):
        for body in (b"small", BODY):
            with pytest.raises(NotFoundError) as caught:
                await client.send("nowhere", body)
            assert caught.value.outcome == "not_done"
        await quiet()
        assert files(life) == []


async def test_filters_see_the_real_size() -> None:
    async with lives() as life, life.client() as client:
        await client.create_queue("q")
        await client.send("q", BODY)
        await client.send("q", b"small")
        async with client.consumer("q", filter=f"size = {len(BODY)}") as large:
            message = await large.receive(timeout=5)
            assert message is not None and message.size == len(BODY)
            async with client.consumer("q", filter="size < 100") as small:
                other = await small.receive(timeout=5)
                assert other is not None and other.body == b"small"


async def test_browsing_shows_large_bodies_and_takes_none() -> None:
    async with lives() as life, life.client() as client:
        await client.create_queue("q")
        await client.send("q", BODY)
        await client.send("q", b"small")
        async with client.consumer("q", browse=True) as browse:
            assert [message.body async for message in browse] == [BODY, b"small"]
        assert (await client.queue("q")).ready == 2


async def test_large_and_small_messages_keep_their_order() -> None:
    sent = [BODY[: BLOCK + number] if number % 3 == 0 else b"%d" % number for number in range(12)]
    async with lives() as life, life.client() as client:
        for body in sent:
            await client.send("q", body)
        async with client.consumer("q", ack="auto") as consumer:
            got = [await consumer.receive(timeout=5) for _ in sent]
        assert [message.body for message in got if message is not None] == sent


async def test_requests_and_replies_may_be_large() -> None:
    async with lives(queues=["service"]) as life, life.client() as client, trio.open_nursery() as nursery:

        async def serve() -> None:
            async with client.session() as other, other.consumer("service") as consumer:
                message = await consumer.receive()
                assert message is not None
                await message.reply(message.body[::-1])
                await message.ack(confirm=True)

        nursery.start_soon(serve)
        answer = await client.request("service", BODY, timeout=30)
        assert answer.body == BODY[::-1]


@pytest.fixture
def small_ordinary(monkeypatch: pytest.MonkeyPatch) -> int:
    """The bound of ordinary messages, low enough that a test can pass it."""
    monkeypatch.setattr(limits, "MESSAGE_BYTES_MAX", BLOCK)
    return BLOCK


async def received(consumer: Consumer) -> Delivery:
    message = await consumer.receive(timeout=5)
    assert message is not None
    return message


@pytest.mark.usefixtures("small_ordinary")
async def test_what_is_larger_than_an_ordinary_message_is_read_when_it_is_asked_for() -> None:
    async with lives() as life, life.client() as client:
        await client.send("q", pieces())
        async with client.consumer("q") as consumer:
            message = await received(consumer)
            assert message.size == len(BODY)
            with pytest.raises(UsageError, match=rf"{len(BODY)} bytes has to be read by open"):
                message.body  # noqa: B018
            assert await message.read() == BODY
            async with message.open() as first, message.open() as second:
                assert await anext(first) == await anext(second) == BODY[:BLOCK]
                assert await anext(first) == BODY[BLOCK : 2 * BLOCK]
                await consumer.ack(message, confirm=True)
                with pytest.raises(StaleDeliveryError):
                    await message.read()
        await quiet()
        assert files(life) == []


@pytest.mark.usefixtures("small_ordinary")
async def test_a_body_can_be_read_only_while_its_message_is_held() -> None:
    async with lives() as life, life.client() as client:
        await client.send("q", BODY)
        async with client.consumer("q") as consumer:
            message = await received(consumer)
        with pytest.raises(StaleDeliveryError):
            await message.read()
        async with client.consumer("q") as consumer:
            message = await received(consumer)
            async with message.open() as stream:
                await anext(stream)
                await life.again(killed=True)
                with pytest.raises(StaleDeliveryError):
                    await stream_out(stream)
            assert await (await received(consumer)).read() == BODY


async def stream_out(stream: BodyStream) -> None:
    """Read what is left, slowly."""
    async for _ in stream:
        await trio.sleep(1)


async def test_what_was_taken_while_somebody_looked_is_passed_over() -> None:
    async with lives() as life, life.client() as client, life.client() as other:
        await client.create_queue("q")
        for body in (BODY, b"small", BODY):
            await client.send("q", body)
        async with client.consumer("q", browse=True, window=1) as browse:
            assert (await received(browse)).body == BODY  # type: ignore[arg-type]
            assert await other.purge_queue("q") == 3
            await other.flush()
            await quiet()
            assert [message.body async for message in browse] in ([], [b"small"])


async def test_without_memory_for_it_a_body_is_refused_in_memory() -> None:
    env = machine()
    async with trio.open_nursery() as nursery:
        broker = Broker("m", data_dir=None, env=env, memory_limit=2**20)
        await nursery.start(broker.run)
        async with broker.client() as client:
            with pytest.raises(AddressFullError) as caught:
                await client.send("q", BODY + BODY)
            assert caught.value.outcome == "not_done"
            await quiet()
            assert broker.statistics().memory_used == 0
            await client.send("q", BODY[: 2 * BLOCK])
            assert broker.statistics().memory_used >= 2 * BLOCK
            assert await one(client) == BODY[: 2 * BLOCK]
            await quiet()
            assert broker.statistics().memory_used == 0
        await broker.stop()


async def test_the_threshold_is_the_clients_and_is_bounded() -> None:
    async with lives() as life:
        async with life.client(min_large_message_size=2_000) as client:
            await client.send("q", bytes(2_000))
            assert files(life) == []
            await client.send("q", bytes(2_001))
            assert len(files(life)) == 1
        for wrong in (0, 1_023, limits.MESSAGE_BYTES_MAX + 1, "1"):
            with pytest.raises(SettingsError, match="min_large_message_size"):
                life.client(min_large_message_size=wrong)


async def test_many_senders_at_a_time_do_not_mix() -> None:
    bodies = [bytes([number]) * (BLOCK + number) for number in range(2 * limits.UPLOADS_MAX + 1)]
    async with lives() as life, life.client() as client:
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(client.send, "q", pieces(body))
        got = [await one(client) for _ in bodies]
        assert sorted(got) == sorted(bodies)


async def test_over_a_byte_stream_it_is_the_same() -> None:
    env = attrs.evolve(real_env(), disk=machine().disk, threads=machine().threads, local={})
    async with trio.open_nursery() as nursery:
        broker = Broker("s", data_dir="/data/s", env=env, acceptors=["tcp://127.0.0.1:0"])
        await nursery.start(broker.run)
        from meshq import connect

        async with connect(broker.urls[0], env=env) as client:
            await client.send("q", pieces())
            assert await one(client) == BODY
        await broker.stop()


async def test_large_messages_begin_above_the_default_threshold_and_windows_have_their_defaults() -> None:
    async with lives() as life, life.client() as client:
        await client.send("q", bytes(102_400))
        assert files(life) == []
        await client.send("q", bytes(102_401))
        assert len(files(life)) == 1
        window = inspect.signature(client.producer).parameters["window"].default
        assert (window, client._settings.confirmation_window) == (4_000, 1_048_576)


async def test_a_producer_that_gives_way_to_other_addresses_during_an_upload_is_replaced() -> None:
    async with lives(data_dir="/data/hq") as life, life.client() as client:

        async def others() -> AsyncIterator[bytes]:
            yield BODY
            for number in range(IMPLICIT_PRODUCERS_MAX):
                await client.send(f"other.{number}", b"x")
            yield BODY

        await client.send("q", b"first")
        with trio.fail_after(60):
            await client.send("q", others())
        assert client.statistics().producers == IMPLICIT_PRODUCERS_MAX
        assert [await one(client) for _ in range(2)] == [b"first", 2 * BODY]
        assert client.statistics().connected == 1
