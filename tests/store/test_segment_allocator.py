"""The segment allocator on a full disk: a manifest gets the space that was made ahead, and keeps it until written."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from meshq.limits import KIB
from meshq.store.allocation._ballast import BALLAST_BYTES, Ballast
from meshq.store.allocation._segment_allocator import SegmentAllocator
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.testing import SimDisk
from qa.journal.model import ROOT_DIRECTORY, journal_env
from tests.store.test_manifests_on_a_full_disk import SlowThreads

SEGMENT_BYTES = 64 * KIB


async def nothing() -> None:
    """No segment of an earlier life is to be truncated."""
    await trio.lowlevel.checkpoint()


def made_on(disk: SimDisk) -> SegmentAllocator:
    """An allocator of a new journal."""
    layout = Layout(ROOT_DIRECTORY, Keyring(()))
    disk.make_directory(layout.journal)
    return SegmentAllocator(journal_env(disk), layout, SEGMENT_BYTES, 1, lambda: None)


def sizes(disk: SimDisk) -> list[int]:
    """The sizes of the files that were made ahead."""
    return sorted(disk.open(path).size() for path in disk.files())


async def test_a_manifest_takes_the_ballast_then_the_spare_then_the_reserve_and_nothing_is_made_meanwhile() -> None:
    disk = SimDisk()
    allocator = made_on(disk)
    reserve = allocator.reserve_bytes
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocator.run, nothing)
        allocator.request_spare()
        await trio.sleep(1)
        whole = sorted((BALLAST_BYTES, SEGMENT_BYTES, reserve))
        assert sizes(disk) == whole
        assert await allocator.free_for_manifest()
        await trio.sleep(100)
        assert sizes(disk) == sorted((SEGMENT_BYTES, reserve))
        assert not allocator.full
        assert await allocator.free_for_manifest()
        await trio.sleep(100)
        assert sizes(disk) == [reserve]
        assert allocator.full
        assert await allocator.free_for_manifest()
        await trio.sleep(100)
        assert sizes(disk) == []
        assert not await allocator.free_for_manifest()
        await allocator.wait_for_manifest_space()
        assert sizes(disk) == []
        allocator.release_space()
        await trio.sleep(1)
        assert sizes(disk) == whole
        assert not allocator.full
        allocator.stop()
        with pytest.raises(DiskFullError):
            await allocator.wait_for_manifest_space()


async def test_a_wait_for_the_space_of_a_manifest_ends_when_the_allocator_is_told_to_stop() -> None:
    disk = SimDisk(capacity_bytes=0)
    allocator = made_on(disk)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(allocator.run, nothing)
        # The pauses between two attempts have become as long as they get.
        await trio.sleep(100)
        begun = trio.current_time()
        nursery.start_soon(allocator.wait_for_manifest_space)
        nursery.start_soon(allocator.wait_for_manifest_space)
        await trio.testing.wait_all_tasks_blocked()
        allocator.stop()
    assert trio.current_time() == begun


async def test_a_ballast_that_is_wanted_again_at_once_waits_until_its_old_file_is_gone() -> None:
    for seed in range(20):
        disk = SimDisk()
        ballast = Ballast(journal_env(disk, threads=SlowThreads(random.Random(seed))), "/ballast")
        await ballast.make()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ballast.remove_for_space)
            await trio.testing.wait_all_tasks_blocked()
            assert ballast.wanted_again()
            assert ballast.missing
            await ballast.make()
        assert sizes(disk) == [BALLAST_BYTES]
