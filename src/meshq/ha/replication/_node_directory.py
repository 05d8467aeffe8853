"""The directory of a node that replicates, as its policy uses it; all calls of it block."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import attrs
import trio

from meshq.abc import Disk, File, Threads
from meshq.errors import BusyError, MeshqError, SettingsError
from meshq.ha._epochs_plan import newest_epoch
from meshq.ha._whole_file import open_or_create, replace_file
from meshq.ha.replication._saved_stores_plan import MOVES, PARTS, SYNCING, Moves, plan_moves, to_remove
from meshq.ha.replication._standing_format import BYTES_MAX, NAME, Standing, decode_standing, encode_standing
from meshq.store import make_directory, store_node_id

LOCK = "pair"
#: Seconds after each try to read what a node remembers.
READ_AGAIN_S: Final = (0.1, 0.5, 0.0)


class NodeDirectory:
    """The directory, which exists once it was locked."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self.root: str = root.rstrip("/") or "/"
        self._lock: File | None = None
        #: Whether a memory that could not be replaced may be on the disk all the same.
        self.is_unsure: bool = False

    @property
    def syncing(self) -> str:
        """The directory of a copy in the making."""
        return f"{self.root}/{SYNCING}"

    def enter(self) -> Standing:
        """Lock the directory, complete moves that a crash has interrupted, and return the memory of the node.

        Raises:
            BusyError: another broker has it.
            SettingsError: a pair has shared a store in it.
            DamagedError, OSError: the disk has failed.
        """
        make_directory(self._disk, self.root)
        lock = open_or_create(self._disk, f"{self.root}/{LOCK}")
        if not lock.lock():
            lock.close()
            raise BusyError(f"the store in {self.root} is open already, here or in another process")
        self._lock = lock
        if newest_epoch(self._names("")):
            raise SettingsError("data_dir", self.root, "a directory of one node; in this one a pair has shared a store")
        self._complete_moves()
        return self.standing()

    def leave(self) -> None:
        """Unlock the directory; twice is silent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()

    def node_id(self) -> bytes:
        """Return the id of the node whose store is here; empty: there is none yet.  Raises: DamagedError, OSError."""
        return bytes(store_node_id(self._disk, self.root) or b"")

    # -- the memory

    def standing(self) -> Standing:
        """Return the memory of the node.  Raises: DamagedError, OSError."""
        path = f"{self.root}/{NAME}"
        try:
            return decode_standing(self._read(path), path)
        except FileNotFoundError:
            return Standing()

    def remember(self, standing: Standing) -> None:
        """Replace the memory; durable on return.  Raises: OSError."""
        replace_file(self._disk, self.root, NAME, encode_standing(standing), renames=self._renames)
        self.is_unsure = False

    def _renames(self) -> None:
        self.is_unsure = True

    # -- copies

    def clear_copy(self) -> None:
        """Remove the rest of an earlier copy, once moves that failed halfway are complete.  Raises: OSError."""
        self._complete_moves()
        self._remove_files(SYNCING)

    def install_copy(self, standing: Standing, keep: float) -> None:
        """Let the copy take the place of the store, which is saved; a crash in between is completed by ``enter``.

        ``standing``: the memory of the node from then on.  ``keep``: how many saved stores are kept.

        Raises: OSError.
        """
        self.remember(standing)
        moves = plan_moves(self._names(""), self._names(SYNCING))
        self._write(MOVES, moves.encode())
        self._complete_moves()
        for name in to_remove(self._names(""), keep):
            self._remove_files(name)
            self._remove_empty(name)

    def _complete_moves(self) -> None:
        try:
            data = self._read(f"{self.root}/{MOVES}")
        except FileNotFoundError:
            return
        moves = Moves.decode(data)
        for old, new in moves.pairs if moves is not None else ():
            self._move(old, new)
        self._disk.remove(f"{self.root}/{MOVES}")
        self._disk.sync_directory(self.root)

    def _move(self, old: str, new: str) -> None:
        above, _, name = new.rpartition("/")
        if name in self._names(above) or old.rpartition("/")[2] not in self._names(old.rpartition("/")[0]):
            return
        if above:
            make_directory(self._disk, f"{self.root}/{above}")
        self._disk.move_directory(f"{self.root}/{old}", f"{self.root}/{new}")
        for changed in dict.fromkeys((above, old.rpartition("/")[0])):
            self._disk.sync_directory(f"{self.root}/{changed}".rstrip("/"))

    def _remove_files(self, directory: str) -> None:
        """Remove the files in a directory; the directories stay, empty."""
        for name in self._names(directory):
            path = f"{directory}/{name}"
            if name in PARTS:
                self._remove_files(path)
                continue
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(f"{self.root}/{path}")

    def _remove_empty(self, saved: str) -> None:
        """Remove the directories of a saved store that has no files any more; one that has others of a user stays."""
        for part in (*(f"{saved}/{name}" for name in self._names(saved) if name in PARTS), saved):
            if not self._names(part):
                # The names that were in it are gone before it is.
                self._disk.sync_directory(f"{self.root}/{part}")
                self._disk.remove(f"{self.root}/{part}")
        self._disk.sync_directory(self.root)

    # -- files

    def _names(self, below: str) -> list[str]:
        try:
            return self._disk.names(f"{self.root}/{below}".rstrip("/"))
        except FileNotFoundError:
            return []

    def _read(self, path: str) -> bytes:
        file = self._disk.open(path)
        try:
            return file.read_at(0, BYTES_MAX)
        finally:
            file.close()

    def _write(self, name: str, data: bytes) -> None:
        replace_file(self._disk, self.root, name, data)


@attrs.frozen
class BodyFile:
    """The file of a large body in the directory of a node, as it is copied."""

    disk: Disk
    directory: str

    def names(self) -> list[str]:
        """List the whole bodies.  Raises: OSError."""
        try:
            return [name for name in self.disk.names(self.directory) if name.endswith(BODY_SUFFIX)]
        except FileNotFoundError:
            return []

    def read(self, name: str, offset: int, size: int) -> bytes | None:
        """Read bytes of a body; None: it is not there any more.  Raises: OSError."""
        try:
            file = self.disk.open(f"{self.directory}/{name}")
        except FileNotFoundError:
            return None
        try:
            return file.read_at(offset, size)
        finally:
            file.close()

    def write(self, name: str, offset: int, data: bytes, *, last: bool) -> None:
        """Write bytes of a body; with the last ones it is whole, and durable.  Raises: OSError."""
        # A start removes what is not whole.
        part = f"{self.directory}/{name.removesuffix(BODY_SUFFIX)}.part"
        if not offset:
            make_directory(self.disk, self.directory)
            with contextlib.suppress(FileNotFoundError):
                self.disk.remove(part)
        file = self.disk.open(part, create=not offset)
        try:
            file.write_at(offset, [data])
            if last:
                file.sync()
        finally:
            file.close()
        if last:
            self.disk.replace(part, f"{self.directory}/{name}")
            self.disk.sync_directory(self.directory)

    def remove(self, name: str) -> None:
        """Remove a body; silent if it is not there.  Raises: OSError."""
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove(f"{self.directory}/{name}")


#: The end of the name of a whole body.
BODY_SUFFIX = ".body"


def is_body(name: str) -> bool:
    """Whether a name is that of a whole body: 32 hexadecimal digits before the suffix."""
    digits = name.removesuffix(BODY_SUFFIX)
    return digits != name and len(digits) == 32 and all(one in "0123456789abcdef" for one in digits)


async def read_again(
    directory: NodeDirectory, threads: Threads, pool: str, complain: Callable[[Exception], None]
) -> tuple[Standing, bytes] | None:
    """Read the memory of a node and the id of its store in three tries; None: the disk has failed each time.

    Checkpoint: always.  Cancellation: once it is done.
    """
    with trio.CancelScope(shield=True):
        # A disk that fails once may not keep a replica that has everything from taking over.
        for pause in READ_AGAIN_S:
            try:
                found = await threads.run(directory.standing, pool=pool)
                return found, await threads.run(directory.node_id, pool=pool)
            except (MeshqError, OSError) as error:
                complain(error)
                await trio.sleep(pause)
    return None
