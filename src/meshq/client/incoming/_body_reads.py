"""Reads of the blocks of large bodies, for consumers that prefetch bodies and for streams.

The broker answers so many of a session at a time; the others wait here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from meshq import limits
from meshq.client.calls._calls import InnerCall, Values
from meshq.client.calls._link_failures import outcome_of
from meshq.client.calls._pending_calls import PendingCalls
from meshq.errors import MeshqError, StaleDeliveryError
from meshq.wire import Frame, FrameType, Read

#: Told the bytes of a block, or why they don't come.
Got = Callable[[bytes | MeshqError], None]


class Reader(Protocol):
    """A consumer whose deliveries are read."""

    #: The session's channel and epoch; another epoch says that the deliveries are stale.
    channel: int
    epoch: int


class BodyReads:
    """The reads of one session."""

    __slots__ = ("_asked", "_calls", "_waiting")

    def __init__(self, calls: PendingCalls) -> None:
        self._calls = calls
        # Those that wait for their answer; a dict as an ordered set.
        self._asked: dict[_BlockRead, None] = {}
        self._waiting: deque[_BlockRead] = deque()

    def ask(self, reader: Reader, tag: int, block: int, then: Got) -> None:
        """Ask for a block of the body of a delivery, now or when earlier reads are answered."""
        self._waiting.append(_BlockRead(reader, tag, block, then))
        self._pump()

    def _pump(self) -> None:
        waiting, asked = self._waiting, self._asked
        while waiting and len(asked) < limits.READS_MAX:
            read = waiting.popleft()
            if not read.current:
                read.then(StaleDeliveryError("the consumer of the delivery is closed; the message comes again"))
                continue
            asked[read] = None
            self._calls.add(InnerCall(read.frame, read.answered(self)))

    def answered(self, read: _BlockRead, found: bytes | MeshqError) -> None:
        """Take the answer to a read."""
        if self._asked.pop(read, False) is None:
            read.then(found)
            self._pump()

    def renew(self) -> None:
        """Handle a new session: fail all reads, because their deliveries are stale."""
        self.fail(StaleDeliveryError("the session of the delivery is gone; the message comes again"))

    def fail(self, error: MeshqError) -> None:
        """Fail all calls: no answer will come any more."""
        reads = [*self._asked, *self._waiting]
        self._asked.clear()
        self._waiting.clear()
        for read in reads:
            read.then(outcome_of(error, "not_done"))


class _BlockRead:
    """A block that was asked for."""

    __slots__ = ("_block", "_channel", "_epoch", "_reader", "_tag", "then")

    def __init__(self, reader: Reader, tag: int, block: int, then: Got) -> None:
        self._reader = reader
        self._channel = reader.channel
        self._epoch = reader.epoch
        self._tag = tag
        self._block = block
        self.then: Got = then

    @property
    def current(self) -> bool:
        """Whether its consumer is still open; to one that was closed nothing may be said."""
        return self._reader.epoch == self._epoch

    def frame(self, number: int) -> Frame:
        """The frame of the read."""
        header = Read(tag=self._tag, block=self._block).encode()
        return Frame(FrameType.READ, channel=self._channel, first=number, header=header)

    def answered(self, line: BodyReads) -> Callable[[Values, MeshqError | None], None]:
        """Return the callback for the answer."""

        def answered(values: Values, error: MeshqError | None) -> None:
            line.answered(self, error if error is not None else values["data"])

        return answered
