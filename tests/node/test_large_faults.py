"""Large messages on disks that fail: what is refused, what ends the node, what a consumer is told."""

from __future__ import annotations

import errno
import random

import attrs
import pytest
import trio

from meshq import AddressFullError, Broker, Client, MeshqError, RefusedError, abc, limits
from meshq.env import real_env
from meshq.errors import DamagedError
from meshq.settings import JournalSettings
from meshq.testing import InlineThreads, SimDisk, SimulatedCrash

BLOCK = limits.LARGE_BLOCK_BYTES
BODY = random.Random(1).randbytes(2 * BLOCK + 5)
LARGE = "/data/n/large"


def env_on(disk: SimDisk) -> abc.Env:
    return attrs.evolve(real_env(), disk=disk.mount(), threads=InlineThreads(), local={})


def broker_on(env: abc.Env) -> Broker:
    journal = JournalSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)
    return Broker("n", data_dir="/data/n", env=env, journal=journal, queues=["q"])


async def test_a_full_disk_refuses_the_body_and_the_node_goes_on() -> None:
    disk = SimDisk(random.Random(0), capacity_bytes=1_500_000)
    env = env_on(disk)
    async with broker_on(env) as broker, broker.client() as client:
        await client.send("q", BODY)
        with pytest.raises(AddressFullError) as caught:
            await client.send("q", BODY * 3)
        assert caught.value.outcome == "not_done"
        await trio.sleep(1)
        assert len(env.disk.names(LARGE)) == 1
        async with client.consumer("q") as consumer:
            message = await consumer.receive(timeout=5)
            assert message is not None and message.body == BODY
            await message.ack(confirm=True)
        await trio.sleep(1)
        await client.send("q", BODY)


@pytest.mark.parametrize("call", ["write", "sync", "replace", "sync_directory"])
async def test_a_disk_that_fails_a_body_ends_the_node_and_nothing_was_confirmed(call: str) -> None:
    disk = SimDisk(random.Random(0))
    env = env_on(disk)
    with pytest.raises(MeshqError, match="can't be written"):
        async with broker_on(env) as broker, broker.client() as client:
            # Until here its journal has opened all that it needs.
            await client.send("q", b"small")
            await trio.sleep(5)
            disk.fuse(1, errno.EIO, only=(call,))  # type: ignore[arg-type]
            with pytest.raises(MeshqError) as caught:
                await client.send("q", BODY)
            assert caught.value.outcome in ("not_done", "unknown")
            await trio.sleep(1)
    async with broker_on(env_on(disk)) as broker, broker.client() as client:
        assert (await client.queue("q")).ready == 1
        assert disk.names(LARGE) == []


async def damaged_store(disk: SimDisk) -> str:
    """A store with one large message, the body of which is damaged; the file."""
    async with broker_on(env_on(disk)) as broker, broker.client() as client:
        await client.send("q", BODY)
        await client.send("q", b"small")
    (name,) = disk.names(LARGE)
    disk.flip_bit(f"{LARGE}/{name}", 8 * (BLOCK + 1_000))
    return f"{LARGE}/{name}"


async def test_a_damaged_body_is_never_handed_over_and_its_message_stays(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(random.Random(0))
    path = await damaged_store(disk)
    async with broker_on(env_on(disk)) as broker, broker.client() as client:
        async with client.consumer("q") as consumer:
            first, second = await consumer.receive(timeout=5), await consumer.receive(timeout=5)
            assert first is not None and second is not None
            for _ in range(2):
                with pytest.raises(RefusedError, match=r"damaged at offset") as caught:
                    first.body  # noqa: B018
            # Where the broker keeps its files is said at the broker only.
            assert path not in str(caught.value) and "/" not in str(caught.value)
            assert path in caplog.text
            assert caught.value.refusal == "unreadable"
            with pytest.raises(RefusedError, match=r"damaged at offset"):
                await first.read()
            assert second.body == b"small"
            await first.reject()
            await second.ack(confirm=True)
        assert (await client.queue("q")).rejected == 1


async def test_a_body_that_is_gone_refuses_the_start_by_its_name() -> None:
    disk = SimDisk(random.Random(0))
    path = await damaged_store(disk)
    disk.remove(path)
    with pytest.raises(DamagedError, match="which a record refers to"):
        async with broker_on(env_on(disk)):
            raise AssertionError("it must not start")


@pytest.mark.slow
async def test_power_lost_at_any_call_of_a_large_send_leaves_the_whole_message_or_none() -> None:
    seen = set()
    for calls in range(1, 40):
        disk = SimDisk(random.Random(calls))
        confirmed = False
        try:
            async with broker_on(env_on(disk)) as broker, broker.client(call_timeout=1) as client:
                disk.fuse(calls)
                await client.send("q", BODY)
                confirmed = True
                disk.power_loss()
        except* (SimulatedCrash, MeshqError, OSError):
            # A machine that is off says all kinds of things.
            pass
        disk.faults.fuse = None
        async with broker_on(env_on(disk)) as broker, broker.client() as client:
            ready = (await client.queue("q")).ready
            assert ready or not confirmed
            assert len(disk.names(LARGE)) == ready
            await check(client, ready)
        seen.add((confirmed, ready))
    assert {(False, 0), (True, 1)} <= seen


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
async def test_an_end_at_any_call_of_an_acknowledgement_leaves_the_whole_message_or_none(killed: bool) -> None:
    seen = set()
    for calls in range(1, 30):
        disk = SimDisk(random.Random(calls))
        try:
            async with broker_on(env_on(disk)) as broker, broker.client(call_timeout=1) as client:
                await client.send("q", BODY)
                async with client.consumer("q") as consumer:
                    message = await consumer.receive(timeout=5)
                    assert message is not None
                    # As kill -9, when what was written stays, synced or not; or as a loss of power.
                    disk.fuse(calls, disk.kill if killed else None)
                    await message.ack(confirm=True)
                    await trio.sleep(1)
                    disk.power_loss()
        except* (SimulatedCrash, MeshqError, OSError):
            pass
        disk.faults.fuse = None
        async with broker_on(env_on(disk)) as broker, broker.client() as client:
            ready = (await client.queue("q")).ready
            assert len(disk.names(LARGE)) == ready
            await check(client, ready)
        seen.add(ready)
    # The call after which it is killed was carried out: the first one writes that the message is gone.
    assert seen == ({0} if killed else {0, 1})


async def check(client: Client, ready: int) -> None:
    async with client.consumer("q") as consumer:
        for _ in range(ready):
            message = await consumer.receive(timeout=5)
            assert message is not None and message.body == BODY
