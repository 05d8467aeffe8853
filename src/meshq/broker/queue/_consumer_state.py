"""A consumer as its queue sees it: how much it may hold, and what it holds, by tag."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.wire import RUN_ROW_BYTES, violation

if TYPE_CHECKING:
    from meshq.broker.queue._browsing import Browser
    from meshq.broker.queue._holdings import Holdings
    from meshq.broker.queue._queue_machine import Queue
    from meshq.selector import Filter

_TAG: Final = attrgetter("tag")


class Grant:
    """Rows of one run given to one consumer in one step: ``start``, ``start + step`` … below ``stop``."""

    __slots__ = ("left", "rows", "settled", "size_bytes", "start", "step", "stop", "tag", "view")

    def __init__(self, view: QueueRun, start: int, stop: int, step: int, tag: int) -> None:
        self.view = view
        self.start = start
        self.stop = stop
        self.step = step
        # The tag of the first row; the others follow by one.
        self.tag = tag
        # Rows not settled yet.
        self.rows = self.left = stop - start if step == 1 else len(range(start, stop, step))
        # A byte per row, 1 once it is settled; None while all or none are.
        self.settled: bytearray | None = None
        # What the rows that are not settled count for in the consumer's window.
        self.size_bytes = 0


def weight(grants: Iterable[tuple[object, Grant]]) -> int:
    """What grants take of a step: their messages, and more if these are large."""
    return sum(grant.rows + grant.size_bytes // limits.STEP_MESSAGE_BYTES for _, grant in grants)


class Span:
    """Rows of a grant that were settled together."""

    __slots__ = ("start", "step", "stop", "view")

    def __init__(self, view: QueueRun, start: int, stop: int, step: int) -> None:
        self.view = view
        self.start = start
        self.stop = stop
        self.step = step

    @property
    def rows(self) -> int:
        """How many messages."""
        return self.stop - self.start if self.step == 1 else len(range(self.start, self.stop, self.step))


class ConsumerState:
    """What one consumer of a queue may hold, and does.

    ``willing`` is False while its session can't take more (detached, or too much not known to have arrived).
    """

    __slots__ = (
        "browser", "exclusive", "filter", "grants", "held", "held_bytes", "holdings", "next_tag", "number", "owner",
        "pinned_bytes", "pins", "priority",
        "queue", "served", "willing", "window", "window_bytes",
    )  # fmt: skip

    def __init__(self, queue: Queue, owner: object, number: int, window: int, window_bytes: int) -> None:
        self.queue = queue
        # The session, and the consumer's channel in it: opaque here.
        self.owner = owner
        self.number = number
        self.window = window
        self.window_bytes = window_bytes
        # Which messages it wants; None: all of them.
        self.filter: Filter | None = None
        # It only looks at what the queue has, which does not know it.
        self.browser: Browser | None = None
        # The highest is served first.
        self.priority = 0
        # Whether it wants to be the only one that is served; and whether it is served, for the queue to say.
        self.exclusive = False
        self.served = False
        self.willing = True
        self.held = 0
        self.held_bytes = 0
        self.next_tag = 1
        # Grants with unsettled rows, by rising tag.
        self.grants: list[Grant] = []
        # The bound on what all consumers hold; None: this one is not counted.  Its share of that; and by run how many
        # of its grants are of it, with what that counts for.
        self.holdings: Holdings | None = None
        self.pinned_bytes = 0
        self.pins: dict[StoredRun, list[int]] = {}

    def room(self) -> int:
        """How many messages it may be given now, as far as their number goes."""
        if not self.willing or (self.held and self.held_bytes >= self.window_bytes):
            return 0
        if self.holdings is not None and self.pinned_bytes > self.holdings.free_bytes and self.held:
            self.holdings.limited[self] = None
            return 0
        return self.window - self.held

    def fits(self, size: int) -> bool:
        """Whether a message of this size fits into its window; one always does."""
        return not self.held or size <= self.window_bytes - self.held_bytes

    def hold(self, grant: Grant) -> None:
        """Messages are granted to it."""
        self.next_tag += grant.rows
        self.held += grant.rows
        self.held_bytes += grant.size_bytes
        self.grants.append(grant)
        holdings = self.holdings
        if holdings is not None:
            run, pins = grant.view.run, self.pins
            # All but a few grants are the first of their run: that path makes no call.
            if run in pins:
                pins[run][0] += 1
                return
            if run.pins:
                run.pins += 1
                share = run.pinned_bytes // run.pins
            else:
                run.pins = 1
                content = run.content
                share = run.pinned_bytes = len(content.table) + len(content.body)
                holdings.free_bytes -= share
            pins[run] = [1, share]
            self.pinned_bytes += share

    def _unpin(self, run: StoredRun) -> None:
        """A grant of a run is settled whole."""
        holdings = self.holdings
        if holdings is None:
            return
        pins = self.pins
        pin = pins.pop(run)
        if pin[0] > 1:
            pin[0] -= 1
            pins[run] = pin
            return
        self.pinned_bytes -= pin[1]
        run.pins -= 1
        if not run.pins:
            holdings.free_bytes += run.pinned_bytes
            if holdings.limited:
                holdings.look_again()

    def set_willing(self, willing: bool) -> None:
        """Its session can take more, or can't."""
        self.willing = willing
        if self.filter is not None:
            self.queue.room_changed(self)

    def take(self, first: int, last: int) -> list[Span]:
        """Settle the tags ``first`` to ``last``; returns the rows, in order.

        Raises:
            RemoteProtocolError: one of them was never given, or was settled before; nothing changed.
        """
        if not 0 < first <= last < self.next_tag:
            raise violation("bad_tag", f"tags {first} to {last}; given so far: 1 to {self.next_tag - 1}")
        grants = self.grants
        index = bisect_right(grants, first, key=_TAG) - 1
        found: list[tuple[Grant, int, int]] = []
        tag = first
        while tag <= last:
            if not 0 <= index < len(grants) or not grants[index].tag <= tag < grants[index].tag + grants[index].rows:
                raise violation("bad_tag", f"tag {tag} is settled already")
            grant = grants[index]
            low = tag - grant.tag
            high = min(last - grant.tag + 1, grant.rows)
            if grant.settled is not None and grant.settled.find(1, low, high) >= 0:
                raise violation("bad_tag", f"one of the tags {tag} to {grant.tag + high - 1} is settled already")
            found.append((grant, low, high))
            tag = grant.tag + high
            index += 1
        spans = [self._settle(grant, low, high) for grant, low, high in found]
        if self.filter is not None:
            self.queue.room_changed(self)
        return spans

    def holding(self, tag: int) -> QueueRun | None:
        """The run of a message that it holds and has not settled; None if it doesn't.

        Raises:
            RemoteProtocolError: the tag was never given.
        """
        if not 0 < tag < self.next_tag:
            raise violation("bad_tag", f"tag {tag}; given so far: 1 to {self.next_tag - 1}")
        index = bisect_right(self.grants, tag, key=_TAG) - 1
        if index < 0:
            return None
        grant = self.grants[index]
        row = tag - grant.tag
        if row >= grant.rows or (grant.settled is not None and grant.settled[row]):
            return None
        return grant.view

    def _settle(self, grant: Grant, low: int, high: int) -> Span:
        rows = high - low
        step = grant.step
        start = grant.start + low * step
        stop = start + (rows - 1) * step + 1
        grant.left -= rows
        self.held -= rows
        if grant.left == 0:
            self.held_bytes -= grant.size_bytes
            self._drop(grant)
        else:
            if grant.settled is None:
                grant.settled = bytearray(grant.rows)
            grant.settled[low:high] = b"\1" * rows
            # Room must not wait for the last message of a grant: its holder may wait for what comes next.
            size = span_bytes(grant.view, start, stop, step)
            grant.size_bytes -= size
            self.held_bytes -= size
        return Span(grant.view, start, stop, step)

    def _drop(self, grant: Grant) -> None:
        grants = self.grants
        if grants[0] is grant:
            del grants[0]
        else:
            del grants[bisect_right(grants, grant.tag, key=_TAG) - 1]
        self._unpin(grant.view.run)

    def unsettled(self) -> list[tuple[int, Span]]:
        """Everything it still holds, with the first tag of each part, and hold nothing more."""
        parts: list[tuple[int, Span]] = []
        for grant in self.grants:
            low = 0
            settled = grant.settled or bytes(grant.rows)
            while (low := settled.find(0, low)) >= 0:
                high = settled.find(1, low)
                high = grant.rows if high < 0 else high
                start = grant.start + low * grant.step
                span = Span(grant.view, start, start + (high - low - 1) * grant.step + 1, grant.step)
                parts.append((grant.tag + low, span))
                low = high
            self._unpin(grant.view.run)
        self.grants.clear()
        self.held = self.held_bytes = 0
        return parts


def fitting(view: QueueRun, start: int, stop: int, room_bytes: int) -> int:
    """How many rows from ``start`` on fit into ``room_bytes``: a search in the run's own table of ends."""
    content = view.run.content
    if view.run.body is not None:
        return int(span_bytes(view, start, stop) <= room_bytes)
    table, base = content.table, content.base
    limit = _end(table, start, base) + room_bytes
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
