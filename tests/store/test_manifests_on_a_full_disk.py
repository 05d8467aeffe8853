"""A disk that is full to the last page: commits, compaction and preallocation want its space at the same time.

Every change of segments needs a manifest first.  So nobody may keep the space, or the lock, that a manifest waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

from meshq.errors import AddressFullError
from meshq.limits import KIB
from meshq.store import CheckpointRecord, Journal
from meshq.testing import InlineThreads, SimDisk
from qa.journal.model import ROOT_DIRECTORY, journal_env
from tests.store.kit import make_owner

T = TypeVar("T")

SEGMENT_BYTES = 128 * KIB
PAGE_BYTES = 4 * KIB


class SlowThreads(InlineThreads):
    """Threads whose calls begin late and end late, so that calls of several tasks overlap in every order."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(lambda: False)
        self._rng = rng

    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        await self._pause()
        value = await super().run(function, *arguments, pool=pool)
        await self._pause()
        return value

    async def _pause(self) -> None:
        await trio.sleep(self._rng.random() * self._rng.choice((0.000_1, 0.001, 0.01)))


class SmallDisk:
    """Lives of one journal on a disk with a few segments' worth of pages."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        pages = rng.choice((8, 16, 24)) * SEGMENT_BYTES // PAGE_BYTES + rng.randrange(32)
        self.disk = SimDisk(random.Random(seed), capacity_bytes=pages * PAGE_BYTES, page_bytes=PAGE_BYTES)
        self.body = bytes(rng.choice((900, 10_000)))
        #: The records that are not deleted.
        self.left: list[int] = []
        self.lives = 0

    def journal(self) -> Journal:
        """The journal of the next life."""
        self.lives += 1
        env = journal_env(self.disk, seed=self.lives, threads=SlowThreads(self.rng))
        journal = Journal(ROOT_DIRECTORY, segment_bytes=SEGMENT_BYTES, segment_bytes_min=1024, env=env)
        journal.attach(make_owner(checkpoint=lambda: [CheckpointRecord(7, bytes(32))]))
        return journal

    async def fill(self, journal: Journal) -> None:
        """Append records until the disk is full."""
        with pytest.raises(AddressFullError):
            while True:
                self.left.append(journal.append_nowait(1, [self.body]))
                await journal.wait_durable(self.left[-1])

    async def drain(self, journal: Journal, count: int) -> None:
        """Delete records one by one; each is durable in time."""
        for position in self.left[:count]:
            with trio.fail_after(60):
                await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[position]))
        del self.left[:count]

    async def life(self, number: int) -> None:
        """Serve for a while, and be killed."""
        async with trio.open_nursery() as nursery:
            journal = self.journal()
            await journal.open()
            await nursery.start(journal.run)
            if number == 0:
                for _ in range(self.rng.choice((0, 2))):
                    await self.fill(journal)
                    await self.drain(journal, len(self.left))
                await self.fill(journal)
            else:
                await trio.sleep(self.rng.random() * self.rng.choice((0.001, 0.01, 0.1, 1)))
                if self.rng.random() < 0.3:
                    await self.drain(journal, self.rng.choice((1, 3)))
            self.disk.kill()
            nursery.cancel_scope.cancel()


async def drained_after_many_lives(seed: int) -> None:
    """Fill the disk, kill some lives there, and drain all of it."""
    small = SmallDisk(seed)
    for number in range(small.rng.choice((5, 12))):
        await small.life(number)
    journal = small.journal()
    await journal.open()
    assert {record.position for record in journal.recovered() if record.kind == 1} == set(small.left)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await small.drain(journal, len(small.left))
        await trio.sleep(60)
        assert not journal.full
        await journal.append(b"goes on")
        await journal.aclose()


#: These found a lock that was held for space, and a ballast that was made while its old file
#: was being removed.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [42, 69, 108])
async def test_a_disk_that_is_full_to_the_last_page_is_drained(seed: int) -> None:
    await drained_after_many_lives(seed)


@pytest.mark.exhaustive
@pytest.mark.timeout(1_800)
async def test_thirty_disks_that_are_full_to_the_last_page_are_drained() -> None:
    for seed in range(30):
        await drained_after_many_lives(seed)
