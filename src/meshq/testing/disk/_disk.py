"""A disk in memory that can lose power, fail and fill up.

``SimDisk`` is a disk for ``meshq.abc``: what it holds is described in ``_tree``, what can happen to it in
``_faults``.  Its own methods make tests out of it: cut the power, kill the process, flip a bit, list every
state that a power loss at this moment could leave.
"""

from __future__ import annotations

import errno
import math
import random
from collections.abc import Callable, Iterator, Sequence

from meshq.abc import Disk
from meshq.testing.disk._faults import DiskCall, DiskFaults, DiskOperation, Fuse, os_error
from meshq.testing.disk._mount import Mount, SimFile
from meshq.testing.disk._tree import Entry, Inode, NameEntry, SectorEntry, Tree, normalize, split


class SimDisk(Disk):
    """A disk in memory that can lose power, fail and fill up; a ``meshq.abc.Disk``.

    A write reaches the medium when its file is synced, and a new name when its directory is synced, as on a real disk.
    ``power_loss`` keeps or loses the rest by chance.  ``faults.inject`` lets calls fail.  ``capacity_bytes`` is the
    size of the disk, and files take whole pages of ``page_bytes`` each.  ``rng`` decides what is left to chance;
    without it every disk decides alike.

    A ``SimDisk`` is the disk of one process.  ``mount()`` gives a view that dies alone, for several processes on one
    disk.  ``latency``, if set, is called with the name and the bytes of each call, and returns the seconds that the
    call takes; ``spend`` gets these seconds.  ``watch``, if set, is called after each call with a ``DiskOperation``.
    """

    __slots__ = (
        "_home",
        "_mounts",
        "calls",
        "capacity_bytes",
        "faults",
        "latency",
        "modes",
        "page_bytes",
        "spend",
        "tree",
        "watch",
    )

    def __init__(
        self, rng: random.Random | None = None, *, capacity_bytes: float = math.inf, page_bytes: int = 1
    ) -> None:
        self.faults: DiskFaults = DiskFaults(random.Random(0) if rng is None else rng)
        self.capacity_bytes: float = capacity_bytes
        self.page_bytes: int = page_bytes
        self.tree: Tree = Tree()
        self.calls: int = 0
        #: Directories whose mode is not 0700.
        self.modes: dict[str, int] = {}
        self.latency: Callable[[DiskCall, int], float] | None = None
        self.spend: Callable[[float], object] = float
        self.watch: Callable[[DiskOperation], object] | None = None
        self._mounts: list[Mount] = []
        self._home = self.mount()

    def __repr__(self) -> str:
        return f"<SimDisk files={len(self.files())} unsynced={len(self.tree.entries())} calls={self.calls}>"

    def mount(self, spend: Callable[[float], object] | None = None) -> Mount:
        """Return a view of the disk for one more process; ``spend`` gets the seconds of its calls."""
        mount = Mount(self, spend)
        self._mounts.append(mount)
        return mount

    # -- abc.Disk, for the process that owns this object -----------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        return self._home.open(path, create=create)

    def replace(self, old: str, new: str) -> None:
        self._home.replace(old, new)

    def move_directory(self, old: str, new: str) -> None:
        self._home.move_directory(old, new)

    def remove(self, path: str) -> None:
        self._home.remove(path)

    def names(self, directory: str) -> list[str]:
        return self._home.names(directory)

    def make_directory(self, path: str) -> None:
        self._home.make_directory(path)

    def mode(self, directory: str) -> int:
        return self._home.mode(directory)

    def sync_directory(self, path: str) -> None:
        self._home.sync_directory(path)

    # -- what happens to it ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the processes on this disk: written bytes stay readable, open files and locks are gone."""
        self.faults.count("disk.kill")
        self._end_mounts()

    def power_loss(self, rng: random.Random | None = None) -> None:
        """Cut the power: all processes on this disk die, and unsynced sectors and names are kept or lost by chance."""
        rng = self.faults.rng if rng is None else rng
        entries = self.tree.entries()
        kept = _chosen(entries, rng)
        self._count_losses(entries, kept)
        background = b""
        if self.tree.leftovers and rng.random() < 0.5:
            background = self.tree.leftovers
            self.faults.count("disk.stale")
        self.faults.count("disk.power_loss")
        self._end_mounts()
        self.tree = self.tree.crash(kept, background)

    def _count_losses(self, entries: Sequence[Entry], kept: Sequence[Entry]) -> None:
        if not entries:
            return
        safe = {id(entry) for entry in kept}
        lost = [entry for entry in entries if id(entry) not in safe]
        self.faults.count("disk.lost_sector", sum(isinstance(entry, SectorEntry) for entry in lost))
        self.faults.count("disk.lost_name", sum(isinstance(entry, NameEntry) for entry in lost))
        self.faults.count("disk.torn", int(0 < len(lost) < len(entries)))

    def _end_mounts(self) -> None:
        for mount in self._mounts:
            mount.kill()
        self._mounts.clear()
        self._home = self.mount()

    def fail_sync(self, inode: Inode) -> None:
        """Mark the pages of a file as clean, as a failed sync does; chance decides which pages reached the medium."""
        rng = self.faults.rng
        reached = [write for write in inode.writes if rng.random() < 0.5]
        self.faults.count("disk.dropped_sector", len(inode.writes) - len(reached))
        inode.keep(reached)
        if rng.random() < 0.5:
            inode.forget_cache()
        else:
            inode.writes.clear()

    def fuse(
        self,
        calls: int,
        blow: Callable[[], object] | int | None = None,
        *,
        only: Sequence[DiskCall] = (),
        of: Mount | None = None,
    ) -> None:
        """Cut the power right after ``calls`` more calls, or do ``blow`` instead.

        ``only``: the kinds of calls that count; without it all do.  ``of``: only calls of this process count.  ``blow``
        may be a number: the last call then reports that error, although the call was carried out.  If the process is
        dead afterwards, the call ends with ``SimulatedCrash``.
        """
        self.faults.fuse = Fuse(calls, self.power_loss if blow is None else blow, frozenset(only), of)

    def flip_bit(self, path: str, bit: int) -> None:
        """Change one bit of a file's content, in the cache and on the medium."""
        at = bit // 8
        self.spoil(path, at, bytes((self._inode(path).cache[at] ^ 1 << bit % 8,)))
        self.faults.count("disk.bit_flip")

    def spoil(self, path: str, offset: int, data: bytes) -> None:
        """Overwrite bytes of a file, in the cache and on the medium; the file's length stays."""
        node = self._inode(path)
        node.cache = node.cache.copy()
        node.cache.write(offset, data)
        if offset < len(node.durable):
            durable = node.durable.copy()
            durable.write(offset, data[: len(durable) - offset])
            node.durable, node.shared = durable, False

    def flip_random_bit(self, rng: random.Random | None = None, *, within: str = "") -> tuple[str, int] | None:
        """Change one random bit of one file whose path contains ``within``; return path and bit, None without files."""
        rng = self.faults.rng if rng is None else rng
        choices = [path for path in self.files() if within in path and self._inode(path).cache]
        if not choices:
            return None
        path = rng.choice(choices)
        bit = rng.randrange(len(self._inode(path).cache) * 8)
        self.flip_bit(path, bit)
        return path, bit

    # -- what it holds ---------------------------------------------------------------------------------------

    def free_bytes(self) -> float:
        """The bytes that are free."""
        if self.capacity_bytes == math.inf:
            return math.inf
        return max(self.capacity_bytes - self.used_bytes(), 0)

    def used_bytes(self) -> int:
        """The bytes that the files take, in whole pages."""
        return self.tree.used_bytes(self.page_bytes)

    def is_file(self, path: str) -> bool:
        """Whether a file has this name."""
        directory, name = split(normalize(path))
        return isinstance(self.tree.names.get(directory, {}).get(name), Inode)

    def files(self) -> list[str]:
        """The paths of all files, sorted."""
        return sorted(
            normalize(f"{directory}/{name}")
            for directory, inside in self.tree.names.items()
            for name, node in inside.items()
            if isinstance(node, Inode)
        )

    def content(self, path: str) -> bytes:
        """The bytes that a reader of the file gets now."""
        return self._inode(path).cache.read()

    def unsynced(self) -> int:
        """The number of sectors, lengths and names that a power loss could lose now."""
        return len(self.tree.entries())

    def _inode(self, path: str) -> Inode:
        directory, name = split(normalize(path))
        node = self.tree.names.get(directory, {}).get(name)
        if not isinstance(node, Inode):
            raise os_error(errno.ENOENT, path)
        return node

    # -- every state that could be left ----------------------------------------------------------------------

    def copy(self) -> SimDisk:
        """Return another disk in the same state, as after ``kill``: no open file, no lock, no fault waiting."""
        return self._with(self.tree.copy())

    def crash_images(self, limit_subset: int = 12) -> Iterator[SimDisk]:
        """Yield each state that a power loss right now could leave, as a disk of its own.

        Up to ``limit_subset`` unsynced sectors, lengths and names are lost in each combination; with more of them, only
        the last ones are lost.  A lost sector behind the durable end of its file reads once as zeros and once as bytes
        of removed files.
        """
        entries = self.tree.entries()
        count = len(entries)
        if count <= limit_subset:
            choices = ([entries[i] for i in range(count) if mask >> i & 1] for mask in range(1 << count))
        else:
            choices = (entries[:kept] for kept in range(count + 1))
        seen: set[tuple[object, ...]] = set()
        for kept in choices:
            image = self.tree.crash(kept)
            if image.outcome in seen:
                continue
            seen.add(image.outcome)
            yield self._with(image)
            if image.shows_background and self.tree.leftovers:
                yield self._with(self.tree.crash(kept, self.tree.leftovers))

    def _with(self, tree: Tree) -> SimDisk:
        disk = SimDisk(random.Random(0), capacity_bytes=self.capacity_bytes, page_bytes=self.page_bytes)
        disk.tree = tree
        return disk


def _chosen(entries: list[Entry], rng: random.Random) -> list[Entry]:
    """Choose the entries that a power loss keeps: none, all, the first ones, or each by chance."""
    way = rng.random()
    if way < 0.15:
        return []
    if way < 0.25:
        return entries
    if way < 0.5:
        return entries[: rng.randrange(len(entries) + 1)]
    luck = rng.choice((0.1, 0.5, 0.9))
    return [entry for entry in entries if rng.random() < luck]
