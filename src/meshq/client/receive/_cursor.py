"""The cursor: a durable, replayable reader of one queue, with a place at its broker and a lease for one owner."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import trio

from meshq import limits
from meshq.client.incoming._delivered_run import ReceivedMessage
from meshq.client.receive._consumer import Consumer, Numbers
from meshq.client.receive._cursor_records import (
    SEQUENCE_END,
    STARTS,
    CursorLag,
    CursorSettings,
    CursorStart,
    SequenceHole,
    all_holes,
    check_range,
)
from meshq.client.receive._lease_keeper import Lease, LeaseKeeper
from meshq.client.session._client_context import ClientContext
from meshq.concurrency import Block, copied_error
from meshq.errors import (
    BrokenError,
    BusyError,
    ClosedError,
    CursorHeldError,
    CursorLostError,
    MeshqError,
    NotActiveError,
    NotFoundError,
    RefusedError,
    SecurityError,
    SettingsError,
    UnblockedError,
    UsageError,
)
from meshq.loops import check_in_trio

#: Seconds that whoever takes a lease waits beyond it.
_TAKING_S: Final = 2.0
#: A lease is renewed when a third of it has passed.
_RENEW_SHARE: Final = 1 / 3
#: Seconds after which a call is repeated that the session could not carry.
_AGAIN_S: Final = 0.05
#: What never falls as long as one owner has the cursor.
_RISING: Final = ("processed", "pinned", "high")
#: What one can call again: the call has no effect that it did not have before.
_CUT: Final = (UnblockedError, NotActiveError)


class Cursor:
    """A cursor: reads one queue in the order of its sequences, as often as need be.  Made by ``client.cursor``; used as
    ``async with``, by one task at a time.

    Entering the block registers the cursor unless it is there, and takes it: it has one owner at a time, by a lease
    that the client renews.  Leaving the block releases it; the cursor stays, with its place and the messages behind
    that.  Messages stay in the queue until ``ack_to``.  When another one has taken the cursor, the body is cancelled
    and the block raises ``CursorLostError``.

    A call that a lost session has cut off is repeated.  ``CallTimeoutError`` and ``ConnectionBrokenError`` say in
    ``outcome`` whether it may have been carried out; repeating it does no harm.  ``ClosedError``: the client or the
    cursor is closed.
    """

    def __init__(
        self, context: ClientContext, keeper: LeaseKeeper, queue: str, name: str, settings: CursorSettings
    ) -> None:
        self._queue = queue
        self._name = name
        self._context = context
        self._keeper = keeper
        self._settings = settings
        self._token = context.token().hex()
        self._block = Block(f"the cursor {name!r} of {queue!r}")
        # What the broker has said last.
        self._place: dict[str, Any] = {}
        self._position = 0
        self._reader: Consumer | None = None
        self._busy = False
        self._failure: MeshqError | None = None
        self._lease = Lease(self._renew)

    def __repr__(self) -> str:
        state = "open" if self._block.open else "closed"
        return f"<Cursor {self.name!r} of {self.queue!r} {state} position={self._position}>"

    # -- life

    async def __aenter__(self) -> Self:
        """Register the cursor unless it is there, and take it, for which one needs the permission to consume; that of
        another user takes the permission to manage, too.

        Where another owner has it, that owner's lease is waited for, at most ``lease`` and 2 seconds.

        Checkpoint: always.  Cancellation: it may be registered; it is free when its lease has run out.
        Raises:
            UsageError: it was used before, or the queue can't have a cursor.
            NotFoundError: there is no such queue.
            CursorHeldError: another owner has renewed its lease meanwhile, or the queue has another cursor.
            RefusedError: the queue has consumers.
            BusyError: a transaction holds messages of the queue.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        check_in_trio("connect")
        self._block.check_unused()
        self._context.check()
        self._block.claim()
        try:
            self._take(await self._opened())
            self._position = self._place["processed"]
        except BaseException:
            self._block.abandon()
            raise
        self._keeper.add(self._lease)
        self._block.enter()
        return self

    async def _opened(self) -> dict[str, Any]:
        settings = self._settings
        until = trio.current_time() + settings.lease_s + _TAKING_S
        seen = math.inf
        while True:
            values = await self._asked_again(
                "open_cursor",
                name=self.name,
                token=self._token,
                lease_ms=round(settings.lease_s * 1000),
                start=settings.start,
                max_lag=settings.max_lag,
            )
            if not values["held"]:
                return values
            now = trio.current_time()
            if values["renewals"] > seen or now >= until:
                holder = str(values["holder"])
                text = f"the cursor {self.name!r} of {self.queue!r} is held by {holder}, who renews the lease"
                raise CursorHeldError(text, queue=self.queue, name=self.name, holder=holder)
            seen = values["renewals"]
            await trio.sleep(max(0.0, min(values["left_ms"] / 1000 + _AGAIN_S, until - now)))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Release the cursor; see ``release``.

        Checkpoint: always.  Cancellation: it is free when its lease has run out.
        """
        left = self._block.leave(error)
        await self._block.close_after(left, self.release)
        return self._block.conclude(error, left)

    async def release(self) -> None:
        """Release the cursor: the next owner need not wait.  Twice is silent, and so is a cursor that is lost.

        Checkpoint: when the broker has to be told.  Cancellation: it is free when its lease has run out.
        """
        check_in_trio("connect")
        self._block.close()
        self._keeper.drop(self._lease)
        reader, self._reader = self._reader, None
        if self._failure is not None:
            return
        self._failure = ClosedError(f"{self._block.name} was released")
        if reader is not None:
            await reader.close()
        if self._place:
            try:
                await self._context.ask("release_cursor", **self._owned)
            except (BrokenError, ClosedError, RefusedError):
                # It is free when its lease has run out.
                return

    async def _renew(self) -> None:
        """Renew the lease, or note that it is lost.

        Checkpoint: always.  Cancellation: it may be renewed or not.
        """
        self._lease.renew_at = trio.current_time() + self._settings.lease_s * _RENEW_SHARE
        try:
            values = await self._context.ask("renew_cursor", **self._owned)
        except (CursorLostError, NotFoundError, SecurityError) as error:
            self._fail(error)
        except MeshqError:
            # The link is lost, or the client is being closed: as long as nobody else takes it, it is this owner's.
            self._lease.renew_at = trio.current_time() + min(_AGAIN_S, self._settings.lease_s * _RENEW_SHARE)
        else:
            if self._failure is None:
                self._take(values)

    def _take(self, values: dict[str, Any]) -> None:
        # The answer of a call that was made earlier may be taken later.
        self._place = values | {key: max(values[key], self._place.get(key, 0)) for key in _RISING}
        self._lease.renew_at = trio.current_time() + self._settings.lease_s * _RENEW_SHARE

    def _fail(self, error: MeshqError) -> None:
        if self._failure is None:
            self._failure = error
            self._keeper.drop(self._lease)
            self._block.fail(error)

    @property
    def _owned(self) -> dict[str, Any]:
        return {"queue": self.queue, "name": self.name, "fence": self._place["fence"]}

    def _check(self) -> None:
        if self._failure is not None:
            raise copied_error(self._failure)
        if not self._block.open:
            check_in_trio("connect")
            raise UsageError(f"{self._block.name} is not open: use it in 'async with'")

    async def _asked_again(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Ask, and ask again where the session was cut off: each of these calls is the same twice as once."""
        while True:
            try:
                return await self._context.ask(operation, queue=self.queue, **arguments)
            except _CUT:
                self._context.check()
                await trio.sleep(_AGAIN_S)

    async def _owner_asked(self, operation: str, **arguments: Any) -> None:
        self._check()
        fence = self._place["fence"]
        try:
            self._take(await self._asked_again(operation, name=self.name, fence=fence, **arguments))
        except CursorLostError as error:
            self._fail(error)
            raise

    # -- reading

    @property
    def queue(self) -> str:
        """The queue, as it was asked for."""
        return self._queue

    @property
    def name(self) -> str:
        """The name of the cursor."""
        return self._name

    @property
    def position(self) -> int:
        """The sequence from which on messages are received next."""
        return self._position

    @property
    def epoch(self) -> int:
        """Rises when the cursor is registered anew: places of another epoch mean nothing."""
        return int(self._place.get("epoch", 0))

    @property
    def fence(self) -> int:
        """Rises with each owner of the cursor, and with each cursor; no other owner ever has it."""
        return int(self._place.get("fence", 0))

    @property
    def processed(self) -> int:
        """Everything below this sequence is acknowledged."""
        return int(self._place.get("processed", 0))

    async def receive(self, timeout: float | None = None) -> ReceivedMessage | None:  # noqa: ASYNC109
        """Receive the message with the next sequence; None at the timeout.

        There is nothing to settle: see ``ack_to``.

        Checkpoint: when nothing is waiting here, else at least every 64th call.
        Cancellation: no message is lost.
        Raises:
            BusyError: another task is receiving.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        found = await self._received(lambda reader, left: _one(reader, left), timeout)
        return found[0] if found else None

    async def receive_many(self, n: int, timeout: float | None = None) -> list[ReceivedMessage]:  # noqa: ASYNC109
        """Receive up to ``n`` messages, as soon as one is here; ``[]`` at the timeout.

        Checkpoint: when nothing is waiting here, else at least once for every 64 messages handed over.
        Cancellation: no message is lost.
        Raises:
            SettingsError: ``n`` is not a whole number above 0.
            BusyError: another task is receiving.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        return await self._received(lambda reader, left: reader.receive_many(n, left), timeout)

    async def _received(
        self,
        take: Callable[[Consumer, float | None], Any],
        timeout: float | None,  # noqa: ASYNC109
    ) -> list[ReceivedMessage]:
        if timeout is not None and (type(timeout) not in (int, float) or not timeout >= 0):
            raise SettingsError("timeout", timeout, "seconds from 0, or None")
        if self._busy:
            raise BusyError(f"two tasks receive from {self._block.name}")
        until = math.inf if timeout is None else trio.current_time() + timeout
        self._busy = True
        try:
            while True:
                self._check()
                left = None if timeout is None else max(0.0, until - trio.current_time())
                try:
                    reader = self._reader or await self._begun()
                    taken = await take(reader, left)
                except _CUT:
                    # The session was made anew: it goes on behind the last message.
                    self._context.check()
                    self._reader = None
                    await trio.sleep(_AGAIN_S)
                    continue
                except CursorLostError as error:
                    self._fail(error)
                    raise
                if taken:
                    self._position = taken[-1].sequence + 1
                if taken or timeout is not None:
                    return [ReceivedMessage(one._run, one._index) for one in taken]
        finally:
            self._busy = False

    async def _begun(self) -> Consumer:
        """The consumer that reads from the present position on."""
        numbers = Numbers(self._position, 0, self.name, self.fence)
        reader = self._consumer(numbers)
        await reader._begin()
        self._reader = reader
        return reader

    def _consumer(self, numbers: Numbers) -> Consumer:
        return Consumer(
            self._context,
            self.queue,
            window=self._settings.window,
            window_bytes=16 * limits.MIB,
            auto=True,
            browse=True,
            numbers=numbers,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The message with the next sequence; the iteration ends when the cursor is released.

        Checkpoint: when nothing is waiting here, else at least every 64th call.  Cancellation: no message is lost.
        Raises:
            StopAsyncIteration: the cursor was released.
        """
        try:
            message = await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None
        assert message is not None
        return message

    async def seek(self, position: int | CursorStart) -> None:
        """Move the reader, not the cursor: to a sequence, to the first one that is not acknowledged, or to the end.

        Checkpoint: always.  Cancellation: the reader is where it was or where it goes.
        Raises:
            SettingsError: the position is none.
            BusyError: another task is receiving.
            NotFoundError: what is there is acknowledged, and gone; names the sequences that there are.
            UsageError: the position is above the high mark.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        if position not in STARTS and (type(position) is not int or position < 0):
            raise SettingsError("position", position, "a sequence, 'earliest' or 'latest'")
        if self._busy:
            raise BusyError(f"another task receives from {self._block.name}")
        await self._owner_asked("renew_cursor")
        low, high = self._place["processed"], self._place["high"]
        to = position if isinstance(position, int) else low if position == "earliest" else high
        if to < low:
            raise NotFoundError(f"{self._block.name} has the sequences [{low}, {high}), and {to} is acknowledged")
        if to > high:
            raise UsageError(f"{self._block.name} has the sequences [{low}, {high}), not yet {to}")
        reader, self._reader = self._reader, None
        self._position = to
        if reader is not None:
            await reader.close()

    def browse(self, lo: int, hi: int) -> Consumer:
        """Create a reader of the sequences from ``lo`` up to, and without, ``hi``, to be used as ``async with``.

        It is an async iterator of messages in this order, the same each time while none of them is acknowledged.

        After a lost session it fails; another one goes on behind the last message.

        Raises:
            SettingsError: these are no sequences.
            UsageError: the cursor is not open.
        """
        check_range(lo, hi)
        self._check()
        return self._consumer(Numbers(lo, hi, self.name, self.fence))

    # -- the place

    async def ack_to(self, to: int | ReceivedMessage) -> None:
        """Acknowledge everything up to a message, with it, or below a sequence: it leaves the queue.

        What was acknowledged before stays so: a lower place changes nothing.

        Checkpoint: always.  Cancellation: it may be acknowledged or not: repeat it.
        Raises:
            SettingsError: this is neither a message nor a sequence.
            UsageError: the message is of another queue, or the sequence above the high mark.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._owner_asked("ack_cursor", number=self._number("to", to))

    async def pin(self, to: int | ReceivedMessage) -> None:
        """Keep everything up to a message, with it, or below a sequence, from expiring until it is acknowledged.

        Checkpoint: always.  Cancellation: it may be pinned or not: repeat it.
        Raises:
            SettingsError: this is neither a message nor a sequence.
            UsageError: the message is of another queue, or the sequence above the high mark.
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._owner_asked("pin_cursor", number=self._number("to", to))

    def _number(self, setting: str, to: int | ReceivedMessage) -> int:
        if isinstance(to, ReceivedMessage):
            if to.queue != self.queue:
                raise UsageError(f"the message is of the queue {to.queue!r}, not of {self.queue!r}")
            return to.sequence + 1
        if type(to) is not int or not 0 <= to < SEQUENCE_END:
            raise SettingsError(setting, to, "a received message, or a sequence")
        return to

    async def high_mark(self) -> int:
        """Return the high mark of the queue: every message with a lower sequence can be read, and stays so.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CursorLostError: another owner has the cursor, or it is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._owner_asked("renew_cursor")
        return int(self._place["high"])

    async def lag(self) -> CursorLag:
        """Return how far the cursor is behind.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            NotFoundError: the cursor is gone.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._check()
        values = await self._asked_again("cursor_lag", name=self.name)
        return CursorLag(messages=values["messages"], bytes=values["bytes"], seconds=values["age_ms"] / 1000)

    async def holes(self, lo: int, hi: int) -> list[SequenceHole]:
        """Return the sequences from ``lo`` up to, and without, ``hi`` that no message has, and why.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SettingsError: these are no sequences.
            UsageError: the range ends above the high mark.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see the class.
        """
        check_range(lo, hi)
        self._check()
        return await all_holes(lambda at: self._asked_again("holes", lo=at, hi=hi), lo)


async def _one(reader: Consumer, timeout: float | None) -> list[ReceivedMessage]:  # noqa: ASYNC109
    message = await reader.receive(timeout)
    return [] if message is None else [message]
