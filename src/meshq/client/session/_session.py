"""The client's side of a session, which outlives its connections.

Frames come in, frames go out; nothing here waits, and nothing here connects.  A session without a link numbers
nothing: what it is given waits in its lines, and goes out when the session is resumed or made anew.

Order on the link: acknowledgements that were gathered go before any other numbered frame, so that whatever an
application does after an acknowledgement also comes after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshq import limits
from meshq.client.calls._calls import Call, InnerCall, LeaveCall, OpenCompletion, Values, opening
from meshq.client.calls._completion import Completion, Wakeup
from meshq.client.calls._link_failures import LinkFailures
from meshq.client.calls._pending_calls import PendingCalls
from meshq.client.calls._slots import Slots
from meshq.client.incoming._body_reads import BodyReads
from meshq.client.incoming._inbox import Inbox
from meshq.client.outgoing._outbox import Outbox, OutgoingRun, outcome_of
from meshq.client.outgoing._send_queue import SendQueue
from meshq.client.session._link_channel import LinkChannel
from meshq.client.session._transaction_table import TransactionTable
from meshq.client.settings._settings import ClientSettings
from meshq.errors import MeshqError, NotActiveError, RemoteProtocolError
from meshq.wire import (
    Attach,
    Attached,
    Close,
    ConsumerLost,
    Frame,
    FrameType,
    IncomingStream,
    Leave,
    Link,
    OutgoingStream,
    error_of,
    header_of,
    violation,
)
from meshq.wire import Call as WireCall

#: Refusals of a node that is going away: what it refused so was fine, and goes to the next one.
_GOING = ("not_active", "stopping")


def nothing() -> None:
    """The default of a callback: do nothing."""


class ClientSession:
    """The client's side of one session.  ``now`` is the monotonic clock."""

    def __init__(self, settings: ClientSettings, now: Callable[[], float]) -> None:
        self.settings = settings
        #: The channel of a link between nodes.
        self.link_channel: LinkChannel | None = None
        self.now = now
        self.link: Link | None = None
        self.outgoing, self.incoming = OutgoingStream(), IncomingStream()
        #: Rises each time the session is made anew; deliveries of an older one are stale.
        self.epoch = 0
        self.number, self.key, self.node_id = 0, b"", b""
        #: The TTL that the node granted, seconds.
        self.ttl = settings.connection_ttl
        #: Whether sent frames are kept for a resume: not on a lossless link, nor without a window.
        self.resumable = False
        #: Why the session has failed.
        self.failure: MeshqError | None = None
        self.link_failures = LinkFailures()
        self.pending_calls = PendingCalls(self)
        self.send_queue = SendQueue(self)
        self.body_reads = BodyReads(self)
        #: Slots for the large bodies that the broker takes from a session at a time.
        self.upload_slots = Slots(limits.UPLOADS_MAX)
        #: Completions of waits until the session is made anew, or has failed.
        self.renewals: list[Completion] = []
        #: Open consumers, in the order in which they were opened.
        self.inboxes: dict[Inbox, None] = {}
        self.transactions = TransactionTable()
        #: Consumers with acknowledgements that were not sent yet.
        self.settling: dict[Inbox, None] = {}
        #: Waits that have a timeout.
        self.timed: dict[Call | OpenCompletion | OutgoingRun, None] = {}
        #: Wakeups with their deadlines.
        self.wakeups: dict[Wakeup, float] = {}
        #: When the link was attached or lost; when bytes were last received; when bytes were last sent.
        self.changed_at = self.heard_at = self.flushed_at = 0.0
        #: Wakes the task that sends what was gathered.
        self.wake: Callable[[], None] = nothing
        #: Tells the timer of an earlier deadline.
        self.look_at: Callable[[float], None] = _ignore
        #: Called when the peer closes the session, or violates the protocol.
        self.on_close: Callable[[Close], None] = _ignore
        self.on_violation: Callable[[RemoteProtocolError], None] = _ignore
        # Whether a frame was queued on the link since the last flush.
        self._unflushed = False
        self._channel = 0
        self._by_channel: dict[int, Outbox | Inbox | LinkChannel] = {}
        self._handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.DELIVER: self._deliver,
            FrameType.CONFIRM: self._confirm,
            FrameType.REFUSE: self._refuse,
            FrameType.ANSWER: self.pending_calls.answer,
            FrameType.CREDIT: self._credit,
            FrameType.PIECE: self.pending_calls.piece,
            FrameType.CONSUMER_LOST: self._consumer_lost,
            FrameType.BINDING: self._binding,
            FrameType.SNAPSHOT: self._snapshot,
            FrameType.PING: self._ping,
            FrameType.PONG: _ignore,
            FrameType.RECEIVED: _ignore,
            FrameType.CLOSE: self._close,
        }

    def __repr__(self) -> str:
        where = self.link.peer if self.link is not None else "nowhere"
        return f"<Session {self.number} epoch={self.epoch} at {where} backlog={len(self.send_queue.backlog)}>"

    @property
    def _report_bytes(self) -> int:
        """The received bytes after which the other side is told, because it keeps a bounded number of frames."""
        return min(self.settings.window_bytes // 4, limits.REPORT_BYTES_MAX)

    def check(self) -> None:
        """Raise if the session has failed, with the outcome not_done."""
        if self.failure is not None:
            raise outcome_of(self.failure, "not_done")

    # -- out

    def submit(self, outbox: Outbox, run: OutgoingRun) -> None:
        """Send a run, now or after the runs before it."""
        self.send_queue.submit(outbox, run)

    def pump(self) -> None:
        """Send the waiting runs as far as credit and window allow."""
        if self.send_queue.backlog:
            self.send_queue.pump()
        if self.pending_calls.unsent:
            self.pending_calls.pump()
        if self.link_channel is not None:
            self.link_channel.pump()

    def out(self, frame: Frame) -> None:
        """Number a frame and queue it on the link."""
        link = self.link
        assert link is not None
        if self.settling:
            self.send_settles()
        self.outgoing.number(frame, keep=self.resumable)
        self._put(link, frame)

    def _put(self, link: Link, frame: Frame) -> None:
        if not link.lossless:
            # A lossless link needs no report of received frames.
            frame.received = self.incoming.last
            self.incoming.unreported_bytes = 0
        self._unflushed = True
        link.send(frame)

    def gathered(self, inbox: Inbox) -> None:
        """Send the gathered acknowledgements of an inbox at the end of this loop turn.

        In process it is sent at once if nothing is left that could join it: another task's turn would cost more.
        """
        self.settling[inbox] = None
        link = self.link
        if link is not None and link.lossless and inbox.done:
            self.send_settles()
            self.flush()
        else:
            self.wake()

    def send_settles(self) -> None:
        """Send the acknowledgements that were gathered."""
        if self.link is None or not self.settling:
            return
        settling, self.settling = self.settling, {}
        for inbox in settling:
            for frame in inbox.take_settles():
                self.out(frame)

    def settle_call(self, inbox: Inbox) -> Call:
        """Make a call that is answered when the acknowledgements of ``inbox`` are stored."""

        def make(number: int) -> Frame:
            self.settling.pop(inbox, None)
            frames = inbox.take_settles()
            for frame in frames[:-1]:
                self.out(frame)
            if not frames:
                # It went with an earlier call: all that remains is to be told.
                return Frame(FrameType.CALL, first=number, header=WireCall(operation="flush").encode())
            frames[-1].first = number
            return frames[-1]

        call = Call("an acknowledgement", make, epoch=self.epoch)
        self.pending_calls.add(call)
        return call

    def flush(self) -> None:
        """Pass the numbered frames to the network; always the last step of a caller."""
        link = self.link
        if link is not None and self._unflushed:
            self._unflushed = False
            if not link.lossless:
                self.flushed_at = self.now()
            link.flush()

    # -- channels

    def new_channel(self, owner: Outbox | Inbox | LinkChannel | None) -> int:
        """Make a channel of this session; a channel without an owner receives no frames."""
        self._channel += 1
        if owner is not None:
            self._by_channel[self._channel] = owner
        return self._channel

    def leave(self, channel: int, handed: int) -> Call:
        """Close a channel, on which frames may still arrive until the answer."""

        def left() -> None:
            self._by_channel.pop(channel, None)

        call = LeaveCall(channel, Leave(handed=handed).encode(), self.epoch, left)
        self.pending_calls.add(call)
        return call

    def open_inbox(self, inbox: Inbox) -> None:
        """Open a consumer."""
        self.inboxes[inbox] = None
        inbox.body_reads = self.body_reads
        if self.link is not None:
            self._consume(inbox)

    def close_inbox(self, inbox: Inbox) -> Call | None:
        """Close a consumer; return the call to wait for, or None."""
        call = None
        inbox.closing = True
        if inbox.ready:
            call = self.leave(inbox.channel, inbox.reached)
        if inbox.ready or not inbox.channel:
            self.inboxes.pop(inbox, None)
        # Else it is being opened; the answer to that comes back here.
        inbox.end()
        return call

    def _consume(self, inbox: Inbox) -> None:
        channel = self.new_channel(inbox)
        inbox.begin(channel, self.epoch)

        def consumed(values: Values, error: MeshqError | None) -> None:
            if isinstance(error, NotActiveError) and not inbox.closing:
                # The node is going away: the next session asks again.
                inbox.begin(0, self.epoch)
            elif error is not None:
                self.inboxes.pop(inbox, None)
                inbox.fail(error)
            else:
                inbox.opened()
                if inbox.closing:
                    self.close_inbox(inbox)

        self.pending_calls.add(InnerCall(opening(FrameType.CONSUME, channel, inbox.header), consumed))

    # -- in

    def handle(self, frames: list[Frame]) -> None:
        """Handle a batch of received frames."""
        link = self.link
        if link is None:
            return
        incoming, handlers = self.incoming, self._handlers
        try:
            for frame in frames:
                incoming.accept(frame)
                if frame.received:
                    self.outgoing.arrived(frame.received)
                handler = handlers.get(frame.type)
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
        if link.lossless:
            # The other side is in the middle of handing this over: answer it in a turn of our own.
            if self._unflushed:
                self.wake()
            return
        if self.resumable and incoming.unreported_bytes > self._report_bytes:
            self._put(link, Frame(FrameType.RECEIVED))
        self.flush()

    def _find(self, frame: Frame, kind: type[Any]) -> Any:
        found = self._by_channel.get(frame.channel)
        if not isinstance(found, kind):
            raise violation("bad_channel", f"{frame.type.name} for channel {frame.channel}")
        return found

    def _deliver(self, frame: Frame) -> None:
        inbox: Inbox = self._find(frame, Inbox)
        inbox.deliver(frame)

    def _binding(self, frame: Frame) -> None:
        line: LinkChannel = self._find(frame, LinkChannel)
        line.binding(frame)

    def _snapshot(self, frame: Frame) -> None:
        line: LinkChannel = self._find(frame, LinkChannel)
        line.snapshot(frame)

    def _confirm(self, frame: Frame) -> None:
        if self.link_channel is not None and frame.channel == self.link_channel.channel:
            self.link_channel.confirm(frame)
            return
        self.send_queue.confirm(self._find(frame, Outbox), frame)

    def _refuse(self, frame: Frame) -> None:
        self.send_queue.refuse(self._find(frame, Outbox), frame)

    def _credit(self, frame: Frame) -> None:
        if frame.channel:
            outbox = self._by_channel.get(frame.channel)
            if isinstance(outbox, Outbox):
                self.send_queue.set_producer_credit(outbox, frame.first)
            # Else it has left meanwhile.
        else:
            self.send_queue.credit(frame.first)

    def _consumer_lost(self, frame: Frame) -> None:
        inbox: Inbox = self._find(frame, Inbox)
        header = header_of(frame, ConsumerLost)
        self.inboxes.pop(inbox, None)
        self.settling.pop(inbox, None)
        if not header.code and inbox.browse:
            inbox.end_browse()
            return
        inbox.fail(error_of(header.code, header.text))

    def _ping(self, frame: Frame) -> None:
        link = self.link
        if link is not None:
            self._put(link, Frame(FrameType.PONG))

    def ping(self) -> None:
        """Send a PING."""
        link = self.link
        if link is not None:
            self._put(link, Frame(FrameType.PING))
            self.flush()

    def _close(self, frame: Frame) -> None:
        self.on_close(header_of(frame, Close))

    # -- life

    def request(self, node_id: bytes) -> Attach:
        """Make the ATTACH request: for the session that this client has at the node, or for a new session."""
        resumes = self.resumable and node_id == self.node_id
        return Attach(
            session=self.number if resumes else 0,
            key=self.key if resumes else b"",
            received=self.incoming.last if resumes else 0,
            ttl_ms=self.settings.ttl_ms,
            window_bytes=self.settings.window_bytes,
        )

    def attach(self, link: Link, attached: Attached, node_id: bytes) -> None:
        """Attach a link: the session is resumed on it, or made anew.

        Raises:
            RemoteProtocolError: the node claims to resume what it can't.
        """
        if attached.resumed and not (self.resumable and attached.session == self.number):
            raise violation("bad_header", "a session was resumed that was not asked for")
        self.resumable = not link.lossless and self.settings.window_bytes > 0
        self.changed_at = self.heard_at = self.now()
        self.link_failures.attached()
        self.ttl = min(self.settings.connection_ttl, attached.ttl_ms / 1000)
        if attached.resumed:
            again = self.outgoing.resume(attached.received)
            self.link = link
            for frame in again:
                self._put(link, frame)
            self.send_queue.resume()
            for inbox in list(self.inboxes):
                if not inbox.channel:
                    self._consume(inbox)
        else:
            self.link = link
            self.number, self.key, self.node_id = attached.session, attached.key, node_id
            self._renew()
        self.pump()
        self.send_settles()
        self.wake()
        self.look_at(self.changed_at)

    def _renew(self) -> None:
        """Make the session anew: both streams begin at 1; channels, credit and consumers are gone."""
        self.epoch += 1
        self.outgoing, self.incoming = OutgoingStream(), IncomingStream()
        self._channel = 0
        self._by_channel.clear()
        self.settling.clear()
        self.transactions.renew()
        # Calls that were not sent go before producers and consumers: one may create what another one uses.
        self.pending_calls.renew(self.epoch, self.link_failures)
        self.send_queue.renew()
        self.body_reads.renew()
        self._end_renewals(None)
        if self.link_channel is not None:
            self.link_channel.renew()
        for inbox in list(self.inboxes):
            if inbox.closing:
                del self.inboxes[inbox]
            elif inbox.temporary:
                del self.inboxes[inbox]
                inbox.fail(self.link_failures.cut_off("its temporary queue is gone with its session"))
            elif inbox.browse and inbox.ready:
                # From its beginning it would show again what was seen.
                del self.inboxes[inbox]
                inbox.fail(self.link_failures.cut_off("the browse is gone with its session: begin another one"))
            else:
                self._consume(inbox)

    def detach(self) -> None:
        """Detach the lost link; the session waits for another one."""
        if self.link is not None:
            self.link = None
            self.changed_at = self.now()
            self.look_at(self.changed_at)

    def abandon(self) -> None:
        """Give up the resume of the session while it has no link, and drop the frames kept for that."""
        if self.link is None:
            self.resumable = False
            self.outgoing = OutgoingStream()

    def fail(self, error: MeshqError) -> None:
        """Fail the session: all waiting calls and runs get the error."""
        if self.failure is not None:
            return
        self.failure = error
        self.link = None
        self.pending_calls.fail(error)
        self.send_queue.fail(error)
        self.body_reads.fail(error)
        self.upload_slots.fail(error)
        self._end_renewals(error)
        inboxes, self.inboxes = self.inboxes, {}
        for inbox in inboxes:
            inbox.fail(error)
        self.settling.clear()

    def _end_renewals(self, error: MeshqError | None) -> None:
        renewals, self.renewals = self.renewals, []
        for waiter in renewals:
            if error is None:
                waiter.succeed()
            else:
                waiter.fail(outcome_of(error, "not_done"))


def _ignore(_: Any) -> None:
    """The default of a callback, and the handler of frames without content: do nothing."""
