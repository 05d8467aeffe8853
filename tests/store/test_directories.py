"""Parts of a store in directories of their own: where they are, and that a wrong one is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from meshq import Broker, BusyError, DamagedError, SettingsError, StoreDirectories
from meshq.store import Journal
from meshq.store.__main__ import GOOD, main
from meshq.testing import SimDisk
from qa.journal.model import ROOT_DIRECTORY
from tests.store.kit import Store, replayed

#: All but pages, which are of no account to the next start.
KEPT = StoreDirectories(journal="/fast", bindings="/safe", large_messages="/wide")


async def begun(store: Store, directories: StoreDirectories | None) -> None:
    async with store.journal(directories=directories) as journal:
        await journal.append(b"one")


async def found(store: Store, directories: StoreDirectories | None) -> list[bytes]:
    async with store.journal(directories=directories) as journal:
        return [payload for _, payload in await replayed(journal)]


def moved(disk: SimDisk, old: str, new: str) -> None:
    """What an administrator does."""
    mount = disk.mount()
    mount.make_directory(new)
    for name in mount.names(old):
        mount.replace(f"{old}/{name}", f"{new}/{name}")


async def test_each_part_is_where_it_was_said_to_be_and_nowhere_else(store: Store) -> None:
    await begun(store, KEPT)
    assert {path.rpartition("/")[0] for path in store.disk.files()} == {"/store", "/fast", "/safe", "/wide"}
    assert await found(store, KEPT) == [b"one"]


@pytest.mark.slow
@pytest.mark.real
async def test_four_directories_of_a_broker_are_used_and_the_default_ones_are_not_there(tmp_path: Path) -> None:
    paths = {part: tmp_path / part for part in ("journal", "bindings", "paging", "large_messages")}
    settings = {"data_dir": tmp_path / "data", "directories": StoreDirectories(**paths), "memory_limit": 1 << 20}
    async with Broker("hq", **settings) as broker, broker.client() as client:
        await client.send("q", b"large" * 100_000)
        for _ in range(12):
            await client.send("q", bytes(100_000), durable=False)
        async with client.consumer("q", window=1) as consumer:
            message = await consumer.receive(timeout=5)
            assert message is not None
            assert [len(os.listdir(path)) > 1 for path in paths.values()] == [True] * 4
    assert sorted(os.listdir(tmp_path / "data")) == ["lock", "places-0", "places-1"]
    assert main(["check", str(tmp_path / "data")]) == GOOD
    async with Broker("hq", **settings) as broker:
        assert broker.statistics().ready == 1


@pytest.mark.parametrize(
    ("directories", "said"),
    [
        (None, r"directories\.bindings='/store/bindings'.*/safe, where it is"),
        (StoreDirectories(bindings="/safe", large_messages="/wide"), r"directories\.journal='/store/journal'.*/fast"),
        (
            StoreDirectories(journal="/other", bindings="/safe", large_messages="/wide"),
            r"directories\.journal='/other'",
        ),
    ],
    ids=["forgotten", "one forgotten", "another one"],
)
async def test_a_store_is_not_begun_anew_beside_what_it_has(
    store: Store, directories: StoreDirectories | None, said: str
) -> None:
    await begun(store, KEPT)
    before = store.disk.files()
    with pytest.raises(SettingsError, match=said):
        await found(store, directories)
    assert store.disk.files() == before
    assert await found(store, KEPT) == [b"one"]


async def test_a_directory_whose_disk_is_not_mounted_is_no_new_one(store: Store) -> None:
    await begun(store, KEPT)
    moved(store.disk, "/fast", "/unmounted")
    with pytest.raises(SettingsError, match=r"directories\.journal='/fast'.*is its disk mounted"):
        await found(store, KEPT)
    moved(store.disk, "/unmounted", "/fast")
    assert await found(store, KEPT) == [b"one"]


async def test_a_part_whose_files_were_moved_is_found_where_they_are(store: Store) -> None:
    await begun(store, None)
    moved(store.disk, "/store/journal", "/fast")
    assert await found(store, StoreDirectories(journal="/fast")) == [b"one"]
    moved(store.disk, "/fast", "/faster")
    with pytest.raises(SettingsError, match=r"'/slow'.*the one that the files of this store were moved to"):
        await found(store, StoreDirectories(journal="/slow"))
    assert await found(store, StoreDirectories(journal="/faster")) == [b"one"]


async def test_a_new_store_takes_no_directory_that_has_files_in_it(store: Store) -> None:
    mount = store.disk.mount()
    mount.make_directory("/full")
    mount.open("/full/somebody's", create=True).close()
    for part in ("journal", "bindings", "large_messages"):
        with pytest.raises(SettingsError, match=rf"directories\.{part}='/full'.*an empty directory"):
            await begun(store, StoreDirectories(**{part: "/full"}))
    await begun(store, None)


@pytest.mark.slow
async def test_wherever_the_power_goes_while_a_store_begins_the_next_start_goes_on(store: Store) -> None:
    images: list[SimDisk] = []
    store.disk.watch = lambda operation: images.extend(store.disk.crash_images(limit_subset=4))
    await begun(store, KEPT)
    store.disk.watch = None
    assert len(images) > 100
    for image in images:
        assert await found(Store(image), KEPT) in ([], [b"one"])


def spoil(store: Store, slot: int) -> None:
    """A part of one copy rots."""
    file = store.disk.mount().open(f"{ROOT_DIRECTORY}/places-{slot}")
    file.write_at(40, [b"?"])
    file.close()


async def test_one_good_copy_of_where_the_parts_are_is_enough_and_two_bad_ones_are_damage(store: Store) -> None:
    await begun(store, KEPT)
    for slot in (0, 1, 0):
        spoil(store, slot)
        assert [problem for problem in store.report().damage if f"places-{slot}" in problem]
        assert await found(store, KEPT) == [b"one"]
        assert store.report().clean
    for slot in (0, 1):
        spoil(store, slot)
    with pytest.raises(DamagedError, match="places-1"):
        await found(store, KEPT)
    store.damaged = True


@pytest.mark.parametrize("directories", [{"journal": "/store"}, {"paging": "/store/journal"}])
async def test_no_two_parts_share_a_directory(store: Store, directories: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="another one than that of"):
        await begun(store, StoreDirectories(**directories))
    store.damaged = True  # It has not begun: there is nothing to look at.


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"journal": ""}, r"directories\.journal=''.*a directory, or None"),
        ({"paging": 7}, r"directories\.paging=7"),
        ({"paging": "/x", "bindings": "/x/"}, r"directories\.paging='/x'.*another one than that of bindings"),
    ],
)
def test_a_directory_is_a_path_and_another_one_for_each_part(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        StoreDirectories(**given)


def test_a_broker_in_memory_has_no_directories() -> None:
    with pytest.raises(SettingsError, match=r"directories=.*that has a data_dir"):
        Broker("hq", data_dir=None, directories=StoreDirectories(journal="/fast"))


@pytest.mark.real
async def test_a_directory_serves_one_open_store(tmp_path: Path) -> None:
    shared = StoreDirectories(paging=tmp_path / "pages")
    async with Journal(tmp_path / "a", directories=shared):
        with pytest.raises(BusyError, match="pages is open already"):
            async with Journal(tmp_path / "b", directories=shared):
                pass
    async with Journal(tmp_path / "b", directories=shared):
        pass
