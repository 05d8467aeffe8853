"""The send queue of a session: the order in which runs are sent, their credit, and the node's answers.

A run waits for its producer's channel, then for its turn, for credit, and for the confirmation window.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from meshq.client.calls._calls import InnerCall, Values, opening
from meshq.client.calls._channels import Channels
from meshq.client.calls._deadlines import WaitDeadlines
from meshq.client.calls._frame_stream import FrameStream
from meshq.client.calls._link_failures import LinkFailures, body_lost, outcome_of
from meshq.client.calls._pending_calls import PendingCalls
from meshq.client.calls._session_facts import SessionFacts
from meshq.client.outgoing._outbox import Outbox, OutgoingRun
from meshq.client.outgoing._outbox_life import READY
from meshq.client.settings._settings import ClientSettings
from meshq.errors import MeshqError, NotActiveError, invariant
from meshq.wire import (
    BY_NUMBER,
    COUNTER_MAX,
    FLAG_DURABLE,
    FLAG_LARGE,
    FLAG_RESENT,
    Frame,
    FrameType,
    Produce,
    Refuse,
    RunBytes,
    Send,
    error_of,
    header_of,
    violation,
)

#: Cancelled runs may stay in the queue, but not many more than there are others.
_VOID_SLACK: Final = 64
#: Refusals of a node that is going away: what it refused so was fine, and goes to the next one.
_GOING = ("not_active", "stopping")


class SendQueue:
    """The outboxes of a session, and the queue of runs that wait for credit, window or link.

    ``now`` is the monotonic clock.
    """

    __slots__ = (
        "_calls",
        "_channels",
        "_confirmation_window",
        "_deadlines",
        "_facts",
        "_link_failures",
        "_now",
        "_resend",
        "_stream",
        "_void",
        "_void_max",
        "backlog",
        "granted_bytes",
        "outboxes",
        "refused_at",
        "sent_bytes",
    )

    def __init__(
        self,
        stream: FrameStream,
        calls: PendingCalls,
        channels: Channels,
        deadlines: WaitDeadlines,
        facts: SessionFacts,
        *,
        link_failures: LinkFailures,
        settings: ClientSettings,
        now: Callable[[], float],
    ) -> None:
        self._stream = stream
        self._calls = calls
        self._channels = channels
        self._deadlines = deadlines
        self._facts = facts
        self._link_failures = link_failures
        self._now = now
        self._confirmation_window = settings.confirmation_window
        self._resend = settings.resend
        #: Bytes of SEND frames: sent, and granted, both in this session in all.
        self.sent_bytes: int = 0
        self.granted_bytes: int = 0
        #: When the node said that its disk has no room for what waits; inf: as far as is known it has.
        self.refused_at: float = math.inf
        #: Runs that wait for credit, for the confirmation window or for a link; in the order given.
        self.backlog: deque[tuple[Outbox, OutgoingRun]] = deque()
        #: Open producers, in the order in which they were opened.
        self.outboxes: dict[Outbox, None] = {}
        # Cancelled runs since the last clean-up of the queues, and the number that starts the next one.
        self._void = 0
        self._void_max = _VOID_SLACK

    # -- runs

    @property
    def open(self) -> bool:
        """Whether a run may go out now."""
        link = self._stream.link
        return (
            link is not None
            and self.sent_bytes < self.granted_bytes
            and (link.lossless or self._stream.outgoing.kept_bytes <= self._confirmation_window)
        )

    def submit(self, outbox: Outbox, run: OutgoingRun) -> None:
        """Send a run, now or after the runs before it."""
        outbox.unsettled += run.count
        if outbox.failed is not None:
            outbox.settle(run, outcome_of(outbox.failed, "not_done"))
        elif self._facts.failure is not None:
            outbox.settle(run, outcome_of(self._facts.failure, "not_done"))
        elif not self.backlog and outbox.sent_on_channel < outbox.credit_until and self.open:
            self._send(outbox, run)
        else:
            outbox.queued += run.count
            run.since = self._now()
            self._enqueue(outbox, run)

    def _enqueue(self, outbox: Outbox, run: OutgoingRun) -> None:
        state = outbox.life.state
        invariant(state != "left", "what has left sends nothing")
        ready = state in READY
        if ready:
            run.on("queue")
        if (
            ready
            and not self.backlog
            and (outbox.awaiting_credit or outbox.sent_on_channel >= outbox.credit_until)
            and outbox.wait_for_credit(run)
        ):
            # Its address is full: in the queue the run would block the runs behind it.
            return
        if ready:
            self.backlog.append((outbox, run))
        else:
            outbox.awaiting_channel.append(run)

    def add_barrier(self, outbox: Outbox) -> OutgoingRun:
        """Queue a run without messages, which is settled when all runs of the outbox before it are sent."""
        run = OutgoingRun(RunBytes(0, b"", 0, b""), False, 0)
        run.since = self._now()
        self._enqueue(outbox, run)
        return run

    def pump(self) -> None:
        """Send the waiting runs as far as credit and window allow."""
        backlog = self.backlog
        while backlog and self.open:
            outbox, run = backlog.popleft()
            if (outbox.awaiting_credit or outbox.sent_on_channel >= outbox.credit_until) and outbox.wait_for_credit(
                run
            ):
                # Its address is full: the run waits outside the queue and blocks no other.
                continue
            outbox.queued -= run.count
            if not run.count:
                run.succeed()
            elif run.given_up:
                outbox.unsettled -= run.count
                self._leave_if_done(outbox)
            else:
                run.since = self._now()
                self._send(outbox, run)
                if run.owner is not None:
                    run.owner.run_sent()

    # -- waits for runs

    async def wait(self, run: OutgoingRun) -> None:
        """Wait until a run is settled.

        Checkpoint: always.  Cancellation: a run that was not sent is given up.
        """
        self.start_timeout((run,))
        try:
            await run.wait_done()
        except BaseException:
            run.on("give up")
            raise
        finally:
            self.stop_timeout((run,))

    async def drain(self) -> None:
        """Wait until every run that is queued now is sent.

        Checkpoint: when runs are queued.  Cancellation: they go on their way.
        Raises:
            CallTimeoutError: it took too long.
            MeshqError: the session has failed.
        """
        barriers = [self.add_barrier(outbox) for outbox in list(self.outboxes) if outbox.queued]
        for barrier in barriers:
            await self.wait(barrier)
            barrier.result()

    def start_timeout(self, runs: Sequence[OutgoingRun]) -> None:
        """Start the timeout of the runs that a task waits for."""
        waiting = [run for run in runs if not run.done]
        if not waiting:
            return
        now = self._now()
        for run in waiting:
            # A queued run has begun to wait before.
            run.since = run.since or now
        self._deadlines.timed.update(dict.fromkeys(waiting))
        self._deadlines.look_at_timeout(waiting[0].since)

    def stop_timeout(self, runs: Iterable[OutgoingRun]) -> None:
        """Forget the waits for these runs, and drop cancelled runs once there are too many of them."""
        timed = self._deadlines.timed
        for run in runs:
            timed.pop(run, None)
            self._void += run.given_up
        if self._void <= self._void_max:
            return
        lines = [
            (outbox, line) for outbox in self.outboxes for line in (outbox.awaiting_credit, outbox.awaiting_channel)
        ]
        pairs = [*self.backlog, *((outbox, run) for outbox, line in lines for run in line)]
        for outbox, run in pairs:
            if run.given_up:
                outbox.queued -= run.count
                outbox.unsettled -= run.count
        waiting = [pair for pair in self.backlog if not pair[1].given_up]
        self.backlog.clear()
        self.backlog.extend(waiting)
        for _, line in lines:
            kept = [run for run in line if not run.given_up]
            line.clear()
            line.extend(kept)
        self._void, self._void_max = 0, _VOID_SLACK + sum(not run.given_up for _, run in pairs)
        for outbox in list(self.outboxes):
            self._leave_if_done(outbox)

    def _send(self, outbox: Outbox, run: OutgoingRun) -> None:
        resent = run.first != 0
        header = b""
        flags = FLAG_DURABLE if run.durable else 0
        if resent:
            flags |= FLAG_RESENT
        if run.upload is not None:
            channel, epoch = run.upload
            if not resent and epoch != self._facts.epoch:
                outbox.settle(run, body_lost(self._link_failures))
                return
            # Sent again, it asks only whether it was stored.
            header = Send(upload=0 if resent else channel).encode()
            flags |= FLAG_LARGE
        if not run.first:
            run.first = outbox.next
            outbox.next += run.count
        outbox.sent_on_channel += run.count
        # As the table says for "send" in every state that gets here.
        run.state = "sent"
        content = run.content
        stream = self._stream
        link = stream.link
        lossless = link is not None and link.lossless
        frame = Frame(
            FrameType.SEND,
            flags=flags,
            channel=outbox.channel,
            first=run.first,
            stamp=run.stamp,
            header=header,
            count=run.count,
            table=content.table,
            body=content.body,
            on_stored=partial(self._stored, outbox, run) if lossless else None,
            plain=content if lossless and run.plain else None,
        )
        self.sent_bytes += frame.size_bytes
        outbox.sent.append(run)
        stream.out(frame)

    # -- producers

    def add(self, outbox: Outbox) -> None:
        """Open a producer."""
        self.outboxes[outbox] = None
        if self._stream.link is not None:
            self._produce(outbox)

    def close(self, outbox: Outbox) -> None:
        """Close a producer, which leaves when all its runs are settled."""
        outbox.life.on("close")
        self._leave_if_done(outbox)

    def _leave_if_done(self, outbox: Outbox) -> None:
        state = outbox.life.state
        # While it is being opened it stays: the answer to that comes back here.
        if outbox.unsettled or state not in ("closing", "waiting, closing"):
            return
        self.outboxes.pop(outbox, None)
        outbox.left()
        if state == "closing":
            self._channels.leave(outbox.channel, 0)

    def _produce(self, outbox: Outbox) -> None:
        channel = self._channels.new(outbox)
        outbox.ask(channel)

        def produced(values: Values, error: MeshqError | None) -> None:
            if isinstance(error, NotActiveError):
                # The node is going away: the next session asks again.
                outbox.renew()
            elif error is not None:
                self._drop(outbox, error)
            else:
                outbox.remembered = values.get("remembered")
                self._produced(outbox, int(values.get("number", 0)), int(values.get("until", COUNTER_MAX)))

        header = Produce(
            producer=outbox.producer, address=outbox.address, window=outbox.window, routing=outbox.routing
        ).encode()
        self._calls.add(InnerCall(opening(FrameType.PRODUCE, channel, header), produced))

    def _produced(self, outbox: Outbox, number: int, credit_until: int) -> None:
        node_id = self._facts.node_id
        same_node = outbox.node_id in (b"", node_id)
        outbox.node_id = node_id
        outbox.opened(credit_until)
        again = outbox.reopened(number, self._link_failures, same_node=same_node, resend=self._resend)
        awaiting_channel, outbox.awaiting_channel = outbox.awaiting_channel, deque()
        outbox.queued += sum(run.count for run in again)
        for run in (*again, *awaiting_channel):
            run.on("queue")
        # Runs that were sent before go first, before the queued runs of other producers.
        self.backlog.extendleft((outbox, run) for run in reversed(again))
        self.backlog.extend((outbox, run) for run in awaiting_channel)
        outbox.events.producer_opened()
        self._leave_if_done(outbox)

    def _drop(self, outbox: Outbox, error: MeshqError) -> None:
        outbox.failed = error
        self.outboxes.pop(outbox, None)
        outbox.fail(error)

    # -- what the node says

    def confirm(self, outbox: Outbox, frame: Frame) -> None:
        """Settle the runs up to the number that the node has stored.

        Raises:
            RemoteProtocolError: more than was sent.
        """
        if frame.first >= outbox.next:
            raise violation("bad_number", f"message {frame.first} is confirmed, {outbox.next - 1} were sent")
        outbox.confirmed(frame.first)
        if outbox.life.state in ("closing", "waiting, closing"):
            self._leave_if_done(outbox)

    def _stored(self, outbox: Outbox, run: OutgoingRun) -> None:
        """Settle a run that a broker in this process has stored; called in the broker's own turn."""
        if not outbox.take_stored(run):
            return
        outbox.settle(run)
        if outbox.life.state in ("closing", "waiting, closing"):
            self._leave_if_done(outbox)
            self._stream.wake()

    def refuse(self, outbox: Outbox, frame: Frame) -> None:
        """Settle a refused run, or send it again if the node is stopping.

        Raises:
            RemoteProtocolError: it was not sent.
        """
        header = header_of(frame, Refuse)
        run = outbox.take_refused(frame.first, header.messages)
        if run is None:
            raise violation("bad_number", f"{header.messages} messages from {frame.first} on are refused, but not sent")
        entry = BY_NUMBER.get(header.code)
        if entry is not None and entry.name in _GOING:
            run.on("refuse")
            outbox.keep(run)
        else:
            outbox.settle(run, error_of(header.code, header.text))
        if outbox.life.state in ("closing", "waiting, closing"):
            self._leave_if_done(outbox)

    def credit(self, granted: int) -> None:
        """Raise the session's credit; credit that does not rise says that the node's disk is full."""
        if granted > self.granted_bytes:
            self.granted_bytes, self.refused_at = granted, math.inf
        elif self.refused_at == math.inf:
            self.refused_at = self._now()
            self._deadlines.look_at(self.refused_at)

    def set_producer_credit(self, outbox: Outbox, credit_until: int) -> None:
        """Set the credit of a producer: the total number of messages that it may send."""
        outbox.set_credit(credit_until)
        awaiting_credit, outbox.awaiting_credit = outbox.awaiting_credit, deque()
        # These runs have waited longer than the queued ones.
        self.backlog.extendleft((outbox, run) for run in reversed(awaiting_credit))

    # -- life

    def resume(self) -> None:
        """Handle a resumed session: send runs again that a stopping node refused, and open new producers."""
        for outbox in self.outboxes:
            again = [run for run in outbox.sent if run.state == "refused"]
            for run in again:
                outbox.sent.remove(run)
                outbox.queued += run.count
                run.on("queue")
            self.backlog.extendleft((outbox, run) for run in reversed(again))
        for outbox in list(self.outboxes):
            if not outbox.channel:
                self._produce(outbox)

    def renew(self) -> None:
        """Handle a new session: channels and credit are gone, and every run waits for its channel."""
        self.sent_bytes = self.granted_bytes = 0
        self.refused_at = math.inf
        backlog, self.backlog = self.backlog, deque()
        for outbox in self.outboxes:
            outbox.renew()
        for outbox, run in backlog:
            outbox.hold(run)
        for outbox in list(self.outboxes):
            self._leave_if_done(outbox)
            if outbox in self.outboxes:
                self._produce(outbox)

    def fail(self, error: MeshqError) -> None:
        """Fail all runs: nothing is sent or confirmed any more."""
        backlog, self.backlog = self.backlog, deque()
        for outbox, run in backlog:
            outbox.awaiting_channel.append(run)
        outboxes, self.outboxes = self.outboxes, {}
        for outbox in outboxes:
            outbox.fail(error)
