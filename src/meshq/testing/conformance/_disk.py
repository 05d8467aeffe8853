"""The conformance suite for ``abc.Disk`` and ``abc.File``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshq.abc import Disk
from meshq.testing.conformance._assertions import expect, expect_equal, expect_raises

#: More buffers than any system takes in one call.
MANY_BUFFERS: Final = 5_000
#: More bytes than a system call is sure to move at once through a small buffer.
LARGE_BYTES: Final = 3_000_000


def check_disk(make_disk: Callable[[], tuple[Disk, str]]) -> None:
    """Check that a disk and its files keep the contract of ``meshq.abc.Disk`` while nothing fails.

    ``make_disk`` is called once for each check of ``DISK_CHECKS``.  It returns a disk, and the path of an existing
    empty directory on that disk.

    Raises:
        NonconformanceError: the disk breaks a promise.
    """
    for check in DISK_CHECKS:
        disk, root = make_disk()
        check(disk, root)


def _created_files_are_empty(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/new", create=True)
    expect_equal(file.size(), 0, "a new file is empty")
    expect_equal(file.read_at(0, 10), b"", "a new file has nothing to read")
    file.close()


def _creating_an_existing_file_fails(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/taken", create=True)
    file.write_at(0, [b"content"])
    with expect_raises(FileExistsError, "create=True is for new files"):
        disk.open(f"{root}/taken", create=True)
    expect_equal(file.read_at(0, 100), b"content", "a refused creation changes nothing")
    file.close()


def _opening_a_missing_file_fails(disk: Disk, root: str) -> None:
    with expect_raises(FileNotFoundError, "a missing file is not made by opening it"):
        disk.open(f"{root}/missing")
    with expect_raises(FileNotFoundError, "a file can't be made in a missing directory"):
        disk.open(f"{root}/nowhere/new", create=True)
    expect_equal(disk.names(root), [], "what failed leaves no name")


def _buffers_are_written_one_after_the_other(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    numbers = memoryview(b"\x01\0\0\0\x02\0\0\0").cast("I")
    file.write_at(0, [b"bytes,", bytearray(b"bytearray,"), memoryview(b"<view>")[1:5], b"", numbers])
    expect_equal(file.read_at(0, 100), b"bytes,bytearray,view\x01\0\0\0\x02\0\0\0", "all kinds of buffers are written")
    file.write_at(6, [])
    file.write_at(6, [b""])
    expect_equal(file.size(), 28, "writing nothing changes nothing")
    file.write_at(2, [b"TE", b"S"])
    expect_equal(file.read_at(0, 7), b"byTES,b", "a write in the middle leaves what is around it")
    file.close()


def _many_and_large_buffers_are_written_whole(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    pieces = [index.to_bytes(4, "big")[: 1 + index % 4] for index in range(MANY_BUFFERS)]
    file.write_at(3, pieces)
    expect_equal(file.read_at(3, 5 * MANY_BUFFERS), b"".join(pieces), "no number of buffers is too high")
    large = bytes(range(256)) * (LARGE_BYTES // 256)
    file.write_at(0, [large[:100], large[100:]])
    expect_equal(file.size(), len(large), "a large write is whole")
    expect(file.read_at(0, len(large) + 1) == large, "a large read is whole")
    file.close()


def _what_is_cut_off_is_gone(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(0, [b"kept and cut off"])
    file.truncate(4)
    expect_equal((file.size(), file.read_at(0, 100)), (4, b"kept"), "what lies behind is given back")
    file.sync()
    file.write_at(8, [b"new"])
    expect_equal(file.read_at(0, 100), b"kept" + bytes(4) + b"new", "what was cut off does not come back")
    file.close()


def _a_gap_reads_as_zeros(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(4096, [b"end"])
    expect_equal(file.size(), 4099, "a write behind the end makes the file longer")
    expect_equal(file.read_at(4090, 100), bytes(6) + b"end", "what was never written is zero")
    file.close()


def _reads_end_with_the_file(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(0, [b"0123456789"])
    expect_equal(file.read_at(3, 4), b"3456", "a read gives what was asked for")
    expect_equal(file.read_at(8, 4), b"89", "a read across the end gives what is there")
    expect_equal(file.read_at(10, 4), b"", "a read at the end gives nothing")
    expect_equal(file.read_at(99, 4), b"", "a read behind the end gives nothing")
    expect_equal(file.read_at(3, 0), b"", "a read of nothing gives nothing")
    file.close()


def _what_one_handle_writes_another_reads(disk: Disk, root: str) -> None:
    writer = disk.open(f"{root}/file", create=True)
    reader = disk.open(f"{root}/file")
    writer.write_at(0, [b"shared"])
    expect_equal(reader.read_at(0, 100), b"shared", "a write is seen at once")
    writer.close()
    again = disk.open(f"{root}/file")
    expect_equal(again.read_at(0, 100), b"shared", "opening changes nothing")
    reader.close()
    again.close()


def _syncs_tell_how_long_they_took(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(0, [b"content"])
    took = file.sync()
    expect(isinstance(took, float) and took >= 0, "sync returns seconds")
    disk.sync_directory(root)
    file.close()


def _a_lock_is_for_one_handle(disk: Disk, root: str) -> None:
    first = disk.open(f"{root}/lock", create=True)
    second = disk.open(f"{root}/lock")
    third = disk.open(f"{root}/lock")
    other = disk.open(f"{root}/other", create=True)
    expect_equal(first.lock(), True, "a free lock is given")
    expect_equal(second.lock(), False, "a lock that somebody has is not, even within one process")
    expect_equal(other.lock(), True, "each file has its own lock")
    third.close()
    expect_equal(second.lock(), False, "closing another handle of the file does not drop the lock")
    first.close()
    expect_equal(second.lock(), True, "closing the holder drops it")
    second.close()
    other.close()


def _replacing_takes_the_place_of_a_file(disk: Disk, root: str) -> None:
    old, new = disk.open(f"{root}/old", create=True), disk.open(f"{root}/new", create=True)
    old.write_at(0, [b"old"])
    new.write_at(0, [b"new"])
    disk.replace(f"{root}/new", f"{root}/old")
    expect_equal(disk.names(root), ["old"], "one name is left")
    now = disk.open(f"{root}/old")
    expect_equal(now.read_at(0, 100), b"new", "the name leads to the new file")
    expect_equal(old.read_at(0, 100), b"old", "who had the old file open keeps it")
    disk.replace(f"{root}/old", f"{root}/free")
    expect_equal(disk.names(root), ["free"], "a free name is as good")
    with expect_raises(FileNotFoundError, "a missing file has no name to give"):
        disk.replace(f"{root}/missing", f"{root}/free")
    expect_equal(disk.names(root), ["free"], "what failed changes nothing")
    for file in (old, new, now):
        file.close()


def _a_moved_directory_has_all_that_was_in_it(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/old/inner")
    file = disk.open(f"{root}/old/inner/file", create=True)
    disk.move_directory(f"{root}/old", f"{root}/new")
    expect_equal(disk.names(root), ["new"], "a moved directory has one name")
    file.write_at(0, [b"content"])
    now = disk.open(f"{root}/new/inner/file")
    expect_equal(now.read_at(0, 100), b"content", "who had a file in it open has the same file")
    with expect_raises(FileNotFoundError, "nothing is at the old path"):
        disk.open(f"{root}/old/inner/file")
    with expect_raises(FileNotFoundError, "nothing is made at the old path"):
        disk.open(f"{root}/old/inner/more", create=True)
    with expect_raises(FileNotFoundError, "a missing directory has no name to give"):
        disk.move_directory(f"{root}/old", f"{root}/free")
    disk.make_directory(f"{root}/other")
    with expect_raises(FileExistsError, "a directory that is there is not replaced, also if it is empty"):
        disk.move_directory(f"{root}/new", f"{root}/other")
    with expect_raises(NotADirectoryError, "a file is no directory"):
        disk.move_directory(f"{root}/new/inner/file", f"{root}/free")
    expect_equal(disk.names(root), ["new", "other"], "what failed changes nothing")
    for one in (file, now):
        one.close()


def _removing_takes_the_name_away(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.write_at(0, [b"content"])
    disk.remove(f"{root}/file")
    expect_equal(disk.names(root), [], "a removed file has no name")
    expect_equal(file.read_at(0, 100), b"content", "who had it open keeps it")
    with expect_raises(FileNotFoundError, "a file is removed once"):
        disk.remove(f"{root}/file")
    disk.open(f"{root}/file", create=True).close()
    file.close()


def _names_are_sorted(disk: Disk, root: str) -> None:
    for name in ("b", "a", "c10", "c9", "B"):
        disk.open(f"{root}/{name}", create=True).close()
    disk.make_directory(f"{root}/directory")
    expect_equal(disk.names(root), ["B", "a", "b", "c10", "c9", "directory"], "names come sorted")
    expect_equal(disk.names(f"{root}/directory"), [], "an empty directory has no names")
    with expect_raises(FileNotFoundError, "a missing directory has no names"):
        disk.names(f"{root}/missing")


def _directories_are_made_with_their_parents(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/a/b/c")
    disk.open(f"{root}/a/b/c/file", create=True).close()
    disk.make_directory(f"{root}/a/b/c")
    disk.make_directory(f"{root}/a")
    expect_equal(disk.names(f"{root}/a/b/c"), ["file"], "making an existing directory changes nothing")
    with expect_raises(OSError, "a file is no directory"):
        disk.make_directory(f"{root}/a/b/c/file")
    for directory in (f"{root}/a/b/c", f"{root}/a/b", f"{root}/a", root):
        disk.sync_directory(directory)
    with expect_raises(FileNotFoundError, "a missing directory can't be synced"):
        disk.sync_directory(f"{root}/missing")


def _a_new_directory_is_nobody_elses(disk: Disk, root: str) -> None:
    disk.make_directory(f"{root}/a/b")
    expect_equal((disk.mode(f"{root}/a"), disk.mode(f"{root}/a/b")), (0o700, 0o700), "directories are made private")
    disk.open(f"{root}/file", create=True).close()
    with expect_raises(FileNotFoundError, "a missing directory has no mode"):
        disk.mode(f"{root}/missing")
    with expect_raises(NotADirectoryError, "a file is no directory"):
        disk.mode(f"{root}/file")


def _a_closed_file_refuses(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/file", create=True)
    file.close()
    file.close()
    with expect_raises(OSError, "a closed file is not written"):
        file.write_at(0, [b"late"])
    with expect_raises(OSError, "a closed file is not read"):
        file.read_at(0, 1)
    with expect_raises(OSError, "a closed file is not synced"):
        file.sync()


DISK_CHECKS: Final[tuple[Callable[[Disk, str], None], ...]] = (
    _created_files_are_empty,
    _creating_an_existing_file_fails,
    _opening_a_missing_file_fails,
    _buffers_are_written_one_after_the_other,
    _many_and_large_buffers_are_written_whole,
    _what_is_cut_off_is_gone,
    _a_gap_reads_as_zeros,
    _reads_end_with_the_file,
    _what_one_handle_writes_another_reads,
    _syncs_tell_how_long_they_took,
    _a_lock_is_for_one_handle,
    _replacing_takes_the_place_of_a_file,
    _a_moved_directory_has_all_that_was_in_it,
    _removing_takes_the_name_away,
    _names_are_sorted,
    _directories_are_made_with_their_parents,
    _a_new_directory_is_nobody_elses,
    _a_closed_file_refuses,
)
