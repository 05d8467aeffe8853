"""New records that wait until what was placed before them is sure of its space."""

from __future__ import annotations

import errno
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from meshq.errors import DamagedError
from meshq.limits import SECTOR_BYTES, SEGMENT_HEADER_BYTES
from meshq.store import Journal
from meshq.store.allocation._batch_space import has_space_behind
from meshq.store.allocation._disk_space_wait import DiskSpaceWait
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.directory._store_lock import _decoded
from meshq.store.formats._ping_pong_format import PingPongCopy
from tests.store.kit import Store


def batch(size: int, preallocated: int = 0) -> PendingBatch:
    """One of a record, and perhaps with a segment of its own."""
    found = PendingBatch(1, 0, rows=[size])
    if preallocated:
        found.preallocated = SimpleNamespace(capacity=preallocated)  # type: ignore[assignment]
    return found


def writer(left: int) -> Any:
    """A segment in which there is so much left."""
    return SimpleNamespace(capacity=20_000, end=20_000 - left)


def test_what_is_placed_next_is_sure_of_the_segment_being_written_and_of_the_spare_one() -> None:
    taken = batch(3_000).bytes + SECTOR_BYTES
    assert has_space_behind(writer(taken + 500), [None, batch(3_000)], 0, 500)
    assert not has_space_behind(writer(taken + 499), [None, batch(3_000)], 0, 500)
    # The spare one begins with its header.
    assert has_space_behind(writer(taken), [batch(3_000)], SEGMENT_HEADER_BYTES + 500, 500)
    assert not has_space_behind(writer(taken), [batch(3_000)], SEGMENT_HEADER_BYTES + 499, 500)
    # There is one of them.
    assert not has_space_behind(writer(0), [batch(3_000)], SEGMENT_HEADER_BYTES + taken, 500)
    assert not has_space_behind(None, [], 0, 500)
    assert has_space_behind(None, [], SEGMENT_HEADER_BYTES + 500, 500)
    # What has a segment of its own leaves the spare one to the others.
    own = SEGMENT_HEADER_BYTES + taken
    assert has_space_behind(writer(0), [batch(3_000, preallocated=own)], SEGMENT_HEADER_BYTES + 500, 500)
    assert has_space_behind(writer(0), [batch(3_000, preallocated=own + 500)], 0, 500)


def test_waiting_records_go_in_order_as_far_as_there_is_space() -> None:
    waiting, free, gone = DiskSpaceWait(), 10, []

    def take(need: int) -> None:
        nonlocal free
        free -= need
        gone.append(need)

    for need in (4, 5, 6):
        assert not waiting.wait(need, lambda need=need: take(need))  # type: ignore[misc]
    waiting.resume(lambda need: need <= free)
    assert gone == [4, 5]
    waiting.resume(lambda need: need <= free)
    assert gone == [4, 5]
    free = 6
    waiting.resume(lambda need: need <= free)
    assert gone == [4, 5, 6]


async def flood(journal: Journal) -> list[int]:
    """More than the segment being written and the spare one have space for, in one turn."""
    return [journal.append_nowait(1, [bytes(1_000)]) for _ in range(40)]


@pytest.mark.parametrize("full", [False, True])
async def test_a_small_record_waits_behind_many_batches_until_the_space_is_known(store: Store, full: bool) -> None:
    async with store.journal() as journal:
        await journal.append(b"settled")
        await trio.sleep(1)
        told: list[bool] = []
        assert journal.request_space(500, lambda: told.append(True))
        assert journal.has_space(500)
        if full:
            store.disk.capacity_bytes = store.disk.used_bytes()
        positions = await flood(journal)
        assert not journal.request_space(500, lambda: told.append(journal.full))
        assert told == []
        await trio.sleep(10)
        # On a full disk whoever waits is told no as soon as that is known.
        assert told == [full]
        assert journal.full is full
        store.disk.capacity_bytes = math.inf
        with trio.fail_after(60):
            await journal.wait_durable(positions[-1])
        await trio.sleep(60)
        assert not journal.full
        assert journal.request_space(500, lambda: told.append(True))
    assert len([record for record in store.records() if record.kind == 1]) == 41


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"journal": 1}', json.dumps({"elsewhere": "/x"}).encode()])
def test_a_sheet_of_places_that_says_something_else_is_damage(content: bytes) -> None:
    with pytest.raises(DamagedError, match="directories of"):
        _decoded(PingPongCopy(1, content), "/store/places-1")


async def test_a_large_batch_that_could_not_be_placed_gives_its_segment_back_and_the_disk_is_not_full(
    store: Store,
) -> None:
    size = 5 * 16 * 1024
    async with store.journal() as journal:
        await journal.append(b"settled")
        await trio.sleep(1)
        allocator = journal._parts.state.allocator
        held: list[Any] = []
        assert not journal.request_space(size, lambda: held.append(allocator.claim(SEGMENT_HEADER_BYTES + size)))
        await trio.sleep(1)
        (preallocated,) = held
        assert preallocated is not None
        # Meanwhile the spare one is used, and there is no space for the next.
        store.disk.faults.inject("create", errno.ENOSPC, times=2)
        await journal.append_many([bytes(1_000)] * 12)
        await trio.sleep(0.01)
        gathered = batch(size)
        gathered.preallocated = preallocated
        allocator.release(gathered)
        await trio.sleep(60)
        assert not journal.full
        await journal.append(b"goes on")
