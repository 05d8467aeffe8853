"""A session at the broker: the producers, consumers and calls of one client, across its links.

Frames come in, calls on the core go out; nothing here waits.  A session without a link goes on numbering and keeping
its frames, and sends them when its client resumes the session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from meshq.broker.access._access import Rights
from meshq.broker.core._core import Core
from meshq.broker.management._management import answer_call
from meshq.broker.management._management_requests import ManagementRequests
from meshq.broker.management._network_demand import NETWORK_DEMAND, NETWORK_QUEUES, NetworkDemand, kept_queues
from meshq.broker.management._subscriptions import queue_to_consume
from meshq.broker.network._replay import Replay
from meshq.broker.session._body_blocks import BodyBlocks
from meshq.broker.session._disk_space import DiskSpace
from meshq.broker.session._outgoing_bound import OutgoingBound
from meshq.broker.session._peering import Peering
from meshq.broker.session._principal import Principal
from meshq.broker.session._session_calls import SessionCalls
from meshq.broker.session._session_channels import SessionChannels
from meshq.broker.session._session_consumers import NETWORK_ROUTES, SessionConsumers
from meshq.broker.session._session_credit import SessionCredit
from meshq.broker.session._session_life import SESSION_TRANSITIONS
from meshq.broker.session._session_producers import SessionProducers
from meshq.broker.session._session_stream import SessionStream
from meshq.broker.session._session_transactions import SessionTransactions
from meshq.broker.session._topology_feed import TopologyFeed
from meshq.broker.transactions import ForwardedRuns
from meshq.lifecycle import LifeCycle
from meshq.wire import Call, Frame, FrameType, Leave, Link, LinkOpening, header_of, violation


class SessionHolder(Protocol):
    """The connection that has a session."""

    def taken_over(self) -> None:
        """Give the session up: its client has come over another connection."""


class ServerSession:
    """A session.  ``key`` is the secret with which its client can resume it."""

    def __init__(
        self,
        core: Core,
        number: int,
        key: bytes,
        *,
        label: str,
        owner: tuple[str, str],
        rights: Rights | None,
        window_bytes: int,
    ) -> None:
        self._core = core
        self.key: bytes = key
        #: The state: "new", "attached", "detached" or "ended".
        self.life: LifeCycle = LifeCycle(f"session {number}", SESSION_TRANSITIONS)
        #: The connection that has the session; None while the session is detached.
        self.holder: SessionHolder | None = None
        self.stream: SessionStream = SessionStream(window_bytes, partial(core.pending.schedule_flush, self))
        #: The client or peer that the session belongs to.
        self.principal: Principal = Principal(number, self.stream, self.life, label=label, owner=owner, rights=rights)
        self.credit: SessionCredit = SessionCredit(self.stream)
        self.outgoing_bound: OutgoingBound = OutgoingBound(core.memory, core.sessions, self.stream, window_bytes)
        self.channels: SessionChannels = SessionChannels()
        self._calls = SessionCalls(self.stream, core.release_queue, core.running_operations, core.closing)
        self._transactions = SessionTransactions(
            self.principal,
            self._calls,
            core.transactions,
            router=core.router,
            release_queue=core.release_queue,
            redelivery=core.redelivery,
        )
        self.consumers: SessionConsumers = self._make_consumers(core)
        self._body_blocks = BodyBlocks(
            core.bodies,
            core.memory,
            self.principal,
            durable=core.durable,
            closing=core.closing,
            calls=self._calls,
            channels=self.channels,
            consumers=self.consumers,
        )
        self._disk_space = DiskSpace(core.release_queue, core.router)
        self.producers: SessionProducers = self._make_producers(core)
        #: What only another node's session has.
        self.peering: Peering | None = None
        self._topology = TopologyFeed(core.settings.topologies, self.stream, number)
        self._network = NetworkDemand(
            self.principal,
            self._calls,
            self.stream.schedule_flush,
            core.definitions,
            core.identity,
            advisory_support=core.settings.event_bus.advisory_support,
            warn=core.settings.host.warn,
        )
        self._handlers: dict[FrameType, Callable[[Frame], None]] = {
            FrameType.SEND: self.producers.send,
            FrameType.SETTLE: self.consumers.settle,
            FrameType.PRODUCE: self.producers.open,
            FrameType.CONSUME: self.consumers.consume,
            FrameType.LEAVE: self._leave,
            FrameType.CALL: self._call,
            **self._body_blocks.handlers,
            FrameType.TRANSACT: self._transactions.transact,
        }

    def _make_consumers(self, core: Core) -> SessionConsumers:
        return SessionConsumers(
            self.principal,
            self.stream,
            definitions=core.definitions,
            acknowledger=core.acknowledger,
            redelivery=core.redelivery,
            release_queue=core.release_queue,
            unacked_memory=core.memory.unacked,
            pending=core.pending,
            event_bus=core.settings.event_bus,
            find_queue=partial(
                queue_to_consume, core.definitions, core.settings.token, self.principal, core.settings.host.warn
            ),
            calls=self._calls,
            channels=self.channels,
            transactions=self._transactions,
            outgoing_bound=self.outgoing_bound,
            replay=Replay(core.identity.node_id.hex(), core.pending.schedule_dispatch),
            schedule_delivery=partial(core.pending.schedule_delivery, self),
        )

    def _make_producers(self, core: Core) -> SessionProducers:
        return SessionProducers(
            self.principal,
            self.stream,
            ingress=core.ingress,
            definitions=core.definitions,
            release_queue=core.release_queue,
            disk_space=self._disk_space,
            memory=core.memory,
            fair_scheduler=core.pending.fair_scheduler,
            requests=ManagementRequests(core, self.principal),
            closing=core.closing,
            calls=self._calls,
            channels=self.channels,
            credit=self.credit,
            body_blocks=self._body_blocks,
            event_bus=core.settings.event_bus,
        )

    def welcome_peer(self) -> None:
        """Take links: the session is another node's."""
        if self.peering is None:
            core = self._core
            self.peering = Peering(
                self.principal,
                self.stream,
                identity=core.identity,
                host=core.settings.host,
                ingress=core.ingress,
                definitions=core.definitions,
                release_queue=core.release_queue,
                incoming=ForwardedRuns(core.ingress, core.release_queue, self._disk_space, core.transactions.transfer),
                memory=core.memory,
                fair_scheduler=core.pending.fair_scheduler,
                closing=core.closing,
                calls=self._calls,
                channels=self.channels,
                credit=self.credit,
                producers=self.producers,
            )
            self._handlers.update(
                {**self.peering.handlers, FrameType.LINK: self._link, FrameType.NODE: self._announced}
            )

    def welcome(self, role: str, features: Sequence[str]) -> None:
        """Begin the session for the other side, which understands these features."""
        if role == "peer":
            self.welcome_peer()
        self._topology.welcome(role, features)

    def _link(self, frame: Frame) -> None:
        peering = self.peering
        assert peering is not None
        peering.handlers[FrameType.LINK](frame)
        if frame.channel in peering.channels:
            self._topology.linked(header_of(frame, LinkOpening), frame.channel)

    def _announced(self, frame: Frame) -> None:
        peering = self.peering
        assert peering is not None
        if peering.reads(frame):
            peering.met(*self._topology.announced(frame))

    @property
    def number(self) -> int:
        """The number of the session."""
        return self.principal.number

    @property
    def ended(self) -> bool:
        """Whether the session has ended."""
        return self.life.state == "ended"

    def __repr__(self) -> str:
        about, channels = self.principal, self.channels
        return f"<Session {about.number} {about.label!r} at {about.peer} producers={len(channels.producers)} " + (
            f"consumers={len(channels.consumers)}>"
        )

    def handle(self, frame: Frame) -> None:
        """Handle one frame of the attached session.

        Raises:
            RemoteProtocolError: the client broke the protocol; the session must be ended.
        """
        stream = self.stream
        stream.incoming.accept(frame)
        if frame.received:
            self._arrived(frame.received)
        handler = self._handlers.get(frame.type)
        if handler is not None:
            handler(frame)
            if stream.resumable and stream.report_due:
                # Whatever else is said will report it; if nothing is, RECEIVED does.
                stream.schedule_flush()

    def heard(self, frame: Frame) -> None:
        """Take note of a frame that says only how far the client has received."""
        self.stream.incoming.accept(frame)
        self._arrived(frame.received)

    def _arrived(self, received: int) -> None:
        self.stream.outgoing.arrived(received)
        self.consumers.drained()

    def forget_judged(self) -> None:
        """Forget the run that is being put to filters: it will not be placed."""
        self.producers.forget()
        if self.peering is not None:
            self.peering.forget()

    def _leave(self, frame: Frame) -> None:
        header = header_of(frame, Leave)
        self._calls.begin(frame)
        channel = frame.channel
        if not (
            self.consumers.leave(channel, header.handed)
            or self.producers.close(channel)
            or self._body_blocks.leave(channel)
            or self.consumers.was_lost(channel)
        ):
            raise violation("bad_channel", f"channel {channel} is not open")
        self._calls.answer(frame.first, {})

    def _call(self, frame: Frame) -> None:
        call = header_of(frame, Call)
        self._calls.begin(frame)
        if call.operation == "flush":
            self._calls.answer_when_durable(frame.first, {})
        elif call.operation == NETWORK_DEMAND:
            self._network.ask(frame, call.named)
        elif call.operation == NETWORK_ROUTES:
            self._calls.answering(frame, lambda: self.consumers.reroute(call.named), takes_in=False)
        elif call.operation == NETWORK_QUEUES:
            router = self._core.router
            self._calls.answering(frame, lambda: kept_queues(router, self.principal, call.named), takes_in=False)
        elif call.operation in self._transactions.operations:
            self._calls.answering(frame, lambda: self._transactions.operate(call.operation, call.named))
        else:
            self._calls.answering(frame, lambda: answer_call(self._core, call.operation, call.named, self.principal))

    def flush(self) -> None:
        """Send confirms, credit and all waiting frames; a session that has ended has none left, and no link."""
        peering = self.peering
        if peering is not None:
            peering.flush()
        self._topology.flush()
        self._network.flush()
        if self.producers.confirms:
            self.producers.flush(peering.channels if peering is not None else {})
        if self.credit.changed:
            self.credit.flush()
        stream = self.stream
        link = stream.link
        if link is not None:
            if stream.resumable and stream.report_due:
                stream.report(link)
            link.flush()

    # -- life

    def attach(self, link: Link, received: int, holder: SessionHolder) -> None:
        """Attach the session to a link, and send again the frames after ``received``, which the client has not."""
        self.life.on("attach")
        self.holder = holder
        self.stream.attach(link, received)
        self.consumers.attached()
        self._topology.attached()
        self.stream.schedule_flush()

    def detach(self) -> None:
        """Detach the session from its link; it waits for its client."""
        self.life.on("detach")
        self.holder = None
        self.stream.detach()
        self.consumers.detached()
        self._topology.detached()

    def end(self) -> None:
        """End the session; unacked messages return to their queues."""
        if self.ended:
            return
        self.life.on("end")
        self.holder = None
        self.stream.detach()
        if self.peering is not None:
            self.peering.end()
        self._topology.end()
        self._network.end()
        self._body_blocks.end()
        self.consumers.end()
        self.producers.end()
        self._transactions.end()
        for queue in list(self.principal.owned.values()):
            self._core.pending.schedule_dispatch(queue)
        self._core.memory.close(self.credit)
