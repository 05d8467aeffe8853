"""The messages that are held by prepared transactions which another node takes over, as far as these are still here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from meshq.broker.log._release_queue import Views
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._message_counts import mark_unacked
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import GONE, QueueRun
from meshq.broker.records._row_ranges import pieces

_NONE: Final[Mapping[int, bytes]] = MappingProxyType({})


class HeldRows:
    """Rows of queues by the prepared transaction that has acknowledged them, of transactions that are handed over."""

    __slots__ = ("_forwards", "_left", "_rows")

    def __init__(self) -> None:
        self._rows: dict[QueueRun, dict[int, bytes]] = {}
        # By transaction: in which queues it has rows, and how many.
        self._left: dict[bytes, dict[Queue, int]] = {}
        # By transaction: the store-and-forward queue for the node that takes over.
        self._forwards: dict[bytes, int] = {}

    def hold(self, xid: bytes, forward: int, spans: Mapping[Queue, Sequence[RowSpan]]) -> None:
        """Note the rows of a transaction that go to the node of a store-and-forward queue."""
        self._forwards[xid] = forward
        left = self._left[xid] = {}
        for queue, found in spans.items():
            for span in found:
                rows = range(span.start, span.stop, span.step)
                self._rows.setdefault(span.view, {}).update(dict.fromkeys(rows, xid))
            left[queue] = sum(span.rows for span in found)

    def queues(self, xid: bytes) -> Mapping[Queue, int]:
        """Return the queues in which a transaction has rows, with how many."""
        return self._left.get(xid, {})

    def forget(self, xid: bytes) -> None:
        """Forget a transaction, which has no rows here."""
        del self._left[xid], self._forwards[xid]

    def of(self, view: QueueRun, forward: Queue) -> Mapping[int, bytes]:
        """Return the rows of a run that go to the node of a store-and-forward queue with their transaction."""
        found = self._rows.get(view)
        if not found:
            return _NONE
        return {row: xid for row, xid in found.items() if self._forwards[xid] == forward.number}

    def xid_of(self, span: RowSpan) -> bytes:
        """Return the transaction of a span's rows; empty: none holds them."""
        found = self._rows.get(span.view)
        return found.get(span.start, b"") if found else b""

    def moved(self, queue: Queue, span: RowSpan) -> None:
        """Note that rows have left their queue for the other node."""
        found = self._rows.get(span.view)
        xid = self.xid_of(span)
        if not found or not xid:
            return
        for row in range(span.start, span.stop, span.step):
            del found[row]
        if not found:
            del self._rows[span.view]
        queue.counts.acked_in_transaction -= span.rows
        left = self._left[xid]
        left[queue] -= span.rows
        if not left[queue]:
            del left[queue]


def divided(rows: Sequence[int], held: Mapping[int, bytes]) -> list[range]:
    """Return rows as few ranges in their order; the rows of one range belong to one transaction, or to none."""
    if not held:
        return pieces(rows)
    found: list[range] = []
    group: list[int] = []
    for row in rows:
        if group and held.get(group[-1]) != held.get(row):
            found += pieces(group)
            group = []
        group.append(row)
    return [*found, *pieces(group)]


def held_from_now(hold: Callable[[Views], None], views: Views, then: Callable[[], None]) -> Callable[[], None]:
    """Mark the messages of views as unacked, and return a call of ``hold``, and ``then``, for when they are visible."""
    for _, view in views:
        rows = [row for row, state in enumerate(view.states) if state != GONE]
        mark_unacked(RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows))

    def visible() -> None:
        hold(views)
        then()

    return visible
