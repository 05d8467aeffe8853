"""The simulated disk keeps the promises of a disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshq.abc import Disk
from meshq.testing import DISK_CHECKS, SimDisk, check_disk


def make_disk() -> tuple[Disk, str]:
    disk = SimDisk()
    disk.make_directory("/tree")
    return disk, "/tree"


@pytest.mark.parametrize("check", DISK_CHECKS)
def test_the_simulated_disk_conforms(check: Callable[[Disk, str], None]) -> None:
    check(*make_disk())


def test_the_suite_runs_as_one_call() -> None:
    made: list[SimDisk] = []

    def make(broken: str = "") -> tuple[Disk, str]:
        disk, root = make_disk()
        assert isinstance(disk, SimDisk)
        if broken:
            disk.faults.inject(broken)
        made.append(disk)
        return disk, root

    check_disk(make)
    # Each check has a disk of its own, and has used it.
    assert len({id(disk) for disk in made}) == len(DISK_CHECKS)
    assert all(disk.calls > 1 for disk in made)
    with pytest.raises(OSError, match="Input/output error"):
        check_disk(lambda: make("sync"))
