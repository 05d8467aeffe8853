"""The claim of a store that may be old: its facts, and the mark for the next start; all calls block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import attrs

from meshq.abc import Disk
from meshq.errors import BusyError, NotFoundError
from meshq.ha._epochs_plan import CLAIMED, epoch_name, newest_epoch
from meshq.ha._store_claim_plan import StoreFacts
from meshq.ha.replication import NodeDirectory
from meshq.ha.replication._standing_format import NAME
from meshq.store import last_position, store_node_id

#: The files that a node locks while it has a store.
LOCKS = ("lock", "pair")


class StoreClaim:
    """The store in a directory of nodes that share it, or of one that replicates."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self.root: str = root.rstrip("/") or "/"
        self._epoch = newest_epoch(self._names())
        if not self._epoch and NAME not in self._names():
            raise NotFoundError(f"{root} is the store of no pair: it needs no claim")

    @property
    def store(self) -> str:
        """The directory of the store itself."""
        return f"{self.root}/{epoch_name(self._epoch)}" if self._epoch else self.root

    def look(self) -> StoreFacts:
        """Read the facts; nothing is changed.  Raises: DamagedError, OSError."""
        node_id = store_node_id(self._disk, self.store)
        digits = "" if node_id is None else node_id.hex()
        if self._epoch:
            claimed, epoch = CLAIMED in self._names(), self._epoch
            return StoreFacts(
                directory=self.root, kind="shared", node_id=digits, epoch=epoch, activation=epoch, claimed=claimed
            )
        standing = NodeDirectory(self._disk, self.root).standing()
        return StoreFacts(
            directory=self.root,
            kind="replicated",
            node_id=digits,
            epoch=standing.epoch,
            activation=standing.activation,
            acted=standing.acted,
            in_sync=standing.in_sync,
            named=standing.named,
            partner=standing.partner,
            members=standing.members,
            backup=standing.as_backup,
            claimed=standing.claimed,
        )

    def position(self) -> int | None:
        """Return the last durable position; None: it is encrypted.  Raises: DamagedError, OSError."""
        return last_position(self._disk, self.store)

    def mark(self, now_ms: int) -> None:
        """Mark the store for its next start, which serves at once; durable on return.

        ``now_ms``: milliseconds since 1970.  Where a quorum is asked the mark ends: by time, and with its counter.

        Raises:
            BusyError: a node has the store.
            OSError: the disk has failed.
        """
        with self.locked():
            if not self._epoch:
                directory = NodeDirectory(self._disk, self.root)
                standing = directory.standing()
                directory.remember(attrs.evolve(standing, claimed=True, marked_ms=now_ms, against=-1))
                return
            if CLAIMED not in self._names():
                self._disk.open(f"{self.root}/{CLAIMED}", create=True).close()
            self._disk.sync_directory(self.root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep nodes from the store.  Raises: BusyError: one has it."""
        with ExitStack() as stack:
            for name in LOCKS:
                if name in self._names():
                    file = self._disk.open(f"{self.root}/{name}")
                    stack.callback(file.close)
                    if not file.lock():
                        raise BusyError(f"the store in {self.root} is open: stop its node first")
            yield

    def _names(self) -> list[str]:
        try:
            return self._disk.names(self.root)
        except (FileNotFoundError, NotADirectoryError):
            return []
