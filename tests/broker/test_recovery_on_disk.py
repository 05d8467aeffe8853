"""The same histories over the real journal: on a simulated disk that loses power, and in a real directory."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from meshq import limits
from meshq.abc import Buffer
from meshq.broker.log import _high_watermarks
from meshq.env import real_env
from meshq.errors import AddressFullError
from meshq.store import CheckpointRecord, Journal, JournalRecord
from meshq.testing import SimDisk
from qa.journal.model import ROOT_DIRECTORY, journal_env
from tests.broker.kit import make_core
from tests.broker.lives import SETTINGS, Lives, snapshot
from tests.broker.logs import FakeLog
from tests.store.kit import make_owner

FAILPOINTS = ("journal.roll_early", "journal.batch_of_one", "journal.compact_early", "journal.lazy_long")


class Killed(BaseException):
    """The end of a life from outside."""


@attrs.define(eq=False, slots=False)
class SpyLog(FakeLog):
    """A real journal, and an account of what was placed in it."""

    journal: Journal | None = None

    def append_nowait(self, kind: int, parts: Sequence[Buffer], *, tombstone: bool = False, **options: Any) -> int:
        assert self.journal is not None
        if self.full and not tombstone and not options.get("vital"):
            raise AddressFullError("the disk has no room")
        payload = b"".join(bytes(part) for part in parts)
        position = self.journal.append_nowait(kind, parts, tombstone=tombstone, **options)
        deletes, refs = tuple(options.get("deletes", ())), tuple(options.get("refs", ()))
        self.records.append(JournalRecord(position, kind, payload, deletes, refs, tombstone))
        return position

    @property
    def last(self) -> int:
        return self.journal.last if self.journal is not None else 0

    def request_commit(self) -> None:
        assert self.journal is not None
        self.journal.request_commit()

    def sync(self, position: int | None = None) -> None:
        """The journal syncs when it likes."""
        assert self.journal is not None
        self.journal.request_commit()


class DiskLives(Lives):
    """A broker on a real journal."""

    def __init__(self, rng: random.Random, journal: Any) -> None:
        self.new_journal = journal
        self.rng = rng
        self.bodies = 0
        self.copies = {}
        self.seen = {}

    def checkpoint(self) -> None:
        """The journal asks for it when a segment begins."""

    def sync(self) -> None:
        self.log.request_commit()

    def ask(self) -> list[CheckpointRecord]:
        drafts = [CheckpointRecord(kind, payload) for kind, payload in self.core.checkpoint()]
        for number, draft in enumerate(drafts, self.log.last + 1):
            self.log.records.append(JournalRecord(number, draft.kind, draft.payload))
        return drafts

    async def life(self, log: SpyLog | None, steps: int, end: Any) -> SpyLog:
        """Open the journal, compare what it gives, live on for some steps, and end."""
        journal: Journal = self.new_journal()
        await journal.open()
        records = list(journal.recovered(deleted=True))
        cut = journal.last
        if log is not None:
            assert log.durable <= cut
            self.take_up(log, records, cut)
        kept = [record for record in log.records if record.position <= cut] if log is not None else []
        spy = SpyLog(records=kept, journal=journal)
        self.begin(spy, records)
        journal.attach(make_owner(durable_moved=self.core.durable_moved, checkpoint=self.ask))
        if log is not None:
            self.trim()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(journal.run)
                for _ in range(steps):
                    self.step()
                    for _ in range(self.rng.choice([0, 0, 1, 10])):
                        await trio.lowlevel.checkpoint()
                    self.look(self.log.last)
                spy.durable = journal.durable
                if await end(journal):
                    spy.durable = journal.last
                raise Killed
        except* Killed:
            pass
        return spy

    def take_up(self, log: SpyLog, records: list[JournalRecord], cut: int) -> None:
        found = snapshot(make_core(FakeLog(records=list(log.records)), records=records, settings=SETTINGS))
        fresh = make_core(FakeLog(records=list(log.records)), records=records, settings=SETTINGS)
        self.compare(found, cut)
        self.compare_ids(self.core, fresh, cut)
        self.compare_producers(self.core, fresh, cut)
        self.seen = {number: last for number, last in self.seen.items() if number in found["numbers"].values()}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Marks that are passed all the time."""
    monkeypatch.setattr(_high_watermarks, "WATERMARK_BLOCK", 4)
    monkeypatch.setattr(limits, "SEQUENCE_RESERVE", 5)
    yield


@pytest.mark.parametrize("seed", range(25))
async def test_a_broker_on_a_disk_that_loses_power_gives_back_what_was_durable(seed: int) -> None:
    rng = random.Random(seed)
    disk = SimDisk(rng)
    lives = 0

    def journal() -> Journal:
        nonlocal lives
        lives += 1
        on = {name: rng.random() < 0.3 for name in FAILPOINTS}
        env = journal_env(disk, seed=lives, failpoint=lambda name: on.get(name, False))
        return Journal(ROOT_DIRECTORY, segment_bytes=8 * 1024, segment_bytes_min=1024, env=env)

    async def end(journal: Journal) -> bool:
        how = rng.choice(["close", "kill", "power"])
        if how == "close":
            await journal.aclose()
        elif how == "kill":
            disk.kill()
        else:
            disk.power_loss(rng)
        return how == "close"

    broker = DiskLives(rng, journal)
    log = None
    for _ in range(4):
        log = await broker.life(log, rng.randint(1, 60), end)
    await broker.life(log, 0, end)


@pytest.mark.real
async def test_a_broker_in_a_real_directory_gives_back_what_was_written(tmp_path: Path) -> None:
    rng = random.Random(1)

    async def end(journal: Journal) -> bool:
        await journal.aclose()
        return True

    broker = DiskLives(rng, lambda: Journal(tmp_path, segment_bytes=limits.SEGMENT_BYTES_MIN, env=real_env()))
    log = None
    for _ in range(3):
        log = await broker.life(log, 60, end)
    await broker.life(log, 0, end)
