"""The checker accounts for every byte, sees what is wrong, and changes nothing; the dump shows the records."""

from __future__ import annotations

import random

import attrs
import pytest
import trio

from meshq.errors import NotFoundError
from meshq.store.__main__ import main
from meshq.store.inspection._check import Report, _check_ranges, check_store
from meshq.store.inspection._dump import dump_store
from meshq.testing import SimDisk
from qa.journal.model import ROOT_DIRECTORY
from tests.store.kit import Store


async def _used(store: Store) -> None:
    """A store with every kind of region that a live one has."""
    async with store.journal() as journal:
        positions = await journal.append_many([b"%d" % number + bytes(900) for number in range(40)])
        await trio.sleep(2)
        for position in positions[::2]:
            await journal.delete(position)


async def _crashed(store: Store) -> Store:
    async with store.journal() as journal:
        await journal.append_many([b"x"] * 3)
        await trio.sleep(3)
        await journal.append(b"y")
        return Store(disk=store.disk.copy())


def _run(store: Store, *arguments: str) -> int:
    return main(list(arguments), store.disk)


async def test_every_byte_of_a_store_is_in_one_region(store: Store) -> None:
    await _used(store)
    report = store.report()
    by_file: dict[str, list[tuple[int, int]]] = {}
    for region in report.regions:
        by_file.setdefault(region.file, []).append((region.offset, region.size))
    assert sorted(by_file) == store.disk.files()
    for path, spans in by_file.items():
        end = 0
        for offset, size in sorted(spans):
            assert offset == end
            end += size
        assert end == len(store.disk.content(path))
    assert report.bytes == sum(len(store.disk.content(path)) for path in store.disk.files())


async def test_a_crashed_store_is_clean_and_shows_what_the_crash_left(store: Store) -> None:
    crashed = await _crashed(store)
    assert set(crashed.report().sums()) == {
        *("lock", "identity", "manifest", "header", "batch", "watermark", "zeros", "made ahead", "ballast"),
    }
    assert crashed.report().clean


async def test_a_check_changes_nothing(store: Store) -> None:
    crashed = await _crashed(store)
    before = {name: crashed.disk.content(name) for name in crashed.disk.files()}
    assert crashed.report() == crashed.report()
    assert list(dump_store(crashed.disk, ROOT_DIRECTORY))
    assert {name: crashed.disk.content(name) for name in crashed.disk.files()} == before


@pytest.mark.slow
async def test_every_flipped_bit_of_a_clean_store_is_seen(store: Store) -> None:
    """Of files that are covered by checks to their last byte; and of zeros, which must be zeros."""
    await _used(store)
    store.damaged = True
    rng = random.Random(1)
    for path in store.disk.files():
        for _ in range(40 if store.disk.content(path) else 0):
            bit = rng.randrange(len(store.disk.content(path)) * 8)
            store.disk.flip_bit(path, bit)
            report = store.report()
            seen = {"left behind the seal", "index of no use"} & set(report.sums())
            assert not report.clean or seen, (path, bit)
            store.disk.flip_bit(path, bit)
    assert store.report().clean


@pytest.mark.parametrize(
    "path",
    ["/store/what", "/store/bindings/what", "/store/journal/what", "/store/journal/0000000000000000.SEG"],
)
async def test_a_file_that_nobody_knows_is_named(store: Store, path: str) -> None:
    await _used(store)
    store.damaged = True
    store.disk.open(path, create=True).write_at(0, [b"???"])
    report = store.report()
    assert not report.clean
    assert [(region.file, region.size) for region in report.regions if region.what == "unknown"] == [(path, 3)]


async def test_a_directory_that_nobody_knows_is_named(store: Store) -> None:
    await _used(store)
    store.damaged = True
    store.disk.make_directory("/store/other")
    assert [region.file for region in store.report().regions if region.what == "unknown"] == ["/store/other"]


async def test_leftovers_of_a_crash_are_no_damage(store: Store) -> None:
    await _used(store)
    data = store.disk.content(store.segments()[0])
    for name in ("journal/manifest-0.tmp", "bindings/identity-1.tmp", "journal/00000000000000ff.seg"):
        store.disk.open(f"/store/{name}", create=True).write_at(0, [data])
    report = store.report()
    assert report.clean
    assert report.sums()["unfinished"][0] == 2
    assert report.sums()["unlisted"][0] == 1
    async with store.journal():
        pass
    assert "unlisted" not in store.report().sums()
    assert "unfinished" not in store.report().sums()


async def test_where_there_is_no_store_the_check_says_so(store: Store) -> None:
    for check in (check_store, lambda disk, root: list(dump_store(disk, root))):
        with pytest.raises(NotFoundError, match="/nowhere"):
            check(SimDisk(), "/nowhere")
    disk = SimDisk()
    disk.make_directory("/half/journal")
    disk.make_directory("/half/bindings")
    with pytest.raises(NotFoundError, match="/half"):
        list(dump_store(disk, "/half"))
    assert check_store(disk, "/half").clean


async def test_the_command_says_with_its_status_whether_all_is_well(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    await _used(store)
    assert _run(store, "check", ROOT_DIRECTORY) == 0
    assert "every byte is accounted for" in capsys.readouterr().out
    store.damaged = True
    path = store.segments()[0]
    store.disk.flip_bit(path, 6_000 * 8)
    assert _run(store, "check", ROOT_DIRECTORY) == 1
    printed = capsys.readouterr().out
    assert f"damage: {path} from" in printed
    assert f"{path} is damaged at offset" in printed
    assert "not as it was written" in printed
    assert _run(store, "check", "/nowhere") == 2
    assert "NotFoundError" in capsys.readouterr().err


async def test_a_store_that_is_in_use_is_not_looked_at(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    async with store.journal():
        assert _run(store, "check", ROOT_DIRECTORY) == 2
        assert "BusyError" in capsys.readouterr().err
    assert _run(store, "check", ROOT_DIRECTORY) == 0


async def test_the_dump_shows_segments_batches_and_records(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    async with store.journal() as journal:
        await journal.append_many([b"hello", bytes(100)])
        await trio.sleep(3)
        await journal.delete(1)
        journal.append_nowait(9, [b"half"], tombstone=True, refs=[2])
        await journal.wait_durable(4)
        crashed = Store(disk=store.disk.copy())
    assert _run(crashed, "dump", ROOT_DIRECTORY) == 0
    printed = capsys.readouterr().out
    for line in (
        f"node {journal.node_id}",
        "segment 1 open base 1 last 0 length 4096",
        "batch 1 at 4096 durable 0",
        "1 kind 1 record 5 bytes b'hello'",
        "…",
        "watermark 2 at 4608 durable 2",
        "3 kind 1 tombstone deletes [1] 0 bytes",
        "4 kind 9 tombstone refs [2] 4 bytes b'half'",
        "bytes behind: zeros",
    ):
        assert line in printed


async def test_two_segments_that_claim_one_position_are_damage(store: Store) -> None:
    await _used(store)
    store.damaged = True
    report = Report("/store")
    first = store.manifest().entries[0]
    _check_ranges([first, attrs.evolve(first, number=77)], report)
    assert report.damage == ["segments 1 and 77 both have position 1"]


async def test_a_store_whose_identity_or_manifest_is_damaged_is_reported_whole(store: Store) -> None:
    await _used(store)
    store.damaged = True
    for which in (0, 1):
        store.disk.flip_bit(f"/store/bindings/identity-{which}", 300)
    report = store.report()
    assert len(report.damage) == 3
    assert "identity-0 is damaged at offset 0: expected an identity" in report.damage[-1]
    assert report.sums()["damage"][0] == 2
    store.disk.flip_bit("/store/journal/manifest-0", 300)
    report = store.report()
    assert report.sums()["damage"][0] == 3
    assert report.bytes == sum(len(store.disk.content(path)) for path in store.disk.files())


async def test_a_segment_without_a_header_is_damage_to_its_end(store: Store) -> None:
    await _used(store)
    store.damaged = True
    path = store.segments()[0]
    store.disk.flip_bit(path, 0)
    damage = [region for region in store.report().regions if region.what == "damage"]
    assert [(region.file, region.offset, region.size) for region in damage] == [
        (path, 0, len(store.disk.content(path)))
    ]
