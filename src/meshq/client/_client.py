"""The client: one session at a broker, with the calls of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import trio

from meshq import limits
from meshq.abc import Env
from meshq.address import parse_place
from meshq.client._messaging_patterns import MessagingPatterns
from meshq.client.admin._statistics import ClientStatistics
from meshq.client.calls._block import Block
from meshq.client.calls._calls import Call, OpenCompletion
from meshq.client.calls._completion import Completion, copied_error, first_error
from meshq.client.link._connection import Connection
from meshq.client.link._connector import ClientTargets, LocalTarget
from meshq.client.link._events import ConnectionEvent, EventSink, EventSinks, EventStream
from meshq.client.link._login import Login
from meshq.client.link._targets_plan import FixedTopology, LastFirst
from meshq.client.outgoing._outbox import OutgoingRun
from meshq.client.receive._consumer import AckMode, Consumer, check_consumer
from meshq.client.receive._reply_queue import ReplyQueue
from meshq.client.send._body_sources import BodySource, source_of
from meshq.client.send._envelope import PLAIN_ROW, EnvelopeEncoder
from meshq.client.send._implicit_producers import ImplicitProducers
from meshq.client.send._large_sends import send_large
from meshq.client.send._producer import Producer
from meshq.client.send._send_batches import SendBatch, cut_into_runs
from meshq.client.session._flusher import Flusher
from meshq.client.session._session import ClientSession
from meshq.client.settings._settings import ClientOptions, ClientSettings
from meshq.client.transactions._transaction import Transaction
from meshq.endpoint import Endpoint
from meshq.errors import ClosedError, MeshqError, SettingsError, UsageError
from meshq.ids import IDENTITY_BYTES
from meshq.loops import check_in_trio
from meshq.message import Message, PropertyValue, check_durable, keywords_of
from meshq.wire import Link, encode_one


class Client(MessagingPatterns):
    """A client: one session at a broker.  Made by ``connect``, ``ClientFactory.connect`` or ``broker.client``.

    ``async with`` connects at its begin and closes at its end.  When the connection is lost, the client comes back
    by itself; when it can't, the body is cancelled and the block raises ``ConnectionBrokenError``.
    """

    def __init__(self, targets: ClientTargets, settings: ClientSettings, env: Env) -> None:
        self._targets = targets
        self._settings = settings
        self._env = env
        self._session = ClientSession(settings, trio.current_time)
        self._flusher = Flusher(self._session)
        login = Login(env.entropy.token, settings.user, settings.password)
        self._connection = Connection(self._session, targets, settings, settings.client_id or "", login)
        self._connection.on_event = self._happened
        self._encoder = EnvelopeEncoder()
        self._replies = ReplyQueue(self._session, self._wait_call)
        self._workers, self._stopped_serving = {}, False
        self._block = Block("the client")
        self._implicit = ImplicitProducers(self._session, self._check, self._token)
        self._watchers: EventSinks[ConnectionEvent] = EventSinks()
        self._nursery: Any = None
        self._life = trio.CancelScope(shield=True)
        # Under which transactions send; made for the first of them.
        self._transaction_producer = b""
        self._closed = False
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
        return f"<Client {self._state} peer={self._connection.peer!r} session={session.number} epoch={session.epoch}>"

    @property
    def _state(self) -> str:
        if self._session.failure is not None:
            return "closed" if isinstance(self._session.failure, ClosedError) else "failed"
        if not self._block.open:
            return "new"
        return "connected" if self._session.link is not None else "reconnecting"

    def statistics(self) -> ClientStatistics:
        """Return the state and counters of the client."""
        session, connection = self._session, self._connection
        return ClientStatistics(
            state=self._state,
            peer=connection.peer,
            node_id=session.node_id,
            node_name=connection.node_name,
            session=session.number,
            epoch=session.epoch,
            connected=connection.connected,
            resumed=connection.resumed,
            renewed=connection.renewed,
            producers=len(session.send_queue.outboxes),
            consumers=len(session.inboxes),
            unconfirmed=sum(outbox.unsettled for outbox in session.send_queue.outboxes),
            waiting_runs=len(session.send_queue.backlog),
            requests=self._replies.waiting,
            late_answers=self._replies.late,
            kept_bytes=session.outgoing.kept_bytes,
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
                    nursery.start_soon(self._flusher.run)
                    nursery.start_soon(self._connection.keep_time)
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
        self._end_events()

    def _crashed(self, error: BaseException) -> None:
        self._session.fail(ClosedError(f"the client has failed: {error!r}", outcome="unknown"))
        self._connection.first.fail(error)
        self._block.fail(error)
        self._end_events()

    async def _end(self) -> None:
        """End the tasks and the nursery around them."""
        self._life.cancel()
        self._session.fail(ClosedError("the client is closed"))
        self._end_events()
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
        if self._closed:
            await trio.lowlevel.checkpoint()
            return
        self._closed = True
        try:
            await self._connection.close()
        finally:
            self._session.fail(ClosedError("the client is closed"))
            # A task may still be waiting for the connection.
            self._connection.first.fail(ClosedError("the client was closed before it was connected"))
            self._life.cancel()
            self._end_events()

    def session(self) -> Client:
        """Create another session, on a connection of its own, with the same settings."""
        return Client(self._targets, self._settings, self._env)

    def events(self) -> EventStream[ConnectionEvent]:
        """Return an async iterator of the connection's events from now on."""
        stream: EventStream[ConnectionEvent] = EventStream()
        self._watch(stream)
        return stream

    def _watch(self, stream: EventSink[ConnectionEvent]) -> None:
        if self._session.failure is not None:
            stream.close()
        else:
            self._watchers.add(stream)

    def _happened(self, event: ConnectionEvent) -> None:
        self._watchers.put(event)

    def _end_events(self) -> None:
        self._watchers.close()

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
            large_from = self._settings.min_large_message_size + 1
            run = await send_large(self, address, source, envelope, durable=durable, large_from=large_from)
            if run is None:
                return
        else:
            assert type(body) is bytes
            run = OutgoingRun(encode_one(body, envelope), durable, self._env.wall.now_ms(), plain=envelope is PLAIN_ROW)
        self._session.submit(self._implicit.to(address), run)
        self._session.flush()
        if not run.done:
            await self._wait_run(run)
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
        outbox = self._implicit.to(address)
        for run in runs:
            self._session.submit(outbox, run)
        self._session.flush()
        self._start_timeout(runs)
        try:
            await batch.wait()
        except BaseException:
            for run in runs:
                run.given_up = not run.sent
            raise
        finally:
            self._stop_timeout(runs)

    def producer(self, address: str, *, window: int = limits.PRODUCER_WINDOW_MESSAGES) -> Producer:
        """Create a pipelined producer to an address, with at most ``window`` unconfirmed messages.

        Raises:
            SettingsError: a setting is not allowed.
        """
        parse_place(address)
        if type(window) is not int or not 1 <= window < 2**31:
            raise SettingsError("window", window, "a whole number from 1 to 2147483647")
        return Producer(self, address, window=window)

    def transaction(self, xid: bytes | None = None) -> Transaction:
        """Create a transaction, to be used as ``async with``: sends and acknowledgements are applied together or not at
        all.

        ``xid``: 1 to 128 bytes by which it is known once it is prepared.

        Raises:
            SettingsError: the xid is none.
        """
        return Transaction(self, xid)

    # -- receiving

    def consumer(
        self,
        queue: str,
        *,
        filter: str | None = None,
        window: int = 1000,
        window_bytes: int = 16 * limits.MIB,
        ack: AckMode = "explicit",
        browse: bool = False,
        priority: int = 0,
        exclusive: bool = False,
    ) -> Consumer:
        """Create a consumer of a queue, an async iterator of ``Delivery``, to be used as ``async with``.

        ``filter``: a condition on properties and headers; messages of which it is not true stay for others.
        ``priority``: from -128 to 127; who has a higher one is served first, until its window is full.
        ``exclusive``: while this consumer is there, the queue's others get nothing; of several exclusive ones the
        first of the highest priority is served, and the next when that one is gone.
        ``browse``: look only.  All that is in the queue now, handed out or not, comes in the order of delivery, and
        then the iteration ends; nothing is taken, counted or to be settled.

        Raises:
            SettingsError: a setting is not allowed.
            FilterError: the filter is no condition; says where.
        """
        text = check_consumer(
            queue,
            window,
            window_bytes,
            ack,
            filter=filter,
            priority=priority,
            exclusive=exclusive,
            browse=browse,
        )
        return Consumer(
            self,
            queue,
            window=window,
            window_bytes=window_bytes,
            auto=ack == "auto",
            filter=text,
            priority=priority,
            exclusive=exclusive,
            browse=browse,
        )

    # -- what the parts of a client use of each other

    def _check(self) -> None:
        self._session.check()
        if not self._block.open:
            check_in_trio("connect")
            raise UsageError("the client is not open: use it in 'async with'")

    def _token(self) -> bytes:
        return self._env.entropy.token(IDENTITY_BYTES)

    def _now_ms(self) -> int:
        return self._env.wall.now_ms()

    def _transacting_as(self) -> bytes:
        self._transaction_producer = self._transaction_producer or self._token()
        return self._transaction_producer

    async def _send_gathered(self) -> None:
        session = self._session
        self._flusher.flush_now()
        barriers = [
            session.send_queue.add_barrier(outbox) for outbox in list(session.send_queue.outboxes) if outbox.queued
        ]
        for mark in barriers:
            await self._wait_run(mark)
            mark.result()

    def _start_timeout(self, runs: Sequence[OutgoingRun]) -> None:
        """Start the timeout of the runs that a task waits for."""
        waiting = [run for run in runs if not run.done]
        if not waiting:
            return
        now = self._session.now()
        for run in waiting:
            # A queued run has begun to wait before.
            run.since = run.since or now
        self._session.timed.update(dict.fromkeys(waiting))
        self._connection.look_at_timeout(waiting[0].since)

    def _stop_timeout(self, runs: Sequence[OutgoingRun]) -> None:
        self._session.send_queue.forget(runs)

    async def _wait_run(self, run: OutgoingRun) -> None:
        self._start_timeout((run,))
        try:
            await run.wait_done()
        except BaseException:
            run.given_up = not run.sent
            raise
        finally:
            self._stop_timeout((run,))

    async def _wait_call(self, call: Call | OpenCompletion) -> dict[str, Any]:
        timed = self._session.timed
        timed[call] = None
        self._connection.look_at_timeout(call.since)
        try:
            values: dict[str, Any] = await call.wait()
            return values
        except trio.Cancelled:
            call.abandon()
            raise
        finally:
            del timed[call]
