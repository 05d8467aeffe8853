"""The simulated disk keeps the promises of a disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshq.abc import Disk
from meshq.testing import SimDisk
from meshq.testing._conformance_disk import DISK_CHECKS, check_disk


def make_disk() -> tuple[Disk, str]:
    disk = SimDisk()
    disk.make_directory("/tree")
    return disk, "/tree"


@pytest.mark.parametrize("check", DISK_CHECKS)
def test_the_simulated_disk_conforms(check: Callable[[Disk, str], None]) -> None:
    check(*make_disk())


def test_the_suite_runs_as_one_call() -> None:
    check_disk(make_disk)
