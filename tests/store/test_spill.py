"""Pages of what is in no journal: what goes comes back or is damage, and a file goes with the last page in it."""

from __future__ import annotations

import random

import pytest

from meshq.errors import DamagedError
from meshq.store.bodies import _spill_files
from meshq.store.bodies._spill_files import Page, SpillFiles
from meshq.testing import SimDisk, SimEntropy

RUNS = [(1, b"table", b"body"), (3, b"", bytes(1_000)), (2, b"more", b"")]
DIRECTORY = "/data/paging"


def files_on(disk: SimDisk) -> SpillFiles:
    files = SpillFiles(disk.mount(), DIRECTORY, SimEntropy(random.Random(1)))
    files.open()
    return files


def names(disk: SimDisk) -> list[str]:
    return [name for name in disk.files() if name.startswith(DIRECTORY)]


def written(files: SpillFiles, runs: list[tuple[int, bytes, bytes]] = RUNS) -> list[Page]:
    pages = files.write(runs)
    assert pages is not None
    return pages


def test_what_is_written_is_read_again_in_any_order_and_not_to_be_seen_on_the_disk() -> None:
    disk = SimDisk()
    files = files_on(disk)
    secret = b"the combination is 1-2-3-4-5"
    pages = written(files, [*RUNS, (1, b"t", secret)])
    assert files.read(pages[::-1]) == [(1, b"t", secret), *RUNS[::-1]]
    assert not any(secret in disk.content(name) for name in names(disk))
    files.close()


def test_a_file_goes_when_no_page_in_it_is_needed_and_a_full_one_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_spill_files, "SEGMENT_BYTES", 500)
    disk = SimDisk()
    files = files_on(disk)
    first, second, third = written(files)
    assert first.file == second.file != third.file
    assert not files.forget(first)
    files.remove_unused()
    assert len(names(disk)) == 2
    assert files.forget(second)
    files.remove_unused()
    assert len(names(disk)) == 1
    assert files.read([third]) == [RUNS[2]]
    assert files.forget(third)
    files.remove_unused()
    assert names(disk) == []
    # It goes on in a new one.
    assert files.read(written(files)) == RUNS


def test_what_an_earlier_life_has_left_is_removed_at_the_start_and_nothing_else() -> None:
    disk = SimDisk()
    files = files_on(disk)
    written(files)
    files.close()
    other = disk.mount().open(f"{DIRECTORY}/note.txt", create=True)
    other.close()
    again = files_on(disk)
    assert names(disk) == [f"{DIRECTORY}/note.txt"]
    assert again.read(written(again)) == RUNS


def test_a_changed_byte_is_damage_that_names_file_and_place() -> None:
    disk = SimDisk()
    files = files_on(disk)
    page = written(files)[1]
    (name,) = names(disk)
    file = disk.mount().open(name)
    file.write_at(page.offset + 7, [bytes([disk.content(name)[page.offset + 7] ^ 1])])
    file.close()
    with pytest.raises(DamagedError, match=rf"{name}.*{page.offset}"):
        files.read([page])


@pytest.mark.parametrize("error", ["no room", "broken"])
def test_on_a_full_disk_nothing_was_written_that_counts_and_a_broken_one_says_so(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    disk = SimDisk()
    files = files_on(disk)
    kept = written(files)
    number = 28 if error == "no room" else 5

    def fail(*_: object) -> None:
        raise OSError(number, error)

    with monkeypatch.context() as patch:
        patch.setattr(type(files._file), "write_at", fail)
        if error == "no room":
            assert files.write(RUNS) is None
        else:
            with pytest.raises(OSError, match="broken"):
                files.write(RUNS)
    assert files.read(kept) == RUNS
    assert files.read(written(files)) == RUNS
