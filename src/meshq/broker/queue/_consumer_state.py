"""A consumer as its queue sees it: credit, window, and unacked messages by tag."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from meshq import limits
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.queue._session_identity import ConsumerPrincipal
from meshq.wire import RUN_ROW_BYTES, violation

if TYPE_CHECKING:
    from meshq.broker.queue._unacked_memory import UnackedMemory
    from meshq.selector import Filter

_TAG: Final = attrgetter("tag")


class RowSpan:
    """Some rows of one run: ``start``, ``start + step`` … below ``stop``."""

    __slots__ = ("rows", "start", "step", "stop", "view")

    def __init__(self, view: QueueRun, start: int, stop: int, step: int) -> None:
        self.view: QueueRun = view
        self.start: int = start
        self.stop: int = stop
        self.step: int = step
        # The number of rows.
        self.rows: int = stop - start if step == 1 else len(range(start, stop, step))


class Dispatch(RowSpan):
    """Rows of one run given to one consumer in one step."""

    __slots__ = ("counts", "credit", "left", "settled", "size_bytes", "tag")

    def __init__(self, view: QueueRun, start: int, stop: int, step: int, tag: int) -> None:
        # As in RowSpan, without another call for each run.
        self.view = view
        self.start = start
        self.stop = stop
        self.step = step
        # The tag of the first row; the others follow by one.
        self.tag: int = tag
        self.rows: int = stop - start if step == 1 else len(range(start, stop, step))
        # Rows not settled yet.
        self.left: int = self.rows
        # A byte per row, 1 once the row is settled; None while all rows are settled or none is.
        self.settled: bytearray | None = None
        # Bytes of the unsettled rows in the consumer's window.
        self.size_bytes: int = 0
        # Whether ``pinned_bytes`` of the consumer has the run's content for this dispatch, not for the one before.
        self.counts: bool = True
        # The number of the credit of an address at another node that it takes up; 0: none.
        self.credit: int = 0


def weight(dispatches: Iterable[tuple[object, Dispatch]]) -> int:
    """Return the part of a step's budget that dispatches take: their messages, and more if these are large."""
    return sum(dispatch.rows + dispatch.size_bytes // limits.STEP_MESSAGE_BYTES for _, dispatch in dispatches)


class DeliverySink(Protocol):
    """Takes the dispatches of a consumer: its session, or the link of a store-and-forward queue."""

    @property
    def principal(self) -> ConsumerPrincipal | None:
        """The session of the consumer; None: the link of a store-and-forward queue."""

    def deliver(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        """Send the messages of a dispatch to the consumer."""


class ServingQueue(Protocol):
    """The queue of a consumer, as far as the consumer tells it something."""

    def credit_changed(self, consumer: AnyConsumer) -> None:
        """Note that the credit of a consumer with a filter has changed between none and some."""


class Browse(Protocol):
    """A browse, as far as the session of its consumer knows it."""

    def begin(self) -> None:
        """Begin at the head of the queue."""

    def end(self) -> None:
        """End the browse."""

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Free the credit of messages that the application has seen."""


QueueT = TypeVar("QueueT", bound=ServingQueue)


class WantedBehind(NamedTuple):
    """The filter of the consumers behind a network consumer, and how many hops messages may go to them.

    ``replay``: the filter of what goes there although it has been on the way; empty: nothing does.
    """

    filter: str = ""
    hops: int = 0
    replay: str = ""


class ConsumerState(Generic[QueueT]):
    """The window, credit and unacked messages of one consumer.

    ``willing`` is False while the session takes nothing more: it is detached, or too much is on its way.
    """

    __slots__ = (
        "browser", "dispatches", "exclusive", "filter", "levelled", "next_tag", "number", "pinned_bytes",
        "priority", "queue", "routes", "served", "sink", "unacked", "unacked_bytes", "unacked_memory", "wanted",
        "willing", "window", "window_bytes",
    )  # fmt: skip

    def __init__(self, queue: QueueT, sink: DeliverySink, number: int, window: int, window_bytes: int) -> None:
        self.queue: QueueT = queue
        self.sink: DeliverySink = sink
        # The channel of the consumer in its session.
        self.number: int = number
        self.window: int = window
        self.window_bytes: int = window_bytes
        # The consumer gets only messages that this filter accepts; None: all.
        self.filter: Filter | None = None
        # Set if the consumer only browses; then it is none of the queue's consumers.
        self.browser: Browse | None = None
        # The highest is served first.
        self.priority: int = 0
        # It has no filter and is served beside network consumers, as one with a filter that accepts everything.
        self.levelled: bool = False
        # The ways on which the messages of a network consumer go; empty: it is a client's own.
        self.routes: tuple[str, ...] = ()
        # What the filter of a network consumer was made of, beside its routes.
        self.wanted: WantedBehind = WantedBehind()
        # Whether it wants to be the only one that is served; and whether it is served, which the queue decides.
        self.exclusive: bool = False
        self.served: bool = False
        self.willing: bool = True
        self.unacked: int = 0
        self.unacked_bytes: int = 0
        self.next_tag: int = 1
        # Dispatches with unsettled rows, by rising tag.
        self.dispatches: list[Dispatch] = []
        # The memory bound of all consumers; None: this consumer is not counted.  And its share: the content of each run
        # with an unacked message.
        self.unacked_memory: UnackedMemory[QueueT] | None = None
        self.pinned_bytes: int = 0

    def credit(self) -> int:
        """Return how many messages the consumer may get now."""
        if not self.willing:
            return 0
        if self.unacked:
            if self.unacked_bytes >= self.window_bytes:
                return 0
            unacked_memory = self.unacked_memory
            if unacked_memory is not None and self.pinned_bytes > unacked_memory.free_bytes:
                unacked_memory.limited[self] = None
                return 0
        return self.window - self.unacked

    @property
    def waits_for_memory(self) -> bool:
        """Whether the last look at the credit found too much memory in use."""
        return self.unacked_memory is not None and self in self.unacked_memory.limited

    def fits(self, size: int) -> bool:
        """Whether a message of this size fits into the window; a single message always fits."""
        return not self.unacked or size <= self.window_bytes - self.unacked_bytes

    def record_dispatch(self, dispatch: Dispatch) -> None:
        """Add a dispatch to the unacked messages."""
        self.next_tag += dispatch.rows
        self.unacked += dispatch.rows
        self.unacked_bytes += dispatch.size_bytes
        self.dispatches.append(dispatch)
        unacked_memory = self.unacked_memory
        if unacked_memory is not None:
            run = dispatch.view.run
            if run.pins:
                self._share(run, dispatch)
            else:
                # Most dispatches are the first of their run: that path makes no call.
                run.pins = 1
                size = run.content_bytes
                unacked_memory.free_bytes -= size
                self.pinned_bytes += size

    def _share(self, run: StoredRun, dispatch: Dispatch) -> None:
        """Count the newest dispatch, of a run that has unacked messages already."""
        run.pins += 1
        dispatches = self.dispatches
        if len(dispatches) > 1 and dispatches[-2].view.run is run:
            dispatch.counts = False
        else:
            self.pinned_bytes += run.content_bytes

    def _unpin(self, dispatch: Dispatch, index: int, unacked_memory: UnackedMemory[QueueT]) -> None:
        """Free the memory of a dispatch that stood at ``index``."""
        run = dispatch.view.run
        if run.pins > 1:
            run.pins -= 1
            if dispatch.counts:
                self._stop_counting(run, index)
            return
        run.pins = 0
        size = run.content_bytes
        self.pinned_bytes -= size
        unacked_memory.free_bytes += size
        if unacked_memory.limited:
            unacked_memory.retry_limited()

    def _stop_counting(self, run: StoredRun, index: int) -> None:
        """Move the count of a dispatch that stood at ``index`` to the next one, if that is of the same run."""
        following = self.dispatches[index] if index < len(self.dispatches) else None
        if following is not None and not following.counts:
            following.counts = True
        else:
            self.pinned_bytes -= run.content_bytes

    def set_willing(self, willing: bool) -> None:
        """Set whether the session takes more."""
        self.willing = willing
        if self.filter is not None or self.levelled:
            self.queue.credit_changed(self)

    def take(self, first: int, last: int) -> list[RowSpan]:
        """Settle the tags ``first`` to ``last``; return the rows, in order.

        Raises:
            RemoteProtocolError: a tag was never given, or was settled before; nothing changed.
        """
        if not 0 < first <= last < self.next_tag:
            raise violation("bad_tag", f"tags {first} to {last}; given so far: 1 to {self.next_tag - 1}")
        dispatches = self.dispatches
        index = bisect_right(dispatches, first, key=_TAG) - 1
        found: list[tuple[Dispatch, int, int]] = []
        tag = first
        while tag <= last:
            dispatch = dispatches[index] if 0 <= index < len(dispatches) else None
            if dispatch is None or not 0 <= (low := tag - dispatch.tag) < dispatch.rows:
                raise violation("bad_tag", f"tag {tag} is settled already")
            following = dispatch.tag + dispatch.rows
            high = dispatch.rows if following <= last else last + 1 - dispatch.tag
            if dispatch.settled is not None and dispatch.settled.find(1, low, high) >= 0:
                raise violation("bad_tag", f"one of the tags {tag} to {dispatch.tag + high - 1} is settled already")
            found.append((dispatch, low, high))
            tag = following
            index += 1
        spans = [self._settle(dispatch, low, high) for dispatch, low, high in found]
        if self.filter is not None or self.levelled:
            self.queue.credit_changed(self)
        return spans

    def unacked_run(self, tag: int) -> QueueRun | None:
        """Return the run of an unacked message; None if the message is not unacked.

        Raises:
            RemoteProtocolError: the tag was never given.
        """
        if not 0 < tag < self.next_tag:
            raise violation("bad_tag", f"tag {tag}; given so far: 1 to {self.next_tag - 1}")
        index = bisect_right(self.dispatches, tag, key=_TAG) - 1
        if index < 0:
            return None
        dispatch = self.dispatches[index]
        row = tag - dispatch.tag
        if row >= dispatch.rows or (dispatch.settled is not None and dispatch.settled[row]):
            return None
        return dispatch.view

    def _settle(self, dispatch: Dispatch, low: int, high: int) -> RowSpan:
        rows = high - low
        self.unacked -= rows
        dispatch.left -= rows
        if not dispatch.left:
            self.unacked_bytes -= dispatch.size_bytes
            self._drop(dispatch)
            if rows == dispatch.rows:
                return dispatch
        step = dispatch.step
        start = dispatch.start + low * step
        span = RowSpan(dispatch.view, start, start + (rows - 1) * step + 1, step)
        if dispatch.left:
            if dispatch.settled is None:
                dispatch.settled = bytearray(dispatch.rows)
            dispatch.settled[low:high] = b"\1" * rows
            # Credit must not wait for the last message of a dispatch: the consumer may wait for the message after it.
            size = span_bytes(span.view, span.start, span.stop, step)
            dispatch.size_bytes -= size
            self.unacked_bytes -= size
        return span

    def _drop(self, dispatch: Dispatch) -> None:
        """Forget a dispatch of which every message is settled."""
        dispatches = self.dispatches
        index = 0 if dispatches[0] is dispatch else bisect_right(dispatches, dispatch.tag, key=_TAG) - 1
        del dispatches[index]
        if self.unacked_memory is not None:
            self._unpin(dispatch, index, self.unacked_memory)

    def unsettled(self) -> list[tuple[int, RowSpan]]:
        """Everything it still holds, with the first tag of each part, and hold nothing more."""
        parts: list[tuple[int, RowSpan]] = []
        for dispatch in self.dispatches:
            low = 0
            settled = dispatch.settled or bytes(dispatch.rows)
            while (low := settled.find(0, low)) >= 0:
                high = settled.find(1, low)
                high = dispatch.rows if high < 0 else high
                start = dispatch.start + low * dispatch.step
                span = RowSpan(dispatch.view, start, start + (high - low - 1) * dispatch.step + 1, dispatch.step)
                parts.append((dispatch.tag + low, span))
                low = high
        dispatches, unacked_memory = self.dispatches, self.unacked_memory
        while dispatches:
            dispatch = dispatches.pop()
            if unacked_memory is not None:
                self._unpin(dispatch, len(dispatches), unacked_memory)
        self.unacked = self.unacked_bytes = 0
        return parts


#: A consumer, of whatever type its queue is.
AnyConsumer: TypeAlias = ConsumerState[Any]


def fitting(view: QueueRun, start: int, stop: int, credit_bytes: int) -> int:
    """How many rows from ``start`` on fit into ``credit_bytes``: a search in the run's own table of ends."""
    content = view.run.content
    if view.run.body is not None:
        return int(span_bytes(view, start, stop) <= credit_bytes)
    table, base = content.table, content.base
    limit = _end(table, start, base) + credit_bytes
    low, high = start, stop
    while low < high:
        middle = (low + high + 1) // 2
        if _end(table, middle, base) <= limit:
            low = middle
        else:
            high = middle - 1
    return low - start


def span_bytes(view: QueueRun, start: int, stop: int, step: int = 1) -> int:
    """The bytes of the rows ``start``, ``start + step`` … below ``stop``."""
    content, body = view.run.content, view.run.body
    if body is not None:
        # It is the only message of its run.
        return len(content.body) + body.window_bytes
    if step == 1 and start == 0 and stop == content.rows:
        return len(content.body)
    table = content.table
    if step == 1 or stop - start <= step:
        stop = min(stop, start + 1) if step > 1 else stop
        return _end(table, stop, content.base) - _end(table, start, content.base)
    words = array("I")
    words.frombytes(table)
    if sys.byteorder != "little":  # pragma: no cover - big-endian hosts
        words.byteswap()
    ends = words[RUN_ROW_BYTES // 4 - 1 :: RUN_ROW_BYTES // 4]
    starts = array("I", (content.base,)) + ends[:-1]
    return sum(ends[start:stop:step]) - sum(starts[start:stop:step])


def _end(table: bytes, row: int, base: int) -> int:
    """Where the rows before ``row`` end."""
    return int.from_bytes(table[row * RUN_ROW_BYTES - 4 : row * RUN_ROW_BYTES], "little") if row else base
