"""A data directory that several nodes have, as one of them uses it; all calls block."""

from __future__ import annotations

import contextlib
import errno
import hashlib

import attrs

from meshq.abc import Disk, File
from meshq.ha._epochs_plan import (
    CLAIMED,
    FIRST_IN_THE_MAKING,
    epoch_name,
    newest_epoch,
    plan_activation,
    stopped_name,
)
from meshq.ha._owner_format import HINT_BYTES_MAX, Owner, decode_owner, decode_registration, encode_hint
from meshq.ha._turns_plan import Registration
from meshq.store import make_directory, store_node_id

FENCE = "fence"


@attrs.frozen(kw_only=True)
class Seen:
    """The hints in the directory at one moment.  ``stopped``: the last owner has stopped, and did not hand over."""

    owner: Owner | None
    waiting: tuple[Registration, ...]
    stopped: bool


@attrs.frozen(kw_only=True)
class Epoch:
    """An epoch that has begun, and the directory of the store in it."""

    number: int
    directory: str

    @property
    def fence(self) -> str:
        """The file that is there as long as the epoch lasts."""
        return f"{self.directory}/{FENCE}"


class SharedDirectory:
    """The directory, which exists from the first call on that writes.

    ``makes_store``: whether such a call makes it; otherwise it fails where no store is, and changes nothing.
    """

    def __init__(self, disk: Disk, root: str, *, makes_store: bool = True) -> None:
        self._disk = disk
        self._makes_store = makes_store
        self.root: str = root.rstrip("/") or "/"

    # -- hints

    def look(self) -> Seen:
        """Read the hints.  Raises: OSError."""
        names = self._names(self.root)
        waiting = [decode_registration(self._read(f"{self.root}/waiting/{one}")) for one in self._names(self._waiting)]
        owner = decode_owner(self._read(f"{self.root}/owner")) if "owner" in names else None
        return Seen(
            owner=owner,
            waiting=tuple(one for one in waiting if one is not None),
            # Whoever has claimed the store wants any node to serve.
            stopped=CLAIMED not in names and self._is_stopped(newest_epoch(names)),
        )

    def register(self, registration: Registration) -> None:
        """Write the registration of this node.  Raises: OSError."""
        path, data = self._registration(registration.name), encode_hint(registration)
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            self._make(self._waiting)
            file = self._opened(path)
        try:
            if file.size() != len(data):
                file.truncate(0)
            file.write_at(0, [data])
        finally:
            file.close()

    def withdraw(self, name: str) -> None:
        """Remove the registration of this node, if there is one.  Raises: OSError."""
        try:
            self._disk.remove(self._registration(name))
        except FileNotFoundError:
            return

    def write_owner(self, owner: Owner) -> None:
        """Say who has the store; the caller has the lock.  Raises: OSError."""
        path = f"{self.root}/owner"
        file = self._opened(f"{path}.tmp")
        try:
            file.truncate(0)
            file.write_at(0, [encode_hint(owner)])
        finally:
            file.close()
        self._disk.replace(f"{path}.tmp", path)

    # -- the store

    def is_shared(self) -> bool:
        """Whether the store is in the directory of an epoch, or on the way there.  Raises: OSError."""
        names = self._names(self.root)
        return newest_epoch(names) > 0 or epoch_name(FIRST_IN_THE_MAKING) in names

    def node_id(self) -> str:
        """Return the id of the node that the store is of, as hexadecimal digits; empty: the store is new.

        The caller has the lock, or takes what it gets for a hint.
        Raises: DamagedError, SettingsError (of a newer version), OSError.
        """
        names = self._names(self.root)
        places = [epoch_name(FIRST_IN_THE_MAKING), epoch_name(newest_epoch(names))]
        for place in (self.root, *(f"{self.root}/{one}" for one in places if one in names)):
            node_id = store_node_id(self._disk, place)
            if node_id is not None:
                return node_id.hex()
        return ""

    def try_lock(self) -> File | None:
        """Lock the store until the file is closed; None: another node has it.  Raises: OSError."""
        path = f"{self.root}/lock"
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            self._make(self.root)
            file = self._opened(path)
        try:
            locked = file.lock()
        except BaseException:
            file.close()
            raise
        if locked:
            return file
        file.close()
        return None

    def begin(self) -> Epoch:
        """Begin the next epoch, durable on return; the caller has the lock.

        Raises:
            SettingsError: the directory has not one whole store.
            OSError: the disk has failed.
        """
        disk, root = self._disk, self.root
        # Whoever has made it may have died before its name was durable.
        self._make(root)
        names, making = self._names(root), f"{root}/{epoch_name(FIRST_IN_THE_MAKING)}"
        newest = newest_epoch(names)
        within = {newest: self._names(f"{root}/{epoch_name(newest)}"), FIRST_IN_THE_MAKING: self._names(making)}
        plan = plan_activation(names, within, where=root)
        epoch = Epoch(number=plan.epoch, directory=f"{root}/{epoch_name(plan.epoch)}")
        if plan.rename:
            disk.move_directory(f"{root}/{epoch_name(plan.rename)}", epoch.directory)
        else:
            disk.make_directory(making)
            for part in plan.move:
                disk.move_directory(f"{root}/{part}", f"{making}/{part}")
            disk.move_directory(making, epoch.directory)
        if newest_epoch(self._names(root)) != plan.epoch:
            # Two others have begun epochs meanwhile; without a file in it this directory lets nobody go on.
            raise OSError(errno.ESTALE, "another node has the store: a later epoch has begun", epoch.directory)
        self._opened(epoch.fence).close()
        for name in self._names(epoch.directory):
            if name.startswith(stopped_name("")):
                disk.remove(f"{epoch.directory}/{name}")
        for name in self._names(self._waiting):
            # Who waits writes it again; who is gone does not.
            with contextlib.suppress(FileNotFoundError):
                disk.remove(f"{self._waiting}/{name}")
        disk.sync_directory(epoch.directory)
        disk.sync_directory(root)
        if CLAIMED in names:
            # Only now: a crash before it costs some more epochs, and one after it nothing.
            disk.remove(f"{root}/{CLAIMED}")
            disk.sync_directory(root)
        return epoch

    def mark_stopped(self, epoch: Epoch) -> None:
        """Tell backups to wait for a primary, unless another epoch has begun.  Raises: OSError."""
        self._opened(f"{epoch.directory}/{stopped_name(epoch.number)}").close()
        self._disk.sync_directory(epoch.directory)

    def _is_stopped(self, epoch: int) -> bool:
        try:
            self._disk.open(f"{self.root}/{epoch_name(epoch)}/{stopped_name(epoch)}").close()
        except FileNotFoundError:
            return False
        return True

    # -- files

    @property
    def _waiting(self) -> str:
        return f"{self.root}/waiting"

    def _registration(self, name: str) -> str:
        return f"{self._waiting}/{hashlib.sha256(name.encode()).hexdigest()[:32]}"

    def _make(self, path: str) -> None:
        if not self._makes_store and not self.node_id():
            raise FileNotFoundError(errno.ENOENT, "the store that another node shares is not there", self.root)
        make_directory(self._disk, path)

    def _names(self, path: str) -> list[str]:
        try:
            return self._disk.names(path)
        except FileNotFoundError:
            return []

    def _opened(self, path: str) -> File:
        """Open a file, which is made if it is missing."""
        try:
            return self._disk.open(path)
        except FileNotFoundError:
            try:
                return self._disk.open(path, create=True)
            except FileExistsError:
                return self._disk.open(path)

    def _read(self, path: str) -> bytes:
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return b""
        try:
            return file.read_at(0, HINT_BYTES_MAX)
        finally:
            file.close()
