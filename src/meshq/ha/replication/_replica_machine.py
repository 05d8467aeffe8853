"""A replica: which piece of the log it takes, and which it refuses."""

from __future__ import annotations

from typing import Final

from meshq.ha.replication._backlog_machine import Backlog
from meshq.lifecycle import LifeCycle, Transitions
from meshq.wire import violation

#: ``accept``: the other node serves, and sends its log.  ``copied``: the store as it was is here.  ``join``: confirms
#: wait for this node.  ``reach``: the other node says that this one is in sync.  ``end``: the link is over.
FOLLOWING_TRANSITIONS: Final[Transitions] = {
    "asking": {"accept": "copying", "end": "ended"},
    "copying": {"copied": "tailing", "end": "ended"},
    "tailing": {"join": "joining", "end": "ended"},
    "joining": {"reach": "in_sync", "end": "ended"},
    "in_sync": {"end": "ended"},
    "ended": {},
}


#: No epoch reaches this number.
EPOCHS_MAX: Final = 2**53
#: So many epochs can follow one that is accepted.
EPOCHS_LEFT: Final = 2**20


class Following:
    """How far a node follows the log of another one.

    ``epoch``: the highest that is known here of the node id; the log of an older one is refused.
    """

    def __init__(self, epoch: int) -> None:
        #: The epoch of the log.
        self.epoch: int = epoch
        #: The last position that was taken, and the one at which this node is in sync.
        self.position: int = 0
        self.goal: int = 0
        #: The batches that were taken, and are not on the disk yet.
        self.backlog: Backlog = Backlog()
        self._life = LifeCycle("a node that follows", FOLLOWING_TRANSITIONS, first="asking")

    @property
    def state(self) -> str:
        """How far it is."""
        return self._life.state

    @property
    def in_sync(self) -> bool:
        """Whether this node has all that was confirmed."""
        return self._life.state == "in_sync"

    def accepted(self, epoch: int) -> None:
        """Note the epoch of the log.  Raises: RemoteProtocolError: it is older than one that is known here."""
        self._on("accept")
        if not max(self.epoch, 1) <= epoch < EPOCHS_MAX - EPOCHS_LEFT:
            raise violation("bad_header", f"a log of epoch {epoch}, after epoch {self.epoch}")
        self.epoch = epoch

    def copied(self, last: int) -> None:
        """Note that the copy is here, up to a position.  Raises: RemoteProtocolError."""
        self._on("copied")
        self.position = last

    def batch(self, first: int, count: int) -> None:
        """Take a batch: it follows the last one, or it is refused.

        Raises:
            RemoteProtocolError: something is left out, or comes again, or comes before its time.
        """
        if self.state not in ("tailing", "joining", "in_sync"):
            raise violation("illegal_frame", f"a batch while {self.state}")
        if first != self.position + 1 or count < 1:
            raise violation("bad_number", f"{count} records from position {first} on, after position {self.position}")
        self.position += count

    def joined(self, goal: int) -> None:
        """Note the position at which this node is in sync.  Raises: RemoteProtocolError."""
        self._on("join")
        if goal < self.position:
            raise violation("bad_number", f"position {goal} is to be reached, after position {self.position}")
        self.goal = goal

    def reached(self, durable: int) -> None:
        """Note that the other node says so.  Raises: RemoteProtocolError: this node does not have it all."""
        self._on("reach")
        if durable < self.goal:
            raise violation("bad_number", f"in sync is who has position {self.goal}, and here is {durable}")

    def may_take_over(self, durable: int, last: int | None) -> bool:
        """Whether this node may serve.  ``last``: the last position of the other node, if it has said that."""
        return self.in_sync and (last is None or durable >= last)

    def end(self) -> None:
        """Note that the link is over; twice is silent."""
        if not self._life.ended:
            self._life.on("end")

    def _on(self, change: str) -> None:
        if change not in FOLLOWING_TRANSITIONS[self._life.state]:
            raise violation("illegal_frame", f"{change} while {self._life.state}")
        self._life.on(change)
