"""Large messages through real sockets, files, threads and processes."""

from __future__ import annotations

import asyncio
import io
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshq import StaleDeliveryError, UsageError, aio, limits
from meshq.blocking import Broker, connect
from tests.checkout import checkout_environment

BODY = random.Random(5).randbytes(20_000_000)


def test_a_thread_sends_and_reads_what_is_larger_than_a_message(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(BODY)
    with Broker("b", data_dir=tmp_path / "data", acceptors=["tcp://127.0.0.1:0"]) as broker:
        with connect(broker.urls[0]) as client, (tmp_path / "body").open("rb") as file:
            client.send("q", file)
            client.send("q", io.BytesIO(BODY[:300_000]))
            client.send("q", (BODY[start : start + 100_000] for start in range(0, len(BODY), 100_000)))
        with broker.client() as client, client.consumer("q") as consumer:
            first = consumer.receive(timeout=10)
            assert first is not None and first.size == len(BODY)
            with pytest.raises(UsageError, match="open"):
                first.body  # noqa: B018
            with first.open() as stream:
                chunks = list(stream)
            assert b"".join(chunks) == BODY and max(map(len, chunks)) <= limits.MIB
            first.ack(confirm=True)
            with pytest.raises(StaleDeliveryError):
                first.read()
            second = consumer.receive(timeout=10)
            assert second is not None and second.body == second.read() == BODY[:300_000]
            third = consumer.receive(timeout=10)
            assert third is not None and third.read() == BODY


@pytest.mark.processes
def test_a_hundred_mib_pass_through_with_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qa.large", "--mib", "100", "--directory", str(tmp_path)]
    environment = checkout_environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    said = {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}
    assert said["disk_mib"] >= 100
    assert max(said["broker_growth_mib"], said["client_growth_mib"]) < said["growth_mib_max"] == 64
    assert list(tmp_path.iterdir()) == []


async def made(stuck: bool = False) -> AsyncIterator[bytes]:
    for start in range(0, len(BODY), 300_000):
        await asyncio.sleep(0)
        if stuck and start:
            await asyncio.sleep(3_600)
        yield BODY[start : start + 300_000]


async def through_asyncio(directory: Path) -> None:
    async with aio.Broker("b", data_dir=directory) as broker, broker.client() as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.send("q", made(stuck=True)), 0.5)
        await client.send("q", made())
        async with client.consumer("q") as consumer:
            message = await consumer.receive(timeout=10)
            assert message is not None and message.size == len(BODY)
            async with message.open() as stream:
                assert b"".join([chunk async for chunk in stream]) == BODY
            assert await message.read() == BODY
            await message.ack(confirm=True)
            assert await consumer.receive(timeout=0.2) is None
        while list((directory / "large").iterdir()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


@pytest.mark.processes
def test_asyncio_makes_a_body_and_reads_it(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(through_asyncio(tmp_path / "data"), 60))
