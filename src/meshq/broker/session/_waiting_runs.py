"""Runs that wait before anything is done with them, and those behind them on their link, too.

For room on the disk: those that the reserve of a full disk could not take.  And for what filters say of their messages,
where that is more than is done in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.address import SEPARATOR
from meshq.broker.placing._placing import MARK_RECORD_BYTES, PART_RECORD_BYTES, ROW_RECORD_BYTES, RUN_RECORD_BYTES
from meshq.broker.placing._verdicts import filters_at, is_much, judge
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._traits import Traits
from meshq.wire import (
    FLAG_DURABLE,
    FLAG_LARGE,
    Forward,
    Frame,
    FrameType,
    RunBytes,
    Transact,
    check_run,
    header_of,
)

if TYPE_CHECKING:
    from meshq.broker._core import Core
    from meshq.broker.session._session import Session

_RUNS: Final = frozenset({FrameType.SEND, FrameType.FORWARD})
#: What a run takes in the journal beside its frame and what is said of its messages and queues, at most.
_HEAD_BYTES: Final = RUN_RECORD_BYTES + 2 * limits.ADDRESS_BYTES_MAX
_ROW_BYTES: Final = ROW_RECORD_BYTES + PART_RECORD_BYTES
_QUEUE_BYTES: Final = PART_RECORD_BYTES + MARK_RECORD_BYTES


def must_wait(core: Core, frame: Frame, then: Callable[[], None]) -> bool:
    """Whether a large frame has to wait for room on the disk; ``then`` is called once, when it is there or there is
    none."""
    return _is_run(frame) and not core.ledger.ask_room(_bytes_needed(core, frame), then)


def check_room(core: Core, frame: Frame) -> None:
    """See that a large run can be placed without keeping everything behind it waiting for room on the disk.

    Raises:
        AddressFullError: it can't.
    """
    if _is_run(frame):
        core.ledger.check_room(_bytes_needed(core, frame))


def must_be_judged(session: Session, frame: Frame) -> Iterator[None] | None:
    """The steps after which the session knows what filters say of a run; None: it need not wait for that.

    What a transaction sends is judged now, whatever work that is: it is placed with all the rest of it in one step.

    Raises:
        RemoteProtocolError: the frame can't be read.
    """
    core = session.core
    known, verdicts = session.judged
    if known is not frame:
        verdicts = {}
        session.judged = (None, verdicts)
    address = _address_of(session, frame)
    if address is None:
        return None
    filters = [filter for filter in filters_at(core.router, address) if filter not in verdicts]
    if not filters:
        return None
    content = frame.plain
    if content is None:
        content = RunBytes(frame.count, frame.table, 0, frame.body)  # type: ignore[arg-type]
        check_run(content)
    durable = bool(frame.flags & FLAG_DURABLE) and core.durable
    run = StoredRun(address, content, durable=durable, producer=b"", number=1, stamp=frame.stamp)
    run.traits = Traits(core.alarms.now_ms)
    if frame.type is FrameType.TRANSACT or is_much(run, filters):
        session.judged = (frame, verdicts)
        return judge(run, filters, verdicts)
    return None


def use_verdicts(session: Session, frame: Frame, run: StoredRun) -> None:
    """A run is about to be placed: what filters have said of it need not be asked again."""
    known, verdicts = session.judged
    if known is frame:
        run.verdicts = verdicts
        session.judged = (None, {})


def _address_of(session: Session, frame: Frame) -> str | None:
    """The address of a run whose messages may be put to filters; None: they are not, or it is no run."""
    if frame.type is FrameType.SEND:
        producer = session.producing.channels.get(frame.channel)
        return producer.target.address if producer is not None and not producer.requests else None
    if frame.type is FrameType.TRANSACT:
        return header_of(frame, Transact).address.partition(SEPARATOR)[0]
    if frame.type is FrameType.FORWARD and session.core.router.filtered:
        return header_of(frame, Forward).address
    return None


def _is_run(frame: Frame) -> bool:
    # The bodies of large messages are not in the journal.
    return frame.type in _RUNS and frame.flags & (FLAG_DURABLE | FLAG_LARGE) == FLAG_DURABLE


def _bytes_needed(core: Core, frame: Frame) -> int:
    queues = min(len(core.router.by_number), limits.QUEUES_PER_ADDRESS_MAX)
    return frame.size_bytes + _HEAD_BYTES + _ROW_BYTES * frame.count + _QUEUE_BYTES * queues
