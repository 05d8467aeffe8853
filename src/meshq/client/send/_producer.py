"""A pipelined producer: messages gather into runs, runs are sent when they are full or stop growing.

The hot path of ``send`` appends to a list and counts down.  Everything that needs a look (a full run, the window,
credit, the scheduler's turn, an envelope's check) is done when the countdown ends, at least every 64 messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, cast

import attrs
import trio

from meshq import limits
from meshq.client.calls._calls import OpenCompletion
from meshq.client.calls._link_failures import outcome_of
from meshq.client.outgoing._outbox import Outbox, OutgoingRun
from meshq.client.send._envelope import PLAIN_ROW, PRIORITY_ROWS, EnvelopeEncoder, Row
from meshq.client.send._gather_pace import GatherPace
from meshq.client.send._producer_life import CLOSED, SHOWN, new_life
from meshq.client.send._send_batches import combined
from meshq.client.session._client_context import ClientContext
from meshq.concurrency import Block, copied_error
from meshq.errors import ClosedError, MeshqError, UsageError, invariant
from meshq.loops import check_in_trio
from meshq.message import Message, PropertyValue, check_body, check_durable, check_priority, keywords_of
from meshq.wire import Envelope, encode_run

# Looked up in every send: a name of this module is found sooner than one of another.
_RUN_BYTES: Final = limits.RUN_BYTES_TARGET
_PRIORITY: Final = limits.PRIORITY_DEFAULT

#: Told the number of messages that are confirmed or have failed, and the error.
SettledTap = Callable[[int, MeshqError | None], None]


@attrs.frozen(kw_only=True)
class ProducerStatistics:
    """The state and counters of a producer at one moment."""

    address: str
    state: str
    #: Messages taken since it was opened, and those of them that were not confirmed yet.
    sent: int
    unconfirmed: int


class Producer:
    """A producer: pipelined sends to one address.  Made by ``client.producer``; used as ``async with``.

    ``send`` returns when the message is taken; confirms are collected in the background.  Leaving the block means
    that every message is confirmed, or raises the error that says what became of them.

    An error is raised by the next ``send`` or ``flush`` after it has become known, once nothing is under way any
    more.  Its ``results`` say what became of each message from the first that failed to the last one taken, in
    order: counted from the end they are the last messages that were given to ``send``.  A ``send`` that raises has
    not taken its own message.
    """

    def __init__(self, context: ClientContext, encoder: EnvelopeEncoder, address: str, *, window: int) -> None:
        self.address = address
        self._context = context
        self._session = context.session
        self._encoder = encoder
        self._window = window
        self._block = Block(f"the producer to {address!r}")
        self._outbox = Outbox(address, context.token(), self, window=window)
        self._opened = OpenCompletion(f"opening a producer to {address!r}")
        self._life: Final = new_life()
        # The run that gathers: its bodies, its envelopes (fewer: the rest are plain), its size, its durability.
        self._bodies: list[bytes] = []
        self._rows: list[Row] = []
        self._size = 0
        self._durable = True
        # Messages that may be appended before the next check.
        self._room = 0
        self._pace = GatherPace()
        # Messages of runs cut so far.
        self._cut_count = 0
        # Runs that failed and were not reported: place of the first message, count, error.
        self._failures: list[tuple[int, int, MeshqError]] = []
        self._lot = trio.lowlevel.ParkingLot()
        # Called when messages are confirmed or have failed, while another thread feeds the producer.
        self._settled_tap: SettledTap | None = None

    def __repr__(self) -> str:
        return f"<Producer {self.address!r} {SHOWN[self._life.state]} unconfirmed={self.unconfirmed}>"

    @property
    def unconfirmed(self) -> int:
        """The number of messages taken and not confirmed yet."""
        return self._outbox.unsettled + len(self._bodies)

    def statistics(self) -> ProducerStatistics:
        """Return the counters of the producer."""
        return ProducerStatistics(
            address=self.address,
            state=SHOWN[self._life.state],
            sent=self._cut_count + len(self._bodies),
            unconfirmed=self.unconfirmed,
        )

    # -- life

    async def __aenter__(self) -> Self:
        """Open it at the broker.

        Checkpoint: always.  Cancellation: it is closed again.
        Raises:
            UsageError: it was used before; or the address remembers fewer duplicate ids than its window has messages.
            ConnectionBrokenError, CallTimeoutError, ClosedError: it could not be opened.
        """
        check_in_trio("connect")
        self._block.check_unused()
        self._context.check()
        self._block.claim()
        self._life.on("ask")
        self._opened.since = trio.current_time()
        self._session.send_queue.add(self._outbox)
        self._session.stream.flush()
        try:
            await self._session.deadlines.wait(self._opened)
        except BaseException:
            self._life.on("close")
            self._block.abandon()
            self._session.send_queue.close(self._outbox)
            self._session.stream.wake()
            raise
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close it; see ``close``.  The body's own error goes before one about messages.

        Checkpoint: when something is unconfirmed.
        Cancellation: it is closed all the same; what was taken goes on its way.
        Raises:
            MeshqError: messages failed that no ``send`` or ``flush`` has reported.
        """
        left = self._block.leave(error)
        try:
            await self._block.close_after(left, self.close)
        except MeshqError as failed:
            if left is None and self._block.failure is None:
                raise
            if failed.results and (left is None or self._block.met(left)):
                # The same failure, with what became of the messages.
                failed.__cause__ = self._block.failure
                self._block.failure = failed
        return self._block.conclude(error, left)

    async def close(self) -> None:
        """Send the gathered messages, wait until all of them are confirmed, and close the producer.  Twice is silent.

        Checkpoint: when something is unconfirmed.
        Cancellation: it is closed all the same; what was taken goes on its way.
        Raises:
            MeshqError: messages failed that no ``send`` or ``flush`` has reported.
        """
        check_in_trio("connect")
        if self._life.state in CLOSED:
            return
        self._life.on("close")
        self._block.close()
        # Another task may wait for the opening, of which the broker says nothing more in a new session.
        self._opened.fail(ClosedError(f"{self._block.name} is closed"))
        self._room = 0
        # A task that waits for room gets none any more.
        self._lot.unpark_all()
        try:
            await self._settled()
        finally:
            self._session.send_queue.close(self._outbox)
            self._session.stream.wake()
            self._lot.unpark_all()

    # -- sending

    async def send(
        self,
        body: bytes | Message,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        durable: bool = True,
        priority: int = limits.PRIORITY_DEFAULT,
        ttl: float | None = None,
        delay: float | None = None,
        duplicate_id: str | bytes | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        group: str | None = None,
        content_type: str | None = None,
    ) -> None:
        """Send a message; the producer sends it together with others, and the confirm comes later.

        ``body``: bytes, or a ``Message``, which says all of it: no keyword goes beside it.

        Waits while ``window`` messages are unconfirmed, and while the broker grants no credit.

        Checkpoint: at least every 64th call.
        Cancellation: the message was not taken.
        Raises:
            SettingsError: a part of the message is not allowed; it was not taken.
            MeshqError: earlier messages failed (see ``results``); this one was not taken.
            ClosedError, UsageError: the producer is not open.
        """
        if not self._room:
            await self._make_room()
        if (
            properties is None
            and duplicate_id is None
            and correlation_id is None
            and reply_to is None
            and content_type is None
            and ttl is None
            and delay is None
            and group is None
            and type(body) is bytes
        ):
            row = None if priority == _PRIORITY else PRIORITY_ROWS[check_priority(priority)]
            size = self._size + len(body)
        else:
            if type(body) is not bytes:
                if isinstance(body, Message):
                    extras = (duplicate_id, correlation_id, reply_to, group, content_type)
                    keywords = keywords_of(body, properties, durable, priority, ttl, delay, *extras)
                    await self.send(body.body, **keywords)
                    return
                body = check_body(body)
            row = self._encoder.row(
                properties, duplicate_id, correlation_id, reply_to, content_type, priority, ttl, delay, group
            )
            size = self._size + len(body) + len(row[1]) + len(row[2]) + len(row[3])
        if size <= _RUN_BYTES and durable is self._durable:
            self._size = size
            self._room -= 1
            bodies = self._bodies
            if row is not None:
                rows = self._rows
                if len(rows) != len(bodies):
                    rows.extend([PLAIN_ROW] * (len(bodies) - len(rows)))
                rows.append(row)
            bodies.append(body)
            return
        await self._append_slowly(body, row, durable)

    async def _take(self, body: bytes, row: Row | None, durable: bool) -> None:
        """Take a checked and encoded message, without raising the errors of earlier messages."""
        if not self._room:
            await self._make_room(report=False)
        size = self._size + len(body)
        if row is not None:
            size += len(row[1]) + len(row[2]) + len(row[3])
        if size <= _RUN_BYTES and durable is self._durable:
            self._size = size
            self._append(body, row)
        else:
            await self._append_slowly(body, row, durable, report=False)

    def _drop(self, count: int, error: MeshqError) -> None:
        """Count messages as failed that another thread took and that will never be sent."""
        if self._bodies:
            self._cut()
        self._failures.append((self._cut_count, count, error))
        self._cut_count += count
        self._tell(count, error)

    def _lend(self, tap: SettledTap) -> None:
        """Lend the producer to another thread, whose ``tap`` is called when messages are confirmed or have failed."""
        invariant(self._settled_tap is None, "one thread feeds a producer")
        self._settled_tap = tap

    def _tell(self, count: int, error: MeshqError | None) -> None:
        if self._settled_tap is not None:
            self._settled_tap(count, error)

    def _append(self, body: bytes, row: Row | None) -> None:
        bodies = self._bodies
        if row is not None and row[0] != PLAIN_ROW[0]:
            rows = self._rows
            if len(rows) != len(bodies):
                rows.extend([PLAIN_ROW] * (len(bodies) - len(rows)))
            rows.append(row)
        self._room -= 1
        bodies.append(body)

    async def _append_slowly(self, body: bytes, row: Row | None, durable: bool, *, report: bool = True) -> None:
        """Append a message that does not fit the gathered run, by cutting that run first."""
        check_body(body)
        check_durable(durable)
        if self._bodies:
            self._cut()
            self._room = 0
            await self._make_room(report=report)
            while self._bodies:
                # Another task was quicker.
                self._cut()
                self._room = 0
                await self._make_room(report=report)
        self._durable = durable
        self._size = len(body) + (len(row[1]) + len(row[2]) + len(row[3]) if row is not None else 0)
        self._append(body, row)

    def _check(self) -> None:
        if self._block.failure is not None:
            failure = self._block.failure
            raise outcome_of(failure, "not_done") if isinstance(failure, MeshqError) else failure
        state = self._life.state
        if state in CLOSED:
            raise ClosedError(f"{self._block.name} is closed")
        if state == "new":
            check_in_trio("connect")
            raise UsageError(f"{self._block.name} is not open: use it in 'async with'")
        self._session.facts.check()

    async def _make_room(self, *, report: bool = True) -> None:
        """Return when at least one message may be appended in this very step; failures are raised if ``report``."""
        self._check()
        small = self._context.failpoint("client.small_runs")
        if len(self._bodies) >= limits.RUN_MESSAGES_MAX or (small and self._bodies):
            self._cut()
        await trio.lowlevel.checkpoint()
        while True:
            self._check()
            if self._failures and report:
                await self._report()
            unconfirmed = self._outbox.unsettled + len(self._bodies)
            if len(self._bodies) >= limits.RUN_MESSAGES_MAX:
                self._cut()
            elif unconfirmed < self._window and not self._outbox.queued:
                break
            else:
                # What gathers goes out: the confirms that are waited for may be its own.
                if self._bodies:
                    self._cut()
                await self._lot.park()
        self._room = min(
            1 if small else limits.CHECKPOINT_MESSAGES,
            limits.RUN_MESSAGES_MAX - len(self._bodies),
            self._window - unconfirmed,
        )
        if not self._pace.armed:
            self._pace.begin()
            self._context.flusher.arm(self)

    def _cut(self) -> None:
        """Cut the gathered messages into a run and queue the run."""
        bodies = self._bodies
        rows = self._rows
        envelopes = None
        if rows:
            rows.extend([PLAIN_ROW] * (len(bodies) - len(rows)))
            envelopes = cast("list[Envelope]", rows)
        run = OutgoingRun(
            encode_run(bodies, envelopes), self._durable, self._context.now_ms(), self, plain=envelopes is None
        )
        run.start = self._cut_count
        self._cut_count += run.count
        self._bodies = []
        self._rows = []
        self._size = 0
        self._session.send_queue.submit(self._outbox, run)
        self._session.stream.wake()

    def flush_now(self) -> None:
        """Send the gathered messages now."""
        if self._bodies:
            self._cut()
            self._room = 0

    def flush_idle(self) -> bool:
        """Send the gathered messages if their number no longer grows; return whether to call again in the next turn."""
        count = len(self._bodies)
        if self._pace.due(count):
            self._cut()
        elif count or self._pace.fresh:
            return True
        self._pace.end()
        self._room = 0
        return False

    # -- what becomes of it

    async def flush(self) -> None:
        """Send the gathered messages, and return when every message taken so far is confirmed.

        Checkpoint: always.
        Cancellation: what was taken goes on its way.
        Raises:
            MeshqError: messages failed; ``results`` says which.
        """
        self._check()
        await trio.lowlevel.checkpoint()
        await self._settled()

    async def _settled(self) -> None:
        if self._bodies:
            self._cut()
        while self._outbox.unsettled:
            await self._lot.park()
        if self._failures:
            await self._report()

    async def _report(self) -> None:
        """Wait until no message is in flight, then raise the error of the failed messages."""
        if self._bodies:
            self._cut()
        while self._outbox.unsettled:
            await self._lot.park()
        failures, self._failures = self._failures, []
        if not failures:
            return
        first = min(start for start, _, _ in failures)
        results: list[MeshqError | None] = [None] * (self._cut_count - first)
        for start, count, error in failures:
            results[start - first : start - first + count] = [error] * count
        raise combined(results)

    def run_settled(self, run: OutgoingRun, error: MeshqError | None) -> None:
        """Take the outcome of a run: confirmed, or failed with ``error``."""
        if error is not None:
            self._failures.append((run.start, run.count, error))
            self._room = 0
        self._tell(run.count, error)
        self._lot.unpark_all()

    def run_sent(self) -> None:
        """Note that a run has left the send queue."""
        self._lot.unpark_all()

    def producer_opened(self) -> None:
        """Note that the broker has opened the producer's channel."""
        self._life.on("open")
        self._opened.succeed()

    def producer_failed(self, error: MeshqError) -> None:
        """Fail the producer for good."""
        self._opened.fail(copied_error(error))
        self._room = 0
        if not isinstance(error, ClosedError):
            self._block.fail(error)
        if self._block.failure is not None or self._outbox.failed is not None:
            self._life.on("fail")
        self._tell(0, error)
        self._lot.unpark_all()
