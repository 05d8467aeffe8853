"""A journal with a sink that is slow, partial or wrong, under load: each record and each deletion is accounted for."""

from __future__ import annotations

import io
import math
import random

import attrs
import pytest
import trio

from meshq.abc import ReplicatedBatch
from meshq.errors import AddressFullError, BrokenError, ClosedError, JournalBrokenError
from meshq.ids import Position
from meshq.store import Journal
from meshq.store.formats._batch_format import SIZE_MASK
from meshq.testing import MemorySink, SimDisk, Simulation, run_seed
from qa.journal.model import Model, recover_and_check
from tests.store.kit import Store

SEEDS = range(40)
WRITERS = 6
FAULTS = ("none", "fails", "tells too little", "tells too much", "refuses a batch")
RECORD, TOMBSTONE = 1, 2


class UnreliableSink(MemorySink):
    """A sink that takes its time, tells only a part of what it has, and has at most one kind of fault."""

    def __init__(self, rng: random.Random, fault: str) -> None:
        super().__init__()
        self.rng = rng
        self.fault = fault

    def place(self, batch: ReplicatedBatch) -> None:
        if self.fault == "refuses a batch" and self.rng.random() < 0.01:
            raise ValueError("a mistake in the sink")
        super().place(batch)

    async def durable_beyond(self, position: Position) -> Position:
        await trio.sleep(self.rng.random() * self.rng.choice((0.001, 0.05, 3.0)))
        if self.fault != "none" and self.rng.random() < 0.02:
            if self.fault == "fails":
                raise BrokenError("the partner is gone")
            if self.fault == "tells too little":
                return Position(max(0, position - 1))
            if self.fault == "tells too much":
                return Position(10**9)
        has = await super().durable_beyond(position)
        self.told = Position(self.rng.randrange(position + 1, has + 1))
        return self.told


@attrs.define(eq=False)
class Load:
    """Writers on one journal, and what the journal said to each of them."""

    journal: Journal
    sink: UnreliableSink
    rng: random.Random
    model: Model = attrs.field(factory=Model)
    #: Records that are durable by the word of the journal.
    confirmed: set[int] = attrs.field(factory=set)
    #: Records of which a deletion was placed, and how it ended: "done" or the outcome of the error.
    deletions: dict[int, str] = attrs.field(factory=dict)
    #: Deletions that were refused, and so changed nothing.
    refused: set[int] = attrs.field(factory=set)

    async def write(self) -> None:
        """Append records, and delete most of them, until the journal ends."""
        rng = random.Random(self.rng.random())
        try:
            while True:
                try:
                    position = await self._append(rng.randbytes(rng.randrange(900)))
                    if rng.random() < 0.9:
                        await self._delete(position)
                except AddressFullError:
                    await trio.sleep(rng.random())
                if rng.random() < 0.2:
                    await trio.sleep(rng.random())
        except (JournalBrokenError, ClosedError):
            return

    async def _append(self, payload: bytes) -> int:
        position = self.model.place(RECORD, payload)
        await self._wait(position)
        self.confirmed.add(position)
        return position

    async def _delete(self, position: int) -> None:
        try:
            tombstone = self.model.place(TOMBSTONE, b"", tombstone=True, deletes=(position,))
        except (JournalBrokenError, ClosedError) as error:
            assert error.outcome == "not_done"
            self.refused.add(position)
            raise
        self.deletions[position] = "under way"
        try:
            await self._wait(tombstone)
        except JournalBrokenError as error:
            assert tombstone > self.journal.durable
            self.deletions[position] = error.outcome
            raise
        self.deletions[position] = "done"

    async def _wait(self, position: int) -> None:
        await self.journal.wait_durable(position)
        assert position <= self.sink.told, "confirmed, and the sink does not have it"
        assert position <= self.journal.durable

    def check_sink(self) -> None:
        """The sink was given what was placed, in order and without a gap."""
        expected = 1
        for batch in self.sink.batches:
            assert batch.first == expected
            expected = batch.last + 1
            content = io.BytesIO(b"".join(batch.parts))
            for position, row in zip(range(batch.first, expected), batch.rows, strict=True):
                # Ahead of the payload are the positions that the record deletes.
                assert content.read(row & SIZE_MASK).endswith(self.model.placed[position].payload)
            assert content.read() == b""

    def check_disk(self, disk: SimDisk) -> None:
        """A start finds each record, unless a deletion of this very record was placed."""
        records = recover_and_check(disk, self.model, self.journal.durable, self.journal.last)
        living = {record.position for record in records if not record.tombstone and not record.deleted}
        lost = self.confirmed - self.deletions.keys() - living
        assert not lost, f"records {sorted(lost)} are lost: confirmed, and no deletion was placed"
        assert self.refused <= living
        assert not {position for position, outcome in self.deletions.items() if outcome == "done"} & living


async def one_life(seed: int) -> Load:
    """A journal under load, until it is closed or has failed, and every check of it."""
    rng = random.Random(seed)
    capacity_bytes = rng.choice((math.inf, math.inf, 120_000, 200_000))
    store = Store(disk=SimDisk(random.Random(seed), capacity_bytes=capacity_bytes))
    sink = UnreliableSink(rng, FAULTS[seed % len(FAULTS)])
    journal = store.journal(sink=sink)
    load = Load(journal, sink, rng)
    load.model.journal = journal
    await journal.open()

    async def run() -> None:
        try:
            await journal.run()
        except JournalBrokenError:
            assert journal.state == "failed"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(WRITERS):
            nursery.start_soon(load.write)
        await trio.sleep(rng.random() * 20)
        with trio.CancelScope() as scope:
            if rng.random() < 0.3:
                scope.cancel()
            await journal.aclose()
    assert sink.ended and "under way" not in load.deletions.values()
    load.check_sink()
    load.check_disk(store.disk.copy())
    for chance in range(3):
        image = store.disk.copy()
        image.power_loss(random.Random(chance))
        load.check_disk(image)
    async with store.journal() as following:
        await following.append(b"goes on")
    return load


@pytest.mark.slow
def test_a_confirmed_record_is_missing_only_after_a_deletion_of_it_was_placed() -> None:
    async def main(simulation: Simulation) -> Load:
        return await one_life(simulation.seed)

    ends: dict[str, int] = {}
    unknown = 0
    for seed in SEEDS:
        load = run_seed(seed, main).check().value
        ends[load.journal.state] = ends.get(load.journal.state, 0) + 1
        unknown += list(load.deletions.values()).count("unknown")
    # Both ends were seen, and deletions whose end only the next start knows.
    assert min(ends["closed"], ends["failed"]) > 5 and unknown > 5
