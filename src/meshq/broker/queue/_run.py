"""Runs: batches of up to 256 messages, and each queue's view of a run.

No object per message outlives a call.  A ``StoredRun`` is the content, shared by every queue that has messages of it; a
``QueueRun`` is one queue's view: its place in the queue's order, and a state byte per message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from meshq import limits
from meshq.errors import invariant
from meshq.wire import RunBytes, pick

if TYPE_CHECKING:
    from meshq.broker.bodies._body import Body
    from meshq.broker.queue._delivery_options import DeliveryOptions
    from meshq.broker.queue._priority_list import PriorityList
    from meshq.broker.queue._timers import DueTime, Timer
    from meshq.broker.queue._verdicts import Verdicts
    from meshq.selector import Filter

READY: Final = 0
UNACKED: Final = 1
GONE: Final = 2
#: Returned, and waiting until it may be dispatched again.
DELAYED: Final = 3
#: Ready, and dispatched through its group only.
PARKED: Final = 4
#: The states of messages that are in the queue and not unacked.
ENQUEUED: Final = (READY, DELAYED, PARKED)

_READY: Final = b"\0"
#: ``UNACKED_ROWS[:n]`` marks n rows as unacked, and so on: no allocation of a pattern per dispatch.
UNACKED_ROWS: Final = bytes([UNACKED]) * limits.RUN_MESSAGES_MAX
DELAYED_ROWS: Final = bytes([DELAYED]) * limits.RUN_MESSAGES_MAX
READY_ROWS: Final = bytes([READY]) * limits.RUN_MESSAGES_MAX
GONE_ROWS: Final = bytes([GONE]) * limits.RUN_MESSAGES_MAX

#: Bytes that a run costs besides its content: the objects that hold it (measured, CPython 3.11, rounded up).
RUN_OVERHEAD_BYTES: Final = 600


class AcceptingFilter(Protocol):
    """A filter that has accepted rows of a run, for consumers of one priority."""

    filter: Filter

    def forget(self, first: int) -> None:
        """Forget the run with this first number, which was unlinked."""


class Quota(Protocol):
    """The quota of an address, as far as a run knows it."""

    def freed_body(self, size_bytes: int) -> None:
        """Free bytes of a body that lies elsewhere; ``freed`` follows."""

    def freed(self, size_bytes: int) -> None:
        """Free bytes of the quota."""


class StoredRun:
    """The content of a run, encoded once by its producer."""

    __slots__ = (
        "address",
        "body",
        "content",
        "content_bytes",
        "durable",
        "has_ids",
        "number",
        "number_step",
        "options",
        "origin",
        "paged",
        "pins",
        "position",
        "producer",
        "quota",
        "rows",
        "share_views",
        "size_bytes",
        "spill",
        "stamp",
        "user",
        "verdicts",
        "views",
    )

    def __init__(
        self,
        address: str,
        content: RunBytes,
        *,
        durable: bool,
        producer: bytes,
        number: int,
        stamp: int,
        number_step: int = 1,
    ) -> None:
        self.address: str = address
        self.content: RunBytes = content
        self.durable: bool = durable
        # Who sent it, and the number of its first message among all that this producer sent.
        self.producer: bytes = producer
        # Whose producer that is; nobody's once it is placed, for nobody asks any more.
        self.user: str = ""
        # They rise by ``number_step`` from message to message.
        self.number: int = number
        self.number_step: int = number_step
        self.stamp: int = stamp
        # The run of which this is a share, and which of its messages are in it; None if it is whole.
        self.origin: StoredRun | None = None
        self.rows: range | None = None
        # The body of its one message, if that lies elsewhere: ``content`` then has all but that.
        self.body: Body | None = None
        # What its messages ask for besides being kept; None: nothing.
        self.options: DeliveryOptions | None = None
        # What filters have said of its messages, until it is placed.
        self.verdicts: tuple[Verdicts, ...] = ()
        # Whether duplicate ids of it stand in the window of its address.
        self.has_ids: bool = False
        # Where its record stands in the journal; 0: nowhere.
        self.position: int = 0
        # Bytes of its content that are on the disk only; 0: it is here.  Whoever needs it asks for it (``Queue.want``).
        self.paged: int = 0
        # Where these stand if it is in no journal; None: nowhere.
        self.spill: Any = None
        # The room of its address that it takes; None: that is not bounded.
        self.quota: Quota | None = None
        # Dispatches with messages of this run that are unacked: the content stays in memory for these.
        self.pins: int = 0
        # Queues that still hold a message of it.
        self.views: int = 0
        # Of these, the ones that have shares of it.
        self.share_views: int = 0
        # What its content takes while it is here.
        self.content_bytes: int = len(content.body) + len(content.table)
        self.size_bytes: int = self.content_bytes + RUN_OVERHEAD_BYTES

    def forget(self) -> int:
        """Drop the content, which is on the disk; return the freed bytes."""
        size = self.strip()
        self.paged = size
        return size

    def strip(self) -> int:
        """Drop the content, which is no longer needed in memory; return the freed bytes."""
        rows, table, _, body = self.content
        size = len(table) + len(body)
        self.content = RunBytes(rows, b"", 0, b"")
        (self.origin or self).size_bytes -= size
        return size

    def restore(self, content: RunBytes) -> int:
        """Take the content back from the disk; return the bytes that it takes."""
        size = len(content.table) + len(content.body)
        invariant(content.rows == self.content.rows and size == self.paged, "what comes back is what went")
        self.content = content
        self.content_bytes = size
        self.paged = 0
        (self.origin or self).size_bytes += size
        return size


def share_of(run: StoredRun, rows: range) -> StoredRun:
    """The messages ``rows`` of a run, as a run of its own; they live and die with the whole run's record."""
    whole = range(run.content.rows)
    if rows == whole:
        return run
    share = StoredRun(
        run.address,
        pick(run.content, rows),
        durable=run.durable,
        producer=run.producer,
        number=run.number + rows.start * run.number_step,
        stamp=run.stamp,
        number_step=run.number_step * rows.step,
    )
    share.body = run.body
    share.origin = run
    share.rows = rows
    share.options = run.options
    run.size_bytes += share.size_bytes
    return share


class QueueRun:
    """A queue's view of a run, an element of the queue's linked list."""

    __slots__ = (
        "counted_at", "counts", "due", "filter_groups", "first", "fresh", "groups", "live", "maybe", "next",
        "previous", "priority_list", "remote", "returned", "run", "states", "timers", "verdicts", "watched",
    )  # fmt: skip

    def __init__(self, run: StoredRun, first: int, remote: tuple[int, ...] = ()) -> None:
        self.run: StoredRun = run
        # In a store-and-forward queue: the numbers of the peer's queues that these messages are for.
        self.remote: tuple[int, ...] = remote
        # The queue's number of the first message; the others follow by one.  0: they are not due yet and have none.
        self.first: int = first
        rows = run.content.rows
        # READY, UNACKED, GONE, DELAYED or PARKED, a byte a message.
        self.states: bytearray = bytearray(rows)
        # Messages that are not GONE.
        self.live: int = rows
        # Rows from here on were never dispatched.
        self.fresh: int = 0
        # Rows below this one may have been delivered before the broker was started.
        self.maybe: int = 0
        # Of single rows: the deliveries, if these are more than `maybe` says, and the certain returns.  A delivery of
        # which only `maybe` speaks has no certain return.
        self.counts: dict[int, tuple[int, int]] | None = None
        # Where the journal says so; 0: nowhere.
        self.counted_at: int = 0
        # When the rows that wait may be dispatched again; ``NEVER``: they have expired, and can't be moved yet.
        self.due: dict[int, DueTime] | None = None
        # When somebody looks for messages that have expired, ms; 0: nobody does.
        self.watched: int = 0
        # What is to be done with it later.
        self.timers: dict[Timer, None] | None = None
        # Whether the queue's heap of returned runs holds this one.
        self.returned: bool = False
        # The list of the queue that it stands in, once it is visible.
        self.priority_list: PriorityList | None = None
        # The rows that filters have accepted.
        self.filter_groups: dict[AcceptingFilter, bytes] | None = None
        # The group of each message, once it is visible; None: none has one.  And what filters say of these.
        self.groups: tuple[str | None, ...] | None = None
        self.verdicts: dict[Filter, bytearray] | None = None
        self.next: QueueRun | None = None
        self.previous: QueueRun | None = None

    def deliveries(self, row: int) -> int:
        """Return how often a row may have reached an application before."""
        counted = self.counts.get(row) if self.counts else None
        return (counted[0] if counted is not None else 0) or int(row < self.maybe)

    def returns(self, row: int) -> int:
        """Return how often a row certainly was returned."""
        counted = self.counts.get(row) if self.counts else None
        return counted[1] if counted is not None else 0

    def count_return(self, row: int) -> None:
        """Count the return of a row that may have reached an application."""
        if self.counts is None:
            self.counts = {}
        self.counts[row] = self.deliveries(row) + 1, self.returns(row) + 1

    def enqueued_rows(self) -> Sequence[int]:
        """Return the indexes of the messages that no consumer holds, in order."""
        states = self.states
        if states.count(READY) == len(states):
            # All of them, as nearly always.
            return range(len(states))
        return [row for row, state in enumerate(states) if state in ENQUEUED]

    def ready_span(self, start: int, stop: int) -> tuple[int, int] | None:
        """The first rows in ``start..stop`` that are ready and stand side by side."""
        states = self.states
        low = states.find(READY, start, stop)
        if low < 0:
            return None
        if low + 1 == stop:
            return low, stop
        rest = states[low:stop]
        return low, stop - len(rest.lstrip(_READY))
