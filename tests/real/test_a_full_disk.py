"""A real file system without room: a broker is killed there again and again, starts each time, and is drained."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from meshq import AddressFullError, CallTimeoutError, Client, connect
from qa.broker_process import BrokerProcess

SEGMENT_BYTES = 128 * 1024
DISK_BYTES = 24 * SEGMENT_BYTES
#: Starts on the full disk, each ended by SIGKILL.
STARTS = 50
BODY = bytes(10_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of ``DISK_BYTES``."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("skipped: there is no mount here")
    if done.returncode:
        pytest.skip(f"skipped: no right to mount: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


async def fill(url: str) -> int:
    """Send until there is no room; how many messages were confirmed."""
    async with connect(url, reconnect_attempts=0, call_timeout=3) as client:
        sent = 0
        with pytest.raises((AddressFullError, CallTimeoutError)) as caught:
            while True:
                await client.send("q", BODY)
                sent += 1
    assert caught.value.outcome == "not_done"
    return sent


async def take(client: Client, count: int) -> None:
    """Consume so many messages, one by one."""
    async with client.consumer("q") as consumer:
        for _ in range(count):
            delivery = await consumer.receive(timeout=10)
            assert delivery is not None
            await consumer.ack(delivery, confirm=True)


async def drain(url: str, count: int, disk: Path) -> None:
    """Consume exactly so many, and wait until their space is free again: maintenance comes after consuming."""
    async with connect(url, reconnect_attempts=0) as client:
        await take(client, count)
        assert (await client.queue("q")).ready == 0
    with trio.fail_after(30):
        while (free := os.statvfs(disk)).f_bavail * free.f_frsize < DISK_BYTES // 2:  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.05)


async def drain_a_little(url: str) -> None:
    async with connect(url, reconnect_attempts=0) as client:
        await take(client, 1)


@pytest.mark.processes
def test_fifty_kills_on_a_full_disk_and_all_of_it_is_drained(small_disk: Path) -> None:
    directory = str(small_disk / "store")

    def start() -> tuple[BrokerProcess, str]:
        broker = BrokerProcess(directory, segment_bytes=SEGMENT_BYTES)
        url = broker.next_report()
        if not isinstance(url, str) or not url.startswith("tcp://"):
            broker.process.kill()
            broker.close()
            pytest.fail(f"it does not start: {url}")
        return broker, url

    def end(broker: BrokerProcess) -> None:
        broker.process.kill()
        broker.close()

    broker, url = start()
    stored = 0
    for lap in range(4):
        stored = trio.run(fill, url)
        assert stored > 150, "what was drained is room again"
        if lap < 3:
            trio.run(drain, url, stored, small_disk)
    end(broker)
    for number in range(STARTS):
        broker, url = start()
        if number % 10 == 9:
            trio.run(drain_a_little, url)
            stored -= 1
        end(broker)
    broker, url = start()
    trio.run(drain, url, stored, small_disk)
    assert trio.run(fill, url) > 150
    end(broker)
