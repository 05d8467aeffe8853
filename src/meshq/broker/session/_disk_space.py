"""Runs that the reserve of a full disk could not take: room is made for them before they are placed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.broker.ingress._ingress import MARK_RECORD_BYTES, PART_RECORD_BYTES, ROW_RECORD_BYTES, RUN_RECORD_BYTES
from meshq.wire import FLAG_DURABLE, FLAG_LARGE, Frame, FrameType

if TYPE_CHECKING:
    from meshq.broker.core._core import Core

_RUNS: Final = frozenset({FrameType.SEND, FrameType.FORWARD})
#: What a run takes in the journal beside its frame and what is said of its messages and queues, at most.
_HEAD_BYTES: Final = RUN_RECORD_BYTES + 2 * limits.ADDRESS_BYTES_MAX
_ROW_BYTES: Final = ROW_RECORD_BYTES + PART_RECORD_BYTES
_QUEUE_BYTES: Final = PART_RECORD_BYTES + MARK_RECORD_BYTES


def must_wait(core: Core, frame: Frame, then: Callable[[], None]) -> bool:
    """Whether a large frame has to wait for room on the disk; ``then`` is called once, when it is there or there is
    none."""
    return _is_run(frame) and not core.release_queue.request_space(_bytes_needed(core, frame), then)


def check_space(core: Core, frame: Frame) -> None:
    """See that a large run can be placed without keeping everything behind it waiting for room on the disk.

    Raises:
        AddressFullError: it can't.
    """
    if _is_run(frame):
        core.release_queue.check_space(_bytes_needed(core, frame))


def _is_run(frame: Frame) -> bool:
    # The bodies of large messages are not in the journal.
    return frame.type in _RUNS and frame.flags & (FLAG_DURABLE | FLAG_LARGE) == FLAG_DURABLE


def _bytes_needed(core: Core, frame: Frame) -> int:
    queues = min(len(core.router.by_number), limits.QUEUES_PER_ADDRESS_MAX)
    return frame.size_bytes + _HEAD_BYTES + _ROW_BYTES * frame.count + _QUEUE_BYTES * queues
