"""The owner of a journal, as far as the journal calls the owner."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from meshq.errors import DamagedError, MeshqError
from meshq.ids import Position
from meshq.store.formats._record import CheckpointRecord


@attrs.frozen(kw_only=True)
class JournalOwner:
    """The calls of a journal to its owner.

    Each call is made in a task of the journal, and an error that it raises ends the journal.
    """

    #: Called each time the durable position has moved, until ``aclose``.
    durable_moved: Callable[[Position], None]
    #: Called once, when the disk has failed.
    failed: Callable[[MeshqError], None]
    #: Called each time ``Journal.full`` has changed.
    full_changed: Callable[[], None]
    #: Called for each sealed segment that is found damaged in the background; its records are not read.
    damaged: Callable[[DamagedError], None]
    #: Returns the owner's soft state, whenever a segment begins; None: the owner has no soft state.
    checkpoint: Callable[[], list[CheckpointRecord]] | None
    #: Whether the owner places the batches of another journal, the checkpoints of that one's owner among them.
    follows: bool = False


class OwnerLink:
    """The connection of a journal's parts to the owner, who may come when the journal is open."""

    __slots__ = ("durable_moved", "owner")

    def __init__(self) -> None:
        #: None: the journal is used by itself.
        self.owner: JournalOwner | None = None
        #: The owner's call, until the journal is being closed.
        self.durable_moved: Callable[[Position], None] | None = None

    def attach(self, owner: JournalOwner) -> None:
        """Call this owner from now on."""
        self.owner = owner
        self.durable_moved = owner.durable_moved

    def report(self, durable: Position) -> None:
        """Tell the owner that the durable position has moved."""
        if self.durable_moved is not None:
            self.durable_moved(durable)

    def mute(self) -> None:
        """Report no durable position any more: a report must not lead to new records."""
        self.durable_moved = None

    @property
    def follows(self) -> bool:
        """Whether the journal takes the batches of another one."""
        return self.owner is not None and self.owner.follows

    @property
    def checkpoint(self) -> Callable[[], list[CheckpointRecord]] | None:
        """The function that returns the owner's soft state."""
        return None if self.owner is None else self.owner.checkpoint
