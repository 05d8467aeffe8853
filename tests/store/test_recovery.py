"""How a store is found again: what is refused, what is repaired, what is handed out."""

from __future__ import annotations

import random

import attrs
import pytest
import trio

from meshq.errors import DamagedError, SettingsError
from meshq.store import JournalRecord
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import decode_manifest, encode_manifest
from meshq.store.formats._ping_pong_format import PingPongCopy, decode_copy, encode_copy
from meshq.store.formats._segment_format import decode_header, encode_header
from meshq.store.recovery._recovery import write_manifest
from qa.journal.model import ROOT_DIRECTORY, recover_store
from tests.store.kit import Store, replayed

LAYOUT = Layout(ROOT_DIRECTORY)


async def _filled(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append_many([b"%d" % number + bytes(900) for number in range(40)])


def _overwrite(store: Store, path: str, data: bytes) -> None:
    file = store.disk.open(path)
    file.write_at(0, [data])
    file.close()


async def _refused(store: Store, *words: str) -> DamagedError:
    """The store is refused with these words, and left as it is."""
    store.damaged = True
    before = {name: store.disk.content(name) for name in store.disk.files()}
    with pytest.raises(DamagedError) as caught:
        async with store.journal():
            pass
    for word in words:
        assert word in str(caught.value)
    assert {name: store.disk.content(name) for name in store.disk.files()} == before
    assert not store.report().clean
    return caught.value


async def test_a_listed_segment_that_is_missing_is_refused_by_name(store: Store) -> None:
    await _filled(store)
    path = store.segments()[1]
    store.disk.remove(path)
    await _refused(store, path, "manifest lists", "no such file")


async def test_a_damaged_record_is_refused_with_file_and_offset(store: Store) -> None:
    await _filled(store)
    store.remove_indexes()
    path = store.segments()[1]
    store.disk.flip_bit(path, 6_000 * 8)
    error = await _refused(store, path)
    assert error.file == path
    assert 4096 <= error.offset <= 6_000


async def test_a_truncated_segment_is_refused(store: Store) -> None:
    await _filled(store)
    path = store.segments()[0]
    data = store.disk.content(path)
    store.disk.remove(path)
    file = store.disk.open(path, create=True)
    file.write_at(0, [data[:6_000]])
    file.close()
    await _refused(store, path)


@pytest.mark.parametrize("size", [0, 100, 4_095])
async def test_a_segment_without_a_whole_header_is_refused(store: Store, size: int) -> None:
    await _filled(store)
    path = store.segments()[0]
    data = store.disk.content(path)
    store.disk.remove(path)
    file = store.disk.open(path, create=True)
    file.write_at(0, [data[:size]])
    file.close()
    await _refused(store, path, "header of 4096 bytes")


@pytest.mark.parametrize("which", [0, 1])
async def test_a_damaged_manifest_is_refused_although_the_other_one_is_whole(store: Store, which: int) -> None:
    await _filled(store)
    path = f"{LAYOUT.journal}/manifest-{which}"
    store.disk.flip_bit(path, 333)
    await _refused(store, path, "checksum")


async def test_segments_without_a_manifest_are_refused(store: Store) -> None:
    await _filled(store)
    for which in (0, 1):
        store.disk.remove(f"{LAYOUT.journal}/manifest-{which}")
    await _refused(store, "manifest-0", "there are segments")


async def test_a_manifest_without_an_identity_is_refused(store: Store) -> None:
    await _filled(store)
    for which in (0, 1):
        store.disk.remove(f"{LAYOUT.bindings}/identity-{which}")
    await _refused(store, "identity-0")


async def test_two_damaged_identities_are_refused(store: Store) -> None:
    await _filled(store)
    for which in (0, 1):
        store.disk.flip_bit(f"{LAYOUT.bindings}/identity-{which}", 300)
    await _refused(store, "identity-1", "checksum")


@pytest.mark.parametrize("which", [0, 1])
async def test_one_damaged_identity_is_healed_from_the_other(store: Store, which: int) -> None:
    await _filled(store)
    path = f"{LAYOUT.bindings}/identity-{which}"
    store.disk.flip_bit(path, 300)
    async with store.journal() as journal:
        assert len(await replayed(journal)) == 40
    assert store.report().clean


async def test_an_identity_that_was_not_finished_is_completed(store: Store) -> None:
    await _filled(store)
    path = f"{LAYOUT.bindings}/identity-1"
    store.disk.replace(path, path + ".tmp")
    async with store.journal():
        pass
    assert store.disk.is_file(path)
    assert not store.disk.is_file(path + ".tmp")


@pytest.mark.parametrize("purpose", ["identity", "manifest", "segment"])
async def test_a_file_of_another_store_is_refused(store: Store, purpose: str) -> None:
    await _filled(store)
    other = Store(lives=100)
    await _filled(other)
    if purpose == "segment":
        _overwrite(store, store.segments()[0], other.disk.content(other.segments()[0]))
        await _refused(store, "journal", store.segments()[0])
        return
    directory = LAYOUT.bindings if purpose == "identity" else LAYOUT.journal
    for which in (0, 1):
        path = f"{directory}/{purpose}-{which}"
        _overwrite(store, path, other.disk.content(path))
    await _refused(store, "node")


async def test_segments_that_have_changed_places_are_refused(store: Store) -> None:
    await _filled(store)
    one, two = store.segments()[:2]
    data = store.disk.content(one)
    _overwrite(store, one, store.disk.content(two))
    _overwrite(store, two, data)
    await _refused(store, "segment 1 from position 1 on")


@pytest.mark.parametrize("change", [{"last": 5}, {"tag": bytes(16)}])
async def test_a_seal_that_does_not_fit_is_refused(store: Store, change: dict[str, object]) -> None:
    await _filled(store)
    manifest = store.manifest()
    entry = attrs.evolve(manifest.entries[0], **change)
    write_manifest(store.disk, LAYOUT, manifest.changed(entries=[entry]))
    await _refused(store, store.segments()[0])


async def test_a_segment_that_is_shorter_than_the_manifest_knows_is_refused(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"x")
        crashed = Store(disk=store.disk.copy())
    manifest = crashed.manifest()
    entry = attrs.evolve(manifest.entries[0], length=10_000)
    write_manifest(crashed.disk, LAYOUT, manifest.changed(entries=[entry]))
    await _refused(crashed, "batches up to 10000, as the manifest says")


@pytest.mark.parametrize("length", [0, 60, 61])
def test_a_manifest_whose_body_has_another_length_is_damaged(length: int) -> None:
    with pytest.raises(DamagedError):
        decode_manifest(1, bytes(length), "file")


@pytest.mark.parametrize("data", [b"", bytes(47), b"meshqpax" + bytes(60)])
def test_a_pair_file_that_is_none_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_copy(b"manifest", data, "file")


def test_a_pair_file_of_another_purpose_is_damaged() -> None:
    with pytest.raises(DamagedError, match="identity"):
        decode_copy(b"manifest", encode_copy(b"identity", PingPongCopy(1, b"body")), "file")


async def test_a_newer_manifest_is_refused_with_both_versions_named(store: Store) -> None:
    await _filled(store)
    manifest = store.manifest()
    path = f"{LAYOUT.journal}/manifest-{manifest.generation % 2}"
    newer = encode_copy(b"manifest", PingPongCopy(manifest.generation, encode_manifest(manifest)), version=3)
    _overwrite(store, path, newer)
    await _newer(store, path)


async def test_a_newer_segment_is_refused_with_both_versions_named(store: Store) -> None:
    await _filled(store)
    path = store.segments()[1]
    header = decode_header(store.disk.content(path), path)
    _overwrite(store, path, encode_header(header, version=3))
    await _newer(store, path)


async def _newer(store: Store, path: str) -> None:
    store.damaged = True
    before = {name: store.disk.content(name) for name in store.disk.files()}
    with pytest.raises(SettingsError) as caught:
        async with store.journal():
            pass
    assert path in str(caught.value)
    assert "version 2 or older" in str(caught.value)
    assert "has version 3" in str(caught.value)
    assert {name: store.disk.content(name) for name in store.disk.files()} == before


async def test_a_torn_tail_is_no_damage_and_what_was_acknowledged_is_there(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"acknowledged")
        await journal.append(b"this, too")
        path = store.segments()[0]
        crashed = Store(disk=store.disk.copy())
    file = crashed.disk.open(path)
    file.write_at(4096 + 2 * 512, [b"half of a batch"])
    file.close()
    assert crashed.report().sums()["torn tail"][0] == 1
    assert crashed.report().clean
    async with crashed.journal() as journal:
        assert await replayed(journal) == [(1, b"acknowledged"), (2, b"this, too")]
        assert journal.statistics().torn_bytes > 0
        assert await journal.append(b"next") == 3
    assert not {"torn tail", "left behind the seal"} & crashed.report().sums().keys()


async def test_records_come_in_the_order_of_positions_from_segments_that_overlap(store: Store) -> None:
    rng = random.Random(3)
    async with store.journal() as journal:
        positions = await journal.append_many([b"%d" % number + bytes(900) for number in range(100)])
        rng.shuffle(positions)
        for position in positions[:60]:
            await journal.delete(position)
        store.failpoint["journal.compact_early"] = True
        await journal.append(bytes(900))
        await trio.sleep(3)
        await journal.append(bytes(900))
        await trio.sleep(3)
        assert journal.statistics().compactions >= 1
    records = store.records()
    assert [record.position for record in records] == sorted(record.position for record in records)
    assert sorted(positions[60:]) == [record.position for record in records if not record.tombstone][:40]


async def test_a_record_comes_back_as_it_was_placed(store: Store) -> None:
    async with store.journal() as journal:
        journal.append_nowait(7, [b"ro", memoryview(b"ot"), bytearray(b"!")])
        journal.append_nowait(255, [], refs=[1])
        journal.append_nowait(3, [b"note"], tombstone=True, deletes=[2], refs=[1, 2])
        journal.append_nowait(4, [b"replaces"], deletes=[])
        await journal.wait_durable(4)
    assert store.records() == [
        JournalRecord(1, 7, b"root!"),
        JournalRecord(3, 3, b"note", deletes=(2,), refs=(1, 2), tombstone=True),
        JournalRecord(4, 4, b"replaces"),
    ]
    assert store.records(deleted=True)[1] == JournalRecord(2, 255, b"", refs=(1,), deleted=True)


async def test_positions_go_on_although_no_segment_is_left(store: Store) -> None:
    async with store.journal():
        pass
    manifest = store.manifest().changed(last=17)
    assert manifest.entries == ()
    write_manifest(store.disk, LAYOUT, manifest)
    for life in range(3):
        async with store.journal() as journal:
            assert journal.last == journal.durable == 17
            if life == 2:
                assert await journal.append(b"x") == 18


async def test_each_start_begins_a_new_segment_with_a_new_salt(store: Store) -> None:
    salts: list[bytes] = []
    for life in range(3):
        async with store.journal() as journal:
            await journal.append(b"%d" % life)
        path = store.segments()[-1]
        salts.append(decode_header(store.disk.content(path), path).salt)
    assert len(dict.fromkeys(salts)) == 3
    assert len(store.segments()) == 3


async def test_recovering_twice_changes_nothing_more(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append_many([b"x"] * 3)
        crashed = store.disk.copy()
    first = recover_store(crashed)
    second = recover_store(crashed)
    assert [entry for entry in second.manifest.entries if entry.last >= entry.base] == list(first.manifest.entries)
    assert second.manifest.last == first.manifest.last == 3
