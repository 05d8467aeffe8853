"""Indexes: a start that reads them finds what it would find without, and one that can't be believed costs time only."""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio

from meshq.abc import Buffer
from meshq.errors import DamagedError, JournalBrokenError, UsageError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store import Journal, RecordPrefix
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._segment_format import decode_header
from meshq.store.formats._segment_index_format import HEAD_BYTES, SegmentIndex, decode_index
from meshq.store.recovery._recovery import write_manifest
from meshq.testing import DiskOperation
from qa.journal.model import ROOT_DIRECTORY, recover_store
from tests.store.kit import Store, make_owner

LAYOUT = Layout(ROOT_DIRECTORY)
KEY = b"k" * 32


def _first_ten(kind: int, payload: Buffer) -> tuple[int, bool]:
    return min(10, len(payload)), kind == 7


TEN = RecordPrefix(1, _first_ten)


async def _filled(store: Store, record_prefix: RecordPrefix = TEN) -> dict[int, bytes]:
    """Make a store with deleted records, tombstones, a checkpoint and compacted segments; return its live records."""
    rng = random.Random(3)
    store.failpoint["journal.compact_early"] = False
    async with store.journal(record_prefix=record_prefix) as journal:
        living: dict[int, bytes] = {}
        for number in range(180):
            body = b"%04d" % number + rng.randbytes(rng.choice((0, 4, 700)))
            position = journal.append_nowait(rng.choice((7, 8)), [body])
            living[position] = body
            if number % 3 == 2:
                dead = rng.choice(list(living))
                del living[dead]
                journal.append_nowait(9, [b"note"], tombstone=True, deletes=[dead], refs=[rng.choice(list(living))])
            await journal.wait_durable(position)
            if number == 60:
                store.failpoint["journal.compact_early"] = True
                await trio.sleep(4)
                store.failpoint["journal.compact_early"] = False
        assert journal.statistics().compactions
        await trio.sleep(4)
    return living


def _unindexed(store: Store) -> Store:
    copy = Store(disk=store.disk.copy(), keys=store.keys)
    copy.remove_indexes()
    return copy


@pytest.mark.parametrize("keys", [(), (KEY,)])
async def test_a_start_with_indexes_finds_what_a_start_without_finds(store: Store, keys: tuple[bytes, ...]) -> None:
    store.keys = keys
    living = await _filled(store)
    assert len(store.indexes()) == len(store.segments()) > 3
    without = _unindexed(store)
    for dead in (False, True):
        found = store.records(deleted=dead)
        assert found == without.records(deleted=dead)
    assert {
        record.position: record.payload for record in found if not record.tombstone and not record.deleted
    } == living
    mine, other = (recover_store(one.disk.copy(), keyring=Keyring(keys)) for one in (store, without))
    assert len(mine.forms) == len(store.segments()) and not other.forms
    assert attrs.asdict(mine.usage.segments[mine.manifest.entries[0].number]) == attrs.asdict(
        other.usage.segments[mine.manifest.entries[0].number]
    )
    assert mine.usage._referrers == other.usage._referrers
    assert (mine.checkpoint, mine.covered) == (other.checkpoint, other.covered)


async def test_a_start_reads_of_a_segment_with_an_index_what_is_wanted_of_it_only(store: Store) -> None:
    async with store.journal() as journal:
        positions = await journal.append_many([bytes(900)] * 60)
        for position in positions:
            if position % 12 != 6:
                journal.append_nowait(9, [], tombstone=True, deletes=[position])
        await journal.wait_durable(journal.last)
        await trio.sleep(5)
    read: dict[str, int] = {}

    def watch(operation: DiskOperation) -> None:
        if operation.call == "read":
            read[operation.path] = read.get(operation.path, 0) + operation.size

    full = [(LAYOUT.segment(entry.number), entry.length) for entry in store.manifest().entries if entry.length > 12_000]
    assert len(full) > 3
    store.disk.watch = watch
    journal = store.journal()
    await journal.open()
    assert [record.position for record in journal.recovered() if not record.tombstone] == [6, 18, 30, 42, 54]
    await journal.aclose()
    store.disk.watch = None
    for path, length in full:
        # Two times its header, and one batch of it or two.
        assert 2 * SEGMENT_HEADER_BYTES < read[path] < 2 * SEGMENT_HEADER_BYTES + length / 3


@pytest.mark.parametrize("keys", [(), (KEY,)])
async def test_prefixes_are_returned_to_an_owner_that_asks_for_this_form(store: Store, keys: tuple[bytes, ...]) -> None:
    store.keys = keys
    living = await _filled(store)
    short = 0
    journal = store.journal(record_prefix=TEN)
    await journal.open()
    for record in journal.recovered(deleted=True, prefixes=True):
        if record.missing:
            short += 1
            assert record.deleted or record.kind == 7
            assert len(record.payload) == 10
        if record.position in living:
            assert living[record.position].startswith(record.payload)
            assert len(living[record.position]) == len(record.payload) + record.missing
    assert short
    await journal.aclose()
    journal = store.journal(record_prefix=RecordPrefix(2, _first_ten))
    await journal.open()
    # These indexes have prefixes of another form.
    assert not any(record.missing for record in journal.recovered(deleted=True, prefixes=True))
    await journal.aclose()


async def test_indexes_of_another_form_are_written_anew(store: Store) -> None:
    await _filled(store)
    async with store.journal(record_prefix=RecordPrefix(2, _first_ten)) as journal:
        await trio.sleep(5)
        assert journal.statistics().indexed == len(store.indexes())
    assert set(recover_store(store.disk.copy()).forms.values()) == {2}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:HEAD_BYTES],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"meshqidy" + data[8:],
        lambda data: data[:8] + struct.pack("<I", 2) + data[12:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: data[:HEAD_BYTES] + bytes(len(data) - HEAD_BYTES),
    ],
    ids=["empty", "head", "short", "long", "magic", "newer", "tag", "torn"],
)
async def test_an_index_that_is_refused_is_counted_and_written_anew(
    store: Store, change: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    await _filled(store)
    expected = store.records(deleted=True)
    path = store.indexes()[0]
    _rewrite(store, path, change(store.disk.content(path)))
    assert store.report().sums()["index of no use"][0] == 1
    assert store.report().clean
    assert store.records(deleted=True) == expected
    async with store.journal(record_prefix=TEN) as journal:
        assert journal.statistics().refused_indexes == 1
        assert [record.getMessage() for record in caplog.records if path in record.getMessage()]
        await trio.sleep(5)
    assert "index of no use" not in store.report().sums()


def _rewrite(store: Store, path: str, data: bytes) -> None:
    store.disk.remove(path)
    file = store.disk.open(path, create=True)
    file.write_at(0, [data])
    file.close()


async def test_indexes_that_have_changed_places_are_refused(store: Store) -> None:
    await _filled(store)
    expected = store.records(deleted=True)
    one, two = store.indexes()[:2]
    first, second = store.disk.content(one), store.disk.content(two)
    _rewrite(store, one, second)
    _rewrite(store, two, first)
    assert store.records(deleted=True) == expected
    assert len(recover_store(store.disk.copy()).refused) == 2
    assert store.report().sums()["index of no use"][0] == 2


async def test_an_index_of_another_state_of_its_segment_is_refused(store: Store) -> None:
    """The index knows more of the segment than the manifest does: as if it had been written before the seal was."""
    async with store.journal() as journal:
        await journal.append_many([bytes(900)] * 5)
        crashed = Store(disk=store.disk.copy(), lives=5)
        await journal.append_many([bytes(900)] * 5)
    path = store.indexes()[0]
    _rewrite_new(crashed, path, store.disk.content(path))
    assert crashed.manifest().entries[0].sealed is False
    without = Store(disk=crashed.disk.copy())
    without.disk.remove(path)
    assert [record.position for record in crashed.records()] == [record.position for record in without.records()]
    async with crashed.journal() as journal:
        positions = await journal.append_many([b"another"])
    # The segment is sealed by now, and where it ends is not where the index says.
    stale = Store(disk=crashed.disk, lives=9)
    _rewrite(stale, path, store.disk.content(path))
    assert len(recover_store(stale.disk.copy()).refused) == 1
    assert [record.payload for record in stale.records() if record.position in positions] == [b"another"]


def _rewrite_new(store: Store, path: str, data: bytes) -> None:
    file = store.disk.open(path, create=True)
    file.write_at(0, [data])
    file.sync()
    file.close()
    store.disk.sync_directory(LAYOUT.journal)


@pytest.mark.parametrize("change", [{"last": 1}, {"length": 4096}, {"tag": bytes(16)}, {"compacted": True}])
async def test_an_index_fits_one_seal_only(store: Store, change: dict[str, Any]) -> None:
    await _filled(store)
    entry = store.manifest().entries[0]
    assert isinstance(_decoded(store, entry), SegmentIndex)
    if entry.compacted:
        change = {name: not value if name == "compacted" else value for name, value in change.items()}
    assert _decoded(store, attrs.evolve(entry, **change)) == "it is of another segment, or of another state of this one"


def _decoded(store: Store, entry: SegmentEntry) -> SegmentIndex | str:
    segment = LAYOUT.segment(entry.number)
    header = decode_header(store.disk.content(segment), segment)
    return decode_index(store.disk.content(LAYOUT.index(entry.number)), header, entry, LAYOUT)


async def test_the_index_of_an_encrypted_segment_says_nothing_without_the_key(store: Store) -> None:
    store.keys = (KEY,)
    async with store.journal(record_prefix=TEN) as journal:
        await journal.append(b"secret 123")
    (path,) = store.indexes()
    assert b"secret" not in store.disk.content(path)
    store.keys = ()
    async with Store().journal(record_prefix=TEN) as journal:
        await journal.append(b"secret 123")
        plain = journal
    assert plain.state == "closed"
    store.keys = (KEY,)
    store.disk.flip_bit(path, 8 * (HEAD_BYTES + 3))
    assert len(recover_store(store.disk.copy(), keyring=Keyring(store.keys)).refused) == 1


async def test_an_index_is_written_after_the_seal_of_its_segment_is_durable(store: Store) -> None:
    sealed_at_writing: list[bool] = []

    def watch(operation: DiskOperation) -> None:
        if operation.call == "create" and ".idx" in operation.path:
            number = int(operation.path.rpartition("/")[2][:16], 16)
            power = store.disk.copy()
            power.power_loss()
            entries = Store(disk=power).manifest().by_number()
            sealed_at_writing.append(entries[number].sealed)

    store.disk.watch = watch
    await _filled(store)
    assert len(sealed_at_writing) > 3 and all(sealed_at_writing)


async def test_the_index_of_a_segment_goes_with_it(store: Store) -> None:
    async with store.journal() as journal:
        positions = await journal.append_many([bytes(900)] * 60)
        await trio.sleep(5)
        assert journal.statistics().indexed == len(store.indexes()) > 2
        for position in positions:
            journal.append_nowait(9, [], tombstone=True, deletes=[position])
        await journal.wait_durable(journal.last)
        await trio.sleep(5)
        assert journal.statistics().indexed == len(store.indexes())
        assert len(store.indexes()) < len(store.segments()) <= 3


async def test_an_index_of_no_segment_goes_at_the_next_start(store: Store) -> None:
    await _filled(store)
    _rewrite_new(store, LAYOUT.index(77), b"left over")
    _rewrite_new(store, LAYOUT.index(1) + ".tmp", b"half of one")
    assert store.report().sums()["index of no use"] == (1, 9)
    assert store.report().clean
    async with store.journal():
        pass
    assert LAYOUT.index(77) not in store.indexes()
    assert "unfinished" not in store.report().sums()


async def test_without_space_there_is_no_index_and_no_failure(store: Store) -> None:
    async with store.journal() as journal:
        store.disk.faults.inject("write", errno.ENOSPC, path=".idx", times=3)
        await journal.append_many([bytes(900)] * 40)
        await trio.sleep(5)
        assert journal.state == "open"
        await journal.append(b"and it goes on")
    assert not [path for path in store.disk.files() if path.endswith(".idx.tmp")]


# -- what a start took on trust ----------------------------------------------------------------------------------------


async def test_what_a_start_took_on_trust_is_proven_while_it_runs(store: Store) -> None:
    await _filled(store)
    async with store.journal(record_prefix=TEN) as journal:
        assert journal.statistics().unproven_segments > 3
        await trio.sleep(5)
        assert journal.statistics().unproven_segments == 0
        assert journal.statistics().damaged_segments == 0


@pytest.mark.parametrize("keys", [(), (KEY,)])
async def test_damage_in_what_was_taken_on_trust_is_found_and_the_next_start_refuses(
    store: Store, keys: tuple[bytes, ...]
) -> None:
    store.keys, store.damaged = keys, True
    living = await _filled(store)
    entry = next(entry for entry in store.manifest().entries if entry.length > 3 * SEGMENT_HEADER_BYTES)
    path = LAYOUT.segment(entry.number)
    store.disk.flip_bit(path, 8 * (entry.length - 1000))
    found: list[DamagedError] = []
    async with store.journal(record_prefix=TEN) as journal:
        journal.attach(make_owner(damaged=found.append))
        assert journal.statistics().indexed == len(store.segments())
        await trio.sleep(5)
        assert journal.statistics().damaged_segments == 1
        assert journal.statistics().unproven_segments == 0
        # Everything else goes on.
        await journal.append(b"next")
        whole = next(position for position in living if not entry.base <= position <= entry.last)
        assert (await journal.read([whole]))[whole].payload == living[whole]
    assert [(error.file, error.offset >= SEGMENT_HEADER_BYTES) for error in found] == [(path, True)]
    assert LAYOUT.index(entry.number) not in store.indexes()
    with pytest.raises(DamagedError, match=path):
        async with store.journal():
            pass


async def test_a_damaged_record_behind_an_index_is_never_handed_out(store: Store) -> None:
    store.damaged = True
    async with store.journal() as journal:
        position = await journal.append(b"whole" + bytes(900))
    store.disk.flip_bit(store.segments()[0], 8 * (SEGMENT_HEADER_BYTES + 300))
    journal = store.journal()
    await journal.open()
    with pytest.raises(DamagedError, match=store.segments()[0]):
        list(journal.recovered())
    await journal.aclose()
    with pytest.raises(JournalBrokenError):
        async with store.journal() as journal:
            await journal.read([position])


async def test_a_segment_without_all_its_bytes_is_refused_in_spite_of_its_index(store: Store) -> None:
    await _filled(store)
    store.damaged = True
    path = store.segments()[0]
    _rewrite(store, path, store.disk.content(path)[:-600][: store.manifest().entries[0].length - 512])
    with pytest.raises(DamagedError, match="the end of the file"):
        async with store.journal():
            pass


async def test_a_start_with_another_manifest_finds_the_same_records(store: Store) -> None:
    """A generation more says the same of each segment, so the indexes still fit."""
    await _filled(store)
    expected = store.records(deleted=True)
    write_manifest(store.disk, LAYOUT, store.manifest().changed())
    assert store.records(deleted=True) == expected
    assert len(recover_store(store.disk.copy()).forms) == len(store.segments())


async def test_a_journal_that_is_closed_at_once_has_indexed_its_segments(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append_many([bytes(900)] * 40)
    assert len(store.indexes()) == len(store.segments()) == 4


@pytest.mark.parametrize("keys", [(), (KEY,)])
async def test_what_was_left_out_is_read_whole_before_the_journal_runs(store: Store, keys: tuple[bytes, ...]) -> None:
    store.keys = keys
    living = await _filled(store)
    journal = store.journal(record_prefix=TEN)
    await journal.open()
    short = [record.position for record in journal.recovered(prefixes=True) if record.missing]
    assert len(short) > 5
    assert journal.read_recovered(short) == {position: living[position] for position in short}
    await journal.aclose()
    with pytest.raises(UsageError, match="between open and run"):
        journal.read_recovered(short)


async def test_what_was_left_out_and_can_not_be_read_is_told(store: Store) -> None:
    living = await _filled(store)
    store.damaged = True
    for fault in ("read", "rot", "gone"):
        journal = store.journal(record_prefix=TEN)
        await journal.open()
        short = [record.position for record in journal.recovered(prefixes=True) if record.missing]
        entry = next(entry for entry in store.manifest().entries if entry.base <= short[0] <= entry.last)
        path = LAYOUT.segment(entry.number)
        if fault == "read":
            store.disk.faults.inject("read", errno.EIO, path=path)
        elif fault == "rot":
            store.disk.flip_bit(path, 8 * store.disk.content(path).index(living[short[0]]))
        else:
            store.disk.remove(path)
        with pytest.raises(OSError if fault == "read" else DamagedError):
            journal.read_recovered(short)
        store.disk.faults.clear()
        await journal.aclose()


async def test_a_segment_of_many_records_waits_until_the_journal_is_idle_or_for_a_minute(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshq.store.maintenance._segment_indexer.MANY_RECORDS", 3)

    async def keep_busy(journal: Journal, seconds: int) -> None:
        for _ in range(4 * seconds):
            await journal.append(b"x")
            await trio.sleep(0.25)

    async with store.journal() as journal:
        await journal.append_many([bytes(900)] * 40)
        await keep_busy(journal, 30)
        assert journal.statistics().indexed == 0 < len(store.segments()) - 1
        await trio.sleep(6)
        assert journal.statistics().indexed == len(store.segments()) - 1
        await journal.append_many([bytes(900)] * 40)
        before = journal._parts.indexer.count
        await keep_busy(journal, 50)
        assert journal._parts.indexer.count == before
        await keep_busy(journal, 20)
        assert journal._parts.indexer.count > before
