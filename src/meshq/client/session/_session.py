"""The client's side of a session, which outlives its links.

Frames come in, frames go out; nothing here waits, and nothing here connects.  What the session is made of stands in
its parts: the stream of its frames, its channels and calls, the runs that it sends and the consumers that it has open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from meshq import limits
from meshq.abc import ToldNode
from meshq.client.calls._calls import Call, OpenCompletion
from meshq.client.calls._channels import Channels
from meshq.client.calls._deadlines import WaitDeadlines
from meshq.client.calls._frame_stream import FrameStream
from meshq.client.calls._link_failures import LinkFailures, outcome_of
from meshq.client.calls._pending_calls import PendingCalls
from meshq.client.calls._session_facts import SessionFacts
from meshq.client.calls._slots import Slots
from meshq.client.incoming._body_reads import BodyReads
from meshq.client.incoming._inbox import Inbox
from meshq.client.outgoing._outbox import Outbox
from meshq.client.outgoing._send_queue import SendQueue
from meshq.client.session._cluster_link_channel import ClusterLinkChannel, PeerEvents
from meshq.client.session._open_consumers import OpenConsumers
from meshq.client.session._told_nodes_machine import ToldNodes
from meshq.client.session._transaction_table import TransactionTable
from meshq.client.settings._settings import ClientSettings
from meshq.concurrency import Completion, Wakeup
from meshq.errors import MeshqError, RefusedError, RemoteProtocolError
from meshq.wire import Attach, Attached, Close, Frame, FrameType, Link, Welcome, header_of, violation
from meshq.wire import Call as WireCall


class LinkOwner(Protocol):
    """The owner of the link that a session is attached to."""

    def peer_closed(self, close: Close) -> None:
        """Note that the peer closes the session."""

    def peer_violated(self, error: MeshqError) -> None:
        """Note that the peer violates the protocol, or that the client refuses the node."""


class ClientSession:
    """The client's side of one session.  ``now`` is the monotonic clock.

    ``peer``: the owner of a link between nodes, if the session is one's.  ``told``: called when the node has told who
    is in its cluster, with what was known before.
    """

    def __init__(
        self,
        settings: ClientSettings,
        now: Callable[[], float],
        *,
        peer: PeerEvents | None = None,
        told: Callable[[Sequence[ToldNode]], None] | None = None,
    ) -> None:
        self.settings = settings
        self.now = now
        #: The TTL that the node granted, seconds.
        self.ttl: float = settings.connection_ttl
        self.facts: SessionFacts = SessionFacts()
        self.link_failures: LinkFailures = LinkFailures()
        #: Wakes the task that sends what was gathered.
        self.wakeup: Wakeup = Wakeup()
        self.stream: FrameStream = FrameStream(now, self.wakeup, settings.window_bytes)
        self.deadlines: WaitDeadlines = WaitDeadlines(settings, self.link_failures)
        self.pending_calls: PendingCalls = PendingCalls(self.stream, now)
        self.channels: Channels = Channels(self.pending_calls, self.facts)
        self.send_queue: SendQueue = SendQueue(
            self.stream,
            self.pending_calls,
            self.channels,
            self.deadlines,
            self.facts,
            link_failures=self.link_failures,
            settings=settings,
            now=now,
        )
        self.body_reads: BodyReads = BodyReads(self.pending_calls)
        #: Slots for the large bodies that the broker takes from a session at a time.
        self.upload_slots: Slots = Slots(limits.UPLOADS_MAX)
        self.consumers: OpenConsumers = OpenConsumers(
            self.stream, self.pending_calls, self.channels, self.facts, self.link_failures
        )
        self.transactions: TransactionTable = TransactionTable()
        #: The channel of a link between nodes; None: this is a client of a program.
        self.cluster_link_channel: ClusterLinkChannel | None = None
        if peer is not None:
            self.cluster_link_channel = self._make_link_channel(peer)
        #: What the node of a program's client says of its cluster.
        self.told: ToldNodes = ToldNodes()
        # Completions of waits until the session is made anew, or has failed.
        self._renewals: list[Completion] = []
        # The owner of the link, while there is one.
        self._link_owner: LinkOwner | None = None
        self._handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.DELIVER: self.consumers.deliver,
            FrameType.CONFIRM: self._confirm,
            FrameType.REFUSE: self._refuse,
            FrameType.ANSWER: self.pending_calls.answer,
            FrameType.CREDIT: self._credit,
            FrameType.PIECE: self.pending_calls.piece,
            FrameType.CONSUMER_LOST: self.consumers.lost,
            FrameType.BINDING: self._binding,
            FrameType.SNAPSHOT: self._snapshot,
            FrameType.NODE: partial(self._node, told),
            FrameType.ADDRESS_CREDIT: self._address_credit,
            FrameType.BRANCH: self._branch,
            FrameType.PING: self._ping,
            FrameType.PONG: _ignore,
            FrameType.RECEIVED: _ignore,
            FrameType.CLOSE: self._close,
        }

    def _make_link_channel(self, events: PeerEvents) -> ClusterLinkChannel:
        return ClusterLinkChannel(
            self.stream,
            self.pending_calls,
            self.channels,
            self.facts,
            deadlines=self.deadlines,
            credit=self.send_queue,
            events=events,
        )

    def __repr__(self) -> str:
        link = self.stream.link
        where = link.peer if link is not None else "nowhere"
        facts = self.facts
        return f"<Session {facts.number} epoch={facts.epoch} at {where} backlog={len(self.send_queue.backlog)}>"

    # -- out

    def pump(self) -> None:
        """Send the waiting runs as far as credit and window allow."""
        if self.send_queue.backlog:
            self.send_queue.pump()
        if self.pending_calls.unsent:
            self.pending_calls.pump()
        if self.cluster_link_channel is not None:
            self.cluster_link_channel.pump()

    async def ask(self, call: Call) -> dict[str, Any]:
        """Send a call, and wait for the answer.

        Checkpoint: always.  Cancellation: the call is withdrawn if it was not sent.
        Raises:
            MeshqError: the answer is an error, or there is none.
        """
        self.pending_calls.add(call)
        self.stream.flush()
        return await self.deadlines.wait(call)

    def settle_call(self, inbox: Inbox[Any], on_end: Callable[[], None] | None = None) -> Call:
        """Make a call that is answered when the acknowledgements of ``inbox`` are stored; ``on_end`` is called when it
        has ended."""

        def make(number: int) -> Frame:
            self.stream.settling.pop(inbox, None)
            frames = inbox.take_settles()
            for frame in frames[:-1]:
                self.stream.out(frame)
            if not frames:
                # It went with an earlier call: all that remains is to be told.
                return Frame(FrameType.CALL, first=number, header=WireCall(operation="flush").encode())
            frames[-1].first = number
            return frames[-1]

        failed = None if on_end is None else lambda _: on_end()
        return Call("an acknowledgement", make, epoch=self.facts.epoch, on_answer=on_end, on_failed=failed)

    # -- in

    def handle(self, frames: list[Frame]) -> None:
        """Handle a batch of received frames."""
        stream = self.stream
        link = stream.link
        if link is None:
            return
        incoming, handlers = stream.incoming, self._handlers
        try:
            for frame in frames:
                incoming.accept(frame)
                if frame.received:
                    stream.outgoing.arrived(frame.received)
                handler = handlers.get(frame.type)
                if handler is None:
                    raise violation("illegal_frame", f"{frame.type.name} from the server of an attached session")
                handler(frame)
                if stream.link is not link:
                    return
        except (RemoteProtocolError, RefusedError) as error:
            # Within a process this is a call of the node, which must not end because its client refuses what it says.
            self._owner.peer_violated(error)
            return
        self.pump()
        if stream.link is not link:
            return
        if not link.lossless:
            stream.report()
        elif stream.unflushed:
            # The other side is in the middle of handing this over: answer it in a turn of our own.
            stream.wake()

    @property
    def _owner(self) -> LinkOwner:
        assert self._link_owner is not None
        return self._link_owner

    def _binding(self, frame: Frame) -> None:
        self.channels.find(frame, ClusterLinkChannel).binding(frame)

    def _snapshot(self, frame: Frame) -> None:
        self.channels.find(frame, ClusterLinkChannel).snapshot(frame)

    def _address_credit(self, frame: Frame) -> None:
        answer = self.channels.find(frame, ClusterLinkChannel).credits.told(frame)
        if answer is not None:
            self.stream.out(answer)

    def _branch(self, frame: Frame) -> None:
        self.channels.find(frame, ClusterLinkChannel).credits.branch(frame)

    def _node(self, hear: Callable[[Sequence[ToldNode]], None] | None, frame: Frame) -> None:
        if frame.channel:
            self.channels.find(frame, ClusterLinkChannel).node(frame)
            return
        before = self.told.nodes
        if self.told.take(frame) and hear is not None:
            hear(before)

    def _confirm(self, frame: Frame) -> None:
        if self.cluster_link_channel is not None and frame.channel == self.cluster_link_channel.channel:
            self.cluster_link_channel.confirm(frame)
            return
        self.send_queue.confirm(self.channels.find(frame, Outbox), frame)

    def _refuse(self, frame: Frame) -> None:
        self.send_queue.refuse(self.channels.find(frame, Outbox), frame)

    def _credit(self, frame: Frame) -> None:
        if frame.channel:
            outbox = self.channels.owner(frame.channel)
            if isinstance(outbox, Outbox):
                self.send_queue.set_producer_credit(outbox, frame.first)
            # Else it has left meanwhile.
        else:
            self.send_queue.credit(frame.first)

    def _ping(self, frame: Frame) -> None:
        self.stream.say(FrameType.PONG)

    def ping(self) -> None:
        """Send a PING."""
        self.stream.say(FrameType.PING)
        self.stream.flush()
        self.stream.asked_at = self.stream.flushed_at

    def _close(self, frame: Frame) -> None:
        self._owner.peer_closed(header_of(frame, Close))

    def end_overdue(self, now: float) -> float:
        """End the waits that take too long; return the time of the next deadline."""
        attached = self.stream.link is not None
        return self.deadlines.end_overdue(now, attached=attached, full_at=self.send_queue.refused_at)

    # -- life

    def greeted(self, welcome: Welcome) -> None:
        """Do nothing: a session needs no feature of a node."""

    def wants(self, attached: Attached) -> bool:
        """Return whether the session that the node offers is the one that is wanted."""
        return attached.resumed or not self.facts.only_resumes

    def request(self, node_id: bytes) -> Attach:
        """Make the ATTACH request: for the session that this client has at the node, or for a new session.

        Raises:
            UseAnotherServerError: the client keeps to another node.
        """
        facts, stream = self.facts, self.stream
        facts.check_node(node_id)
        resumes = stream.resumable and node_id == facts.node_id
        return Attach(
            session=facts.number if resumes else 0,
            key=facts.key if resumes else b"",
            received=stream.incoming.last if resumes else 0,
            ttl_ms=self.settings.ttl_ms,
            window_bytes=self.settings.window_bytes,
            came_from=facts.came_from(node_id),
            visited=facts.visited,
        )

    def attach(self, link: Link, attached: Attached, node_id: bytes, owner: LinkOwner) -> None:
        """Attach a link: the session is resumed on it, or made anew.

        Raises:
            RemoteProtocolError: the node claims to resume what it can't.
        """
        facts = self.facts
        if attached.resumed and not (self.stream.resumable and attached.session == facts.number):
            raise violation("bad_header", "a session was resumed that was not asked for")
        self._link_owner = owner
        facts.arrived()
        self.link_failures.attached()
        self.ttl = min(self.settings.connection_ttl, attached.ttl_ms / 1000)
        self.stream.attach(link, attached)
        if attached.resumed:
            self.send_queue.resume()
            self.consumers.resume()
        else:
            facts.number, facts.key, facts.node_id = attached.session, attached.key, node_id
            self._renew()
        self.pump()
        self.stream.send_settles()
        self.stream.wake()
        self.deadlines.link_changed(self.now())

    def _renew(self) -> None:
        """Make the session anew: both streams begin at 1; channels, credit and consumers are gone."""
        self.facts.epoch += 1
        self.channels.renew()
        self.told.renew()
        self.transactions.renew()
        # Calls that were not sent go before producers and consumers: one may create what another one uses.
        self.pending_calls.renew(self.facts.epoch, self.link_failures)
        self.send_queue.renew()
        self.body_reads.renew()
        self._end_renewals(None)
        if self.cluster_link_channel is not None:
            self.cluster_link_channel.renew()
        self.consumers.renew()

    async def renewal(self, what: str) -> None:
        """Wait until the session is made anew.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError: it took too long.
            MeshqError: the session has failed.
        """
        renewed = OpenCompletion(what)
        renewed.since = self.now()
        self._renewals.append(renewed)
        await self.deadlines.wait(renewed)

    def detach(self) -> None:
        """Detach the lost link; the session waits for another one."""
        if self.stream.link is not None:
            self.stream.detach()
            self.deadlines.link_changed(self.now())

    def abandon(self) -> None:
        """Give up the resume of the session while it has no link, and drop the frames kept for that."""
        if self.stream.link is None:
            self.stream.abandon()

    def fail(self, error: MeshqError) -> None:
        """Fail the session: all waiting calls and runs get the error."""
        if self.facts.failure is not None:
            return
        self.facts.failure = error
        self.stream.detach()
        self.pending_calls.fail(error)
        self.send_queue.fail(error)
        # Before the reads of their bodies: a message whose body does not come any more is not to be received.
        self.consumers.fail(error)
        self.body_reads.fail(error)
        self.upload_slots.fail(error)
        self._end_renewals(error)
        self.stream.settling.clear()

    def _end_renewals(self, error: MeshqError | None) -> None:
        renewals, self._renewals = self._renewals, []
        for waiter in renewals:
            if error is None:
                waiter.succeed()
            else:
                waiter.fail(outcome_of(error, "not_done"))


def _ignore(_: Any) -> None:
    """The handler of frames without content: do nothing."""
