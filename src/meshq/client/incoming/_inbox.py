"""The inbox of one consumer: runs that wait to be received, and acknowledgements that wait to be sent."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from meshq.client.calls._frame_stream import FrameStream
from meshq.client.incoming._body_prefetch import BodyPrefetch
from meshq.client.incoming._body_reads import BodyReads
from meshq.client.incoming._consumer_life import new_life
from meshq.client.incoming._delivered_run import DeliveredRun, ReceivedMessage, RunOwner
from meshq.client.incoming._spans import RUN, DeliverySpan, check_deliveries, spans_of
from meshq.errors import MeshqError, StaleDeliveryError, UsageError
from meshq.lifecycle import LifeCycle
from meshq.message import check_span
from meshq.wire import FLAG_RETURN, RANGES_MAX, Frame, FrameType, violation

#: A fate is the flags of a SETTLE frame and, above them, its stamp.
_FLAGS: Final = 0xFF
_WAIT_SHIFT: Final = 8


def returning(delay: float | None) -> int:
    """Return the fate of deliveries that are given back with a ``delay`` in seconds; None: the delay of their queue.

    Raises:
        SettingsError: it is no number of seconds, or too long.
    """
    if delay is None:
        return FLAG_RETURN
    wait_ms = check_span("delay", delay)
    return FLAG_RETURN | (wait_ms + 1 if delay else 1) << _WAIT_SHIFT


class InboxOwner(RunOwner, Protocol):
    """The owner of an inbox: a consumer."""

    def opened(self) -> None:
        """Note that the broker has opened the consumer."""

    def changed(self) -> None:
        """Note that messages have arrived, or that a browse has ended."""

    def failed(self, error: MeshqError) -> None:
        """Fail the consumer for good."""


#: A message as the owner of an inbox hands it over.
M = TypeVar("M", bound=ReceivedMessage)


class ConsumeRequest(NamedTuple):
    """The request by which each session opens a consumer."""

    #: The encoded header of its CONSUME frame.
    header: bytes
    #: Whether the queue ends with the session, so that no later session opens it again.
    temporary: bool = False
    #: Whether the consumer browses.
    browse: bool = False


class Inbox(Generic[M]):
    """The deliveries of one consumer.  ``make`` makes a message of a run and an index."""

    __slots__ = (
        "_changed",
        "_current",
        "_last_tag",
        "_make",
        "_pending",
        "_position",
        "_reads",
        "_runs",
        "_stream",
        "arriving",
        "auto",
        "channel",
        "consumer",
        "epoch",
        "failed",
        "handed",
        "life",
        "open",
        "request",
        "undone",
    )

    def __init__(
        self,
        consumer: InboxOwner,
        make: Callable[[DeliveredRun, int], M],
        request: ConsumeRequest,
        stream: FrameStream,
        reads: BodyReads,
        *,
        auto: bool,
    ) -> None:
        self.consumer: InboxOwner = consumer
        self._changed = consumer.changed
        self._make = make
        self._stream = stream
        self._reads = reads
        self.request: ConsumeRequest = request
        #: Where the consumer is between its opening and its end.
        self.life: LifeCycle = new_life()
        #: Whether messages are acknowledged at hand-over.
        self.auto: bool = auto
        #: The session's channel and epoch; 0 when there is none.
        self.channel: int = 0
        self.epoch: int = 0
        self.failed: MeshqError | None = None
        #: The lowest tag that was not handed to the application.
        self.handed: int = 1
        #: The lowest tag that was handed back, because the application could not use it.
        self.undone: int | None = None
        # Runs that wait to be received, and the run that is being received with its next index.
        self._runs: deque[DeliveredRun] = deque()
        self._current: DeliveredRun | None = None
        self._position = 0
        self._last_tag = 0
        #: Runs that wait for a large body, their own or an earlier one; None: no large body so far.
        self.arriving: BodyPrefetch | None = None
        #: Messages received and not settled.
        self.open: int = 0
        # Gathered and not sent: the fate that a SETTLE frame tells, and its ranges flat.
        self._pending: list[tuple[int, list[int]]] = []

    # -- in

    @property
    def browse(self) -> bool:
        """Whether the consumer browses."""
        return self.request.browse

    @property
    def ended(self) -> bool:
        """Whether a browse has brought everything."""
        return self.life.state == "ended"

    def begin(self, channel: int, epoch: int) -> None:
        """Begin in a new session, or wait for one without a channel: drop the state of the previous session."""
        self.life.on("ask" if channel else "defer")
        self.channel = channel
        self.epoch = epoch
        self.handed = 1
        self.undone = None
        self.open = 0
        self._last_tag = 0
        self._pending.clear()
        self._forget()

    def _forget(self) -> None:
        self._runs.clear()
        self._current = None
        if self.arriving is not None:
            self.arriving.forget()

    def opened(self) -> None:
        """Note that the broker has opened the channel."""
        self.life.on("open")
        self.consumer.opened()

    def deliver(self, frame: Frame) -> None:
        """Take a DELIVER frame.

        Raises:
            RemoteProtocolError: its tags don't follow, or it can't be one.
        """
        if frame.first != self._last_tag + 1 or not frame.count:
            raise violation("bad_tag", f"tag {frame.first} was delivered after {self._last_tag}")
        self._last_tag += frame.count
        run = DeliveredRun(self.consumer, self.epoch, frame)
        if run.view.run.base < 0:
            raise violation("bad_table", "the rows describe less than the body")
        if not self.epoch:
            # The consumer is closed, or is being closed.
            return
        if run.large is not None and self.arriving is None:
            self.arriving = BodyPrefetch(self, self._reads)
        if self.arriving is not None and (run.large is not None or self.arriving):
            self.arriving.add(run)
        else:
            # As ``arrived``, without a call for each message.
            self._runs.append(run)
            self._changed()

    def arrived(self, run: DeliveredRun) -> None:
        """Add a run that can be received."""
        self._runs.append(run)
        self._changed()

    def skip(self, run: DeliveredRun) -> None:
        """Settle a run of one message that is no longer in the queue, without handing it over."""
        self.open += 1
        self._add(0, run.first, run.first)
        self._stream.gathered(self)

    @property
    def waiting(self) -> int:
        """The number of messages that wait to be received."""
        current = self._current.rows - self._position if self._current is not None else 0
        arriving = len(self.arriving) if self.arriving is not None else 0
        return current + sum(run.rows for run in self._runs) + arriving

    @property
    def done(self) -> bool:
        """Whether everything that arrived is handed over and settled."""
        return not self.open and self._current is None and not self._runs

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be handed over."""
        return self._current is None and not self._runs

    def take(self) -> M:
        """Hand over one message; there is one."""
        run = self._current
        if run is None:
            run = self._current = self._runs.popleft()
            self._position = 0
        index = self._position
        self._position = index + 1
        if index + 1 == run.rows:
            self._current = None
        self.handed = run.first + index + 1
        self.open += 1
        if self.auto:
            run.settled |= 1 << index
            self._add(0, run.first + index, run.first + index)
        return self._make(run, index)

    def take_many(self, most: int) -> list[M]:
        """Hand over up to ``most`` messages."""
        taken: list[M] = []
        runs, run, index = self._runs, self._current, self._position
        while most:
            if run is None:
                if not runs:
                    break
                run, index = runs.popleft(), 0
            count = run.rows - index
            if count > most:
                count = most
            end = index + count
            taken += map(self._make, repeat(run), range(index, end))
            most -= count
            self.handed = run.first + end
            self.open += count
            if self.auto:
                run.settled |= ((1 << count) - 1) << index
                self._add(0, run.first + index, run.first + end - 1)
            index = end
            if end == run.rows:
                run = None
        self._current, self._position = run, index
        return taken

    def take_spans(self, most: int) -> list[DeliverySpan]:
        """Hand over up to ``most`` messages as spans; nothing is acknowledged at hand-over."""
        taken: list[DeliverySpan] = []
        while most and not self.empty:
            run = self._current
            if run is None:
                run, self._position = self._runs.popleft(), 0
            start = self._position
            count = min(run.rows - start, most)
            taken.append(DeliverySpan(run, start, count))
            most -= count
            self.open += count
            self._position = start + count
            self.handed = run.first + start + count
            self._current = run if self._position < run.rows else None
        return taken

    # -- handing over by another thread

    def lend(self) -> list[DeliveredRun]:
        """Take all waiting runs for another thread, which reports received messages by ``handed_over``."""
        runs = list(self._runs)
        self._runs.clear()
        return runs

    def handed_over(self, spans: Sequence[DeliverySpan]) -> None:
        """Note the lent messages that the application has received."""
        for span in spans:
            if span.run.epoch == self.epoch:
                self.handed = span.last + 1
                self.open += span.rows

    def gather(self, settled: Sequence[tuple[int, DeliverySpan]]) -> bool:
        """Gather the settlement of messages that were marked before; return whether anything is to be sent.

        What belongs to a session that is gone is dropped: it comes again.
        """
        some = False
        for fate, span in settled:
            if span.run.epoch == self.epoch:
                self._add(fate, span.first, span.last)
                some = True
        return some

    def hand_back(self, delivery: ReceivedMessage) -> None:
        """Hand back a message that the application could not use: this message and all unsettled ones after it go back
        uncounted when the consumer is closed."""
        run, index = delivery._run, delivery._index
        if run.epoch == self.epoch:
            tag = run.first + index
            self.undone = tag if self.undone is None else min(self.undone, tag)

    @property
    def reached(self) -> int:
        """The lowest tag from which on no message was used by the application."""
        return self.handed if self.undone is None else min(self.handed, self.undone)

    # -- settling

    def check_settling(self) -> None:
        """Check that the messages may be settled.

        Raises:
            UsageError: they were only looked at.
        """
        if self.browse:
            raise UsageError(f"the consumer of {self.consumer.queue!r} only looks: there is nothing to settle")

    def settle(self, deliveries: Sequence[ReceivedMessage], fate: int) -> StaleDeliveryError | None:
        """Settle deliveries with ``fate`` and gather that; the caller wakes the session.

        Returns the error for those that are stale, if any are; the others are settled.

        Raises:
            UsageError: one is settled already, or not of this consumer, or none at all; nothing changed.
        """
        if len(deliveries) == 1:
            # One comparison of a bit; the most common call of all.
            delivery = deliveries[0]
            try:
                run, index = delivery._run, delivery._index
            except AttributeError:
                check_deliveries(deliveries, RUN)
                raise
            if run.consumer is self.consumer and run.epoch == self.epoch and not run.settled >> index & 1:
                run.settled |= 1 << index
                self._add(fate, run.first + index, run.first + index)
                return None
        done, stale = self.mark(deliveries)
        if done:
            self._add_all(fate, done)
        return stale

    def mark(self, deliveries: Sequence[ReceivedMessage]) -> tuple[list[DeliverySpan], StaleDeliveryError | None]:
        """Mark deliveries as settled without gathering; return the spans to gather, and the error for stale deliveries.

        Raises:
            UsageError: one is settled already, or not of this consumer, or none at all; nothing changed.
        """
        spans = spans_of(deliveries)
        done: list[DeliverySpan] = []
        stale = False
        for span in spans:
            run, mask = span.run, span.mask
            problem = None
            if run.consumer is not self.consumer:
                problem = f"a delivery of the consumer of {run.consumer.queue!r}, not of {self.consumer.queue!r}"
            elif run.settled & mask:
                double = self._make(run, ((run.settled & mask) & -(run.settled & mask)).bit_length() - 1)
                problem = f"{double!r} was settled before"
            if problem is not None:
                for one in done:
                    one.run.settled ^= one.mask
                raise UsageError(problem)
            if run.epoch == self.epoch:
                run.settled |= mask
                done.append(span)
            else:
                stale = True
        return done, self._stale(spans) if stale else None

    def _stale(self, spans: list[DeliverySpan]) -> StaleDeliveryError:
        text = "the session or consumer of the delivery is gone; the message comes again"
        error = StaleDeliveryError(text)
        results: list[MeshqError | None] = []
        for run, _, count in spans:
            results += [error if run.epoch != self.epoch else None] * count
        if len(results) == 1:
            return error
        stale = len(results) - results.count(None)
        return StaleDeliveryError(f"{stale} of {len(results)} deliveries: {text}", results=results)

    def _add_all(self, fate: int, spans: Sequence[DeliverySpan]) -> None:
        """Gather spans of settled messages; adjacent spans become one range."""
        first = following = spans[0].first
        for run, start, rows in spans:
            tag = run.first + start
            if tag != following:
                self._add(fate, first, following - 1)
                first = tag
            following = tag + rows
        self._add(fate, first, following - 1)

    def _add(self, fate: int, first: int, last: int) -> None:
        self.open -= last - first + 1
        pending = self._pending
        if not pending:
            pending.append((fate, [first, last]))
            return
        group = pending[-1]
        if group[0] != fate or len(group[1]) >= 2 * RANGES_MAX:
            pending.append((fate, [first, last]))
            return
        ranges = group[1]
        if ranges[-1] + 1 == first:
            ranges[-1] = last
        else:
            ranges += (first, last)

    def take_settles(self) -> list[Frame]:
        """Take the gathered acknowledgements as SETTLE frames."""
        pending, self._pending = self._pending, []
        return [
            Frame(
                FrameType.SETTLE,
                flags=fate & _FLAGS,
                stamp=fate >> _WAIT_SHIFT,
                channel=self.channel,
                count=len(ranges) // 2,
                table=struct.pack(f"<{len(ranges)}Q", *ranges),
            )
            for fate, ranges in pending
        ]

    # -- life

    def end_browse(self) -> None:
        """End a browse: the messages that are here can still be received, and are not acknowledged."""
        opening = self.life.state == "opening"
        self.life.on("end")
        self.auto = False
        self._pending.clear()
        if opening:
            # The broker has opened what it has ended, and the answer that says so comes later.
            self.consumer.opened()
        self._changed()

    def fail(self, error: MeshqError) -> None:
        """Fail the consumer for good."""
        if self.failed is None:
            self.failed = error
            self.life.on("fail")
            self._end()
            self.consumer.failed(error)

    def close(self) -> None:
        """Close the inbox: its deliveries are stale, its gathered acknowledgements are still sent."""
        self.life.on("close")
        self._end()

    def _end(self) -> None:
        self.epoch = 0
        self._forget()
