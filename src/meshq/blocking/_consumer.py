"""A consumer for threads: what has arrived is handed over here, and the loop is told of it in batches.

The loop's thread pushes runs as they arrive, so that a message that is here costs no thread hop.  None of them is
delivered before a caller has got it: what was handed over is counted here, and reported with the next
acknowledgement and before the consumer is closed.  What was not goes back uncounted.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Self

import attrs

from meshq import client as trio_client
from meshq.blocking._delivery import Delivery
from meshq.blocking._host import Host
from meshq.client import ConsumerStatistics, DeliveredRun, Lending, Span
from meshq.errors import BusyError, ClosedError, SettingsError

if TYPE_CHECKING:
    from meshq.blocking._client import Client


class Consumer:
    """Deliveries from one queue.  Made by ``client.consumer``; used as ``with``, by one receiving thread at a time.

    ``window`` and ``window_bytes`` bound what is here, handed over or not, and not settled.  *Delivered* means
    handed to the application: what is only waiting here goes back uncounted when the consumer is closed.  Any
    thread may settle what any thread has received.
    """

    def __init__(self, client: Client, inner: trio_client.Consumer) -> None:
        #: The queue, as it was asked for.
        self.queue = inner.queue
        self.client = client
        self._inner = inner
        self._name = f"the consumer of {inner.queue!r}"
        self._loop = client._loop
        self._host = Host(self._loop, inner, self._name, before_leaving=self._finish)
        self._arrived = threading.Condition(threading.Lock())
        # All below is touched with that lock only.  Runs to be handed over, the one that is being handed over, its
        # next index, and the index from which on the loop does not know that they were.
        self._runs: deque[DeliveredRun] = deque()
        self._run: DeliveredRun | None = None
        self._position = 0
        self._reported = 0
        # What the loop is to be told: handed over, settled; and whether it was asked to come for it.
        self._handed: list[Span] = []
        self._settled: list[tuple[int, Span]] = []
        self._armed = False
        self._busy = False
        self._closed = False
        self._received = 0
        self._lending = Lending(inner, self._changed)
        self._auto = self._lending.auto

    def __repr__(self) -> str:
        statistics = self.statistics()
        return f"<Consumer {self.queue!r} {statistics.state} ready={statistics.ready}>"

    def statistics(self) -> ConsumerStatistics:
        """What it has now."""
        with self._arrived:
            ready = sum(run.rows for run in self._runs if self._lending.current(run))
            if self._run is not None and self._lending.current(self._run):
                ready += self._run.rows - self._position
            return attrs.evolve(self._inner.statistics(), ready=ready, received=self._received)

    # -- life

    def __enter__(self) -> Self:
        """Open it at the broker.  Interrupted: it is closed again.

        Raises:
            UsageError: it was used before, or the address of the queue is of the other routing type.
            NotFoundError: there is no such queue, and none is made.
            RefusedError: somebody else has the queue for himself.
            FilterError: the broker takes the filter for none.
            ConnectionBrokenError, CallTimeoutError, ClosedError: it could not be opened.
        """
        self._loop.at_end(self._end)
        try:
            self._host.enter()
        except BaseException:
            self._loop.not_at_end(self._end)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close it; see ``close``.  Interrupted: it is closed all the same."""
        try:
            return self._host.leave(error)
        finally:
            self._loop.not_at_end(self._end)

    def close(self) -> None:
        """Close it: what was handed over and not settled goes back marked, the rest unmarked.  Twice is silent.

        Interrupted: it is closed all the same; when messages are back is not waited for.
        """
        if not self._closed:
            self._host.check()
            self._loop.call(self._close)

    # -- receiving

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """The next message; None when the time is up, or a browse at its end.  Interrupted: no message is lost.

        Raises:
            BusyError: another thread is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        if self._loop.forked:
            self._loop.check_thread()
        with self._arrived:
            if (self._busy or not self._ready()) and not self._wait(timeout):
                return None
            run, index = self._run, self._position
            assert run is not None
            self._hand_over(run, index + 1)
        return Delivery(run, index, self)

    def receive_many(self, n: int, timeout: float | None = None) -> list[Delivery]:
        """Up to ``n`` messages: as soon as there is one, all that are here; ``[]`` when the time is up, or a browse at
        its end.

        Interrupted: no message is lost.
        Raises:
            SettingsError: ``n`` is not a whole number above 0.
            BusyError: another thread is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        if type(n) is not int or n < 1:
            raise SettingsError("n", n, "a whole number from 1")
        if self._loop.forked:
            self._loop.check_thread()
        taken: list[Delivery] = []
        with self._arrived:
            if (self._busy or not self._ready()) and not self._wait(timeout):
                return taken
            while n and self._ready():
                run, index = self._run, self._position
                assert run is not None
                end = min(run.rows, index + n)
                taken += map(Delivery, repeat(run), range(index, end), repeat(self))
                n -= end - index
                self._hand_over(run, end)
        return taken

    def _ready(self) -> bool:
        """Whether a message is here to be handed over; what belongs to a session that is gone comes again."""
        run = self._run
        if run is not None:
            if self._lending.current(run):
                return True
            self._run = None
        while self._runs:
            run = self._runs.popleft()
            if self._lending.current(run):
                self._run, self._position, self._reported = run, 0, 0
                return True
        return False

    def _hand_over(self, run: DeliveredRun, end: int) -> None:
        """The messages up to ``end`` of a run go to the caller."""
        start = self._position
        if self._auto:
            span = Span(run, start, end - start)
            self._arm()
            run.settled |= span.mask
            self._settled.append((Lending.ACK, span))
        self._position = end
        self._received += end - start
        if end == run.rows:
            self._note()
            self._run = None

    def _note(self) -> None:
        """Note down what was handed over of the present run."""
        run = self._run
        if run is not None and self._position > self._reported:
            self._handed.append(Span(run, self._reported, self._position - self._reported))
            self._reported = self._position

    def _wait(self, timeout: float | None) -> bool:
        """Wait until something is here; False when the time is up."""
        if timeout is not None and (type(timeout) not in (int, float) or not timeout >= 0):
            raise SettingsError("timeout", timeout, "seconds from 0, or None")
        if self._busy:
            raise BusyError(f"two threads receive from {self._name}")
        self._check()
        self._loop.check_thread()
        longest = None if timeout is None or math.isinf(timeout) else min(timeout, threading.TIMEOUT_MAX)
        self._busy = True
        try:
            self._arrived.wait_for(self._stirred, longest)
        finally:
            self._busy = False
        if self._ready():
            return True
        self._check()
        return False

    def _stirred(self) -> bool:
        return self._ready() or self._closed or self._lending.ended or self._lending.failure is not None

    def _check(self) -> None:
        failure = self._lending.failure
        if failure is not None:
            raise failure
        if self._closed:
            raise ClosedError(f"{self._name} is closed")
        self._host.check()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        """The next message; the iteration ends when the consumer is closed, or a browse at its end.

        Interrupted: no message is lost.

        Raises:
            StopIteration: the consumer was closed, or has shown everything.
        """
        try:
            delivery = self.receive()
        except ClosedError:
            raise StopIteration from None
        if delivery is None:
            # It was a browse.
            raise StopIteration
        return delivery

    # -- settling

    def ack(self, *deliveries: Delivery, confirm: bool = False) -> None:
        """Acknowledge: these messages are done with.

        Returns when it is in the session's ordered stream; with ``confirm`` when it is stored.

        Interrupted: without ``confirm`` it is in line or not touched; with it, unknown.
        Raises:
            UsageError: a delivery was settled before, or is another consumer's, or was only looked at; nothing changed.
            StaleDeliveryError: deliveries belong to a session or consumer that is gone and come again; the others
                are acknowledged; ``results`` says which is which.
            UnblockedError, CallTimeoutError, ConnectionBrokenError: with ``confirm``: unknown.
        """
        if confirm:
            self._lending.check_settling()
            self._host.check()
            self._loop.call(self._ack_and_confirm, deliveries)
        else:
            self._settle(deliveries, Lending.ACK)

    def nack(self, *deliveries: Delivery, delay: float | None = None) -> None:
        """Give messages back: they are delivered again, in their old place, here or to somebody else.

        ``delay``: seconds after which that may be; None: as the settings of the address have it.  A message that was
        delivered as often as these allow goes to their dead-letter address.

        Interrupted: it is in line or not touched.
        Raises:
            SettingsError: the delay is no number of seconds; nothing changed.
            UsageError, StaleDeliveryError: as ``ack``.
        """
        self._settle(deliveries, Lending.returning(delay))

    def reject(self, *deliveries: Delivery) -> None:
        """Refuse messages for good: they go to the dead-letter address, and are gone where there is none.

        Interrupted: it is in line or not touched.

        Raises:
            UsageError, StaleDeliveryError: as ``ack``.
        """
        self._settle(deliveries, Lending.REJECT)

    def _settle(self, deliveries: Sequence[Delivery], fate: int) -> None:
        if self._loop.forked:
            self._loop.check_thread()
        self._lending.check_settling()
        if not deliveries:
            return
        with self._arrived:
            spans, stale = self._lending.mark(deliveries)
            if spans:
                self._arm()
                self._settled += zip(repeat(fate), spans)
        if stale is not None:
            raise stale

    def _arm(self) -> None:
        """Have the loop come for what it is to be told.  Whatever it is asked for later, it comes for this first."""
        if not self._armed:
            self._loop.soon(self._report)
            self._armed = True

    # -- in the loop

    def _changed(self) -> None:
        """Messages have arrived, or the consumer has failed."""
        runs = self._lending.take()
        with self._arrived:
            self._runs += runs
            if self._busy:
                self._arrived.notify_all()

    def _report(self) -> None:
        with self._arrived:
            self._armed = False
            self._note()
            handed, self._handed = self._handed, []
            settled, self._settled = self._settled, []
        # Without the lock: a broker in this loop answers at once.
        self._lending.report(handed, settled)

    async def _ack_and_confirm(self, deliveries: Sequence[Delivery]) -> None:
        self._report()
        with self._arrived:
            stale = self._lending.settle(deliveries)
        if stale is None or None in stale.results:
            await self._lending.confirm()
        if stale is not None:
            raise stale

    async def _close(self) -> None:
        await self._finish()
        await self._inner.close()

    async def _finish(self) -> None:
        """Nothing more is handed over, and the loop knows all that was."""
        self._end()
        self._report()

    def _end(self) -> None:
        with self._arrived:
            self._note()
            self._closed = True
            self._run = None
            self._runs.clear()
            self._arrived.notify_all()
