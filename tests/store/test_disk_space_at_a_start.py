"""A start on a disk with little room keeps what there is for draining; with room again all is as it should be."""

from __future__ import annotations

import math

import pytest
import trio

from meshq.errors import AddressFullError
from meshq.limits import KIB
from meshq.store.allocation._batch_space import large_bytes
from tests.store.kit import Store

SEGMENT_BYTES = 128 * KIB
#: Of records of so many bytes the reserve takes one.
LARGE_BYTES = large_bytes(SEGMENT_BYTES) - 100


def preallocated_segments(store: Store) -> list[str]:
    """The files of segments that don't count: what is made ahead."""
    listed = store.segments()
    return [path for path in store.disk.files() if path.endswith(".seg") and path not in listed]


async def begun(store: Store, room_bytes: int) -> list[int]:
    """An earlier life has left some records, and the disk that much room."""
    async with store.journal(segment_bytes=SEGMENT_BYTES) as journal:
        positions = await journal.append_many([bytes(900)] * 20)
    store.disk.capacity_bytes = store.disk.used_bytes() + room_bytes
    return positions


@pytest.mark.parametrize("room_bytes", range(32 * KIB, 256 * KIB, 16 * KIB))
async def test_however_little_space_a_start_finds_it_is_drained_and_whole_again_with_more(
    store: Store, room_bytes: int
) -> None:
    positions = await begun(store, room_bytes)
    async with store.journal(segment_bytes=SEGMENT_BYTES) as journal:
        # The next segment is wanted before anything else is made.
        first = journal.append_nowait(1, [b"new"])
        await trio.sleep(5)
        if journal.full:
            with pytest.raises(AddressFullError):
                journal.append_nowait(1, [b"newer"])
        with trio.fail_after(60):
            await journal.wait_durable(first)
            for position in positions[:3]:
                await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[position]))
        store.disk.capacity_bytes = math.inf
        await trio.sleep(30)
        assert not journal.full
        # What was made by the way is gone: there is the next segment and the reserve, no more.
        assert len(preallocated_segments(store)) <= 2
        # A disk that fills up now has as much to go on with as any other.
        store.disk.capacity_bytes = store.disk.used_bytes()
        with trio.fail_after(60):
            while not journal.full:
                await journal.append(bytes(900))
            segments = journal.statistics().segments
            while journal.statistics().segments == segments:
                note = journal.append_nowait(2, [bytes(LARGE_BYTES)], tombstone=True, refs=[first])
                await journal.wait_durable(note)
        store.disk.capacity_bytes = math.inf
        await trio.sleep(30)
        assert not journal.full
        assert len(preallocated_segments(store)) <= 2
    found = {record.position for record in store.records() if not record.tombstone}
    assert found >= {*positions[3:], first}
    assert not found & {*positions[:3]}
