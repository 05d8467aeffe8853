"""The suite for journals: ours and the one in memory pass, and journals that break a promise are found."""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import Journal
from meshq.errors import BusyError, ClosedError, SettingsError
from meshq.testing import (
    JOURNAL_CHECKS,
    JournalPlace,
    MemoryJournal,
    MemoryJournalPlace,
    NonconformanceError,
    PlainJournal,
    SimDisk,
    check_journal,
)
from meshq.testing._journal import MemoryRecord, MemoryReplay, _payload
from qa.journal.model import journal_env

Check = Callable[[Callable[[], JournalPlace]], Awaitable[None]]


class OnSimulatedDisk(JournalPlace):
    """A directory on a simulated disk, whose power fails when it is asked for a crash."""

    def __init__(self, disk: SimDisk, chance: random.Random) -> None:
        self._disk = disk
        self._chance = chance

    def open(self) -> AbstractAsyncContextManager[PlainJournal]:
        return Journal("/store", segment_bytes=64 * 1024, segment_bytes_min=1024, env=journal_env(self._disk))

    def crashed(self) -> OnSimulatedDisk:
        images = list(self._disk.crash_images(limit_subset=3))
        return OnSimulatedDisk(self._chance.choice(images), self._chance)


class OnRealDisk(JournalPlace):
    """A real directory; what a crash leaves is what SIGKILL leaves, a copy of the files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = 0

    def open(self) -> AbstractAsyncContextManager[PlainJournal]:
        return Journal(self._folder, segment_bytes=64 * 1024, segment_bytes_min=1024)

    def crashed(self) -> OnRealDisk:
        self._copies += 1
        copy = self._folder.with_name(f"{self._folder.name}.{self._copies}")
        shutil.copytree(self._folder, copy)
        return OnRealDisk(copy)


@pytest.mark.parametrize("check", JOURNAL_CHECKS)
async def test_our_journal_conforms(check: Check) -> None:
    await check(lambda: OnSimulatedDisk(SimDisk(random.Random(1)), random.Random(1)))


@pytest.mark.real
async def test_our_journal_conforms_on_a_real_disk(tmp_path: Path) -> None:
    for number, check in enumerate(JOURNAL_CHECKS):
        # Files that are copied while others write them are no picture of one moment.
        if "while_records_are_written" not in str(check):
            await check(lambda folder=tmp_path / str(number): OnRealDisk(folder))


@pytest.mark.parametrize("check", JOURNAL_CHECKS)
@pytest.mark.parametrize("delay", [0.0, 0.05])
async def test_the_journal_in_memory_conforms(check: Check, delay: float) -> None:
    await check(lambda: MemoryJournalPlace(delay=delay))


class Wrong(MemoryJournal):
    """A journal in memory with one mistake."""

    async def append(self, payload: bytes) -> int:
        return (await self.append_many([payload]))[0]


class Backwards(Wrong):
    def replay(self) -> AsyncIterator[MemoryRecord]:
        self._check_open()
        return MemoryReplay(self._place.records, sorted(self._place.records, reverse=True))


class ReusesPositions(Wrong):
    async def delete(self, position: int) -> None:
        await super().delete(position)
        self._place.last = max(self._place.records, default=0)


class ForgetsDeletions(Wrong):
    """Deletes from what it has in memory only."""

    async def delete(self, position: int) -> None:
        gone = self._place.records.get(position)
        await super().delete(position)
        if gone is not None:
            self._place.unsynced_deletes[position] = gone  # type: ignore[attr-defined]


class ConfirmsTooSoon(Wrong):
    """Confirms the last record before it is written."""

    async def append_many(self, payloads: Sequence[bytes]) -> list[int]:
        positions = await super().append_many(payloads)
        self._place.unsynced = set(positions[-1:])  # type: ignore[attr-defined]
        return positions


class DropsZeros(Wrong):
    async def append_many(self, payloads: Sequence[bytes]) -> list[int]:
        if all(type(payload) is bytes for payload in payloads):
            return await super().append_many([payload.rstrip(b"\0") for payload in payloads])
        return await super().append_many(payloads)


class WritesHalves(Wrong):
    """A cancelled append leaves the first half of its record."""

    async def append(self, payload: bytes) -> int:
        done = False
        try:
            position = await super().append(payload)
            done = True
        finally:
            if not done and type(payload) is bytes:
                self._place.records[self._place.last] = payload[: len(payload) // 2]
        return position


class SharesAPosition(Wrong):
    """Looks for a free position before it waits, and takes it afterwards."""

    async def append(self, payload: bytes) -> int:
        last = self._place.last
        position = (await super().append_many([payload]))[0]
        self._place.last = max(last + 1, max(self._place.records))
        if position != last + 1:
            self._place.records[last + 1] = self._place.records.pop(position)
        return last + 1


class ForTwo(Wrong):
    """A second journal takes over from the one that is open."""

    async def __aenter__(self) -> MemoryJournal:
        self._place.journal = None
        return await super().__aenter__()


class StaysBusy(Wrong):
    """A cancelled opening leaves its place taken."""

    async def __aenter__(self) -> MemoryJournal:
        await super().__aenter__()
        await trio.lowlevel.checkpoint()
        return self


class ReplaysWhatIsNew(Wrong):
    def replay(self) -> AsyncIterator[MemoryRecord]:
        async def found() -> AsyncIterator[MemoryRecord]:
            for position in sorted(self._place.records):
                yield MemoryRecord(position, self._place.records[position])

        return found()


class WritesAfterItsEnd(Wrong):
    async def append(self, payload: bytes) -> int:
        payload = _payload(payload)
        self._check_open()
        self._place.last = position = self._place.last + 1
        await trio.sleep(0.05)
        self._place.records[position] = payload
        return position


class WrongPlace(MemoryJournalPlace):
    """A place whose journals have a mistake, and may have told of what is not written."""

    kind: type[MemoryJournal] = MemoryJournal

    def __init__(self, *, delay: float = 0.0) -> None:
        super().__init__(delay=delay)
        self.unsynced: set[int] = set()
        self.unsynced_deletes: dict[int, bytes] = {}

    def open(self) -> MemoryJournal:
        return self.kind(self)

    def crashed(self) -> MemoryJournalPlace:
        other = super().crashed()
        other.records.update(self.unsynced_deletes)
        for position in self.unsynced:
            other.records.pop(position, None)
        return other


@pytest.mark.parametrize(
    ("wrong", "promise"),
    [
        (Backwards, "a replay has all records, in order and as they were"),
        (ReusesPositions, "the position of a deleted record is not given again"),
        (ForgetsDeletions, "a deletion is durable when delete returns"),
        (ConfirmsTooSoon, "a record is durable when append returns"),
        (DropsZeros, "a replay has all records, in order and as they were"),
        (WritesHalves, "a record whose append was cancelled is there whole, or not at all"),
        (SharesAPosition, "each record has a position of its own"),
        (ForTwo, "a place has one open journal at a time"),
        (StaysBusy, "a place can be opened again after an opening that was cancelled"),
        (ReplaysWhatIsNew, "a replay leaves out what was deleted meanwhile, and what is newer"),
        (WritesAfterItsEnd, "an append that is under way writes nothing once its journal is closed"),
    ],
)
async def test_a_journal_with_a_mistake_does_not_conform(wrong: type[MemoryJournal], promise: str) -> None:
    place = type("Place", (WrongPlace,), {"kind": wrong})
    with pytest.raises(NonconformanceError, match=promise):
        await check_journal(place)


async def test_an_error_that_the_contract_does_not_name_is_one_of_the_journal() -> None:
    class Broken(MemoryJournal):
        def replay(self) -> Any:
            raise ZeroDivisionError("in a replay")

    place: Any = type("Place", (WrongPlace,), {"kind": Broken})
    with pytest.raises(NonconformanceError, match="a new journal is empty: ZeroDivisionError"):
        await check_journal(place)


async def test_a_journal_in_memory_is_of_its_place() -> None:
    place = MemoryJournalPlace()
    async with place.open() as journal:
        assert repr(journal) == "<MemoryJournal records=0 open>"
        with pytest.raises(BusyError):
            await place.open().__aenter__()
    assert repr(journal) == "<MemoryJournal records=0 closed>"


async def test_what_is_under_way_when_a_journal_in_memory_is_closed_changes_nothing() -> None:
    place, refused = MemoryJournalPlace(delay=0.05), []

    async def write(call: Callable[[Any], Awaitable[object]], argument: object) -> None:
        try:
            await call(argument)
        except ClosedError as error:
            refused.append(error)

    async with place.open() as journal:
        position = await journal.append(b"1")
    async with trio.open_nursery() as nursery, place.open() as journal:
        nursery.start_soon(write, journal.append, b"2")
        nursery.start_soon(write, journal.delete, position)
        await trio.sleep(0.01)
    assert (place.records, len(refused)) == ({position: b"1"}, 2)


class OnePlace:
    """Makes a place once, and returns it again and again."""

    def __init__(self) -> None:
        self.place = MemoryJournalPlace()

    def __call__(self) -> JournalPlace:
        return self.place


class NoBlock(MemoryJournalPlace):
    def open(self) -> Any:
        return None


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (MemoryJournalPlace(), r"make=.*: a function that returns an empty JournalPlace$"),
        (None, r"make=None .*: a function that returns an empty JournalPlace$"),
        (dict, "an empty JournalPlace, and not .*dict"),
        (NoBlock, "whose open.. returns a block, and not "),
        (OnePlace(), "an empty JournalPlace, another one at each call"),
    ],
)
async def test_what_makes_no_new_place_is_a_wrong_setting_and_no_mistake_of_a_journal(make: Any, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        await check_journal(make)


@pytest.mark.parametrize("delay", [-1, "x", None, float("nan"), float("inf"), True])
def test_a_delay_of_a_place_in_memory_is_a_number_of_seconds(delay: Any) -> None:
    with pytest.raises(SettingsError, match=r"delay=.* allowed: seconds, from 0"):
        MemoryJournalPlace(delay=delay)
