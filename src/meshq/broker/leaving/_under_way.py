"""Moves that have begun and wait for filters, or for room on the disk: whoever deletes a queue lets these end first."""

from __future__ import annotations

from collections.abc import Callable

from meshq.broker.queue._queue_machine import Queue


class UnderWay:
    """The moves of each queue that are not done yet, and who waits for some of these."""

    __slots__ = ("_last", "_moves", "_waiting")

    def __init__(self) -> None:
        # The number of the last move.
        self._last = 0
        # By queue, the numbers of its moves; and whom to call when these are done, by those that are not.
        self._moves: dict[Queue, dict[int, None]] = {}
        self._waiting: dict[Queue, list[tuple[dict[int, None], Callable[[], None]]]] = {}

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._moves

    def begin(self, queue: Queue) -> int:
        """A move of a queue waits; returns its number."""
        self._last += 1
        self._moves.setdefault(queue, {})[self._last] = None
        return self._last

    def end(self, queue: Queue, number: int) -> None:
        """A move of a queue is done, or will not be."""
        moves = self._moves[queue]
        del moves[number]
        if not moves:
            del self._moves[queue]
        for waiting in self._waiting.pop(queue, []):
            left, then = waiting
            left.pop(number, None)
            if left:
                self._waiting.setdefault(queue, []).append(waiting)
            else:
                then()

    def when_done(self, queue: Queue, then: Callable[[], None]) -> bool:
        """Call ``then`` when all moves of a queue are done that have begun; True: they are, and it is not called."""
        if queue not in self._moves:
            return True
        self._waiting.setdefault(queue, []).append((dict(self._moves[queue]), then))
        return False
