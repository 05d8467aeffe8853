"""A disk in memory that can lose power, fail and fill up.

``SimDisk`` is a disk for ``meshq.abc``: what it holds is described in ``_disk_tree``, what can happen to it in
``_disk_faults``.  Its own methods make tests out of it: cut the power, kill the process, flip a bit, list every
state that a power loss at this moment could leave.
"""

from __future__ import annotations

import errno
import math
import random
from collections.abc import Callable, Iterator, Sequence

from meshq.abc import Disk
from meshq.testing._disk_faults import Call, DiskFaults, Fuse, Operation, os_error
from meshq.testing._disk_mount import Mount, SimFile
from meshq.testing._disk_tree import Entry, Inode, NameEntry, SectorEntry, Tree, normalize, split


class SimDisk(Disk):
    """A simulated disk.

    Used as it is, it is the disk of one process; ``mount()`` gives a view that dies alone, for several lives
    or several nodes on one disk.  ``latency``, if set, is asked for the seconds that each call takes (call,
    bytes); ``spend`` is told them.  ``watch``, if set, is called after every call.
    """

    __slots__ = ("_home", "_mounts", "calls", "capacity_bytes", "faults", "latency", "modes", "spend", "tree", "watch")

    def __init__(self, rng: random.Random | None = None, *, capacity_bytes: float = math.inf) -> None:
        self.faults = DiskFaults(random.Random(0) if rng is None else rng)
        self.capacity_bytes = capacity_bytes
        self.tree = Tree()
        self.calls = 0
        #: Directories whose mode is not 0700.
        self.modes: dict[str, int] = {}
        self.latency: Callable[[Call, int], float] | None = None
        self.spend: Callable[[float], object] = float
        self.watch: Callable[[Operation], object] | None = None
        self._mounts: list[Mount] = []
        self._home = self.mount()

    def __repr__(self) -> str:
        return f"<SimDisk files={len(self.files())} unsynced={len(self.tree.entries())} calls={self.calls}>"

    def mount(self) -> Mount:
        """The disk for one more life of a node."""
        mount = Mount(self)
        self._mounts.append(mount)
        return mount

    # -- abc.Disk, for the process that owns this object -----------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        return self._home.open(path, create=create)

    def replace(self, old: str, new: str) -> None:
        self._home.replace(old, new)

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
        """SIGKILL of every process on this disk: what was written stays readable, open files and locks go."""
        self.faults.count("disk.kill")
        self._end_mounts()

    def power_loss(self, rng: random.Random | None = None) -> None:
        """Every process dies and what is not synced is kept or lost by chance."""
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
        """What a failed sync does: the pages count as clean, whatever of them reached the medium."""
        rng = self.faults.rng
        reached = [write for write in inode.writes if rng.random() < 0.5]
        self.faults.count("disk.dropped_sector", len(inode.writes) - len(reached))
        inode.keep(reached)
        if rng.random() < 0.5:
            inode.forget_cache()
        else:
            inode.writes.clear()

    def fuse(self, calls: int, blow: Callable[[], object] | int | None = None, *, only: Sequence[Call] = ()) -> None:
        """Right after ``calls`` more calls (of the kinds in ``only``) cut the power, or do ``blow`` instead.

        A number is an error that this call reports although it was carried out.  If the node is dead
        afterwards, the call ends with ``SimulatedCrash``.
        """
        self.faults.fuse = Fuse(calls, self.power_loss if blow is None else blow, frozenset(only))

    def flip_bit(self, path: str, bit: int) -> None:
        """Change one bit of a file's content, in the cache and on the medium."""
        at = bit // 8
        self.spoil(path, at, bytes((self._inode(path).cache[at] ^ 1 << bit % 8,)))
        self.faults.count("disk.bit_flip")

    def spoil(self, path: str, offset: int, data: bytes) -> None:
        """Put other bytes in the place of some of a file's, in the cache and on the medium; its length stays."""
        node = self._inode(path)
        node.cache = bytearray(node.cache)
        node.cache[offset : offset + len(data)] = data
        if offset < len(node.durable):
            durable = bytearray(node.durable)
            durable[offset : offset + len(data)] = data[: len(durable) - offset]
            node.durable, node.shared = durable, False

    def flip_random_bit(self, rng: random.Random | None = None, *, within: str = "") -> tuple[str, int] | None:
        """Change one random bit of one file whose path contains ``within``; which one, or None without files."""
        rng = self.faults.rng if rng is None else rng
        choices = [path for path in self.files() if within in path and self._inode(path).cache]
        if not choices:
            return None
        path = rng.choice(choices)
        bit = rng.randrange(len(self._inode(path).cache) * 8)
        self.flip_bit(path, bit)
        return path, bit

    # -- what it holds ---------------------------------------------------------------------------------------

    def room_bytes(self) -> float:
        """Bytes that still fit."""
        if self.capacity_bytes == math.inf:
            return math.inf
        return max(self.capacity_bytes - self.tree.used_bytes(), 0)

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
        """What a file holds for those who read it now."""
        return bytes(self._inode(path).cache)

    def unsynced(self) -> int:
        """How many sectors, lengths and names a power loss could lose now."""
        return len(self.tree.entries())

    def _inode(self, path: str) -> Inode:
        directory, name = split(normalize(path))
        node = self.tree.names.get(directory, {}).get(name)
        if not isinstance(node, Inode):
            raise os_error(errno.ENOENT, path)
        return node

    # -- every state that could be left ----------------------------------------------------------------------

    def copy(self) -> SimDisk:
        """Another disk in the same state, as after SIGKILL: no open file, no lock, no fault waiting."""
        return self._with(self.tree.copy())

    def crash_images(self, limit_subset: int = 12) -> Iterator[SimDisk]:
        """Every state that a power loss right now could leave, each once, each a disk of its own.

        All subsets of up to ``limit_subset`` things not synced; beyond that all prefixes.  Where a lost sector
        lies beyond what was durable of its file, once with zeros and once with bytes of removed files there.
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
        disk = SimDisk(random.Random(0), capacity_bytes=self.capacity_bytes)
        disk.tree = tree
        return disk


def _chosen(entries: list[Entry], rng: random.Random) -> list[Entry]:
    """What a power loss keeps: nothing, all, what came first, or each by its own luck."""
    way = rng.random()
    if way < 0.15:
        return []
    if way < 0.25:
        return entries
    if way < 0.5:
        return entries[: rng.randrange(len(entries) + 1)]
    luck = rng.choice((0.1, 0.5, 0.9))
    return [entry for entry in entries if rng.random() < luck]
