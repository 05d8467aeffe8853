"""How one life of a node sees a simulated disk: its open files, and every call that it makes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from meshq.abc import Buffer, Disk, File
from meshq.testing.disk._faults import DiskCall, DiskFaults, DiskOperation, SimulatedCrash, os_error
from meshq.testing.disk._tree import DIRECTORY, Inode, in_pages, normalize, split

if TYPE_CHECKING:
    from meshq.testing.disk._disk import SimDisk


class SimFile(File):
    """An open file of a simulated disk."""

    __slots__ = ("_inode", "_mount", "path")

    def __init__(self, mount: Mount, inode: Inode, path: str) -> None:
        self._mount = mount
        self._inode: Inode | None = inode
        self.path: str = path

    def __repr__(self) -> str:
        return f"<SimFile {self.path} {'open' if self._inode else 'closed'}>"

    def _content(self) -> Inode:
        inode = self._inode
        if inode is None:
            if self._mount.alive:
                raise os_error(errno.EBADF, self.path)
            raise dead(self.path)
        return inode

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        inode, device = self._content(), self._mount.device
        data = b"".join(buffers)
        faults = device.faults
        while faults.short_write_rate and len(data) > 1 and faults.rng.random() < faults.short_write_rate:
            # A short write is continued, so all that it leaves is a moment at which half of it is done.
            faults.count("disk.short_write")
            part = faults.rng.randrange(1, len(data))
            self._write_part(inode, offset, data[:part])
            inode, offset, data = self._content(), offset + part, data[part:]
        self._write_part(inode, offset, data)

    def _write_part(self, inode: Inode, offset: int, data: bytes) -> None:
        mount = self._mount
        device = mount.device
        error = mount.begin("write", self.path)
        reaches = device.faults.rng.randrange(len(data) + 1) if error and data else len(data)
        room = device.free_bytes() + max(in_pages(len(inode.cache), device.page_bytes) - offset, 0)
        if reaches > room:
            error, reaches = errno.ENOSPC, max(int(room), 0)
            device.faults.count("disk.full")
        if reaches:
            inode.write(device.tree.order(), offset, data[:reaches])
        if error:
            raise os_error(error, self.path)
        mount.end("write", self.path, offset, len(data))

    def read_at(self, offset: int, size: int) -> bytes:
        inode = self._content()
        error = self._mount.begin("read", self.path)
        if error:
            raise os_error(error, self.path)
        data = inode.cache.read(offset, offset + size)
        self._mount.end("read", self.path, offset, len(data))
        return data

    def size(self) -> int:
        return len(self._content().cache)

    def truncate(self, size: int) -> None:
        inode = self._content()
        error = self._mount.begin("truncate", self.path)
        if error:
            raise os_error(error, self.path)
        inode.truncate(size)
        self._mount.end("truncate", self.path, size)

    def sync(self) -> float:
        inode = self._content()
        error = self._mount.begin("sync", self.path)
        if error:
            self._mount.device.fail_sync(inode)
            raise os_error(error, self.path)
        size = sum(len(write.data) for write in inode.writes)
        inode.sync()
        return self._mount.end("sync", self.path, 0, size)

    def lock(self) -> bool:
        inode = self._content()
        error = self._mount.begin("lock", self.path)
        if error:
            raise os_error(error, self.path)
        if inode.locked_by is None:
            inode.locked_by = self
        self._mount.end("lock", self.path)
        return inode.locked_by is self

    def unlock(self) -> None:
        """Take the lock away from the file, if it has it."""
        if self._inode is not None and self._inode.locked_by is self:
            self._inode.locked_by = None

    def lose_unsynced(self, faults: DiskFaults) -> None:
        """Keep or lose unsynced bytes by chance."""
        inode = self._inode
        if inode is not None:
            reached = [write for write in inode.writes if faults.rng.random() < 0.5]
            faults.count("disk.lost_sector", len(inode.writes) - len(reached))
            inode.keep(reached)
            inode.forget_cache()

    def close(self) -> None:
        inode, self._inode = self._inode, None
        if inode is not None:
            if inode.locked_by is self:
                inode.locked_by = None
            self._mount.files.pop(self, None)
            self._mount.device.tree.release(inode)


def dead(path: str) -> OSError:
    """Return the error of a call whose node has been killed."""
    return OSError(errno.EIO, "the simulated node of this handle is dead", path)


class Mount(Disk):
    """The disk as one life of one node sees it: after that life its calls do nothing but fail with EIO."""

    __slots__ = ("alive", "device", "files", "spend")

    def __init__(self, device: SimDisk, spend: Callable[[float], object] | None = None) -> None:
        self.device: SimDisk = device
        #: Called with the seconds of each call of this life; None: those of the disk are told.
        self.spend: Callable[[float], object] | None = spend
        self.alive: bool = True
        self.files: dict[SimFile, None] = {}

    # -- around every call -----------------------------------------------------------------------------------

    def begin(self, call: DiskCall, path: str) -> int:
        """Before a call: the error with which it has to fail, or 0."""
        if not self.alive:
            raise dead(path)
        self.device.calls += 1
        return self.device.faults.error_for(call, path)

    def end(self, call: DiskCall, path: str, offset: int = 0, size: int = 0) -> float:
        """After a call that succeeded; returns how long it took, in seconds."""
        device = self.device
        seconds = 0.0
        if device.latency is not None:
            seconds = device.latency(call, size)
            (device.spend if self.spend is None else self.spend)(seconds)
        if device.watch is not None:
            device.watch(DiskOperation(device.calls, call, path, offset, size))
        if device.faults.fuse is not None:
            blow = device.faults.burn(call, self)
            if isinstance(blow, int):
                raise os_error(blow, path)
            if blow is not None:
                blow()
                if not self.alive:
                    raise SimulatedCrash(f"{call} {path}")
        return seconds

    def _start(self, call: DiskCall, path: str) -> str:
        path = normalize(path)
        error = self.begin(call, path)
        if error:
            raise os_error(error, path)
        return path

    def _place(self, path: str) -> tuple[str, str, Inode | str | None]:
        """Return the directory, the name and the entry of a path; the directory exists."""
        directory, name = split(path)
        inside = self.device.tree.names.get(directory)
        if inside is None:
            raise os_error(errno.ENOENT, path)
        return directory, name, inside.get(name)

    def _file(self, path: str) -> tuple[str, str, Inode]:
        directory, name, node = self._place(path)
        if isinstance(node, Inode):
            return directory, name, node
        raise os_error(errno.ENOENT if node is None else errno.EISDIR, path)

    # -- abc.Disk --------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        call: DiskCall = "create" if create else "open"
        path = self._start(call, path)
        tree = self.device.tree
        if create:
            directory, name, node = self._place(path)
            if node is not None:
                raise os_error(errno.EEXIST, path)
            inode = tree.new_inode()
            tree.change_names((directory, name, inode))
        else:
            inode = self._file(path)[2]
        inode.references += 1
        file = SimFile(self, inode, path)
        self.files[file] = None
        self.end(call, path)
        return file

    def replace(self, old: str, new: str) -> None:
        old, new = self._start("replace", old), normalize(new)
        from_directory, from_name, inode = self._file(old)
        directory, name, node = self._place(new)
        if node is DIRECTORY:
            raise os_error(errno.EISDIR, new)
        if node is not inode:
            self.device.tree.change_names((directory, name, inode), (from_directory, from_name, None))
        self.end("replace", new)

    def move_directory(self, old: str, new: str) -> None:
        old, new = self._start("move_directory", old), normalize(new)
        node = self._place(old)[2]
        if node is not DIRECTORY:
            raise os_error(errno.ENOENT if node is None else errno.ENOTDIR, old)
        if self._place(new)[2] is not None:
            raise os_error(errno.EEXIST, new)
        if new.startswith(f"{old}/"):
            raise os_error(errno.EINVAL, new)
        self.device.tree.move_directory(old, new)
        self.end("move_directory", new)

    def remove(self, path: str) -> None:
        path = self._start("remove", path)
        directory, name, node = self._place(path)
        if node is None:
            raise os_error(errno.ENOENT, path)
        if node is DIRECTORY and self.device.tree.names[path]:
            raise os_error(errno.ENOTEMPTY, path)
        self.device.tree.change_names((directory, name, None))
        if node is DIRECTORY:
            self.device.tree.names.pop(path)
        self.end("remove", path)

    def names(self, directory: str) -> list[str]:
        directory = self._start("names", directory)
        inside = self.device.tree.names.get(directory)
        if inside is None:
            raise os_error(errno.ENOTDIR if self.device.is_file(directory) else errno.ENOENT, directory)
        self.end("names", directory)
        return sorted(inside)

    def make_directory(self, path: str) -> None:
        path = self._start("make_directory", path)
        at = ""
        for part in path.split("/")[1:]:
            parent, at = at or "/", f"{at}/{part}"
            node = self.device.tree.names[parent].get(part) if part else DIRECTORY
            if isinstance(node, Inode):
                raise os_error(errno.EEXIST if at == path else errno.ENOTDIR, path)
            if node is None:
                self.device.tree.change_names((parent, part, DIRECTORY))
        self.end("make_directory", path)

    def mode(self, directory: str) -> int:
        if not self.alive:
            raise dead(directory)
        directory = normalize(directory)
        if directory not in self.device.tree.names:
            raise os_error(errno.ENOTDIR if self.device.is_file(directory) else errno.ENOENT, directory)
        return self.device.modes.get(directory, 0o700)

    def sync_directory(self, path: str) -> None:
        path = self._start("sync_directory", path)
        if path not in self.device.tree.names:
            raise os_error(errno.ENOTDIR if self.device.is_file(path) else errno.ENOENT, path)
        self.device.tree.sync_directory(path)
        self.end("sync_directory", path)

    def lose_locks(self) -> None:
        """The server of the disk gives the locks of the node away, which the node does not notice."""
        for file in self.files:
            file.unlock()

    def power_loss(self) -> None:
        """Cut the power of the node, but not of the disk.

        As ``kill``; besides, chance keeps or drops the unsynced bytes of its open files.  Names stay.
        """
        faults = self.device.faults
        faults.count("disk.power_loss")
        for file in self.files:
            file.lose_unsynced(faults)
        self.kill()

    def kill(self) -> None:
        """The node dies: its open files and locks are gone, and no call does anything any more."""
        if self.alive:
            self.alive = False
            for file in list(self.files):
                file.close()
