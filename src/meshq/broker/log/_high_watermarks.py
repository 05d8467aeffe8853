"""Two high watermarks of each durable queue in the journal: of the numbers given, and of those delivered.

Both watermarks are moved ahead by blocks.  A message that is not durable leaves no trace: its number must be below the
first watermark.  A durable message may be dispatched only below the second.  Each priority has its own second
watermark: an urgent message overtakes others, which must not look delivered because of that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from meshq import limits
from meshq.abc import no_failpoint
from meshq.broker.log._cursor_records import CursorRecords
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._queue_machine import WATERMARK_BLOCK, Queue
from meshq.broker.records import MARKS, encode_marks


class _QueueWatermarks:
    __slots__ = ("delivered", "given", "position")

    def __init__(self, given: int, delivered: dict[int, int], position: int) -> None:
        self.given = given
        # By priority.
        self.delivered = delivered
        # Of the record that says so.
        self.position = position


class HighWatermarks:
    """The watermarks of all durable queues of a node with a journal."""

    def __init__(self, release_queue: ReleaseQueue, failpoint: Callable[[str], bool] = no_failpoint) -> None:
        self._release_queue = release_queue
        self._failpoint = failpoint
        #: The records of the cursors of queues.
        self.cursors: CursorRecords = CursorRecords(release_queue)
        self._by_queue: dict[int, _QueueWatermarks] = {}

    def open(self, queue: Queue, given: int = 0, delivered: dict[int, int] | None = None, position: int = 0) -> None:
        """Note a queue that was made or restored; ``delivered``: the watermarks of delivered numbers by priority."""
        if self._release_queue.log is None or not queue.durable:
            queue.lists.high_watermark = math.inf
            return
        self._by_queue[queue.number] = _QueueWatermarks(given, delivered or {}, position)
        for priority, watermark in (delivered or {}).items():
            queue.priority_list(priority).high_watermark = watermark

    def close(self, queue: Queue) -> list[int]:
        """Forget a deleted queue; return the records that are deleted with the queue."""
        watermark = self._by_queue.pop(queue.number, None)
        return [watermark.position] if watermark is not None and watermark.position else []

    def cover_given(self, queue: Queue) -> int:
        """Cover the queue's last number; return the position that has to be durable for that."""
        watermark = self._by_queue.get(queue.number)
        if watermark is None:
            return 0
        if queue.last > watermark.given:
            self._write(
                queue, watermark, given=queue.last + self._block(limits.SEQUENCE_RESERVE), delivered=watermark.delivered
            )
        return watermark.position

    def cover_volatile(self, queue: Queue) -> int:
        """As ``cover_given``, for a message that is not durable: a cursor of the queue has to know of it, too."""
        position = self.cover_given(queue)
        cursor, watermark = queue.roster.cursor, self._by_queue.get(queue.number)
        if cursor is not None and watermark is not None:
            hole = cursor.uncovered(queue.counts.high, queue.last, watermark.given)
            if hole is not None:
                position = max(position, self.cursors.write_holes(cursor, [hole]))
        return position

    def cover_delivered(self, queue: Queue, priority_list: PriorityList, number: int, ahead: int = 0) -> None:
        """Cover the dispatch of messages of a priority up to ``number``.

        ``ahead``: the least distance that the watermark keeps from ``number``."""
        watermark = self._by_queue.get(queue.number)
        if watermark is None:
            return
        covered = watermark.delivered.get(priority_list.priority, 0)
        if number + ahead <= covered:
            return
        delivered = max(covered, number + self._block(WATERMARK_BLOCK))
        self._write(
            queue,
            watermark,
            given=watermark.given,
            delivered={**watermark.delivered, priority_list.priority: delivered},
        )

        def raise_watermark() -> None:
            # A store-and-forward queue has its branches beside the main list, all of one priority.
            for one in queue.lists.all:
                if one.priority == priority_list.priority:
                    one.high_watermark = max(one.high_watermark, delivered)

        self._release_queue.release_after(watermark.position, (), raise_watermark)

    def keep_ahead(self, queue: Queue, priority_list: PriorityList) -> None:
        """Keep the watermark of a priority ahead of the next deliveries, so that no dispatch waits for the disk.

        What waits behind a slow consumer is not delivered soon: it must not look delivered after a crash.
        """
        waiting = priority_list.ready + priority_list.parked
        self.cover_delivered(queue, priority_list, queue.last - waiting, WATERMARK_BLOCK // 2)

    def _block(self, size: int) -> int:
        """Return how far a watermark is moved ahead; with the failpoint 0, so that the next message has to wait."""
        return 0 if self._failpoint("broker.no_block") else size

    def settle(self, queue: Queue, delivered: dict[int, int]) -> None:
        """Write the exact watermarks when the node stops; ``delivered``: by priority."""
        watermark = self._by_queue.get(queue.number)
        if watermark is not None and (watermark.given, watermark.delivered) != (queue.last, delivered):
            self._write(queue, watermark, given=queue.last, delivered=delivered)

    def _write(self, queue: Queue, watermark: _QueueWatermarks, *, given: int, delivered: dict[int, int]) -> None:
        deletes = [watermark.position] if watermark.position else []
        payload = encode_marks(queue.number, given, delivered)
        # Vital: without it a full disk could not be drained.
        watermark.position = self._release_queue.write(MARKS, [payload], deletes=deletes, vital=True)
        watermark.given = given
        watermark.delivered = delivered
