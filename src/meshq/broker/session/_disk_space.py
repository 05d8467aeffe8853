"""Runs that the reserve of a full disk could not take: room is made for them before they are placed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshq import limits
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._ingress import MARK_RECORD_BYTES, PART_RECORD_BYTES, ROW_RECORD_BYTES, RUN_RECORD_BYTES
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.wire import FLAG_DURABLE, FLAG_LARGE, Frame, FrameType

_RUNS: Final = frozenset({FrameType.SEND, FrameType.FORWARD})
#: What a run takes in the journal beside its frame and what is said of its messages and queues, at most.
_HEAD_BYTES: Final = RUN_RECORD_BYTES + 2 * limits.ADDRESS_BYTES_MAX
_ROW_BYTES: Final = ROW_RECORD_BYTES + PART_RECORD_BYTES
_QUEUE_BYTES: Final = PART_RECORD_BYTES + MARK_RECORD_BYTES


class DiskSpace:
    """The space on the disk for large runs."""

    __slots__ = ("_release_queue", "_router", "large_bytes")

    def __init__(self, release_queue: ReleaseQueue, router: Router) -> None:
        self._release_queue = release_queue
        self._router = router
        #: Space is asked for before a frame of more bytes is placed.
        self.large_bytes: float = release_queue.large_bytes

    def must_wait(self, frame: Frame, then: Callable[[], None]) -> bool:
        """Return whether a large frame has to wait for space.

        ``then`` is called once: when there is space, or when it is known that there is none.
        """
        return _is_run(frame) and not self._release_queue.request_space(self._bytes_needed(frame), then)

    def check(self, frame: Frame) -> None:
        """Check that a large run can be placed without keeping everything behind it waiting for space.

        Raises:
            AddressFullError: there is no space for the run.
        """
        if _is_run(frame):
            self._release_queue.check_space(self._bytes_needed(frame))

    def _bytes_needed(self, frame: Frame) -> int:
        queues = min(len(self._router.by_number), limits.ALL_QUEUES_PER_ADDRESS_MAX)
        return frame.size_bytes + _HEAD_BYTES + _ROW_BYTES * frame.count + _QUEUE_BYTES * queues


def _is_run(frame: Frame) -> bool:
    # The bodies of large messages are not in the journal.
    return frame.type in _RUNS and frame.flags & (FLAG_DURABLE | FLAG_LARGE) == FLAG_DURABLE
