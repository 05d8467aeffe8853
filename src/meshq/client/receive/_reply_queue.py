"""The reply queue of a client: one temporary queue for the answers to all requests.

The queue is made with the first request of a session; it goes with the session, and the next one makes another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from meshq import limits
from meshq.client.calls._calls import Call, OpenCompletion
from meshq.client.calls._link_failures import outcome_of
from meshq.client.incoming._delivered_run import ReceivedMessage
from meshq.client.incoming._inbox import ConsumeRequest, Inbox
from meshq.client.session._session import ClientSession
from meshq.concurrency import Completion, copied_error
from meshq.errors import (
    BrokenError,
    ClosedError,
    MeshqError,
    NotFoundError,
    RemoteProtocolError,
    UnblockedError,
    caused,
)
from meshq.wire import Call as WireCall
from meshq.wire import Consume, Frame, FrameType

#: Answers that may be on their way to us at a time; each is taken when it arrives.
_WINDOW: Final = 1_000
_WINDOW_BYTES: Final = 16 * limits.MIB


class ReplyConsumer:
    """The consumer of one temporary queue, to which answers to requests come."""

    def __init__(self, owner: ReplyQueue, session: ClientSession, queue: str) -> None:
        self._owner = owner
        self._session = session
        self.queue: str = queue
        header = Consume(queue=queue, window=_WINDOW, window_bytes=_WINDOW_BYTES).encode()
        self.inbox: Inbox[ReceivedMessage] = Inbox(
            self,
            ReceivedMessage,
            ConsumeRequest(header, temporary=True),
            session.stream,
            session.body_reads,
            auto=True,
        )
        self._opened = OpenCompletion("opening the reply queue")

    @property
    def settles_itself(self) -> bool:
        """True: an answer is acknowledged when it is passed on."""
        return True

    async def open(self) -> None:
        """Open the consumer.

        Checkpoint: always.  Cancellation: the consumer is closed.
        Raises:
            MeshqError: the broker did not open the consumer, which is closed.
        """
        session = self._session
        self._opened.since = trio.current_time()
        session.facts.check()
        session.consumers.open(self.inbox)
        session.stream.flush()
        try:
            await session.deadlines.wait(self._opened)
        except NotFoundError:
            raise
        except BaseException:
            session.consumers.close(self.inbox)
            session.stream.wake()
            raise

    def changed(self) -> None:
        """Pass the arrived answers to the waiting requests."""
        inbox = self.inbox
        if inbox.empty:
            return
        self._owner.answered(inbox.take_many(inbox.waiting))
        # We are in the middle of what the node says: it is told in a turn of our own.
        self._session.stream.settling[inbox] = None
        self._session.stream.wake()

    def opened(self) -> None:
        """Note that the broker has opened the consumer."""
        self._opened.succeed()

    def failed(self, error: MeshqError) -> None:
        """Note that the consumer is gone."""
        self._opened.fail(copied_error(error))
        self._owner.lost(self, error)


class ReplyQueue:
    """The reply queue of one client.

    A request that is not patient enough leaves what it has begun to the next one.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        #: The temporary queue that was made last.
        self.queue = ""
        #: Answers that came after their requests had given up.
        self.late = 0
        self._last = 0
        self._waiting: dict[str, Completion] = {}
        self._consumer: ReplyConsumer | None = None
        # Set when the request that creates the queue has done so, or failed.
        self._made: trio.Event | None = None
        # What is left of a request that was cancelled meanwhile: the call for a queue, or one that nobody consumes
        # from; and in which epoch.
        self._asked: tuple[int, Call] | None = None
        self._spare: tuple[int, str] | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait for their answers."""
        return len(self._waiting)

    async def address(self) -> str:
        """Return the name of the reply queue, created if missing.

        Checkpoint: when it has to be made.  Cancellation: another request makes it.
        Raises:
            MeshqError: it could not be made; nothing was requested.
        """
        while True:
            if self._made is not None:
                await self._made.wait()
                continue
            if self._consumer is not None and self._consumer.inbox.life.state == "open":
                return self.queue
            made = self._made = trio.Event()
            try:
                await self._make()
            except MeshqError as error:
                raise outcome_of(error, "not_done") from error
            finally:
                self._made = None
                made.set()

    async def _new_queue(self) -> str:
        """Return the name of a temporary queue without a consumer."""
        (spare, self._spare), (asked, self._asked) = (self._spare, None), (self._asked, None)
        session = self._session
        epoch = session.facts.epoch
        if spare is not None and spare[0] == epoch:
            return spare[1]
        if asked is not None and asked[0] == epoch:
            call = asked[1]
        else:
            header = WireCall(operation="create_temporary_queue").encode()
            call = Call("create_temporary_queue", lambda number: Frame(FrameType.CALL, first=number, header=header))
            session.facts.check()
            session.pending_calls.add(call)
            session.stream.flush()
        try:
            return str((await session.deadlines.wait(call))["name"])
        except trio.Cancelled:
            if call.sent:
                self._asked = session.facts.epoch, call
            raise

    async def _make(self) -> None:
        self.queue = await self._new_queue()
        consumer = self._consumer = ReplyConsumer(self, self._session, self.queue)
        try:
            await consumer.open()
        except NotFoundError as error:
            # The session was lost after the queue was made.
            raise UnblockedError("the reply queue is gone with its session") from error
        except BaseException:
            self._spare = self._session.facts.epoch, self.queue
            raise

    def expect(self) -> tuple[str, Completion]:
        """Make a correlation id, and the completion of the answer with that id."""
        self._last += 1
        waiter = self._waiting[str(self._last)] = Completion()
        return str(self._last), waiter

    def forget(self, correlation_id: str) -> None:
        """Forget a request that is no longer waiting."""
        self._waiting.pop(correlation_id, None)

    # -- what its consumer says

    def answered(self, answers: Sequence[ReceivedMessage]) -> None:
        """Pass answers to the requests that wait for them."""
        for answer in answers:
            waiter = self._waiting.pop(_correlation(answer), None)
            if waiter is None:
                self.late += 1
            else:
                waiter.succeed(answer)

    def lost(self, consumer: ReplyConsumer, error: MeshqError) -> None:
        """Fail all waiting requests, if this consumer is the one that their answers would come to."""
        if consumer is not self._consumer:
            return
        self._consumer = None
        waiting, self._waiting = self._waiting, {}
        if not isinstance(error, (BrokenError, ClosedError)):
            error = caused(UnblockedError(f"the reply queue is gone: {error}"), error)
        for waiter in waiting.values():
            waiter.fail(outcome_of(error, "unknown"))


def _correlation(answer: ReceivedMessage) -> str:
    try:
        return answer.correlation_id or ""
    except RemoteProtocolError:
        # Its sender's mistake, which is no reason to give up our connection.
        return ""
