"""Moves that wait for filters, or for disk space: a queue is deleted only after its pending moves are done."""

from __future__ import annotations

from collections.abc import Callable

from meshq.broker.queue._queue_machine import Queue


class PendingMoves:
    """The moves of each queue that are not done yet, and who waits for some of these."""

    __slots__ = ("_moves", "_waiting", "last", "suspended")

    def __init__(self) -> None:
        #: The number of the last move.
        self.last: int = 0
        #: Queues of which consumers get nothing, since they are being deleted, and by how many.
        self.suspended: dict[Queue, int] = {}
        # By queue, the numbers of its moves; and whom to call when these are done, by those that are not.
        self._moves: dict[Queue, dict[int, None]] = {}
        self._waiting: dict[Queue, list[tuple[dict[int, None], Callable[[], None]]]] = {}

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._moves

    def begin(self, queue: Queue) -> int:
        """Begin a pending move of a queue; return its number."""
        self.last += 1
        self._moves.setdefault(queue, {})[self.last] = None
        return self.last

    def end(self, queue: Queue, number: int, since: int) -> None:
        """End a pending move of a queue, done or not.

        Moves with numbers above ``since`` are parts of it: calls that wait for the move wait for these, too.
        """
        moves = self._moves[queue]
        del moves[number]
        if not moves:
            del self._moves[queue]
        rest = [later for later in moves if later > since]
        waiting, done = [], []
        for left, then in self._waiting.pop(queue, ()):
            if number in left:
                del left[number]
                left.update(dict.fromkeys(rest))
            if left:
                waiting.append((left, then))
            else:
                done.append(then)
        if waiting:
            self._waiting[queue] = waiting
        # Other moves may end in these calls.
        for then in done:
            then()

    def when_done(self, queue: Queue, then: Callable[[], None]) -> bool:
        """Call ``then`` when all moves of a queue are done that have begun; True: they are, and it is not called."""
        if queue not in self._moves:
            return True
        self._waiting.setdefault(queue, []).append((dict(self._moves[queue]), then))
        return False

    def suspend_dispatch(self, queue: Queue) -> None:
        """Suspend the deliveries of a queue while it is being deleted."""
        self.suspended[queue] = self.suspended.get(queue, 0) + 1

    def resume_dispatch(self, queue: Queue) -> None:
        """Resume the deliveries of a queue, which was not deleted after all, or is gone."""
        self.suspended[queue] -= 1
        if not self.suspended[queue]:
            del self.suspended[queue]
