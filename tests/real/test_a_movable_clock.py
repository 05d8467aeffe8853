"""A test moves the clock of its broker, on every face: nobody waits for a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from meshq import AddressSettings, Broker, SettingsError, UsageError, aio, blocking, connect
from meshq.testing import MovableClock
from tests.real.aio_kit import asyncio_test
from tests.real.blocking_kit import our_threads

SETTINGS = {"orders": AddressSettings(redelivery_delay=60, expiry_address="late")}
WAIT = 20


@pytest.fixture(autouse=True)
def in_no_time() -> Iterator[None]:
    """Minutes on the clock are seconds of the test's time; and no thread is left."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < 60
    assert our_threads() == []


@pytest.mark.processes
def test_for_threads_a_minute_of_delay_passes_when_the_test_says_so(tmp_path: Path) -> None:
    clock = MovableClock()
    with (
        blocking.Broker("shop", data_dir=tmp_path / "shop", address_settings=SETTINGS, env=clock.env()) as broker,
        broker.client() as client,
        client.consumer("orders") as consumer,
    ):
        client.send("orders", b"1")
        first = consumer.receive(timeout=WAIT)
        assert first is not None
        first.nack()
        assert consumer.receive(timeout=0.1) is None
        clock.advance(59)
        assert consumer.receive(timeout=0.5) is None
        clock.advance(2)
        second = consumer.receive(timeout=WAIT)
        assert second is not None
        assert second.delivery_count == 2
        second.ack()
        client.send("orders", b"2", delay=600)
        clock.advance(601)
        with consumer.receive(timeout=WAIT) as third:  # type: ignore[union-attr]
            assert third.body == b"2"


def test_a_loop_that_does_not_go_by_the_clock_of_its_broker_is_told() -> None:
    async def test() -> None:
        async with Broker("shop", data_dir=None, env=MovableClock().env()):
            pytest.fail("this broker's delays would never end")

    with pytest.raises(UsageError, match=r"trio\.run\(main, clock=clock\)"):
        trio.run(test)


@pytest.mark.processes
def test_what_expires_does_so_by_the_time_of_day_of_the_clock(tmp_path: Path) -> None:
    clock = MovableClock()
    with (
        blocking.Broker("shop", data_dir=tmp_path, address_settings=SETTINGS, env=clock.env()) as broker,
        broker.client() as client,
        client.consumer("late") as late,
    ):
        before = clock.time_of_day()
        client.send("orders", b"1", ttl=600)
        clock.advance(601)
        expired = late.receive(timeout=WAIT)
        assert expired is not None
        assert expired.origin is not None
        assert expired.origin.reason == "expired"
        assert 600 <= clock.time_of_day() - before < 660


@pytest.mark.processes
@asyncio_test
async def test_for_tasks_of_asyncio_too_and_over_a_socket(tmp_path: Path) -> None:
    clock = MovableClock()
    async with (
        aio.Broker(
            "shop", data_dir=tmp_path, acceptors=["tcp://127.0.0.1:0"], address_settings=SETTINGS, env=clock.env()
        ) as broker,
        aio.connect(broker.urls[0], env=clock.env()) as client,
        client.consumer("orders") as consumer,
    ):
        await client.send("orders", b"1")
        first = await consumer.receive(timeout=WAIT)
        assert first is not None
        epoch = client.statistics().epoch
        await first.nack(delay=900)
        clock.advance(901)
        second = await consumer.receive(timeout=WAIT)
        assert second is not None
        assert second.delivery_count == 2
        await second.ack()
        # Pings were answered in between: nobody took anybody for dead.
        assert client.statistics().epoch == epoch
        await asyncio.sleep(0)


def test_on_trio_the_test_itself_runs_on_the_clock(tmp_path: Path) -> None:
    clock = MovableClock()

    async def main() -> None:
        env = clock.env()
        settings = {"acceptors": ["tcp://127.0.0.1:0"], "address_settings": SETTINGS}
        async with (
            Broker("shop", data_dir=tmp_path, env=env, **settings) as broker,  # type: ignore[arg-type]
            connect(broker.urls[0], env=env) as client,
            client.consumer("orders") as consumer,
        ):
            await client.send("orders", b"1")
            first = await consumer.receive(timeout=WAIT)
            assert first is not None
            await first.nack()
            clock.advance(61)
            before = trio.current_time()
            second = await consumer.receive(timeout=100)
            assert second is not None
            assert 59 < trio.current_time() - before < 100
            await second.ack()

    trio.run(main, clock=clock)


@pytest.mark.processes
def test_a_broker_in_a_thread_of_a_trio_program_follows_its_clock(tmp_path: Path) -> None:
    clock = MovableClock()

    async def main() -> None:
        async with (
            Broker("shop", data_dir=tmp_path, address_settings=SETTINGS, env=clock.env()).run_in_thread() as broker,
            broker.client() as client,
            client.consumer("orders") as consumer,
        ):
            await client.send("orders", b"1", delay=300)
            clock.advance(301)
            delivery = await consumer.receive(timeout=WAIT)
            assert delivery is not None
            await delivery.ack()

    trio.run(main)


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), "60"])
def test_a_clock_goes_forward_only_and_not_for_ever(seconds: object) -> None:
    with pytest.raises(SettingsError, match="a number from 0"):
        MovableClock().advance(seconds)  # type: ignore[arg-type]
