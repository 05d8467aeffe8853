"""The stores of a simulated cluster for the checkers: copies of its disks, recovered in several ways."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from meshq.abc import Disk
from meshq.errors import MeshqError
from meshq.store import recovered_store
from meshq.testing._clock import SimEntropy
from meshq.testing.disk._disk import SimDisk
from meshq.testing.disk._faults import SimulatedCrash

#: The directory of a journal below that of its store.
JOURNAL: Final = "/journal/"
#: Numbers of a start of its own, which are drawn nowhere else.
CHANCE: Final = 11


def roots_of(disk: SimDisk) -> list[str]:
    """Return the directories of the stores on a disk; the last one is the newest epoch of a shared store."""
    found = dict.fromkeys(path.partition(JOURNAL)[0] for path in disk.files() if JOURNAL in path)
    return sorted(found, key=lambda root: (len(root), root))


def digests_of(disk: SimDisk) -> dict[int, str]:
    """Return the digest of each live record of the newest store on a disk, by position; the disk stays as it is."""
    roots = roots_of(disk)
    return _recovered(disk.copy(), roots[-1])[1] if roots else {}


def recoveries_of(disk: SimDisk) -> Iterator[tuple[str, object]]:
    """Recover copies of the newest store on a disk in several ways; yield each way with its outcome.

    A store that is refused, because a test has damaged it, is not recovered at all.
    """
    roots = roots_of(disk)
    if not roots:
        return
    copy = disk.copy()
    try:
        yield "once", _recovered(copy, roots[-1])
    except (MeshqError, OSError):
        return
    calls = copy.calls
    yield "twice", _recovered(copy, roots[-1])
    crashed = disk.copy()
    crashed.fuse(max(1, calls // 2), partial(crashed.power_loss, random.Random(CHANCE)))
    with suppress(SimulatedCrash):
        _recovered(crashed, roots[-1])
    crashed.faults.fuse = None
    yield "after a power loss in the middle", _recovered(crashed, roots[-1])


def _recovered(disk: Disk, root: str) -> tuple[int, dict[int, str]]:
    """Recover a store; return its last position, and the digests of the live records."""
    found = recovered_store(disk, root, SimEntropy(random.Random(CHANCE)))
    digests = {one.position: hashlib.blake2b(one.payload, digest_size=8).hexdigest() for one in found.records}
    return found.last, digests
