"""A broker whose process has no descriptor left: nothing ends, and whatever waited goes on once there is one."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from meshq import AddressFullError, Broker, JournalSettings, connect
from meshq.limits import KIB

#: Small, so that every few messages need a new file.
JOURNAL = JournalSettings(segment_bytes=64 * KIB)
BODIES = 60


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process can open nothing."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
    # The limit is one above the highest number, so the numbers that are free below it are filled.
    fillers = []
    try:
        while True:
            fillers.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for filler in fillers:
            os.close(filler)


@pytest.mark.processes
async def test_a_broker_without_descriptors_waits_lives_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent = 0
    taken: list[bytes] = []
    all_sent = trio.Event()
    async with (
        Broker("hq", data_dir=tmp_path / "hq", journal=JOURNAL, acceptors=["tcp://127.0.0.1:0"]) as broker,
        broker.client(call_timeout=60) as client,
        client.consumer("q", window=1) as consumer,
        trio.open_nursery() as nursery,
    ):
        await client.send("q", b"first")

        async def send() -> None:
            nonlocal sent
            while sent < BODIES:
                try:
                    await client.send("q", b"%d " % sent + bytes(8 * KIB))
                except AddressFullError:
                    # As on a full disk: what was under way when there was no room is refused, and nothing is stored.
                    await trio.sleep(0.05)
                else:
                    sent += 1
            all_sent.set()

        with no_descriptors():
            nursery.start_soon(send)
            await trio.sleep(3)
            assert broker.state == "active" and 0 < sent < BODIES
            # Who has taken a connection's place in the line of the system is not looked at in a busy loop.
            before = sum(os.times()[:2])
            await trio.sleep(0.5)
            assert sum(os.times()[:2]) - before < 0.4
            # Whoever takes what is there goes on.
            for _ in range(3):
                delivery = await consumer.receive(timeout=5)
                assert delivery is not None
                taken.append(delivery.body[:8].split()[0])
                await consumer.ack(delivery)
        with trio.fail_after(30):
            await all_sent.wait()
        assert taken == [b"first", b"0", b"1"]
        async with connect(broker.urls[0]) as other:
            left = await other.queue("q")
            assert left.ready + left.delivering == BODIES - 2
    assert "it is tried again until a descriptor is free" in caplog.text


@pytest.mark.processes
async def test_an_acceptor_without_descriptors_accepts_once_there_is_one(tmp_path: Path) -> None:
    async with Broker("hq", data_dir=None, acceptors=["tcp://127.0.0.1:0"]) as broker:
        port = int(broker.urls[0].rpartition(":")[2])
        stream = trio.socket.socket()
        with no_descriptors():
            # The system takes the connection; the broker can't.
            await stream.connect(("127.0.0.1", port))
            await trio.sleep(0.5)
            assert broker.state == "active" and broker.statistics().connections == 0
        await trio.sleep(0.3)
        assert broker.statistics().connections == 1
        stream.close()
