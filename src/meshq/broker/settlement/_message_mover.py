"""Moving messages from a queue to an address: dead letters, expired messages, moves by an operator.

One record stores the messages at their target and removes them from their source.  So there is no crash after which a
message is in both places, or in none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from meshq.address import Target
from meshq.broker.catalog._router import Router
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._filters_at import costly, filters_at, filters_of_moved
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._redistribution import Redistribution
from meshq.broker.ingress._staged_places import StagedPlaces
from meshq.broker.ingress._transfer_places import TransferPlaces
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._delivery_options import DeliveryOptions
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import ENQUEUED, GONE, QueueRun, StoredRun
from meshq.broker.queue._verdicts import AskedFilters, cost_of, judging, unasked, work_of
from meshq.broker.records import SettledRow
from meshq.broker.records._row_ranges import pieces
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.settlement._former_counts import former_counts
from meshq.broker.settlement._paged_runs import ContentLoader
from meshq.broker.settlement._pending_moves import PendingMoves
from meshq.broker.settlement._settled_row import settled_row
from meshq.broker.work._fair_scheduler import NODE, CostlyScan, FairScheduler, Owner
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError, MeshqError, UsageError
from meshq.message import MessageOrigin
from meshq.notifications import MessageDeadLettered, MessageExpired, MessagesRedistributed
from meshq.wire import RunBytes, pick

#: What becomes of messages that are moved, by why they are: the count of their queue.
FATES: Final = {
    "rejected": "rejected",
    "attempts": "dead_lettered",
    "expired": "expired",
    "moved": "moved",
    "redriven": "moved",
    "given_back": "moved",
    "redistributed": "redistributed",
    "transferred": "moved",
    "committed": "moved",
}
#: Why the node moves messages that nobody asked it to move.
OWN: Final = ("rejected", "attempts", "expired")
#: Why messages go to queues of other nodes, as they are: nobody has handled them yet.
_ON: Final = ("given_back", "redistributed", "transferred")
#: Of some rows that nobody holds those that may still go.
Still = Callable[[Sequence[int]], Sequence[int]]


class MessageMover:
    """Takes messages out of a queue and places them at an address."""

    def __init__(
        self,
        ingress: Ingress,
        acknowledger: Acknowledger,
        release_queue: ReleaseQueue,
        router: Router,
        fair_scheduler: FairScheduler,
        *,
        loader: ContentLoader,
        staged_places: StagedPlaces,
        event_bus: EventBus,
        schedule_dispatch: Callable[[Queue], None],
    ) -> None:
        """``staged_places``: places the messages of committed stages.

        ``schedule_dispatch`` is called with a queue that messages have left: others may go, or it is deleted."""
        self._ingress = ingress
        self._router = router
        #: Finds places on other nodes for messages that no consumer here can get.
        self.redistribution: Redistribution = Redistribution(ingress, router)
        #: Finds places for all messages on one node.
        self.transfer_places: TransferPlaces = TransferPlaces(ingress, router)
        self._staged_places = staged_places
        self._acknowledger = acknowledger
        self._release_queue = release_queue
        self._fair_scheduler = fair_scheduler
        # Runs of which the filters of a target are asked before messages are moved there, and by why they are to be
        # moved other messages of the run that are to go there: they are seen to after that.
        self._asking: dict[tuple[QueueRun, str], dict[tuple[RowSpan, str], Still | None]] = {}
        #: What waits for filters, or for room on the disk.
        self.pending_moves: PendingMoves = PendingMoves()
        #: What could not be moved the last time since it is put to the filters of its target, after which it goes; an
        #: ordered set.
        self.asked: dict[RowSpan, None] = {}
        #: Why messages could not be moved the last time.
        self.refused: MeshqError | None = None
        #: Bytes for which room was being made when messages could not be moved the last time; 0: not for want of that.
        self.waits_for: int = 0
        self._loader = loader
        self._event_bus = event_bus
        self._schedule_dispatch = schedule_dispatch

    def move(
        self,
        queue: Queue,
        spans: Sequence[RowSpan],
        target: Target | None,
        reason: str,
        still: Still | None = None,
        known: StoredRun | None = None,
    ) -> list[RowSpan]:
        """Move messages that a consumer has held, or that wait; ``target`` None: they are gone.

        ``known``: what filters have said of the run (``as_moved``).

        Returns those that could not be moved: nothing has changed for them.  What the node moves goes when room has
        been made for it, unless somebody has it by then; ``still`` says which of such rows may go even so.  What others
        ask for keeps its order: nothing goes behind messages that find no room.
        """
        left: list[RowSpan] = []
        moved = self.waits_for = 0
        self.asked = {}
        waiting = iter(self._cut(spans) if target is not None else spans)
        for span in waiting:
            try:
                logged = target is not None and self._place(queue, span, target, reason, still, known)
            except (AddressFullError, UsageError, JournalBrokenError, ClosedError) as error:
                # There is no room, or nobody there takes it, or the node is ending, for which it says why.
                self.refused = error
                left.append(span)
                if reason not in OWN and isinstance(error, AddressFullError):
                    left += waiting
                continue
            if reason == "transferred":
                self.transfer_places.held.moved(queue, span)
            for part in _still_there(queue, span):
                self._acknowledger.remove(queue, part, FATES[reason], logged=logged)
            moved += span.rows
        if moved:
            self._tell(queue, target, reason, moved)
            self._schedule_dispatch(queue)
            self.redistribution.freed(queue)
        return left

    def _tell(self, queue: Queue, target: Target | None, reason: str, messages: int) -> None:
        about: dict[str, Any] = {"address": queue.address, "queue": queue.name, "messages": messages}
        about["target"] = target.address if target is not None else ""
        if reason == "expired":
            self._event_bus.emit(MessageExpired, **about)
        elif reason in ("rejected", "attempts"):
            self._event_bus.emit(MessageDeadLettered, reason=reason, **about)
        elif reason == "redistributed":
            del about["target"]
            self._event_bus.emit(MessagesRedistributed, **about)
            self._router.demand.mobility_changed(queue.name)

    def room_for(self, view: QueueRun) -> int:
        """Bytes of the largest record that moves messages of a run which is here; 0: no room need be asked for."""
        run = view.run
        if not run.durable or run.size_bytes <= self._release_queue.large_bytes:
            return 0
        most = max(self._weigh(pick(run.content, (row,))) for row in range(run.content.rows))
        return most if most > self._release_queue.large_bytes else 0

    def _weigh(self, content: RunBytes) -> int:
        return self._ingress.weigh_moved(content)

    def _cut(self, spans: Sequence[RowSpan]) -> Iterator[RowSpan]:
        """Parts of which each finds room where a full disk has some, but for a message that alone does not."""
        waiting = list(reversed(spans))
        while waiting:
            span = waiting.pop()
            run, rows = span.view.run, range(span.start, span.stop, span.step)
            large = self._release_queue.large_bytes
            if len(rows) == 1 or run.size_bytes <= large // 2 or self._weigh(pick(run.content, rows)) <= large:
                yield span
                continue
            middle = rows[len(rows) // 2]
            waiting.append(RowSpan(span.view, middle, span.stop, span.step))
            waiting.append(RowSpan(span.view, span.start, middle, span.step))

    def _reserve_space(self, queue: Queue, run: StoredRun, then: Callable[[int], None] | None) -> None:
        """Raise ``AddressFullError`` if the moved messages have to wait for disk space.

        ``then`` is called with the bytes when there is space, or when the disk has none; None: the caller of the move
        tries again.
        """
        need, number = self._weigh(run.content), 0

        def answered() -> None:
            if then is not None:
                since = self.pending_moves.last
                then(need)
                self._ended(queue, number, since)

        if self._release_queue.request_space(need, answered):
            # There is room, or whoever places it is refused at once; what nobody keeps needs none.
            return
        if then is not None:
            number = self.pending_moves.begin(queue)
        self.waits_for = need
        raise AddressFullError(f"room for {need} bytes that are to be moved is being made")

    def _space_ready(
        self,
        queue: Queue,
        span: RowSpan,
        target: Target,
        reason: str,
        still: Still | None,
        known: StoredRun | None,
        need: int,
    ) -> None:
        """Move messages that waited for disk space: the space is kept only as long as this call lasts."""
        with contextlib.suppress(AddressFullError):
            self._release_queue.check_space(need)
            self._move_late(queue, span, target, reason, still, known)

    def _move_late(
        self, queue: Queue, span: RowSpan, target: Target, reason: str, still: Still | None, known: StoredRun | None
    ) -> None:
        """Move messages that had to wait, unless they are unacked by now."""
        view = span.view
        if not view.live or view.run.paged:
            return
        rows: Sequence[int] = [row for row in range(span.start, span.stop, span.step) if view.states[row] in ENQUEUED]
        if still is not None:
            rows = still(rows)
        parts = [RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows)]
        self.move(queue, parts, target, reason, still, known)

    # -- what filters say

    def as_moved(self, queue: Queue, run: StoredRun, target: Target, reason: str) -> StoredRun:
        """All messages of a run as filters see them where they go."""
        return self._moved(queue, run, target, reason, range(run.content.rows))

    def costly(
        self, owner: Owner, known: StoredRun, target: Target, reason: str, rows: Sequence[int]
    ) -> CostlyScan | None:
        """The steps in which messages have to be put to the filters of their target before they are moved there; None:
        they need not be.  ``known``: their run ``as_moved``, which then knows what these say."""
        if reason == "committed":
            filters = filters_at(self._router, target)
        else:
            filters = filters_of_moved(self._router, target, anew=reason in _ON)
        return costly(self._fair_scheduler, owner, known, filters, rows) if filters and rows else None

    def _ask(
        self, queue: Queue, span: RowSpan, target: Target, reason: str, still: Still | None, known: StoredRun | None
    ) -> StoredRun | None:
        """Return the verdicts of the target's filters about a run; None: there are no filters.

        Raises:
            AddressFullError: the filters are asked in steps, and the messages are moved after that.
        """
        if reason not in OWN:
            # Whoever asks for the move has seen to it.
            return known
        rows = range(span.start, span.stop, span.step)
        filters = filters_of_moved(self._router, target)
        if not filters:
            return None
        key = span.view, target.address
        if key not in self._asking:
            run = known or self.as_moved(queue, span.view.run, target, reason)
            missing = unasked(run, filters, rows)
            work = work_of(run, cost_of(missing), rows) if missing else 0
            if not missing or self._fair_scheduler.afford(NODE, work):
                return run
            self._asking[key] = {}
            number = self.pending_moves.begin(queue)
            told: list[StoredRun] = []
            # Of what waits the content may go to the disk, unless something is known of it.
            steps = self._asked(queue, span, target, reason, known if known and known.verdicts else None, told)
            then = partial(self._told, queue, span, target, reason, still, told, number)
            self._fair_scheduler.begin(NODE, queue, CostlyScan(steps, work), then, lambda: bool(span.view.live))
        else:
            self._asking[key][span, reason] = still
        self.asked[span] = None
        raise AddressFullError(f"the messages are put to the filters of {target.address!r}")

    def _asked(
        self,
        queue: Queue,
        span: RowSpan,
        target: Target,
        reason: str,
        known: StoredRun | None,
        told: list[StoredRun],
    ) -> Iterator[None]:
        run = span.view.run
        if run.paged:
            # It is put to them once it is here.
            return
        known = known or self.as_moved(queue, run, target, reason)
        rows = range(span.start, span.stop, span.step)
        filters = unasked(known, filters_of_moved(self._router, target), rows)
        yield from judging(known, filters, AskedFilters(filters), rows)
        told.append(known)

    def _told(
        self,
        queue: Queue,
        span: RowSpan,
        target: Target,
        reason: str,
        still: Still | None,
        told: list[StoredRun],
        number: int,
    ) -> None:
        """Move messages after their filters were asked; or load the content first if it was paged meanwhile."""
        view, then = span.view, partial(self._go, queue, span, target, reason, still, number)
        if view.live and view.run.paged:
            # They go as soon as it is here.
            self._loader.fault_in(queue, view, partial(then, told, asked=True))
        else:
            then(told, asked=bool(told))

    def _go(
        self,
        queue: Queue,
        span: RowSpan,
        target: Target,
        reason: str,
        still: Still | None,
        number: int,
        told: list[StoredRun],
        *,
        asked: bool,
    ) -> None:
        """Move the messages now, unless they are unacked; ``asked``: whether filters were asked, or can be now."""
        since = self.pending_moves.last
        others = self._asking.pop((span.view, target.address))
        if asked:
            self._move_late(queue, span, target, reason, still, told[0] if told else None)
            for (other, why), may in others.items():
                self._move_late(queue, other, target, why, may, None)
        self._ended(queue, number, since)

    def _ended(self, queue: Queue, number: int, since: int) -> None:
        self.pending_moves.end(queue, number, since)
        if queue not in self.pending_moves:
            # It may have been what kept a queue that goes by itself.
            self._schedule_dispatch(queue)

    def _moved(self, queue: Queue, run: StoredRun, target: Target, reason: str, rows: range) -> StoredRun:
        """Some messages of a run as they are where they go."""
        options = run.options
        moved = StoredRun(
            target.address,
            run.content if len(rows) == run.content.rows else pick(run.content, rows),
            durable=run.durable,
            producer=run.producer,
            number=run.number + rows.start * run.number_step,
            stamp=run.stamp,
            number_step=run.number_step * rows.step,
        )
        # Only what somebody moves goes on ageing, unless it had stopped before.
        arrival = options.arrival if options is not None and reason in ("moved", *_ON) else 0
        if reason == "committed":
            moved.options = self._ingress.arrived()
        elif reason in _ON:
            moved.options = (
                DeliveryOptions(
                    arrival, taken=options.taken, begun=options.begun, origin=options.origin, there=options.there
                )
                if options is not None
                else DeliveryOptions(0)
            )
        else:
            moved.options = DeliveryOptions(arrival, origin=_origin(queue, run, reason))
        moved.body = run.body
        return moved

    def _place(
        self, queue: Queue, span: RowSpan, target: Target, reason: str, still: Still | None, known: StoredRun | None
    ) -> bool:
        """Place the messages; whether the record that does so says that they are gone from here."""
        run = span.view.run
        whole = run.origin or run
        rows = range(span.start, span.stop, span.step)
        known = self._ask(queue, span, target, reason, still, known)
        moved = self._moved(queue, run, target, reason, rows)
        if reason in _ON and moved.options is not None:
            held = self.transfer_places.held.xid_of(span) if reason == "transferred" else b""
            moved.options = moved.options._replace(former=former_counts(queue, span), held=held)
        if known is not None:
            moved.verdicts = tuple(verdicts.picked(rows) for verdicts in known.verdicts)
        if run.durable:
            # Whoever asked for a move is told no, and may ask again.
            then = partial(self._space_ready, queue, span, target, reason, still, known) if reason in OWN else None
            self._reserve_space(queue, moved, then)
        if reason == "expired":
            # One record says both that they are there and that they are gone from here.
            self._acknowledger.note_expired(queue, span)
        gone: tuple[SettledRow, ...] = ()
        if whole.position and queue.durable:
            gone = (settled_row(queue, span),)
        if reason == "given_back":
            logged = self._ingress.place_anew(moved, (queue, span.view.remote), gone)
        elif reason == "redistributed":
            logged = self.redistribution.place(moved, queue, gone)
        elif reason == "committed":
            logged = self._staged_places.place(moved, target, gone)
        elif reason == "transferred":
            logged = self.transfer_places.place(moved, queue, target, gone)
        else:
            logged = self._ingress.place_moved(moved, target, gone)
        moved.verdicts = ()
        return logged


def _origin(queue: Queue, run: StoredRun, reason: str) -> MessageOrigin:
    """The origin of moved messages; of a store-and-forward queue the address that the messages were sent to."""
    if queue.forwards:
        return MessageOrigin(run.address, run.address, reason)
    return MessageOrigin(queue.address, queue.name, reason)


def _still_there(queue: Queue, span: RowSpan) -> list[RowSpan]:
    """The moved rows that are still in the queue: in a last-value queue a message that was moved back to the same queue
    has replaced its original."""
    if queue.last_values is None:
        return [span]
    view = span.view
    rows = [row for row in range(span.start, span.stop, span.step) if view.states[row] != GONE]
    return [RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows)]
