"""Many lives of one store: killed, cut off from power, failed by the disk, out of room, closed; nothing is lost."""

from __future__ import annotations

import errno
import math
import random

import pytest
import trio

from meshq.errors import AddressFullError, JournalBrokenError
from qa.journal.crash_images import one_step
from qa.journal.model import Model
from tests.store.kit import Store, make_owner

FAILPOINTS = (
    "journal.roll_early",
    "journal.batch_of_one",
    "journal.compact_early",
    "journal.lazy_long",
    "journal.thread_always",
)
ENDS = ("close", "kill", "power", "sync", "write", "replace", "sync_directory", "full", "create", "remove")


class Killed(BaseException):
    """The end of a life from outside."""


async def _make_room(store: Store) -> None:
    await trio.sleep(20)
    store.disk.capacity_bytes = math.inf


async def _live(store: Store, model: Model, rng: random.Random, end: str) -> tuple[int, int]:
    """One life; returns what was acknowledged and what was placed when it ended."""
    journal = store.journal()
    model.journal = journal
    durable = last = 0
    try:
        await journal.open()
    except JournalBrokenError:
        return -1, -1
    records = list(journal.recovered(deleted=True))
    durable = last = journal.last
    model.truncate(last)
    model.check(records, last)
    if end in ("sync", "write", "replace", "sync_directory", "create", "remove"):
        store.disk.faults.inject(end, errno.EIO, skip=rng.randrange(12))
    journal.attach(make_owner(checkpoint=model.checkpoint))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(journal.run)
            for step in range(rng.randrange(1, 12)):
                if end == "full" and step == 1:
                    store.disk.capacity_bytes = store.disk.used_bytes() + rng.randrange(20_000)
                    nursery.start_soon(_make_room, store)
                try:
                    await one_step(rng, model, journal)
                except AddressFullError:
                    await trio.sleep(1)
                if rng.random() < 0.2:
                    await trio.sleep(rng.choice((0.001, 3)))
            if end in ("close", "full"):
                store.disk.capacity_bytes = math.inf
                await journal.aclose()
                nursery.cancel_scope.cancel()
                durable, last = journal.last, journal.last
            elif end == "kill":
                store.disk.kill()
            elif end == "power":
                store.disk.power_loss(rng)
            if end not in ("close", "full"):
                durable, last = journal.durable, journal.last
                raise Killed
    except* Killed:
        pass
    except* JournalBrokenError:
        assert end not in ("close", "full", "kill", "power"), "nothing failed"
        durable, last = journal.durable, journal.last
    store.disk.faults.clear()
    return durable, last


@pytest.mark.parametrize("seed", range(40))
async def test_nothing_acknowledged_is_lost_over_many_lives(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    model = Model()
    bounds = (0, 0)
    for _ in range(10):
        store.failpoint = {name: rng.random() < 0.3 for name in FAILPOINTS}
        idle = rng.random() < 0.5
        store.idle = lambda idle=idle: idle
        end = rng.choice(ENDS)
        copy = store.disk.copy()
        found = Store(disk=copy)
        journal = found.journal()
        await journal.open()
        assert bounds[0] <= journal.last <= bounds[1], "acknowledged or placed, not more and not less"
        await journal.aclose()
        lived = await _live(store, model, rng, end)
        if lived[0] >= 0:
            bounds = lived
        store.disk.faults.clear()
        if end not in ("close", "full", "power"):
            # Whoever was failed by its disk dies with it.
            store.disk.kill()
        if rng.random() < 0.3:
            store.disk.power_loss(rng)
