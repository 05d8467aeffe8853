"""One owner at a time, within a process and between processes."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from meshq.env import RealDisk
from meshq.errors import BusyError
from meshq.store import Journal
from meshq.store.directory._directories import make_directories, parent, take_lock
from meshq.store.formats._layout_format import Layout
from meshq.testing import SimDisk, SimulatedCrash

OPEN = """
import sys, trio
from meshq.errors import BusyError
from meshq.store import Journal

async def main():
    try:
        async with Journal(sys.argv[1]) as journal:
            print(await journal.append(b"mine"))
    except BusyError as error:
        print("BusyError", error)

trio.run(main)
"""


def _other_process(directory: Path) -> str:
    done = subprocess.run([sys.executable, "-c", OPEN, directory], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.real
async def test_a_second_process_is_refused_with_the_directory_named_until_the_first_one_closes(
    tmp_path: Path,
) -> None:
    directory = tmp_path / "data"
    async with Journal(directory) as journal:
        said = await trio.to_thread.run_sync(_other_process, directory)
        assert said.startswith("BusyError")
        assert str(directory) in said
        assert await journal.append(b"still mine") == 1
    assert await trio.to_thread.run_sync(_other_process, directory) == "2"


@pytest.mark.slow
@pytest.mark.real
async def test_a_second_journal_of_the_same_process_is_refused_and_breaks_no_lock(tmp_path: Path) -> None:
    async with Journal(tmp_path) as journal:
        for _ in range(2):
            with pytest.raises(BusyError):
                async with Journal(tmp_path):
                    pass
        said = await trio.to_thread.run_sync(_other_process, tmp_path)
        assert said.startswith("BusyError")
        await journal.append(b"x")


@pytest.mark.parametrize(("path", "above"), [("/a/b/c", "/a/b"), ("/a", "/"), ("a/b", "a"), (".", "."), ("a/", ".")])
def test_the_directory_above_a_path_is_known_without_asking_the_disk(path: str, above: str) -> None:
    assert parent(path) == above


@pytest.mark.parametrize("root", ["/deep/in/the/tree", "relative/place", "/top"])
def test_directories_are_durable_when_they_are_made(root: str) -> None:
    disk = SimDisk()
    make_directories(disk, Layout(root))
    assert disk.unsynced() == 0
    assert disk.names(f"{root}/journal") == []


@pytest.mark.parametrize("root", ["/deep/in/the/tree", "relative/place", "/top"])
def test_directories_that_a_killed_life_made_are_durable_after_the_next_start(root: str) -> None:
    layout = Layout(root)
    for call in itertools.count(1):
        disk = SimDisk()
        disk.fuse(call, disk.kill)
        try:
            make_directories(disk.mount(), layout)
        except SimulatedCrash:
            disk.faults.clear()
        else:
            break
        make_directories(disk, layout)
        assert disk.unsynced() == 0, f"killed at call {call}"
    assert call > 6


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO])
def test_a_directory_above_that_belongs_to_others_need_not_be_synced(number: int) -> None:
    disk = SimDisk()
    make_directories(disk, Layout("/theirs/ours"))
    disk.faults.inject("sync_directory", number, path="/theirs")
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(number)):
            make_directories(disk, Layout("/theirs/ours"))
    else:
        make_directories(disk, Layout("/theirs/ours"))


def test_relative_directories_can_be_made_on_a_real_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_directories(RealDisk(), Layout("here/below"))
    assert (tmp_path / "here" / "below" / "bindings").is_dir()


def test_a_lock_file_that_appears_meanwhile_is_taken_all_the_same() -> None:
    races: list[str] = []

    class Racing(SimDisk):
        def open(self, path: str, *, create: bool = False) -> object:  # type: ignore[override]
            if not create and not self.is_file(path):
                super().open(path, create=True).close()
                races.append(path)
                raise FileNotFoundError(path)
            return super().open(path, create=create)

    disk = Racing()
    make_directories(disk, Layout("/x"))
    lock = take_lock(disk, Layout("/x"))
    assert len(races) == 1
    with pytest.raises(BusyError):
        take_lock(disk, Layout("/x"))
    lock.close()


def test_a_lock_that_fails_leaves_no_open_file() -> None:
    disk = SimDisk()
    make_directories(disk, Layout("/x"))
    disk.faults.inject("lock")
    with pytest.raises(OSError):
        take_lock(disk, Layout("/x"))
    take_lock(disk, Layout("/x")).close()
