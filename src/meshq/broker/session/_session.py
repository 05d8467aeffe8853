"""A session at the broker: the producers, consumers and calls of one client, across its connections.

Frames come in, calls on the core go out; nothing here waits.  A session without a link goes on numbering and keeping
its frames, and sends them when its client resumes the session.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from meshq import limits
from meshq.broker.access._access import Rights
from meshq.broker.core._core import Core
from meshq.broker.management._management import answer_call, flat
from meshq.broker.management._subscriptions import queue_to_consume
from meshq.broker.queue._browser import Browser
from meshq.broker.queue._consumer_state import ConsumerState, Dispatch
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.session._answers import Answers
from meshq.broker.session._body_blocks import BodyBlocks
from meshq.broker.session._deliveries import delivery
from meshq.broker.session._outgoing_bound import OutgoingBound
from meshq.broker.session._peering import Peering
from meshq.broker.session._session_producers import SessionProducers
from meshq.broker.session._session_transactions import SessionTransactions
from meshq.broker.work._long_operations import LongOperation, Steps
from meshq.errors import (
    ClosedError,
    DuplicateError,
    JournalBrokenError,
    MeshqError,
    NotActiveError,
    RemoteProtocolError,
    TransactionRolledBackError,
)
from meshq.notifications import ConsumerClosed, ConsumerCreated, Notification
from meshq.selector import parse_filter
from meshq.wire import (
    BY_NAME,
    FLAG_RETURN,
    FLAG_TRANSACTED,
    FLAG_UNCOUNTED,
    Answer,
    Call,
    Consume,
    ConsumerLost,
    Frame,
    FrameType,
    IncomingStream,
    Leave,
    Link,
    OutgoingStream,
    decline,
    decode_ranges,
    header_of,
    refusal_of,
    violation,
)

T = TypeVar("T")


def nobody() -> None:
    """The default of a callback: do nothing."""


class ServerSession:
    """One session.  ``key`` is the secret with which its client can resume it."""

    def __init__(self, core: Core, number: int, key: bytes, label: str, window_bytes: int) -> None:
        self.core = core
        self.number = number
        self.key = key
        self.label = label
        #: Role and user of whoever it belongs to; nobody else resumes it.
        self.owner: tuple[str, str] = ("client", "")
        #: What it may do; None: everything.
        self.rights: Rights | None = None
        self.incoming: IncomingStream = IncomingStream()
        self.outgoing: OutgoingStream = OutgoingStream()
        self.link: Link | None = None
        self.ended: bool = False
        #: Whether every frame can be sent again; False on a lossless link, and without a confirmation window.
        self.resumable: bool = window_bytes > 0
        self._keeps = self.resumable
        #: Called when another connection takes the session over.
        self.on_taken: Callable[[], None] = nobody
        self.granted_bytes = 0
        self.sent_bytes = 0
        self.outgoing_bound: OutgoingBound = OutgoingBound(core, self.outgoing, window_bytes)
        # What is heard before that is said, if nothing else is: the client stops at its own window, which may be small.
        self._report_bytes = max(window_bytes, limits.CONFIRMATION_WINDOW_BYTES_MIN) // 4
        #: What only another node's session has.
        self.peering: Peering | None = None
        #: Its temporary queues.
        self.owned: dict[Queue, None] = {}
        self.producers: SessionProducers = SessionProducers(self)
        self.body_blocks: BodyBlocks = BodyBlocks(self)
        self.transactions: SessionTransactions = SessionTransactions(self)
        self._consumers: dict[int, ConsumerState] = {}
        # Channels whose consumers were lost, the oldest first.  What the client had sent before it heard of that may
        # come late, by way of a resume even after it has heard.
        self._lost: dict[int, None] = {}
        self._last_channel = 0
        # Ids of calls that wait for their answer.
        self._calls: dict[int, None] = {}
        self._answers = Answers()
        # New credit is to be said at the end of the turn.
        self._credit_changed = False
        self._willing = True
        self._handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.SEND: self.producers.send,
            FrameType.SETTLE: self._settle,
            FrameType.PRODUCE: self.producers.open,
            FrameType.CONSUME: self._consume,
            FrameType.LEAVE: self._leave,
            FrameType.CALL: self._call,
            **self.body_blocks.handlers,
            FrameType.TRANSACT: self.transactions.transact,
        }

    def welcome_peer(self) -> None:
        """The session is another node's."""
        if self.peering is None:
            self.peering = Peering(self)
            self._handlers.update(self.peering.handlers)

    @property
    def peer(self) -> str:
        """The address of the client; empty without a link."""
        return self.link.peer if self.link is not None else "nowhere"

    def __repr__(self) -> str:
        return f"<Session {self.number} {self.label!r} at {self.peer} producers={len(self.producers.channels)} " + (
            f"consumers={len(self._consumers)}>"
        )

    def handle(self, frame: Frame) -> None:
        """Handle one frame of the attached session.

        Raises:
            RemoteProtocolError: the client broke the protocol; the session must be ended.
        """
        self.incoming.accept(frame)
        if frame.received:
            self.arrived(frame.received)
        handler = self._handlers.get(frame.type)
        if handler is not None:
            handler(frame)
            if self.resumable and self.incoming.unreported_bytes > self._report_bytes:
                # Whatever else is said will report it; if nothing is, RECEIVED does.
                self.core.pending.schedule_flush(self)

    def arrived(self, received: int) -> None:
        """The client has received everything up to ``received``."""
        self.outgoing.arrived(received)
        self.drained()

    def drained(self) -> None:
        """Serve consumers again if few enough frames are on their way."""
        if not self._willing and self.outgoing_bound.left:
            self._set_willing(self.link is not None)

    def check_credit(self, ahead_bytes: int = 0) -> None:
        """Check that a run was within the credit, behind ``ahead_bytes`` of runs that are not taken in yet."""
        if self.sent_bytes + ahead_bytes >= self.granted_bytes:
            raise violation("no_credit", f"{self.granted_bytes} bytes were granted")

    def begin_call(self, frame: Frame) -> None:
        """Note the id of a call; no other call may have it before the answer."""
        if not frame.first:
            raise violation("bad_header", f"{frame.type.name} has no call id")
        if frame.first in self._calls:
            raise violation("bad_number", f"call {frame.first} is not answered yet")
        self._answers.check(self.outgoing.reported)
        if len(self._calls) >= limits.CALLS_MAX:
            raise violation("too_many", f"{limits.CALLS_MAX} calls wait for their answers")
        self._calls[frame.first] = None

    def _settle(self, frame: Frame) -> None:
        if frame.first:
            self.begin_call(frame)
        consumer = self.consumer_of(frame)
        if consumer is None:
            entry = BY_NAME["stale_delivery"]
            self._answer(frame.first, {}, code=entry.number, text=entry.sentence)
            return
        ranges = decode_ranges(frame.table)
        if consumer.browser is not None:
            consumer.browser.settled(ranges)
        elif not frame.flags:
            self.core.acknowledger.settle(consumer, ranges)
        elif frame.flags & FLAG_TRANSACTED:
            self.transactions.settle(consumer, ranges, frame.stamp)
        elif frame.flags & FLAG_RETURN:
            delay_ms = frame.stamp - 1 if frame.stamp else None
            self.core.redelivery.give_back(consumer, ranges, delay_ms, counted=not frame.flags & FLAG_UNCOUNTED)
        else:
            self.core.redelivery.reject(consumer, ranges)
        self.core.pending.schedule_dispatch(consumer.queue)
        if frame.first:
            self._answer_when_durable(frame.first, {})

    def consumer_of(self, frame: Frame) -> ConsumerState | None:
        """The consumer that a frame is about; None if it was lost, which the client may not have heard yet."""
        consumer = self._consumers.get(frame.channel)
        if consumer is None and frame.channel not in self._lost:
            raise violation("bad_channel", f"there is no consumer on channel {frame.channel}")
        return consumer

    def _consume(self, frame: Frame) -> None:
        header = header_of(frame, Consume)
        self.begin_call(frame)
        self.open_channel(frame)
        if not header.window or not header.window_bytes or header.rank >= limits.CONSUMER_PRIORITIES:
            raise violation("bad_header", "a consumer's window is empty, or its priority is none")

        def consume() -> dict[str, Any]:
            self.check_channels()
            # The filter of a subscription is its queue's.
            filter = parse_filter(header.filter) if header.filter and not header.subscription else None
            queue = queue_to_consume(self, header)
            priority = header.rank - limits.CONSUMER_PRIORITIES // 2
            if filter is not None and not header.browse:
                queue.check_filter(filter, priority)
            consumer = ConsumerState(queue, self, frame.channel, header.window, header.window_bytes)
            consumer.willing = self._willing
            consumer.unacked_memory = self.core.memory.unacked
            if header.browse:
                consumer.browser = Browser(consumer, filter)
            else:
                consumer.filter, consumer.priority, consumer.exclusive = filter, priority, header.exclusive
                queue.add_consumer(consumer)
                self.core.pending.schedule_dispatch(queue)
                self.core.router.demand.changed(queue)
            self._consumers[frame.channel] = consumer
            self._tell(ConsumerCreated, consumer, filter=filter.text if filter is not None else "")
            return {"queue": queue.name, "address": queue.address}

        self.answering(frame, consume)
        if header.browse:
            # Behind the answer: it may end at once.
            self.core.release_queue.when_all_is_durable(
                lambda: self.core.begin_browse(self._consumers.get(frame.channel))
            )

    def open_channel(self, frame: Frame) -> None:
        """Take note of a channel, which is used once."""
        if frame.channel <= self._last_channel:
            raise violation("bad_channel", f"channel {frame.channel} is not above {self._last_channel}")
        self._last_channel = frame.channel

    def check_channels(self) -> None:
        """Check that a further producer or consumer is allowed.

        Raises:
            RefusedError: the session has the maximum.
        """
        if len(self.producers.channels) + len(self._consumers) >= limits.CHANNELS_MAX:
            raise decline("too_many", f"a session has at most {limits.CHANNELS_MAX} producers and consumers")

    def _leave(self, frame: Frame) -> None:
        header = header_of(frame, Leave)
        self.begin_call(frame)
        consumer = self._consumers.pop(frame.channel, None)
        if consumer is not None:
            self._drop_consumer(consumer, header.handed)
        elif (
            not self.producers.close(frame.channel)
            and not self.body_blocks.leave(frame.channel)
            and frame.channel not in self._lost
        ):
            raise violation("bad_channel", f"channel {frame.channel} is not open")
        self._answer(frame.first, {})

    def _call(self, frame: Frame) -> None:
        call = header_of(frame, Call)
        self.begin_call(frame)
        if call.operation == "flush":
            self._answer_when_durable(frame.first, {})
            return
        if call.operation in self.transactions.operations:
            self.answering(frame, lambda: self.transactions.operate(call.operation, call.named))
            return
        self.answering(frame, lambda: answer_call(self.core, call.operation, call.named, self))

    # -- out

    def answering(self, frame: Frame, work: Callable[[], dict[str, Any] | Steps]) -> None:
        """Answer a frame with the result of ``work``, or of its last step, once its records are durable; or with its
        error."""
        values = self._try(frame, work)
        if values is None:
            return
        if isinstance(values, dict):
            self._answer_when_durable(frame.first, values)
        else:
            call = frame.first
            self.core.operations.schedule(
                LongOperation(values, partial(self._answer_when_durable, call), partial(self._decline_operation, call))
            )

    def answer_now(self, frame: Frame, work: Callable[[], dict[str, Any]]) -> None:
        """Answer a frame at once with the result of ``work``, which has written nothing, or with its error."""
        values = self._try(frame, work)
        if values is not None:
            self._answer(frame.first, values)

    def _try(self, frame: Frame, work: Callable[[], T]) -> T | None:
        try:
            if self.core.closing is not None:
                raise NotActiveError(self.core.closing)
            return work()
        except RemoteProtocolError:
            raise
        except (DuplicateError, TransactionRolledBackError) as error:
            # Whoever hears of it takes the first ones for stored, or the transaction for rolled back by somebody: that
            # may still wait for its sync.
            self.core.release_queue.when_all_is_durable(partial(self.decline_call, frame.first, error))
            return None
        except MeshqError as error:
            self.decline_call(frame.first, error)
            return None

    def _decline_operation(self, call: int, error: MeshqError) -> None:
        if isinstance(error, (NotActiveError, JournalBrokenError, ClosedError)):
            # Nothing more becomes durable here.
            self.decline_call(call, error)
        else:
            self.core.release_queue.when_all_is_durable(partial(self.decline_call, call, error))

    def decline_call(self, call: int, error: MeshqError) -> None:
        """Answer a call with why it is not done."""
        refusal = refusal_of(error)
        # What the error alone would say of the outcome is not sent.
        values = {} if error.outcome == refusal.error.default_outcome else {"outcome": error.outcome}
        self._answer(call, values, code=refusal.number, text=str(error)[:1024])

    def _answer_when_durable(self, call: int, values: dict[str, Any]) -> None:
        self.core.release_queue.when_all_is_durable(lambda: self._answer(call, values))

    def _answer(self, call: int, values: dict[str, Any], *, code: int = 0, text: str = "") -> None:
        if self._calls.pop(call, False) is None:
            pairs = tuple(item for pair in flat(values).items() for item in pair)
            header = Answer(code=code, text=text, values=pairs)
            self._say_answer(Frame(FrameType.ANSWER, first=call, header=header.encode()))

    def answer_call(self, call: int) -> None:
        """Answer a call with nothing but that it is done."""
        self._answer(call, {})

    def answer_piece(self, call: int, data: bytes) -> None:
        """Answer a call with the bytes that it has asked for."""
        if self._calls.pop(call, False) is None:
            self._say_answer(Frame(FrameType.PIECE, first=call, body=data))

    def _say_answer(self, frame: Frame) -> None:
        self.say_later(frame)
        if self.resumable:
            self._answers.add(frame)

    def deliver(self, consumer: ConsumerState, dispatch: Dispatch) -> None:
        """Send a dispatch to the client."""
        self.put(delivery(consumer, dispatch))
        self.core.pending.schedule_delivery(self)
        link = self.link
        if link is not None and link.lossless:
            # It has arrived.
            return
        if self._willing and self.outgoing_bound.reached:
            self._set_willing(False)

    def _set_willing(self, willing: bool) -> None:
        self._willing = willing
        for consumer in self._consumers.values():
            consumer.set_willing(willing)
            if willing:
                self.core.pending.schedule_dispatch(consumer.queue)

    def credit_changed(self) -> None:
        """Tell the client of its credit at the end of the pass."""
        self._credit_changed = True
        self.core.pending.schedule_flush(self)

    def flush(self) -> None:
        """Send confirms, credit and all waiting frames."""
        if self.ended:
            return
        if self.peering is not None:
            self.peering.flush()
        if self.producers.confirms:
            self.producers.flush(self.peering.channels if self.peering is not None else {})
        if self._credit_changed:
            self._credit_changed = False
            self.put(Frame(FrameType.CREDIT, first=self.granted_bytes))
        link = self.link
        if link is not None:
            if self.resumable and self.incoming.unreported_bytes > self._report_bytes:
                self._send_out(link, Frame(FrameType.RECEIVED))
            link.flush()

    def say_later(self, frame: Frame) -> None:
        """Number a frame, and flush the session at the end of the pass."""
        self.put(frame)
        self.core.pending.schedule_flush(self)

    def put(self, frame: Frame) -> None:
        """Number a frame and give it to the link; the caller sees to it that the session is flushed."""
        link = self.link
        if link is not None and link.lossless:
            self.outgoing.number(frame, keep=False)
            link.send(frame)
        else:
            self.outgoing.number(frame, keep=self.resumable)
            if link is not None:
                self._send_out(link, frame)

    def _send_out(self, link: Link, frame: Frame) -> None:
        if not link.lossless:
            # Where nothing can be lost, nobody waits to hear of it.
            frame.received = self.incoming.last
            self.incoming.unreported_bytes = 0
        link.send(frame)

    # -- life

    def attach(self, link: Link, received: int) -> None:
        """Attach the session to a link, and send again the frames after ``received``, which the client has not."""
        again = list(self.outgoing.resume(received))
        self.link = self.outgoing_bound.link = link
        self.resumable = not link.lossless and self._keeps
        for frame in again:
            self._send_out(link, frame)
        self._set_willing(not self.outgoing_bound.reached)
        self.core.pending.schedule_flush(self)

    def detach(self) -> None:
        """Detach the session from its link; it waits for its client."""
        self.link = self.outgoing_bound.link = None
        self._set_willing(False)

    def end(self) -> None:
        """End the session; unacked messages return to their queues."""
        if self.ended:
            return
        self.ended = True
        self.link = self.outgoing_bound.link = None
        if self.peering is not None:
            self.peering.end()
        self.body_blocks.end()
        for consumer in self._consumers.values():
            self._drop_consumer(consumer, None)
        self._consumers.clear()
        self.producers.end()
        self.transactions.end()
        for queue in list(self.owned):
            self.core.pending.schedule_dispatch(queue)
        self.core.memory.close(self)

    def lose_queue(self, name: str, error: MeshqError) -> None:
        """End the consumers of a deleted queue."""
        for consumer in list(self._consumers.values()):
            if consumer.queue.name == name:
                self.lose_consumer(consumer, refusal_of(error).number, str(error)[:1024])

    def lose_consumer(self, consumer: ConsumerState, code: int, text: str) -> None:
        """End a consumer and tell its client why; code 0: a browse has shown everything."""
        channel = consumer.number
        del self._consumers[channel]
        self._drop_consumer(consumer, None)
        header = ConsumerLost(code=code, text=text)
        self.say_later(Frame(FrameType.CONSUMER_LOST, channel=channel, header=header.encode()))
        self._lost[channel] = None
        if len(self._lost) > limits.CHANNELS_MAX:
            del self._lost[next(iter(self._lost))]

    def _drop_consumer(self, consumer: ConsumerState, handed: int | None) -> None:
        if consumer.browser is not None:
            consumer.browser.end()
        else:
            self.core.redelivery.abandon(consumer, handed)
            consumer.queue.remove_consumer(consumer)
            self.core.router.demand.changed(consumer.queue)
        self.core.pending.schedule_dispatch(consumer.queue)
        self._tell(ConsumerClosed, consumer)

    def _tell(self, kind: type[Notification], consumer: ConsumerState, **more: Any) -> None:
        queue = consumer.queue
        self.core.settings.event_bus.emit(
            kind,
            address=queue.address,
            queue=queue.name,
            session=self.number,
            user=self.owner[1],
            browse=consumer.browser is not None,
            consumers=len(queue.consumers),
            **more,
        )
