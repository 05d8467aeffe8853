"""Messages that are not durable are paged, too: their bytes go to files of this life."""

from __future__ import annotations

import random

import pytest
import trio

from meshq import JournalBrokenError
from meshq.store import JournalRecord
from meshq.store.inspection._check import check_store
from meshq.testing import SimDisk
from tests.node.lives import Lives, TrioWall, bodies, lives, machine
from tests.node.test_paging import COUNT, MIB, body, fill, numbers, paged, used

FILES = "/data/hq/paging"


def files(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path.startswith(FILES)]


def env_of(disk: SimDisk):  # type: ignore[no-untyped-def]
    import attrs

    return attrs.evolve(machine(wall=TrioWall()), disk=disk.mount())


async def test_they_come_back_in_order_and_their_files_go() -> None:
    disk = SimDisk(random.Random(1))
    async with paged(env=env_of(disk)) as (node, client):
        await fill(client, durable=False)
        found = await client.queue("work")
        assert found.ready == COUNT and found.paged > COUNT // 2 and used(node) < MIB
        assert files(disk)
        # Nothing of them can be read there.
        assert all(bytes(4_000) not in disk.content(path) for path in files(disk))
        # Whoever looks at the store knows what they are.
        report = check_store(disk.mount(), "/data/hq")
        assert report.clean and report.sums()["page"][0] == len(files(disk))
        async with client.consumer("work") as consumer:
            assert await numbers(consumer) == list(range(COUNT))
        await trio.sleep(1)
        assert not files(disk) and node.broker.statistics().memory_used == 0


async def test_queues_that_are_not_durable_and_those_that_share_messages() -> None:
    async with paged() as (node, client):
        for name in ("a", "b"):
            await client.create_queue(name, address="work", routing="multicast", durable=False)
        await fill(client, durable=False)
        for name in ("a", "b"):
            assert used(node) < MIB
            async with client.consumer(name) as consumer:
                assert await numbers(consumer) == list(range(COUNT))
        assert node.broker.statistics().memory_used == 0


async def test_urgent_and_delayed_ones() -> None:
    async with paged() as (node, client):
        await fill(client, count=COUNT // 2, durable=False)
        await fill(client, count=COUNT // 2, durable=False, priority=9)
        await fill(client, "later", delay=5.0, durable=False)
        assert used(node) < MIB
        async with client.consumer("work") as consumer:
            assert await numbers(consumer) == 2 * list(range(COUNT // 2))
        async with client.consumer("later") as consumer:
            assert sorted(await numbers(consumer, 20.0)) == list(range(COUNT))


async def test_after_a_crash_nothing_of_them_is_left_and_durable_ones_are_whole() -> None:
    disk = SimDisk(random.Random(1))
    async with paged(env=env_of(disk)) as (node, client):
        for number in range(COUNT // 10):
            await fill(client, count=5, durable=False)
            await client.send("kept", b"%d" % number)
        assert files(disk)
        await node.again(killed=True)
        assert not files(disk)
        assert (await client.queue("work")).ready == 0
        async with client.consumer("kept") as consumer:
            assert await bodies(consumer) == [b"%d" % number for number in range(COUNT // 10)]


async def test_on_a_full_disk_they_stay_and_producers_wait() -> None:
    disk = SimDisk(random.Random(1))
    async with paged(env=env_of(disk)) as (node, client):
        await client.create_queue("work")
        disk.capacity_bytes = disk.used_bytes() + 50_000
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await fill(client, durable=False)

            nursery.start_soon(send)
            await trio.sleep(30)
            found = await client.queue("work")
            assert found.added < COUNT and used(node) > MIB // 2
            async with client.consumer("work") as consumer:
                assert await numbers(consumer, 5.0) == list(range(COUNT))


async def test_bytes_that_have_rotted_end_the_node_and_are_never_delivered() -> None:
    disk = SimDisk(random.Random(1))
    with pytest.raises((ExceptionGroup, JournalBrokenError)):
        async with lives(env=env_of(disk), memory_limit=MIB) as node, node.client() as client:
            await spoil(node, client, disk)


async def spoil(node: Lives, client, disk: SimDisk) -> None:  # type: ignore[no-untyped-def]
    await fill(client, durable=False)
    for path in files(disk):
        for byte in range(0, len(disk.content(path)), 2_000):
            disk.flip_bit(path, 8 * byte)
    async with client.consumer("work") as consumer:
        got = await numbers(consumer, 5.0)
    raise AssertionError(f"{len(got)} messages were delivered, and the node lives")


async def test_what_is_purged_while_it_is_read_back_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with paged() as (node, client):
        await fill(client, durable=False)
        journal = node.broker._node._journal
        assert journal is not None
        read, purged = journal.read, []

        async def purge_first(positions: list[int]) -> dict[int, JournalRecord]:
            if not purged:
                purged.append(await client.purge_queue("work"))
            return await read(positions)

        monkeypatch.setattr(journal, "read", purge_first)
        async with client.consumer("work", window=10) as consumer:
            got = await numbers(consumer)
            assert got == list(range(COUNT - purged[0]))
            await client.send("work", body(COUNT))
            assert await numbers(consumer) == [COUNT]
        assert node.broker.statistics().memory_used == 0
