"""A transaction: sends and acknowledgements that count together, or not at all."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self, cast

import trio

from meshq import limits
from meshq.address import parse_place
from meshq.client.calls._calls import Call
from meshq.client.calls._link_failures import outcome_of
from meshq.client.incoming._delivered_run import ReceivedMessage
from meshq.client.receive._consumer import Consumer
from meshq.client.receive._delivery import Delivery
from meshq.client.send._envelope import PLAIN_ROW, EnvelopeEncoder, Row
from meshq.client.session._client_context import ClientContext
from meshq.client.transactions._prepared_work import PreparedWork
from meshq.client.transactions._transaction_calls import (
    CUT,
    lost_error,
    not_open_error,
    settle_by_consumer,
    user_error,
)
from meshq.client.transactions._transaction_life import new_life
from meshq.errors import BusyError, MeshqError, TransactionRolledBackError, UsageError
from meshq.ids import check_xid
from meshq.message import Message, PropertyValue, check_body, check_durable, keywords_of
from meshq.wire import FLAG_DURABLE, FLAG_TRANSACTED, Envelope, Frame, FrameType, RunBytes, Transact, encode_run
from meshq.wire import Call as WireCall

#: Runs sent and not yet taken by the broker, beyond which a send waits.
_WINDOW_RUNS: Final = 16
#: Seconds without a call after which one looks whether the broker still has the transaction.
_IDLE_S: Final = 1.0
#: The fate of a delivery: the flag, and above it the transaction's number.
_FATE_SHIFT: Final = 8


class Transaction:
    """A transaction: sends and acknowledgements are applied together or not at all.  Made by ``client.transaction``;
    used as ``async with``, by one task at a time.

    Leaving the block commits; when the body raises, all is rolled back: what was sent never was, what was acknowledged
    is delivered again.  ``commit`` and ``rollback`` do so before.

    Made with an ``xid`` it may be prepared: then leaving the block decides nothing, and whoever knows the xid commits
    it or rolls it back, in this session or another one, before or after a restart of the broker.
    """

    def __init__(self, context: ClientContext, encoder: EnvelopeEncoder, xid: bytes | None = None) -> None:
        self._context = context
        self._encoder = encoder
        # What it becomes when it is prepared; None: it has no xid.
        self._prepared = None if xid is None else PreparedWork(context, check_xid(xid))
        self._session = context.session
        self._life = new_life()
        self._number = 0
        # Messages sent, those of them that gather, and messages acknowledged.
        self._sent = self._acked = 0
        self._address: str | None = None
        self._durable = True
        self._bodies: list[bytes] = []
        self._rows: list[Row] = []
        self._size = 0
        # Runs that the broker has not taken yet, the oldest first.
        self._runs: deque[Call] = deque()
        # Why it can only be rolled back.
        self._failure: MeshqError | None = None
        self._used_at = 0.0
        # What the flusher saw at its last look.
        self._seen = 0
        self._armed = False
        self._busy = False
        # Sends since the last one that passed through the scheduler.
        self._calls = 0

    def __repr__(self) -> str:
        return f"<Transaction {self._life.state} sent={self._sent} acked={self._acked}>"

    @property
    def state(self) -> str:
        """``new``, ``active``, ``prepared``, ``committed`` or ``rolled back``."""
        return self._life.state

    @property
    def stage_id(self) -> int | None:
        """The number of a stage, for ``commit_batch``; None for all other transactions."""
        return None

    def _check_decision(self, how: str) -> None:
        """Raise UsageError if the transaction is not decided alone; ``how`` it is decided then."""

    @property
    def _has_work(self) -> bool:
        return bool(self._sent or self._acked)

    @property
    def rollback_only(self) -> bool:
        """Whether a commit would raise."""
        return self._failure is not None

    # -- life

    async def __aenter__(self) -> Self:
        """Begin it; the broker hears of it with the first work.

        Checkpoint: always.  Cancellation: it is not begun.
        Raises:
            UsageError: it was used before, or the client is not open.
            ClosedError, ConnectionBrokenError: the client is of no further use.
        """
        if self._life.state != "new":
            raise UsageError("the transaction was used before; make another one")
        self._context.check()
        await trio.lowlevel.checkpoint()
        self._life.on("begin")
        xid = None if self._prepared is None else self._prepared.xid
        self._number = self._session.transactions.begin(self, xid)
        self._used_at = trio.current_time()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back if the body has raised; nothing if that was done before, or if it is prepared.

        Checkpoint: when it has to wait for the broker.
        Cancellation: as ``commit``.
        Raises:
            MeshqError: as ``commit``.
        """
        if self._life.state == "new":
            self._check()
        if self._life.state == "active":
            if error is None:
                await self.commit()
            else:
                self._abandon()

    # -- work

    async def send(
        self,
        address: str,
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
        """Send a message that no consumer sees before the commit.

        Checkpoint: when it has to wait, and at least every 64th call.
        Cancellation: the message was not taken.
        Raises:
            SettingsError: a part of the message is not allowed; it was not taken.
            TransactionRolledBackError: the transaction is lost; it is rolled back.
            MeshqError: an earlier message was refused; all is rolled back.
            UsageError: the transaction is not open.
        """
        if type(body) is not bytes or len(body) > limits.MESSAGE_BYTES_MAX:
            if isinstance(body, Message):
                extras = (duplicate_id, correlation_id, reply_to, group, content_type)
                await self.send(
                    address, body.body, **keywords_of(body, properties, durable, priority, ttl, delay, *extras)
                )
                return
            body = check_body(body)
        check_durable(durable)
        row = self._encoder.row(
            properties, duplicate_id, correlation_id, reply_to, content_type, priority, ttl, delay, group
        )
        if self._address is None or address != self._address:
            parse_place(address)
        await self.ready()
        size = len(body) + len(row[1]) + len(row[2]) + len(row[3])
        if self._bodies and (
            address != self._address
            or durable is not self._durable
            or len(self._bodies) == limits.RUN_MESSAGES_MAX
            or self._size + size > limits.RUN_BYTES_TARGET
        ):
            self._cut()
        self._address, self._durable = address, durable
        self._bodies.append(body)
        self._rows.append(row)
        self._size += size
        self._sent += 1
        if not self._armed:
            self._armed = True
            self._seen = 0
            self._context.flusher.arm(self)

    async def ack(self, *deliveries: Delivery) -> None:
        """Acknowledge messages of any consumer of this client as part of the transaction; a rollback delivers them
        again.

        They make room in their consumer's window at once.

        Checkpoint: at least every 64th call.  Cancellation: they are acknowledged or not touched.
        Raises:
            UsageError: a delivery was settled before, or is another client's; or the transaction is not open.
            StaleDeliveryError: deliveries belong to a session or consumer that is gone and come again; the others
                are acknowledged; ``results`` says which is which.
            TransactionRolledBackError: the transaction is lost; it is rolled back.
        """
        await self.ready()
        self.settle(deliveries)

    def settle(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Acknowledge received messages while the transaction is ``ready``; as ``ack``."""
        settle_by_consumer(deliveries, lambda delivery: delivery._run.consumer, self._settle_part)

    def _settle_part(self, part: Sequence[ReceivedMessage]) -> None:
        """Acknowledge deliveries of one consumer."""
        consumer = cast("Consumer", part[0]._run.consumer)
        if consumer._context is not self._context:
            raise UsageError(f"{part[0]!r} was received by another client")
        inbox = consumer._inbox
        inbox.check_settling()
        stale = inbox.settle(part, FLAG_TRANSACTED | self._number << _FATE_SHIFT)
        done = len(part) if stale is None else stale.results.count(None)
        if done:
            self._acked += done
            self._session.stream.gathered(inbox)
        if stale is not None:
            raise stale

    def mark_rollback_only(self) -> None:
        """Mark the transaction as never to be committed: ``commit`` raises."""
        self._check()
        self._fail(TransactionRolledBackError("the transaction was marked as rollback-only"))

    def _check(self) -> None:
        if self._life.state == "new":
            self._context.check()
        if self._life.state != "active":
            raise not_open_error(self._life.state)
        if self._busy:
            raise BusyError("two tasks use one transaction")

    async def ready(self) -> None:
        """Before any work: is there still a transaction, and is there room?

        Checkpoint: when it has to wait, and at least every 64th call.  Cancellation: nothing has changed.
        Raises:
            MeshqError: the transaction is lost; it is rolled back.
            UsageError: it is not open.
        """
        self._check()
        self._look_at_session()
        self._raise_failure()
        now = trio.current_time()
        idle, self._used_at = now - self._used_at > _IDLE_S, now
        runs = self._runs
        while runs and runs[0].done:
            runs.popleft()
        if idle and self._has_work:
            # The broker may have rolled the transaction back meanwhile: a late call fails at once.
            self._cut()
            await self._wait(self._call("look_at_transaction"))
        elif len(runs) >= _WINDOW_RUNS:
            await self._wait(runs[0])
        else:
            self._calls += 1
            if self._calls >= limits.CHECKPOINT_MESSAGES:
                self._calls = 0
                await trio.lowlevel.checkpoint()
        self._raise_failure()

    def _look_at_session(self) -> None:
        failure = self._session.facts.failure
        if failure is not None:
            self._fail(outcome_of(failure, "not_done"))

    async def _wait(self, call: Call) -> None:
        self._busy = True
        try:
            await self._session.deadlines.wait(call)
        except CUT:
            self._fail(lost_error())
        except MeshqError as error:
            self._fail(outcome_of(error, "not_done"))
        finally:
            self._busy = False

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise outcome_of(self._failure, "not_done")

    def _fail(self, error: MeshqError) -> None:
        if self._failure is None and self._life.state == "active":
            self._failure = user_error(error)

    # -- what the flusher does

    def flush_idle(self) -> bool:
        """Send the gathered messages if their number no longer grows; called at the end of each loop turn."""
        count = len(self._bodies)
        if count and count != self._seen:
            self._seen = count
            return True
        self.flush_now()
        self._armed = False
        return False

    def flush_now(self) -> None:
        """Send the gathered messages now."""
        if self._bodies and self._life.state == "active":
            self._cut()

    def _cut(self) -> None:
        """Cut the gathered messages into a run and queue the run."""
        bodies, rows = self._bodies, self._rows
        if not bodies or self._address is None:
            return
        plain = all(row is PLAIN_ROW for row in rows)
        self._queue(encode_run(bodies, None if plain else cast("list[Envelope]", rows)), self._address)
        self._bodies, self._rows, self._size, self._seen = [], [], 0, 0

    def _queue(self, run: RunBytes, address: str) -> None:
        """Queue a run whose messages are counted."""
        header = Transact(
            transaction=self._number,
            address=address,
            producer=self._context.transaction_producer(),
            number=self._session.transactions.number(run.rows),
            sent=self._sent - run.rows,
        ).encode()
        flags, stamp = FLAG_DURABLE if self._durable else 0, self._context.now_ms()

        def make(number: int) -> Frame:
            return Frame(
                FrameType.TRANSACT,
                flags=flags,
                first=number,
                stamp=stamp,
                header=header,
                count=run.rows,
                table=run.table,
                body=run.body,
            )

        call = Call("a send of a transaction", make, self._session.facts.epoch, on_failed=self._run_failed)
        self._runs.append(call)
        self._session.pending_calls.add(call)
        self._session.stream.wake()

    def _run_failed(self, error: BaseException) -> None:
        """Fail the transaction with a refused run; a lost session is reported by ``renewed``."""
        if isinstance(error, MeshqError) and not isinstance(error, CUT):
            self._fail(error)

    # -- how it ends

    async def prepare(self) -> None:
        """Prepare the transaction: store its work, which waits for ``commit`` or ``rollback`` and can no longer fail.

        What is not durable waits in memory, and is lost if the broker ends before the decision.

        Checkpoint: always.
        Cancellation: it may be prepared or not: ``client.recover`` tells.
        Raises:
            UsageError: the transaction has no xid, or one under which another one is prepared; or a message was
                refused; all is rolled back.
            SecurityError: the xid is another user's; all is rolled back.
            TransactionRolledBackError: it was rolled back; if ``outcome`` is unknown it may be prepared, too: repeat
                the work with the same duplicate ids, and roll back what ``client.recover`` lists.
            DuplicateError, AddressFullError, NotFoundError: it could not be committed; all is rolled back.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        await self._prepare()

    async def _prepare(self) -> None:
        self._check()
        if self._prepared is None:
            raise UsageError("a transaction that is to be prepared is made with its id: client.transaction(xid=...)")
        await self._conclude("prepare", "prepare", xid=self._prepared.xid)

    async def commit(self) -> None:
        """Commit the transaction; on return its work is stored.

        Checkpoint: always.
        Cancellation: it may have been committed or not: repeat the work with the same duplicate ids; or, if it was
        prepared, commit it again.
        Raises:
            TransactionRolledBackError: it was rolled back; if ``outcome`` is unknown it may have been committed, too:
                repeat the work with the same duplicate ids.
            RetryTransactionError: it is prepared, and the session was lost since, or is at another node, or the
                broker has no room: commit it again.
            DuplicateError: a duplicate id is known already; all is rolled back.
            AddressFullError, NotFoundError, UsageError: a message was refused; all is rolled back.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        self._check_decision("committed with its batch: client.commit_batch")
        if self._life.state == "prepared":
            assert self._prepared is not None
            try:
                await self._prepared.commit()
            except TransactionRolledBackError:
                self._life.on("roll_back")
                raise
            self._life.on("commit")
            return
        self._check()
        await self._conclude("commit", "commit")

    async def _conclude(self, operation: str, event: str, **more: bytes) -> None:
        self._look_at_session()
        if self._failure is not None:
            # Whatever became of its sends: without a commit none of them counts.
            failure = outcome_of(self._failure, "not_done")
            self._abandon()
            await trio.lowlevel.checkpoint()
            raise failure
        self._cut()
        call = self._call(operation, sent=self._sent, acked=self._acked, **more)
        self._busy = True
        try:
            await self._session.deadlines.wait(call)
        except MeshqError as error:
            self._busy = False
            # Whatever else has failed: a commit that is cut off may have been done.
            failure = user_error(error if isinstance(error, CUT) else self._failure or error, operation)
            self._abandon()
            raise failure from (error.__cause__ if failure is error else error)
        except BaseException:
            self._busy = False
            self._abandon()
            raise
        self._busy = False
        self._end(event)

    async def rollback(self) -> None:
        """Roll the transaction back: its sends are dropped, its acknowledged messages are delivered again.

        Checkpoint: always.
        Cancellation: it is rolled back all the same; if it was prepared, perhaps.
        Raises:
            UsageError: the transaction is not open; or it was prepared, and somebody has committed it.
            RetryTransactionError: it is prepared at another node than the session is.
            UnblockedError, CallTimeoutError, ConnectionBrokenError, ClosedError: it is prepared; roll it back again.
        """
        if self._life.state == "prepared":
            self._check_decision("dropped with its batch: client.abandon_batch")
            assert self._prepared is not None
            await self._prepared.roll_back()
            self._life.on("roll_back")
            return
        self._check()
        self._abandon()
        await trio.lowlevel.checkpoint()

    def _abandon(self) -> None:
        """Roll back the work that the broker may still have of the transaction."""
        if self._has_work and self._session.facts.failure is None:
            self._call("roll_back")
        self._end("roll_back")

    def _end(self, event: str) -> None:
        self._life.on(event)
        self._bodies, self._rows = [], []
        self._session.transactions.end(self)

    def _call(self, operation: str, **arguments: int | bytes | str) -> Call:
        """Say something about it, in this session only."""
        flat = tuple(item for pair in {"transaction": self._number, **arguments}.items() for item in pair)
        header = WireCall(operation=operation, arguments=flat).encode()
        epoch = self._session.facts.epoch if self._has_work else None

        def make(number: int) -> Frame:
            if operation == "prepare":
                assert self._prepared is not None
                # Without any work it may have waited for another session, perhaps at another node.
                self._prepared.asked()
            return Frame(FrameType.CALL, first=number, header=header)

        call = Call("a transaction", make, epoch)
        self._session.pending_calls.add(call)
        self._session.stream.flush()
        return call

    def renewed(self) -> None:
        """Handle a new session: the broker has dropped the work of the transaction."""
        if self._has_work and not self._busy:
            # Waiting calls are told by their own completions.
            self._fail(lost_error())
        self._runs.clear()
