"""The contents of a simulated disk: names, bytes, and all changes that are not durable yet.

A disk has two faces.  The *cache* is what a running system sees; the *durable* face is what is left when the
power goes.  Between them lies an ordered list of things not synced: sectors, file lengths, names.  A power loss
keeps some of them and loses the others, and it owes nobody an order: that is the whole model.

What is kept apart, and why:

* A sector is written whole or not at all.  Its unsynced version is what the cache held for that sector when
  the write returned, so bytes of its neighbours go along, as they do in a page cache.
* A lost sector inside the durable length keeps its old bytes.  Beyond it there was nothing of this file: it
  reads as zeros, or as what a removed file left there.
* A length can become durable without the bytes that it covers.
* A name (created, replaced, removed) is durable once its directory is synced, and not because its file is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs

from meshq.limits import SECTOR_BYTES
from meshq.testing.disk._content import Content

#: How much of the last removed files stays readable under new ones.
LEFTOVER_BYTES_MAX = 64 * 1024


class Write(NamedTuple):
    """Whole sectors as the cache held them when a write returned; the last one ends with the file."""

    order: int
    offset: int
    data: bytes


@attrs.define(eq=False)
class Inode:
    """The content of one file.

    ``cache`` and ``durable`` are one object while nothing was written since the image was made; ``shared``
    says that another tree holds ``durable`` too, so that it is copied before it changes.
    """

    number: int
    durable: Content = attrs.field(factory=Content, repr=False)
    cache: Content = attrs.field(factory=Content, repr=False)
    writes: list[Write] = attrs.field(factory=list, repr=False)
    shared: bool = False
    #: The shortest length to which it was cut since the last sync.
    cut: int | None = None
    #: Who holds the exclusive lock: an open file, or None.
    locked_by: object | None = None
    #: Names and open files that refer to this content; at 0 its room is free again.
    references: int = 0
    #: Durable names of it, and changes of names not synced; while there are any, a power loss can bring it back.
    returning: int = 0

    def write(self, order: int, offset: int, data: bytes) -> None:
        """Change the cache, and remember the sectors as not synced."""
        if self.cache is self.durable:
            self.cache = self.durable.copy()
        cache = self.cache
        cache.write(offset, data)
        end = offset + len(data)
        start = offset - offset % SECTOR_BYTES
        stop = min(-(-end // SECTOR_BYTES) * SECTOR_BYTES, len(cache))
        sectors = data if (start, stop) == (offset, end) else cache.read(start, stop)
        self.writes.append(Write(order, start, sectors))

    def truncate(self, size: int) -> None:
        """Cut the cache; a power loss before the next sync brings the durable bytes back."""
        if size < len(self.cache):
            self.cache = self.cache.copy()
            self.cache.resize(size)
            # What was written behind the end is nowhere any more.
            self.writes = [
                Write(order, offset, data[: max(size - offset, 0)])
                for order, offset, data in self.writes
                if offset < size
            ]
            self.cut = size if self.cut is None else min(self.cut, size)

    def sync(self) -> None:
        """Make every write durable."""
        if self.cut is not None:
            if self.shared or self.durable is self.cache:
                self.durable, self.shared = self.durable.copy(), False
            self.durable.resize(min(self.cut, len(self.durable)))
            self.cut = None
        self.keep(self.writes)
        self.writes.clear()

    def keep(self, writes: Sequence[Write]) -> None:
        """Make these writes durable, in this order."""
        if not writes:
            return
        if self.shared or self.durable is self.cache:
            self.durable, self.shared = self.durable.copy(), False
        for _, offset, data in writes:
            self.durable.write(offset, data)

    def forget_cache(self) -> None:
        """Drop the bytes that are in the cache only: a later read sees the durable ones."""
        self.writes.clear()
        self.cut = None
        self.cache = self.durable


class SectorEntry(NamedTuple):
    """A sector not synced."""

    order: int
    inode: Inode
    offset: int
    data: bytes


class LengthEntry(NamedTuple):
    """A length of a file not synced."""

    order: int
    inode: Inode
    size: int


class NameEntry(NamedTuple):
    """Unsynced names that change together: (directory, name, the inode or directory of that name or None).

    ``moved``: the paths of a directory before and after it got another name; empty: none did.
    """

    order: int
    effects: tuple[tuple[str, str, Inode | str | None], ...]
    moved: tuple[str, ...] = ()


Entry = SectorEntry | LengthEntry | NameEntry
#: What a name of a directory stands for in a tree.
DIRECTORY = "directory"
ROOT = "/"


@functools.lru_cache(maxsize=4096)
def in_pages(size_bytes: int, page_bytes: int) -> int:
    """Return the bytes that a file of this size takes on a disk with pages of this size."""
    return -(-size_bytes // page_bytes) * page_bytes


def normalize(path: str) -> str:
    """Return a path in its normal spelling: absolute, without empty parts."""
    return ROOT + "/".join(part for part in path.split("/") if part not in ("", "."))


def split(path: str) -> tuple[str, str]:
    """A normalized path's directory and name."""
    directory, _, name = path.rpartition("/")
    return directory or ROOT, name


@attrs.define(eq=False)
class Tree:
    """All names and contents, cached and durable."""

    names: dict[str, dict[str, Inode | str]] = attrs.field(factory=lambda: {ROOT: {}})
    durable_names: dict[str, dict[str, Inode | str]] = attrs.field(factory=lambda: {ROOT: {}})
    pending_names: list[NameEntry] = attrs.field(factory=list)
    #: Every content that a name or an open file refers to, by number.
    inodes: dict[int, Inode] = attrs.field(factory=dict)
    next_number: int = 1
    next_order: int = 1
    #: The newest bytes of removed files.
    leftovers: bytes = b""
    #: Whether a lost sector beyond a durable length can be read in this tree, made by ``crash``.
    shows_background: bool = False
    #: What tells this tree from the others that ``crash`` can make of the same one.
    outcome: tuple[object, ...] = ()

    # -- changes of the cached face ------------------------------------------------------------------------

    def order(self) -> int:
        """The next place in the list of things not synced."""
        self.next_order += 1
        return self.next_order - 1

    def new_inode(self) -> Inode:
        """An empty content without a name."""
        inode = Inode(self.next_number)
        self.next_number += 1
        self.inodes[inode.number] = inode
        return inode

    def release(self, inode: Inode) -> None:
        """Count one name or open file less; the space of a content without any is free."""
        inode.references -= 1
        self._collect([inode])

    def _collect(self, inodes: Sequence[Inode]) -> None:
        """Forget the contents without references among these, unless a power loss can bring them back."""
        for inode in inodes:
            if inode.references == inode.returning == 0 and self.inodes.pop(inode.number, None) is not None:
                self.leftovers = (inode.durable.read(0, LEFTOVER_BYTES_MAX) + self.leftovers)[:LEFTOVER_BYTES_MAX]

    def change_names(self, *effects: tuple[str, str, Inode | str | None]) -> None:
        """Change names in the cache, and remember them as not synced."""
        self.pending_names.append(NameEntry(self.order(), effects))
        for directory, name, node in effects:
            old = self.names[directory].get(name)
            if isinstance(node, Inode):
                node.references += 1
                node.returning += 1
            _bind(self.names, directory, name, node)
            if isinstance(old, Inode):
                self.release(old)

    def move_directory(self, old: str, new: str) -> None:
        """Give a directory another path in the cache, with all that is in it, and remember that as not synced."""
        effects = ((*split(old), None), (*split(new), DIRECTORY))
        self.pending_names.append(NameEntry(self.order(), effects, (old, new)))
        _move(self.names, old, new)
        for directory, name, node in effects:
            _bind(self.names, directory, name, node)

    def sync_directory(self, directory: str) -> None:
        """Make the names of a directory durable, with those elsewhere that changed together with them."""
        waiting: list[NameEntry] = []
        replaced: dict[int, Inode] = {}
        moves = [entry for entry in self.pending_names if entry.moved]
        synced = _before_moves(directory, self.next_order, moves)
        for entry in self.pending_names:
            if any(_before_moves(effect[0], entry.order, moves) == synced for effect in entry.effects):
                if entry.moved:
                    _move(self.durable_names, *entry.moved)
                    moves.remove(entry)
                    # What was changed there before, and is not durable yet, is at the new path from now on.
                    waiting = [_renamed(before, *entry.moved) for before in waiting]
                for path, name, node in entry.effects:
                    within = _before_moves(path, entry.order, moves)
                    # What a change not synced was for a content, its durable name is now.
                    old = self.durable_names.setdefault(within, {}).get(name)
                    _bind(self.durable_names, within, name, node)
                    if isinstance(old, Inode):
                        old.returning -= 1
                        replaced[old.number] = old
            else:
                waiting.append(entry)
        self.pending_names = waiting
        self._collect([replaced[number] for number in sorted(replaced)])

    def used_bytes(self, page_bytes: int) -> int:
        """Room taken, in whole pages: the length of every content with a name or an open file, holes included."""
        return sum(in_pages(len(inode.cache), page_bytes) for inode in self.inodes.values() if inode.references)

    # -- what a power loss can leave -------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return the unsynced changes, oldest first; a power loss keeps or loses each of them."""
        found: list[Entry] = list(self.pending_names)
        for inode in self.inodes.values():
            end = len(inode.durable)
            for order, offset, data in inode.writes:
                for at in range(0, len(data), SECTOR_BYTES):
                    found.append(SectorEntry(order, inode, offset + at, data[at : at + SECTOR_BYTES]))
                end = max(end, offset + len(data))
            if inode.writes and end > len(inode.durable):
                found.append(LengthEntry(inode.writes[-1].order, inode, end))
        found.sort(key=lambda entry: entry[0])
        return found

    def crash(self, kept: Sequence[Entry], background: bytes = b"") -> Tree:
        """The tree that a power loss leaves if it keeps just these entries (in their order).

        ``background`` is what lost sectors beyond a durable length read as, repeated; empty: zeros.
        """
        names = {directory: dict(inside) for directory, inside in self.durable_names.items()}
        lost = [entry for entry in self.pending_names if entry.moved and entry not in kept]
        by_inode: dict[int, list[SectorEntry | LengthEntry]] = {}
        for entry in kept:
            if isinstance(entry, NameEntry):
                if entry.moved and not _move(names, *(_before_moves(path, entry.order, lost) for path in entry.moved)):
                    # The directory itself was lost.
                    continue
                for path, name, node in entry.effects:
                    directory = _before_moves(path, entry.order, lost)
                    if directory in names:
                        _bind(names, directory, name, node)
            else:
                by_inode.setdefault(entry.inode.number, []).append(entry)
        tree = Tree(leftovers=self.leftovers, next_number=self.next_number, next_order=self.next_order)
        copies: dict[int, Inode] = {}
        outcome: list[object] = []
        for directory, inside in _reachable(names):
            into = tree.names[directory] = {}
            for name, node in inside.items():
                if isinstance(node, Inode):
                    copy = copies.get(node.number)
                    if copy is None:
                        copy, newest, shows = _settled(node, by_inode.get(node.number, ()), background)
                        tree.shows_background |= shows
                        outcome += newest
                        copies[node.number] = tree.inodes[node.number] = copy
                    copy.references += 1
                    copy.returning += 1
                    into[name] = copy
                    outcome += (directory, name, node.number)
                else:
                    into[name] = node
                    outcome += (directory, name)
        tree.durable_names = {directory: dict(inside) for directory, inside in tree.names.items()}
        tree.outcome = tuple(outcome)
        return tree

    def copy(self) -> Tree:
        """The same tree again, as a killed process leaves it: the cache is whole, nothing more is durable."""
        twin = Tree(leftovers=self.leftovers, next_number=self.next_number, next_order=self.next_order)
        for inode in self.inodes.values():
            inode.shared = True
            cache = inode.cache if inode.cache is inode.durable else inode.cache.copy()
            copy = Inode(inode.number, inode.durable, cache, list(inode.writes), shared=True)
            copy.returning, copy.cut = inode.returning, inode.cut
            twin.inodes[inode.number] = copy
        twin.names = _translated(self.names, twin.inodes)
        twin.durable_names = _translated(self.durable_names, twin.inodes)
        for entry in self.pending_names:
            effects = tuple(
                (d, n, twin.inodes.get(i.number) if isinstance(i, Inode) else i) for d, n, i in entry.effects
            )
            twin.pending_names.append(NameEntry(entry.order, effects, entry.moved))
        for inside in twin.names.values():
            for node in inside.values():
                if isinstance(node, Inode):
                    node.references += 1
        return twin


def _bind(names: dict[str, dict[str, Inode | str]], directory: str, name: str, node: Inode | str | None) -> None:
    if node is None:
        names[directory].pop(name, None)
        return
    names[directory][name] = node
    if node is DIRECTORY:
        names.setdefault(normalize(f"{directory}/{name}"), {})


def _move(names: dict[str, dict[str, Inode | str]], old: str, new: str) -> bool:
    """Move a directory and those below it; return whether it is there."""
    if old not in names:
        return False
    for path in [path for path in names if _is_within(path, old)]:
        names[new + path[len(old) :]] = names.pop(path)
    return True


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _renamed(entry: NameEntry, old: str, new: str) -> NameEntry:
    """A change that was made below a directory before it got another path, at that path."""
    effects = tuple((new + d[len(old) :] if _is_within(d, old) else d, name, node) for d, name, node in entry.effects)
    return entry._replace(effects=effects)


def _before_moves(path: str, order: int, moves: Sequence[NameEntry]) -> str:
    """The path of a directory, as of an order, without the moves."""
    for entry in reversed(moves):
        if entry.moved and entry.order < order and _is_within(path, entry.moved[1]):
            path = entry.moved[0] + path[len(entry.moved[1]) :]
    return path


def _reachable(
    names: dict[str, dict[str, Inode | str]],
) -> Iterator[tuple[str, dict[str, Inode | str]]]:
    """The directories that have a path of names from the root, parents first."""
    waiting = [ROOT]
    while waiting:
        directory = waiting.pop()
        inside = names.get(directory, {})
        yield directory, inside
        waiting.extend(normalize(f"{directory}/{name}") for name, node in inside.items() if node is DIRECTORY)


def _translated(
    names: dict[str, dict[str, Inode | str]], inodes: dict[int, Inode]
) -> dict[str, dict[str, Inode | str]]:
    return {
        directory: {n: inodes[i.number] if isinstance(i, Inode) else i for n, i in inside.items()}
        for directory, inside in names.items()
    }


def _settled(
    inode: Inode, kept: Sequence[SectorEntry | LengthEntry], background: bytes
) -> tuple[Inode, list[int], bool]:
    """A content after a power loss that kept these of its entries.

    With it the length and the newest versions kept, which tell it from others, and whether background shows.
    """
    if not kept:
        inode.shared = True
        return Inode(inode.number, inode.durable, inode.durable, shared=True), [], False
    content = inode.durable.copy()
    end = size = len(content)
    newest: dict[int, SectorEntry] = {}
    for entry in kept:
        if isinstance(entry, SectorEntry):
            newest[entry.offset] = entry
            size = max(size, entry.offset + len(entry.data))
        else:
            size = max(size, entry.size)
    if background:
        content.write(end, (background * (size // len(background) + 1))[end:size])
    else:
        content.resize(size)
    covered = 0
    for offset, entry in newest.items():
        stop = offset + len(entry.data)
        content.write(offset, entry.data)
        covered += max(stop - max(offset, end), 0)
    key = [size, *(part for offset in sorted(newest) for part in (offset, newest[offset].order))]
    return Inode(inode.number, content, content), key, covered < size - end
