"""The client: one session at a broker, with the calls of a program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import attrs
import trio

from meshq import limits
from meshq.abc import Env, ToldNode
from meshq.address import check_name, parse_place
from meshq.client.admin._admin import Administration
from meshq.client.admin._client_balancer import ClientBalancer
from meshq.client.admin._role_calls import RoleCalls
from meshq.client.admin._statistics import ClientStatistics
from meshq.client.incoming._delivered_run import ReceivedMessage
from meshq.client.link._connection import Connection
from meshq.client.link._connector import ClientTargets, LocalTarget
from meshq.client.link._events import ConnectionBus, ConnectionEvent, EventSink, EventStream
from meshq.client.link._login import Login
from meshq.client.link._targets_plan import FixedTopology, LastFirst
from meshq.client.link._topology import TopologyNode, topology_changed, topology_of
from meshq.client.outgoing._outbox import OutgoingRun
from meshq.client.receive._lease_keeper import LeaseKeeper
from meshq.client.receive._receiving_calls import ReceivingCalls
from meshq.client.receive._reply_queue import ReplyQueue
from meshq.client.receive._worker import RunningWorkers
from meshq.client.send._body_sources import BodySource, source_of
from meshq.client.send._envelope import PLAIN_ROW, EnvelopeEncoder
from meshq.client.send._implicit_producers import ImplicitProducers
from meshq.client.send._large_sends import LargeSends
from meshq.client.send._producer import Producer
from meshq.client.send._send_batches import SendBatch, cut_into_runs
from meshq.client.session._client_context import ClientContext
from meshq.client.session._flusher import Flusher
from meshq.client.session._session import ClientSession
from meshq.client.settings._settings import ClientOptions, ClientSettings
from meshq.client.transactions._stage_calls import StageCalls
from meshq.client.transactions._two_phase import TransactionCalls
from meshq.concurrency import Block, Completion, copied_error, first_error
from meshq.endpoint import Endpoint
from meshq.errors import CallTimeoutError, ClosedError, MeshqError, SettingsError
from meshq.loops import check_in_trio
from meshq.message import Message, PropertyValue, check_durable, keywords_of
from meshq.wire import Link, encode_one


class Client(ReceivingCalls, TransactionCalls, StageCalls, RoleCalls, Administration):
    """A client: one session at a broker.  Made by ``connect``, ``ClientFactory.connect`` or ``broker.client``.

    ``async with`` connects at its begin and closes at its end.  When the connection is lost, the client comes back
    by itself; when it can't, the body is cancelled and the block raises ``ConnectionBrokenError``.
    """

    def __init__(self, targets: ClientTargets, settings: ClientSettings, env: Env) -> None:
        self._targets = targets.of_one()
        self._settings = settings
        self._env = env
        self._block = Block("the client")
        self._session = ClientSession(settings, trio.current_time, told=self._told)
        self._stream, self._send_queue = self._session.stream, self._session.send_queue
        self._context = ClientContext(self._session, Flusher(self._session), env, self._block, sender=self)
        self._watchers = ConnectionBus()
        login = Login(env.entropy.token, settings.user, settings.password)
        self._connection = Connection(
            self._session, self._targets, settings, settings.client_id or "", login, watcher=self._watchers
        )
        self._encoder = EnvelopeEncoder()
        self._implicit = ImplicitProducers(self._context)
        self._large = LargeSends(self._context, self._implicit)
        self._replies = ReplyQueue(self._session)
        self._workers = RunningWorkers()
        self._leases = LeaseKeeper()
        self._nursery: Any = None
        self._life = trio.CancelScope(shield=True)
        self._ended = Completion()
        # Sends since the last one that passed through the scheduler.
        self._calls = 0

    @classmethod
    def over(
        cls, open_link: Callable[[], Link], *, env: Env, name: str = "inproc", **settings: Unpack[ClientOptions]
    ) -> Client:
        """A client of a broker in this process; ``open_link`` gives its end of a new link each time.

        Raises:
            SettingsError: a setting is not allowed.
        """
        target = LocalTarget(open_link, name)
        topology = FixedTopology((Endpoint("inproc", name.removeprefix("inproc://"), 0),))
        targets = ClientTargets(topology=topology, policy=LastFirst(), connector=lambda _: target)
        return cls(targets, ClientSettings.build(settings), env)

    def __repr__(self) -> str:
        session = self._session
        facts = session.facts
        return f"<Client {self._state} peer={self._connection.peer!r} session={facts.number} epoch={facts.epoch}>"

    @property
    def _state(self) -> str:
        failure = self._session.facts.failure
        if failure is not None:
            return "closed" if isinstance(failure, ClosedError) else "failed"
        if not self._block.open:
            return "new"
        return "connected" if self._session.stream.link is not None else "reconnecting"

    def statistics(self) -> ClientStatistics:
        """Return the state and counters of the client."""
        session, connection = self._session, self._connection
        facts = session.facts
        return ClientStatistics(
            state=self._state,
            peer=connection.peer,
            node_id=facts.node_id,
            node_name=connection.node_name,
            session=facts.number,
            epoch=facts.epoch,
            connected=connection.counts.connected,
            resumed=connection.counts.resumed,
            renewed=connection.counts.renewed,
            producers=len(session.send_queue.outboxes),
            consumers=len(session.consumers),
            unconfirmed=sum(outbox.unsettled for outbox in session.send_queue.outboxes),
            waiting_runs=len(session.send_queue.backlog),
            requests=self._replies.waiting,
            late_answers=self._replies.late,
            kept_bytes=session.stream.outgoing.kept_bytes,
        )

    # -- life

    async def __aenter__(self) -> Self:
        """Connect.

        Checkpoint: always.  Cancellation: nothing is left.
        Raises:
            UsageError: it was used before.
            ConnectionBrokenError: no connection could be made with the attempts that the settings allow.
            ClosedError: it was closed meanwhile, or before.
            SecurityError, RemoteProtocolError: the node and this client don't fit.
        """
        check_in_trio("connect")
        self._block.claim()
        self._nursery = trio.open_nursery()
        nursery = await self._nursery.__aenter__()
        nursery.start_soon(self._live)
        try:
            await self._connection.first.wait()
        except BaseException:
            self._block.abandon()
            await self._end()
            raise
        self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close; see ``close``.

        Checkpoint: always.  Cancellation: it is closed all the same.
        """
        left = self._block.leave(error)
        try:
            await self._block.close_after(left, self.close)
        finally:
            await self._end()
        return self._block.conclude(error, left)

    async def _live(self) -> None:
        """The client's tasks; they leave no error and no cancellation behind."""
        try:
            with self._life:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._context.flusher.run)
                    nursery.start_soon(self._connection.keep_time)
                    nursery.start_soon(self._leases.run)
                    if self._targets.discovered is not None:
                        nursery.start_soon(self._targets.discovered.run)
                        await self._targets.discovered.wait()
                    error = await self._connection.run()
                    if error is not None:
                        self._failed(error)
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A defect of ours, or an interrupt that was delivered here.
            self._crashed(first_error(group))
        finally:
            self._ended.succeed()

    def _failed(self, error: MeshqError) -> None:
        self._session.fail(error)
        self._connection.first.fail(copied_error(error))
        self._block.fail(error)
        self._watchers.close()

    def _crashed(self, error: BaseException) -> None:
        self._session.fail(ClosedError(f"the client has failed: {error!r}", outcome="unknown"))
        self._connection.first.fail(error)
        self._block.fail(error)
        self._watchers.close()

    async def _end(self) -> None:
        """End the tasks and the nursery around them."""
        self._life.cancel()
        self._session.fail(ClosedError("the client is closed"))
        self._watchers.close()
        manager, self._nursery = self._nursery, None
        if manager is not None:
            await manager.__aexit__(None, None, None)

    async def close(self) -> None:
        """Close the client: queued messages are sent, unsettled deliveries go back, waiting calls raise
        ``ClosedError``.

        Twice is silent.

        Checkpoint: always.  Cancellation: it is closed all the same; what was in line may be lost.
        """
        check_in_trio("connect")
        if self._connection.closing:
            await trio.lowlevel.checkpoint()
            return
        self._block.close()
        try:
            await self._connection.close()
        finally:
            self._session.fail(ClosedError("the client is closed"))
            # A task may still be waiting for the connection.
            self._connection.first.fail(ClosedError("the client was closed before it was open"))
            self._life.cancel()
            self._watchers.close()

    def session(self) -> Client:
        """Create another session, on a connection of its own, with the same settings."""
        return Client(self._targets, self._settings, self._env)

    def balancer(self, name: str) -> ClientBalancer:
        """Return a balancer of the broker, by its name; whether there is one shows its first call.

        Raises:
            SettingsError: no balancer can have the name.
        """
        return ClientBalancer(self._context, check_name("name", name))

    def events(self) -> EventStream[ConnectionEvent]:
        """Return an async iterator of the connection's events from now on."""
        stream: EventStream[ConnectionEvent] = EventStream()
        self._watch(stream)
        return stream

    def topology(self) -> tuple[TopologyNode, ...]:
        """Return the nodes of the broker's cluster as the client was told last, in the order of their names.

        The broker that the client is connected to is at distance 0; without a cluster it is the only one.  Empty as
        long as no broker has told anything, which one of an older version does not.
        """
        return topology_of(self._session.told.nodes)

    def _told(self, before: Sequence[ToldNode]) -> None:
        nodes, now = self._session.told.nodes, trio.current_time()
        if not self._connection.redirected:
            # A client that a balancer has sent here begins at its own URL again.
            self._targets.told(nodes)
        self._connection.begun()
        event = topology_changed(before, nodes, at=now, peer=self._connection.peer)
        if event is not None:
            self._watchers.happened(event)

    def _watch(self, sink: EventSink[ConnectionEvent]) -> None:
        if self._session.facts.failure is not None:
            sink.close()
        else:
            self._watchers.watch(sink)

    # -- sending

    async def send(
        self,
        address: str,
        body: BodySource | Message,
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
        """Send one message; on return the broker has stored the message, on disk if durable.

        A duplicate id that the broker knows is success: the message is stored once.

        ``body``: bytes; or a binary file, or an iterable or async iterable of bytes, which are streamed: no more than
        a few chunks are in memory, however large the body is.  Files and plain iterators are read in a worker thread.
        Bytes above ``min_large_message_size`` are streamed, too; whoever receives them sees no difference.
        Or a ``Message``, which says all of it: no keyword goes beside it.

        Checkpoint: when it has to wait, and at least every 64th call.
        Cancellation: the message may have been sent or not.  Send again with the same duplicate id.
        Raises:
            SettingsError: a part of the message is not allowed; nothing was sent.
            AddressFullError, UsageError: the broker refused it.
            UnblockedError, CallTimeoutError: unknown, or not done; see ``outcome``.
            ConnectionBrokenError, ClosedError: the client is of no further use; see ``outcome``.
        """
        source = None
        if type(body) is not bytes or len(body) > self._settings.min_large_message_size:
            if isinstance(body, Message):
                extras = (duplicate_id, correlation_id, reply_to, group, content_type)
                keywords = keywords_of(body, properties, durable, priority, ttl, delay, *extras)
                await self.send(address, body.body, **keywords)
                return
            source = source_of(body, self._env.threads)
        if durable is not True and durable is not False:
            check_durable(durable)
        if (
            properties is None
            and duplicate_id is None
            and correlation_id is None
            and reply_to is None
            and content_type is None
            and ttl is None
            and delay is None
            and group is None
            and priority == limits.PRIORITY_DEFAULT
        ):
            envelope = PLAIN_ROW
        else:
            envelope = self._encoder.row(
                properties, duplicate_id, correlation_id, reply_to, content_type, priority, ttl, delay, group
            )
        if source is not None:
            run = await self._large.send(address, source, envelope, durable=durable)
            if run is None:
                return
        else:
            assert type(body) is bytes
            run = OutgoingRun(encode_one(body, envelope), durable, self._env.wall.now_ms(), plain=envelope is PLAIN_ROW)
        self._send_queue.submit(self._implicit.to(address), run)
        self._stream.flush()
        if not run.done:
            await self._send_queue.wait(run)
        else:
            self._calls += 1
            if self._calls >= limits.CHECKPOINT_MESSAGES:
                self._calls = 0
                await trio.lowlevel.checkpoint()
        run.result()

    async def send_many(self, address: str, messages: Iterable[bytes | Message], *, durable: bool = True) -> None:
        """Send bodies or ``Message`` objects together; on return the broker has stored all of them.

        ``durable`` is for what is given as a mere body; a ``Message`` says it itself.

        They travel in one frame if they fit (256 messages of one durability), else in several, each stored whole
        or not at all.

        Checkpoint: always.
        Cancellation: each frame may have been sent or not.
        Raises:
            SettingsError: a message is not allowed; nothing was sent.
            MeshqError: as ``send``; ``results`` lists what became of each message.
        """
        batch = SendBatch()
        check_durable(durable)
        runs = cut_into_runs(messages, self._encoder, self._env.wall.now_ms(), batch, bodies_durable=durable)
        if not runs:
            await trio.lowlevel.checkpoint()
            return
        batch.expect(runs)
        outbox, send_queue = self._implicit.to(address), self._send_queue
        for run in runs:
            send_queue.submit(outbox, run)
        self._stream.flush()
        send_queue.start_timeout(runs)
        try:
            await batch.wait()
        except BaseException:
            for run in runs:
                run.on("give up")
            raise
        finally:
            send_queue.stop_timeout(runs)

    def producer(self, address: str, *, window: int = limits.PRODUCER_WINDOW_MESSAGES) -> Producer:
        """Create a pipelined producer to an address, with at most ``window`` unconfirmed messages.

        Raises:
            SettingsError: a setting is not allowed.
        """
        parse_place(address)
        if type(window) is not int or not 1 <= window < 2**31:
            raise SettingsError("window", window, "a whole number from 1 to 2147483647")
        return Producer(self._context, self._encoder, address, window=window)

    async def request(
        self,
        address: str,
        body: bytes | Message,
        *,
        timeout: float,  # noqa: ASYNC109
        properties: Mapping[str, PropertyValue] | None = None,
        durable: bool = True,
        priority: int = limits.PRIORITY_DEFAULT,
        ttl: float | None = None,
        delay: float | None = None,
        duplicate_id: str | bytes | None = None,
        group: str | None = None,
        content_type: str | None = None,
    ) -> ReceivedMessage:
        """Send one message and return the answer that its receiver sends with ``delivery.reply``.

        Answers come over one temporary queue of this client, made with the first request; any number of tasks may ask
        at a time.  An answer that comes when nobody waits for it any more is dropped, and counted in
        ``statistics().late_answers``.

        ``body``: bytes; or a ``Message`` without ``correlation_id`` and ``reply_to``, which are the request's own.

        Checkpoint: always.
        Cancellation: the message may have been sent or not; its answer is dropped.
        Raises:
            SettingsError: a part of the message is not allowed; nothing was sent.
            CallTimeoutError: no answer came in time; whether the message was received is unknown.
            UnblockedError: the session was lost, and with it the answer; unknown, or not done if nothing was sent.
            AddressFullError, NotFoundError, UsageError: the broker refused the message.
            ConnectionBrokenError, ClosedError: the client is of no further use; see ``outcome``.
        """
        if type(timeout) not in (int, float) or not timeout > 0 or math.isnan(timeout):
            raise SettingsError("timeout", timeout, "seconds above 0")
        if isinstance(body, Message):
            check_request(body)
        self._context.check()
        replies, session = self._replies, self._context.session
        sent = False
        with trio.move_on_after(timeout):
            reply_to = await replies.address()
            correlation_id, answer = replies.expect()
            sent = True
            # What a message says, nothing beside it may say, so that a copy of it says these two.
            routing: dict[str, Any] = {"correlation_id": correlation_id, "reply_to": reply_to}
            if isinstance(body, Message):
                body, routing = attrs.evolve(body, **routing), {}
            try:
                await self.send(
                    address,
                    body,
                    properties=properties,
                    durable=durable,
                    priority=priority,
                    ttl=ttl,
                    delay=delay,
                    duplicate_id=duplicate_id,
                    group=group,
                    content_type=content_type,
                    **routing,
                )
                received: ReceivedMessage = await answer.wait()
                return received
            finally:
                replies.forget(correlation_id)
        raise CallTimeoutError(
            f"the request to {address!r} was not answered in {timeout} s", outcome="unknown" if sent else "not_done"
        ) from session.link_failures.late(timeout, attached=session.stream.link is not None)


def check_request(message: Message) -> None:
    """Check that a message leaves its reply address and correlation id to the request.

    Raises:
        SettingsError: it says where answers go, or which answer is its own.
    """
    for name in ("correlation_id", "reply_to"):
        value = getattr(message, name)
        if value is not None:
            raise SettingsError(name, value, "left out of the Message of a request, which sets it itself")
