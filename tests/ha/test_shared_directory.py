"""Whatever moment another node chooses to begin an epoch: no two nodes have the same one, and the former is fenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshq.abc import Disk
from meshq.ha import SharedDirectory
from meshq.ha._fenced_disk import Fence
from meshq.ha._owner_format import Owner
from meshq.ha._shared_directory import Epoch
from meshq.ha._turns_plan import Registration
from meshq.testing import SimDisk

ROOT = "/data"


class Interrupted(Disk):
    """A disk on which somebody else does something before a certain call of this node."""

    def __init__(self, disk: Disk, call: int, other: Callable[[], None]) -> None:
        self._disk = disk
        self._left = call
        self._other = other
        self.done = False

    def _call(self, name: str, *arguments: Any, **more: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            self.done = True
            self._other()
        return getattr(self._disk, name)(*arguments, **more)

    def open(self, path: str, *, create: bool = False) -> Any:
        return self._call("open", path, create=create)

    def replace(self, old: str, new: str) -> None:
        self._call("replace", old, new)

    def move_directory(self, old: str, new: str) -> None:
        self._call("move_directory", old, new)

    def remove(self, path: str) -> None:
        self._call("remove", path)

    def names(self, directory: str) -> list[str]:
        found: list[str] = self._call("names", directory)
        return found

    def make_directory(self, path: str) -> None:
        self._call("make_directory", path)

    def mode(self, directory: str) -> int:
        mode: int = self._call("mode", directory)
        return mode

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory", path)


def make(disk: Disk, path: str) -> None:
    disk.make_directory(path.rpartition("/")[0])
    disk.open(path, create=True).close()


def nothing(disk: Disk) -> None:
    disk.make_directory(ROOT)


def plain(disk: Disk) -> None:
    for part in ("journal", "large", "bindings"):
        make(disk, f"{ROOT}/{part}/x")


def half_moved(disk: Disk) -> None:
    plain(disk)
    disk.make_directory(f"{ROOT}/epoch-0")
    disk.move_directory(f"{ROOT}/journal", f"{ROOT}/epoch-0/journal")


def third(disk: Disk) -> None:
    make(disk, f"{ROOT}/epoch-3/journal/x")
    make(disk, f"{ROOT}/epoch-3/stopped-3")
    make(disk, f"{ROOT}/waiting/x")


def lasts(disk: Disk, epoch: Epoch) -> bool:
    try:
        Fence(disk, epoch.fence).check()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("rivals", [1, 2])
@pytest.mark.parametrize("before", [nothing, plain, half_moved, third])
def test_an_epoch_has_one_node_wherever_others_begin_theirs(before: Callable[[Disk], None], rivals: int) -> None:
    for call in range(1, 100):
        disk = SimDisk()
        before(disk)
        theirs: list[Epoch] = []

        def rival(disk: SimDisk = disk, theirs: list[Epoch] = theirs) -> None:
            theirs.extend(SharedDirectory(disk, ROOT).begin() for _ in range(rivals))

        interrupted, mine = Interrupted(disk, call, rival), list[Epoch]()
        try:
            mine.append(SharedDirectory(interrupted, ROOT).begin())
        except OSError:
            assert interrupted.done
        epochs = [*mine, *theirs]
        assert len({one.number for one in epochs}) == len(epochs)
        assert [one.number for one in epochs if lasts(disk, one)] == [max(one.number for one in epochs)]
        newest = max(epochs, key=lambda one: one.number)
        if before is not nothing:
            assert disk.is_file(f"{newest.directory}/journal/x")
        if not interrupted.done:
            assert call > 5
            return
    raise AssertionError("it has no end")


def test_a_mark_that_a_former_owner_leaves_late_is_none() -> None:
    disk = SimDisk()
    nothing(disk)
    first, second = SharedDirectory(disk, ROOT), SharedDirectory(disk, ROOT)
    begun = first.begin()
    second.begin()
    with pytest.raises(OSError):
        first.mark_stopped(begun)
    assert not second.look().stopped
    # One that it has left just before ends with the epoch.
    third = second.begin()
    second.mark_stopped(third)
    assert first.look().stopped
    first.begin()
    assert not second.look().stopped


@pytest.mark.parametrize("call", range(1, 6))
def test_a_mark_does_not_count_wherever_an_epoch_begins_meanwhile(call: int) -> None:
    disk = SimDisk()
    nothing(disk)
    begun = SharedDirectory(disk, ROOT).begin()
    interrupted = Interrupted(disk, call, lambda: SharedDirectory(disk, ROOT).begin() and None)
    try:
        SharedDirectory(interrupted, ROOT).mark_stopped(begun)
    except OSError:
        assert interrupted.done
    assert SharedDirectory(disk, ROOT).look().stopped != interrupted.done


def test_a_crash_after_the_rename_leaves_no_mark_of_the_epoch_before() -> None:
    disk = SimDisk()
    third(disk)
    assert SharedDirectory(disk, ROOT).look().stopped
    disk.move_directory(f"{ROOT}/epoch-3", f"{ROOT}/epoch-4")
    assert not SharedDirectory(disk, ROOT).look().stopped


def test_a_store_on_the_way_to_its_first_epoch_is_no_plain_one() -> None:
    disk = SimDisk()
    plain(disk)
    shared = SharedDirectory(disk, ROOT)
    assert not shared.is_shared()
    disk.make_directory(f"{ROOT}/epoch-0")
    assert shared.is_shared()


def test_an_owner_is_read_as_it_was_written() -> None:
    disk = SimDisk()
    nothing(disk)
    shared = SharedDirectory(disk, ROOT)
    for owner in (Owner(name="a", serving=True), Owner(name="b", released=True, reason="forced")):
        shared.write_owner(owner)
        assert shared.look().owner == owner


@pytest.mark.parametrize("root", ["/data", "/new/inner/data"])
@pytest.mark.parametrize("registered", [False, True])
def test_an_epoch_that_has_begun_is_there_after_a_power_loss_also_where_its_directory_was_made_just_now(
    root: str, registered: bool
) -> None:
    disk = SimDisk()
    directory = SharedDirectory(disk, root)
    if registered:
        directory.register(Registration(name="a", role="primary"))
    assert directory.try_lock() is not None
    assert directory.begin().number == 1
    images = 0
    for image in disk.crash_images():
        images += 1
        assert image.names(f"{root}/epoch-1") == ["fence"]
    assert images


def test_who_makes_no_store_changes_nothing_where_none_is() -> None:
    disk = SimDisk()
    waiting = Registration(name="b", role="backup", url="", beat=1)
    directory = SharedDirectory(disk, ROOT, makes_store=False)
    for there in (False, True):
        if there:
            # The directory in which a disk is not mounted.
            disk.make_directory(ROOT)
        for call in (lambda: directory.register(waiting), directory.try_lock, directory.begin):
            with pytest.raises(FileNotFoundError, match="the store that another node shares is not there"):
                call()
        assert disk.names("/") == (["data"] if there else [])
        assert not there or disk.names(ROOT) == []
    # A lock alone is no store.
    disk.open(f"{ROOT}/lock", create=True).close()
    with pytest.raises(FileNotFoundError, match="is not there"):
        directory.begin()
