"""Who waits for whom, and what a broken, silent or idle connection does: a broker and its clients over a network."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import pytest
import trio

from meshq import (
    AddressSettings,
    Broker,
    Client,
    Disconnected,
    FailedOver,
    Reattached,
    StaleDeliveryError,
    connect,
    limits,
)
from meshq.env import real_env
from meshq.settings import Acceptor
from meshq.testing import InlineThreads, MemoryNetwork, NetworkSettings, SimDisk

KIB = 1024
#: Every segment takes as long, so that something is always under way.
LATENCY_S = 0.005
#: Messages of an exchange: enough for more than ten drops.
COUNT = 500
NETWORK = NetworkSettings(latency_s_min=LATENCY_S, latency_s_max=LATENCY_S, split_chance=0.0, short_read_chance=0.0)


@attrs.frozen
class Place:
    """A broker on one host, and clients on others."""

    network: MemoryNetwork
    broker: Broker
    outside: Any

    def client(self, host: str = "client", **settings: Any) -> Client:
        """A client on a host."""
        env = attrs.evolve(self.outside, network=self.network.host(host))
        return connect(self.broker.urls[0], env=env, insecure=True, **settings)


@asynccontextmanager
async def place(*, durable: bool = True, **settings: Any) -> AsyncIterator[Place]:
    network = MemoryNetwork(random.Random(0), NETWORK)
    outside = attrs.evolve(real_env(), disk=SimDisk().mount(), threads=InlineThreads(), local={})
    broker = Broker(
        "shop",
        data_dir="/data/shop" if durable else None,
        acceptors=[Acceptor("tcp://broker:0", insecure=True)],
        env=attrs.evolve(outside, network=network.host("broker")),
        **settings,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(network.run)
        await nursery.start(broker.run)
        yield Place(network, broker, outside)
        await broker.stop()
        nursery.cancel_scope.cancel()


# -- windows and credits


async def test_of_a_slow_consumer_neither_side_holds_more_than_its_windows() -> None:
    async with place() as here, here.client() as client, here.client("other") as other:
        await other.send_many("q", [b"%d" % number + bytes(1_000) for number in range(300)])
        most = 0
        async with client.consumer("q", window=50, window_bytes=8 * KIB) as consumer:
            for number in range(40):
                delivery = await consumer.receive()
                assert delivery.body == b"%d" % number + bytes(1_000)
                await trio.sleep(1)
                held = (await other.queue("q")).delivering
                assert consumer.statistics().ready < held <= 8
                most = max(most, held)
                await delivery.ack()
            # And not a single one more than that for a client that does not even run.
            here.network.pause_host("client")
            await trio.sleep(20)
            assert (await other.queue("q")).delivering <= 8
            here.network.resume_host("client")
        assert most == 8


@pytest.mark.slow
async def test_a_producer_sends_no_more_than_broker_and_address_have_room_for() -> None:
    size, bound = 4 * KIB, 1 << 20
    settings = {"#": AddressSettings(full_policy="block")}
    async with (
        place(durable=False, memory_limit=bound, address_settings=settings) as here,
        here.client() as client,
        here.client("other") as other,
        trio.open_nursery() as nursery,
    ):
        sent = 0

        async def send() -> None:
            nonlocal sent
            async with client.producer("q", window=100) as producer:
                for number in range(1_000):
                    await producer.send(b"%d" % number + bytes(size))
                    sent += 1

        nursery.start_soon(send)
        await trio.sleep(20)
        # It waits: what it sent is at the broker, in its window, or was never taken.
        ready = (await other.queue("q")).ready
        assert 0 < ready * size <= bound + 256 * KIB
        assert sent <= ready + 100 + 1
        found = 0
        async with other.consumer("q") as consumer:
            async for delivery in consumer:
                assert delivery.body == b"%d" % found + bytes(size)
                assert client.statistics().unconfirmed <= 100
                assert (await other.queue("q")).ready * size <= bound + 256 * KIB
                await delivery.ack()
                found += 1
                if found == 1_000:
                    break
        assert sent == 1_000


# -- connections that break


@attrs.define
class Exchange:
    """A client that sends to itself while its connection is broken again and again."""

    here: Place
    client: Client
    count: int
    confirmed: int = 0
    #: Bytes that the client kept, at most.
    kept: int = 0
    received: list[tuple[bytes, int]] = attrs.field(factory=list)

    async def send(self) -> None:
        for number in range(0, self.count, 5):
            await self.client.send_many("q", [b"%d" % one for one in range(number, number + 5)])
            self.confirmed += 5

    async def receive(self) -> None:
        async with self.client.consumer("q", window=7) as consumer:
            while len({body for body, _ in self.received}) < self.count:
                self.kept = max(self.kept, self.client.statistics().kept_bytes)
                for delivery in await consumer.receive_many(3, timeout=1):
                    self.received.append((delivery.body, delivery.delivery_count))
                    await trio.sleep(0.002)
                    with suppress(StaleDeliveryError):
                        await delivery.ack()

    async def disturb(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        # At another moment of the exchange each time.
        with trio.CancelScope() as scope:
            task_status.started(scope)
            for number in range(1_000):
                await trio.sleep(0.12 + number % 7 * 0.0031)
                self.here.network.reset("client", "broker")

    async def play(self) -> None:
        async with trio.open_nursery() as nursery:
            scope = await nursery.start(self.disturb)
            nursery.start_soon(self.send)
            await self.receive()
            scope.cancel()
        # The last drop is over, too.
        await trio.sleep(1)


@pytest.mark.slow
async def test_after_short_drops_what_was_under_way_is_sent_again_and_nothing_is_delivered_again() -> None:
    async with place() as here:
        client = here.client(retry_interval=0.01, max_retry_interval=0.01)
        events = client.events()
        async with client:
            exchange = Exchange(here, client, COUNT)
            await exchange.play()
            numbers = client.statistics()
            assert exchange.kept > 0 == numbers.kept_bytes
            await client.flush()
            assert (await client.queue("q")).ready == 0
        assert exchange.confirmed == COUNT
        assert exchange.received == [(b"%d" % number, 1) for number in range(COUNT)]
        assert numbers.resumed >= 10 and numbers.renewed == 0
        kinds = [type(event) async for event in events]
        assert FailedOver not in kinds and kinds.count(Reattached) == numbers.resumed == kinds.count(Disconnected)


async def test_what_is_kept_to_be_sent_again_is_bounded_and_goes_when_it_has_arrived() -> None:
    window = 8 * KIB
    async with place() as here, here.client(confirmation_window=window) as client:
        here.network.delay("broker", "client", 5.0, 5.0)
        async with client.producer("q") as producer:
            for number in range(300):
                await producer.send(b"%d" % number + bytes(200))
                # One frame of 256 KiB at most goes beyond.
                assert client.statistics().kept_bytes <= window + 257 * KIB
            await trio.sleep(1)
            assert client.statistics().kept_bytes > 0
        await trio.sleep(100)
        assert client.statistics().kept_bytes == 0
        assert (await client.queue("q")).ready == 300


@pytest.mark.slow
async def test_without_a_confirmation_window_nothing_is_kept_and_a_short_drop_makes_the_session_anew() -> None:
    async with place() as here:
        client = here.client(retry_interval=0.01, max_retry_interval=0.01, confirmation_window=math.inf)
        events = client.events()
        async with client:
            exchange = Exchange(here, client, COUNT)
            await exchange.play()
            numbers = client.statistics()
            assert exchange.kept == 0
            # The numbers of its producer keep what is sent again from being stored again.
            assert exchange.confirmed == COUNT == (await client.queue("q")).last_sequence
        assert [*dict(exchange.received)] == [b"%d" % number for number in range(COUNT)]
        assert max(count for _, count in exchange.received) > 1
        assert numbers.renewed >= 10 and numbers.resumed == 0
        kinds = [type(event) async for event in events]
        assert Reattached not in kinds and kinds.count(FailedOver) == numbers.renewed


async def test_who_keeps_little_is_told_in_time_that_it_has_arrived() -> None:
    """Acknowledgements fill the window, and nothing comes back that would say how far they have come."""
    async with place() as here, here.client(confirmation_window=4 * KIB) as client, here.client("other") as other:
        await other.send_many("q", [b"x"] * 900)
        async with client.consumer("q") as consumer:
            for _ in range(9):
                for _ in range(100):
                    await (await consumer.receive()).ack()
                    # Each goes by itself.
                    await trio.sleep(0.001)
                with trio.fail_after(1):
                    await client.send("out", b"y")


async def test_a_broker_that_keeps_less_than_its_client_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONFIRMATION_WINDOW_BYTES_MAX", 1 << 20)
    size, count = 4 * KIB, 4_000
    async with place() as here, here.client(confirmation_window=1 << 26) as client, here.broker.client() as other:
        for _ in range(count // 50):
            await other.send_many("q", [bytes(size)] * 50)
        async with client.consumer("q", window=count, window_bytes=1 << 30) as consumer:
            got = 0
            while got < count:
                batch = await consumer.receive_many(count, timeout=1)
                assert batch, f"nothing after {got} messages"
                got += len(batch)


# -- connections that fall silent, and those that only say nothing


@pytest.mark.slow
async def test_an_idle_connection_is_kept_for_hours() -> None:
    async with place() as here, here.client() as client, client.consumer("q") as consumer:
        await trio.sleep(5 * 3_600)
        assert client.statistics().connected == 1
        assert here.broker.statistics().connections_accepted == 1
        await client.send("q", b"x")
        assert (await consumer.receive(timeout=1)).body == b"x"  # type: ignore[union-attr]


@pytest.mark.slow
async def test_a_link_within_the_process_is_never_too_silent() -> None:
    async with place() as here, here.broker.client() as client:
        await trio.sleep(5 * 3_600)
        await client.send("q", b"x")
        assert client.statistics().connected == 1


async def test_a_half_open_connection_is_noticed_by_both_sides_and_its_session_goes_on() -> None:
    async with place() as here:
        client = here.client(connection_ttl=6)
        events = client.events()
        async with client, client.consumer("q") as consumer:
            await client.send("q", b"x")
            delivery = await consumer.receive()
            began = trio.current_time()
            here.network.silence("client", "broker")
            # It goes out on the connection that nobody hears any more.
            await delivery.ack(confirm=True)
            assert trio.current_time() - began == pytest.approx(6, abs=0.2)
            assert (await client.queue("q")).delivering == 0
            assert client.statistics().resumed == 1
            await trio.sleep(10)
            assert here.broker.statistics().connections == 1
        seen = [event async for event in events]
        assert Reattached in map(type, seen) and FailedOver not in map(type, seen)


async def test_a_client_whose_machine_loses_its_power_is_gone_after_its_time_to_live_and_as_long_again() -> None:
    async with (
        place() as here,
        here.client("other") as other,
        here.client(connection_ttl=6) as client,
        client.consumer("q") as consumer,
    ):
        await other.send("q", b"x")
        assert await consumer.receive() is not None
        began = trio.current_time()
        here.network.power_off("client")
        async with other.consumer("q") as second:
            await trio.sleep(6.5)
            assert here.broker.statistics().connections == 1
            assert (await second.receive()).redelivered
            assert trio.current_time() - began == pytest.approx(12, abs=0.5)


async def test_what_a_client_without_a_window_held_is_others_as_soon_as_its_connection_breaks() -> None:
    async with place() as here, here.client("other") as other:
        for window, seconds in ((math.inf, 0.1), (1 << 20, 60.1)):
            async with here.client(f"client {window}", confirmation_window=window) as client:
                await other.send("q", b"x")
                async with client.consumer("q") as consumer, other.consumer("q") as second:
                    assert await consumer.receive() is not None
                    began = trio.current_time()
                    here.network.kill_host(f"client {window}")
                    delivery = await second.receive()
                    assert delivery.redelivered
                    assert trio.current_time() - began == pytest.approx(seconds, abs=0.2)
                    await delivery.ack(confirm=True)
