"""A client that sends to every broker of its URL."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio

from meshq import (
    AddressFullError,
    AddressSettings,
    Client,
    ClosedError,
    ConnectionBrokenError,
    FanoutClient,
    FanoutError,
    FanoutMissed,
    Message,
    SettingsError,
    UsageError,
    abc,
    connect,
)
from meshq.client._fanout_client import ALLOWED, CHANCE_BYTES
from meshq.discovery import UDPMulticast
from meshq.env import real_env
from meshq.testing import InlineThreads
from tests.bridge.kit import URL, World, until, world
from tests.client.test_discovering import lan, open_sockets
from tests.network.kit import to

#: What a scripted node says of every address.
ROUTE = {
    "address": "news",
    "routing": "multicast",
    "exists": True,
    "creates": False,
    "permitted": True,
    "waits": "",
}


def user_env(made: World) -> abc.Env:
    return attrs.evolve(real_env(), network=made.network.host("user"), threads=InlineThreads(), local={})


def fanout(made: World, names: str, query: str = "", **settings: Any) -> FanoutClient:
    """A client on a machine of its own."""
    urls = ",".join(f"tcp://{name}:5000" for name in names)
    client: object = connect(f"fanout:(static:({urls})){query}", env=user_env(made), insecure=True, **settings)
    assert isinstance(client, FanoutClient)
    return client


async def start(made: World, names: str, *, topic: str = "news") -> None:
    for name in names:
        await made.start(name)
        async with made.here(name) as client:
            await client.create_address(topic, "multicast")
            await client.create_queue("copy", address=topic, routing="multicast")


async def counts(made: World, names: str, queue: str) -> list[int]:
    return [await made.count(name, queue) for name in names]


async def test_each_of_three_brokers_gets_a_message_for_a_topic_once() -> None:
    async with world(durable=False) as made:
        await start(made, "abc")
        async with fanout(made, "abc", "?min_ack_count=3") as client:
            await client.send("news", b"1", properties={"n": 1}, priority=7)
            await client.send("news", Message(b"2"))
            await client.send_many("news", [b"3", Message(b"4")])
            await client.send_many("news", [])
        for name in "abc":
            assert await made.drain(name, "copy", quiet=1) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("copied", [False, True])
async def test_messages_for_a_queue_go_to_one_broker_or_with_fan_out_queues_to_all(copied: bool) -> None:
    async with world(durable=False) as made:
        await start(made, "abc")
        async with fanout(made, "abc", f"?min_ack_count=3&fanOutQueues={str(copied).lower()}") as client:
            for number in range(10):
                await client.send("orders", b"%d" % number)
            await client.flush()
        assert sorted(await counts(made, "abc", "orders")) == ([10, 10, 10] if copied else [0, 0, 10])


async def test_the_broker_of_the_queues_is_drawn_by_chance_and_again_when_it_is_lost() -> None:
    async with world(durable=False) as made:
        await start(made, "ab")
        drawn = []
        for number in (0, 1):
            env = attrs.evolve(user_env(made), entropy=Drawn([number]))
            client = connect("fanout:(static:(tcp://a:5000,tcp://b:5000))", env=env, insecure=True)
            async with client:
                await client.send(f"q{number}", b"1")
            drawn.append(await counts(made, "ab", f"q{number}"))
        assert drawn == [[1, 0], [0, 1]]
        async with fanout(made, "ab", "?min_ack_count=1", retry_interval=0.1) as client:
            await until(lambda: len(client.topology()) == 2)
            await client.send("q", b"1")
            first = (await counts(made, "ab", "q")).index(1)
            await made.kill("ab"[first])
            await until(lambda: len(client.topology()) == 1)
            await client.send("q", b"2")
            assert await made.count("ba"[first], "q") == 1


class Drawn(abc.Entropy):
    """Chance of which the test says what it draws; everything else is random."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = list(numbers)

    def token(self, size: int) -> bytes:
        if size == CHANCE_BYTES and self._numbers:
            return self._numbers.pop(0).to_bytes(size)
        return real_env().entropy.token(size)

    def generator(self) -> random.Random:
        return random.Random(0)


async def test_a_send_waits_until_two_brokers_are_connected() -> None:
    async with world(durable=False) as made:
        await start(made, "a")
        async with fanout(made, "ab", max_retry_interval=0.1) as client, trio.open_nursery() as nursery:
            sent = trio.Event()

            async def send() -> None:
                await client.send("news", b"1")
                sent.set()

            nursery.start_soon(send)
            await trio.sleep(5)
            assert not sent.is_set() and await made.count("a", "copy") == 0
            await start(made, "b")
            with trio.fail_after(1):
                await sent.wait()
        assert await counts(made, "ab", "copy") == [1, 1]


async def test_a_third_broker_that_comes_late_has_the_first_message_if_three_are_needed() -> None:
    async with world(durable=False) as made:
        await start(made, "ab")
        async with fanout(made, "abc", "?minAckCount=3", max_retry_interval=0.5) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, "news", b"1")
                await trio.sleep(20)
                await start(made, "c")
            await client.send("news", b"2")
        for name in "abc":
            assert await made.drain(name, "copy", quiet=1) == [b"1", b"2"]


async def test_a_send_that_too_few_brokers_can_take_says_who_is_connected_and_who_is_not() -> None:
    async with world(durable=False) as made:
        await start(made, "a")
        async with fanout(made, "ab", call_failover_timeout=7) as client:
            begun = trio.current_time()
            with pytest.raises(FanoutError, match="connected to tcp://a:5000, which are 1 of the 2") as caught:
                await client.send("news", b"1")
            assert trio.current_time() - begun == pytest.approx(7, abs=0.01)
            assert (caught.value.outcome, list(caught.value.errors)) == ("not_done", ["tcp://b:5000"])
            with pytest.raises(FanoutError):
                await client.send_many("news", [b"1"])
        assert await made.count("a", "copy") == 0


async def test_a_broker_that_refuses_is_named_and_the_others_have_the_message() -> None:
    async with world(durable=False) as made:
        await start(made, "abc")
        async with made.here("b") as admin:
            await admin.set_address_settings("news", AddressSettings(full_policy="fail", max_size_bytes=1_000))
            with pytest.raises(AddressFullError):
                for _ in range(100):
                    await admin.send("news", b"x" * 500)
            full = (await admin.queue("copy")).ready
        async with fanout(made, "abc", "?min_ack_count=2") as client:
            await until(lambda: len(client.topology()) == 3)
            events = client.events()
            await client.send("news", b"1" * 500)
            await client.flush()
            event = await anext(events)
            assert isinstance(event, FanoutMissed)
            assert (event.peer, event.address, event.reason.code) == ("tcp://b:5000", "news", "address_full")
        async with fanout(made, "abc", "?min_ack_count=3") as client:
            with pytest.raises(FanoutError) as caught:
                await client.send("news", b"2" * 500)
            assert sorted(caught.value.confirmed) == ["tcp://a:5000", "tcp://c:5000"]
            assert caught.value.errors["tcp://b:5000"].code == "address_full"
            assert caught.value.outcome == "unknown"
        assert await counts(made, "abc", "copy") == [2, full, 2]


async def test_a_broker_without_the_topic_gets_it_before_the_first_message() -> None:
    async with world(durable=False) as made:
        await start(made, "a")
        await made.start("b")
        async with fanout(made, "ab") as client:
            await client.send("news", b"1")
            async with made.dial("b") as there, there.subscribe("news") as consumer:
                await client.send("news", b"2")
                got = await consumer.receive(timeout=1)
                assert got is not None and got.body == b"2"


async def test_two_urls_of_one_broker_are_one_broker() -> None:
    async with world(durable=False) as made:
        await start(made, "a")
        await made.start("b", acceptors=[URL.format("b"), "tcp://b:5001?insecure=true"])
        urls = "tcp://a:5000,tcp://b:5000,tcp://b:5001"
        async with connect(f"fanout:(static:({urls}))?min_ack_count=2", env=user_env(made), insecure=True) as client:
            await client.send("news", b"1")
            await trio.sleep(1)
            await client.send("news", b"2")
            assert [one.name for one in client.topology()] == ["a", "b"]
        async with made.here("b") as there:
            assert "news" not in await there.queues()
        assert await made.count("a", "copy") == 2


async def test_everything_that_concerns_one_broker_is_refused_with_what_is_allowed() -> None:
    async with world(durable=False) as made:
        await start(made, "ab")
        refused = [name for name in dir(Client) if not name.startswith("_") and name not in ALLOWED]
        assert {"consumer", "producer", "transaction", "request", "subscribe", "create_queue", "queue"} <= {*refused}
        async with fanout(made, "ab") as client:
            for name in refused:
                with pytest.raises(
                    UsageError, match=f"^{name} concerns one broker.* allowed: close, events, flush, send"
                ):
                    getattr(client, name)("x")
            with pytest.raises(UsageError, match="one routing type"):
                async with made.here("b") as there:
                    await there.create_address("odd", "multicast")
                async with made.here("a") as there:
                    await there.create_address("odd", "anycast")
                await client.send("odd", b"1")
            with pytest.raises(UsageError, match="bytes"):
                await client.send("news", iter([b"1"]))  # type: ignore[arg-type]
            with pytest.raises(SettingsError, match="bytes"):
                await client.send_many("news", [1])  # type: ignore[list-item]
            with pytest.raises(SettingsError, match="priority"):
                await client.send("news", b"", priority=10)
            with pytest.raises(UsageError, match="left out beside a Message"):
                await client.send("news", Message(b""), priority=7)
            assert client.statistics().state == "connected" and "tcp://a:5000, tcp://b:5000" in repr(client)


async def test_a_client_that_is_not_open_says_so_and_one_that_is_closed_ends_what_waits() -> None:
    async with world(durable=False) as made:
        await start(made, "a")
        client = fanout(made, "ab")
        with pytest.raises(UsageError, match="async with"):
            await client.send("news", b"1")
        async with client, trio.open_nursery() as nursery:
            failed = trio.Event()

            async def send() -> None:
                with pytest.raises(ClosedError):
                    await client.send("news", b"1")
                failed.set()

            nursery.start_soon(send)
            await trio.sleep(1)
            await client.close()
            await client.close()
            await failed.wait()
            other = client.session()
        assert repr(client).startswith("<FanoutClient closed") and repr(other).startswith("<FanoutClient new")
        with pytest.raises(ClosedError):
            await client.send("news", b"1")
        with pytest.raises(ClosedError):
            await client.flush()
        with pytest.raises(UsageError, match="used before"):
            await client.__aenter__()
        await other.close()
        with pytest.raises(ClosedError):
            await other.__aenter__()


async def test_what_is_under_way_to_a_broker_that_dies_is_told_at_the_latest_when_the_client_closes() -> None:
    async with world(durable=False) as made:
        await start(made, "abc")
        async with fanout(made, "abc", call_failover_timeout=3) as client:
            await until(lambda: len(client.topology()) == 3)
            events = client.events()
            await client.send("news", b"0")
            await client.flush()
            made.network.partition(["user"], ["c"])
            await client.send("news", b"1")
            await client.close()
            missed = [one async for one in events if isinstance(one, FanoutMissed)]
        assert [one.peer for one in missed] == ["tcp://c:5000"]
        assert await counts(made, "ab", "copy") == [2, 2]


# -- coming back


@attrs.define
class NobodyThere(abc.Network):
    """A network in which nobody is reached; notes when it was tried, by port."""

    tried: dict[int, list[float]] = attrs.field(factory=lambda: defaultdict(list))

    async def connect(self, host: str, port: int) -> abc.Stream:
        await trio.lowlevel.checkpoint()
        self.tried[port].append(trio.current_time())
        raise ConnectionBrokenError("nobody there", outcome="not_done") from OSError("nobody there")

    async def listen(self, host: str, port: int) -> abc.Listener:
        raise AssertionError


def nobody(query: str) -> tuple[NobodyThere, Client]:
    network = NobodyThere()
    env = attrs.evolve(real_env(), network=network)
    return network, connect(f"fanout:(static:(tcp://127.0.0.1:1,tcp://127.0.0.1:2)){query}", env=env)


@pytest.mark.parametrize(
    ("query", "delays_ms"),
    [
        ("", [*(10 * 2**n for n in range(12)), 30_000, 30_000, 30_000]),
        ("?initialReconnectDelay=200", [200, 400, 800]),
        ("?initial_reconnect_delay=0.2", [200, 400, 800]),
        ("?maxReconnectDelay=50", [10, 20, 40, 50, 50]),
        ("?useExponentialBackOff=false", [10] * 20),
        ("?backOffMultiplier=3", [10, 30, 90, 270]),
        ("?maxReconnectAttempts=0", [*(10 * 2**n for n in range(12)), 30_000]),
    ],
)
async def test_each_broker_is_tried_again_after_10_20_and_40_ms_and_at_most_30_seconds(
    query: str, delays_ms: list[int]
) -> None:
    network, client = nobody(query)
    async with client:
        await trio.sleep(sum(delays_ms) / 1_000 + 0.001)
    for port in (1, 2):
        waited = [later - earlier for earlier, later in pairwise(network.tried[port])]
        assert waited == [pytest.approx(delay / 1_000, abs=0.0005) for delay in delays_ms]


async def test_with_a_number_of_attempts_the_sender_gets_the_error_after_so_many() -> None:
    network, client = nobody("?maxReconnectAttempts=2")
    async with client:
        with pytest.raises(FanoutError, match="all attempts to connect are used up") as caught:
            await client.send("news", b"1")
        assert list(map(len, network.tried.values())) == [2, 2]
        assert list(caught.value.errors) == ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
        assert caught.value.outcome == "not_done"
        await trio.sleep(3_600)
        assert list(map(len, network.tried.values())) == [2, 2]


# -- brokers that announce themselves


async def test_a_broker_that_announces_itself_later_is_connected_to_and_one_that_leaves_is_forgotten() -> None:
    async with lan([1, 2], endpoint=UDPMulticast.named("default")) as made:
        for node in made.nodes:
            node.answer_values["explain_route"] = ROUTE
        async with connect("fanout://multicast://default", env=made.env) as client:
            begun = trio.current_time()
            await client.send("news", b"1")
            assert trio.current_time() - begun <= 2
            made.announced = {2, 3}
            await until(lambda: len(client.topology()) == 3)
            await client.send("news", b"2")
            await client.flush()
            # A link is kept as long as it holds, whatever is announced.
            await trio.sleep(60)
            assert [node.bodies for node in made.nodes] == [[b"1", b"2"], [b"1", b"2"], [b"2"]]
            made.nodes[0].up = False
            made.nodes[0].cut()
            await until(lambda: [one.name for one in client.topology()] == ["b", "c"])
            made.nodes[0].up = True
            await trio.sleep(60)
            assert [one.name for one in client.topology()] == ["b", "c"]
        assert open_sockets(made) == 0


# -- brokers that are joined


@pytest.mark.parametrize("kind", ["queue", "topic"])
async def test_into_four_joined_brokers_a_common_producer_sends_one_copy_and_a_fanout_client_four(kind: str) -> None:
    async with world(durable=False) as made:
        names = "abcd"
        await made.start("a")
        for name in "bcd":
            await made.start(name, lambda: [to("a", duplex=True, network_ttl=3)])
        for name in "bcd":
            await made.brokers[name].network("to-a").wait_for(timeout=30)
        async with AsyncExitStack() as stack:
            there = await stack.enter_async_context(made.here("a"))
            if kind == "topic":
                for name in names:
                    client = await stack.enter_async_context(made.here(name))
                    await client.create_address("hello.jason", "multicast")
            taken = there.subscribe("hello.jason") if kind == "topic" else there.consumer("hello.jason")
            consumer = await stack.enter_async_context(taken)
            for name in "bcd":
                await made.brokers[name].network("to-a").wait_for(queue="hello.jason", consumers=1, timeout=60)
            async with made.dial("b") as common:
                await common.send("hello.jason", b"common")
            query = "?min_ack_count=4" + "&fan_out_queues=true" * (kind == "queue")
            async with fanout(made, names, query) as sender:
                for number in range(3):
                    await sender.send("hello.jason", b"%d" % number)
            got: list[bytes] = []
            while batch := await consumer.receive_many(100, timeout=5):
                got += [delivery.body for delivery in batch]
                await consumer.ack(*batch)
        assert Counter(got) == {b"common": 1, b"0": 4, b"1": 4, b"2": 4}
