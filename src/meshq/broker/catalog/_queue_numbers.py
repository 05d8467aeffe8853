"""The numbers of queues: no number is given twice, in any life of a node.

Other brokers know a queue, and the messages in it, by its number.  A durable queue has a record that says its number;
one that goes with the life of its node has none, so numbers for such queues are reserved by blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshq import limits
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.records import DEFINITION, encode_definition


class QueueNumbers:
    """The record that says up to which number none is given again."""

    def __init__(self, release_queue: ReleaseQueue) -> None:
        self._release_queue = release_queue
        # Where it stands, 0 is nowhere, and what it says.
        self._position = 0
        self._last = 0
        # Where the records stand of numbers that were given, and may not be on the disk.
        self._unsure: dict[int, int] = {}

    def restore(self, last: int, position: int) -> None:
        """Take up the record from the journal."""
        self._last, self._position = last, position

    def given(self, number: int, position: int) -> int:
        """A number was given to a queue whose record stands at ``position``, which is returned; 0: it has none."""
        if self._release_queue.log is not None:
            self._unsure[number] = position or self._position
        self.is_sure(number)
        return position

    def is_sure(self, number: int) -> bool:
        """Whether it is certain that no later life gives a number again."""
        unsure, log = self._unsure, self._release_queue.log
        while log is not None and unsure and unsure[first := next(iter(unsure))] <= log.durable:
            del unsure[first]
        return number not in unsure or (log is not None and unsure[number] <= log.durable)

    def reserve(self, number: int) -> None:
        """See that no later life gives a number again of which nothing else is written.

        Raises:
            JournalBrokenError: nothing changed.
        """
        if number > self._last:
            self.write(number + limits.QUEUE_NUMBERS_RESERVE)

    def write(self, last: int, deletes: Sequence[int] = ()) -> None:
        """Say that numbers up to ``last`` were given, and have the records at ``deletes`` die by that.

        Raises:
            JournalBrokenError: nothing changed.
        """
        last = max(last, self._last)
        payload = encode_definition({"kind": "numbers", "last": last})
        old = [self._position] if self._position else []
        # Vital: what is deleted may be deleted on a full disk, too, and requests need queues for their answers.
        self._position = self._release_queue.write(
            DEFINITION, [payload], deletes=[*filter(None, deletes), *old], vital=True
        )
        self._last = last
