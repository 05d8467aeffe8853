"""A queue of the model: messages of groups that wait, or that a consumer has, as the queue machine has them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import attrs

from meshq.broker.queue._queue_spec import QueueKind

#: The one queue of the model, which is an address, too.
QUEUE: Final = "q"


@attrs.frozen(eq=False)
class ModelMessage:
    """A message: its number in the run, its group, its sender."""

    uid: int
    group: str
    sender: str


@attrs.define(eq=False)
class Row:
    """A message in a queue: its number there, and the step of the run in which it came."""

    number: int
    message: ModelMessage
    came: int


@attrs.define(eq=False)
class ModelGroup:
    """The messages of a group in a queue."""

    name: str
    waiting: deque[Row] = attrs.field(factory=deque)
    held: list[Row] = attrs.field(factory=list)
    #: A consumer has the group; it may be given to one.
    owner: object | None = None
    offered: bool = False

    @property
    def unacked(self) -> int:
        """How many messages a consumer has."""
        return len(self.held)


@attrs.define(eq=False)
class Roster:
    """The consumers of a queue."""

    consumers: dict[str, None] = attrs.field(factory=dict)
    filters: tuple[Any, ...] = ()
    may_offer: Callable[[str], bool] | None = None
    claim: Callable[[str], bool] | None = None


@attrs.frozen
class Spec:
    """The settings of a queue, without a filter."""

    filter: None = None


class ModelGroups:
    """The groups of a queue, which are offered to consumers as ``GroupedMessages`` does it."""

    def __init__(self, roster: Roster) -> None:
        self.table: dict[str, ModelGroup] = {}
        self._roster = roster

    def opened(self, name: str) -> None:
        """Offer a group that is consumed here from now on."""
        known = self.table.get(name)
        if known is not None and known.owner is None:
            self.offer(known)

    def closed(self, name: str) -> None:
        """Take a group from its owner."""
        known = self.table.get(name)
        if known is not None:
            known.owner = None
            self.offer(known)

    def offer(self, group: ModelGroup) -> None:
        """Offer a group without an owner if it is consumed here."""
        group.offered = False
        if group.owner is None and not group.unacked:
            group.offered = self._roster.claim is None or self._roster.claim(group.name)

    def settle(self, group: ModelGroup) -> None:
        """Look at a group of which messages have gone."""
        if group.unacked:
            return
        if not group.waiting:
            del self.table[group.name]
        elif group.owner is None:
            self.offer(group)


class ModelQueue:
    """The queue of a node."""

    kind = QueueKind.REGULAR
    forwards = False
    paused = False
    durable = True

    def __init__(self) -> None:
        self.name = self.address = QUEUE
        self.spec = Spec()
        self.roster = Roster()
        self.grouped = ModelGroups(self.roster)
        #: The number of the last message.
        self.last: int = 0

    def place(self, message: ModelMessage, step: int) -> None:
        """Take in a message."""
        self.last += 1
        group = self.grouped.table.setdefault(message.group, ModelGroup(message.group))
        group.waiting.append(Row(self.last, message, step))
        if group.owner is None and not group.unacked:
            self.grouped.offer(group)

    def dispatch(self, window: int) -> list[Row]:
        """Give messages to a consumer; return these."""
        given: list[Row] = []
        for group in list(self.grouped.table.values()) if self.roster.consumers else ():
            if group.owner is None and group.offered and group.waiting and not group.unacked:
                group.owner, group.offered = self.roster, False
            while group.owner is not None and group.waiting and group.unacked < window:
                row = group.waiting.popleft()
                group.held.append(row)
                given.append(row)
        return given

    def settled(self, row: Row) -> bool:
        """Take away a message that its consumer has acknowledged; False: it was given back meanwhile."""
        group = self.grouped.table.get(row.message.group)
        if group is None or row not in group.held:
            return False
        group.held.remove(row)
        self.grouped.settle(group)
        return True

    def consumer_leaves(self) -> None:
        """Give back all that the consumer has."""
        self.roster.consumers.clear()
        for group in list(self.grouped.table.values()):
            group.waiting.extendleft(reversed(group.held))
            group.held.clear()
            group.owner = None
            self.grouped.offer(group)

    @property
    def waiting(self) -> list[Row]:
        """Return all messages, also unacked ones."""
        return [row for group in self.grouped.table.values() for row in (*group.held, *group.waiting)]


@attrs.frozen(eq=False)
class ForwardRow:
    """A message in a store-and-forward queue, with its number there."""

    number: int
    message: ModelMessage


class ModelForward:
    """The store-and-forward queue for a node."""

    kind = QueueKind.STORE_AND_FORWARD
    forwards = True

    def __init__(self, node_id: str) -> None:
        self.name = f"$meshq.cluster.mesh.{node_id}"
        self.roster = Roster()
        self.grouped = None
        self.rows: deque[ForwardRow] = deque()
        self.last: int = 0
        #: The number of the last message that the other node has stored.
        self.stored: int = 0

    def append(self, message: ModelMessage) -> None:
        """Store a message."""
        self.last += 1
        self.rows.append(ForwardRow(self.last, message))

    def done(self, number: int) -> None:
        """Remove messages up to a number."""
        while self.rows and self.rows[0].number <= number:
            self.rows.popleft()

    def empty(self) -> list[ModelMessage]:
        """Empty the queue, and return the messages that were not stored elsewhere."""
        left = [row.message for row in self.rows if row.number > self.stored]
        self.rows.clear()
        return left

    @property
    def counts(self) -> ModelForward:
        """The counts of the queue."""
        return self

    @property
    def ready(self) -> int:
        """How many messages wait, or are under way."""
        return len(self.rows)

    @property
    def unacked(self) -> int:
        """Return 0: messages under way are ready ones."""
        return 0
