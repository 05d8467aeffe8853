"""A session at the client: what it has open, whatever connection carries it at the moment.

Frames come in, frames go out; nothing here waits, and nothing here connects.  A session without a link numbers
nothing: what it is given waits in its lines, and goes out when the session is resumed or made anew.

Order on the link: acknowledgements that were gathered go before any other numbered frame, so that whatever an
application does after an acknowledgement also comes after it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from meshq import limits
from meshq.client._calls import AnyCall, Call, InnerCall, LeaveCall, Opening, Values, opening
from meshq.client._inbox import Inbox
from meshq.client._outbox import Outbox, Run, outcome_of
from meshq.client._settings import ClientSettings
from meshq.client._waiting import fresh
from meshq.errors import ClosedError, MeshqError, RemoteProtocolError
from meshq.wire import (
    BY_NUMBER,
    FLAG_DURABLE,
    FLAG_RESENT,
    Answer,
    Attach,
    Attached,
    Close,
    ConsumerLost,
    Frame,
    FrameType,
    Incoming,
    Leave,
    Link,
    Outgoing,
    Produce,
    Refuse,
    RunBytes,
    error_of,
    header_of,
    violation,
)
from meshq.wire import Call as WireCall

#: Refusals of a node that is going away: what it refused so was fine, and goes to the next one.
_GOING = ("not_active", "stopping")


def nothing() -> None:
    """For a callback that nobody has set."""


class Session:
    """One session.  ``now`` is the monotonic clock."""

    def __init__(self, settings: ClientSettings, now: Callable[[], float]) -> None:
        self.settings = settings
        self.now = now
        self.link: Link | None = None
        self.outgoing = Outgoing()
        self.incoming = Incoming()
        #: Rises each time the session is made anew; deliveries of an older one are stale.
        self.epoch = 0
        self.number = 0
        self.key = b""
        self.node_id = b""
        #: The TTL that the node granted, seconds.
        self.ttl = settings.connection_ttl
        #: Everything of the session so far can be sent again; not so after a link that keeps nothing.
        self.resumable = False
        #: Why nothing works here any more.
        self.failure: MeshqError | None = None
        #: Bytes of SEND frames: sent, and granted, both in this session in all.
        self.sent_bytes = 0
        self.granted_bytes = 0
        #: Runs that wait for credit, for the confirmation window or for a link; in the order given.
        self.backlog: deque[tuple[Outbox, Run]] = deque()
        #: Open producers and consumers, in the order in which they were opened.
        self.outboxes: dict[Outbox, None] = {}
        self.inboxes: dict[Inbox, None] = {}
        #: Consumers with acknowledgements that were not sent yet.
        self.settling: dict[Inbox, None] = {}
        #: What has a timeout.
        self.timed: dict[Call | Opening | Run, None] = {}
        #: When the link was got or lost.
        self.changed_at = self.heard_at = self.flushed_at = 0.0
        #: Wakes the task that sends what was gathered.
        self.wake: Callable[[], None] = nothing
        #: Tells the timer of an earlier deadline.
        self.look_at: Callable[[float], None] = _ignore
        #: The peer says good-bye, or breaks the protocol.
        self.on_close: Callable[[Close], None] = _ignore
        self.on_violation: Callable[[RemoteProtocolError], None] = _ignore
        self._channel = 0
        self._call = 0
        self._by_channel: dict[int, Outbox | Inbox] = {}
        self._calls: dict[int, AnyCall] = {}
        self._unsent: deque[AnyCall] = deque()
        self._handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.DELIVER: self._deliver,
            FrameType.CONFIRM: self._confirm,
            FrameType.REFUSE: self._refuse,
            FrameType.ANSWER: self._answer,
            FrameType.CREDIT: self._credit,
            FrameType.CONSUMER_LOST: self._consumer_lost,
            FrameType.PING: self._ping,
            FrameType.PONG: _ignore,
            FrameType.RECEIVED: _ignore,
            FrameType.CLOSE: self._close,
        }

    def __repr__(self) -> str:
        where = self.link.peer if self.link is not None else "nowhere"
        return f"<Session {self.number} epoch={self.epoch} at {where} backlog={len(self.backlog)}>"

    def check(self) -> None:
        """Raise unless the session is of use."""
        if self.failure is not None:
            raise fresh(self.failure)

    # -- out

    @property
    def may_send(self) -> bool:
        """Whether a run may go out now."""
        return (
            self.link is not None
            and self.sent_bytes < self.granted_bytes
            and self.outgoing.kept_bytes <= self.settings.confirmation_window
        )

    def submit(self, outbox: Outbox, run: Run) -> None:
        """Send a run, now or in its turn."""
        if outbox.failed is not None:
            outbox.unsettled += run.count
            outbox.settle(run, fresh(outbox.failed))
            return
        outbox.unsettled += run.count
        if outbox.ready and not self.backlog and self.may_send:
            self._send_run(outbox, run)
            return
        outbox.queued += run.count
        run.since = self.now()
        if outbox.ready:
            self.backlog.append((outbox, run))
        else:
            outbox.held.append(run)

    def mark(self, outbox: Outbox) -> Run:
        """A run without messages at the end of an outbox's line: settled when everything before it was sent."""
        run = Run(RunBytes(0, b"", 0, b""), False, 0)
        if outbox.ready:
            self.backlog.append((outbox, run))
        else:
            outbox.held.append(run)
        return run

    def _send_run(self, outbox: Outbox, run: Run) -> None:
        resent = run.sent
        if not run.first:
            run.first = outbox.next
            outbox.next += run.count
        run.sent = True
        run.again = False
        run.since = self.now()
        content = run.content
        frame = Frame(
            FrameType.SEND,
            flags=(FLAG_DURABLE if run.durable else 0) | (FLAG_RESENT if resent else 0),
            channel=outbox.channel,
            first=run.first,
            stamp=run.stamp,
            count=run.count,
            table=content.table,
            body=content.body,
        )
        self.sent_bytes += frame.size_bytes
        outbox.sent.append(run)
        self._out(frame)

    def pump(self) -> None:
        """Send what waits, as far as it may go."""
        backlog = self.backlog
        while backlog and self.may_send:
            outbox, run = backlog.popleft()
            outbox.queued -= run.count
            if not run.count:
                run.succeed()
                continue
            if run.given_up:
                outbox.unsettled -= run.count
                self._left(outbox)
                continue
            self._send_run(outbox, run)
            if run.owner is not None:
                run.owner.run_sent()
        unsent = self._unsent
        while unsent and self.link is not None and len(self._calls) < limits.CALLS_MAX:
            self._send_call(unsent.popleft())

    def call(self, call: AnyCall) -> None:
        """Send a call, now or when there is a connection."""
        if isinstance(call, Call):
            call.since = self.now()
        self._unsent.append(call)
        self.pump()

    def _send_call(self, call: AnyCall) -> None:
        if call.done:
            return
        self._call += 1
        frame = call.frame(self._call)
        if isinstance(call, Call):
            call.since = self.now()
        self._calls[self._call] = call
        self._out(frame)

    def _out(self, frame: Frame) -> None:
        link = self.link
        assert link is not None
        if self.settling:
            self.send_settles()
        self.outgoing.number(frame, keep=not link.lossless)
        self._put(link, frame)

    def _put(self, link: Link, frame: Frame) -> None:
        frame.received = self.incoming.last
        self.incoming.unreported_bytes = 0
        link.send(frame)

    def send_settles(self) -> None:
        """Send the acknowledgements that were gathered."""
        if self.link is None or not self.settling:
            return
        settling, self.settling = self.settling, {}
        for inbox in settling:
            for frame in inbox.take_settles():
                self._out(frame)

    def settle_call(self, inbox: Inbox) -> Call:
        """Ask to be told when what ``inbox`` has settled is stored."""

        def make(number: int) -> Frame:
            self.settling.pop(inbox, None)
            frames = inbox.take_settles()
            for frame in frames[:-1]:
                self._out(frame)
            if not frames:
                # It went with an earlier call: all that remains is to be told.
                return Frame(FrameType.CALL, first=number, header=WireCall(operation="flush").encode())
            frames[-1].first = number
            return frames[-1]

        call = Call("an acknowledgement", make, epoch=self.epoch)
        self.call(call)
        return call

    def flush(self) -> None:
        """Hand what was sent to the network; always the last thing that a caller does."""
        link = self.link
        if link is not None:
            self.flushed_at = self.now()
            link.flush()

    # -- producers and consumers

    def open_outbox(self, outbox: Outbox) -> None:
        """A producer begins."""
        self.outboxes[outbox] = None
        if self.link is not None:
            self._produce(outbox)

    def open_inbox(self, inbox: Inbox) -> None:
        """A consumer begins."""
        self.inboxes[inbox] = None
        if self.link is not None:
            self._consume(inbox)

    def close_outbox(self, outbox: Outbox) -> None:
        """A producer gives nothing more; it leaves when all is settled."""
        outbox.closing = True
        self._left(outbox)

    def _left(self, outbox: Outbox) -> None:
        if outbox.closing and not outbox.unsettled and outbox in self.outboxes:
            del self.outboxes[outbox]
            if outbox.channel and outbox.failed is None:
                self._leave(outbox.channel, 0)

    def close_inbox(self, inbox: Inbox) -> Call | None:
        """A consumer ends; returns the call to wait for, None if there is nothing to wait for."""
        if inbox not in self.inboxes:
            return None
        del self.inboxes[inbox]
        channel = inbox.channel
        call = None
        if channel and inbox.failed is None:
            call = self._leave(channel, inbox.handed)
        inbox.end()
        return call

    def _leave(self, channel: int, handed: int) -> Call:
        def left() -> None:
            self._by_channel.pop(channel, None)

        call = LeaveCall(channel, Leave(handed=handed).encode(), self.epoch, left)
        self.call(call)
        return call

    def _produce(self, outbox: Outbox) -> None:
        self._channel += 1
        outbox.channel = channel = self._channel
        self._by_channel[channel] = outbox

        def produced(values: Values, error: MeshqError | None) -> None:
            if error is not None:
                self._drop(outbox, error)
                return
            number = values.get("number", 0)
            same_node = outbox.node_id in (b"", self.node_id)
            outbox.node_id = self.node_id
            outbox.ready = True
            again = outbox.reopened(number, same_node=same_node, resend=self.settings.resend)
            held, outbox.held = outbox.held, deque()
            for run in again:
                outbox.queued += run.count
            # What was sent before goes first, and before what others have in line.
            self.backlog.extendleft((outbox, run) for run in reversed(again))
            self.backlog.extend((outbox, run) for run in held)
            outbox.on_ready()
            self._left(outbox)

        header = Produce(producer=outbox.producer, address=outbox.address).encode()
        self.call(InnerCall(opening(FrameType.PRODUCE, channel, header), produced))

    def _drop(self, outbox: Outbox, error: MeshqError) -> None:
        outbox.failed = error
        self.outboxes.pop(outbox, None)
        outbox.fail_all(error)
        outbox.on_failed(error)

    def _consume(self, inbox: Inbox) -> None:
        self._channel += 1
        channel = self._channel
        self._by_channel[channel] = inbox
        inbox.opened(channel, self.epoch)

        def consumed(values: Values, error: MeshqError | None) -> None:
            if error is not None:
                self.inboxes.pop(inbox, None)
                inbox.fail(error)
            else:
                inbox.consumed(values)

        self.call(InnerCall(opening(FrameType.CONSUME, channel, inbox.header), consumed))

    # -- in

    def handle(self, frames: list[Frame]) -> None:
        """A batch of frames has arrived."""
        link = self.link
        if link is None:
            return
        self.heard_at = self.now()
        try:
            for frame in frames:
                self.incoming.accept(frame)
                if frame.received:
                    self.outgoing.arrived(frame.received)
                handler = self._handlers.get(frame.type)
                if handler is None:
                    raise violation("illegal_frame", f"{frame.type.name} from the server of an attached session")
                handler(frame)
                if self.link is not link:
                    return
        except RemoteProtocolError as error:
            self.on_violation(error)
            return
        self.pump()
        if self.link is not link:
            return
        if self.incoming.unreported_bytes > self.settings.confirmation_window // 4:
            self._put(link, Frame(FrameType.RECEIVED))
        if link.lossless:
            # The other side is in the middle of handing this over: answer it in a turn of our own.
            self.wake()
        else:
            self.flush()

    def _find(self, frame: Frame, kind: type[Any]) -> Any:
        found = self._by_channel.get(frame.channel)
        if not isinstance(found, kind):
            raise violation("bad_channel", f"{frame.type.name} for channel {frame.channel}")
        return found

    def _deliver(self, frame: Frame) -> None:
        inbox: Inbox = self._find(frame, Inbox)
        inbox.deliver(frame)

    def _confirm(self, frame: Frame) -> None:
        outbox: Outbox = self._find(frame, Outbox)
        if frame.first >= outbox.next:
            raise violation("bad_number", f"message {frame.first} is confirmed, {outbox.next - 1} were sent")
        outbox.confirmed(frame.first)
        if outbox.closing:
            self._left(outbox)

    def _refuse(self, frame: Frame) -> None:
        outbox: Outbox = self._find(frame, Outbox)
        header = header_of(frame, Refuse)
        run = outbox.take_refused(frame.first, header.messages)
        if run is None:
            raise violation("bad_number", f"{header.messages} messages from {frame.first} on are refused, but not sent")
        entry = BY_NUMBER.get(header.code)
        if entry is not None and entry.name in _GOING:
            # It goes on in the next session, under its number.
            run.again = True
            outbox.sent.appendleft(run)
        else:
            outbox.settle(run, error_of(header.code, header.text))
        if outbox.closing:
            self._left(outbox)

    def _answer(self, frame: Frame) -> None:
        call = self._calls.pop(frame.first, None)
        if call is None:
            raise violation("bad_number", f"an answer to call {frame.first}, which does not wait")
        header = header_of(frame, Answer)
        error = error_of(header.code, header.text) if header.code else None
        call.answered(header.named, error)

    def _credit(self, frame: Frame) -> None:
        if frame.first > self.granted_bytes:
            self.granted_bytes = frame.first

    def _consumer_lost(self, frame: Frame) -> None:
        inbox: Inbox = self._find(frame, Inbox)
        header = header_of(frame, ConsumerLost)
        self.inboxes.pop(inbox, None)
        self.settling.pop(inbox, None)
        inbox.fail(error_of(header.code, header.text))

    def _ping(self, frame: Frame) -> None:
        link = self.link
        if link is not None:
            self._put(link, Frame(FrameType.PONG))

    def ping(self) -> None:
        """Say that we are there."""
        link = self.link
        if link is not None:
            self._put(link, Frame(FrameType.PING))
            self.flush()

    def _close(self, frame: Frame) -> None:
        self.on_close(header_of(frame, Close))

    # -- life

    def request(self, node_id: bytes) -> Attach:
        """What to ask a node for: the session that we have there, or a new one."""
        resumes = self.resumable and node_id == self.node_id
        return Attach(
            session=self.number if resumes else 0,
            key=self.key if resumes else b"",
            received=self.incoming.last if resumes else 0,
            ttl_ms=self.settings.ttl_ms,
            window_bytes=self.settings.confirmation_window,
        )

    def attach(self, link: Link, attached: Attached, node_id: bytes) -> None:
        """There is a connection, and on it this session, resumed, or another one.

        Raises:
            RemoteProtocolError: the node claims to resume what it can't.
        """
        if attached.resumed and not (self.resumable and attached.session == self.number):
            raise violation("bad_header", "a session was resumed that was not asked for")
        self.changed_at = self.heard_at = self.now()
        self.ttl = min(self.settings.connection_ttl, attached.ttl_ms / 1000)
        if attached.resumed:
            again = self.outgoing.resume(attached.received)
            self.link = link
            for frame in again:
                self._put(link, frame)
            self._resubmit()
        else:
            self.link = link
            self.number, self.key, self.node_id = attached.session, attached.key, node_id
            self._renew()
        self.resumable = not link.lossless
        self.pump()
        self.send_settles()
        self.wake()
        self.look_at(self.changed_at)

    def _resubmit(self) -> None:
        for outbox in self.outboxes:
            again = [run for run in outbox.sent if run.again]
            for run in again:
                outbox.sent.remove(run)
                outbox.queued += run.count
            self.backlog.extendleft((outbox, run) for run in reversed(again))

    def _renew(self) -> None:
        """Both streams begin at 1; channels, credit and consumers are gone."""
        self.epoch += 1
        self.outgoing, self.incoming = Outgoing(), Incoming()
        self.sent_bytes = self.granted_bytes = 0
        self._channel = 0
        self._by_channel.clear()
        self.settling.clear()
        calls = [*self._calls.values(), *self._unsent]
        self._calls.clear()
        self._unsent.clear()
        for call in calls:
            if call.renewed(self.epoch):
                self._unsent.append(call)
        backlog, self.backlog = self.backlog, deque()
        for outbox in self.outboxes:
            outbox.renew()
        for outbox, run in backlog:
            # Those that were sent once are still without a session: they are judged when the channel is open.
            if run.sent:
                outbox.queued -= run.count
                outbox.sent.append(run)
            else:
                outbox.held.append(run)
        for outbox in list(self.outboxes):
            self._produce(outbox)
        for inbox in list(self.inboxes):
            self._consume(inbox)

    def detach(self) -> None:
        """The connection is gone; the session waits for another one."""
        if self.link is not None:
            self.link = None
            self.changed_at = self.now()
            self.look_at(self.changed_at)

    def fail(self, error: MeshqError) -> None:
        """Nothing works here any more; whatever waits is told."""
        if self.failure is not None:
            return
        self.failure = error
        self.link = None
        calls = [*self._calls.values(), *self._unsent]
        self._calls.clear()
        self._unsent.clear()
        for call in calls:
            if isinstance(call, Call):
                call.fail(outcome_of(error, "unknown" if call.sent else "not_done"))
        backlog, self.backlog = self.backlog, deque()
        for outbox, run in backlog:
            outbox.held.append(run)
        for outbox in list(self.outboxes):
            outbox.fail_all(error)
            if not isinstance(error, ClosedError):
                outbox.on_failed(error)
        for inbox in list(self.inboxes):
            inbox.fail(error)
        self.outboxes.clear()
        self.inboxes.clear()
        self.settling.clear()

    # -- time

    def due(self, now: float) -> float:
        """End what has waited too long; returns when to look again."""
        attached = self.link is not None
        settings = self.settings
        timeout = settings.call_timeout if attached else settings.call_failover_timeout
        soonest = math.inf
        for waiter in list(self.timed):
            if waiter.done or (attached and not waiter.sent):
                # What is decided waits for its task; what waits for credit waits overload out.
                continue
            deadline = max(waiter.since, self.changed_at) + timeout
            if deadline <= now:
                waiter.expired()
            else:
                soonest = min(soonest, deadline)
        return soonest


def _ignore(_: Any) -> None:
    """For a callback that nobody has set, and for frames that say only that somebody is there."""
