"""Segments of an earlier life are removed as soon as their records are deleted, although nothing is stored any more."""

from __future__ import annotations

import pytest
import trio

from meshq.store import CheckpointRecord, Journal
from tests.store.kit import Store, make_owner

#: Records of 900 bytes: some ten segments.
RECORDS = 160


def _owned(journal: Journal) -> Journal:
    """A journal whose owner has soft state, as a broker has."""
    journal.attach(make_owner(checkpoint=lambda: [CheckpointRecord(9, b"soft state")]))
    return journal


async def _filled(store: Store, *, clean: bool) -> list[int]:
    """One life that stores, and ends in peace or with the power."""
    journal = _owned(store.journal())
    await journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        positions = await journal.append_many([bytes(900)] * RECORDS)
        if clean:
            await journal.aclose()
        else:
            store.disk.power_loss()
            nursery.cancel_scope.cancel()
    return positions


async def _drain(journal: Journal, positions: list[int], kills_max: int, *, lazy: bool) -> None:
    for first in range(0, len(positions), kills_max):
        deletes = positions[first : first + kills_max]
        settled = journal.append_nowait(3, [], tombstone=True, deletes=deletes, lazy=lazy)
    await journal.wait_durable(settled)


async def test_what_hardly_anything_lives_of_is_emptied_in_a_life_in_which_nothing_is_written(store: Store) -> None:
    journal = _owned(store.journal())
    await journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        positions = await journal.append_many([bytes(900)] * RECORDS)
        # Some of each segment stays.
        await _drain(journal, [one for one in positions if one % 16], 64, lazy=False)
        store.disk.power_loss()
        nursery.cancel_scope.cancel()
    async with _owned(store.journal()) as journal:
        before = journal.statistics().segments
        assert before >= 9
        await trio.sleep(5)
        assert journal.statistics().segments < before // 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kills_max", [1, 64])
async def test_dead_segments_go_after_a_start_and_a_drain(
    store: Store, kills_max: int, lazy: bool, clean: bool
) -> None:
    positions = await _filled(store, clean=clean)
    async with _owned(store.journal()) as journal:
        assert journal.statistics().segments >= 9
        await _drain(journal, positions, kills_max, lazy=lazy)
        # Nothing is stored from here on: time alone.
        await trio.sleep(5)
        # The one that is written, and no other.
        assert journal.statistics().live_records == 1
        assert journal.statistics().segments == 1
        assert len(store.segments()) == 1


async def test_what_died_in_the_life_before_goes_after_a_start(store: Store) -> None:
    async with _owned(store.journal()) as journal:
        positions = await journal.append_many([bytes(900)] * RECORDS)
        await _drain(journal, positions, RECORDS, lazy=False)
        # No time to tidy: the life ends here.
    async with _owned(store.journal()) as journal:
        await trio.sleep(5)
        assert journal.statistics().segments <= 2
