"""The consumer for asyncio: receives messages that have arrived, and reports them to the trio loop in batches."""

from __future__ import annotations

import asyncio
import math
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Self

from meshq import client as trio_client
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._delivery import Delivery
from meshq.aio._loop_thread import TaskLoop
from meshq.aio._wakeup import CrossThreadWakeup
from meshq.aio._yielding import YieldCounter
from meshq.client import ConsumerTap
from meshq.errors import ClosedError, SettingsError
from meshq.portal import BufferedConsumer

if TYPE_CHECKING:
    from meshq.aio._generated_client import ClientCalls


class Consumer(BufferedConsumer):
    """A consumer: receives deliveries from one queue.  Made by ``client.consumer``; used as ``async with``, by one
    receiving task at a time.

    ``window`` and ``window_bytes`` bound what is here, handed over or not, and not settled.  *Delivered* means
    handed to the application: what is only waiting here goes back uncounted when the consumer is closed.
    """

    _loop: TaskLoop
    _block: TaskBlockRunner

    def __init__(self, client: ClientCalls, inner: trio_client.Consumer) -> None:
        super().__init__(client._loop, inner)
        self.client: ClientCalls = client
        self._block = TaskBlockRunner(self._loop, inner, self._name, within=client._block, before_leaving=self._finish)
        self._wakeup = CrossThreadWakeup()
        self._yields = YieldCounter()

    # -- life

    async def __aenter__(self) -> Self:
        """Open it at the broker.

        Checkpoint: always.  Cancellation: it is closed again.
        Raises:
            UsageError: it was used before, or the address of the queue is of the other routing type.
            NotFoundError: there is no such queue, and none is made.
            RefusedError: somebody else has the queue for himself.
            FilterError: the broker takes the filter for none.
            ConnectionBrokenError, CallTimeoutError, ClosedError: it could not be opened.
        """
        self._block.claim()
        self._loop.at_end(self._end)
        try:
            await self._block.enter()
        except BaseException:
            self._loop.cancel_at_end(self._end)
            if self._block.was_left:
                self._end()
            raise
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close it; see ``close``.

        Checkpoint: always.  Cancellation: it is closed all the same.
        """
        try:
            return await self._block.leave(error)
        finally:
            self._loop.cancel_at_end(self._end)

    async def close(self) -> None:
        """Close the consumer: received messages that are not settled go back marked as redelivered, prefetched ones
        unmarked.  Twice is silent.

        Checkpoint: always, the first time.
        Cancellation: it is closed all the same; when messages are back is not waited for.
        """
        if self._block.shut():
            self._end()
        elif self._life.state != "closed":
            await self._block.call(self._close)

    # -- receiving

    async def receive(self, timeout: float | None = None) -> Delivery | None:  # noqa: ASYNC109
        """Receive the next message; None at the timeout, or at the end of a browse.

        Checkpoint: when nothing is waiting here, else at least every 64th call.
        Cancellation: no message is lost.
        Raises:
            BusyError: another task is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        if self._loop.forked:
            self._loop.check_thread()
        if self._yields.due():
            await self._yields.let_others_run()
        while True:
            with self._lock:
                if not self._busy and self._ready():
                    run, index = self._run, self._position
                    assert run is not None
                    self._hand_over(run, index + 1)
                    return Delivery(run, index, self)
            if not await self._arrival(timeout):
                return None

    async def receive_many(self, n: int, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109
        """Receive up to ``n`` messages, as soon as one is here; ``[]`` at the timeout, or at the end of a browse.

        Checkpoint: when nothing is waiting here, else at least once for every 64 messages handed over.
        Cancellation: no message is lost.
        Raises:
            SettingsError: ``n`` is not a whole number above 0.
            BusyError: another task is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        if type(n) is not int or n < 1:
            raise SettingsError("n", n, "a whole number from 1")
        if self._loop.forked:
            self._loop.check_thread()
        if self._yields.due(0):
            await self._yields.let_others_run()
        while True:
            with self._lock:
                taken = self._take_many(n) if not self._busy else []
            if taken or not await self._arrival(timeout):
                self._yields.due(len(taken))
                return taken

    def _take_many(self, n: int) -> list[Delivery]:
        """With the lock: take up to ``n`` messages that are here."""
        taken: list[Delivery] = []
        while n and self._ready():
            run, index = self._run, self._position
            assert run is not None
            end = min(run.rows, index + n)
            taken += map(Delivery, repeat(run), range(index, end), repeat(self))
            n -= end - index
            self._hand_over(run, end)
        return taken

    async def _arrival(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        """Wait until something is here; False when the time is up."""
        with self._lock:
            self._check_waiting(timeout, "tasks")
            self._busy = True
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None or math.isinf(timeout) else clock() + timeout
        try:
            if timeout == 0:
                await self._yields.let_others_run()
            while True:
                with self._lock:
                    if self._waited() or (deadline is not None and clock() >= deadline):
                        break
                    future = self._wakeup.expect()
                await self._wakeup.wait(future, deadline)
        finally:
            self._busy = False
        with self._lock:
            if self._ready():
                return True
            self._check()
            return False

    def _wake_waiters(self) -> None:
        self._wakeup.wake()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message; the iteration ends when the consumer is closed, or a browse at its end.

        Checkpoint: when nothing is waiting here, else at least every 64th call.  Cancellation: no message is lost.
        Raises:
            StopAsyncIteration: the consumer was closed, or has shown everything.
        """
        try:
            delivery = await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None
        if delivery is None:
            # It was a browse.
            raise StopAsyncIteration
        return delivery

    # -- settling

    async def ack(self, *deliveries: Delivery, confirm: bool = False) -> None:
        """Acknowledge messages: the broker removes them from the queue.

        Returns when it is in the session's ordered stream; with ``confirm`` when it is stored.

        Checkpoint: with ``confirm`` always, else at least every 64th call.
        Cancellation: without ``confirm`` it is in line or not touched; with it, unknown.
        Raises:
            UsageError: a delivery was settled before, or is another consumer's, or was only looked at; nothing changed.
            StaleDeliveryError: deliveries belong to a session or consumer that is gone and come again; the others
                are acknowledged; ``results`` says which is which.
            UnblockedError, CallTimeoutError, ConnectionBrokenError, ClosedError: with ``confirm``: unknown.
        """
        if confirm:
            self._tap.check_settling()
            await self._block.call(self._ack_and_confirm, deliveries)
        else:
            self._settle(deliveries, ConsumerTap.ACK)
            if self._yields.due(len(deliveries)):
                await self._yields.let_others_run()

    async def nack(self, *deliveries: Delivery, delay: float | None = None) -> None:
        """Give messages back: the queue delivers them again in their old place, to this or another consumer.

        ``delay``: seconds after which that may be; None: as the settings of the address have it.  A message that was
        delivered as often as these allow goes to their dead-letter address.

        Checkpoint: at least every 64th call.  Cancellation: it is in line or not touched.
        Raises:
            SettingsError: the delay is no number of seconds; nothing changed.
            UsageError, StaleDeliveryError: as ``ack``.
        """
        self._settle(deliveries, ConsumerTap.returning(delay))
        if self._yields.due(len(deliveries)):
            await self._yields.let_others_run()

    async def reject(self, *deliveries: Delivery) -> None:
        """Reject messages for good: the broker moves them to the dead-letter address, or drops them if none is set.

        Checkpoint: at least every 64th call.  Cancellation: it is in line or not touched.
        Raises:
            UsageError, StaleDeliveryError: as ``ack``.
        """
        self._settle(deliveries, ConsumerTap.REJECT)
        if self._yields.due(len(deliveries)):
            await self._yields.let_others_run()
